"""What drafting, and all else that only speculation does, takes of a step: from another run, or as published. Pure.

With another run of servers, and a draft of one layer:

    D = T_s - pass(rows)            there, at the same steps, topk and draft tokens, or on a line over steps
      + 3 k (a_here - a_there)      where number of GPUs or backend differ, and an allreduce run tells both

Without: D = k d, with d as published hosts have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tuning.runfile import Run
from tuning.serving.allreduce_times import NotToldError, allreduce_times
from tuning.serving.estimates import Estimate, certain
from tuning.serving.forecast_pass import UntoldError, step_of, steps_without, target_pass
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide
from tuning.serving.spec import Speculation
from tuning.speculation_calibration import fitted_spans
from tuning.speculation_request import DRAFT_MARGIN

DRAFT_CALLS = 3
"""Allreduces of one forward of a draft of one layer: 2 of the layer, 1 of the embedding.

Profiled with SGLang 0.5.12 on two H200 (EAGLE-3; docs/runs/h200x2-speculative.jsonl): 123 allreduces a step without
speculation, 129 with two forwards, 132 with three.
"""


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """Drafting of one step.

    Attributes:
        ms: its time.
        source: what tells it, in a few words.
        extrapolated: whether it lies beyond the numbers of steps that were measured.
        assumptions: each a sentence.
    """

    ms: Estimate
    source: str
    extrapolated: bool = False
    assumptions: tuple[str, ...] = ()


def published_drafting(steps: int) -> Drafting:
    """As published hosts need it: the middle of what was fitted, within the margin of `predict-speculation`."""
    _, each = fitted_spans()
    told = (
        f"drafting takes {each.low:.2f} to {each.high:.2f} ms a draft, as on published hosts of 8 GPUs with their "
        f"allreduces; ranges: within a factor of {DRAFT_MARGIN:g} (--drafting RUN takes it from servers)"
    )
    return Drafting(
        ms=Estimate(
            value=steps * (each.low + each.high) / 2,
            low=steps * each.low / DRAFT_MARGIN,
            high=steps * each.high * DRAFT_MARGIN,
        ),
        source="published",
        assumptions=(told,),
    )


def drafting_from(
    other: ServingRun, here: ServingSide, wanted: Speculation, requests: int, allreduce_run: Run | None
) -> Drafting:
    """Drafting as another run of servers measured it.

    Args:
        other: that run, of which `speculative_arms` finds some.
        here: an arm of the backend that is predicted.
        wanted: the speculation that is predicted.
        requests: number of requests at once; where the other run has others, the nearest.
        allreduce_run: of the node that is predicted.

    Raises:
        UntoldError: it does not tell.
    """
    arms = _arms_like(other, here)
    exact = [arm for arm in arms if _speculation(arm).label == wanted.label]
    found = _drafted(exact[0], requests, allreduce_run) if exact else _on_line(arms, wanted, requests, allreduce_run)
    there = arms[0]
    more, said = _allreduces_beyond(here, there, wanted, requests, allreduce_run)
    servers = f"{there.environment}:{there.backend}, {_speculation(there).algorithm}"
    about = f"drafting costs what it does in {other.path.name} ({servers}); ranges hold no difference between machines"
    ms = found.ms.plus(more) if more else found.ms
    return replace(found, ms=ms, assumptions=(about, *found.assumptions, *said))


def speculative_arms(run: ServingRun) -> list[ServingSide]:
    """Arms of a run that speculate and have numbers."""
    plan = run.header.plan
    sides = [ServingSide(environment=env.name, arm=arm.name, run=run) for env in plan.environments for arm in plan.arms]
    return [side for side in sides if side.spec.speculation and any(map(side.trials, side.concurrencies))]


def _arms_like(other: ServingRun, here: ServingSide) -> list[ServingSide]:
    """The other run's speculative arms of this environment and backend, or of its first where it has no such."""
    found = speculative_arms(other)
    environments = [side.environment for side in found]
    environment = here.environment if here.environment in environments else environments[0]
    found = [side for side in found if side.environment == environment]
    backends = [side.backend for side in found]
    backend = here.backend if here.backend in backends else backends[0]
    return [side for side in found if side.backend == backend]


def _speculation(side: ServingSide) -> Speculation:
    if side.spec.speculation is None:
        raise ValueError(f"{side.label} does not speculate")
    return side.spec.speculation


