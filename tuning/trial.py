"""Trials: one candidate on one message in one launch, with a status and raw samples. Failures are results too."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a trial ended."""

    OK = "ok"
    UNSUPPORTED = "unsupported"  # the candidate cannot run here, and said so
    LAUNCH_FAILED = "launch_failed"  # died before the first sample
    CRASHED = "crashed"  # died after the first sample
    TIMED_OUT = "timed_out"  # no sign of life; ended by the watchdog
    WRONG_RESULT = "wrong_result"  # a sum was wrong; never timed
    UNREADABLE = "unreadable"  # the worker's output could not be understood
    SKIPPED = "skipped"  # not tried, for a reason that an earlier trial gives


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate on one message in one launch.

    Attributes:
        environment: the environment (toolchain) that the launch ran in.
        candidate: the candidate's name.
        copy: 0, or 1 for the baseline's second copy (the A/A pair).
        message: the message's name in the workload.
        repetition: which repetition of the schedule, from 0.
        launch: identifies the process start; trials that share it are paired.
        status: how it ended.
        reason: why, where it is not ok.
        samples: raw samples, a tuple a round, in the metric's unit; empty where it is not ok.
        metric: name in the metric registry.
        command: the argument vector that ran.
        started: start of the launch, ISO 8601 UTC.
        seconds: duration of the launch.
        load: the machine's 1-minute load average just before the launch, or None where it cannot be read.
        output: the last lines of the launch's output, where it is not ok.
    """

    environment: str
    candidate: str
    copy: int = 0
    message: str
    repetition: int
    launch: str
    status: Status
    reason: str = ""
    samples: tuple[tuple[float, ...], ...] = ()
    metric: str = "time_us"
    command: tuple[str, ...] = ()
    started: str = ""
    seconds: float = 0.0
    load: float | None = None
    output: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it has numbers."""
        return self.status is Status.OK

    @property
    def median(self) -> float:
        """Median of all its samples: the launch's one number, since samples within a launch are not independent."""
        return statistics.median(value for samples in self.samples for value in samples)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a run file."""
        return asdict(self)


def parse_trial(document: dict[str, Any]) -> Trial:
    """A trial from its line in a run file.

    Raises:
        ValueError, KeyError, TypeError: the line is not a trial; the message says what is wrong.
    """
    fields = dict(document)
    fields["status"] = Status(fields["status"])
    fields["samples"] = tuple(tuple(float(value) for value in samples) for samples in fields["samples"])
    fields["command"] = tuple(str(part) for part in fields["command"])
    fields["output"] = tuple(str(line) for line in fields["output"])
    trial = Trial(**fields)
    for name in ("environment", "candidate", "message", "launch", "reason", "metric", "started"):
        if not isinstance(getattr(trial, name), str):
            raise TypeError(f"{name} is not text")
    for name in ("copy", "repetition"):
        if not isinstance(getattr(trial, name), int):
            raise TypeError(f"{name} is not a whole number")
    values = [value for samples in trial.samples for value in samples]
    if trial.ok != bool(values):
        raise ValueError(f"status {trial.status} with {len(values)} samples")
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("a sample is not a positive number")
    return trial
