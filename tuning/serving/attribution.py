"""Where the difference of step time between two arms comes from: what each source tells, and what nothing tells. Pure.

    T = N a(rows) + C(rows) + D        N allreduces of the target's pass, everything else of it, drafting and the rest

A source gives a split, whose parts add up to the whole difference:

- the probe (a server without speculation that decodes as many requests as a verify pass has rows) holds N a + C of
  those rows; what a verify step takes beyond it is drafting and whatever only speculation does;
- an allreduce run of the same node holds a at the sizes of both passes; with the probe it parts N a from C;
- a profile holds the kernels of a step: those that reduce (the draft's too, and the skew between ranks), all others,
  and the time in which none ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tuning.runfile import Run
from tuning.serving.allreduce_times import NotToldError, allreduce_times
from tuning.serving.estimates import Estimate, of_mean
from tuning.serving.plan import MOST_CONCURRENCY
from tuning.serving.profile import Profile, parse_profile
from tuning.serving.request import PROBE
from tuning.serving.sides import ServingSide, step_ms

_ALLREDUCE, _COMPUTE = "allreduces of the target's pass", "everything else of the target's pass"
_DRAFT, _REST = "drafting and what only speculation does", "everything else, drafting included"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one cause adds to a step, B beyond A, ms; negative where B spends less on it."""

    cause: str
    ms: Estimate


@dataclass(frozen=True, kw_only=True)
class Split:
    """One source's parts; they add up to the whole difference."""

    source: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The difference of step time between two arms at one number of requests.

    Attributes:
        concurrency: that number.
        difference: B's step time less A's, ms, over pairs of starts.
        splits: what it is made of, a split for each source that tells.
        missing: what is not told, and what to measure for it.
    """

    concurrency: int
    difference: Estimate
    splits: tuple[Split, ...]
    missing: tuple[str, ...]


_NOT_TOLD = "drafting is not told from the target's pass"
NO_PROBE = f"{_NOT_TOLD}: measure with --probe, or at as many requests as the pass has rows"
"""What is said of a run without a probe where nothing tells how long the target's pass takes."""
ONE_GPU = "the allreduce run does not count: one GPU has no allreduces"


def attribute(a: ServingSide, b: ServingSide, concurrency: int, allreduce_run: Run | None = None) -> Attribution | None:
    """Split the difference of step time of B and A by all sources there are; None where a side has no numbers."""
    measured = [_steps(side, concurrency) for side in (a, b)]
    targets = [_target(side, concurrency) for side in (a, b)]
    complete = set.intersection(*map(set, measured))
    speculates = any(side.spec.speculation for side in (a, b))
    by_probe = complete.intersection(*targets) if speculates else set()
    repetitions = sorted(by_probe or complete)
    if not repetitions:
        return None
    difference = of_mean([measured[1][r] - measured[0][r] for r in repetitions])
    probed = beyond = None
    if by_probe:
        probed = of_mean([targets[1][r] - targets[0][r] for r in repetitions])
        rest = [{r: steps[r] - target[r] for r in repetitions} for steps, target in zip(measured, targets, strict=True)]
        beyond = of_mean([rest[1][r] - rest[0][r] for r in repetitions])
    several = max(a.spec.tensor_parallel, b.spec.tensor_parallel) > 1
    reduced, why_not = _reduced(a, b, concurrency, allreduce_run) if several else (None, "")
    splits = (
        *_by_target(difference, reduced, probed, beyond, rest=_REST if speculates else _COMPUTE),
        *_by_profile(difference, _profile(a, concurrency), _profile(b, concurrency)),
    )
    missing = [] if probed or not speculates else [_no_probe(a, b, concurrency)]
    if several:
        missing += _missing(splits, why_not)
    elif allreduce_run is not None:
        missing.append(ONE_GPU)
    return Attribution(concurrency=concurrency, difference=difference, splits=splits, missing=tuple(missing))


def _steps(side: ServingSide, concurrency: int) -> dict[int, float]:
    return {repetition: step_ms(trial) for repetition, trial in side.trials(concurrency).items()}


