"""Whether speculation pays: break-even, speed-up, and where along the number of requests that changes. Pure.

At one number of requests the speed-up is tau / (T_s / T_b): accept length over the ratio of step times with and without
speculation (docs/speculation-model.md). That ratio is the break-even accept length: what tau has to exceed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tuning.serving.estimates import Estimate, conclude
from tuning.stats import Outcome


@dataclass(frozen=True, kw_only=True)
class Pays:
    """At one number of requests.

    Attributes:
        break_even: accept length that a step has to give.
        accept: accept length that it gives, over prompts such as these.
        speed_up: tokens per second over those of the baseline, over prompts such as these.
        outcome: better: it pays; worse: it does not; same: it makes no difference that counts; not comparable: of two
            run files, which are described only.
    """

    break_even: Estimate
    accept: Estimate
    speed_up: Estimate
    outcome: Outcome

    @property
    def verdict(self) -> str:
        """In words."""
        return {
            Outcome.BETTER: "pays",
            Outcome.WORSE: "does not pay",
            Outcome.SAME: "no difference",
            Outcome.NOT_COMPARABLE: "not comparable",
        }.get(self.outcome, "undecided")


def pays(step_ratio: Estimate, accept: Estimate, *, margin: float, floor: float | None) -> Pays:
    """Hold an accept length against the ratio of step times, which are independent: starts give one, prompts the other.

    Args:
        step_ratio: step time with speculation over that without.
        accept: accept length.
        margin: equivalence margin, as a fraction.
        floor: noise floor, as a natural log.
    """
    speed_up = accept.log().minus(step_ratio.log())
    return Pays(
        break_even=step_ratio,
        accept=accept,
        speed_up=speed_up.exp(),
        outcome=conclude(speed_up, margin=margin, floor=floor, lower_is_better=False),
    )


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Between two numbers of requests at which the answer is known, it changes.

    Attributes:
        low, high: those numbers.
        at: where the speed-up is 1 by a straight line of its log over the log of the number of requests.
        stops: whether it pays at `low` and not at `high`, or the other way round.
    """

    low: int
    high: int
    at: float
    stops: bool


def crossings(points: Sequence[tuple[int, Pays]]) -> tuple[Crossing, ...]:
    """Every change between paying and not paying, by rising number of requests; undecided ones in between widen it."""
    decided = [(n, found) for n, found in points if found.outcome in (Outcome.BETTER, Outcome.WORSE)]
    return tuple(
        Crossing(
            low=low,
            high=high,
            at=_zero([(n, found.speed_up.value) for n, found in points if low <= n <= high]),
            stops=before.outcome is Outcome.BETTER,
        )
        for (low, before), (high, after) in pairwise(decided)
        if before.outcome is not after.outcome
    )


def _zero(points: Sequence[tuple[int, float]]) -> float:
    """Where the speed-up first passes 1 from the side on which it begins; it ends on the other."""
    logs = [(math.log(n), math.log(speed_up)) for n, speed_up in points]
    for (x1, y1), (x2, y2) in pairwise(logs):
        if y1 * y2 <= 0 and y1 != y2:
            return math.exp(x1 + (x2 - x1) * y1 / (y1 - y2))
    raise AssertionError("the two ends lie on different sides of 1")
