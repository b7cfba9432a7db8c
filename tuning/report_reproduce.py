"""How to do a run again: what to type, and what it was made with. Pure; a run file is believed nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from lanewise.files import shown_path
from tuning.report_document import Block, Commands, Paragraph, Table, cells, line
from tuning.runfile import Run
from tuning.serving.runfile import ServingRun

_VERBS = ("campaign", "bench-allreduce", "bench-speculative")
_REVISION = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_STEERING = ("NCCL_", "CUDA_", "OMPI_", "UCX_", "TORCH_", "SGLANG_", "FLASHINFER_")
_SHOWN_VALUE = 120


def reproduce(run: Run | ServingRun) -> Iterator[Block]:
    """What to type, what the run was made with, and the variables that were in force."""
    header, plan, toolkit = run.header, run.header.plan, run.header.toolkit
    yield Paragraph(text=f"{line(run.path.name)}, made {line(header.created)}:")
    yield Commands(lines=tuple(commands(run)))
    facts = {
        "toolkit": f"{toolkit.get('revision') or 'not known'}{', tree changed' if toolkit.get('changed') else ''}",
        "worker": f"{header.worker.get('name')}, sha256 {str(header.worker.get('sha256'))[:16]}",
        **_planned(run),
        "seed and margin": f"{plan.seed}, same within {plan.margin:.0%} (fixed before measuring)",
        **_machine(header.node),
    }
    for name in (environment.name for environment in plan.environments):
        described = header.environments[name]
        facts[f"{name}: Python"] = described.get("python")
        libraries = described.get("libraries", {})
        facts[f"{name}: libraries"] = (
            ", ".join(f"{what} {version}" for what, version in libraries.items()) or "not known"
        )
    yield Table(head=("what", "value"), rows=tuple(cells(*fact) for fact in facts.items()), words=(0, 1))
    if steering := [
        f"{line(name)}={line(value)[:_SHOWN_VALUE]}"
        for name, value in header.variables.items()
        if name.startswith(_STEERING)
    ]:
        yield Paragraph(text="Variables in force that may steer it (all of them are in the run file):")
        yield Commands(lines=tuple(steering))


def _planned(run: Run | ServingRun) -> dict[str, object]:
    """What was measured, and how often."""
    if isinstance(run, ServingRun):
        prompts, plan = run.header.plan.prompts, run.header.plan
        return {
            "plan": f"{plan.identity}, prompts {prompts.identity} ({prompts.name}), {plan.output_tokens} tokens each",
            "repetition": f"{plan.starts} starts, {plan.passes} passes of {prompts.requests} requests",
        }
    allreduce = run.header.plan
    return {
        "plan": f"{allreduce.identity}, workload {allreduce.workload.identity} ({allreduce.workload.name})",
        "repetition": f"{allreduce.launches} launches, {allreduce.rounds} rounds of {allreduce.samples} samples",
    }


def _machine(node: Mapping[str, Any]) -> dict[str, object]:
    """What a node record tells of the machine, whatever shape that has."""

    def told(part: str, name: str) -> object:
        described = node.get(part)
        return (described.get(name) if isinstance(described, dict) else None) or "not known"

    gpus = node.get("gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return {
        "CPU": f"{told('cpu', 'model_name')}, {told('cpu', 'threads')} threads",
        "GPUs": ", ".join(names) or "none",
        "driver": told("driver", "version"),
        "kernel": told("host", "kernel"),
    }


def commands(run: Run | ServingRun) -> Iterator[str]:
    """What to type: the toolkit's revision, the run's own command, with the seed that it drew."""
    revision = run.header.toolkit.get("revision")
    if isinstance(revision, str) and _REVISION.fullmatch(revision):
        yield f"git checkout {revision}"
    stated: object = run.header.command  # as read from a file, it may be any JSON value
    words = [line(word) for word in stated] if isinstance(stated, list) else []
    begin = next((number for number, word in enumerate(words) if word in _VERBS), None)
    if begin is None:
        yield "# the file does not tell the command that made it; its header holds the whole plan"
    else:
        seed = [] if any(word.startswith("--seed") for word in words) else ["--seed", str(run.header.plan.seed)]
        yield f"./inv {shlex.join([*words[begin:], *seed])}"
    path = shlex.quote(line(shown_path(run.path)))
    yield f"./inv compare --run {path}"
    yield f"./inv report {path}"
