"""What repeated launches say about the difference between two arms.

The unit of repetition is the launch (one process start): samples within a launch share its memory layout, placement
and clocks, so they add no degrees of freedom (Hunold & Carpen-Amarie, arXiv:1505.07734). A launch gives an arm one
number a case. Arms A (baseline) and B compare as log ratios r_i = ln(B_i / A_i), where i is a launch that both share,
or the i-th launch of each when launches are interleaved A B B A. Differences, floors and
intervals are natural logs in here; a `Judgement` speaks of ratios and fractions. The rules are those of Hoefler &
Belli, SC'15, doi:10.1145/2807591.2807644.

tests/unit/test_stats_simulation.py shows on data of known truth how often the judge errs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tuning.intervals import Floats, checked, hodges_lehmann, interval, spread, t_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tuning.intervals import Interval

LEAST_DIFFERENCE = math.log(1.02)  # smaller ones are never a win, however precisely they are known
MOST_LAUNCHES = 1000  # whatever needs more than these lies too close to the margin for repetition to settle


class Outcome(StrEnum):
    """What a comparison concludes. `judge` never gives NOT_COMPARABLE: numbers do not tell how they were taken."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What `judge` concludes of an arm against the baseline, with what it rests on.

    Ratios are arm / baseline; `mde` and `floor` are fractions (0.02 for 2 %). None stands for what does not exist: a
    ratio without pairs, interval and `mde` below 2 pairs, a floor that was not measured. `more_launches` is how many
    launches to add per arm for an undecided comparison (see `launches_needed`), None if that would not help;
    `more_launches_if_same` the same under the assumption that the arms do not differ.
    """

    outcome: Outcome
    n: int
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    mde: float | None
    floor: float | None
    more_launches: int | None
    more_launches_if_same: int | None
    method: Literal["t", "bootstrap", "none"]
    reason: str


def mean_over_sizes(log_ratios: Iterable[npt.ArrayLike]) -> Floats:
    """Return per launch the mean over message sizes of log ratios: the log of the geometric mean ratio.

    `log_ratios` holds one array per message size, all over the same launches in the same order. The result is judged
    like the log ratios of a single size. ValueError if there is no size, the lengths differ or a value is not finite.
    """
    rows = [checked(row, "log ratios") for row in log_ratios]
    if len(lengths := {row.size for row in rows}) != 1:
        raise ValueError(f"message sizes with {sorted(lengths)} launches: expected the same launches for every size")
    return np.asarray(np.mean(rows, axis=0))


def shared_launch_floor(log_ratios: npt.ArrayLike) -> float | None:
    """Return the noise floor |shift| of ln(copy_i / baseline_i), of a second copy of the baseline in each launch.

    A natural log >= 0, as `judge` takes it; None without launches. ValueError if a value is not finite.
    """
    r = checked(log_ratios, "log ratios")
    return abs(hodges_lehmann(r)) if r.size else None


def own_launch_floor(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """Return the noise floor of arms that need launches of their own: each arm's launches against each other.

    Each arm gives ln(x_2 / x_1), ln(x_4 / x_3), ... of its launch medians in order; the floor is |shift| of all these
    together, a natural log >= 0; None if neither arm has two launches. Under A B B A these pairs lie no closer in time
    than those of the comparison and all point the same way, so that a drift raises the floor.
    ValueError if a value is not finite and positive.
    """
    logs = [np.log(checked(arm, "launch medians", positive=True)) for arm in (a, b)]
    shifts = np.concatenate([log[1::2] - log[:-1:2] for log in logs])
    return abs(hodges_lehmann(shifts)) if shifts.size else None


def minimum_detectable_effect(log_ratios: npt.ArrayLike) -> float | None:
    """Return the difference, as a fraction, that as many launches with this spread find with 80 % probability.

    exp((t_.975 + t_.80) s / sqrt(n)) - 1, t with n - 1 degrees of freedom, for a two-sided test at 5 %; None below 2
    pairs. ValueError if a value is not finite.
    """
    r = checked(log_ratios, "log ratios")
    if r.size < 2:
        return None
    return _exp((t_quantile(0.975, r.size) + t_quantile(0.80, r.size)) * spread(r) / math.sqrt(r.size)) - 1


def launches_needed(log_ratios: npt.ArrayLike, *, margin: float, floor: float | None) -> int | None:
    """Return how many launches in all should decide an undecided comparison, if shift and spread stay what they are.

    The smallest N > n whose interval, +- t_.975 s / sqrt(N), is expected to fit between the shift and the end of the
    equivalence band (then: same), or between the shift and 0 if the shift counts at all (then: better or worse).
    `margin` and `floor` as in `judge`. None above `MOST_LAUNCHES`, and below 2 pairs. ValueError as `judge`.

    Extend once, to this number. Each further look is another chance to find what is not there: one extension makes the
    5 % of false differences up to 8 % (simulated), a look after every launch far more.
    """
    r = checked(log_ratios, "log ratios")
    band, threshold = _limits(margin, floor)
    if r.size < 2:
        return None
    shift = abs(hodges_lehmann(r))
    return _launches_for(r, max(band - shift, shift if shift > threshold else 0.0))


def launches_needed_if_same(log_ratios: npt.ArrayLike, *, margin: float) -> int | None:
    """Return how many launches in all should show that the arms are the same, if they are and the spread stays.

    The smallest N > n whose interval around no difference is expected to fit into the equivalence band. For
    comparisons whose own shift, too uncertain yet, lies so close to the margin that `launches_needed` finds no number.
    None and errors as there.
    """
    r = checked(log_ratios, "log ratios")
    band, _ = _limits(margin, None)
    return None if r.size < 2 else _launches_for(r, band)


def _launches_for(r: Floats, room: float) -> int | None:
    """Return the smallest N > n whose expected half width is at most `room`; None above `MOST_LAUNCHES`."""
    if room <= 0:
        return None
    enough = np.flatnonzero(_half_widths()[r.size + 1 :] * spread(r) <= room)
    return r.size + 1 + int(enough[0]) if enough.size else None


def judge(log_ratios: npt.ArrayLike, *, margin: float, floor: float | None, lower_is_better: bool) -> Judgement:
    """Judge an arm by its log ratios against the baseline (1-d, one per pair of launches).

    `margin` is the equivalence margin as a fraction, fixed before measuring; `floor` the noise floor as a natural log,
    as `shared_launch_floor` and `own_launch_floor` return it, or None; `lower_is_better` the direction of the metric.

    - same: the 95 % interval lies within +- ln(1 + margin) (equivalence: Schuirmann 1987, doi:10.1007/BF01068419; by
      the 95 % interval instead of his 90 %, so that one interval serves both questions).
    - better, worse: not same, the interval excludes 0, and the shift exceeds the floor and `LEAST_DIFFERENCE`.
    - undecided: all else, and fewer than 2 pairs.

    ValueError if a log ratio is not finite, `margin` not positive or `floor` negative.
    """
    r = checked(log_ratios, "log ratios")
    shift = hodges_lehmann(r) if r.size else None
    span = interval(r)
    if shift is None or span is None:
        outcome, reason = Outcome.UNDECIDED, f"{r.size} of the 2 pairs of launches that an interval needs"
    else:
        outcome, reason = _conclude(shift, span, margin, floor, lower_is_better=lower_is_better)
    open_still = outcome is Outcome.UNDECIDED
    needed = launches_needed(r, margin=margin, floor=floor) if open_still else None
    if_same = launches_needed_if_same(r, margin=margin) if open_still else None
    return Judgement(
        outcome=outcome,
        n=r.size,
        ratio=None if shift is None else _exp(shift),
        ci_low=None if span is None else _exp(span.low),
        ci_high=None if span is None else _exp(span.high),
        mde=minimum_detectable_effect(r),
        floor=None if floor is None else _exp(floor) - 1,
        more_launches=None if needed is None else needed - r.size,
        more_launches_if_same=None if if_same is None else if_same - r.size,
        method="none" if span is None else span.method,
        reason=reason,
    )


def _conclude(
    shift: float, span: Interval, margin: float, floor: float | None, *, lower_is_better: bool
) -> tuple[Outcome, str]:
    """Return the outcome for a shift with an interval, and why."""
    band, threshold = _limits(margin, floor)
    if -band <= span.low and span.high <= band:
        return Outcome.SAME, f"the interval lies within ±{100 * margin:g} %"
    if span.low <= 0 <= span.high:
        return Outcome.UNDECIDED, f"the interval reaches from no difference to beyond ±{100 * margin:g} %"
    if abs(shift) <= threshold:
        size = f"the difference {_percent(shift)}"
        if threshold > LEAST_DIFFERENCE:
            return Outcome.UNDECIDED, f"{size} is below the noise floor {_percent(threshold)}"
        return Outcome.UNDECIDED, f"{size} is below {_percent(threshold)}, the least that counts"
    outcome = Outcome.BETTER if (shift < 0) == lower_is_better else Outcome.WORSE
    where = "lower, and the whole interval lies below 1" if shift < 0 else "higher, and the whole interval lies above 1"
    return outcome, f"{_percent(shift)} {where}"


def _limits(margin: float, floor: float | None) -> tuple[float, float]:
    """Return the half width of the equivalence band and the shift above which a difference counts, as natural logs."""
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin: got {margin}, expected a fraction above 0, such as 0.05")
    if floor is not None and not (math.isfinite(floor) and floor >= 0):
        raise ValueError(f"floor: got {floor}, expected a natural log of 0 or more")
    return math.log1p(margin), max(floor or 0.0, LEAST_DIFFERENCE)


@functools.cache
def _half_widths() -> Floats:
    """Return t_.975 / sqrt(N) at index N up to `MOST_LAUNCHES`: the half width of an interval at spread 1."""
    return np.array([math.inf] * 2 + [t_quantile(0.975, n) / math.sqrt(n) for n in range(2, MOST_LAUNCHES + 1)])


def _percent(shift: float) -> str:
    """Return how far the ratio of a log shift is from 1: -0.0513 gives "5.0 %"."""
    return f"{100 * abs(_exp(shift) - 1):.1f} %"


def _exp(log: float) -> float:
    """Return e to the power of `log`; infinity where a float cannot hold it."""
    return math.exp(log) if log < 709 else math.inf
