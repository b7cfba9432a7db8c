"""Carries out the starts of a run: servers of a group at once, each measured alone, each recorded however it ends."""

from __future__ import annotations

import os
import shlex
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lanewise.errors import LanewiseError, UnreachableError
from lanewise.files import shown_path
from lanewise.redact import Redactor
from tuning.campaign import why_barred
from tuning.scratch import sweep_stale_scratch
from tuning.serving.client import server_info
from tuning.serving.examine import Examined, RefusedError, examine, with_profile
from tuning.serving.gpus import gpu_states
from tuning.serving.measure import Measured, measure
from tuning.serving.plan import Start
from tuning.serving.ports import held_ports
from tuning.serving.prepared import Prepared
from tuning.serving.profile import parse_profile
from tuning.serving.profiled import Profiled, profile_of
from tuning.serving.prompts import Prompt
from tuning.serving.records import ServerStart, ServingTrial
from tuning.serving.runfile import ServingRun, ServingWriter
from tuning.serving.server import Server
from tuning.serving.server_ended import ServerEnded
from tuning.trial import Status

Report = Callable[["Step"], None]
_LEAST_REPETITIONS = 2
_READY_SECONDS = 3_600.0
"""Until a server answers, in all; a model of a terabyte takes half of it from a slow disk."""
_TRIES = 3
"""Of a start, where somebody took one of its ports meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Progress of a run.

    Attributes:
        done, total: starts of the schedule that are over, and all of them; 0 and 0 before it begins.
        remark: what happened or is happening, in words.
        finished: whether a start just ended.
        begun: whether this is the first step: from here on there is a run file.
        stopped: whether the run ends here for want of time, with starts left to do.
    """

    done: int
    total: int
    remark: str
    finished: bool = False
    begun: bool = False
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A start under way: its server and the identifier under which it is recorded."""

    start: Start
    server: Server
    launch: str


class Starts:
    """Goes through the schedule of a run.

    Args:
        writer: of the run file; logs of servers lie beside it, in a folder NAME.logs.
        prompts: of one pass.
        prepared: what each environment holds.
        report: told what happens.
        profile: whether each server is profiled after its passes.
    """

    def __init__(
        self,
        writer: ServingWriter,
        prompts: Sequence[Prompt],
        prepared: Mapping[str, Prepared],
        report: Report,
        *,
        profile: bool,
    ) -> None:
        self._writer, self._prompts, self._prepared, self._report = writer, prompts, prepared, report
        self._profile = profile
        self._plan = writer.run.header.plan
        self._redact = Redactor(os.environ)
        self._logs = writer.path.with_name(f"{writer.path.stem}.logs")
        self._done = self._total = 0

    def run(self, minutes: float) -> ServingRun:
        """Run what is missing, as far as the time reaches; `minutes` as in `campaign.start_run`.

        Raises:
            InputError: an interpreter or model is gone.
            LanewiseError: the disk filled up, or the run file was changed by others.
        """
        sweep_stale_scratch()
        schedule = self._plan.schedule()
        missing = [left for group in schedule if (left := tuple(filter(self._is_missing, group)))]
        self._total = sum(map(len, schedule))
        self._done = self._total - sum(map(len, missing))
        there = f"already there: {self._done} of {self._total} starts" if self._done else "begins"
        self._report(Step(done=self._done, total=self._total, remark=there, finished=self._done > 0, begun=True))
        began, turn_began, turn = time.monotonic(), time.monotonic(), -1
        for group in missing:
            if (repetition := group[0].repetition) != turn:
                # Whole repetitions only: a schedule cut in the middle of one is not interleaved any more.
                clock = time.monotonic()
                late = clock + (clock - turn_began) > began + minutes * 60
                if minutes and late and repetition >= _LEAST_REPETITIONS:
                    self._tell_stopped(minutes)
                    break
                turn, turn_began = repetition, clock
            self._group([allowed for start in group if (allowed := self._without_barred(start))])
        return self._writer.run

    def _tell_stopped(self, minutes: float) -> None:
        remark = (
            f"stopped for --minutes {minutes:g}, since another repetition would end later: {self._done} of "
            f"{self._total} starts; go on with --resume {shlex.quote(shown_path(self._writer.path))}"
        )
        self._report(Step(done=self._done, total=self._total, remark=remark, stopped=True))

    def _is_missing(self, start: Start) -> bool:
        """Whether the run file lacks any trial of this start."""
        told = {trial.concurrency for trial in self._trials_of(start) if trial.repetition == start.repetition}
        return not told.issuperset(start.arm.concurrencies)

    def _trials_of(self, start: Start) -> list[ServingTrial]:
        """All trials of its arm in its environment."""
        arm = (start.environment.name, start.arm.name)
        return [trial for trial in self._writer.run.trials if (trial.environment, trial.arm) == arm]

    def _without_barred(self, start: Start) -> Start | None:
        """The start without concurrencies that failed before and would again; None where none is left."""
        trials = self._trials_of(start)
        barred = {
            concurrency: why
            for concurrency in start.arm.concurrencies
            if (why := why_barred([trial for trial in trials if trial.concurrency == concurrency]))
        }
        for concurrency, why in barred.items():
            skipped = _trial(start, concurrency, "", Status.SKIPPED, f"not tried again after {why}")
            self._writer.append(skipped)
        left = tuple(concurrency for concurrency in start.arm.concurrencies if concurrency not in barred)
        if not left:
            self._done += 1
            self._tell(f"{start.label}: skipped", finished=True)
            return None
        return replace(start, arm=replace(start.arm, concurrencies=left))

    def _group(self, group: Sequence[Start]) -> None:
        """Start servers at once, then measure each alone, the others being frozen.

        One that fails to start beside others starts once more by itself: they held the memory, or changed how much was
        free while it looked, and neither says anything of its arm.
        """
        alone = len(group) == 1
        again = []
        with ExitStack() as stack:
            begun = [self._begin(start, stack) for start in group]
            ready = []
            for one in begun:
                answer = self._wait(one, stack)
                if isinstance(answer, _Begun):
                    ready.append(answer)
                    if not alone:
                        answer.server.freeze()
                elif answer.status is Status.LAUNCH_FAILED and not alone:
                    again.append(one.start)
                    self._tell(f"{one.start.label}: starts again, by itself, after {answer.reason}")
                else:
                    self._record(one, None, _failed(one, answer))
            for one in ready:
                if not alone:
                    one.server.thaw()
                self._measure(one)
        for start in again:
            self._group([start])

    def _begin(self, start: Start, stack: ExitStack) -> _Begun:
        launch = uuid.uuid4().hex[:12]
        # A container engine may bind the port without letting another hold it, too.
        ports = stack.enter_context(held_ports(keep=not start.environment.image))
        began = time.monotonic()

        def doing(line: str) -> None:
            what = "capturing graphs" if "captur" in line.lower() else "starting"
            self._tell(f"{start.label}: {what}, {time.monotonic() - began:.0f} s")

        server = Server.start(
            start.environment,
            self._prepared[start.environment.name].arguments(start.arm.spec, ports),
            folder=self._logs / launch,
            port=ports.http,
            timeout=self._plan.timeout,
            doing=doing,
            shares=self._profile,
        )
        return _Begun(start=start, server=stack.enter_context(server), launch=launch)

    def _wait(self, begun: _Begun, stack: ExitStack) -> _Begun | ServerEnded:
        """The start once it answers, on other ports where one was taken; or why it ended."""
        for tries in range(_TRIES):
            try:
                begun.server.wait_ready(_READY_SECONDS)
            except ServerEnded as why:
                if not why.port_taken or tries == _TRIES - 1:
                    return why
                begun = self._begin(begun.start, stack)
            else:
                return begun
        raise AssertionError("the last try returns")

    def _measure(self, begun: _Begun) -> None:
        """Measure a server that answers, stop it, and record what came of it."""
        server, start = begun.server, begun.start
        examined: Examined | None = None
        before = gpu_states()
        try:
            info = server_info(server.url)
            examined = examine(start.arm.spec, info, server.lines(), self._redact)
            measured = measure(
                server,
                start,
                self._plan,
                self._prompts,
                examined,
                launch=begun.launch,
                doing=lambda what: self._tell(f"{start.label}: {what}"),
            )
        except UnreachableError:
            measured = _failed(begun, server.failure())
        except RefusedError as why:
            measured = _failed(begun, ServerEnded(Status.UNSUPPORTED, str(why)))
        except LanewiseError as error:
            measured = _failed(begun, ServerEnded(Status.UNREADABLE, error.what))
        after = gpu_states()
        profiled = self._profiled(begun, measured)
        if examined:
            examined = with_profile(examined, start.arm.spec, parse_profile(profiled.profile))
        server.stop()
        states = [("before", before), ("after", after)]
        gpus = tuple({"when": when, **gpu} for when, row in states for gpu in row)
        self._record(begun, examined, measured, gpus, profiled)

    def _profiled(self, begun: _Begun, measured: Measured) -> Profiled:
        """A profile of a server that was measured and lives, where one is asked for."""
        if not self._profile or measured.ended:
            return Profiled()
        self._tell(f"{begun.start.label}: profiling")
        return profile_of(
            begun.server.url,
            begun.start,
            self._plan,
            self._prompts,
            measured.trials,
            folder=begun.server.shared,
        )

    def _record(
        self,
        begun: _Begun,
        examined: Examined | None,
        measured: Measured,
        gpus: tuple[Mapping[str, Any], ...] = (),
        profiled: Profiled | None = None,
    ) -> None:
        server, start, ended = begun.server, begun.start, measured.ended
        # A server that gave numbers before it ended is no failed start.
        failed = ended if ended and not any(trial.ok for trial in measured.trials) else None
        findings = [
            *(examined.findings if examined else ()),
            *measured.findings,
            *(profiled.findings if profiled else ()),
            *server.left_behind,
        ]
        if ended and not failed:
            findings.append(f"it ended while it was measured: {ended.reason}")
        record = ServerStart(
            launch=begun.launch,
            environment=start.environment.name,
            arm=start.arm.name,
            repetition=start.repetition,
            plan=self._plan.identity,
            command=server.command,
            variables=server.variables,
            started=server.started.isoformat(timespec="seconds"),
            ready_seconds=server.ready_seconds,
            seconds=round((datetime.now(UTC) - server.started).total_seconds(), 3),
            release=examined.release if examined else "",
            resolved=examined.resolved if examined else {},
            engaged=examined.engaged if examined else {},
            findings=tuple(dict.fromkeys(findings)),
            gpus=gpus,
            status=failed.status if failed else Status.OK,
            reason=failed.reason if failed else "",
            output=ended.output if ended else (),
            profile=profiled.profile if profiled else {},
        )
        self._writer.append(record, *measured.trials)
        self._done += 1
        self._tell(f"{start.label}: {_told(record, measured)}", finished=True)

    def _tell(self, remark: str, *, finished: bool = False) -> None:
        self._report(Step(done=self._done, total=self._total, remark=remark, finished=finished))


def _failed(begun: _Begun, why: ServerEnded) -> Measured:
    """A start without numbers."""
    concurrencies = begun.start.arm.concurrencies
    trials = tuple(_trial(begun.start, number, begun.launch, why.status, why.reason) for number in concurrencies)
    return Measured(trials=trials, findings=(why.advice,) if why.advice else (), ended=why)


def _trial(start: Start, concurrency: int, launch: str, status: Status, reason: str) -> ServingTrial:
    """A trial without numbers."""
    return ServingTrial(
        environment=start.environment.name,
        arm=start.arm.name,
        concurrency=concurrency,
        repetition=start.repetition,
        launch=launch,
        status=status,
        reason=reason,
    )


def _told(record: ServerStart, measured: Measured) -> str:
    """What came of a start, in a line."""
    numbers = [
        f"{trial.concurrency}: {statistics.median(done.step_ms for done in trial.passes):.4g} ms, "
        f"{statistics.fmean(done.accept_length for done in trial.passes):.2f} tokens a step"
        for trial in measured.trials
        if trial.ok
    ]
    failed = list(dict.fromkeys(f"{trial.status}: {trial.reason}" for trial in measured.trials if not trial.ok))
    return f"{'; '.join([*numbers, *failed])}, {record.seconds:.0f} s"
