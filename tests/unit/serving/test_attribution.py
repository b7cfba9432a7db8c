"""Step times made of known parts: each source gives back what it can tell, and says what it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.makers import fake_plan, fake_run
from tests.unit.serving.makers import SPECULATION, fake_arm, fake_serving_plan, fake_serving_run
from tuning.candidates import select_candidates
from tuning.runfile import Kind, Run
from tuning.serving.allreduce_times import NotToldError, allreduce_times
from tuning.serving.attribution import NO_PROBE, Attribution, attribute
from tuning.serving.plan import ServingArm
from tuning.serving.profile import Profile
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide
from tuning.workload import Message, Workload

CALLS, ROW = 122, 14_336
DRAFT = 1.4
SIZES = Workload(
    name="rows",
    dtype="bfloat16",
    messages=tuple(Message(name=f"rows-{n}", bytes=n * ROW, calls=CALLS, rows=n) for n in (1, 2, 4, 8)),
)


def us(rows: int, backend: str) -> float:
    return (20 + 4 * rows) * (3 if backend == "nccl-p2p-off" else 1)


def compute(rows: int) -> float:
    return 3 + 0.2 * rows


def step(_environment: str, arm: str, concurrency: int, _repetition: int) -> float:
    backend, kind = arm.split("/")
    rows = concurrency * (3 if kind == "2-1-3" else 1)
    return CALLS * us(rows, backend) / 1000 + compute(rows) + (DRAFT if kind == "2-1-3" else 0)


def on_two_gpus(arm: ServingArm) -> ServingArm:
    return replace(arm, spec=replace(arm.spec, tensor_parallel=2))


def arms(*backends: str, probe: bool = True) -> list[ServingArm]:
    found = []
    for backend in backends:
        found += [fake_arm(f"{backend}/baseline"), fake_arm(f"{backend}/2-1-3", speculation=SPECULATION)]
        found += [fake_arm(f"{backend}/probe", 1, 2, 3, 4)] if probe else []
    return [on_two_gpus(arm) for arm in found]


def served(*backends: str, probe: bool = True, spread: float = 0.0005) -> ServingRun:
    return fake_serving_run(fake_serving_plan(*arms(*backends, probe=probe), starts=4), step, spread=spread)


def reduced(*, ranks: int = 2, workload: Workload = SIZES) -> Run:
    plan = fake_plan(workload=workload, candidates=select_candidates("cuda", "default,p2p_off"), margin=0.05)
    plan = replace(plan, engine="cuda", ranks=ranks, modes=("graph",))
    backends = {"default": "nccl", "p2p_off": "nccl-p2p-off"}
    rows = {message.name: message.rows or 0 for message in workload.messages}
    run = fake_run(plan, lambda _e, name, message: us(rows[message], backends[name]), path=Path("allreduce.jsonl"))
    return replace(run, trials=tuple(replace(trial, mode="graph") for trial in run.trials))


def attributed(run: ServingRun, a: str, b: str, allreduce_run: Run | None = None) -> Attribution:
    sides = [ServingSide(environment="host", arm=arm, run=run) for arm in (a, b)]
    found = attribute(sides[0], sides[1], 1, allreduce_run)
    assert found is not None
    for split in found.splits:
        total = sum(part.ms.value for part in split.parts)
        assert total == pytest.approx(found.difference.value), "parts add up to the whole"
    return found


def parts(found: Attribution, source: str) -> dict[str, float]:
    (split,) = [split for split in found.splits if split.source == source]
    return {part.cause: part.ms.value for part in split.parts}


def test_the_probe_tells_drafting_from_the_targets_pass() -> None:
    found = attributed(served("nccl"), "nccl/baseline", "nccl/2-1-3")
    more_rows = CALLS * (us(3, "nccl") - us(1, "nccl")) / 1000 + compute(3) - compute(1)
    assert found.difference.value == pytest.approx(more_rows + DRAFT, rel=0.02)
    assert list(parts(found, "probe").values()) == pytest.approx([more_rows, DRAFT], rel=0.02)
    assert [line for line in found.missing if "--probe" in line] == []
    assert any("--allreduce-run" in line for line in found.missing)


def test_with_an_allreduce_run_all_three_are_told() -> None:
    found = attributed(served("nccl"), "nccl/baseline", "nccl/2-1-3", reduced())
    allreduce = CALLS * (us(3, "nccl") - us(1, "nccl")) / 1000
    told = list(parts(found, "allreduce run and probe").values())
    assert told == pytest.approx([allreduce, compute(3) - compute(1), DRAFT], abs=0.03)
    assert found.missing == ()
    for part in found.splits[0].parts:
        assert part.ms.low is not None
        assert part.ms.high is not None
        assert part.ms.low < part.ms.value < part.ms.high


def test_two_backends_differ_by_their_allreduces_alone() -> None:
    run = served("nccl", "nccl-p2p-off")
    found = attributed(run, "nccl/2-1-3", "nccl-p2p-off/2-1-3", reduced())
    allreduce = CALLS * (us(3, "nccl-p2p-off") - us(3, "nccl")) / 1000
    assert list(parts(found, "allreduce run and probe").values()) == pytest.approx([allreduce, 0, 0], abs=0.05)


def test_without_a_probe_drafting_stays_with_the_rest_and_is_said_to() -> None:
    found = attributed(served("nccl", probe=False), "nccl/baseline", "nccl/2-1-3", reduced())
    allreduce = CALLS * (us(3, "nccl") - us(1, "nccl")) / 1000
    told = list(parts(found, "allreduce run").values())
    assert told == pytest.approx([allreduce, compute(3) - compute(1) + DRAFT], abs=0.05)
    assert found.missing == (NO_PROBE,)


def test_with_nothing_nothing_is_told() -> None:
    found = attributed(served("nccl", probe=False), "nccl/baseline", "nccl/2-1-3")
    assert found.splits == ()
    assert len(found.missing) == 2


def test_one_gpu_is_not_asked_for_allreduces() -> None:
    plan = fake_serving_plan(fake_arm("default/baseline"), fake_arm("default/2-1-3", speculation=SPECULATION))
    found = attributed(fake_serving_run(plan, step), "default/baseline", "default/2-1-3")
    assert found.missing == (NO_PROBE,)


def test_an_allreduce_run_beside_one_gpu_is_said_not_to_count() -> None:
    plan = fake_serving_plan(fake_arm("default/baseline"), fake_arm("default/2-1-3", speculation=SPECULATION))
    found = attributed(fake_serving_run(plan, step), "default/baseline", "default/2-1-3", reduced())
    assert found.missing == (NO_PROBE, "the allreduce run does not count: one GPU has no allreduces")


@pytest.mark.parametrize(
    ("concurrency", "says"), [(8, "no numbers of 24 rows; add 24 to --concurrency"), (32, "a pass has 96 rows")]
)
def test_where_a_probe_lacks_rows_it_says_what_to_measure(concurrency: int, says: str) -> None:
    numbers = (concurrency,)
    speculative = fake_arm("default/2-1-3", *numbers, speculation=SPECULATION)
    plan = fake_serving_plan(fake_arm("default/baseline", *numbers), speculative, fake_arm("default/probe", 1, 2, 3, 4))
    run = fake_serving_run(plan, step)
    sides = [ServingSide(environment="host", arm=arm, run=run) for arm in ("default/baseline", "default/2-1-3")]
    found = attribute(sides[0], sides[1], concurrency)
    assert found is not None
    (line,) = found.missing
    assert says in line
    assert "--probe" not in line


def test_two_arms_without_speculation_have_no_drafting_to_tell() -> None:
    run = served("nccl", "nccl-p2p-off")
    alone = attributed(run, "nccl/baseline", "nccl-p2p-off/baseline")
    assert alone.splits == ()
    assert not [line for line in alone.missing if "drafting" in line]
    found = attributed(run, "nccl/baseline", "nccl-p2p-off/baseline", reduced())
    assert list(parts(found, "allreduce run")) == [
        "allreduces of the target's pass",
        "everything else of the target's pass",
    ]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (reduced(ranks=4), "4 ranks, the server 2"),
        (replace(reduced(), header=replace(reduced().header, node={"host": {"hostname": "other"}})), "another node"),
        (replace(reduced(), header=replace(reduced().header, kind=Kind.MEANINGLESS)), "no measured times"),
        (reduced(workload=replace(SIZES, messages=(SIZES.messages[0],))), "at two sizes"),
        (reduced(workload=replace(SIZES, messages=SIZES.messages[:2])), "3 rows are 43,008"),
        (
            reduced(workload=replace(SIZES, messages=tuple(replace(m, rows=None) for m in SIZES.messages))),
            "does not tell bytes and calls of a row",
        ),
    ],
    ids=["ranks", "node", "kind", "one size", "too small", "rows"],
)
def test_an_allreduce_run_that_does_not_fit_is_not_used_and_says_why(run: Run, why: str) -> None:
    found = attributed(served("nccl"), "nccl/baseline", "nccl/2-1-3", run)
    assert [split.source for split in found.splits] == ["probe"]
    (line,) = found.missing
    assert why in line


def test_a_backend_without_a_candidate_is_not_guessed() -> None:
    for backend in ("custom", "default"):
        side = ServingSide(environment="host", arm=f"{backend}/baseline", run=served(backend))
        with pytest.raises(NotToldError, match=f"path of backend {backend}"):
            allreduce_times(reduced(), side)
    run = served("default")
    off = {k: replace(start, resolved={"disable_custom_all_reduce": True}) for k, start in run.starts.items()}
    side = ServingSide(environment="host", arm="default/baseline", run=replace(run, starts=off))
    assert allreduce_times(reduced(), side).pass_ms(2).value == pytest.approx(CALLS * us(2, "nccl") / 1000, rel=0.01)


def test_profiles_tell_kernels_that_reduce_from_others_and_from_none() -> None:
    run = served("nccl", probe=False)

    def profiled(arm: str, counts: float, allreduce: float, other: float) -> dict[str, object]:
        kernels = {"ncclDevKernel_AllReduce_x": (counts, 1000 * allreduce), "gemm": (300.0, 1000 * other)}
        return Profile(concurrency=1, steps=9, step_ms=20, kernels=kernels).to_dict() if arm else {}

    given = {"nccl/baseline": profiled("a", 123, 3.0, 2.5), "nccl/2-1-3": profiled("b", 129, 4.5, 4.0)}
    starts = {k: replace(start, profile=given[start.arm]) for k, start in run.starts.items()}
    found = attributed(replace(run, starts=starts), "nccl/baseline", "nccl/2-1-3")
    told = parts(found, "profile")
    assert list(told.values())[:2] == pytest.approx([1.5, 1.5])
    assert "123 a step, then 129" in next(iter(told))


def test_lost_starts_leave_the_others() -> None:
    run = served("nccl")
    lost = replace(run, trials=tuple(t for t in run.trials if (t.arm, t.repetition) != ("nccl/probe", 1)))
    assert attributed(lost, "nccl/baseline", "nccl/2-1-3").splits
    gone = replace(run, trials=tuple(t for t in run.trials if t.arm != "nccl/2-1-3"))
    sides = [ServingSide(environment="host", arm=arm, run=gone) for arm in ("nccl/baseline", "nccl/2-1-3")]
    assert attribute(sides[0], sides[1], 1) is None
