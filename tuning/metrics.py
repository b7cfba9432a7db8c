"""The one registry of what is measured: name, unit, which direction is better, how a value is printed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """Which way a metric is better."""

    LOWER = "lower is better"
    HIGHER = "higher is better"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measured quantity.

    Attributes:
        name: the field's standard term; the key in run files.
        unit: as printed and stored, e.g. "us".
        direction: which way is better.
        digits: digits after the point when printed.
        meaning: one line for people.
    """

    name: str
    unit: str
    direction: Direction
    digits: int
    meaning: str

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is the better one."""
        return self.direction is Direction.LOWER

    def format(self, value: float) -> str:
        """The value with its unit."""
        return f"{value:,.{self.digits}f} {self.unit}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            name="time_us",
            unit="us",
            direction=Direction.LOWER,
            digits=1,
            meaning="time of one call: a replay's duration over its calls, of the slowest rank",
        ),
        Metric(
            name="algbw",
            unit="GB/s",
            direction=Direction.HIGHER,
            digits=2,
            meaning="algorithm bandwidth: message bytes over the time of one call",
        ),
        Metric(
            name="busbw",
            unit="GB/s",
            direction=Direction.HIGHER,
            digits=2,
            meaning="bus bandwidth of an allreduce: algbw x 2(n-1)/n for n ranks (nccl-tests, doc/PERFORMANCE.md)",
        ),
    )
}


def algbw(message_bytes: int, time_us: float) -> float:
    """Algorithm bandwidth in GB/s (1e9 bytes a second)."""
    return message_bytes / time_us / 1e3


def busbw(message_bytes: int, time_us: float, ranks: int) -> float:
    """Bus bandwidth of an allreduce in GB/s; source: nccl-tests, doc/PERFORMANCE.md."""
    return algbw(message_bytes, time_us) * 2 * (ranks - 1) / ranks
