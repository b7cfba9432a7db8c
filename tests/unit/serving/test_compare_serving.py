"""Runs of servers whose truth is known: what is concluded, what is refused, what is said beside it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tests.unit.serving.makers import (
    BASELINE,
    EAGLE,
    PROMPTS,
    SPECULATION,
    fake_accept,
    fake_arm,
    fake_serving_plan,
    fake_serving_run,
    with_latencies,
)
from tuning.serving.acceptance import Counts, accept_length, accept_ratio
from tuning.serving.compare import compare_serving_names, serving_overview
from tuning.serving.comparison import Comparison
from tuning.serving.estimates import Estimate, certain, of_mean
from tuning.serving.headline import headline
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import find_sides
from tuning.stats import Outcome
from tuning.trial import Status

OTHER = fake_arm("custom/baseline")
TOGETHER = (1, 2, 4, 8, 16)
CU128 = {"python": "3.12.0", "libraries": {"torch": "2.9.1+cu128", "nvidia-nccl-cu12": "2.27.5", "sglang": "0.5.9"}}
CU130 = {"python": "3.12.0", "libraries": {"torch": "2.9.1+cu130", "nvidia-nccl-cu13": "2.27.5", "sglang": "0.5.9"}}


def compared(run: ServingRun, a: str = "default/baseline", b: str = "default/2-1-3") -> Comparison:
    return compare_serving_names(run, a, run, b)[0]


def flat(_environment: str, arm: str, _concurrency: int, _repetition: int) -> float:
    return 15.0 if arm.endswith("2-1-3") else 10.0


def tau() -> float:
    passes = sum(round(200 / fake_accept(prompt, 2)) for prompt, _ in PROMPTS)
    return 200 * len(PROMPTS) / passes


@pytest.mark.parametrize(("factor", "outcome"), [(1, Outcome.SAME), (1.1, Outcome.WORSE), (1 / 1.1, Outcome.BETTER)])
def test_a_known_difference_of_step_time_is_found(factor: float, outcome: Outcome) -> None:
    plan = fake_serving_plan(BASELINE, OTHER, starts=5)
    run = fake_serving_run(plan, lambda _e, arm, _c, _r: 10 * (factor if arm == OTHER.name else 1))
    found = compared(run, "default/baseline", "custom/baseline")
    assert (found.metric, found.overall.outcome) == ("step_ms", outcome)
    assert found.rows[0].step.ratio == pytest.approx(factor, rel=0.005)
    assert found.asked == ("allreduce: default / custom",)


def test_starts_of_a_repetition_pair_whatever_disturbs_them_both() -> None:
    """What shifts both starts of a repetition by some 20 % hides a difference of 5 % from all but pairs."""
    plan = fake_serving_plan(BASELINE, OTHER, starts=6)
    run = fake_serving_run(
        plan, lambda _e, arm, _c, _r: 10 * (1.05 if arm == OTHER.name else 1), disturbance=0.02, spread=0.001
    )
    row = compared(run, "default/baseline", "custom/baseline").rows[0]
    assert row.step.mde is not None
    assert row.step.mde < 0.005, "unpaired it would be 3 %"
    assert row.step.outcome is Outcome.WORSE
    turned = {r: (r + 1) % 6 for r in range(6)}
    trials = tuple(
        replace(trial, repetition=turned[trial.repetition]) if trial.arm == OTHER.name else trial
        for trial in run.trials
    )
    broken = compared(replace(run, trials=trials), "default/baseline", "custom/baseline").rows[0]
    assert broken.step.mde is not None
    assert broken.step.mde > 0.02


def test_a_thing_beside_itself_is_the_same_and_called_so() -> None:
    probe = fake_arm("default/probe")
    run = fake_serving_run(fake_serving_plan(BASELINE, probe, starts=5), lambda *_: 10.0)
    found = compared(run, "default/baseline", "default/probe")
    assert found.is_a_a
    assert found.overall.outcome is Outcome.SAME
    assert found.rows[0].pays is None


def test_step_time_and_acceptance_are_told_apart() -> None:
    """B steps 10 % slower and accepts as A does; or steps alike and accepts less."""
    slower = fake_arm("custom/2-1-3", speculation=SPECULATION)
    plan = fake_serving_plan(EAGLE, slower, starts=5)
    run = fake_serving_run(plan, lambda _e, arm, _c, _r: 11.0 if arm == slower.name else 10.0)
    (row,) = compared(run, EAGLE.name, slower.name).rows
    assert (row.step.outcome, row.acceptance.outcome) == (Outcome.WORSE, Outcome.SAME)
    assert row.at_acceptance_of_a == pytest.approx(1000 * tau() / 11, rel=0.01)

    fewer = fake_serving_run(plan, lambda *_: 10.0, accept=lambda prompt, steps: fake_accept(prompt, steps) - 0.3)
    requests = {t.repetition: t for t in fewer.trials if t.arm == slower.name}
    same = fake_serving_run(plan, lambda *_: 10.0)
    trials = tuple(requests[t.repetition] if t.arm == slower.name else t for t in same.trials)
    found = compared(replace(same, trials=trials), EAGLE.name, slower.name)
    (row,) = found.rows
    assert (row.step.outcome, row.acceptance.outcome) == (Outcome.SAME, Outcome.WORSE)
    assert found.outcomes(every_row=False) == {Outcome.SAME, Outcome.WORSE}
    assert row.acceptance.ratio is not None
    assert row.acceptance.ratio.value == pytest.approx((tau() - 0.3) / tau(), rel=0.02)


def test_acceptance_is_paired_by_prompt() -> None:
    """Prompts differ by a factor of two; each loses 3 %: paired that is seen, unpaired it is not."""
    draws = (1.2, 2.6, 1.5, 2.2, 1.3, 2.8, 1.9, 2.4)
    a = {str(n): Counts(tokens=1000, passes=1000 / t) for n, t in enumerate(draws)}
    b = {str(n): Counts(tokens=1000, passes=1000 / (t * 0.97)) for n, t in enumerate(draws)}
    ratio = accept_ratio(a, b)
    assert ratio is not None
    assert ratio.value == pytest.approx(0.97)
    assert ratio.high is not None
    assert ratio.high < 0.975
    assert (alone := accept_length(a)) is not None
    assert alone.low is not None
    assert alone.high is not None
    assert alone.low < 0.85 * alone.value < alone.value < 0.87 * alone.high
    turned = dict(zip(a, list(b.values())[1:] + list(b.values())[:1], strict=True))
    assert (wrong := accept_ratio(a, turned)) is not None
    assert wrong.high is not None
    assert wrong.high > 1.2, "with pairs broken nothing is known"


def test_an_interval_over_prompts_holds_the_truth_as_often_as_it_says() -> None:
    draw, held = random.Random(1), 0
    for _ in range(400):
        counts = {str(n): Counts(tokens=200, passes=200 / draw.uniform(1.2, 2.8)) for n in range(12)}
        found = accept_length(counts)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        truth = 1.6 / math.log(2.8 / 1.2)  # tokens over the mean number of passes: a harmonic mean
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_speculation_pays_where_acceptance_exceeds_the_break_even() -> None:
    run = fake_serving_run(fake_serving_plan(starts=4), flat)
    found = compared(run)
    (row,) = found.rows
    assert row.pays is not None
    assert row.pays.break_even.value == pytest.approx(1.5, rel=0.005)
    assert row.pays.accept.value == pytest.approx(tau())
    assert row.pays.speed_up.value == pytest.approx(tau() / 1.5, rel=0.005)
    assert row.pays.outcome is Outcome.BETTER
    assert found.metric == "tokens_per_second"
    assert found.overall.outcome is Outcome.BETTER
    assert [category.name for category in row.acceptance.categories] == ["code", "chat"]
    code, chat = row.acceptance.categories
    assert code.b.value > chat.b.value
    assert code.a == certain(1.0)
    assert row.acceptance.positions[1] == pytest.approx((0.75, 0.5), abs=0.02)
    assert found.crossings == ()


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({1: 1.4, 2: 1.5, 4: 1.7, 8: 2.3, 16: 3.0}, [(4, 8, True)]),
        ({1: 2.4, 2: 1.5, 4: 1.5, 8: 2.5, 16: 3.0}, [(1, 2, False), (4, 8, True)]),
        ({1: 1.4, 2: 1.5, 4: "tau", 8: 2.5, 16: 3.0}, [(2, 8, True)]),
        ({1: 3.0, 2: 3.0, 4: 3.0, 8: 3.0, 16: 3.0}, []),
    ],
    ids=["stops", "begins and stops", "undecided in between", "never"],
)
def test_where_speculation_stops_paying_is_found(ratios: dict[int, object], expected: list[object]) -> None:
    arms = (fake_arm("default/baseline", *TOGETHER), fake_arm("default/2-1-3", *TOGETHER, speculation=SPECULATION))

    def truth(_environment: str, arm: str, concurrency: int, _repetition: int) -> float:
        ratio = ratios[concurrency]
        return 10 * (tau() if ratio == "tau" else float(str(ratio))) if arm.endswith("3") else 10.0

    steady = fake_serving_run(fake_serving_plan(*arms, starts=4), truth, accept=lambda _prompt, _steps: tau())
    found = compared(steady).crossings
    assert [(crossing.low, crossing.high, crossing.stops) for crossing in found] == expected
    assert all(crossing.low <= crossing.at <= crossing.high for crossing in found)


def test_other_prompt_lengths_are_not_judged() -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE, OTHER, starts=4), lambda *_: 10.0)

    def longer(trial):
        done = [
            replace(p, requests=tuple(replace(r, prompt_tokens=r.prompt_tokens + 4) for r in p.requests))
            for p in trial.passes
        ]
        return replace(trial, passes=tuple(done)) if trial.arm == OTHER.name else trial

    found = compared(replace(run, trials=tuple(map(longer, run.trials))), "default/baseline", "custom/baseline")
    assert found.overall.outcome is Outcome.NOT_COMPARABLE
    assert {row.step.outcome for row in found.rows} == {Outcome.NOT_COMPARABLE}
    assert "has 20 tokens in A and 24 in B" in found.overall.reason or "tokens in A" in found.overall.reason
    assert found.overall.ratio == pytest.approx(1, rel=0.01)


def test_two_run_files_are_described_never_judged() -> None:
    plan = fake_serving_plan(starts=4)
    runs = [fake_serving_run(plan, flat, path=Path(name)) for name in ("a.jsonl", "b.jsonl")]
    (found,) = compare_serving_names(runs[0], "default/2-1-3", runs[1], "default/2-1-3")
    assert found.overall.outcome is Outcome.NOT_COMPARABLE
    assert found.rows[0].step.ci_low is None
    assert any("two runs" in warning for warning in found.warnings)


def pair(cu128: dict[str, object], cu130: dict[str, object], **options) -> Comparison:
    plan = fake_serving_plan(BASELINE, environments=("cu128-m", "cu130-m"), starts=4)
    run = fake_serving_run(plan, lambda *_: 10.0, environments={"cu128-m": cu128, "cu130-m": cu130}, **options)
    return compared(run, "cu128-m", "cu130-m")


def test_cuda_is_named_only_where_nothing_else_differs() -> None:
    assert any("the difference is CUDA's" in note for note in pair(CU128, CU130).notes)
    assert any("torch" in line for line in pair(CU128, CU130).differs)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"libraries": {**CU130["libraries"], "sglang": "0.5.23"}}, "sglang"),  # type: ignore[dict-item]
        ({"libraries": {**CU130["libraries"], "nvidia-nccl-cu13": "2.28.9"}}, "nvidia-nccl"),  # type: ignore[dict-item]
        ({"python": "3.13.0"}, "python"),
        ({"variables": {"NCCL_ALGO": "Ring"}}, "variables"),
    ],
)
def test_cuda_is_not_blamed_where_more_differs(changed: dict[str, object], named: str) -> None:
    (note,) = pair(CU128, {**CU130, **changed}).notes
    assert "not CUDA's alone" in note
    assert named in note


def test_cuda_is_not_blamed_where_servers_resolved_otherwise() -> None:
    releases = {"cu128-m": "0.5.9", "cu130-m": "0.5.23"}
    (note,) = pair(CU128, CU130, release=releases.__getitem__).notes
    assert "SGLang release" in note
    (note,) = pair(CU128, CU130, resolved=lambda env, _arm: {"attention_backend": env}).notes
    assert "attention_backend" in note
    (note,) = pair(
        CU128, CU130, resolved=lambda env, _arm: {"max_total_num_tokens": len(env + "x" * (env > "cu129"))}
    ).notes
    assert "difference is CUDA's" in note


def test_cuda_is_not_blamed_for_what_the_arms_were_meant_to_differ_in() -> None:
    plan = fake_serving_plan(BASELINE, OTHER, environments=("cu128-m", "cu130-m"))
    run = fake_serving_run(plan, lambda *_: 10.0, environments={"cu128-m": CU128, "cu130-m": CU130})
    (note,) = compared(run, "cu128-m:default/baseline", "cu130-m:custom/baseline").notes
    assert note == "the difference is not CUDA's alone: allreduce differs, too"


def test_equal_environments_say_nothing_of_cuda() -> None:
    assert pair(CU128, CU128).notes == ()
    assert pair(CU128, CU128).is_a_a
    assert pair({}, {}).notes == ()


def test_what_servers_resolved_differently_is_listed_and_seeds_are_not() -> None:
    plan = fake_serving_plan(starts=3)
    run = fake_serving_run(
        plan,
        flat,
        resolved=lambda _e, arm: {"speculative_num_steps": 2 if "3" in arm else None, "max_running_requests": len(arm)},
    )
    found = compared(run)
    assert found.differs == ("max_running_requests: 16 / 13",)
    assert found.follows == ()
    assert found.asked == ("speculation: nothing / EAGLE3 2/1/3",)


def test_what_a_server_sets_otherwise_since_it_speculates_is_listed_by_itself() -> None:
    def resolved(_environment: str, arm: str) -> dict[str, object]:
        speculates = arm == EAGLE.name
        return {"cuda_graph_bs": [1, 2, 3] if speculates else [1, 2], "disable_overlap_schedule": speculates}

    run = fake_serving_run(fake_serving_plan(starts=3), flat, resolved=resolved)
    found = compared(run)
    assert found.follows == ("cuda_graph_bs: [1, 2] / [1, 2, 3]", "disable_overlap_schedule: False / True")
    assert found.differs == ()
    other = fake_serving_run(
        fake_serving_plan(BASELINE, OTHER),
        lambda *_: 10.0,
        resolved=lambda _e, arm: {"cuda_graph_bs": [1] if arm == OTHER.name else [2]},
    )
    assert compared(other, BASELINE.name, OTHER.name).differs == ("cuda_graph_bs: [2] / [1]",)


def test_without_pairs_speculation_is_undecided_with_a_reason_and_never_judged_by_acceptance() -> None:
    run = fake_serving_run(fake_serving_plan(starts=2), flat)
    kept = {(BASELINE.name, 0), (EAGLE.name, 1)}
    found = compared(replace(run, trials=tuple(t for t in run.trials if (t.arm, t.repetition) in kept)))
    (row,) = found.rows
    assert (row.acceptance.outcome, row.at_acceptance_of_a) == (None, None)
    assert row.pays is not None
    assert (row.pays.outcome, row.pays.break_even.value) == (Outcome.UNDECIDED, pytest.approx(1.5, rel=0.01))
    assert row.pays.break_even.low is None
    assert "undecided at 1 request (0 of the 2 pairs" in headline(found)
    nothing = compared(replace(run, trials=tuple(t for t in run.trials if t.arm == BASELINE.name)))
    assert "undecided at 1 request (" in headline(nothing)


def test_two_runs_are_not_judged_whether_speculation_pays() -> None:
    plan = fake_serving_plan(starts=3)
    a, b = (fake_serving_run(plan, flat, path=Path(name)) for name in ("a.jsonl", "b.jsonl"))
    (found,) = compare_serving_names(a, BASELINE.name, b, EAGLE.name)
    assert found.rows[0].pays is not None
    assert found.rows[0].pays.outcome is Outcome.NOT_COMPARABLE
    assert "not comparable at 1 request (two run files" in headline(found)


def test_two_starts_that_differ_are_no_kinds_yet() -> None:
    plan = fake_serving_plan(BASELINE, OTHER, starts=2)
    run = fake_serving_run(plan, lambda _e, _a, _c, r: 10 * (1 + 0.04 * r), spread=0.0001)
    warnings = compared(run, BASELINE.name, OTHER.name).warnings
    assert sum("two starts differ by 4.0%" in warning for warning in warnings) == 2
    assert not any("two kinds" in warning for warning in warnings)


def test_starts_of_two_kinds_drift_and_findings_weaken() -> None:
    plan = fake_serving_plan(BASELINE, OTHER, starts=4)
    kinds = {0: 1.0, 1: 1.12, 2: 1.0, 3: 1.121}
    run = fake_serving_run(plan, lambda _e, arm, _c, r: 10 * (kinds[r] if arm == OTHER.name else 1), spread=0.0001)
    (found,) = [w for w in compared(run, BASELINE.name, OTHER.name).warnings if "two kinds" in w]
    assert "host:custom/baseline at 1" in found
    drifting = fake_serving_run(plan, lambda _e, _a, _c, r: 10 * (1 + 0.01 * r), spread=0.0001)
    assert any("drift" in w for w in compared(drifting, BASELINE.name, OTHER.name).warnings)
    steady = fake_serving_run(plan, lambda *_: 10.0)
    assert compared(steady, BASELINE.name, OTHER.name).warnings == ()
    eager = {k: replace(s, findings=("1 request: 100% of decode steps ran eagerly",)) for k, s in steady.starts.items()}
    warnings = compared(replace(steady, starts=eager), BASELINE.name, OTHER.name).warnings
    assert sum("eagerly (4 of 4 starts)" in warning for warning in warnings) == 2


def test_a_lost_start_takes_its_partner_with_it_and_is_said() -> None:
    run = fake_serving_run(fake_serving_plan(starts=4), flat)
    lost = replace(run, trials=tuple(t for t in run.trials if (t.arm, t.repetition) != (EAGLE.name, 2)))
    found = compared(lost)
    assert found.overall.n == 3
    assert any("3 of 4 starts" in warning for warning in found.warnings)
    gone = compared(replace(run, trials=tuple(t for t in run.trials if t.arm != EAGLE.name)))
    assert (gone.overall.outcome, gone.rows[0].step_ms[1], gone.rows[0].pays) == (Outcome.UNDECIDED, None, None)


def silent(run: ServingRun) -> ServingRun:
    """The same of a server that counts verify passes of all requests together only."""
    trials = tuple(
        replace(
            trial,
            passes=tuple(
                replace(done, requests=tuple(replace(r, verify_passes=None) for r in done.requests))
                for done in trial.passes
            ),
        )
        for trial in run.trials
    )
    return replace(run, trials=trials)


def test_where_nothing_tells_acceptance_by_prompt_starts_are_no_evidence_on_it() -> None:
    found = compared(silent(fake_serving_run(fake_serving_plan(starts=4), flat)))
    (row,) = found.rows
    assert row.acceptance.prompts == 0
    assert row.acceptance.b is not None
    assert (row.acceptance.b.value, row.acceptance.b.low) == (pytest.approx(tau()), None)
    assert row.pays is not None
    assert {row.pays.outcome, row.speed.outcome, found.overall.outcome} == {Outcome.UNDECIDED}
    assert "undecided at 1 request (nothing tells acceptance by prompt" in headline(found)


@pytest.mark.parametrize("seen", ["by prompt", "of one prompt", "by pass"])
def test_simulated_acceptance_is_given_and_the_verdict_is_that_of_step_times(seen: str) -> None:
    simulated = fake_arm("default/2-1-3", speculation=SPECULATION, accept_length=2.4)
    run = fake_serving_run(fake_serving_plan(BASELINE, simulated, starts=4), flat)
    (row,) = compared({"by prompt": run, "of one prompt": one_prompt(run), "by pass": silent(run)}[seen]).rows
    assert row.acceptance.b is not None
    assert row.acceptance.b.low == row.acceptance.b.value == row.acceptance.b.high
    assert row.acceptance.mde is None
    assert row.pays is not None
    assert row.pays.outcome is Outcome.BETTER

    def unsteady(_environment: str, arm: str, _concurrency: int, repetition: int) -> float:
        return 10 * tau() * (1 + repetition / 50) if arm.endswith("3") else 10.0

    uneven = fake_serving_run(fake_serving_plan(BASELINE, simulated, starts=4), unsteady)
    assert compared(uneven).rows[0].speed.outcome is Outcome.UNDECIDED


def test_two_simulated_acceptances_are_not_judged() -> None:
    arms = [fake_arm(f"{backend}/2-1-3", speculation=SPECULATION, accept_length=2.4) for backend in ("custom", "nccl")]
    run = fake_serving_run(fake_serving_plan(*arms, starts=4), flat)
    (row,) = compared(run, "custom/2-1-3", "nccl/2-1-3").rows
    assert row.acceptance.outcome is None
    assert row.acceptance.mde is None


def test_where_acceptance_is_simulated_a_crossing_is_what_would_be() -> None:
    arms = (
        fake_arm("default/baseline", 1, 8),
        fake_arm("default/2-1-3", 1, 8, speculation=SPECULATION, accept_length=2.4),
    )
    ratio = {1: 1.2, 8: 3.0}
    run = fake_serving_run(
        fake_serving_plan(*arms, starts=4),
        lambda _e, arm, concurrency, _r: 10 * (ratio[concurrency] if arm.endswith("3") else 1),
        accept=lambda _prompt, _steps: tau(),
    )
    assert "would stop paying between 1 and 8 requests" in headline(compared(run))


def test_numbers_that_cannot_be_are_not_compared() -> None:
    run = with_latencies(fake_serving_run(fake_serving_plan(BASELINE, EAGLE, starts=3), flat), slower=1)
    trials = tuple(
        replace(
            t, passes=tuple(replace(d, requests=tuple(replace(r, seconds=0.0) for r in d.requests)) for d in t.passes)
        )
        for t in run.trials
    )
    (row, *_) = compared(replace(run, trials=trials)).rows
    assert [one.name for one in row.latencies] == ["TTFT", "ITL p99"]


def one_prompt(run: ServingRun) -> ServingRun:
    trials = (
        replace(trial, passes=tuple(replace(done, requests=done.requests[:1]) for done in trial.passes))
        for trial in run.trials
    )
    return replace(run, trials=tuple(trials))


def test_one_prompt_alone_does_not_tell_whether_speculation_pays() -> None:
    found = compared(one_prompt(fake_serving_run(fake_serving_plan(starts=4), flat)))
    assert found.overall.outcome is Outcome.UNDECIDED
    assert "undecided at 1 request (one prompt alone" in headline(found)


def near(_environment: str, arm: str, _concurrency: int, _repetition: int) -> float:
    """Steps of speculation are just short enough by the mean of these prompts, and not by prompts such as these."""
    return 10 * tau() / 1.04 if arm.endswith("2-1-3") else 10.0


def test_one_verdict_is_told_everywhere_and_holds_the_spread_of_prompts() -> None:
    found = compared(fake_serving_run(fake_serving_plan(starts=4), near))
    (row,) = found.rows
    assert row.pays is not None
    assert row.step.ci_low is not None
    assert {row.pays.outcome, row.speed.outcome, found.overall.outcome} == {Outcome.UNDECIDED}
    assert found.outcomes(every_row=True) == {Outcome.UNDECIDED}
    assert (row.speed.ratio, row.speed.ci_low, row.speed.ci_high) == (
        row.pays.speed_up.value,
        row.pays.speed_up.low,
        row.pays.speed_up.high,
    )
    assert found.overall.ci_low == pytest.approx(row.speed.ci_low)


def test_an_undecided_verdict_says_which_interval_leaves_it_open() -> None:
    by_prompts = headline(compared(fake_serving_run(fake_serving_plan(starts=4), near)))
    accept = accept_length({p: Counts(tokens=200, passes=round(200 / fake_accept(p, 2))) for p, _ in PROMPTS})
    assert accept is not None
    assert f"(the accept length, {accept.low:.3f} to {accept.high:.3f}, holds the break-even" in by_prompts
    assert "more prompts would tell" in by_prompts
    run = fake_serving_run(fake_serving_plan(starts=3), near, spread=0.1, accept=lambda _prompt, _steps: tau())
    by_starts = headline(compared(run))
    assert "(the break-even, " in by_starts
    assert f"holds the accept length {200 / round(200 / tau()):.3f}, and more --starts would tell" in by_starts


def test_a_difference_below_what_counts_says_so() -> None:
    def barely(_environment: str, arm: str, _concurrency: int, _repetition: int) -> float:
        return 10 * 2 / 1.017 if arm.endswith("2-1-3") else 10.0

    plan = fake_serving_plan(starts=6, margin=0.01)
    found = compared(fake_serving_run(plan, barely, spread=1e-5, accept=lambda _prompt, _steps: 2.0))
    assert "undecided at 1 request (the difference 1.7 % is below 2.0 %, the least that counts)" in headline(found)


def test_acceptance_over_prompts_is_in_the_speed_of_two_that_speculate() -> None:
    """B drafts more and accepts more of some prompts and less of others; starts agree that it is faster on these."""
    more = fake_arm("default/3-1-4", speculation=replace(SPECULATION, steps=3, draft_tokens=4))

    def accept(prompt: str, steps: int) -> float:
        return 2.0 if steps == 2 else 2.0 * (1.5 if prompt.endswith(("0", "1")) else 0.75)

    run = fake_serving_run(
        fake_serving_plan(EAGLE, more, starts=5), lambda _e, a, _c, _r: 9.0 if a == more.name else 10.0, accept=accept
    )
    found = compared(run, EAGLE.name, more.name)
    (row,) = found.rows
    assert found.metric == "tokens_per_second"
    assert row.step.outcome is Outcome.BETTER
    assert {row.speed.outcome, found.overall.outcome} == {Outcome.UNDECIDED}
    assert "the accept length B/A, " in headline(found)
    assert "--starts" not in headline(found)


def test_over_several_numbers_of_requests_the_answer_is_said_where_theirs_is_another() -> None:
    arms = (fake_arm("default/baseline", 1, 8), fake_arm("default/2-1-3", 1, 8, speculation=SPECULATION))

    def truth(_environment: str, arm: str, concurrency: int, _repetition: int) -> float:
        return 10 * (1.1 if concurrency == 1 else 2.3) if arm.endswith("3") else 10.0

    found = compared(fake_serving_run(fake_serving_plan(*arms, starts=4), truth))
    assert [row.speed.outcome for row in found.rows] == [Outcome.BETTER, Outcome.WORSE]
    assert found.overall.outcome is Outcome.BETTER
    assert found.overall.ratio == pytest.approx(math.sqrt(tau() / 1.1 * tau() / 2.3), rel=0.01)
    assert headline(found).endswith("; over all of these: pays")


def test_simulated_acceptance_would_pay() -> None:
    simulated = fake_arm("default/2-1-3", speculation=SPECULATION, accept_length=2.5)
    found = compared(fake_serving_run(fake_serving_plan(BASELINE, simulated, starts=4), flat))
    assert headline(found).endswith(": would pay at an accept length of 2.5 (simulated) at 1 request")


def test_failures_are_pointed_to_only_where_there_are_some() -> None:
    run = fake_serving_run(fake_serving_plan(starts=4), flat)
    last = [t for t in run.trials if t.repetition == 3 and t.arm == EAGLE.name]
    kept = tuple(t for t in run.trials if t not in last)
    failed = tuple(replace(t, status=Status.CRASHED, passes=(), reason="x") for t in last)
    (absent,) = [w for w in compared(replace(run, trials=kept)).warnings if "3 of 4" in w]
    (broken,) = [w for w in compared(replace(run, trials=kept + failed)).warnings if "3 of 4" in w]
    assert ("failures below" in absent, "failures below" in broken) == (False, True)


def test_one_fact_is_listed_once() -> None:
    before, after = (
        {"libraries": {"sglang": v}, "variables": {"B": v}, "parts": [{"name": n, "clock": v} for n in "pq"]}
        for v in ("1", "2")
    )
    run = fake_serving_run(
        fake_serving_plan(BASELINE, environments=("x", "y")),
        lambda *_: 10.0,
        environments={"x": {**before, "nccl": {}}, "y": {**after, "nccl": {"A": {"value": "2", "source": "file"}}}},
        release=lambda environment: "1" if environment == "x" else "2",
        resolved=lambda environment, _arm: {
            "version": "1" if environment == "x" else "2",
            "B": {"x": 1, "y": 2}[environment],
        },
    )
    starts = {k: replace(s, variables={} if s.environment == "x" else {"A": "2"}) for k, s in run.starts.items()}
    assert compared(replace(run, starts=starts), "x", "y").differs == (
        "libraries sglang: 1 / 2",
        "nccl A: nothing / 2 (file)",
        "parts p clock: 1 / 2",
        "parts q clock: 1 / 2",
        "variables B: 1 / 2",
    )


def test_answers_are_counted_by_hash_where_they_mean_something() -> None:
    run = fake_serving_run(fake_serving_plan(starts=3), flat)
    first = next(t for t in run.trials if t.arm == EAGLE.name)
    others = [replace(p, requests=(replace(p.requests[0], output="another"), *p.requests[1:])) for p in first.passes]
    changed = tuple(replace(t, passes=tuple(others)) if t is first else t for t in run.trials)
    assert (found := compared(replace(run, trials=changed)).rows[0].outputs) is not None
    assert (found.prompts, found.differing, found.unsteady) == (8, 0, 1)
    simulated = fake_arm("default/2-1-3", speculation=SPECULATION, accept_length=2.4)
    run = fake_serving_run(fake_serving_plan(BASELINE, simulated), flat)
    assert compared(run).rows[0].outputs is None
    assert any("was simulated" in note for note in compared(run).notes)


def test_an_overview_asks_every_question_once() -> None:
    eagle = fake_arm("custom/2-1-3", speculation=SPECULATION)
    plan = fake_serving_plan(BASELINE, EAGLE, OTHER, eagle, environments=("x", "y"), starts=2)
    found = serving_overview(fake_serving_run(plan, flat))
    assert [(c.a.label, c.b.label) for c in found[:4]] == [
        ("x:default/baseline", "x:default/2-1-3"),
        ("x:custom/baseline", "x:custom/2-1-3"),
        ("x:default/baseline", "x:custom/baseline"),
        ("x:default/2-1-3", "x:custom/2-1-3"),
    ]
    assert [(c.a.label, c.b.label) for c in found[8:]] == [
        (f"x:{arm.name}", f"y:{arm.name}") for arm in (BASELINE, EAGLE, OTHER, eagle)
    ]


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("nope", "default/2-1-3", "nope"),
        ("host", "default/baseline", "on both sides"),
        ("default/2-1-3", "default/2-1-3", "on both sides"),
    ],
)
def test_names_that_do_not_fit_are_refused(a: str, b: str, says: str) -> None:
    run = fake_serving_run(fake_serving_plan(), flat)
    with pytest.raises(InputError, match=says):
        compared(run, a, b)


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("baseline", "default/baseline"),
        ("2/1/3", "default/2-1-3"),
        ("2-1-3", "default/2-1-3"),
        ("default/2/1/3", "default/2-1-3"),
        ("default-2-1-3", "default/2-1-3"),
        ("2/1/3@2.5", "default/2-1-3@2.5"),
        ("host:2/1/3", "default/2-1-3"),
        ("host", "default/baseline"),
    ],
)
def test_an_arm_needs_no_backend_where_there_is_one_and_is_written_as_it_was_asked_for(name: str, arm: str) -> None:
    simulated = fake_arm("default/2-1-3@2.5", speculation=SPECULATION, accept_length=2.5)
    run = fake_serving_run(fake_serving_plan(BASELINE, EAGLE, simulated), flat)
    assert [side.label for side in find_sides(run, name)] == [f"host:{arm}"]


def test_an_arm_of_several_backends_needs_its_backend() -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE, EAGLE, OTHER), flat)
    assert [side.arm for side in find_sides(run, "custom-baseline")] == ["custom/baseline"]
    for name in ("baseline", "2/1/3", "host:baseline", "elsewhere:default/2/1/3"):
        with pytest.raises(InputError, match="holds nothing called") as caught:
            find_sides(run, name)
        assert "host, default/baseline, default/2-1-3, custom/baseline, or environment:arm" in caught.value.expected


def test_an_environment_goes_before_an_arm_without_its_backend() -> None:
    run = fake_serving_run(fake_serving_plan(environments=("host", "2-1-3")), flat)
    assert [side.label for side in find_sides(run, "2-1-3")] == ["2-1-3:default/baseline"]
    assert [side.label for side in find_sides(run, "2/1/3")] == ["host:default/2-1-3", "2-1-3:default/2-1-3"]


def test_an_environment_and_an_arm_do_not_go_together() -> None:
    run = fake_serving_run(fake_serving_plan(environments=("x", "y")), flat)
    with pytest.raises(InputError, match="'x' is one arm in one environment, 'default/2-1-3' an arm in every"):
        compared(run, "x", "default/2-1-3")
    with pytest.raises(InputError, match="'x' is one arm in one environment, 'default/2-1-3' an arm in every"):
        compared(run, "default/2-1-3", "x")
    with pytest.raises(InputError) as caught:
        compared(run, "x", "default/baseline")
    assert caught.value.todo == "say, for example, x:default/baseline y:default/baseline"


def test_arms_without_a_common_number_of_requests_are_refused() -> None:
    plan = fake_serving_plan(BASELINE, fake_arm("custom/baseline", 4))
    with pytest.raises(InputError, match="planned at 1 requests"):
        compared(fake_serving_run(plan, flat), BASELINE.name, "custom/baseline")


def test_a_difference_has_the_interval_of_both() -> None:
    difference = Estimate(value=3, low=2, high=5).minus(Estimate(value=1, low=0.5, high=3))
    assert difference.value == 2
    assert difference.low == pytest.approx(2 - math.hypot(1, 2))
    assert difference.high == pytest.approx(2 + math.hypot(2, 0.5))
    assert Estimate(value=3).minus(certain(1)) == Estimate(value=2)
    assert of_mean([5.0]) == Estimate(value=5.0)


def test_latencies_are_described_with_what_could_be_detected() -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE, EAGLE, starts=5), flat)
    (row, *_) = compared(with_latencies(run, slower=1.5)).rows
    found = {one.name: one for one in row.latencies}
    assert list(found) == ["TTFT", "TPOT", "ITL p99"]
    assert found["TTFT"].judged.ratio == pytest.approx(1.5 * row.step.ratio, rel=1e-3)
    assert found["ITL p99"].judged.ratio == pytest.approx(row.step.ratio, rel=1e-3)
    assert found["ITL p99"].ms[0] == pytest.approx(2 * row.step_ms[0])
    assert found["TTFT"].judged.mde == pytest.approx(row.step.mde, rel=0.01)


def test_a_latency_that_a_start_does_not_tell_is_left_out() -> None:
    run = with_latencies(fake_serving_run(fake_serving_plan(BASELINE, EAGLE, starts=5), flat), slower=1)
    first, *others = run.trials
    lost = replace(first, passes=tuple(replace(done, itl_p99_ms=None) for done in first.passes))
    (row, *_) = compared(replace(run, trials=(lost, *others))).rows
    assert [one.name for one in row.latencies] == ["TTFT", "TPOT"]


def test_what_could_be_detected_of_acceptance_follows_from_its_interval() -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE, EAGLE, starts=5), flat)
    (row, *_) = compared(run).rows
    ratio = row.acceptance.ratio
    assert ratio
    assert ratio.low
    assert ratio.high
    half = math.log(ratio.high / ratio.low) / 2
    assert row.acceptance.mde == pytest.approx(math.exp(half * (1.95996 + 0.84162) / 1.95996) - 1, rel=1e-3)
