"""What a worker says, line by line, turned into results; pure, so that every ending is tested without a process.

docs/worker-protocol.md describes the events.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lanewise.redact import KeyHider
from tuning.plan import Arm
from tuning.supervised import Ending
from tuning.trial import Status, is_integer, is_plain, is_sample, items, mapping

CaseKey = tuple[str, str, str]
MARK = "@lanewise "
TAIL_LINES = 20
_TAIL_CHARACTERS = 300
_GARBLED_CHARACTERS = 80
_MOST_CHARACTERS = 2000
"""How much is kept of a text in an event."""


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
        redact: takes secrets out of whatever is kept, before any of it is cut.
        rounds: how many rounds of each arm on each case were asked for; 0: that is not checked.
        samples: how many samples a round were asked for; 0: that is not checked.
        tail: last lines that were not events.
        libraries: what the worker reported about itself.
    """

    arms: tuple[Arm, ...]
    cases: tuple[CaseKey, ...]
    redact: Callable[[str], str] = str
    rounds: int = 0
    samples: int = 0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    libraries: dict[str, Any] = field(default_factory=dict)
    _samples: dict[tuple[str, CaseKey], list[tuple[float, ...]]] = field(default_factory=dict)
    _rounds: set[tuple[str, CaseKey, int]] = field(default_factory=set)
    _hide_key: KeyHider = field(default_factory=KeyHider)
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
                self.tail.append(self.redact(self._hide_key(line)).rstrip()[:_TAIL_CHARACTERS])
            return
        try:
            event = json.loads(line[len(MARK) :], parse_constant=_refuse, parse_float=_finite)
            self._event(mapping(event))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if not self._garbled:
                excerpt = self.redact(line)[: len(MARK) + _GARBLED_CHARACTERS].rstrip()
                self._garbled = f"{type(error).__name__} in {excerpt!r}"
                self._garbled_at = "" if self._done else self._at

    def _kept(self, value: object) -> Any:  # noqa: ANN401 - any JSON value
        """A value of an event as it may be stored, with its texts redacted and bounded; ValueError where it may not."""

        def clean(value: object) -> object:
            if isinstance(value, str):
                return self.redact(value.encode(errors="replace").decode())[:_MOST_CHARACTERS]
            if isinstance(value, dict):
                return {clean(key): clean(inner) for key, inner in value.items()}
            return list(map(clean, value)) if isinstance(value, list) else value

        if not is_plain(cleaned := clean(value)):
            raise ValueError("a value that cannot be stored")
        return cleaned

    def _event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if self._done:
            raise ValueError("an event after the last")
        if kind == "ready":
            self.libraries = self._kept(mapping(event["libraries"]))
        elif kind == "begin":
            doing = f"{self._kept(event['phase'])}, message {self._kept(event['message'])}"
            self._at, self._doing = self._known(event), doing[:_TAIL_CHARACTERS]
        elif kind == "samples":
            self._add_samples(event)
        elif kind == "choice":
            if (message := event["message"]) not in [case[0] for case in self.cases]:
                raise ValueError("unknown message")
            chosen = {name: self._kept(event[name]) for name in ("algorithm", "protocol", "channels")}
            self._choices[self._known(event), message] = chosen
        elif kind in ("wrong", "unsupported"):
            status = Status.WRONG_RESULT if kind == "wrong" else Status.UNSUPPORTED
            self._faults[self._known(event)] = Result(status=status, reason=str(self._kept(event["reason"])))
        elif kind == "failed":
            self._failed = str(self._kept(event["reason"]))
        elif kind == "done":
            self._done = True
        else:
            raise ValueError("unknown event")

    def _known(self, event: dict[str, Any]) -> str:
        key = event["candidate"]
        if not isinstance(key, str) or key not in {arm.key for arm in self.arms}:
            raise ValueError("unknown candidate")
        return key

    def _add_samples(self, event: dict[str, Any]) -> None:
        key, case = self._known(event), (event["message"], event["mode"], event["working_set"])
        if case not in self.cases:
            raise ValueError("unknown case")
        values = items(event["us"])
        if not values or not all(map(is_sample, values)) or len(values) != (self.samples or len(values)):
            raise ValueError("samples that were not asked for, or that are no times")
        if self.rounds:
            number = event["round"]
            if not is_integer(number) or not 0 <= number < self.rounds or (key, case, number) in self._rounds:
                raise ValueError("a round that was not asked for, or that came before")
            self._rounds.add((key, case, number))
        self._samples.setdefault((key, case), []).append(tuple(map(float, values)))

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
        if self._done and not self._garbled and not self._lacking():
            return None  # how the processes went away afterwards changes no result
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
        (key, case), *_ = self._lacking()
        rounds = f"{len(self._samples.get((key, case), ()))} of {max(self.rounds, 1)} rounds"
        reason = f"the worker was done but lacks samples of {key}, {' '.join(case)} ({rounds})"
        return Result(status=Status.UNREADABLE, reason=reason)

    def _lacking(self) -> list[tuple[str, CaseKey]]:
        """Arms without a fault, and the cases on which they were not measured as often as was asked."""
        return [
            (arm.key, case)
            for arm in self.arms
            for case in self.cases
            if arm.key not in self._faults and len(self._samples.get((arm.key, case), ())) < max(self.rounds, 1)
        ]

    def results(self, breakage: Result | None) -> dict[tuple[str, CaseKey], Result]:
        """What came of each arm (by key) on each case; arms that another's breakage cut short are left out.

        A breakage belongs to the arm that the worker was busy with, or to all of them where it had not begun with any
        or was done with them; samples that lack once it was done belong to the arms that lack them.
        """
        results: dict[tuple[str, CaseKey], Result] = {}
        blamed = self._blamed()
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

    def _blamed(self) -> set[str]:
        everyone = {arm.key for arm in self.arms}
        if self._garbled:
            return {self._garbled_at} if self._garbled_at else everyone
        if self._done and (lacking := {key for key, _ in self._lacking()}):
            return lacking
        return {self._at} if self._at else everyone


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise OverflowError
    return value


def _signal(code: int) -> str:
    known = {134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
    return f" ({known[code]})" if code in known else ""
