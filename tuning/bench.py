"""Between a verb and the machinery: starts or goes on with a run, tells progress, prints what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from tuning import arms, outlook_view
from tuning import campaign as campaigns
from tuning import compare as comparing
from tuning import compare_view as view
from tuning import survey as surveys
from tuning.candidates import CANDIDATES
from tuning.engines import ENGINES
from tuning.environments import asked_environments
from tuning.outlook import Outlook
from tuning.provenance import ROOT, variables_outside
from tuning.request import Request, further_nccl, make_plan
from tuning.runfile import Kind, Run, read_run
from tuning.serving import summary_view
from tuning.serving.runfile import ServingRun
from tuning.trial import Status

RUNS = ROOT / "runs"
CACHE = ROOT / ".cache"


def start(request: Request, output: str, minutes: int = 0) -> Run:
    """Measure what was asked for, into a new run file; with progress.

    Raises:
        InputError, LanewiseError: as `make_plan` and `start_run`.
    """
    plan = make_plan(request, CACHE)
    path = Path(output) if output else campaigns.new_run_path(RUNS, plan.benchmark)
    if (outside := variables_outside(os.environ)) and any(env.image for env in plan.environments):
        talk.say(f"not in force in images, unless --environment gives them: {', '.join(outside)}")
    with talk.track("preparing") as progress:
        engine = ENGINES[plan.engine]()
        return campaigns.start_run(plan, engine, path, _reporter(progress, path), command=sys.argv, minutes=minutes)


def resume(
    path: str,
    *,
    environments: Sequence[str] = (),
    images: Sequence[str] = (),
    toolchains: Sequence[str] = (),
    python: str = "",
    nccl: Sequence[str] = (),
    minutes: int = 0,
) -> Run:
    """Go on with a run file; what is named beside it, as typed, is what the user vouches for.

    Raises:
        InputError, LanewiseError: as `resume_run`.
    """
    allowed = ("--resume", "--json", "--minutes", "--environment", "--image", "--toolchain", "--python", "--nccl")
    if given := [word for word in sys.argv[2:] if word.startswith("--") and not word.startswith(allowed)]:
        raise InputError(
            f"--resume together with {', '.join(given)}",
            expected="no other option: the run file's own plan counts",
            todo=f"leave the others out, or start a new run without --resume {path}",
        )
    name = read_run(Path(path)).header.plan.engine
    where = python or surveys.default_python(name)  # of the run's engine: the same that its start took
    known = campaigns.Known(
        environments=asked_environments(
            environments, images=images, toolchains=toolchains, python=python, host_python=lambda: where
        ),
        python=where,
        candidates=(*CANDIDATES[name], *further_nccl(tuple(nccl), CACHE)),
    )
    with talk.track("preparing") as progress:
        report = _reporter(progress, Path(path))
        return campaigns.resume_run(Path(path), ENGINES[name](), report, known=known, minutes=minutes)


def finish(
    run: Run,
    *,
    json: bool,
    found: list[str] | None = None,
    skipped: list[str] | None = None,
    ahead: Outlook | None = None,
    served: ServingRun | None = None,
) -> None:
    """Print what a run says, and for a campaign what was found and skipped, and what a node with GPUs could do.

    The servers of a campaign are for JSON, which is one document; people read of them with `finish_servers`, later.
    """
    comparable = run.header.kind is Kind.MEASURED
    overview = comparing.overview(run) if comparable else None
    if json:
        shown = document(overview.all if overview else [], run, overview.warnings if overview else ())
        servers = {"speculative": None if served is None else summary_view.document(served)}
        campaign = {} if found is None else {"found": found, "skipped": skipped, **servers}
        talk.put_json(shown | campaign | ({} if ahead is None else {"outlook": outlook_view.document(ahead)}))
        return
    show(view.show_overview(run, overview) if overview else view.show_statuses(run), run)
    plan = run.header.plan
    names = ", ".join(env.name for env in plan.environments)
    talk.put(
        f"\nmeasured: allreduce, engine {plan.engine}, {plan.ranks} ranks, {plan.launches} launches each of {names}"
    )
    for label, lines in (("machine: ", found or []), ("skipped: ", skipped or [])):
        for line in lines:
            talk.put(f"{label} {line}")
    if ahead is not None:
        talk.put(outlook_view.show(ahead))
    path = shown_path(run.path)
    talk.put(f"run file: {path}")
    if len(plan.candidates) > 2:
        talk.put(f"next:     ./inv compare {plan.candidates[2].name} {plan.candidates[1].name} --run {path}")


def finish_servers(run: ServingRun) -> None:
    """Print what the servers of a campaign say."""
    plan = run.header.plan
    names = ", ".join(env.name for env in plan.environments)
    talk.put("")
    talk.put(summary_view.show(run))
    talk.put(f"\nmeasured: speculative decoding, {len(plan.arms)} servers, {plan.starts} starts each in {names}")
    path = shown_path(run.path)
    talk.put(f"run file: {path}\nnext:     ./inv compare --run {path}")


def exit_code(run: Run) -> ExitCode | None:
    """As `exit_code_of` all its trials."""
    return exit_code_of([trial.status for trial in run.trials])


def exit_code_of(statuses: Collection[Status]) -> ExitCode | None:
    """FAILED where a candidate or server broke, or nothing has numbers. One that cannot run here is no failure."""
    harmless = {Status.OK, Status.UNSUPPORTED, Status.SKIPPED}
    return ExitCode.FAILED if set(statuses) - harmless or Status.OK not in statuses else None


def _reporter(progress: talk.Track, path: Path) -> campaigns.Report:
    def report(step: campaigns.Step) -> None:
        if step.launch is None:
            talk.say(f"run file: {shown_path(path)}")
            if step.done:
                talk.say(f"already there: {step.done} of {step.total} launches")
        progress.step(step.done, step.total, step.remark, lasting=step.finished)

    return report


def show(shown: RenderableType, run: Run) -> None:
    """Print comparisons, then what has no numbers, then what the columns mean."""
    talk.put(shown)
    if failed := arms.failures(run):
        talk.put(view.show_failures(failed, run.launches))
    talk.put(view.legend())


def document(comparisons: list[comparing.Comparison], run: Run, warnings: tuple[str, ...]) -> dict[str, Any]:
    """Comparisons and failures for --json."""
    return {
        "run": str(run.path),
        "comparisons": [view.to_document(comparison) for comparison in comparisons],
        "warnings": list(warnings),
        "failures": view.failures_document(arms.failures(run), run.launches),
    }
