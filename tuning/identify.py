"""What measured rates say of the parts of a step, and what they leave open: ranges, no points for what is not known.

Baseline and speculating rate are two equations with six unknowns. Each unknown that is measured, and each physical
limit, narrows the others; `identify` says how far, and which experiment settles what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain as joined
from itertools import combinations
from math import inf

from lanewise.errors import InputError
from tuning.feasible import Bound, Feasible, Numbers, span_of
from tuning.speculation_model import Curve, Span, exactly

UNKNOWNS = ("tau", "allreduce_1", "allreduce_m", "compute_1", "experts", "draft")
"""tau; then in ms a step: all allreduces of one row, of k + 1 rows, the rest of a pass of one row, reading the experts
of one row (a part of that), drafting."""
_PASS_M = {"allreduce_m": 1.0, "compute_1": 1.0}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a host, a model and a draft.

    Attributes:
        calls: allreduces of a pass.
        row_bytes: bytes of one row of hidden states.
        k: drafted tokens a step; a verify pass has k + 1 rows.
        baseline: tokens per second without speculation, one request.
        speculating: tokens per second with it, where that was measured.
        tau: accept length, where it was read.
        latencies: us of one allreduce by bytes, in a CUDA graph.
        floor_ms: time in which the weights that one row needs can be read at peak bandwidth.
        experts_ms: what reading one row's routed experts may take.
        growth: how many times that a verify pass takes beyond a baseline pass.
        draft_ms: what drafting k tokens may take, where it is assumed.
    """

    calls: int
    row_bytes: int
    k: int
    baseline: Span
    speculating: Span | None = None
    tau: Span | None = None
    latencies: Mapping[int, Span]
    floor_ms: float
    experts_ms: Span
    growth: float
    draft_ms: Span | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One quantity: name, unit, and where it lies."""

    name: str
    unit: str
    span: Span

    @property
    def is_known(self) -> bool:
        """Whether it is known within 5 %."""
        return _settled(self.span)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Something to measure.

    Attributes:
        name: what.
        how: command or place to look.
        minutes: roughly, so that experiments can be ordered.
        sums: what it measures, as weights of unknowns.
    """

    name: str
    how: str
    minutes: int
    sums: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class Identified:
    """What follows from what is known.

    Attributes:
        feasible: the unknowns with all their bounds.
        corners: its corners.
        readings: every part, with its span.
        settling: for each part that is free, the cheapest experiments that settle it; none where no set of them does.
    """

    feasible: Feasible
    corners: Numbers
    readings: tuple[Reading, ...]
    settling: Mapping[str, tuple[Experiment, ...]]


def identify(known: Known) -> Identified:
    """Ranges of every part of a step.

    Raises:
        InputError: no values explain what was given; the message names what stands against what.
    """
    feasible = Feasible(unknowns=UNKNOWNS, bounds=bounds(known))
    corners = feasible.corners()
    if not len(corners):
        raise _contradiction(feasible)
    found = readings(known, feasible, corners)
    free = [reading.name for reading in found if not reading.is_known]
    return Identified(
        feasible=feasible, corners=corners, readings=found, settling=_settling(known, feasible, corners, free)
    )


def verify_sum(known: Known) -> dict[str, float]:
    """A verify pass without drafting, as a sum of unknowns."""
    return {**_PASS_M, "experts": known.growth}


def bounds(known: Known) -> tuple[Bound, ...]:
    """Everything that bounds the unknowns: measurements first, then physics and assumptions."""
    made = [
        _bound("the accept length", {"tau": 1}, known.tau or Span(low=1, high=known.k + 1)),
        _bound("the baseline rate", {"allreduce_1": 1, "compute_1": 1}, _inverse(known.baseline)),
        *_speculation(known),
        *_allreduces(known),
        _bound(
            "weights can be read no faster than memory allows", {"compute_1": 1}, Span(low=known.floor_ms, high=inf)
        ),
        _bound("how fast experts are read", {"experts": 1}, known.experts_ms),
        _bound("reading experts is a part of a pass", {"compute_1": 1, "experts": -1}, Span(low=0, high=inf)),
        _bound("what drafting takes", {"draft": 1}, known.draft_ms or Span(low=0, high=inf)),
    ]
    return tuple(made)


def _bound(why: str, weights: Mapping[str, float], span: Span) -> Bound:
    return Bound(why=why, weights=weights, span=span)


def _inverse(rate: Span) -> Span:
    """Tokens per second to ms a token."""
    return Span(low=1000 / rate.high, high=1000 / rate.low)


def _speculation(known: Known) -> list[Bound]:
    """T_s = tau / rate: at either end of the rate's span a straight line through tau."""
    if known.speculating is None:
        return []
    step, each = {**verify_sum(known), "draft": 1.0}, _inverse(known.speculating)
    why = "the rate with speculation"
    if each.low == each.high:
        return [_bound(why, {**step, "tau": -each.low}, exactly(0))]
    return [
        _bound(why, {**step, "tau": -each.low}, Span(low=0, high=inf)),
        _bound(why, {**step, "tau": -each.high}, Span(low=-inf, high=0)),
    ]


