"""What a prediction takes from files beside the topology: preflight's verdicts on a toolchain, a host's own runs."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.errors import InputError
from lanewise.files import read_text
from lanewise.talk import printable
from tuning.predict_schedules import Family
from tuning.preflight_results import result_paths
from tuning.published import Row
from tuning.runfile import Kind, Run
from tuning.trial import Trial, is_integer
from tuning.workload import short

MEASURED_AS: Mapping[str, str] = {
    "ring_ll": "nccl-ring-ll",
    "ring_ll128": "nccl-ring-ll128",
    "ring_simple": "nccl-ring-simple",
    "tree_ll": "nccl-tree-ll",
    "tree_ll128": "nccl-tree-ll128",
    "tree_simple": "nccl-tree-simple",
    "symm_mem_one_shot": "one-shot-pull",
    "symm_mem_two_shot": "two-shot",
    "p2p_off": "host-staged",
}
"""Which candidate of the cuda engine is which family."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_MOST_BYTES = 8 << 20
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Approach:
    """What preflight says of one approach.

    Attributes:
        name: for people.
        verdict: "starts", "falls back", "fails", "absent" or "unknown".
        why: what decides it, with the error where there is one.
    """

    name: str
    verdict: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What preflight found of a toolchain.

    Attributes:
        toolchain: its name.
        gpus: for how many GPUs that work together; some approaches serve certain numbers only.
        approaches: by identifier.
    """

    toolchain: str
    gpus: int
    approaches: Mapping[str, Approach]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Whether a family can start: True, False, or None where it is not known; and by what, or why not."""

    able: bool | None
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """Measurements of this host: how many GPUs, the rows, and where they are from."""

    ranks: int
    rows: tuple[Row, ...]
    source: str


def read_preflight(runs: Path, toolchain: str) -> Preflight | None:
    """What preflight found of a toolchain; None where it was not run (docs/preflight.md has the format).

    Args:
        runs: the folder that holds the toolchains' results.
        toolchain: its name.

    Raises:
        InputError: the name is none, or the file is not a result of preflight.
    """
    if not _NAME.fullmatch(toolchain):
        raise InputError(
            f"--toolchain is {short(toolchain)}", expected="a toolchain's name, e.g. cu130", todo="correct it"
        )
    path = result_paths(runs).get(toolchain)
    if path is None:
        return None
    text = read_text(path, what="preflight's result", limit=_MOST_BYTES)
    try:
        document = json.loads(text)
        if document["preflight"] != _FORMAT:
            raise ValueError("its format is another")
        if not is_integer(gpus := document["box"]["gpus"]):
            raise TypeError(f"gpus is {short(gpus)}")
        approaches = {_text(found, "approach"): _approach(found) for found in document["findings"]}
        return Preflight(toolchain=toolchain, gpus=gpus, approaches=approaches)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is not a result of preflight ({type(error).__name__}: {printable(str(error))[:100]})",
            expected=f'JSON with "preflight": {_FORMAT} and findings',
            todo=f"make it anew: ./inv preflight --toolchain {toolchain}",
        ) from error


def _approach(found: Mapping[str, Any]) -> Approach:
    why = ": ".join(text for text in (_text(found, "why"), _text(found, "error")) if text)
    return Approach(name=_text(found, "name"), verdict=_text(found, "verdict"), why=why)


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {short(value)}")
    return printable(value)[:400]


def start_of(family: Family, preflight: Preflight | None) -> Start:
    """Whether a family can start, by preflight's word.

    Args:
        family: which.
        preflight: what it says; None where nobody asked, and then nothing is known.
    """
    if preflight is None:
        return Start(able=None)
    found = [preflight.approaches[name] for name in family.approaches if name in preflight.approaches]
    starting = [approach for approach in found if approach.verdict == "starts"]
    enough = len(starting) == len(family.approaches) if family.all_of else bool(starting)
    if enough:
        return Start(able=True, says=", ".join(approach.name for approach in starting))
    barred = [approach for approach in found if approach.verdict not in ("starts", "unknown")]
    if (family.all_of and barred) or (barred and len(barred) == len(found)):
        return Start(able=False, says="; ".join(f"{a.name} {a.verdict}: {a.why}" for a in barred))
    return Start(able=None, says="preflight does not decide it")


def own_rows(run: Run, *, environment: str = "") -> OwnRows:
    """The rows of a run file: what each family took inside a CUDA graph on warm buffers, the median over launches.

    Args:
        run: a run of this host.
        environment: the environment (toolchain) whose trials count; "" or one that the run lacks: its first.

    Raises:
        InputError: it is not of GPUs, not measured, or holds no family in a graph.
    """
    plan = run.header.plan
    if run.header.kind is not Kind.MEASURED or plan.engine != "cuda":
        raise InputError(
            f"run file {run.path} is {run.header.kind}, of engine {plan.engine}",
            expected="measurements of GPUs: engine cuda, a GPU a rank",
            todo="measure on the node: ./inv bench-allreduce --engine cuda",
        )
    names = [entry.name for entry in plan.environments]
    chosen = environment if environment in names else names[0]
    sizes = {message.name: message.bytes for message in plan.workload.messages}
    found: dict[tuple[str, int], list[float]] = {}
    for trial in run.trials:
        if _counts(trial, chosen) and trial.message in sizes:
            found.setdefault((MEASURED_AS[trial.candidate], sizes[trial.message]), []).append(trial.median)
    if not found:
        raise InputError(
            f"run file {run.path} holds no family that is predicted, of {chosen}, in a graph on warm buffers",
            expected=f"one of {', '.join(MEASURED_AS)}",
            todo="measure some: ./inv bench-allreduce --engine cuda --modes graph",
        )
    rows = tuple(
        Row(host="this host", machine="this host", family=family, size=size, us=statistics.median(values))
        for (family, size), values in found.items()
    )
    return OwnRows(ranks=plan.ranks, rows=rows, source=f"{run.path.name}, {chosen}")


def _counts(trial: Trial, environment: str) -> bool:
    return (
        trial.ok
        and trial.environment == environment
        and trial.candidate in MEASURED_AS
        and (trial.mode, trial.working_set) == ("graph", "warm")
    )
