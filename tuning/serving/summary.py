"""A run of servers in short: per arm and load step time, acceptance and speed, and what weakens them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuning.serving.records import ServingTrial
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide, accept_length, known_middle, step_ms, tokens_per_second
from tuning.stats import minimum_detectable_effect

Trials = Mapping[int, ServingTrial]
"""By repetition."""
APART = 0.02
"""Between starts, above which they are told apart where the passes within each agree."""
_TIMES_APART = 5
"""So many times as far apart as passes within a start: the start decides."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One arm at one concurrency in one environment, over its starts.

    Attributes:
        environment, arm, concurrency: which.
        starts: starts that gave numbers.
        step_ms: median over starts of the mean step time.
        accept_length: tokens a step and request, mean over starts.
        tokens_per_second: median over starts.
        spread: relative standard deviation of tokens a second over starts; None below two.
        source: where the numbers are from.
        speed_up: tokens a second over the baseline's of the same backend and environment; None without.
        detectable: the smallest difference of step time from that baseline that as many starts would find 4 times in 5,
            as a fraction; None below two pairs.
        ttft_ms, tpot_ms: medians over all requests; None where unknown.
        itl_p50_ms, itl_p99_ms: of the time between chunks, medians over passes; None where unknown.
    """

    environment: str
    arm: str
    concurrency: int
    starts: int
    step_ms: float
    accept_length: float
    tokens_per_second: float
    spread: float | None
    source: str
    speed_up: float | None
    detectable: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None


def rows(run: ServingRun) -> list[Row]:
    """A row for everything that has numbers, in the order of the plan."""
    plan = run.header.plan
    sides = [ServingSide(environment=env.name, arm=arm.name, run=run) for env in plan.environments for arm in plan.arms]
    return [
        _row(own, side.baseline.trials(concurrency) if side.baseline and side.baseline.arm != side.arm else {})
        for side in sides
        for concurrency in plan.arm(side.arm).concurrencies
        if (own := side.trials(concurrency))
    ]


def _row(trials: Trials, baseline: Trials) -> Row:
    own = list(trials.values())
    speeds, theirs = [tokens_per_second(trial) for trial in own], [*map(tokens_per_second, baseline.values())]
    speed = statistics.median(speeds)
    passes = [done for trial in own for done in trial.passes]
    requests = [request for done in passes for request in done.requests]
    return Row(
        environment=own[0].environment,
        arm=own[0].arm,
        concurrency=own[0].concurrency,
        starts=len(own),
        step_ms=statistics.median(map(step_ms, own)),
        accept_length=statistics.fmean(map(accept_length, own)),
        tokens_per_second=speed,
        spread=statistics.stdev(speeds) / statistics.fmean(speeds) if len(speeds) > 1 else None,
        source=", ".join(dict.fromkeys(done.source for done in passes)),
        speed_up=speed / statistics.median(theirs) if theirs else None,
        detectable=_detectable(trials, baseline),
        ttft_ms=known_middle(request.ttft_ms for request in requests),
        tpot_ms=known_middle(request.tpot_ms for request in requests),
        itl_p50_ms=known_middle(done.itl_p50_ms for done in passes),
        itl_p99_ms=known_middle(done.itl_p99_ms for done in passes),
    )


def _detectable(own: Trials, baseline: Trials) -> float | None:
    """Of the pairs of starts of the same repetition."""
    logs = [math.log(step_ms(own[r]) / step_ms(baseline[r])) for r in sorted(own.keys() & baseline.keys())]
    try:
        return minimum_detectable_effect(logs)
    except ModuleNotFoundError:  # scipy, which is not carried to machines that only measure
        return None


def findings(run: ServingRun) -> Iterator[str]:
    """What weakens the numbers: of single starts, and that the start decides."""
    for start in run.starts.values():
        for finding in start.findings:
            yield f"{start.environment} {start.arm} start {start.repetition + 1}: {finding}"
    for row in rows(run):
        side = ServingSide(environment=row.environment, arm=row.arm, run=run)
        if told := _apart([*side.trials(row.concurrency).values()]):
            yield f"{row.environment} {row.arm} at {row.concurrency}: {told}"


def _apart(trials: Sequence[ServingTrial]) -> str:
    """That starts differ by far more than passes within a start, or ""."""
    times = [step_ms(trial) for trial in trials]
    repeated = [_ratio([done.step_ms for done in trial.passes]) for trial in trials if len(trial.passes) > 1]
    if not repeated or len(times) < 2:  # one pass agrees with none
        return ""
    within, between = max(repeated) - 1, _ratio(times) - 1
    if between < max(APART, _TIMES_APART * within):
        return ""
    listed = ", ".join(f"{ms:.4g}" for ms in times)
    return f"the start decides: {listed} ms, while passes of one start lie within {within:.1%}"


def _ratio(times: Sequence[float]) -> float:
    return max(times) / min(times)
