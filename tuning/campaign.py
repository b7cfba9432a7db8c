"""Runs a plan: launch after launch into one run file, failures kept as results, what is missing found again."""

from __future__ import annotations

import os
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from lanewise.engine import connected
from lanewise.errors import InputError, UnreachableError
from lanewise.redact import Redactor
from tuning.candidates import Candidate
from tuning.containers import sweep_abandoned
from tuning.described import describe_environment, without_tags
from tuning.engines import Engine, worker_identity
from tuning.environments import spelled
from tuning.launch import run_launch
from tuning.plan import Arm, Case, Environment, Launch, Plan, validate
from tuning.provenance import make_header, node_record
from tuning.runfile import Header, Run
from tuning.runlines import AnyHeader
from tuning.runwriter import RunWriter
from tuning.scratch import require_scratch, sweep_stale_scratch
from tuning.trial import Status, Trial

Report = Callable[["Step"], None]
_LEAST_REPETITIONS = 2
_MAY_PASS = (Status.CRASHED, Status.LAUNCH_FAILED)
"""Failures that may have come from outside, such as a rank that ran out of memory."""
_GIVE_UP_AFTER = 2
"""Launches in which an arm may fail so before it is skipped."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Progress of a run: what just happened.

    Attributes:
        done: launches of the schedule that are over.
        total: launches in the schedule.
        launch: the launch, or None before the first.
        finished: whether the launch is over.
        remark: what happened or is happening, in words.
        trials: what the launch added to the run file.
    """

    done: int
    total: int
    launch: Launch | None = None
    finished: bool = False
    remark: str = "launching"
    trials: tuple[Trial, ...] = ()


def new_run_path(folder: Path, label: str) -> Path:
    """A path for a new run file that sorts by time and does not collide."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return folder / f"{stamp}-{label}-{uuid.uuid4().hex[:4]}.jsonl"


def start_run(plan: Plan, engine: Engine, path: Path, report: Report, *, command: list[str], minutes: float = 0) -> Run:
    """Run a plan into a new run file.

    Args:
        plan: what to measure.
        engine: what runs the ranks.
        path: the run file.
        report: told of every launch.
        command: what was called, for the header.
        minutes: start no repetition that would be expected to end later than so many minutes from now; 0: no limit.
            At least two repetitions run; --resume does the others.

    Raises:
        InputError: a value of the plan, an environment or the path is wrong.
        LanewiseError: the disk filled up; what was measured before is in the file.
    """
    validate(plan)
    require_scratch()
    for environment in plan.environments:
        engine.require(environment)
    header = make_header(plan, engine, command)
    _require_libraries(header, engine)
    with RunWriter.create(path, header) as writer:
        return _run(writer, engine, report, minutes)


def _require_libraries(header: Header, engine: Engine) -> None:
    for environment in header.plan.environments:
        held = header.environments[environment.name]["libraries"]
        if lacking := [name for name in engine.needs if name not in held]:
            raise InputError(
                f"environment {environment.name}: {environment.python} lacks {', '.join(lacking)}",
                expected=f"an interpreter with {', '.join(engine.needs)}",
                todo=f"{environment.python} -m pip install {' '.join(lacking)}, or name another with --python",
            )


def resume_run(path: Path, engine: Engine, report: Report, *, known: Known, minutes: float = 0) -> Run:
    """Go on with a run file: only what is missing runs, as the file's own plan says.

    Args:
        path: the run file.
        engine: what runs the ranks.
        report: told of every launch.
        known: what of the plan the user vouches for; nothing that a file alone names is run.
        minutes: as in `start_run`.

    Raises:
        InputError: the file is damaged, held by another writer or another user's, its plan was changed or names
            something that is not `known`, or machine, worker or environments are not those that the run began with.
    """
    with RunWriter.resume(path) as writer:
        run = writer.run
        require_scratch()
        _require_known(run, known)
        require_unchanged(
            run.path,
            [
                (
                    "plan",
                    {launch.plan for launch in run.launches.values()} or {run.header.plan.identity},
                    {run.header.plan.identity},
                ),
                ("engine", run.header.plan.engine, engine.name),
                ("worker", run.header.worker, worker_identity(engine)),
                *host_pairs(run.header),
            ],
        )
        for environment in run.header.plan.environments:
            engine.require(environment)
        redact = Redactor(os.environ)
        envs = run.header.plan.environments
        require_unchanged(
            run.path,
            [
                (
                    f"environment {env.name}",
                    without_tags(run.header.environments[env.name]),
                    without_tags(describe_environment(env, redact)),
                )
                for env in envs
            ],
        )
        return _run(writer, engine, report, minutes)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a user vouches for when going on with a run file.

    Attributes:
        environments: environments named on the command line.
        python: the interpreter that an environment without variables may have under any name.
        candidates: the engine's candidates, and those of libraries named on the command line.
    """

    environments: tuple[Environment, ...]
    python: str
    candidates: tuple[Candidate, ...]


