"""From evidence to causes, ranked: what speaks for and against each, in decibans, and whether there is a fault.

A cause's points are its prior, those of the signs seen, and what the measured latencies say of its curve: 10 log10 of
the likelihood averaged over the curve's ranges, against that of any curve at all. Averaging keeps a cause whose curve
fits anything from winning by that. See docs/diagnosis.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tuning.causes import Cause, Curve, Expected, Range, causes, expected
from tuning.evidence import Evidence, Latency, Sign
from tuning.topology_nodes import Cpu

NAMED = 8.0
"""Points from which a cause is named: 6 to 1."""
POSSIBLE = -3.0
_NOISE = 0.22
"""Standard deviation of ln(measured / true): 25 % either way, as far as published rows of one host lie apart."""
_MOST_FOR, _MOST_AGAINST = 12.0, -25.0
"""Latencies alone never settle it, since several causes look alike."""
_HEALTHY_AGAINST = -6.0
"""What a healthy latency says against a cause that would slow it."""
_MAKES_NOTHING_SLOW = -20.0
_STEPS = 9
"""Values tried of each range of a curve."""
_ANY = Curve(times=(0.7, 15), plus=(0, 0), per_kib=(0.005, 9), switch=False)
_ZEN5_FAMILY = 26
_FIXED_SEARCH, _FIRST_WITH_SM120 = (2, 31, 0), (2, 27, 0)
_NVLINK_MODELS = ("SXM", "H100", "H200", "H800", "A800", "B200", "B300", "GB200", "GH200", "V100", "A100")
"""GPUs of which the healthy times here say nothing: they have NVLink, or are of another generation."""


class Verdict(StrEnum):
    """What is concluded as a whole."""

    FAULT = "fault"
    HEALTHY = "nothing wrong is seen"
    UNJUDGED = "nothing to judge by"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A cause, and what speaks for and against it.

    Attributes:
        cause: which.
        points: how much in sum, decibans.
        because: what speaks for it (positive) or against it, with its points.
    """

    cause: Cause
    points: float
    because: tuple[tuple[float, Sign], ...]


LEAST_US = 1.2
"""Two one-way flags between GPUs behind one switch, 0.63 us each
(https://github.com/local-inference-lab/rtx6kpro/blob/master/hardware/wrx90-cpayne-8gpu-root-topology-comparison.md)."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A measured latency beside what is expected."""

    latency: Latency
    span: Range
    excess: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is concluded of a host.

    Attributes:
        verdict: whether there is a fault.
        ranked: all causes, the likeliest first.
        judged: latencies beside what is expected; of other sizes or GPUs none.
        notes: what was not judged, and why; a sentence each.
    """

    verdict: Verdict
    ranked: tuple[Ranked, ...]
    judged: tuple[Judged, ...]
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[Ranked, ...]:
        """The causes that enough speaks for."""
        return tuple(ranked for ranked in self.ranked if ranked.points >= NAMED)

    @property
    def slow(self) -> tuple[Judged, ...]:
        """Latencies that no healthy host shows."""
        return tuple(judged for judged in self.judged if judged.excess >= expected().fault_from)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Rank the causes of what a host shows."""
    known = expected()
    notes = list(_unjudged(evidence, known))
    judged = tuple(_judged(evidence, known)) if not _other_gpus(evidence) else ()
    slow = [entry for entry in judged if entry.excess >= known.fault_from]
    signs = (*evidence.signs, *_derived(evidence, judged, slow))
    ranked = sorted((_rank(cause, signs, judged, evidence.ranks) for cause in causes()), key=lambda r: -r.points)
    named = any(entry.points >= NAMED for entry in ranked)
    fine = Verdict.HEALTHY if judged or evidence.readings else Verdict.UNJUDGED
    verdict = Verdict.FAULT if slow or named else fine
    return Diagnosis(verdict=verdict, ranked=tuple(ranked), judged=judged, notes=tuple(notes))


def _other_gpus(evidence: Evidence) -> list[str]:
    models = sorted({model for reading in evidence.readings for model in reading.models})
    return [model for model in models if any(word in model for word in _NVLINK_MODELS)]


