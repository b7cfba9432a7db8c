"""How long the target's pass over so many rows takes, from servers without speculation. Pure.

A server that decodes n requests without speculation passes n rows through the target, as a verify pass of n rows does.
So its step is that pass, by the first of these that tells:

    measured        the step at as many requests as the pass has rows
    between         a straight line over rows, where fewer and more requests were measured
    allreduce run   the step at m requests, the most measured below, + N (a(rows) - a(m)): only allreduces grow
    as at           the step at m requests, on one GPU, which has no allreduces
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuning.runfile import Run
from tuning.serving.allreduce_times import NotToldError, allreduce_times
from tuning.serving.estimates import Estimate, of_mean
from tuning.serving.plan import MOST_CONCURRENCY
from tuning.serving.request import BASELINE, PROBE
from tuning.serving.sides import ServingSide, step_ms

Steps = Mapping[int, Estimate]
"""Step time without speculation, ms, by number of requests."""
LEAST_STEP_MS = 1e-6
"""No step is as short; numbers of a damaged file are left out before ratios of them overflow."""
_DENSE = "right for a dense model, too little for one with experts"


class UntoldError(Exception):
    """What was measured does not tell a part of a step; the message says why, and what to measure."""


@dataclass(frozen=True, kw_only=True)
class TargetPass:
    """The target's pass.

    Attributes:
        ms: its time.
        source: what tells it, in a few words.
        assumption: what was supposed for it, a sentence; "" where it was measured.
    """

    ms: Estimate
    source: str
    assumption: str = ""


def step_of(side: ServingSide, requests: int) -> Estimate | None:
    """Mean over starts of an arm's step time, ms; None where it has no numbers."""
    steps = [step_ms(trial) for trial in side.trials(requests).values()]
    return of_mean(steps) if steps and min(steps) >= LEAST_STEP_MS else None


def steps_without(side: ServingSide) -> dict[int, Estimate]:
    """Steps without speculation of this arm's backend and environment: its baseline's, else its probe's."""
    others = (side.sibling(kind) for kind in (PROBE, BASELINE))
    plain = [other for other in others if other and other.spec.speculation is None]
    return {n: step for other in plain for n in other.concurrencies if (step := step_of(other, n))}


def target_pass(steps: Steps, rows: int, side: ServingSide, allreduce_run: Run | None) -> TargetPass:
    """The pass over so many rows on this arm's server.

    Args:
        steps: as `steps_without` has them.
        rows: of all requests together.
        side: any arm of that backend and environment.
        allreduce_run: of the same node.

    Raises:
        UntoldError: nothing tells.
    """
    if rows in steps:
        return TargetPass(ms=steps[rows], source=f"measured at {rows}")
    below, above = max((n for n in steps if n < rows), default=0), min((n for n in steps if n > rows), default=0)
    if not below:
        least = f"is measured from {above} requests on" if above else "has no numbers"
        raise UntoldError(f"a pass of {rows} rows: the baseline {least}; {_measure(rows)}")
    if above:
        share = (rows - below) / (above - below)
        return TargetPass(
            ms=steps[below].times(1 - share).plus(steps[above].times(share)),
            source=f"between {below} and {above}",
            assumption="between two measured numbers of requests a pass follows a straight line over rows",
        )
    if side.spec.tensor_parallel == 1:
        return TargetPass(
            ms=steps[below],
            source=f"as at {below}",
            assumption=f"beyond the requests measured more rows cost nothing (one GPU, no allreduces): {_DENSE}",
        )
    return _grown(steps, below, rows, side, allreduce_run)


def _grown(steps: Steps, below: int, rows: int, side: ServingSide, run: Run | None) -> TargetPass:
    lacking = f"a pass of {rows} rows, and {below} are the most requests measured without speculation"
    if run is None:
        raise UntoldError(f"{lacking}; {_measure(rows)}, or name a bench-allreduce run of that node with --run")
    try:
        times = allreduce_times(run, side)
        more = times.pass_ms(rows).minus(times.pass_ms(below))
    except NotToldError as why:
        raise UntoldError(f"{lacking}, and {why}; {_measure(rows)}") from why
    return TargetPass(
        ms=steps[below].plus(more),
        source=f"{below} + allreduce run",
        assumption=f"beyond the requests measured only allreduces grow with rows, by {times.source}: {_DENSE}",
    )


def _measure(rows: int) -> str:
    if rows > MOST_CONCURRENCY:
        return f"bench-speculative measures {MOST_CONCURRENCY} requests at most"
    return f"measure the baseline with --concurrency {rows}"
