"""What weakens a comparison of servers: starts that differ among themselves, drift, findings of single starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tuning.serving.sides import ServingSide, step_ms

APART = 0.02
"""Between two neighbours, starts in order of their step time, above which they are of two kinds."""
_TIMES_APART = 4
"""So many times as far as starts of one kind lie apart."""
_TOO_FEW_FOR_KINDS = 2
DRIFT = 0.01
"""Between the first and the last start, where both arms only rise, or only fall."""
_LEAST_FOR_DRIFT = 3


def weaknesses(a: ServingSide, b: ServingSide, concurrencies: Sequence[int]) -> Iterator[str]:
    """Each ends in advice."""
    for side in (a, b):
        yield from _kinds_of_start(side, concurrencies)
    yield from _drift(a, b, concurrencies)
    for side in (a, b):
        yield from _findings(side)


def _kinds_of_start(side: ServingSide, concurrencies: Sequence[int]) -> Iterator[str]:
    """At the first number of requests where they are seen; two starts that differ are no kinds yet."""
    for concurrency in concurrencies:
        times = sorted(step_ms(trial) for trial in side.trials(concurrency).values())
        if len(times) == _TOO_FEW_FOR_KINDS and times[1] / times[0] - 1 > APART:
            yield (
                f"{side.label} at {concurrency}: two starts differ by {times[1] / times[0] - 1:.1%} ({times[0]:.4g} "
                f"and {times[1]:.4g} ms); more --starts tell whether the start decides"
            )
            return
        if gap := _gap(times):
            slow, fast = times[gap:], times[:gap]
            yield (
                f"{side.label} at {concurrency}: starts are of two kinds, {_span(fast)} ms ({len(fast)}) and "
                f"{_span(slow)} ms ({len(slow)}); look for what a start decides: placement, clocks, kernels"
            )
            return


def _gap(times: Sequence[float]) -> int:
    """How many of these rising times lie below a gap that parts them into two kinds; 0 where there is none."""
    if len(times) < 2:
        return 0
    steps = sorted(((high / low - 1, number) for number, (low, high) in enumerate(pairwise(times), 1)), reverse=True)
    widest, number = steps[0]
    rest = max((step for step, _ in steps[1:]), default=0.0)
    return number if widest > max(APART, _TIMES_APART * rest) else 0


def _span(times: Sequence[float]) -> str:
    return f"{times[0]:.4g}" if len(times) == 1 else f"{times[0]:.4g}-{times[-1]:.4g}"


def _drift(a: ServingSide, b: ServingSide, concurrencies: Sequence[int]) -> Iterator[str]:
    for concurrency in concurrencies:
        both = [[step_ms(t) for _, t in sorted(side.trials(concurrency).items())] for side in (a, b)]
        if min(map(len, both)) < _LEAST_FOR_DRIFT:
            continue
        shifts = [times[-1] / times[0] - 1 for times in both]
        rising, falling = (all(_only(times, up=up) for times in both) for up in (True, False))
        if (rising or falling) and min(map(abs, shifts)) > DRIFT:
            yield (
                f"at {concurrency} both arms drift from start to start, by {shifts[0]:+.1%} and {shifts[1]:+.1%}; "
                "pairs bear a steady drift, but find its cause: temperature, clocks, other work"
            )
            return


def _only(times: Sequence[float], *, up: bool) -> bool:
    return all((new > old) is up for old, new in pairwise(times))


def _findings(side: ServingSide) -> Iterator[str]:
    """What starts noted by themselves, the same once."""
    starts = side.starts
    counts: dict[str, int] = {}
    for start in starts:
        for finding in start.findings:
            counts[finding] = counts.get(finding, 0) + 1
    for finding, count in counts.items():
        yield f"{side.label}: {finding} ({count} of {len(starts)} starts)"