def _unjudged(evidence: Evidence, known: Expected) -> Iterator[str]:
    if others := _other_gpus(evidence):
        yield f"times are not judged: what is expected is of SM120 GPUs over PCIe, and this is {others[0]}"
    if any(latency.size > known.most_bytes for latency in evidence.latencies):
        yield f"times of more than {known.most_bytes:,} bytes are not judged: bandwidth decides them, so the links do"
    if impossible := sorted({latency.us for latency in evidence.latencies if latency.us < LEAST_US}):
        yield (
            f"{impossible[0]:g} us is not judged: over PCIe no allreduce takes less than {LEAST_US} us, "
            "a flag there and back; look at what was measured"
        )


def _judged(evidence: Evidence, known: Expected) -> Iterator[Judged]:
    for latency in evidence.latencies:
        ranks = latency.ranks or evidence.ranks
        if latency.size <= known.most_bytes and ranks > 1 and latency.us >= LEAST_US:
            excess = known.excess(latency.size, latency.us, ranks, latency.mode)
            yield Judged(latency=latency, span=known.span(latency.size, ranks, latency.mode), excess=excess)


def _derived(evidence: Evidence, judged: Sequence[Judged], slow: Sequence[Judged]) -> Iterator[Sign]:
    """Signs that only show when files and measurements are put together."""
    yield from _of_modes(judged, slow)
    yield from _jump(judged)
    yield from _of_releases(evidence)


def _jump(judged: Sequence[Judged]) -> Iterator[Sign]:
    """Neighbours in size (at most twice as large) of one mode, healthy, then 1.8 times as slow."""
    for mode in sorted({entry.latency.mode for entry in judged}):
        of_mode = sorted(
            (entry for entry in judged if entry.latency.mode == mode), key=lambda entry: entry.latency.size
        )
        for before, after in pairwise(of_mode):
            first, second = before.latency, after.latency
            near = first.size < second.size <= 2 * first.size
            if (
                near
                and before.excess < expected().fault_from
                and second.us > first.us * max(1.8, second.size / first.size)
            ):
                text = f"{first.us:.4g} us at {first.size:,} B, {second.us:.4g} at {second.size:,}"
                yield Sign(name="latency-jump", text=text, where=second.where)
                return


def _of_modes(judged: Sequence[Judged], slow: Sequence[Judged]) -> Iterator[Sign]:
    """Where it is slow: inside a graph (at half of the sizes at least), or only called from the host."""
    graph = [entry for entry in judged if entry.latency.mode == "graph"]
    slow_graph = [entry for entry in slow if entry.latency.mode == "graph"]
    slow_eager = [entry for entry in slow if entry.latency.mode == "eager"]
    if slow_graph and 2 * len(slow_graph) >= len(graph):
        latency = slow_graph[0].latency
        text = f"{latency.us:.4g} us at {latency.size:,} B inside one graph"
        yield Sign(name="slow-in-graph", text=text, where=latency.where)
    elif slow_eager:
        latency = slow_eager[0].latency
        name = "eager-slow-graph-fine" if graph else "slow-from-host"
        beside = "but as expected in a graph" if graph else "where launching counts"
        text = f"{latency.us:.4g} us at {latency.size:,} B called from the host, {beside}"
        yield Sign(name=name, text=text, where=latency.where)


def _of_releases(evidence: Evidence) -> Iterator[Sign]:
    releases = sorted({release for reading in evidence.readings for release in reading.releases})
    if not releases:
        return
    where = next(reading.path for reading in evidence.readings if reading.releases)
    shown = ".".join(map(str, releases[0]))
    sm120 = any("Blackwell" in m or "RTX 50" in m for reading in evidence.readings for m in reading.models)
    if releases[0] < _FIRST_WITH_SM120 and sm120:
        yield Sign(name="nccl-without-sm120", text=f"NCCL {shown} has no code for SM120", where=where)
    if _zen5_sockets(evidence) > 1 and releases[0] < _FIXED_SEARCH:
        text = f"NCCL {shown} counts 16 GB/s between Zen 5 sockets, and tries no ring below 18"
        yield Sign(name="search-fails-in-this-release", text=text, where=where)


def search_fails_unasked(evidence: Evidence) -> bool:
    """Whether NCCL's search is known to fail on such a node, by releases that may be there, and no file tells of it."""
    told = {sign.name for sign in evidence.signs} & {"search-failed", "search-succeeded"}
    releases = [release for reading in evidence.readings for release in reading.releases]
    fixed = bool(releases) and min(releases) >= _FIXED_SEARCH
    return _zen5_sockets(evidence) > 1 and not told and not fixed


