"""Servers of known parts: predictions from baselines come out as the parts do, and say what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tests.unit.serving.makers import fake_arm, fake_serving_plan, fake_serving_run
from tests.unit.serving.test_attribution import CALLS, SIZES, compute, reduced, us
from tuning.runfile import Run
from tuning.runlines import Kind
from tuning.serving.estimates import Estimate, certain
from tuning.serving.forecast import forecast
from tuning.serving.forecast_drafting import DRAFT_CALLS
from tuning.serving.forecast_values import Cell, Forecast, Wanted
from tuning.serving.plan import ServingArm
from tuning.serving.runfile import ServingRun
from tuning.serving.spec import Speculation
from tuning.speculation_calibration import fitted_spans
from tuning.trial import Status

DRAFT_MS = 0.7
"""Of a draft, without its allreduces."""


def chain(steps: int) -> Speculation:
    return Speculation(algorithm="EAGLE3", steps=steps, topk=1, draft_tokens=steps + 1, draft="d")


def wanted(*steps: int, accept_length: float | None = None) -> list[Wanted]:
    return [Wanted(kind=f"{k}-1-{k + 1}", speculation=chain(k), accept_length=accept_length) for k in steps]


def arm(name: str, *concurrencies: int, gpus: int = 1, accept_length: float = 0.0) -> ServingArm:
    kind = name.partition("/")[2]
    speculation = chain(int(kind[0])) if kind[0].isdigit() else None
    made = fake_arm(name, *concurrencies, speculation=speculation, accept_length=accept_length)
    return replace(made, spec=replace(made.spec, tensor_parallel=gpus))


def truth(gpus: int) -> Callable[[str, str, int, int], float]:
    """Step time of one and of two GPUs: on two, allreduces of the pass and of the drafts come to it."""

    def step(_environment: str, name: str, concurrency: int, _repetition: int) -> float:
        backend, kind = name.split("/")
        steps = int(kind[0]) if kind[0].isdigit() else 0
        rows = concurrency * (steps + 1)
        reduces = gpus > 1
        drafting = steps * (DRAFT_MS + reduces * DRAFT_CALLS * us(concurrency, backend) / 1000)
        return reduces * CALLS * us(rows, backend) / 1000 + compute(rows) + drafting

    return step


def served(*arms: ServingArm, gpus: int = 1, spread: float = 0.0, starts: int = 3, seed: int = 1) -> ServingRun:
    plan = fake_serving_plan(
        *(replace(one, spec=replace(one.spec, tensor_parallel=gpus)) for one in arms), starts=starts
    )
    return fake_serving_run(plan, truth(gpus), spread=spread, seed=seed, path=Path(f"tp{gpus}.jsonl"))


def elsewhere(*arms: ServingArm, gpus: int = 1, node: str = "other") -> ServingRun:
    """Another run: by default of another machine."""
    run = served(*arms, gpus=gpus)
    header = replace(run.header, created="2026-11-28T00:00:00+00:00", node={"host": {"hostname": node}})
    return replace(run, header=header, path=Path("elsewhere.jsonl"))


def only(found: Forecast) -> Cell:
    (cell,) = found.cells
    return cell


PROBE = (1, 2, 3, 4, 8)
BASELINE = arm("nccl/baseline", 1)
DRAFTING = elsewhere(BASELINE, arm("nccl/2-1-3", 1), arm("nccl/3-1-4", 1), arm("nccl/probe", *PROBE))
"""One GPU, whose probe tells every pass."""


def test_a_pass_that_the_probe_measured_and_drafting_from_elsewhere_make_the_step() -> None:
    found = forecast(served(BASELINE, arm("nccl/probe", *PROBE)), wanted(2, 3), drafting=DRAFTING)
    assert [cell.step_ms.value for cell in found.cells] == pytest.approx([compute(3) + 1.4, compute(4) + 2.1])
    assert [(cell.target.source, cell.drafting.source) for cell in found.cells] == [
        ("measured at 3", "2/1/3 at 1"),
        ("measured at 4", "3/1/4 at 1"),
    ]
    assert found.cells[0].break_even.value == pytest.approx((3.6 + 1.4) / 3.2)
    assert found.errors is None
    assert found.untold == ()


def test_the_baseline_at_as_many_requests_is_as_good_as_a_probe() -> None:
    cell = forecast(served(arm("nccl/baseline", 1, 3)), wanted(2), drafting=DRAFTING).cells[0]
    assert (cell.requests, cell.target.source) == (1, "measured at 3")
    assert cell.target.ms.value == pytest.approx(3.6)


def test_between_two_numbers_of_requests_the_pass_lies_on_a_line() -> None:
    run = fake_serving_run(
        fake_serving_plan(arm("nccl/baseline", 1, 5)), lambda _e, _a, n, _r: {1: 8.0, 5: 12.0}[n], spread=0
    )
    cells = forecast(run, wanted(1, 2)).cells
    assert [(cell.requests, cell.target.source) for cell in cells] == [
        (1, "between 1 and 5"),
        (5, "as at 5"),
        (1, "between 1 and 5"),
        (5, "as at 5"),
    ]
    assert [cell.target.ms.value for cell in cells] == pytest.approx([9, 12, 10, 12])


def test_beyond_the_requests_measured_one_gpu_is_taken_not_to_grow_and_says_so() -> None:
    found = forecast(served(BASELINE), wanted(2), drafting=DRAFTING)
    assert only(found).target.source == "as at 1"
    assert only(found).step_ms.value == pytest.approx(compute(1) + 1.4)
    assert any("too little for one with experts" in told for told in found.assumptions)


def test_on_two_gpus_an_allreduce_run_tells_how_the_pass_and_drafting_grow() -> None:
    """By hand: 6.128 ms without; 122 allreduces of 32 instead of 24 us; 1.4 ms of drafts; 3 x 2 allreduces of 24 us."""
    found = forecast(served(BASELINE, gpus=2), wanted(2), drafting=DRAFTING, allreduce_run=reduced())
    cell = only(found)
    assert cell.baseline_ms.value == pytest.approx(6.128)
    assert cell.target.ms.value == pytest.approx(6.128 + 0.976, abs=0.003)  # the allreduce run's noise
    assert cell.drafting.ms.value == pytest.approx(1.4 + 0.144, abs=0.001)
    assert cell.step_ms.value == pytest.approx(8.648, abs=0.003)
    assert cell.target.source == "1 + allreduce run"
    assert any("3 a forward" in told for told in found.assumptions)
    assert any("only allreduces grow" in told for told in found.assumptions)


def test_growth_is_counted_from_the_most_requests_below() -> None:
    cell = forecast(
        served(arm("nccl/baseline", 1, 2), gpus=2), wanted(2), drafting=DRAFTING, allreduce_run=reduced()
    ).cells[0]
    assert cell.target.source == "2 + allreduce run"
    assert cell.target.ms.value == pytest.approx(CALLS * us(3, "nccl") / 1000 + compute(2), abs=0.003)


@pytest.mark.parametrize(
    ("allreduce_run", "why"),
    [
        (None, "with --run"),
        (reduced(ranks=4), "4 ranks, the server 2"),
        (reduced(workload=replace(SIZES, messages=SIZES.messages[:2])), "3 rows are 43,008"),
    ],
    ids=["none", "ranks", "too small"],
)
def test_what_nothing_tells_is_not_told_and_says_what_to_measure(allreduce_run: Run | None, why: str) -> None:
    found = forecast(served(BASELINE, gpus=2), wanted(2), drafting=DRAFTING, allreduce_run=allreduce_run)
    assert found.cells == ()
    (untold,) = found.untold
    assert (untold.backend, untold.requests) == ("nccl", 1)
    for part in ("a pass of 3 rows, and 1 are the most requests measured", "--concurrency 3", why):
        assert part in untold.reason


def test_no_more_requests_are_advised_than_can_be_measured() -> None:
    found = forecast(served(arm("nccl/baseline", 32), gpus=2), wanted(2), drafting=DRAFTING)
    assert "a pass of 96 rows" in found.untold[0].reason
    assert "64 requests at most" in found.untold[0].reason


def test_drafts_allreduces_that_nothing_tells_are_left_out_and_said_to_be() -> None:
    run = served(BASELINE, arm("nccl/probe", *PROBE), gpus=2)
    found = forecast(run, wanted(2), drafting=DRAFTING)
    assert only(found).drafting.ms.value == pytest.approx(1.4)
    (told,) = [told for told in found.assumptions if "not counted" in told]
    assert "one GPU, which has none" in told
    assert "--run" in told


def test_drafting_of_the_same_backend_and_gpus_holds_its_allreduces_already() -> None:
    other = elsewhere(BASELINE, arm("nccl/2-1-3", 1), arm("nccl/probe", 1, 3), gpus=2)
    found = forecast(served(BASELINE, arm("nccl/probe", 1, 3), gpus=2), wanted(2), drafting=other)
    assert only(found).drafting.ms.value == pytest.approx(1.4 + 0.144)
    assert any("own allreduces are taken to be those of elsewhere.jsonl" in told for told in found.assumptions)


def test_drafting_of_another_backend_is_moved_by_the_allreduce_run_of_that_node() -> None:
    run = served(arm("nccl-p2p-off/baseline", 1), arm("nccl-p2p-off/probe", 1, 3), gpus=2)
    arms = (BASELINE, arm("nccl/2-1-3", 1), arm("nccl/probe", 1, 3))
    same_node = elsewhere(*arms, gpus=2, node="fake")
    cell = only(forecast(run, wanted(2), drafting=same_node, allreduce_run=reduced()))
    assert cell.drafting.ms.value == pytest.approx(1.4 + 3 * 0.144, abs=0.002)
    found = forecast(run, wanted(2), drafting=elsewhere(*arms, gpus=2), allreduce_run=reduced())
    assert only(found).drafting.ms.value == pytest.approx(1.4 + 0.144)
    (told,) = [told for told in found.assumptions if "not counted" in told]
    assert "nccl on 2 GPUs" in told
    assert "another node" in told


def test_the_rows_of_a_trees_drafts_are_not_guessed() -> None:
    tree = Speculation(algorithm="EAGLE3", steps=2, topk=4, draft_tokens=3, draft="fake-draft")
    other = elsewhere(arm("nccl/baseline", 1, 3), fake_arm("nccl/2-4-3", 1, speculation=tree))
    run = served(BASELINE, arm("nccl/probe", 1, 3), gpus=2)
    asked = (Wanted(speculation=tree, kind="2-4-3", accept_length=None),)
    found = forecast(run, asked, drafting=other, allreduce_run=reduced())
    (told,) = [told for told in found.assumptions if "not counted" in told]
    assert "topk 4" in told


def test_a_baseline_of_one_start_has_no_spread_and_that_is_said() -> None:
    run = served(BASELINE, arm("nccl/probe", 1, 3), starts=1)
    assert any("ranges hold only what drafting may take" in told for told in forecast(run, wanted(2)).assumptions)
    assert any("there is no range" in told for told in forecast(run, wanted(2), drafting=DRAFTING).assumptions)


def test_drafting_prefers_its_own_backend_and_environment() -> None:
    def step(environment: str, name: str, concurrency: int, repetition: int) -> float:
        own = environment == "y" and name.startswith("nccl/")
        return truth(1)(environment, name, concurrency, repetition) + (name.endswith("3") and not own)

    arms = (arm("custom/baseline", 1), arm("custom/2-1-3", 1), BASELINE, arm("nccl/2-1-3", 1))
    other = fake_serving_run(fake_serving_plan(*arms, environments=("x", "y")), step, spread=0)
    other = replace(other, header=replace(other.header, created="2026-11-28T00:00:00+00:00"))
    plan = fake_serving_plan(BASELINE, arm("sockets/baseline", 1), environments=("y", "z"))
    found = forecast(fake_serving_run(plan, truth(1), spread=0), wanted(2), drafting=other)
    growth = compute(3) - compute(1)
    assert {(c.environment, c.backend): c.drafting.ms.value - growth for c in found.cells} == {
        ("y", "nccl"): pytest.approx(1.4),
        ("y", "sockets"): pytest.approx(2.4),
        ("z", "nccl"): pytest.approx(2.4),
        ("z", "sockets"): pytest.approx(2.4),
    }


@pytest.mark.parametrize(("steps", "source", "beyond"), [(3, "steps 2 and 4", False), (6, "steps 2 and 4", True)])
def test_other_numbers_of_steps_follow_a_line_marked_where_it_goes_beyond(
    steps: int, source: str, beyond: bool
) -> None:
    other = elsewhere(BASELINE, arm("nccl/2-1-3", 1), arm("nccl/4-1-5", 1), arm("nccl/probe", *range(1, 9)))
    cell = only(forecast(served(BASELINE), wanted(steps), drafting=other))
    assert cell.drafting.ms.value == pytest.approx(steps * DRAFT_MS)
    assert (cell.drafting.source, cell.drafting.extrapolated) == (source, beyond)


def test_a_line_needs_two_numbers_of_steps_with_the_same_topk() -> None:
    other = elsewhere(BASELINE, arm("nccl/2-1-3", 1))
    found = forecast(served(BASELINE), wanted(3), drafting=other)
    assert "a line needs two" in found.untold[0].reason
    tree = Wanted(kind="3-4-16", speculation=replace(chain(3), topk=4, draft_tokens=16))
    assert "topk 4" in forecast(served(BASELINE), [tree], drafting=DRAFTING).untold[0].reason


def test_drafting_is_taken_at_the_nearest_number_of_requests_that_tells() -> None:
    other = elsewhere(arm("nccl/baseline", 2, 6), arm("nccl/2-1-3", 2, 6), gpus=2)
    found = forecast(served(arm("nccl/baseline", 6, 18), gpus=2), wanted(2), drafting=other)
    (cell,) = found.cells
    assert cell.drafting.source == "2/1/3 at 2"
    assert any("drafting of 6 at once is taken from 2 at once" in told for told in found.assumptions)


def test_drafting_whose_pass_nothing_tells_is_not_told() -> None:
    other = elsewhere(BASELINE, arm("nccl/2-1-3", 1), gpus=2)
    found = forecast(served(BASELINE, arm("nccl/probe", 1, 3), gpus=2), wanted(2), drafting=other)
    assert found.untold[0].reason.startswith("drafting of elsewhere.jsonl host:nccl/2-1-3: a pass of 3 rows")


def test_without_another_run_drafting_is_a_range_of_published_hosts() -> None:
    _, each = fitted_spans()
    found = forecast(served(BASELINE, starts=1), wanted(3))
    cell = only(found)
    assert cell.drafting.ms.value == pytest.approx(3 * (each.low + each.high) / 2)
    assert cell.step_ms.low == pytest.approx(compute(1) + 3 * each.low / 1.5)
    assert cell.step_ms.high == pytest.approx(compute(1) + 3 * each.high * 1.5)
    assert any("one start alone" in told for told in found.assumptions)
    assert not any("one start alone" in told for told in forecast(served(BASELINE, spread=0.01), wanted(3)).assumptions)


def test_the_range_holds_the_spread_of_starts_of_both_runs() -> None:
    still = only(forecast(served(BASELINE), wanted(2), drafting=DRAFTING)).step_ms
    noisy = only(forecast(served(BASELINE, spread=0.01), wanted(2), drafting=DRAFTING)).step_ms
    assert still.low == pytest.approx(still.high)
    assert noisy.low is not None
    assert noisy.high is not None
    assert noisy.low < noisy.value < noisy.high
    alone = only(forecast(served(BASELINE, starts=1), wanted(2), drafting=DRAFTING)).step_ms
    assert (alone.low, alone.high) == (None, None)


ARMS = (arm("nccl/baseline", 1, 4), arm("nccl/2-1-3", 1, 4), arm("nccl/3-1-4", 1, 4))


def slower(run: ServingRun, by: float) -> ServingRun:
    """The same with every step that was measured with speculation so many times as long."""
    trials = []
    for trial in run.trials:
        times = by if run.header.plan.arm(trial.arm).spec.speculation else 1.0
        passes = tuple(replace(done, step_ms=done.step_ms * times) for done in trial.passes)
        trials.append(replace(trial, passes=passes))
    return replace(run, trials=tuple(trials))


def bits(found: Forecast) -> list[object]:
    return [(c.step_ms, c.break_even, c.target, c.drafting, c.tokens_per_second, c.speed_up) for c in found.cells]


def test_steps_measured_with_speculation_never_enter_a_prediction() -> None:
    run = served(*ARMS, spread=0.01)
    lost = replace(run, trials=tuple(trial for trial in run.trials if trial.arm == "nccl/baseline"))
    for drafting in (None, DRAFTING):
        made = [forecast(one, wanted(2, 3), drafting=drafting) for one in (run, slower(run, 1.7), lost)]
        assert bits(made[0]) == bits(made[1]) == bits(made[2])
        assert [one.errors is None for one in made] == [False, False, True]
        changed = [(a.error, b.error) for a, b in zip(made[0].cells, made[1].cells, strict=True)]
        assert all(b == pytest.approx((1 + (a or 0)) / 1.7 - 1) for a, b in changed)


def test_errors_are_those_of_predicted_over_measured() -> None:
    """By hand: one GPU, whose pass of 3 and 4 rows is taken as that of one: 0.4 of 5.0 and 0.6 of 5.9 ms short."""
    arms = (BASELINE, arm("nccl/2-1-3", 1), arm("nccl/3-1-4", 1))
    errors = forecast(served(*arms), wanted(2, 3), drafting=DRAFTING).errors
    assert errors is not None
    assert (errors.count, errors.largest_of) == (2, "host:nccl/3-1-4 at 1")
    assert errors.largest == pytest.approx(-0.6 / 5.9)
    assert errors.median == pytest.approx((0.4 / 5.0 + 0.6 / 5.9) / 2)


def test_tokens_per_second_take_the_accept_length_asked_for_or_simulated_or_none() -> None:
    run = served(arm("nccl/baseline", 2), arm("nccl/2-1-3", 2, accept_length=2.5))
    simulated, asked = (only(forecast(run, w, drafting=DRAFTING)) for w in (wanted(2), wanted(2, accept_length=2.0)))
    step, baseline = compute(2) + 1.4, compute(2)
    assert simulated.tokens_per_second == pytest.approx(2 * 2.5 / step * 1000)
    assert asked.tokens_per_second == pytest.approx(2 * 2.0 / step * 1000)
    assert asked.speed_up == pytest.approx(2.0 * baseline / step)
    unknown = only(forecast(served(BASELINE), wanted(2), drafting=DRAFTING))
    assert (unknown.accept_length, unknown.tokens_per_second, unknown.speed_up) == (None, None, None)


def test_an_arm_of_another_speculation_under_that_name_is_no_measurement_of_it() -> None:
    odd = replace(arm("nccl/2-1-3", 1), spec=replace(arm("nccl/3-1-4", 1).spec, accept_length=2.5))
    cell = only(forecast(served(BASELINE, odd), wanted(2), drafting=DRAFTING))
    assert (cell.measured_ms, cell.accept_length) == (None, None)


def test_an_arm_that_speculates_under_the_name_of_the_probe_is_no_pass() -> None:
    probe = replace(arm("nccl/probe", *PROBE), spec=arm("nccl/2-1-3", 1).spec)
    assert only(forecast(served(BASELINE, probe), wanted(2), drafting=DRAFTING)).target.source == "as at 1"


def test_a_backend_without_a_baseline_is_not_told_and_the_others_are() -> None:
    run = served(BASELINE, arm("custom/baseline", 1))
    failed = [
        trial if trial.arm != "custom/baseline" else replace(trial, passes=(), status=Status.CRASHED, reason="x")
        for trial in run.trials
    ]
    found = forecast(replace(run, trials=tuple(failed)), wanted(2, 3), drafting=DRAFTING)
    assert {cell.backend for cell in found.cells} == {"nccl"}
    (untold,) = found.untold
    assert (untold.backend, untold.wanted, untold.requests) == ("custom", None, None)


def test_parts_that_come_to_nothing_are_not_told() -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE), lambda _e, _a, _n, _r: 0.01, spread=0)
    other = fake_serving_run(
        fake_serving_plan(BASELINE, arm("nccl/2-1-3", 1)), lambda _e, a, _n, _r: 1.0 if a.endswith("3") else 10.0
    )
    other = replace(other, header=replace(other.header, created="2026-11-28T00:00:00+00:00"))
    assert "cannot hold here" in forecast(run, wanted(2), drafting=other).untold[0].reason


def without_baseline(run: ServingRun) -> ServingRun:
    return replace(run, trials=tuple(trial for trial in run.trials if not trial.arm.endswith("/baseline")))


@pytest.mark.parametrize(
    ("run", "drafting", "says"),
    [
        (without_baseline(served(*ARMS)), None, "no baseline with numbers"),
        (served(arm("nccl/2-1-3", 1)), None, "no baseline with numbers"),
        (served(*ARMS), served(*ARMS), "is the run of --servers"),
        (served(*ARMS), elsewhere(BASELINE), "holds no speculation with numbers"),
        (replace(served(*ARMS), header=replace(served(*ARMS).header, kind=Kind.MEANINGLESS)), None, "are meaningless"),
    ],
    ids=["none measured", "none planned", "the same", "no speculation", "meaningless"],
)
def test_runs_that_cannot_answer_are_refused(run: ServingRun, drafting: ServingRun | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        forecast(run, wanted(2), drafting=drafting)


def test_sums_and_multiples_keep_lopsided_intervals() -> None:
    one, other = Estimate(value=3, low=2, high=7), Estimate(value=1, low=-2, high=4)
    assert one.plus(other) == Estimate(value=4, low=4 - 10**0.5, high=9)
    assert one.times(2) == Estimate(value=6, low=4, high=14)
    assert one.times(-1) == Estimate(value=-3, low=-7, high=-2)
    assert one.plus(certain(1)) == Estimate(value=4, low=3, high=8)
    assert one.plus(Estimate(value=1)) == Estimate(value=4)
    assert Estimate(value=2).times(3) == Estimate(value=6)


def names(found: Sequence[Cell]) -> list[str]:
    return [cell.label for cell in found]


def test_every_environment_backend_speculation_and_number_of_requests_has_its_place() -> None:
    arms = (arm("nccl/baseline", 1, 2), arm("custom/baseline", 1, 2))
    run = fake_serving_run(fake_serving_plan(*arms, environments=("x", "y")), truth(1))
    assert names(forecast(run, wanted(2, 3)).cells) == [
        f"{environment}:{backend}/{kind} at {requests}"
        for environment in ("x", "y")
        for backend in ("nccl", "custom")
        for kind in ("2-1-3", "3-1-4")
        for requests in (1, 2)
    ]
