"""Comparisons of made-up runs whose truth is known: what is said, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lanewise.errors import ExitCode, InputError
from tests.unit.makers import fake_candidate, fake_launch, fake_plan, fake_run, fake_trial
from tuning import compare_view as view
from tuning.arms import failures
from tuning.bench import exit_code
from tuning.compare import compare_names, overview
from tuning.runfile import Kind, Run
from tuning.stats import Outcome
from tuning.trial import Status

CANDIDATES = (fake_candidate("default"), fake_candidate("ring"), fake_candidate("tcp", BTL="tcp"))
BOTH = fake_plan(candidates=CANDIDATES, environments=("cu128", "cu130"), launches=6)


def flat(_environment: str, _candidate: str, message: str) -> float:
    return 30.0 if message == "small" else 90.0


def outcome(run: Run, a: str, b: str) -> Outcome:
    return compare_names(run, a, run, b)[0].overall.outcome


@pytest.mark.parametrize(("factor", "expected"), [(1.0, Outcome.SAME), (1.2, Outcome.WORSE), (1 / 1.2, Outcome.BETTER)])
@pytest.mark.parametrize("pair", [("default", "ring"), ("cu128", "cu130"), ("default", "tcp")])
def test_a_known_difference_is_found(pair: tuple[str, str], factor: float, expected: Outcome) -> None:
    b = pair[1]
    run = fake_run(BOTH, lambda e, c, m: flat(e, c, m) * (factor if b in (e, c) else 1), spread=0.01)
    assert outcome(run, *pair) is expected


def test_arms_of_one_launch_compare_as_pairs_whatever_the_launches_do() -> None:
    """Launches that start fast or slow differ by a factor; the ratio within each does not."""
    run = fake_run(
        BOTH, lambda e, c, m: flat(e, c, m) * (1.2 if c == "ring" else 1), spread=0.002, start_spread=0.6, seed=2
    )
    assert outcome(run, "cu128:default", "cu128:ring") is Outcome.WORSE
    assert outcome(run, "cu128", "cu130") is Outcome.UNDECIDED, "launches of their own cannot see through that"
    (comparison,) = compare_names(run, "cu128", run, "cu130")
    assert any("among themselves" in warning for warning in comparison.warnings)
    assert comparison.overall.more_launches or comparison.overall.more_launches_if_same


def test_a_reversed_comparison_is_reversed() -> None:
    run = fake_run(BOTH, lambda e, c, m: flat(e, c, m) * (1.2 if c == "ring" else 1), spread=0.005)
    forth, back = (compare_names(run, a, run, b)[0].overall for a, b in (("default", "ring"), ("ring", "default")))
    assert (forth.outcome, back.outcome) == (Outcome.WORSE, Outcome.BETTER)
    assert forth.ratio == pytest.approx(1 / back.ratio)


def test_sizes_are_judged_each_and_together() -> None:
    run = fake_run(BOTH, lambda e, c, m: flat(e, c, m) * (1.5 if (c, m) == ("ring", "large") else 1), spread=0.005)
    (first, _) = compare_names(run, "default", run, "ring")
    assert [row.judgement.outcome for row in first.rows] == [Outcome.SAME, Outcome.WORSE]
    assert first.overall.ratio == pytest.approx(1.5**0.5, rel=0.02)
    assert first.rows[1].a == pytest.approx(90, rel=0.02)
    assert view.outcomes([first], any_size=True) >= {Outcome.SAME, Outcome.WORSE}
    assert view.outcomes([first], any_size=False) == {first.overall.outcome}


def test_the_noise_floor_is_what_two_copies_of_the_baseline_show() -> None:
    run = fake_run(BOTH, flat, spread=0.001)
    (first, _) = compare_names(run, "default", run, "ring")
    assert first.overall.floor is not None
    assert 0 < first.overall.floor < 0.003
    disturbed = replace(
        run,
        trials=tuple(
            replace(t, samples=((t.median * 1.3,),)) if t.copy == 1 or t.candidate == "ring" else t for t in run.trials
        ),
    )
    (first, _) = compare_names(disturbed, "default", disturbed, "ring")
    assert first.overall.outcome is Outcome.UNDECIDED, "30 % slower, but so is the baseline itself"
    assert any("two copies of default differ" in warning for warning in first.warnings)


def test_a_failed_launch_takes_its_partner_with_it_and_is_said() -> None:
    run = fake_run(BOTH, flat)
    lost = [t for t in run.trials if (t.environment, t.candidate, t.repetition) == ("cu128", "ring", 2)]
    trials = tuple(
        replace(t, status=Status.CRASHED, samples=(), reason="exit code 139 (SIGSEGV)") if t in lost else t
        for t in run.trials
    )
    broken = replace(run, trials=trials)
    (first, second) = compare_names(broken, "default", broken, "ring")
    assert (first.overall.n, second.overall.n) == (5, 6)
    assert any("5 of 6 launches" in warning for warning in first.warnings)
    (failure,) = failures(broken)
    shown = text(view.show_failures([failure], {failure.launch: fake_launch(output=("boom",))}))
    assert "cu128:ring: crashed: exit code 139 (SIGSEGV)" in shown
    assert "boom" in shown


def test_a_repetition_that_ran_again_after_a_crash_counts_once() -> None:
    run = fake_run(BOTH, flat)
    again = tuple(replace(t, launch="again") for t in run.trials if (t.environment, t.repetition) == ("cu128", 5))
    first = next(iter(again))
    half = replace(run, trials=(*[t for t in run.trials if t.repetition < 5 or t.candidate != "ring"], *again))
    (comparison, _) = compare_names(half, "default", half, "ring")
    assert comparison.overall.n == 6
    assert first.launch == "again"


def test_an_arm_without_numbers_is_undecided_and_shown() -> None:
    run = fake_run(BOTH, flat)
    gone = replace(run, trials=tuple(t for t in run.trials if t.candidate != "ring"))
    (first, _) = compare_names(gone, "default", gone, "ring")
    assert (first.overall.outcome, first.overall.n, first.rows[0].b) == (Outcome.UNDECIDED, 0, None)
    assert "-" in text(view.show(first))
    assert text(view.show_overview(gone, overview(gone)))


def test_two_run_files_are_described_never_judged() -> None:
    plan = fake_plan(launches=8)
    slow = fake_run(plan, lambda e, c, m: 2 * flat(e, c, m), path=Path("slow.jsonl"), here={"python": "3.13.0"})
    fast = fake_run(plan, flat, path=Path("fast.jsonl"))
    (comparison,) = compare_names(slow, "default", fast, "default")
    assert {row.judgement.outcome for row in comparison.rows} == {Outcome.NOT_COMPARABLE}
    assert comparison.overall.outcome is Outcome.NOT_COMPARABLE
    assert comparison.overall.ratio == pytest.approx(0.5, rel=0.01)
    assert comparison.overall.ci_low is None
    assert "python: 3.13.0 / 3.12.0" in comparison.differs
    assert "never judged" in text(view.show(comparison))


def test_what_else_differs_is_said() -> None:
    nccl = [{"name": "NCCL_ALGO", "value": "Ring", "source": "/etc/nccl.conf"}]
    run = fake_run(
        BOTH, flat, cu128={"python": "3.12.0", "libraries": {"torch": "2.9.1"}, "nccl": []},
        cu130={"python": "3.12.0", "libraries": {"torch": "2.14.1"}, "nccl": nccl},
    )  # fmt: skip
    (comparison,) = compare_names(run, "cu128", run, "cu130")
    assert "libraries torch: 2.9.1 / 2.14.1" in comparison.differs
    assert any("NCCL_ALGO" in line for line in comparison.differs)
    assert not comparison.is_a_a
    (comparison, _) = compare_names(run, "default", run, "tcp")
    assert "BTL: not set / tcp" in comparison.differs


@pytest.mark.parametrize("kind", [Kind.PREDICTED, Kind.MEANINGLESS])
def test_predicted_and_meaningless_times_are_refused(kind: Kind) -> None:
    run = fake_run(BOTH, flat, kind=kind)
    with pytest.raises(InputError, match=str(kind)):
        compare_names(run, "default", run, "ring")


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [("ring", "nothing", "nothing called 'nothing'"), ("ring", "ring", "both sides"),
     ("cu128", "ring", "one candidate in one environment"), ("cu128:nothing", "ring", "nothing called"),
     ("nowhere:ring", "ring", "nothing called")],
)  # fmt: skip
def test_names_that_do_not_fit_are_refused_with_the_known_ones(a: str, b: str, says: str) -> None:
    run = fake_run(BOTH, flat)
    with pytest.raises(InputError) as caught:
        compare_names(run, a, run, b)
    assert says in caught.value.what
    assert "ring" in f"{caught.value.expected} {caught.value.todo}"


def text(shown: object) -> str:
    console = Console(width=160, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_the_shown_table_reads_without_colour() -> None:
    run = fake_run(BOTH, lambda e, c, m: flat(e, c, m) * (1.2 if c == "ring" else 1), spread=0.005)
    shown = text(view.show(compare_names(run, "default", run, "ring")[0]))
    assert "cu128:ring against cu128:default: worse, " in shown
    assert "4,096" in shown
    assert "geometric mean" in shown
    whole = text(view.show_overview(run, overview(run)))
    assert whole.count("candidates against default") == 2
    assert "cu130:default against cu128:default" in whole


def test_the_document_is_json_with_units_and_direction() -> None:
    run = fake_run(BOTH, flat)
    document = json.loads(json.dumps(view.to_document(compare_names(run, "default", run, "ring")[0]), allow_nan=False))
    assert (document["unit"], document["direction"], document["margin"]) == ("us", "lower is better", 0.1)
    assert [row["bytes"] for row in document["messages"]] == [64, 4096]
    assert document["messages"][1]["busbw"][0] == pytest.approx(4096 / 90 / 1e3, rel=0.01), "2 ranks: busbw is algbw"


def test_a_busy_machine_is_warned_about_once() -> None:
    run = fake_run(BOTH, flat)
    busy = replace(run, launches={**run.launches, "launch0": fake_launch(launch="launch0", busy=7.5)})
    assert [w for w in overview(busy).warnings if "7.5 tasks" in w]
    assert not overview(run).warnings


def test_one_message_one_environment_one_candidate() -> None:
    plan = fake_plan(candidates=CANDIDATES[:1], launches=2)
    run = fake_run(plan, flat)
    assert overview(run).all == []
    assert text(view.show_overview(run, overview(run))).strip()


def test_rounds_of_one_launch_pair_so_that_a_burst_of_load_cancels() -> None:
    """Half of the rounds run on a busy machine and take twice as long, for both arms; B is 5 % slower throughout."""
    a = fake_trial(samples=tuple((10.0 * (1 + r % 2),) for r in range(6)))
    b = fake_trial(candidate="ring", samples=tuple((10.5 * (1 + r % 2),) for r in range(6)))
    assert b.log_ratio_to(a) == pytest.approx(math.log(1.05))
    elsewhere = replace(b, launch="other")
    assert elsewhere.log_ratio_to(a) == pytest.approx(math.log(elsewhere.median / a.median))


def test_what_cannot_run_here_is_an_answer_and_what_broke_is_a_failure() -> None:
    run = fake_run(BOTH, flat)
    assert exit_code(run) is None

    def ring_is(status: Status) -> Run:
        trials = (replace(t, status=status, samples=()) if t.candidate == "ring" else t for t in run.trials)
        return replace(run, trials=tuple(trials))

    assert exit_code(ring_is(Status.UNSUPPORTED)) is None
    assert exit_code(ring_is(Status.CRASHED)) is ExitCode.FAILED
    assert exit_code(replace(run, trials=())) is ExitCode.FAILED


def test_modes_and_working_sets_are_never_put_into_one_mean() -> None:
    plan = replace(fake_plan(candidates=CANDIDATES[:2], launches=4), modes=("graph", "eager"))
    run = fake_run(plan, flat)
    both = tuple(replace(t, mode=mode) for t in run.trials for mode in plan.modes)
    run = replace(run, trials=both)
    found = compare_names(run, "default", run, "ring")
    assert [{row.case.mode for row in comparison.rows} for comparison in found] == [{"graph"}, {"eager"}]
    assert "(graph)" in text(view.show(found[0]))
    assert text(view.show_overview(run, overview(run))).count("candidates against default") == 2
