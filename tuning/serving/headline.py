"""The verdict of a comparison of servers in one line. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tuning.serving.comparison import Comparison, Row
from tuning.serving.pays import Crossing, verdict
from tuning.stats import Judgement, Outcome

_UNSETTLED = (Outcome.UNDECIDED, Outcome.NOT_COMPARABLE)
WOULD: Mapping[Outcome, str] = {Outcome.BETTER: "would pay", Outcome.WORSE: "would not pay"}
"""Where acceptance is simulated: what would be with a draft model that accepts so much."""
_ENOUGH_TO_PLAN = 5
"""Starts from which their spread is known well enough to say how many more it takes."""


def headline(comparison: Comparison) -> str:
    """The verdict in one line."""
    kind = "A/A, both are the same thing here: " if comparison.is_a_a else ""
    pair = f"{kind}{comparison.b.label} against {comparison.a.label}: "
    if comparison.against_baseline:
        return pair + "; ".join(
            [
                *_verdicts(comparison),
                *(crossing_text(one, comparison) for one in comparison.crossings),
                *_over_all(comparison),
            ]
        )
    overall = comparison.overall
    metric = "step time" if comparison.metric == "step_ms" else "tokens per second"
    change = "" if overall.ratio is None else f", {(overall.ratio - 1):+.1%}{_range(overall)}"
    return f"{pair}{metric} {overall.outcome}{change}{_because(comparison)}{_acceptance_text(comparison)}"


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """Whether speculation pays, at which numbers of requests; and why where that is not known."""
    verdicts: dict[Outcome, list[Row]] = {}
    for row in comparison.rows:
        verdicts.setdefault(row.speed.outcome, []).append(row)
    for outcome, rows in verdicts.items():
        reasons = dict.fromkeys(row.speed.reason for row in rows) if outcome in _UNSETTLED else {}
        why = f" ({'; '.join(reasons)})" if reasons else ""
        yield f"{verdict_text(comparison, outcome)} at {listed([row.concurrency for row in rows])}{why}"


def _over_all(comparison: Comparison) -> Iterator[str]:
    """The answer over all numbers of requests, where theirs are not that one."""
    overall = comparison.overall.outcome
    if {row.speed.outcome for row in comparison.rows} != {overall}:
        yield f"over all of these: {verdict_text(comparison, overall)}"


def verdict_text(comparison: Comparison, outcome: Outcome) -> str:
    """What an outcome of speculation against its baseline is called, which is no fact where acceptance is simulated."""
    simulated = comparison.b.spec.accept_length
    if simulated and outcome in WOULD:
        return f"{WOULD[outcome]} at an accept length of {simulated:g} (simulated)"
    return verdict(outcome)


def crossing_text(crossing: Crossing, comparison: Comparison) -> str:
    """Where speculation stops, or begins, paying; or would with a draft model that accepts what is simulated."""
    simulated = comparison.b.spec.accept_length
    verb = ("would stop" if crossing.stops else "would begin") if simulated else "stops" if crossing.stops else "begins"
    return f"{verb} paying between {crossing.low} and {crossing.high} requests (at about {crossing.at:.1f})"


def listed(numbers: Sequence[int]) -> str:
    """Numbers of requests, for people."""
    return f"{', '.join(map(str, numbers))} request{'' if list(numbers) == [1] else 's'}"


def _range(judgement: Judgement) -> str:
    if judgement.ci_low is None or judgement.ci_high is None:
        return ""
    return f" (95 %: {judgement.ci_low - 1:+.1%} to {judgement.ci_high - 1:+.1%})"


def _because(comparison: Comparison) -> str:
    """Why; and how many starts would settle it, where starts are all that decides."""
    judgement = comparison.overall
    if judgement.outcome in (Outcome.BETTER, Outcome.WORSE):
        return ""
    if judgement.outcome is not Outcome.UNDECIDED or judgement.n < 2 or comparison.metric != "step_ms":
        return f"; {judgement.reason}"
    more = judgement.more_launches or judgement.more_launches_if_same
    if judgement.n < _ENOUGH_TO_PLAN or more is None:
        return f"; {judgement.reason}; try --starts {max(_ENOUGH_TO_PLAN, 2 * judgement.n)}"
    return f"; {judgement.reason}; a run with --starts {judgement.n + more} should settle it"


def _acceptance_text(comparison: Comparison) -> str:
    """What acceptance does beside step time, where both speculate."""
    if comparison.metric != "step_ms" or not comparison.b.spec.speculation:
        return ""
    found = dict.fromkeys(str(row.acceptance.outcome) for row in comparison.rows if row.acceptance.outcome)
    return f"; acceptance {' or '.join(found)}" if found else ""
