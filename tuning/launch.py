"""Runs one launch under a watchdog: reads what the worker says, ends what hangs, leaves nothing behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lanewise.redact import Redactor
from tuning.containers import GRACE_SECONDS, SHARED_MEMORY, in_container
from tuning.engines import Engine, worker_files
from tuning.plan import Launch, Plan
from tuning.protocol import MARK, LaunchLog
from tuning.scratch import new_scratch
from tuning.supervised import Ending, run_supervised
from tuning.trial import LaunchRecord, Trial

_NARRATION_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class LaunchOutcome:
    """What came of a launch: its record and its trials."""

    record: LaunchRecord
    trials: tuple[Trial, ...]


def run_launch(
    engine: Engine, plan: Plan, launch: Launch, redact: Redactor, doing: Callable[[str], None]
) -> LaunchOutcome:
    """Run one launch to its end, whatever that is.

    Args:
        engine: how ranks start.
        plan: the run it belongs to.
        launch: what to run.
        redact: applied to everything stored; the log applies it to what the worker says.
        doing: told, a few times a second, what the ranks are busy with.
    """
    command = _command(engine, plan, launch)
    started, clock = datetime.now(UTC), time.monotonic()
    busy = _other_tasks()
    log = LaunchLog(
        arms=launch.arms,
        cases=tuple(case.key for case in plan.cases),
        redact=redact,
        rounds=plan.rounds,
        samples=plan.samples,
    )
    ending, code = _supervise(command, engine, launch, plan.timeout, _narrated(log, doing))
    breakage = log.breakage(ending, code, plan.timeout)
    arms = {arm.key: arm for arm in launch.arms}
    identifier = uuid.uuid4().hex[:12]
    trials = tuple(
        Trial(
            environment=launch.environment.name,
            candidate=arms[key].candidate.name,
            copy=arms[key].copy,
            message=message,
            mode=mode,
            working_set=working_set,
            repetition=launch.repetition,
            launch=identifier,
            status=result.status,
            reason=result.reason,
            samples=result.samples,
            choice=result.choice,
        )
        for (key, (message, mode, working_set)), result in log.results(breakage).items()
    )
    record = LaunchRecord(
        launch=identifier,
        environment=launch.environment.name,
        repetition=launch.repetition,
        plan=plan.identity,
        command=tuple(redact.all(command)),
        started=started.isoformat(timespec="milliseconds"),
        seconds=round(time.monotonic() - clock, 3),
        busy=busy,
        libraries=log.libraries,
        output=() if all(trial.ok for trial in trials) else tuple(log.tail),
    )
    return LaunchOutcome(record=record, trials=trials)


def _command(engine: Engine, plan: Plan, launch: Launch) -> list[str]:
    inside = engine.command(plan, launch)
    if not launch.environment.image:
        return inside
    variables = {**engine.variables(SHARED_MEMORY), **launch.environment.variables, **launch.process_environment}
    return in_container(inside, launch.environment, variables=variables, files=worker_files(engine), gpus=engine.gpus)


def _supervise(
    command: list[str], engine: Engine, launch: Launch, timeout: float, feed: Callable[[str], bool]
) -> tuple[Ending, int]:
    scratch = new_scratch()
    if launch.environment.image:  # whose variables stand in the command
        return run_supervised(
            command, environment=os.environ, scratch=scratch, timeout=timeout, feed=feed, grace=GRACE_SECONDS
        )
    environment = {
        **os.environ,
        **engine.variables(scratch[1]),
        **launch.environment.variables,
        **launch.process_environment,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return run_supervised(command, environment=environment, scratch=scratch, timeout=timeout, feed=feed)


def _other_tasks() -> float | None:
    """How many tasks other than this one were running or waiting for a core, on average over a fifth of a second.

    Not the load average: that one remembers this toolkit's own ranks for a minute.
    """
    seen = []
    for _ in range(10):
        try:
            running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].split("/")[0]
        except (OSError, IndexError):
            return None
        seen.append(int(running) - 1)
        time.sleep(0.02)
    return round(sum(seen) / len(seen), 1)


def _narrated(log: LaunchLog, doing: Callable[[str], None]) -> Callable[[str], bool]:
    told = 0.0

    def feed(line: str) -> bool:
        nonlocal told
        log.feed(line)
        if time.monotonic() - told > _NARRATION_SECONDS and log.doing:
            told = time.monotonic()
            doing(log.doing)
        return line.startswith(MARK)  # events only: a rank that talks for ever is not alive

    return feed
