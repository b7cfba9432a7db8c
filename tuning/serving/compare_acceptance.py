"""Holds the acceptance of one arm against another's at one number of requests. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from tuning.serving import acceptance
from tuning.serving.comparison import Acceptance
from tuning.serving.estimates import Estimate, certain, conclude, detectable
from tuning.serving.sides import ServingSide, accept_length
from tuning.stats import Outcome


def compare_acceptance(a: ServingSide, b: ServingSide, concurrency: int, *, why_not: str) -> Acceptance:
    """B's accept length and A's, paired by prompt where requests tell their verify passes.

    Args:
        a, b: the two arms.
        concurrency: requests at once.
        why_not: why the two must not be judged; "" where they may.
    """
    found = _described(a, b, concurrency)
    ratio = found.ratio
    if _is_given(a) and _is_given(b):
        return replace(found, ratio=certain(ratio.value) if ratio else None)
    mde = detectable(ratio) if ratio else None
    if (b.spec.speculation is None) is not (a.spec.speculation is None):
        return replace(found, mde=mde)
    return replace(found, mde=mde, outcome=_outcome(ratio, margin=a.run.header.plan.margin, why_not=why_not))


def _described(a: ServingSide, b: ServingSide, concurrency: int) -> Acceptance:
    """Without an outcome."""
    sides = (a, b)
    requests = [side.requests(concurrency) for side in sides]
    counts = [
        acceptance.by_prompt(own, speculative=side.spec.speculation is not None)
        for side, own in zip(sides, requests, strict=True)
    ]
    if not counts[0] or not counts[1]:
        own, other = (_not_by_prompt(side, concurrency) for side in sides)
        ratio = other.log().minus(own.log()).exp() if own and other else None
        return Acceptance(a=own, b=other, ratio=ratio, outcome=None, prompts=0)
    return Acceptance(
        a=_given(a, acceptance.accept_length(counts[0])),
        b=_given(b, acceptance.accept_length(counts[1])),
        ratio=acceptance.accept_ratio(counts[0], counts[1]),
        outcome=None,
        prompts=len(counts[0].keys() & counts[1].keys()),
        categories=acceptance.by_category(counts[0], counts[1], requests[0]),
        positions=(acceptance.positions(requests[0]), acceptance.positions(requests[1])),
    )


def _not_by_prompt(side: ServingSide, concurrency: int) -> Estimate | None:
    """The passes' accept lengths, where requests do not tell their verify passes: without an interval, since starts
    are no evidence on acceptance.
    """
    logs = [math.log(accept_length(trial)) for trial in side.trials(concurrency).values()]
    if not logs:
        return None
    if side.spec.speculation is None:
        return certain(1.0)
    return _given(side, Estimate(value=math.exp(statistics.fmean(logs))))


def _outcome(ratio: Estimate | None, *, margin: float, why_not: str) -> Outcome:
    if why_not:
        return Outcome.NOT_COMPARABLE
    if ratio is None:
        return Outcome.UNDECIDED
    return conclude(ratio.log(), margin=margin, floor=None, lower_is_better=False)


def _is_given(side: ServingSide) -> bool:
    """Whether its acceptance is part of what was asked for: a step without speculation gives a token, and a simulated
    accept length is what the user says.
    """
    return side.spec.speculation is None or side.spec.accept_length > 0


def _given(side: ServingSide, accepted: Estimate | None) -> Estimate | None:
    """An accept length as it came out, without an interval around one that was given."""
    return certain(accepted.value) if accepted and _is_given(side) else accepted
