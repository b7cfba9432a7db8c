"""The servers of a campaign: planned before anything is measured, started once the allreduces are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lanewise import talk
from lanewise.errors import InputError
from tuning import bench
from tuning.campaign import new_run_path
from tuning.plan import Environment
from tuning.serving.campaign import start_run
from tuning.serving.plan import ServingPlan
from tuning.serving.prepared import prepare
from tuning.serving.prompts import Prompt
from tuning.serving.request import ServingRequest, make_plan
from tuning.serving.runfile import ServingRun
from tuning.serving.spec import ServerSpec
from tuning.serving.verbs import reported
from tuning.workload import short

SPECULATIONS = ("2/1/3", "3/1/4")
"""Measured where a draft is named and no speculation: the two smallest trees that EAGLE-3 is used with."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """What is to be started.

    Attributes:
        plan: all starts.
        prompts: of one pass.
        output: path of the run file, or "" for a new one.
        command: the call of bench-speculative that measures the same, and goes on with it.
    """

    plan: ServingPlan
    prompts: tuple[Prompt, ...]
    output: str
    command: tuple[str, ...]


def require_model(model: str, draft: str, speculations: Sequence[str]) -> None:
    """Refuse a draft without its model, and speculations without a draft.

    Raises:
        InputError: that is so.
    """
    for option, given, lacking, there in (
        ("--draft", draft, "--model", model),
        ("--speculation", ", ".join(speculations), "--draft", draft),
    ):
        if given and not there:
            raise InputError(
                f"{option} is {short(given)}, and no {lacking} is given",
                expected=f"{lacking} PATH beside it",
                todo=f"name it, or leave {option} out",
            )


def plan_servers(
    environments: tuple[Environment, ...],
    *,
    model: str,
    draft: str,
    speculations: Sequence[str],
    tensor_parallel: int,
    starts: int,
    seed: int,
    output: str,
) -> Servers:
    """Plan the servers, and try every argument on the releases that the environments hold.

    Args:
        environments: where SGLang is.
        model, draft, speculations, tensor_parallel, starts, seed: as in bench-speculative. Without a draft there are
            the baseline and the probe, which has the row counts of verify passes.
        output: path of the campaign's other run file, or ""; the servers' lies beside it.

    Raises:
        InputError: an option is wrong, a release cannot do what is asked, the model is missing, or the file exists.
    """
    wanted = tuple(speculations) or (SPECULATIONS if draft else ())
    plan, prompts = make_plan(
        ServingRequest(
            environments=environments,
            server=ServerSpec(model=model, tensor_parallel=tensor_parallel, max_running=0),
            speculations=wanted,
            draft=draft,
            probe=not wanted,
            starts=starts,
            seed=seed,
        )
    )
    with talk.track("preparing") as progress:
        prepare(plan, progress.remark)
    beside = Path(output).with_name(f"{Path(output).stem}-{plan.benchmark}.jsonl") if output else None
    if beside and beside.exists():
        raise InputError(f"run file {beside} exists", expected="a new path", todo="name another with --output")
    options = {"--model": [model], "--draft": [draft] if draft else [], "--speculation": wanted}
    options |= {"--toolchain": [env.name for env in environments if env.image]}
    options |= {"--python": [env.python for env in environments if not env.image]}
    options |= {"--tensor-parallel": [str(tensor_parallel)], "--starts": [str(starts)], "--seed": [str(plan.seed)]}
    words = [word for option, values in options.items() for value in values for word in (option, value)]
    return Servers(
        plan=plan,
        prompts=prompts,
        output=str(beside or ""),
        command=("inv", "bench-speculative", *words, *([] if wanted else ["--probe"])),
    )


def start_servers(servers: Servers) -> ServingRun:
    """Measure them into a run file, with progress.

    Raises:
        InputError, LanewiseError: as `tuning.serving.campaign.start_run`.
    """
    path = Path(servers.output) if servers.output else new_run_path(bench.RUNS, servers.plan.benchmark)
    with reported(path) as report:
        return start_run(servers.plan, servers.prompts, path, report, command=servers.command)