def _allreduces(known: Known) -> list[Bound]:
    """Allreduces of 1 and of k + 1 rows: measured, between measured sizes, or bounded by what cannot be."""
    sizes = {"allreduce_1": known.row_bytes, "allreduce_m": known.row_bytes * (known.k + 1)}
    made = [
        _bound(f"the allreduce of {size:,} bytes", {name: 1}, span.times(known.calls / 1000))
        for name, size in sizes.items()
        if (span := latency_at(known.latencies, size))
    ]
    if len(made) < len(sizes):  # both measured: then noise may order them otherwise
        rising = {"allreduce_m": 1.0, "allreduce_1": -1.0}
        made.append(_bound("a larger allreduce takes no less", rising, Span(low=0, high=inf)))
    return [*made, _bound("an allreduce takes time", {"allreduce_1": 1}, Span(low=0, high=inf))]


def latency_at(latencies: Mapping[int, Span], size: int) -> Span | None:
    """Latency of a size that was measured or lies between measured ones, us; None for others."""
    if size in latencies:
        return latencies[size]
    if len(latencies) < 2 or not min(latencies) <= size <= max(latencies):
        return None
    ends = (Curve(points=tuple((s, end(latencies[s])) for s in sorted(latencies))) for end in (_low, _high))
    low, high = (curve.at(size) for curve in ends)
    return Span(low=low, high=high)


def _low(span: Span) -> float:
    return span.low


def _high(span: Span) -> float:
    return span.high


def readings(known: Known, feasible: Feasible, corners: Numbers) -> tuple[Reading, ...]:
    """Every part of a step over the corners."""
    us, more = 1000 / known.calls, {"experts": known.growth}
    parts: list[tuple[str, str, Mapping[str, float]]] = [
        ("accept length", "", {"tau": 1}),
        ("step without speculation", "ms", {"allreduce_1": 1, "compute_1": 1}),
        ("step with speculation", "ms", {**verify_sum(known), "draft": 1}),
        (f"allreduce of {known.row_bytes:,} bytes", "us", {"allreduce_1": us}),
        (f"allreduce of {known.row_bytes * (known.k + 1):,} bytes", "us", {"allreduce_m": us}),
        ("everything else of a pass of 1 row", "ms", {"compute_1": 1}),
        (f"what {known.k + 1} rows add to it", "ms", more),
        ("drafting", "ms", {"draft": 1}),
    ]
    return tuple(
        Reading(name=name, unit=unit, span=span_of(corners @ feasible.row(weights))) for name, unit, weights in parts
    )


def experiments(known: Known) -> tuple[Experiment, ...]:
    """What can be measured."""
    rows = known.k + 1
    read_tau = Experiment(
        name="read the accept length",
        how="'accept len' in the server's decode lines, or avg_spec_accept_length in /server_info",
        minutes=1,
        sums=({"tau": 1},),
    )
    try_it = Experiment(
        name=f"serve with {known.k} drafts once, and read rate and accept length",
        how="step time = requests x accept length / rate, from the server's decode lines",
        minutes=30,
        sums=({"tau": 1}, {**verify_sum(known), "draft": 1}),
    )
    return (
        *([read_tau] if known.speculating else [try_it]),
        Experiment(
            name=f"measure the allreduce of 1 and {rows} rows in one CUDA graph",
            how=f"./inv workload --config config.json --draft-tokens {rows} > w.yaml; "
            "./inv bench-allreduce --engine cuda --modes graph --workload w.yaml",
            minutes=10,
            sums=({"allreduce_1": 1}, {"allreduce_m": 1}),
        ),
        Experiment(
            name="repeat the baseline until its step time is known within 1 %",
            how="step time = requests / rate, from the decode lines of several server starts",
            minutes=15,
            sums=({"allreduce_1": 1, "compute_1": 1},),
        ),
        Experiment(
            name=f"run the baseline with {rows} requests at a time",
            how=f"without speculation: the same {rows} rows as a verify pass, and nothing drafted",
            minutes=20,
            sums=(verify_sum(known),),
        ),
    )


def _settling(
    known: Known, feasible: Feasible, corners: Numbers, free: Sequence[str]
) -> dict[str, tuple[Experiment, ...]]:
    """For each free reading the cheapest experiments after which it is known, supposing that they find the middle."""
    middle = corners.mean(axis=0)
    all_of_them = experiments(known)
    subsets = joined.from_iterable(combinations(all_of_them, size) for size in range(1, len(all_of_them) + 1))
    settling: dict[str, tuple[Experiment, ...]] = dict.fromkeys(free, ())
    for subset in sorted(subsets, key=lambda chosen: sum(one.minutes for one in chosen)):
        open_ones = [name for name, chosen in settling.items() if not chosen]
        if not open_ones:
            break
        found = [
            _bound(one.name, weights, exactly(float(feasible.row(weights) @ middle)))
            for one in subset
            for weights in one.sums
        ]
        after = feasible.with_bounds(found)
        known_then = {reading.name for reading in readings(known, after, after.corners()) if reading.is_known}
        settling.update({name: subset for name in open_ones if name in known_then})
    return settling


def _settled(span: Span) -> bool:
    return span.high - span.low <= max(0.05 * abs(span.high + span.low) / 2, 0.05)


def _contradiction(feasible: Feasible) -> InputError:
    """Names the facts without any one of which the rest would agree."""
    whys = dict.fromkeys(bound.why for bound in feasible.bounds)
    culprits = [
        why
        for why in whys
        if len(Feasible(unknowns=UNKNOWNS, bounds=tuple(b for b in feasible.bounds if b.why != why)).corners())
    ]
    return InputError(
        "no values explain these numbers together" + (f": {'; '.join(culprits)}" if culprits else ""),
        expected="numbers of one host, model and draft, measured in the same mode",
        todo="check one of those named: without it the others agree" if culprits else "check all of them",
    )