def _require_known(run: Run, known: Known) -> None:
    for env in run.header.plan.environments:
        if env not in known.environments and (env.python != known.python or env.variables or env.image):
            raise InputError(
                f"{run.path} would run environment {spelled(env)}",
                expected="what a run file alone names is never run: say it, too",
                todo=f"with bench-allreduce --resume, add --environment {shlex.quote(spelled(env))} if that is meant",
            )
    for candidate in run.header.plan.candidates:
        if candidate not in known.candidates:
            raise InputError(
                f"{run.path} would run candidate {candidate.name}, which is not one that this toolkit knows",
                expected="the engine's own candidates, or --nccl with the same library",
                todo="repeat the --nccl that the run was started with, or start a new run",
            )


def host_pairs(header: AnyHeader) -> list[tuple[str, object, object]]:
    """What the machine was when a run began, and is now, for `require_unchanged`."""
    host, here = header.node.get("host", {}), node_record().get("host", {})
    return [(f"host {key}", host.get(key), here.get(key)) for key in ("hostname", "kernel", "architecture")]


def require_unchanged(path: Path, pairs: list[tuple[str, object, object]]) -> None:
    """Refuse to go on with a run where anything of (what, then, now) differs; InputError says what."""
    changed = [f"{what}: {before} then, {now} now" for what, before, now in pairs if before != now]
    if changed:
        raise InputError(
            f"{path} was begun with something else: {'; '.join(changed)[:600]}",
            expected="the plan, machine, worker and environments that the run began with",
            todo="start a new run; two runs are described side by side, not judged",
        )


def _run(writer: RunWriter, engine: Engine, report: Report, minutes: float) -> Run:
    with _swept(writer.run.header.plan):
        return _run_missing(writer, engine, report, minutes)


@contextmanager
def _swept(plan: Plan) -> Iterator[None]:
    """Removes what launches of earlier runs left behind, and in the end containers that this one's did."""
    sweep_stale_scratch()
    if not any(env.image for env in plan.environments):
        yield
        return
    with connected("run launches in images") as client:
        sweep_abandoned(client)
    try:
        yield
    finally:
        with suppress(UnreachableError), connected("look for containers") as client:
            sweep_abandoned(client)


