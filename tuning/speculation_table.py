"""Predicts tokens per second over drafts and requests, and what another allreduce would give, from what was identified.

Every number is a span over all values that the unknowns can have together. Where the accept length is free, it is
stepped through: at each value the rest is a polytope, and its corners hold the extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuning.feasible import Bound, Numbers, span_of
from tuning.identify import UNKNOWNS, Identified, Known, verify_sum
from tuning.speculation_model import Span, accept_span, break_even_latency, exactly, rate

KS = tuple(range(1, 9))
REQUESTS = (1, 2, 4, 8, 16, 32)
_STEPS = 9
_EDGE = 1e-6
TAU, ALLREDUCE_1, ALLREDUCE_M, COMPUTE_1, EXPERTS, DRAFT = range(len(UNKNOWNS))

Acceptance = Callable[[float, int], Span]
"""The accept length of k drafts, given the one that was measured."""
Touched = Callable[[int], float]
"""How many times one row's experts a pass of so many rows reads."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The unknowns at one accept length: `tau`, and the corners of all the others."""

    tau: float
    corners: Numbers


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of drafts at one number of requests.

    Attributes:
        k: drafts a step.
        requests: at the same time.
        tau: accept length.
        step_ms: step time with speculation.
        rate: tokens per second with it, of all requests.
        baseline: tokens per second without.
        break_even: the accept length above which speculation is faster, T_s / T_b.
        gain: rate with over rate without, both of the same values of the unknowns.
        extrapolated: whether an allreduce larger than all measured ones went in.
    """

    k: int
    requests: int
    tau: Span
    step_ms: Span
    rate: Span
    baseline: Span
    break_even: Span
    gain: Span
    extrapolated: bool


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What a verify pass with allreduces of `us` would give: tokens per second of one request."""

    us: float
    rate: Span


def slices(identified: Identified, steps: int = _STEPS) -> tuple[Slice, ...]:
    """The feasible set at several accept lengths, from the least to the largest that it allows."""
    whole = span_of(identified.corners[:, TAU])
    edge = _EDGE * (whole.high - whole.low)
    values = np.unique(np.linspace(whole.low + edge, whole.high - edge, steps).round(9))
    cut = []
    for tau in values:
        fixed = Bound(why="the accept length looked at", weights={"tau": 1}, span=exactly(float(tau)))
        cut.append(Slice(tau=float(tau), corners=identified.feasible.with_bounds([fixed]).corners()))
    return tuple(one for one in cut if len(one.corners))


def table(known: Known, cut: Sequence[Slice], acceptance: Acceptance, touched: Touched) -> tuple[Cell, ...]:
    """Every number of drafts at every number of requests."""
    return tuple(
        _joined([_cell(known, one, acceptance(one.tau, k), touched, k, requests) for one in cut])
        for requests in REQUESTS
        for k in KS
    )


def _cell(known: Known, one: Slice, tau: Span, touched: Touched, k: int, requests: int) -> Cell:
    """The cell at one accept length (`tau`: what that makes with k drafts)."""
    rows = requests * (k + 1)
    experts, rest = one.corners[:, EXPERTS], one.corners[:, COMPUTE_1] - one.corners[:, EXPERTS]
    base = [end + rest + experts * touched(requests) for end in _allreduce(known, one.corners, requests)]
    drafting = one.corners[:, DRAFT] * (k / known.k)
    step = [end + rest + experts * touched(rows) + drafting for end in _allreduce(known, one.corners, rows)]
    ratio = span_of(np.concatenate([step[0] / base[1], step[1] / base[0]]))
    return Cell(
        k=k,
        requests=requests,
        tau=tau,
        step_ms=span_of(np.concatenate(step)),
        rate=Span(
            low=float(rate(requests, tau.low, step[1]).min()), high=float(rate(requests, tau.high, step[0]).max())
        ),
        baseline=span_of(rate(requests, 1, np.concatenate(base))),
        break_even=ratio,
        gain=Span(low=tau.low / ratio.high, high=tau.high / ratio.low),
        extrapolated=rows * known.row_bytes > max((*known.latencies, (known.k + 1) * known.row_bytes)),
    )


