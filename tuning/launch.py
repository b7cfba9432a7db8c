"""Runs one launch under a watchdog: reads what the worker says, ends what hangs, leaves nothing behind."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from lanewise.redact import Redactor
from tuning.engines import Engine
from tuning.plan import Launch, Plan
from tuning.protocol import MARK, Ending, LaunchLog
from tuning.trial import LaunchRecord, Trial

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where shared memory lives on Linux; the folder made there is private
_MAX_LINE_BYTES = 1 << 20
_SCRATCH_PREFIX = "lanewise-"
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
        redact: applied to everything stored.
        doing: told, a few times a second, what the ranks are busy with.
    """
    command = engine.command(plan, launch)
    started, clock = datetime.now(UTC), time.monotonic()
    busy = _other_tasks()
    log = LaunchLog(arms=launch.arms, cases=tuple(case.key for case in plan.cases))
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
            reason=redact(result.reason),
            samples=result.samples,
            choice=result.choice,
        )
        for (key, (message, mode, working_set)), result in log.results(breakage).items()
    )
    record = LaunchRecord(
        launch=identifier,
        environment=launch.environment.name,
        repetition=launch.repetition,
        command=tuple(redact.all(command)),
        started=started.isoformat(timespec="milliseconds"),
        seconds=round(time.monotonic() - clock, 3),
        busy=busy,
        libraries=log.libraries,
        output=() if all(trial.ok for trial in trials) else tuple(redact.all(log.tail)),
    )
    return LaunchOutcome(record=record, trials=trials)


def _supervise(
    command: list[str], engine: Engine, launch: Launch, timeout: float, feed: Callable[[str], None]
) -> tuple[Ending, int]:
    name = f"{_SCRATCH_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}-{uuid.uuid4().hex[:8]}"
    scratch = [Path(os.environ.get("TMPDIR") or "/tmp") / name, _SHARED_MEMORY / name]  # noqa: S108 - private, see above
    environment = {
        **os.environ,
        **engine.variables(scratch[1]),
        **launch.environment.variables,
        **launch.process_environment,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = [part for folder in scratch for part in ("--scratch", str(folder))]
    supervisor = subprocess.Popen(
        # -I -S: nothing of the user's Python environment decides whether ranks are cleaned up.
        [sys.executable, "-I", "-S", str(_SUPERVISOR), *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C comes to this process, which then closes the lifeline
    )
    assert supervisor.stdin
    assert supervisor.stdout
    assert supervisor.stderr
    ending = Ending.EXITED
    try:
        if not _follow([supervisor.stdout, supervisor.stderr], timeout, feed):
            ending = Ending.SILENT
    finally:
        supervisor.stdin.close()
        code = supervisor.wait()
        supervisor.stdout.close()
        supervisor.stderr.close()
        for folder in scratch:  # gone already, unless the supervisor itself was killed
            shutil.rmtree(folder, ignore_errors=True)
    return ending, code


def _follow(streams: list[IO[bytes]], timeout: float, feed: Callable[[str], None]) -> bool:
    """Feed lines until all streams end; False where no event came for `timeout` seconds (other talk does not count)."""
    pending: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                return False
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                *lines, rest = (pending.get(key.fd, b"") + chunk).split(b"\n")
                if not chunk:
                    selector.unregister(key.fileobj)
                    lines, rest = [*lines, rest], b""
                pending[key.fd] = rest[:_MAX_LINE_BYTES]
                for line in lines:
                    text = line.decode("utf-8", errors="replace")
                    if text.startswith(MARK):
                        deadline = time.monotonic() + timeout
                    feed(text)
    return True


def sweep_stale_scratch() -> list[Path]:
    """Remove scratch folders whose harness is gone (the machine, or the supervisor too, was killed); those removed."""
    removed = []
    for parent in {Path(os.environ.get("TMPDIR") or "/tmp"), _SHARED_MEMORY}:  # noqa: S108 - only folders of this name
        for folder in parent.glob(f"{_SCRATCH_PREFIX}*-*-*"):
            with suppress(OSError, ValueError):
                pid, ticks = folder.name.removeprefix(_SCRATCH_PREFIX).split("-")[:2]
                if folder.stat().st_uid == os.geteuid() and _start_ticks(int(pid)) != int(ticks):
                    shutil.rmtree(folder)
                    removed.append(folder)
    return removed


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: with its pid, an identity. 0: there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


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


def _narrated(log: LaunchLog, doing: Callable[[str], None]) -> Callable[[str], None]:
    told = 0.0

    def feed(line: str) -> None:
        nonlocal told
        log.feed(line)
        if time.monotonic() - told > _NARRATION_SECONDS and log.doing:
            told = time.monotonic()
            doing(log.doing)

    return feed
