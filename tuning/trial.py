"""Launches and trials: what ran, and what came of each candidate on each case. Failures are results too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from tuning.workload import encodable, short

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
        plan: identity of the plan that it was part of.
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
    plan: str
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
Declared = TypeVar("Declared", bound="DataclassInstance")
LEAST_SAMPLE, MOST_SAMPLE = 1e-6, 1e12
"""Microseconds between which a sample can be meant: a picosecond, and 11 days."""
_MOST_DEPTH = 16


def to_line(record: Trial | LaunchRecord) -> dict[str, Any]:
    """As it stands in a run file."""
    return {"kind": "trial" if isinstance(record, Trial) else "launch", **asdict(record)}


def parse_line(document: object) -> Trial | LaunchRecord:
    """A trial or launch from its line in a run file, whatever JSON value that line holds.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: the line is neither; the message says what is wrong.
    """
    fields = dict(mapping(document))
    kind = fields.pop("kind")
    if kind == "launch":
        fields["command"], fields["output"] = items(fields["command"]), items(fields["output"])
        return _in_range(typed(LaunchRecord(**fields)))
    if kind != "trial":
        raise ValueError(f"a line of kind {short(kind)}")
    fields["status"] = Status(fields["status"])
    fields["samples"] = tuple(_round(values) for values in items(fields["samples"]))
    trial = _in_range(typed(Trial(**fields)))
    if trial.ok != bool(trial.samples):
        raise ValueError(f"status {trial.status} with {len(trial.samples)} rounds of samples")
    if trial.copy not in (0, 1):
        raise ValueError(f"copy is {trial.copy}")
    return trial


def _round(values: object) -> tuple[float, ...]:
    if not (samples := items(values)) or not all(map(is_sample, samples)):
        raise ValueError(f"a round of samples is {short(values)}")
    return tuple(map(float, samples))


def _in_range(record: Record) -> Record:
    if record.repetition < 0:
        raise ValueError(f"repetition is {record.repetition}")
    return record


def is_sample(value: object) -> bool:
    """Whether a value can be a time of one call, in microseconds."""
    return is_number(value) and LEAST_SAMPLE <= value <= MOST_SAMPLE


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number; True is none."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is a whole number of 64 bits; True and 1.0 are none, and no sum of such overflows a float."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that can be printed and stored."""
    return isinstance(value, str) and encodable(value)


def is_plain(value: object, depth: int = _MOST_DEPTH) -> bool:
    """Whether it is a JSON value that can be stored, shown and compared: finite, printable, not nested without end."""
    if isinstance(value, dict):
        return depth > 0 and all(is_text(key) and is_plain(inner, depth - 1) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(is_plain(inner, depth - 1) for inner in value)
    return value is None or isinstance(value, bool) or is_number(value) or is_text(value)


def mapping(value: object) -> dict[str, Any]:
    """The value, where it is a mapping as JSON has it; TypeError where not."""
    if not isinstance(value, dict):
        raise TypeError(f"{short(value)} is no mapping")
    return value


def items(value: object) -> tuple[Any, ...]:
    """The items of a list; TypeError for anything else, also for text."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{short(value)} is no list")
    return tuple(value)


def _is_mapping_of(value: object, *checks: Callable[[object], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        is_text(name) and any(check(inner) for check in checks) for name, inner in value.items()
    )


_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "str": is_text,
    "bool": lambda value: isinstance(value, bool),
    "int": is_integer,
    "int | None": lambda value: value is None or is_integer(value),
    "float": is_number,
    "float | None": lambda value: value is None or is_number(value),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(map(is_text, value)),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(is_integer, value)),
    "tuple[float, ...]": lambda value: isinstance(value, tuple) and all(map(is_number, value)),
    "tuple[Mapping[str, Any], ...]": lambda value: (
        isinstance(value, tuple) and all(isinstance(inner, dict) and is_plain(inner) for inner in value)
    ),
    "dict[str, Any]": lambda value: isinstance(value, dict) and is_plain(value),
    "Mapping[str, Any]": lambda value: isinstance(value, dict) and is_plain(value),
    "Mapping[str, str]": lambda value: _is_mapping_of(value, is_text),
    "Mapping[str, int | str]": lambda value: _is_mapping_of(value, is_text, is_integer),
    "Mapping[str, bool | str]": lambda value: _is_mapping_of(value, is_text, lambda inner: isinstance(inner, bool)),
}


def typed(record: Declared) -> Declared:
    """A dataclass, once its fields have the types that they are declared with.

    Raises:
        TypeError: one has not; the message has its name and value.
    """
    for declared in dataclass_fields(record):
        check = _CHECKS.get(str(declared.type))
        if check and not check(value := getattr(record, declared.name)):
            raise TypeError(f"{declared.name} is {short(value)}, not {declared.type}")
    return record
