"""Launches and trials: what ran, and what came of each candidate on each case. Failures are results too."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar


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
class LaunchRecord:
    """One process start, as its trials share it.

    Attributes:
        launch: its identifier; trials that name the same one ran in the same processes.
        environment: the environment (toolchain) that it ran in.
        repetition: which repetition of the schedule, from 0.
        command: the argument vector that ran.
        started: ISO 8601 UTC.
        seconds: duration.
        busy: tasks of others that were running or waiting for a core just before it; None where it cannot be read.
        libraries: what the worker said it ran on, e.g. {"mpi": "Open MPI v5.0.11"}.
        output: its last lines of output, where anything went wrong.
    """

    launch: str
    environment: str
    repetition: int
    command: tuple[str, ...]
    started: str
    seconds: float
    busy: float | None
    libraries: dict[str, Any] = field(default_factory=dict)
    output: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate on one case in one launch.

    Attributes:
        environment: the environment (toolchain) that it ran in.
        candidate: the candidate's name.
        copy: 0, or 1 for the baseline's second copy (the A/A pair).
        message: the message's name in the workload.
        mode: "eager", or "graph": captured into one CUDA graph.
        working_set: "warm": one pair of buffers; "cold": more of them than the GPU's L2 cache holds.
        repetition: which repetition of the schedule, from 0.
        launch: the launch that it is from; "" where it was skipped. Trials that share it are paired.
        status: how it ended.
        reason: why, where it is not ok.
        samples: raw samples, a tuple a round, in the metric's unit; empty where it is not ok.
        metric: name in the metric registry.
        choice: what the library says that it ran, e.g. {"algorithm": "RING", "protocol": "LL", "channels": 1}.
    """

    environment: str
    candidate: str
    copy: int = 0
    message: str
    mode: str = "eager"
    working_set: str = "warm"
    repetition: int
    launch: str
    status: Status
    reason: str = ""
    samples: tuple[tuple[float, ...], ...] = ()
    metric: str = "time_us"
    choice: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it has numbers."""
        return self.status is Status.OK

    @property
    def case(self) -> tuple[str, str, str]:
        """What it was measured on: message, mode, working set."""
        return self.message, self.mode, self.working_set

    @property
    def median(self) -> float:
        """Median of all its samples: the launch's one number, since samples within a launch are not independent."""
        return statistics.median(value for samples in self.samples for value in samples)

    def log_ratio_to(self, baseline: Trial) -> float:
        """Natural log of how this compares with `baseline`.

        Of one launch: the median over rounds of the ratios within each, since the visits of a round lie milliseconds
        apart and so share whatever else the machine is doing. Of two launches: the ratio of their medians.
        """
        if self.launch != baseline.launch or len(self.samples) != len(baseline.samples):
            return math.log(self.median / baseline.median)
        rounds = zip(self.samples, baseline.samples, strict=True)
        return statistics.median(math.log(statistics.median(own) / statistics.median(other)) for own, other in rounds)


Record = TypeVar("Record", Trial, LaunchRecord)


def to_line(record: Trial | LaunchRecord) -> dict[str, Any]:
    """As it stands in a run file."""
    return {"kind": "trial" if isinstance(record, Trial) else "launch", **asdict(record)}


def parse_line(document: dict[str, Any]) -> Trial | LaunchRecord:
    """A trial or launch from its line in a run file.

    Raises:
        ValueError, KeyError, TypeError: the line is neither; the message says what is wrong.
    """
    fields = dict(document)
    kind = fields.pop("kind")
    if kind == "launch":
        fields["command"], fields["output"] = _texts(fields["command"]), _texts(fields["output"])
        return _typed(LaunchRecord(**fields))
    if kind != "trial":
        raise ValueError(f"a line of kind {kind!r}")
    fields["status"] = Status(fields["status"])
    fields["samples"] = tuple(tuple(float(value) for value in samples) for samples in fields["samples"])
    trial = _typed(Trial(**fields))
    values = [value for samples in trial.samples for value in samples]
    if trial.ok != bool(values):
        raise ValueError(f"status {trial.status} with {len(values)} samples")
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError("a sample is not a positive number")
    return trial


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def _typed(record: Record) -> Record:
    """The record, once its fields have the types that they are declared with."""
    expected = {"str": str, "int": int, "dict[str, Any]": dict}
    for name, declared in record.__dataclass_fields__.items():
        wanted = expected.get(str(declared.type))
        if wanted and not isinstance(getattr(record, name), wanted):
            raise TypeError(f"{name} is not {declared.type}")
    return record