def _zen5_sockets(evidence: Evidence) -> int:
    return sum(map(_is_zen5, evidence.topology.cpus)) if evidence.topology else 0


def _is_zen5(cpu: Cpu) -> bool:
    return cpu.vendor == "AuthenticAMD" and (cpu.family or 0) >= _ZEN5_FAMILY


def _rank(cause: Cause, signs: Sequence[Sign], judged: Sequence[Judged], ranks: int) -> Ranked:
    because: list[tuple[float, Sign]] = []
    seen: set[str] = set()
    for sign in signs:
        if sign.name in cause.signs and sign.name not in seen:  # the same sign twice is no more evidence
            seen.add(sign.name)
            because.append((cause.signs[sign.name], sign))
    if cause.curve and judged:
        because.append(_by_curve(cause.curve, judged, ranks))
    elif not because and any(entry.excess >= expected().fault_from for entry in judged):
        text = "nothing speaks for it, and it makes no allreduce slow"
        because.append((_MAKES_NOTHING_SLOW, Sign(name="makes-nothing-slow", text=text, where="as a rule")))
    points = cause.prior + sum(entry[0] for entry in because)
    return Ranked(cause=cause, points=points, because=tuple(sorted(because, key=lambda entry: -abs(entry[0]))))


def _by_curve(curve: Curve, judged: Sequence[Judged], ranks: int) -> tuple[float, Sign]:
    """What the latencies say of one curve; a cause that adds launching says nothing of times within a graph."""
    launched, captured = (
        [x for x in judged if x.latency.mode != "graph"],
        [x for x in judged if x.latency.mode == "graph"],
    )
    chosen = (launched or captured) if curve.plus[1] else (captured or launched)
    where = chosen[0].latency.where
    if all(entry.excess < expected().fault_from for entry in chosen):
        return _HEALTHY_AGAINST, Sign(name="as-expected", text="every time measured is as expected", where=where)
    latencies = _typical([entry.latency for entry in chosen])
    points = 10 * (log10_likelihood(curve, latencies, ranks) - log10_likelihood(_ANY, latencies, ranks))
    points = min(max(points, _MOST_AGAINST), _MOST_FOR)
    how = "fits" if points > 0 else "does not fit"
    shown = ", ".join(f"{us:.4g} us at {size:,} B" for size, us in latencies[:4])
    return points, Sign(name="curve", text=f"what it looks like {how} {shown}", where=where)


def _typical(latencies: Sequence[Latency]) -> list[tuple[int, float]]:
    """Bytes and us, one of each size."""
    by_size: dict[int, list[float]] = {}
    for latency in latencies:
        by_size.setdefault(latency.size, []).append(latency.us)
    return [(size, statistics.median(values)) for size, values in sorted(by_size.items())][:32]


def log10_likelihood(curve: Curve, points: Sequence[tuple[int, float]], ranks: int) -> float:
    """Log10 of the likelihood of measured times, averaged over the ranges of a curve (evenly in their logarithm)."""
    fixed = expected().fixed(ranks)
    sums = [
        _misfit(points, fixed * times + plus, per_kib, fixed if curve.switch else 0.0)
        for times in _grid(curve.times)
        for plus in _grid(curve.plus)
        for per_kib in _grid(curve.per_kib)
    ]
    least = min(sums)
    mean = sum(math.exp(least - value) for value in sums) / len(sums)
    return (math.log(mean) - least) / math.log(10)


def _misfit(points: Sequence[tuple[int, float]], start: float, per_kib: float, healthy: float) -> float:
    """Half the sum of squared distances in ln, in units of the noise.

    With `healthy` given, times up to some size may be the healthy ones instead: the best such size is taken, but not
    none, since a switch is what it is about.
    """
    slow = [_square(us, start + per_kib * size / 1024) for size, us in points]
    if not healthy or len(points) < 2:
        return sum(slow) if not healthy else sum(slow) + 1
    fine = [_square(us, healthy + sum(expected().per_kib) / 2 * size / 1024) for size, us in points]
    return min(sum(fine[:cut]) + sum(slow[cut:]) for cut in range(1, len(points))) + math.log(len(points))


def _square(measured: float, modelled: float) -> float:
    return (math.log(measured / modelled) / _NOISE) ** 2 / 2


def _grid(values: Range) -> list[float]:
    low, high = values
    if low == high:
        return [low]
    return [low * (high / low) ** (step / (_STEPS - 1)) for step in range(_STEPS)]
