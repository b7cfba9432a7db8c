"""Whether speculation pays: break-even, speed-up, and where along the number of requests that changes. Pure.

At one number of requests the speed-up is tau / (T_s / T_b): accept length over the ratio of step times with and without
speculation (docs/speculation-model.md). That ratio is the break-even accept length: what tau has to exceed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuning.serving.estimates import Estimate, conclude
from tuning.stats import LEAST_DIFFERENCE, Judgement, Outcome

NOT_BY_PROMPT = "nothing tells acceptance by prompt: the server counts no verify passes of single requests"
ONE_PROMPT = "one prompt alone does not tell how far acceptance varies; send more with --requests"
"""Why acceptance has no interval."""


@dataclass(frozen=True, kw_only=True)
class Pays:
    """At one number of requests.

    Attributes:
        break_even: accept length that a step has to give.
        accept: accept length that it gives, over prompts such as these.
        speed_up: tokens per second over those of the baseline, over prompts such as these.
        outcome: better: it pays; worse: it does not; same: it makes no difference that counts; not comparable: of two
            run files, which are described only.
        reason: why that is the outcome.
    """

    break_even: Estimate
    accept: Estimate
    speed_up: Estimate
    outcome: Outcome
    reason: str

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict(self.outcome)


def verdict(outcome: Outcome) -> str:
    """What an outcome of speculation against its baseline is called."""
    return {
        Outcome.BETTER: "pays",
        Outcome.WORSE: "does not pay",
        Outcome.SAME: "no difference",
    }.get(outcome, str(outcome))


def judge_speed(
    step: Judgement,
    accept: Estimate | None,
    *,
    margin: float,
    names: tuple[str, str],
    no_interval: str,
) -> Judgement:
    """Tokens per second of B over A's: acceptance over step time, which are independent: prompts give one, starts the
    other. Pairs and noise floor are those of the step time; more of them say nothing of acceptance, and so nothing is
    said of how many would settle it.

    Args:
        step: step time of B over A's, over starts.
        accept: tokens a step of B over A's, over prompts; None where nothing is known of it.
        margin: equivalence margin, as a fraction.
        names: what acceptance and the ratio of step times are called in a reason.
        no_interval: why acceptance has no interval, where it has none.
    """
    unknown = replace(
        step, outcome=Outcome.UNDECIDED, ratio=None, ci_low=None, ci_high=None, mde=None, more_launches=None,
        more_launches_if_same=None, method="none",
    )  # fmt: skip
    if not step.ratio:
        return unknown
    if accept is None:
        return replace(unknown, reason=f"no {names[0]} is known")
    ratio = step_ratio(step, step.ratio)
    log = accept.log().minus(ratio.log())
    floor, speed = None if step.floor is None else math.log1p(step.floor), log.exp()
    if speed.low is None:
        return replace(unknown, ratio=speed.value, reason=step.reason if step.ci_low is None else no_interval)
    outcome = conclude(log, margin=margin, floor=floor, lower_is_better=False)
    reason = _why_open(speed, (accept, ratio), names, floor) if outcome is Outcome.UNDECIDED else _why(outcome, speed)
    return replace(
        unknown, outcome=outcome, ratio=speed.value, ci_low=speed.low, ci_high=speed.high, method=step.method,
        reason=reason,
    )  # fmt: skip


def step_ratio(step: Judgement, value: float) -> Estimate:
    """A ratio of step times with the interval that a judgement has."""
    return Estimate(value=value, low=step.ci_low, high=step.ci_high)


def _why(outcome: Outcome, speed: Estimate) -> str:
    """Why a speed is judged better, worse or the same."""
    if outcome is Outcome.SAME:
        return "the whole interval lies within the margin"
    above = outcome is Outcome.BETTER
    where = "higher, and the whole interval lies above 1" if above else "lower, and the whole interval lies below 1"
    return f"{_percent(speed.value - 1)} {where}"


def _why_open(speed: Estimate, made_of: tuple[Estimate, Estimate], names: tuple[str, str], floor: float | None) -> str:
    """Why nothing is concluded of a speed, which is made of acceptance and a ratio of step times; with advice."""
    if speed.low is None or speed.high is None or speed.low <= 1 <= speed.high:
        (wide, its_name), (other, other_name) = sorted(
            zip(made_of, names, strict=True), key=lambda one: _width(one[0]), reverse=True
        )
        advice = f"more {'prompts' if its_name == names[0] else '--starts'} would tell"
        if wide.low is not None and wide.high is not None and wide.low <= other.value <= wide.high:
            holds = f"the {its_name}, {wide.low:.3f} to {wide.high:.3f}, holds the {other_name} {other.value:.3f}"
            return f"{holds}, and {advice}"
        return f"the intervals of {names[0]} and {names[1]} lie too near each other, and {advice}"
    least = max(floor or 0.0, LEAST_DIFFERENCE)
    size = f"the difference {_percent(speed.value - 1)} is below"
    if least > LEAST_DIFFERENCE:
        return f"{size} the noise floor {_percent(math.expm1(least))}"
    return f"{size} {_percent(math.expm1(least))}, the least that counts"


def _percent(change: float) -> str:
    return f"{100 * abs(change):.1f} %"


def _width(estimate: Estimate) -> float:
    """Of its interval, as a natural log."""
    log = estimate.log()
    return 0.0 if log.low is None or log.high is None else log.high - log.low


def pays(speed: Judgement, accept: Estimate, break_even: Estimate) -> Pays:
    """What a speed against the baseline says of an accept length and its break-even.

    Args:
        speed: tokens per second over those of the baseline.
        accept: accept length.
        break_even: step time with speculation over that without.
    """
    known = speed.ratio if speed.ratio is not None else accept.value / break_even.value
    return Pays(
        break_even=break_even,
        accept=accept,
        speed_up=Estimate(value=known, low=speed.ci_low, high=speed.ci_high),
        outcome=speed.outcome,
        reason=speed.reason,
    )


def mean_acceptance(found: Sequence[Estimate | None]) -> Estimate | None:
    """The geometric mean of acceptance at several numbers of requests; None where one is unknown.

    They are of the same prompts, so that their errors go together: the ends of the interval are the means of theirs,
    which holds however closely they go together.
    """
    logs = [one.log() for one in found if one is not None]
    if len(logs) < len(found) or not logs:
        return None
    lows, highs = [log.low for log in logs if log.low is not None], [log.high for log in logs if log.high is not None]
    value = statistics.fmean(log.value for log in logs)
    if len(lows) < len(logs) or len(highs) < len(logs):
        return Estimate(value=value).exp()
    return Estimate(value=value, low=statistics.fmean(lows), high=statistics.fmean(highs)).exp()


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