def _run_missing(writer: RunWriter, engine: Engine, report: Report, minutes: float) -> Run:
    plan = writer.run.header.plan
    redact = Redactor(os.environ)
    schedule = plan.schedule()
    missing = [launch for launch in schedule if _missing(plan, launch, writer.run.trials)]
    done, total = len(schedule) - len(missing), len(schedule)
    report(Step(done=done, total=total))
    began, turn_began, turn = time.monotonic(), time.monotonic(), -1
    for launch in missing:
        clock, added = time.monotonic(), len(writer.run.trials)
        if launch.repetition != turn:
            # Whole repetitions only: a schedule cut in the middle of one is not interleaved any more.
            late = clock + (clock - turn_began) > began + minutes * 60
            if minutes and late and launch.repetition >= _LEAST_REPETITIONS:
                break
            turn, turn_began = launch.repetition, clock
        name = plan.launch_label(launch)

        def doing(what: str, launch: Launch = launch, done: int = done, name: str = name) -> None:
            report(Step(done=done, total=total, launch=launch, remark=f"{name}: {what}"))

        _complete(writer, engine, plan, launch, redact, doing)
        trials = writer.run.trials[added:]
        failed = sum(not trial.ok for trial in trials)
        told = f"{len(trials)} trials" + (f", {failed} without numbers" if failed else "")
        done += 1
        remark = f"{name}: {told}, {time.monotonic() - clock:.1f} s"
        report(Step(done=done, total=total, launch=launch, finished=True, remark=remark, trials=trials))
    return writer.run


def _complete(
    writer: RunWriter, engine: Engine, plan: Plan, launch: Launch, redact: Redactor, doing: Callable[[str], None]
) -> None:
    """Run a launch; where one arm breaks it, record that and run it again without that arm, until it holds."""
    arms = launch.arms
    while arms:
        barred = {arm.key: why for arm in arms if (why := _barred(launch, arm, writer.run.trials))}
        skipped = [arm for arm in arms if arm.key in barred]
        writer.append(*(_skipped(launch, arm, case, barred[arm.key]) for arm in skipped for case in plan.cases))
        arms = tuple(arm for arm in arms if arm.key not in barred)
        if not arms:
            return
        outcome = run_launch(engine, plan, replace(launch, arms=arms), redact, doing)
        writer.append(outcome.record, *outcome.trials)
        told = {(trial.candidate, trial.copy) for trial in outcome.trials}
        arms = tuple(arm for arm in arms if (arm.candidate.name, arm.copy) not in told)


def _barred(launch: Launch, arm: Arm, trials: tuple[Trial, ...]) -> str:
    """Why an arm is not tried again in this run, or ""."""
    return why_barred(
        [
            trial
            for trial in trials
            if (trial.environment, trial.candidate) == (launch.environment.name, arm.candidate.name)
        ]
    )


class Tried(Protocol):
    """A trial, of whatever benchmark."""

    @property
    def status(self) -> Status:
        """How it ended."""
        ...

    @property
    def launch(self) -> str:
        """The launch that it is from."""
        ...

    @property
    def repetition(self) -> int:
        """Which repetition of the schedule."""
        ...

    @property
    def reason(self) -> str:
        """Why, where it is not ok."""
        ...


def why_barred(trials: Sequence[Tried]) -> str:
    """Why what these tried is not tried again, or "": it failed in a way that would come again, or repeatedly."""
    failed = [trial for trial in trials if trial.status not in (Status.OK, Status.SKIPPED)]
    lasting = any(trial.status not in _MAY_PASS for trial in failed)
    if lasting or len({trial.launch for trial in failed}) >= _GIVE_UP_AFTER:
        return f"{failed[0].status} in repetition {failed[0].repetition + 1}: {failed[0].reason}"
    return ""


def _skipped(launch: Launch, arm: Arm, case: Case, why: str) -> Trial:
    message, mode, working_set = case.key
    return Trial(
        environment=launch.environment.name,
        candidate=arm.candidate.name,
        copy=arm.copy,
        message=message,
        mode=mode,
        working_set=working_set,
        repetition=launch.repetition,
        launch="",
        status=Status.SKIPPED,
        reason=f"not tried again after {why}",
    )


def _missing(plan: Plan, launch: Launch, trials: tuple[Trial, ...]) -> bool:
    """Whether the run file lacks any trial of this launch."""
    told = {
        (trial.candidate, trial.copy, trial.case)
        for trial in trials
        if trial.environment == launch.environment.name and trial.repetition == launch.repetition
    }
    return any((arm.candidate.name, arm.copy, case.key) not in told for arm in launch.arms for case in plan.cases)
