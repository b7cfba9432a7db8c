"""How often the judge errs, on simulated launches whose truth is known; `pytest -s` prints the rates.

Every comparison goes the way of the product: launch medians, floor, paired log ratios, judge. The seed is fixed, so
that a rate is the same every day.
"""

import functools
import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest

from tuning import stats
from tuning.intervals import interval
from tuning.stats import Outcome, judge, own_launch_floor, shared_launch_floor

COMPARISONS = 1000
LAUNCHES = [3, 5, 10, 20]
MARGINS = [0.05, 0.10]
SEED = 1


def lognormal(spread):
    return lambda rng, shape: rng.normal(0, spread, shape)


def drift(rng, shape):
    """10 % from the first launch to the last, and 0.5 % spread."""
    return np.linspace(0, math.log(1.1), shape[1]).reshape(-1, *[1] * (len(shape) - 2)) + rng.normal(0, 0.005, shape)


def two_speeds(rng, shape):
    """Each launch starts fast or slow, at even odds; and 1 % spread."""
    return np.log(rng.choice([58, 120], shape)) + rng.normal(0, 0.01, shape)


def rarely_slow(rng, shape):
    """One start in ten is slow; all others agree within 0.1 %."""
    return np.log(rng.choice([58, 120], shape, p=[0.9, 0.1])) + rng.normal(0, 0.001, shape)


def heavy_tails(rng, shape):
    return 0.02 * rng.standard_t(3, shape)


def skewed(rng, shape):
    return rng.exponential(0.03, shape)


# Log times without any difference between arms: (generator, shape) -> array, launches in order along axis 1.
KINDS = {
    "spread 0.1 %": lognormal(0.001),
    "spread 0.5 %": lognormal(0.005),
    "spread 1 %": lognormal(0.01),
    "spread 2 %": lognormal(0.02),
    "spread 5 %": lognormal(0.05),
    "drift 10 %": drift,
    "two speeds": two_speeds,
    "rarely slow": rarely_slow,
    "heavy tails": heavy_tails,
    "skewed": skewed,
}


def own_launches(draw, n, seed, ratio=1.0, comparisons=COMPARISONS):
    """Yield (log ratios, floor) of arms whose launches are interleaved A B B A."""
    times = np.exp(draw(np.random.default_rng(seed), (comparisons, 2 * n)))
    is_a = np.isin(np.arange(2 * n) % 4, [0, 3])
    for a, b in zip(times[:, is_a], ratio * times[:, ~is_a], strict=True):
        yield np.log(b / a), own_launch_floor(a, b)


def shared_launches(draw, n, seed, ratio=1.0, comparisons=COMPARISONS):
    """Yield (log ratios, floor) of arms A, A', B that share launches but no noise: the worst case of pairing."""
    times = np.exp(draw(np.random.default_rng(seed), (comparisons, n, 3)))
    for a, copy, b in np.moveaxis(times, 2, 1):
        yield np.log(ratio * b / a), shared_launch_floor(np.log(copy / a))


def tally(comparisons, margin):
    return Counter(judge(r, margin=margin, floor=floor, lower_is_better=True).outcome for r, floor in comparisons)


def show(*cells):
    sys.stdout.write("  ".join(f"{cell:>12}" if i else f"{cell:28}" for i, cell in enumerate(cells)) + "\n")


@pytest.fixture
def intervals_once(monkeypatch):
    """The same log ratios are judged by two margins; their interval, which is what takes the time, is formed once."""
    by_content = functools.cache(lambda content: interval(np.frombuffer(content)))
    monkeypatch.setattr(stats, "interval", lambda r: by_content(r.tobytes()))


@pytest.mark.parametrize("way", [own_launches, shared_launches])
def test_equal_arms_are_rarely_called_better_or_worse(way, intervals_once):
    show(f"\n{way.__name__}: rates", "n", "margin", *list(Outcome)[:4])
    wrong = {}
    for kind, n in itertools.product(KINDS, LAUNCHES):
        data = list(way(KINDS[kind], n, SEED))
        for margin in MARGINS:
            found = tally(data, margin)
            show(kind, n, margin, *(f"{found[outcome] / COMPARISONS:.3f}" for outcome in list(Outcome)[:4]))
            wrong[kind, n, margin] = found[Outcome.BETTER] + found[Outcome.WORSE]
    assert {cell: count for cell, count in wrong.items() if count > 0.05 * COMPARISONS} == {}


@pytest.mark.parametrize("way", [own_launches, shared_launches])
@pytest.mark.parametrize(("ratio", "right"), [(1.05, Outcome.WORSE), (1 / 1.05, Outcome.BETTER)])
def test_five_percent_are_found_with_five_launches(way, ratio, right):
    found = tally(way(lognormal(0.01), 5, SEED, ratio), 0.05)
    show(f"\n{way.__name__}: ratio {ratio:.3f}", *(f"{key} {value / COMPARISONS:.3f}" for key, value in found.items()))
    assert found[right] >= 0.95 * COMPARISONS
    assert found[Outcome.BETTER if right is Outcome.WORSE else Outcome.WORSE] == 0


@pytest.mark.parametrize("n", LAUNCHES)
def test_the_interval_holds_the_truth(n):
    truth = math.log(1.03)
    spans = [interval(r) for r, _ in own_launches(lognormal(0.02), n, SEED, 1.03)]
    coverage = sum(span.low <= truth <= span.high for span in spans) / COMPARISONS
    show("\ncoverage of lognormal data", f"n {n}", spans[0].method, f"{coverage:.3f}")
    assert 0.93 <= coverage <= 0.975


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("margin", MARGINS)
def test_arms_that_share_a_launch_share_its_luck(n, margin):
    rng = np.random.default_rng(SEED)

    def one_start(rng, shape):
        return np.log(rng.choice([58, 120], (*shape[:2], 1))) + rng.normal(0, 0.002, shape)

    assert tally(shared_launches(one_start, n, rng), margin) == {Outcome.SAME: COMPARISONS}


def test_one_extension_adds_few_false_differences():
    """Five launches, then once as many as `judge` asks for (up to 30), at the spread at which most is undecided."""
    times = np.exp(lognormal(0.05)(np.random.default_rng(SEED), (2, COMPARISONS, 30)))

    def look(a, b):
        return judge(np.log(b / a), margin=0.05, floor=own_launch_floor(a, b), lower_is_better=True)

    found = Counter()
    for a, b in zip(*times, strict=True):
        verdict = look(a[:5], b[:5])
        if verdict.more_launches is not None and (n := 5 + verdict.more_launches) <= 30:
            verdict = look(a[:n], b[:n])
        found[verdict.outcome] += 1
    show("\nafter one extension", *(f"{key} {value / COMPARISONS:.3f}" for key, value in found.items()))
    assert found[Outcome.BETTER] + found[Outcome.WORSE] <= 0.10 * COMPARISONS
