"""What a worker says, line by line, turned into results; pure, so that every ending is tested without a process.

docs/worker-protocol.md describes the events.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tuning.plan import Arm
from tuning.trial import Status

CaseKey = tuple[str, str, str]
MARK = "@lanewise "
TAIL_LINES = 20
_TAIL_CHARACTERS = 300


class Ending(Enum):
    """How a launch's processes ended."""

    EXITED = "exited"
    SILENT = "silent"  # no sign of life: ended by the watchdog


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one arm on one case."""

    status: Status
    reason: str = ""
    samples: tuple[tuple[float, ...], ...] = ()
    choice: dict[str, Any] = field(default_factory=dict)


@dataclass
class LaunchLog:
    """Reads a launch's output as it comes; `results` tells, once it ended, what came of each arm.

    Attributes:
        arms: what the launch holds.
        cases: keys of the plan's cases: message, mode, working set.
        tail: last lines that were not events.
        libraries: what the worker reported about itself.
    """

    arms: tuple[Arm, ...]
    cases: tuple[CaseKey, ...]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    libraries: dict[str, Any] = field(default_factory=dict)
    _samples: dict[tuple[str, CaseKey], list[tuple[float, ...]]] = field(default_factory=dict)
    _choices: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _faults: dict[str, Result] = field(default_factory=dict)
    _at: str = ""  # key of the arm that the worker is busy with
    _doing: str = ""
    _done: bool = False
    _garbled: str = ""
    _garbled_at: str = ""
    _failed: str = ""

    def feed(self, line: str) -> None:
        """Take one line of the launch's output."""
        if not line.startswith(MARK):
            if line.strip():
                self.tail.append(line.rstrip()[:_TAIL_CHARACTERS])
            return
        try:
            self._event(json.loads(line[len(MARK) :]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not self._garbled:
                self._garbled = f"{type(error).__name__} in {line[: len(MARK) + 80].rstrip()!r}"
                self._garbled_at = self._at

    def _event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "ready":
            self.libraries = dict(event["libraries"])
        elif kind == "begin":
            self._at, self._doing = self._known(event), f"{event['phase']}, message {event['message']}"
        elif kind == "samples":
            self._add_samples(event)
        elif kind == "choice":
            chosen = {name: event[name] for name in ("algorithm", "protocol", "channels")}
            self._choices[self._known(event), str(event["message"])] = chosen
        elif kind in ("wrong", "unsupported"):
            status = Status.WRONG_RESULT if kind == "wrong" else Status.UNSUPPORTED
            self._faults[self._known(event)] = Result(status=status, reason=str(event["reason"]))
        elif kind == "failed":
            self._failed = str(event["reason"])
        elif kind == "done":
            self._done = True
        else:
            raise ValueError(f"unknown event {kind!r}")

    def _known(self, event: dict[str, Any]) -> str:
        key = str(event["candidate"])
        if key not in {arm.key for arm in self.arms}:
            raise ValueError(f"unknown candidate {key!r}")
        return key

    def _add_samples(self, event: dict[str, Any]) -> None:
        key, case = self._known(event), (event["message"], event["mode"], event["working_set"])
        if case not in self.cases:
            raise ValueError(f"unknown case {case!r}")
        values = tuple(float(value) for value in event["us"])
        if not values or not all(0 < value < float("inf") for value in values):
            raise ValueError(f"samples are {values}")
        self._samples.setdefault((key, case), []).append(values)

    @property
    def doing(self) -> str:
        """What the worker is busy with, in words; "" before it began."""
        return f"{self._at.partition('#')[0]}, {self._doing}" if self._at else ""

    def breakage(self, ending: Ending, code: int, silent_seconds: float) -> Result | None:
        """What ended the launch before its work was done, or None where it was done.

        Args:
            ending: how the processes ended.
            code: exit code of the command.
            silent_seconds: the watchdog's limit, for the reason.
        """
        where = f" during {self._doing}" if self._doing else " before the worker was ready"
        if ending is Ending.SILENT:
            reason = f"no sign of life for {silent_seconds:g} s{where}"
            return Result(status=Status.TIMED_OUT, reason=reason)
        if self._garbled:
            return Result(status=Status.UNREADABLE, reason=f"cannot understand the worker: {self._garbled}")
        if self._failed:
            return Result(status=Status.LAUNCH_FAILED, reason=self._failed)
        if code:
            status = Status.CRASHED if self._samples else Status.LAUNCH_FAILED
            return Result(status=status, reason=f"exit code {code}{_signal(code)}{where}")
        if not self._done:
            return Result(status=Status.UNREADABLE, reason=f"the worker ended{where} without saying that it was done")
        if lacking := self._lacking():
            return Result(status=Status.UNREADABLE, reason=f"the worker was done without samples of {lacking[0]}")
        return None

    def _lacking(self) -> list[str]:
        return [
            f"{arm.key}, {' '.join(case)}"
            for arm in self.arms
            for case in self.cases
            if arm.key not in self._faults and (arm.key, case) not in self._samples
        ]

    def results(self, breakage: Result | None) -> dict[tuple[str, CaseKey], Result]:
        """What came of each arm (by key) on each case; arms that another's breakage cut short are left out.

        A breakage belongs to the arm that the worker was busy with, or to all of them where it had not begun with any.
        """
        results: dict[tuple[str, CaseKey], Result] = {}
        culprit = self._garbled_at if self._garbled else self._at
        blamed = {culprit} if culprit else {arm.key for arm in self.arms}
        for arm in self.arms:
            for case in self.cases:
                at = (arm.key, case)
                if arm.key in self._faults:
                    results[at] = self._faults[arm.key]
                elif breakage is None:
                    results[at] = Result(
                        status=Status.OK,
                        samples=tuple(self._samples[at]),
                        choice=self._choices.get((arm.key, case[0]), {}),
                    )
                elif arm.key in blamed:
                    results[at] = breakage
        return results


def _signal(code: int) -> str:
    known = {134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
    return f" ({known[code]})" if code in known else ""