def _drafted(arm: ServingSide, requests: int, run: Run | None) -> Drafting:
    """Step less pass of one arm, at that number of requests or the nearest that tells."""
    steps, reasons = steps_without(arm), []
    for number in sorted(arm.concurrencies, key=lambda n: (abs(n - requests), n)):
        step = step_of(arm, number)
        if step is None:
            continue
        try:
            target = target_pass(steps, number * arm.rows, arm, run)
        except UntoldError as why:
            reasons.append(str(why))
            continue
        label, name = _speculation(arm).label, arm.run.path.name
        said = [f"of {name}, for drafting: {target.assumption}"] if target.assumption else []
        if number != requests:
            said.append(f"drafting of {requests} at once is taken from {number} at once")
        return Drafting(ms=step.minus(target.ms), source=f"{label} at {number}", assumptions=tuple(said))
    raise UntoldError(f"drafting of {arm.run.path.name} {arm.label}: {reasons[0] if reasons else 'no numbers'}")


def _on_line(arms: Sequence[ServingSide], wanted: Speculation, requests: int, run: Run | None) -> Drafting:
    """By a straight line over numbers of steps with this topk."""
    points = dict(_points(arms, wanted.topk, requests, run))
    steps = sorted(points)
    if len(steps) < 2:
        raise UntoldError(
            f"drafting of {wanted.label}: {arms[0].run.path.name} tells it of {len(steps)} other numbers of steps with "
            f"topk {wanted.topk}, and a line needs two; measure {wanted.label} there"
        )
    right = min(max(bisect_left(steps, wanted.steps), 1), len(steps) - 1)
    low, high = steps[right - 1], steps[right]
    share = (wanted.steps - low) / (high - low)
    before, after = points[low], points[high]
    return Drafting(
        ms=before.ms.times(1 - share).plus(after.ms.times(share)),
        source=f"steps {low} and {high}",
        extrapolated=not low <= wanted.steps <= high,
        assumptions=(
            f"drafting of {wanted.label} follows a straight line over steps through {before.source} and {after.source}",
            *before.assumptions,
            *after.assumptions,
        ),
    )


def _points(arms: Sequence[ServingSide], topk: int, requests: int, run: Run | None) -> Iterator[tuple[int, Drafting]]:
    for arm in arms:
        if _speculation(arm).topk == topk:
            try:
                yield _speculation(arm).steps, _drafted(arm, requests, run)
            except UntoldError:
                continue


def _allreduces_beyond(
    here: ServingSide, there: ServingSide, wanted: Speculation, requests: int, run: Run | None
) -> tuple[Estimate | None, tuple[str, ...]]:
    """What drafting's own allreduces take here beyond there, and what is said of it."""
    gpus = [side.spec.tensor_parallel for side in (here, there)]
    if gpus == [1, 1]:
        return None, ()
    if gpus[0] == gpus[1] and here.backend == there.backend:
        return None, (f"drafting's own allreduces are taken to be those of {there.run.path.name}",)
    try:
        more = _draft_allreduces(here, wanted, requests, run).minus(_draft_allreduces(there, wanted, requests, run))
    except NotToldError as why:
        on = "one GPU, which has none" if gpus[1] == 1 else f"{there.backend} on {gpus[1]} GPUs"
        told = f"drafting's own allreduces over {here.backend} are not counted beyond those of {on}: {why}"
        return None, (told,)
    told = (
        f"drafting's own allreduces: {DRAFT_CALLS} a forward (a draft of one layer), of one row a request, by the "
        "allreduce run; its all-gathers and the rest are taken as they were there"
    )
    return more, (told,)


def _draft_allreduces(side: ServingSide, wanted: Speculation, requests: int, run: Run | None) -> Estimate:
    """All of one step, ms: a forward a draft step, whose rows are one a request."""
    if side.spec.tensor_parallel == 1:
        return certain(0)
    if wanted.topk > 1:
        raise NotToldError(f"with topk {wanted.topk} the rows of a draft's forwards are not known")
    if run is None:
        raise NotToldError("no allreduce run is named with --run")
    times = allreduce_times(run, side)
    return times.pass_ms(requests).times(DRAFT_CALLS * wanted.steps / times.calls)
