import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import stdtrit

from tuning.intervals import RESAMPLES, hodges_lehmann, interval
from tuning.stats import (
    Outcome,
    judge,
    launches_needed,
    launches_needed_if_same,
    mean_over_sizes,
    minimum_detectable_effect,
    own_launch_floor,
    shared_launch_floor,
)

TIGHT = np.array([-0.002, -0.001, 0.0, 0.001, 0.002])


def latency(log_ratios, margin=0.05, floor=None):
    return judge(log_ratios, margin=margin, floor=floor, lower_is_better=True)


# Estimates


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([0.0, 1.0, 5.0], 1.75),  # of 0, 0.5, 1, 2.5, 3, 5
        ([1.0, 2.0, 3.0, 4.0, 1000.0], 3.0),
    ],
)
def test_hodges_lehmann_of_known_values(x, expected):
    assert hodges_lehmann(x) == expected


def test_mean_over_sizes_is_the_log_of_the_geometric_mean_per_launch():
    ratios = {8192: np.log([2.0, 1.0]), 43008: np.log([8.0, 1.0])}
    np.testing.assert_allclose(np.exp(mean_over_sizes(ratios.values())), [4.0, 1.0])


@pytest.mark.parametrize("rows", [[], [[0.1], [0.1, 0.2]]])
def test_mean_over_sizes_wants_the_same_launches(rows):
    with pytest.raises(ValueError, match="same launches for every size"):
        mean_over_sizes(rows)


# Floors


def test_the_shared_floor_is_the_shift_of_the_copy_whichever_way():
    assert shared_launch_floor([math.log(0.99)] * 3) == pytest.approx(math.log(100 / 99))
    assert shared_launch_floor([]) is None


def test_the_own_floor_pairs_consecutive_launches_of_each_arm():
    # A: ln 2 (its third launch has no partner); B: ln 4 and 0. Walsh averages, in ln 2: 0, 0.5, 1, 1, 1.5, 2.
    assert own_launch_floor([1, 2, 9], [1, 4, 3, 3]) == pytest.approx(math.log(2))
    assert own_launch_floor([1], [2, 3]) == pytest.approx(math.log(1.5))
    assert own_launch_floor([1], [2]) is None
    assert own_launch_floor([], []) is None


# Intervals


def test_few_launches_get_students_t_around_the_mean():
    span = interval(TIGHT)
    half = 2.7764451 * math.sqrt(2.5e-6) / math.sqrt(5)
    assert span.method == "t"
    assert (span.low, span.high) == (pytest.approx(-half), pytest.approx(half))


def test_one_launch_has_no_interval():
    assert interval([0.1]) is None
    assert interval([]) is None


@pytest.mark.parametrize("n", [10, 11, 20])  # an odd and an even number of Walsh averages
def test_the_bootstrap_is_that_of_resampled_estimates(n):
    rng = np.random.default_rng(n)
    x = rng.normal(0, 0.02, n)
    resamples = rng.choice(x, (RESAMPLES, n))
    i, j = np.triu_indices(n)
    estimates = np.median((resamples[:, i] + resamples[:, j]) / 2, axis=1)
    tail = {10: 0.00856, 11: 0.00972, 20: 0.01588}[n]  # Hesterberg 2015: Phi(-sqrt(n / (n - 1)) t_.975)
    span = interval(x)
    assert span.method == "bootstrap"
    assert (span.low, span.high) == pytest.approx(tuple(np.quantile(estimates, [tail, 1 - tail])), abs=0.002)
    assert span.low < hodges_lehmann(x) < span.high


@pytest.mark.parametrize("n", [5, 12])
def test_an_interval_depends_on_nothing_but_the_values(n):
    x = np.random.default_rng(3).standard_t(3, n)
    assert interval(x) == interval(list(x))
    assert (interval(-x).low, interval(-x).high) == pytest.approx((-interval(x).high, -interval(x).low))


@pytest.mark.parametrize("n", [2, 3, 9, 10, 30])
def test_equal_values_give_no_width(n):
    span = interval([0.1] * n)
    assert (span.low, span.high) == (0.1, 0.1)


def test_one_wild_launch_of_ten_leaves_a_usable_interval():
    span = interval([*np.linspace(-0.001, 0.001, 9), math.log(120 / 58)])
    assert -0.01 < span.low < 0 < span.high < math.log(120 / 58)


# Power


def test_minimum_detectable_effect_of_known_spread():
    expected = math.exp((2.7764451 + 0.9409646) * math.sqrt(2.5e-6) / math.sqrt(5)) - 1
    assert minimum_detectable_effect(TIGHT) == pytest.approx(expected)
    assert minimum_detectable_effect([0.1]) is None
    assert minimum_detectable_effect([0.1, 0.1]) == 0.0
    assert minimum_detectable_effect([-1000.0, 1000.0]) == math.inf


def test_launches_needed_for_equivalence():
    # s = 0.02, no shift: t / sqrt(N) <= ln(1.05) / 0.02 = 2.4395 fails at N = 3 (2.484), holds at N = 4 (1.591)
    a = 0.02 / math.sqrt(2)
    assert launches_needed([-a, a], margin=0.05, floor=None) == 4
    assert latency([-a, a]).more_launches == 2


def test_launches_needed_for_a_difference():
    # s = 0.1 about a shift of 0.1: t / sqrt(N) <= 1 fails at N = 6 (1.049), holds at N = 7 (0.925)
    x = [0.0, 0.1, 0.2]
    assert launches_needed(x, margin=0.05, floor=None) == 7
    assert launches_needed(x, margin=0.05, floor=0.11) is None, "a shift below the floor, outside the band"


