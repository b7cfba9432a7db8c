"""The causes that diagnose knows, and what a healthy allreduce takes: causes.yaml as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parent / "causes.yaml"
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a healthy allreduce by NCCL takes: base + 2 (ranks - 1) steps + size, us.

    Attributes:
        base: of every call, us.
        step: of a step of the ring, us, from the best host to the worst.
        per_kib: growth with size, us per KiB, likewise.
        eager: what calling from the host may add, us.
        fault_from: a fault is what takes longer than the worst times this.
        most_bytes: no size above this is judged.
        source: where the numbers are from.
    """

    base: float
    step: Range
    per_kib: Range
    eager: float
    fault_from: float
    most_bytes: int
    source: str

    def span(self, size: int, ranks: int, mode: str = "") -> Range:
        """The best and the worst healthy time of a message, us; mode "eager": called from the host one by one."""
        steps, kib = 2 * (ranks - 1), size / 1024
        low, high = (self.base + steps * s + kib * k for s, k in zip(self.step, self.per_kib, strict=True))
        return low, high + (self.eager if mode == "eager" else 0)

    def fixed(self, ranks: int) -> float:
        """The part that does not grow with size, us, of a host in the middle."""
        return self.base + 2 * (ranks - 1) * sum(self.step) / 2

    def excess(self, size: int, us: float, ranks: int, mode: str = "") -> float:
        """How many times the worst healthy time this is."""
        return us / self.span(size, ranks, mode)[1]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How latency looks with a cause: fixed part x times + plus + size x per_kib.

    Attributes:
        times: multiple of the healthy fixed part.
        plus: us on top, whatever the size.
        per_kib: us per KiB.
        switch: below some size it is healthy instead.
    """

    times: Range
    plus: Range
    per_kib: Range
    switch: bool


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that can be wrong; the texts are for people.

    Attributes:
        id: short name.
        name: in words.
        means: what happens.
        prior: points before anything is seen.
        curve: how latency looks; None where the cause is about something else.
        signs: points of each sign that speaks for it, or against it where they are negative.
        expected: what a host without it shows.
        next: the command that tells most.
        remedy: what ends it.
        source: where this is from.
    """

    id: str
    name: str
    means: str
    prior: float
    curve: Curve | None
    signs: Mapping[str, float]
    expected: str
    next: str
    remedy: str
    source: str


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return document


@lru_cache(maxsize=1)
def expected() -> Expected:
    """What a healthy allreduce takes."""
    entry = _document()["expected"]
    return Expected(
        base=entry["base_us"],
        step=_range(entry["step_us"]),
        per_kib=_range(entry["us_per_kib"]),
        eager=entry["eager_us"],
        fault_from=entry["fault_from"],
        most_bytes=entry["most_bytes"],
        source=entry["source"],
    )


@lru_cache(maxsize=1)
def causes() -> tuple[Cause, ...]:
    """Every cause that ships."""
    return tuple(_cause(entry) for entry in _document()["causes"])


def _cause(entry: Mapping[str, Any]) -> Cause:
    texts = {key: entry[key] for key in ("id", "name", "means", "expected", "next", "remedy", "source")}
    return Cause(
        **texts,
        prior=entry["prior"],
        curve=_curve(entry["curve"]) if "curve" in entry else None,
        signs={sign["sign"]: sign["points"] for sign in entry["signs"]},
    )


def _curve(entry: Mapping[str, Any]) -> Curve:
    return Curve(
        times=_range(entry["times"]),
        plus=_range(entry.get("plus_us", (0, 0))),
        per_kib=_range(entry["us_per_kib"]),
        switch=entry.get("switch", False),
    )


def _range(values: Any) -> Range:  # noqa: ANN401 - as YAML has it
    low, high = values
    return float(low), float(high)
