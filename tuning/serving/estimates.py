"""A number with its 95 % interval, and what two of them together say. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuning.intervals import t_quantile
from tuning.stats import LEAST_DIFFERENCE, Outcome

_MOST_LOG = 700.0
"""Beyond it a float holds no more; numbers that a damaged file holds may come to that."""

_POWER = (statistics.NormalDist().inv_cdf(0.975) + statistics.NormalDist().inv_cdf(0.80)) / (
    statistics.NormalDist().inv_cdf(0.975)
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and the ends of its 95 % interval; None where nothing tells how far off it may be."""

    value: float
    low: float | None = None
    high: float | None = None

    def exp(self) -> Estimate:
        """The ratio of which this is the natural log."""
        low, high = (None if end is None else math.exp(min(end, _MOST_LOG)) for end in (self.low, self.high))
        return Estimate(value=math.exp(min(self.value, _MOST_LOG)), low=low, high=high)

    def log(self) -> Estimate:
        """The natural log of a positive one, whose lower end may have become 0 for want of digits."""
        low, high = (None if end is None else math.log(end) if end > 0 else -math.inf for end in (self.low, self.high))
        return Estimate(value=math.log(self.value), low=low, high=high)

    def minus(self, other: Estimate) -> Estimate:
        """The difference to an independent one.

        Its interval by the distances of the ends from their centres, put together as root of squares (MOVER: Zou and
        Donner 2008, doi:10.1002/sim.3095); it keeps intervals lopsided that are.
        """
        value = self.value - other.value
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Estimate(value=value)
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value=value, low=value - below, high=value + above)

    def plus(self, other: Estimate) -> Estimate:
        """The sum with an independent one; its interval as of `minus`."""
        return self.minus(other.times(-1))

    def times(self, factor: float) -> Estimate:
        """The number times one that is known; a negative one turns the interval over."""
        if self.low is None or self.high is None:
            return Estimate(value=self.value * factor)
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(value=self.value * factor, low=low, high=high)


def detectable(estimate: Estimate) -> float | None:
    """The smallest change of this number, as a fraction, that as much evidence would find 4 times in 5, at 5 %.

    exp((z_.975 + z_.80) / z_.975 x half the 95 % interval of its log) - 1; None where it has no interval.
    """
    log = estimate.log()
    if log.low is None or log.high is None or not math.isfinite(log.low):
        return None
    return math.expm1(min(_POWER * (log.high - log.low) / 2, _MOST_LOG))


def certain(value: float) -> Estimate:
    """A number that is known."""
    return Estimate(value=value, low=value, high=value)


def of_mean(values: Sequence[float]) -> Estimate:
    """The mean of independent values, at least one, with Student's t interval; one alone has none."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(value=mean)
    half = t_quantile(0.975, len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def conclude(log_ratio: Estimate, *, margin: float, floor: float | None, lower_is_better: bool) -> Outcome:
    """What a log ratio with its interval says, by the rules of `tuning.stats.judge`.

    Args:
        log_ratio: natural log of B over A.
        margin: equivalence margin, as a fraction.
        floor: noise floor, as a natural log.
        lower_is_better: the metric's direction.
    """
    low, high, band = log_ratio.low, log_ratio.high, math.log1p(margin)
    if low is None or high is None:
        return Outcome.UNDECIDED
    if -band <= low and high <= band:
        return Outcome.SAME
    if low <= 0 <= high or abs(log_ratio.value) <= max(floor or 0.0, LEAST_DIFFERENCE):
        return Outcome.UNDECIDED
    return Outcome.BETTER if (log_ratio.value < 0) == lower_is_better else Outcome.WORSE