def _joined(cells: Sequence[Cell]) -> Cell:
    """The cell whose spans hold those of all: of one cell at several accept lengths."""
    return replace(
        cells[0],
        tau=_around(cell.tau for cell in cells),
        step_ms=_around(cell.step_ms for cell in cells),
        rate=_around(cell.rate for cell in cells),
        baseline=_around(cell.baseline for cell in cells),
        break_even=_around(cell.break_even for cell in cells),
        gain=_around(cell.gain for cell in cells),
    )


def _around(spans: Iterable[Span]) -> Span:
    """The span that holds all of them."""
    held = list(spans)
    return Span(low=min(span.low for span in held), high=max(span.high for span in held))


def _allreduce(known: Known, corners: Numbers, rows: int) -> tuple[Numbers, Numbers]:
    """All allreduces of a pass of so many rows, ms: with every measured span at its low end, and at its high end.

    Straight lines between the unknowns (1 and k + 1 rows) and measured sizes; beyond them the last line goes on.
    """
    variable = {known.row_bytes: ALLREDUCE_1, known.row_bytes * (known.k + 1): ALLREDUCE_M}
    sizes = sorted({*variable, *known.latencies})
    size = rows * known.row_bytes
    right = min(max(int(np.searchsorted(sizes, size)), 1), len(sizes) - 1)
    x1, x2 = sizes[right - 1], sizes[right]
    ends = []
    for end in ("low", "high"):
        y1, y2 = (
            corners[:, variable[x]]
            if x in variable
            else np.full(len(corners), getattr(known.latencies[x], end) * known.calls / 1000)
            for x in (x1, x2)
        )
        slope = (y2 - y1) / (x2 - x1)
        ends.append(y1 + slope * (size - x1) if size <= x2 else y2 + np.maximum(slope, 0) * (size - x2))
    return ends[0], ends[1]


def repairs(known: Known, cut: Sequence[Slice], latencies: Sequence[float]) -> tuple[Repair, ...]:
    """Tokens per second of one request if allreduces of k + 1 rows took so many us, everything else as it is."""
    return tuple(Repair(us=us, rate=_around(rates_at(known, one, us) for one in cut)) for us in latencies)


def rates_at(known: Known, one: Slice, us: float | None) -> Span:
    """Tokens per second of one request at one accept length, with allreduces of `us`, or as they are (None)."""
    allreduce = one.corners[:, ALLREDUCE_M] if us is None else known.calls * us / 1000
    return span_of(rate(1, one.tau, _rest(known, one.corners) + allreduce))


def break_even_latencies(known: Known, cut: Sequence[Slice]) -> Span:
    """The allreduce latency of k + 1 rows, us, below which speculation is faster; below 0 where none would do."""
    found = []
    for one in cut:
        baseline = one.corners[:, ALLREDUCE_1] + one.corners[:, COMPUTE_1]
        found.append(break_even_latency(one.tau, baseline, _rest(known, one.corners), known.calls))
    return span_of(np.concatenate(found))


def _rest(known: Known, corners: Numbers) -> Numbers:
    """Everything of a step with speculation but the allreduces, ms."""
    weights = {**verify_sum(known), "draft": 1.0, "allreduce_m": 0.0}
    rest: Numbers = corners @ np.array([weights.get(name, 0.0) for name in UNKNOWNS])
    return rest


def acceptance_from(known: Known, per_position: Sequence[float]) -> Acceptance:
    """How an accept length carries to other numbers of drafts.

    Args:
        known: tells the number of drafts that it was measured with.
        per_position: cumulative acceptance of each position, where that was measured: then the accept length of fewer
            drafts is known, and of more drafts bounded by the last position's.
    """
    if not per_position:
        return lambda tau, k: accept_span(tau, known.k, k)

    def from_positions(_tau: float, k: int) -> Span:
        least = 1 + sum(per_position[:k])
        if k <= len(per_position):
            return exactly(least)
        before = per_position[-2] if len(per_position) > 1 else 1.0
        ratio = per_position[-1] / before if before else 0.0
        beyond = sum(per_position[-1] * ratio**further for further in range(1, k - len(per_position) + 1))
        return Span(low=least, high=least + beyond)

    return from_positions
