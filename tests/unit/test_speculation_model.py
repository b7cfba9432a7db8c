from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

import pytest

from tuning.model_parts import find_parts
from tuning.speculation_calibration import (
    expert_floor_ms,
    fit,
    fitted_spans,
    predicted_step_ms,
    published,
)
from tuning.speculation_model import (
    Curve,
    accept_span,
    break_even_latency,
    chain,
    chain_alpha,
    rate,
    touched_experts,
)

KIMI = published().models["kimi-k2"]
GLM = published().models["glm-5"]
# Tokens a step for k = 1..8, SPEED-Bench coding, measured by https://github.com/SemiAnalysisAI/InferenceX.
GOLDEN = {
    "Kimi-K2.5 EAGLE-3, thinking": (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77),
    "Kimi-K2.5 EAGLE-3, not thinking": (1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51),
    "GLM-5.2 MTP, thinking": (1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06),
}


def accept_length(conditional: Sequence[float]) -> float:
    """From the probability of each position, given that all before it were accepted."""
    return 1 + sum(accumulate(conditional, mul))


def test_accept_length_of_a_chain_is_what_counting_gives() -> None:
    draw = random.Random(1)
    steps = 20_000
    total = 0
    for _ in range(steps):
        total += 1
        for _ in range(3):
            if draw.random() >= 0.7:
                break
            total += 1
    assert chain(0.7, 3) == pytest.approx(total / steps, rel=0.01)
    assert chain(0.7, 3) == pytest.approx((1 - 0.7**4) / (1 - 0.7))
    assert (chain(0, 5), chain(1, 5)) == (1, 6)


@pytest.mark.parametrize("tau", [1.0, 1.5, 2.43, 2.999, 3.0])
def test_alpha_is_the_inverse_of_the_chain(tau: float) -> None:
    assert chain(chain_alpha(tau, 2), 2) == pytest.approx(tau, abs=1e-9)


@pytest.mark.parametrize("measured", GOLDEN.values(), ids=GOLDEN.keys())
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_measured_accept_lengths_lie_where_one_of_them_says(measured: tuple[float, ...], at: int) -> None:
    for k, tau in enumerate(measured, 1):
        span = accept_span(measured[at - 1], at, k)
        # Two digits were printed, and every k is a run of its own: once a sixth position looks easier than the fifth.
        assert span.low - 0.015 <= tau <= span.high + 0.015


def test_accept_spans_hold_for_every_chain_that_does_not_get_easier() -> None:
    grid = (0.0, 0.2, 0.5, 0.8, 1.0)
    for conditional in product(grid, repeat=4):
        if list(conditional) != sorted(conditional, reverse=True):
            continue
        for at, k in product(range(1, 5), range(1, 5)):
            span = accept_span(accept_length(conditional[:at]), at, k)
            assert span.low - 1e-6 <= accept_length(conditional[:k]) <= span.high + 1e-6


def test_touched_experts_are_the_expected_number_of_different_ones() -> None:
    draw = random.Random(2)
    trials = [len({e for _ in range(3) for e in draw.sample(range(16), 4)}) for _ in range(20_000)]
    assert touched_experts(3, 16, 4) == pytest.approx(sum(trials) / len(trials) / 4, rel=0.01)
    assert touched_experts(1, 384, 8) == pytest.approx(1)
    assert touched_experts(10**6, 384, 8) == pytest.approx(48)


def test_a_curve_goes_through_its_points_and_on_without_falling() -> None:
    curve = Curve(points=((10, 1.0), (20, 3.0), (40, 2.0)))
    assert [curve.at(size) for size in (5, 10, 15, 20, 30, 40, 400)] == [0.0, 1.0, 2.0, 3.0, 2.5, 2.0, 2.0]
    assert Curve(points=((10, 4.0), (20, 3.0))).at(1) == 4.0


def step_ms(us: float, rest: float) -> float:
    """122 allreduces and everything else."""
    return 122 * us / 1000 + rest


def test_rates_reproduce_one_consistent_assignment_of_the_campaign() -> None:
    assert rate(1, 1.0, step_ms(67, 3.5)) == pytest.approx(85.7, abs=0.1)
    assert rate(1, 2.25, step_ms(230, 13.6)) == pytest.approx(54.0, abs=0.1)
    assert rate(1, 2.25, step_ms(374, 13.6)) == pytest.approx(38.0, abs=0.1)


def test_at_the_break_even_latency_both_are_as_fast() -> None:
    us = break_even_latency(2.25, 11.7, 13.6, 122)
    assert rate(1, 2.25, step_ms(us, 13.6)) == pytest.approx(rate(1, 1.0, 11.7))
    assert break_even_latency(1.0, 11.7, 13.6, 122) < 0


def test_expert_bytes_of_kimi_are_those_of_eight_int4_experts_a_layer() -> None:
    gigabytes = 60 * 8 * 3 * 7168 * 2048 * (0.5 + 2 / 32) / 8 / 1e9
    assert expert_floor_ms(find_parts("kimi-k2"), published().gpu, 8) == pytest.approx(gigabytes / 1.792)


@pytest.mark.parametrize(("fitted", "judged", "most"), [(GLM, KIMI, 0.05), (KIMI, GLM, 0.07)])
def test_constants_of_one_model_predict_the_other(fitted, judged, most: float) -> None:
    """The errors that bench/speculation_validation.py prints, with a little room."""
    constants = fit(fitted, published())
    for pair in judged.pairs:
        predicted = predicted_step_ms(judged, published(), constants, pair)
        assert abs(pair.step_ms / predicted - 1) < most


def test_a_fit_explains_what_it_was_fitted_on() -> None:
    constants = fit(KIMI, published())
    assert predicted_step_ms(KIMI, published(), constants, KIMI.pairs[0]) == pytest.approx(KIMI.pairs[0].step_ms)


def test_fitted_constants_are_physically_possible() -> None:
    efficiency, draft = fitted_spans()
    assert 0.3 < efficiency.low <= efficiency.high < 1
    assert 0 < draft.low <= draft.high < 3


@pytest.mark.parametrize("model", [GLM, KIMI])
def test_published_rows_are_whole(model) -> None:
    parts = model.parts
    assert (model.calls, model.row_bytes) == (2 * parts.num_hidden_layers, 2 * parts.hidden_size)
    assert all(1 <= pair.tau <= model.k + 1 for pair in (*model.pairs, *model.more))
    assert {1, model.k + 1} <= model.batch.keys()
