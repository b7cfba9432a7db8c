from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lanewise.errors import InputError
from tests.unit.makers import fake_candidate, fake_plan
from tuning.candidates import CANDIDATES, select_candidates
from tuning.plan import parse_plan, validate


def test_two_environments_alternate_a_b_b_a() -> None:
    names = [launch.environment.name for launch in fake_plan(environments=("a", "b"), launches=4).schedule()]
    assert names == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_candidates_share_a_launch_unless_they_need_another_process_environment() -> None:
    candidates = (fake_candidate("default"), fake_candidate("tcp", BTL="tcp"), fake_candidate("ring"))
    schedule = fake_plan(candidates=candidates, launches=2).schedule()
    keys = [[arm.key for arm in launch.arms] for launch in schedule]
    assert keys == [["default#0", "default#1", "ring#0"], ["tcp#0"], ["tcp#0"], ["default#0", "default#1", "ring#0"]]
    assert [dict(launch.process_environment) for launch in schedule[:2]] == [{}, {"BTL": "tcp"}]


def test_the_baseline_has_a_second_copy_in_its_launch() -> None:
    (launch,) = fake_plan(launches=1).schedule()
    assert [arm.copy for arm in launch.arms if arm.candidate.name == "default"] == [0, 1]


def test_the_seed_decides_everything() -> None:
    plan = fake_plan()
    assert plan.schedule() == plan.schedule()
    assert [x.seed for x in plan.schedule()] != [x.seed for x in replace(plan, seed=2).schedule()]
    assert len({launch.seed for launch in plan.schedule()}) == plan.launches


def test_a_plan_survives_json() -> None:
    plan = fake_plan(candidates=(fake_candidate("default"), fake_candidate("tcp", BTL="tcp")), environments=("a", "b"))
    assert parse_plan(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    "change",
    [{"ranks": 1}, {"ranks": 10**6}, {"launches": 0}, {"launches": -3}, {"rounds": 0}, {"samples": 0}, {"margin": 0},
     {"margin": 2.0}, {"timeout": 0}, {"environments": ()}, {"margin": float("nan")}, {"seed": -1}, {"seed": 2**63},
     {"baseline": "gone"}, {"engine": "rocm"}, {"benchmark": "allgather"}, {"modes": ()}, {"modes": ("eager", "eager")},
     {"modes": ("lazy",)}, {"candidates": ()}, {"candidates": (fake_candidate("default"), fake_candidate("[/x]"))}],
)  # fmt: skip
def test_values_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        validate(replace(fake_plan(), **change))


def test_one_environment_twice_is_refused() -> None:
    with pytest.raises(InputError, match="each once"):
        validate(fake_plan(environments=("a", "a")))


def test_selection_adds_the_baseline_and_refuses_the_unknown() -> None:
    assert [c.name for c in select_candidates("mpi", "ring")] == ["default", "ring"]
    assert [c.name for c in select_candidates("mpi", "all")] == [c.name for c in CANDIDATES["mpi"]]
    assert select_candidates("mpi", "")[0].name == "default"
    for engine, names in (("mpi", "rign"), ("mpi", "ring,ring"), ("rocm", "")):
        with pytest.raises(InputError):
            select_candidates(engine, names)


def test_options_out_of_range_are_named_as_typed() -> None:
    with pytest.raises(InputError, match=r"--launches is -3\n"):
        validate(replace(fake_plan(), launches=-3))


def test_the_identity_is_of_the_whole_plan_and_survives_json() -> None:
    plan = fake_plan(candidates=(fake_candidate("default"), fake_candidate("tcp", BTL="t\udcffcp")))
    stored = json.loads(json.dumps(plan.to_dict(), ensure_ascii=False).replace("\udcff", "\ufffd"))
    assert parse_plan(stored).identity == plan.identity
    assert len(plan.identity) == 16
    others = [
        replace(plan, seed=2),
        replace(plan, timeout=6),
        replace(plan, environments=fake_plan(environments=("x",)).environments),
    ]
    assert len({plan.identity, *(other.identity for other in others)}) == 4


def damaged(where: tuple[str | int, ...], value: object) -> object:
    document = json.loads(json.dumps(fake_plan().to_dict()))
    place = document
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    return document


@pytest.mark.parametrize(
    ("where", "value"),
    [(("launches",), True), (("launches",), 5.0), (("launches",), "5"), (("rounds",), 10**400), (("seed",), 1.5),
     (("seed",), 10**400), (("seed",), None), (("margin",), "0.1"), (("margin",), float("nan")), (("margin",), True),
     (("margin",), 10**400), (("timeout",), float("inf")), (("timeout",), []), (("baseline",), ["default"]),
     (("benchmark",), None), (("engine",), {}), (("engine_options",), []), (("engine_options",), {"a": 1}),
     (("modes",), "eager"), (("modes",), [[]]), (("modes",), {"eager": 1}), (("working_sets",), None),
     (("environments",), {}), (("environments",), [5]), (("environments", 0), "x"), (("environments", 0, "name"), 5),
     (("environments", 0, "name"), "a[/b]"), (("environments", 0, "name"), "\ud800"),
     (("environments", 0, "python"), None),
     (("environments", 0, "variables"), ["A"]), (("environments", 0, "variables"), {"A": 1}),
     (("environments", 0, "variables"), {"A": "\ud800"}), (("environments", 0, "more"), 1),
     (("candidates", 0, "parameters"), []), (("candidates", 0, "parameters"), {"a": 1.5}),
     (("candidates", 0, "parameters"), {"a": True}), (("candidates", 0, "parameters"), {"a": 10**400}),
     (("candidates", 0, "process_environment"), {"a": 1}), (("candidates", 0, "name"), []), (("candidates", 0), []),
     (("workload",), None), (("workload", "dtype"), ["float32"]), (("workload", "messages", 0, "bytes"), 10**400)],
)  # fmt: skip
def test_a_plan_of_other_types_is_refused(where: tuple[str | int, ...], value: object) -> None:
    with pytest.raises((ValueError, TypeError, InputError)) as caught:
        parse_plan(damaged(where, value))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("document", [None, [], "plan", 3, {}, [["engine", "mpi"]]])
def test_what_is_no_plan_at_all_is_refused(document: object) -> None:
    with pytest.raises((KeyError, TypeError)):
        parse_plan(document)


def test_an_image_is_part_of_the_plan_and_survives_json() -> None:
    image = "sha256:" + "a" * 64
    plan = fake_plan()
    inside = replace(plan, environments=(replace(plan.environments[0], image=image),))
    assert parse_plan(json.loads(json.dumps(inside.to_dict()))) == inside
    assert inside.identity != plan.identity


def test_plans_without_images_are_what_they_were_before_there_were_any() -> None:
    """Their identity stands in run files: with another one, none of them could be gone on with."""
    assert "image" not in fake_plan().to_dict()["environments"][0]


@pytest.mark.parametrize("image", ["latest", "sha256:", "sha256:" + "A" * 64, "x" * 10_000])
def test_only_an_identifier_is_an_image(image: str) -> None:
    plan = fake_plan()
    with pytest.raises(InputError, match="is no identifier"):
        validate(replace(plan, environments=(replace(plan.environments[0], image=image),)))