def _target(side: ServingSide, concurrency: int) -> dict[int, float]:
    """By repetition, the time of a step without speculation that has as many rows as one of this arm; {} if unknown."""
    if side.spec.speculation is None:
        return _steps(side, concurrency)
    others = (side.sibling(PROBE), side.baseline)
    return next((found for other in others if other and (found := _steps(other, concurrency * side.rows))), {})


def _no_probe(a: ServingSide, b: ServingSide, concurrency: int) -> str:
    """Why nothing tells how long the target's pass takes, and what to measure for it."""
    if not all(side.sibling(PROBE) for side in (a, b) if side.spec.speculation):
        return NO_PROBE
    rows = sorted({concurrency * side.rows for side in (a, b) if not _target(side, concurrency)})
    if not rows:
        return f"{_NOT_TOLD}: the probe and both arms share no start; finish the run with --resume"
    listed = " and ".join(map(str, rows))
    if rows[-1] > MOST_CONCURRENCY:
        return f"{_NOT_TOLD}: a pass has {listed} rows, and more than {MOST_CONCURRENCY} requests are not measured"
    return f"{_NOT_TOLD}: the probe has no numbers of {listed} rows; add {listed} to --concurrency"


def _reduced(a: ServingSide, b: ServingSide, concurrency: int, run: Run | None) -> tuple[Estimate | None, str]:
    """What the allreduces of the target's pass add, by an allreduce run; else why nothing tells."""
    if run is None:
        return None, ""
    try:
        before, after = (allreduce_times(run, side).pass_ms(concurrency * side.rows) for side in (a, b))
    except NotToldError as why:
        return None, str(why)
    return after.minus(before), ""


def _by_target(
    difference: Estimate, reduced: Estimate | None, probed: Estimate | None, beyond: Estimate | None, *, rest: str
) -> Iterator[Split]:
    if reduced and probed and beyond:
        compute = probed.minus(reduced)
        yield _split("allreduce run and probe", ((_ALLREDUCE, reduced), (_COMPUTE, compute), (_DRAFT, beyond)))
    elif probed and beyond:
        yield _split("probe", (("the target's pass, allreduces and all else", probed), (_DRAFT, beyond)))
    elif reduced:
        yield _split("allreduce run", ((_ALLREDUCE, reduced), (rest, difference.minus(reduced))))


def _split(source: str, parts: Sequence[tuple[str, Estimate]]) -> Split:
    return Split(source=source, parts=tuple(Part(cause=cause, ms=ms) for cause, ms in parts))


def _profile(side: ServingSide, concurrency: int) -> list[Profile]:
    found = (parse_profile(start.profile) for start in side.starts)
    return [profile for profile in found if profile and profile.concurrency == concurrency]


def _by_profile(difference: Estimate, a: list[Profile], b: list[Profile]) -> Iterator[Split]:
    if not a or not b:
        return

    def more(number: Callable[[Profile], float]) -> Estimate:
        return of_mean([*map(number, b)]).minus(of_mean([*map(number, a)]))

    reduced, others = more(lambda p: p.allreduce_ms), more(lambda p: p.busy_ms - p.allreduce_ms)
    counts = [sum(p.allreduces for p in side) / len(side) for side in (a, b)]
    yield _split(
        "profile",
        (
            (f"kernels that reduce ({counts[0]:.0f} a step, then {counts[1]:.0f}), skew of ranks included", reduced),
            ("all other kernels", others),
            ("time without a kernel", difference.minus(reduced).minus(others)),
        ),
    )


def _missing(splits: Sequence[Split], why_not: str) -> Iterator[str]:
    """Why allreduces are not told from the rest, where nothing tells them."""
    sources = {split.source for split in splits}
    if why_not:
        yield f"the allreduce run does not count: {why_not}"
    elif not sources & {"allreduce run", "allreduce run and probe", "profile"}:
        yield (
            "allreduces are not told from the rest: name a bench-allreduce run of this node with --allreduce-run, or "
            "measure with --profile"
        )