def test_too_close_to_the_margin_needs_too_many():
    x = math.log(1.015) + np.array([-0.3, 0.0, 0.3])  # 1.5 % by a margin of 1.6 %, at 30 % spread
    assert launches_needed(x, margin=0.016, floor=None) is None
    assert latency(x, margin=0.016).more_launches is None


def test_no_spread_to_go_by():
    assert launches_needed([0.1], margin=0.05, floor=None) is None


# Judgement


def test_same():
    verdict = latency(TIGHT, floor=0.003)
    assert verdict.outcome is Outcome.SAME
    assert verdict.reason == "the interval lies within ±5 %"
    assert verdict.n == 5
    assert verdict.ratio == 1.0
    assert verdict.ci_low == pytest.approx(1 / verdict.ci_high)
    assert verdict.floor == pytest.approx(math.expm1(0.003))
    assert verdict.method == "t"
    assert verdict.more_launches is None


@pytest.mark.parametrize(
    ("shift", "lower_is_better", "expected"),
    [
        (-0.1, True, Outcome.BETTER),
        (-0.1, False, Outcome.WORSE),
        (0.1, True, Outcome.WORSE),
        (0.1, False, Outcome.BETTER),
    ],
)
def test_better_or_worse_follows_the_direction_of_the_metric(shift, lower_is_better, expected):
    verdict = judge(TIGHT + shift, margin=0.05, floor=0.01, lower_is_better=lower_is_better)
    assert verdict.outcome is expected
    assert verdict.ratio == pytest.approx(math.exp(shift))
    size = "9.5 % lower, and the whole interval lies below 1"
    assert verdict.reason == (size if shift < 0 else "10.5 % higher, and the whole interval lies above 1")


def test_equal_ratios_are_judged_without_spread():
    assert latency([0.0] * 3).outcome is Outcome.SAME
    assert latency([math.log(0.8)] * 12).outcome is Outcome.BETTER
    assert latency([math.log1p(0.05)] * 3).outcome is Outcome.SAME, "the band includes its ends"


def test_a_precise_difference_within_the_margin_is_same():
    assert latency(TIGHT + 0.03).outcome is Outcome.SAME


def test_below_the_noise_floor_is_undecided():
    verdict = latency(TIGHT + math.log(1.06), floor=math.log(1.07))
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.reason == "the difference 6.0 % is below the noise floor 7.0 %"
    assert verdict.more_launches is None


def test_below_two_percent_is_undecided():
    verdict = latency(TIGHT + math.log(1.015), margin=0.01, floor=0.001)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.reason == "the difference 1.5 % is below 2.0 %, the least that counts"


def test_too_much_spread_is_undecided():
    verdict = latency(30 * TIGHT)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.reason == "the interval reaches from no difference to beyond ±5 %"
    assert verdict.more_launches_if_same is not None
    assert verdict.more_launches_if_same >= 1
    assert verdict.more_launches == 2, "s = 0.0474: t / sqrt(N) <= 1.029 fails at N = 6 (1.049), holds at N = 7 (0.925)"


@pytest.mark.parametrize(("x", "ratio"), [([], None), ([math.log(2)], pytest.approx(2.0))])
def test_fewer_than_two_pairs_are_undecided(x, ratio):
    verdict = latency(x)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.reason == f"{len(x)} of the 2 pairs of launches that an interval needs"
    assert (verdict.n, verdict.ratio, verdict.method) == (len(x), ratio, "none")
    assert verdict.ci_low is verdict.ci_high is verdict.mde is verdict.floor is verdict.more_launches is None


@pytest.mark.parametrize("n", [1, 3, 12])
def test_a_judgement_is_plain_data(n):
    verdict = latency(np.random.default_rng(0).normal(0, 0.1, n), floor=0.01)
    assert json.loads(json.dumps(dataclasses.asdict(verdict)))["outcome"] == "undecided"


def test_outcomes_read_as_words():
    assert [str(outcome) for outcome in Outcome] == ["better", "worse", "same", "undecided", "not comparable"]


# Refusals


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_medians_must_be_finite_and_positive(value):
    with pytest.raises(ValueError, match=rf"got {value} at index 1, expected finite and positive"):
        own_launch_floor([1, 1], [1.0, value])


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_ratios_must_be_finite(value):
    for call in (hodges_lehmann, interval, minimum_detectable_effect, latency, lambda x: mean_over_sizes([x])):
        with pytest.raises(ValueError, match=rf"log ratios: got {value} at index 1, expected finite numbers"):
            call([0.1, value])


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]]])
def test_no_values_and_tables_are_refused(values):
    with pytest.raises(ValueError, match="expected a list of 1 or more numbers"):
        hodges_lehmann(values)


@pytest.mark.parametrize("x", [[], TIGHT])
@pytest.mark.parametrize(("margin", "floor"), [(0.0, None), (-0.05, None), (math.nan, None), (0.05, -0.1)])
def test_margin_and_floor_are_checked(x, margin, floor):
    with pytest.raises(ValueError, match="expected a"):
        latency(x, margin=margin, floor=floor)


def test_scipy_stats_is_not_loaded():
    code = "import sys, tuning.stats; assert 'scipy.stats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_launches_if_same_is_where_the_interval_fits_the_band() -> None:
    x = [0.3, -0.3, 0.25, -0.2, 0.35]
    needed = launches_needed_if_same(x, margin=0.1)
    assert needed is not None

    def half(n: int) -> float:
        return float(stdtrit(n - 1, 0.975)) * float(np.std(x, ddof=1)) / math.sqrt(n)

    assert half(needed) <= math.log(1.1) < half(needed - 1)
    assert launches_needed_if_same([1.0], margin=0.1) is None
    assert launches_needed_if_same([5.0, -5.0], margin=0.1) is None, "more than 1,000"
