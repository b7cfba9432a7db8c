"""From options to a plan and its schedule, and back from a run file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lanewise.errors import InputError
from tuning.plan import Environment
from tuning.serving.plan import ServingPlan, parse_serving_plan, validate
from tuning.serving.request import ServingRequest, make_plan, parse_flags
from tuning.serving.spec import ServerSpec


def asked(**changes: Any) -> ServingRequest:
    server = ServerSpec(**{"model": "m", "max_running": 0, **changes.pop("server", {})})
    environments = tuple(Environment(name=name, python="python3") for name in changes.pop("names", ("here",)))
    return ServingRequest(**{"environments": environments, "server": server, "draft": "d", "seed": 1, **changes})


def plan_of(**changes: Any) -> ServingPlan:
    return make_plan(asked(**changes))[0]


def test_each_backend_has_a_baseline_all_speculations_and_the_probe() -> None:
    plan = plan_of(
        allreduces=("custom", "nccl"), speculations=("2/1/3", "7/1/8@3.7"), probe=True, concurrencies=(1, 16)
    )
    assert [arm.name for arm in plan.arms] == [
        "custom/baseline", "custom/2-1-3", "custom/7-1-8@3.7", "custom/probe",
        "nccl/baseline", "nccl/2-1-3", "nccl/7-1-8@3.7", "nccl/probe",
    ]  # fmt: skip
    assert plan.baseline == "custom/baseline"
    assert plan.arm("nccl/2-1-3").spec.allreduce == "nccl"
    assert plan.arm("nccl/2-1-3").spec.accept_length == 0
    assert plan.arm("nccl/7-1-8@3.7").spec.accept_length == 3.7
    assert plan.arm("nccl/probe").concurrencies == (1, 2, 3, 4, 8, 48), "rows of every verify pass up to 64"
    assert {arm.spec.max_running for arm in plan.arms} == {48}


def test_the_probe_is_measured_with_the_backends_that_are_named() -> None:
    plan = plan_of(allreduces=("custom", "nccl"), speculations=("2/1/3",), probe_on=("nccl",))
    assert [arm.name for arm in plan.arms if arm.name.endswith("probe")] == ["nccl/probe"]
    assert {arm.spec.max_running for arm in plan.arms} == {4}, "what all servers have in common stays so"


def test_the_baseline_simulates_no_acceptance() -> None:
    plan = plan_of(speculations=("2/1/3",), server={"accept_length": 2.5})
    assert [arm.spec.accept_length for arm in plan.arms] == [0, 2.5]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"allreduces": ("nccl",), "probe_on": ("custom",)},
            "--probe-on is 'custom', a backend that this run does not",
        ),
        ({"speculations": ("2-1-3",)}, "--speculation is '2-1-3'"),
        ({"speculations": ("2/1/3@4",)}, "accept length 4 is to be simulated"),
        ({"speculations": ("2/1/3",), "draft": ""}, "no draft model"),
        ({"speculations": ("2/1/3", "2/1/3")}, "arms are"),
        ({"names": ("a", "a")}, "environments are"),
        ({"concurrencies": (1, 1)}, "concurrencies of default/baseline"),
        ({"concurrencies": (65,)}, "65"),
        ({"concurrencies": (8,), "server": {"max_running": 4}}, "decode 8 requests together"),
        ({"output_tokens": 4}, "--output-tokens is 4"),
        ({"output_tokens": 11}, "--output-tokens is 11, too few steps of default/baseline"),
        (
            {"output_tokens": 28, "speculations": ("2/1/3@2.5",)},
            "--output-tokens is 28, too few steps of default/2-1-3@2.5",
        ),
        ({"server": {"context_length": 10}}, "--context-length is 10, and a request holds a prompt and --output-tok"),
        ({"server": {"context_length": 639}, "prompts": "tokens:128"}, "--context-length is 639.* a prompt of 128"),
        ({"server": {"max_total_tokens": 512}}, "--max-total-tokens is 512"),
        ({"starts": 0}, "--starts is 0"),
        ({"margin": 2.0}, "--margin"),
        ({"requests": -1}, "--requests is -1"),
        ({"requests": 10**11}, "--requests is 100000000000"),
        ({"speculations": ("2/1/3@0",)}, "accept length 0 is to be simulated"),
        ({"server": {"accept_length": 2.5}}, "nothing speculates"),
        ({"server": {"tensor_parallel": 0}}, "--tensor-parallel is 0"),
        ({"server": {"max_running": 10**9}}, "--max-running is 1000000000"),
        ({"server": {"context_length": -1}}, "--context-length is -1"),
        ({"server": {"max_total_tokens": -1}}, "--max-total-tokens is -1"),
        ({"server": {"memory_fraction": 5.0}}, "--memory-fraction is 5"),
        ({"prompts": "mixed", "server": {"flags": {"skip-tokenizer-init": ""}}}, "without a tokenizer"),
        ({"prompts": "nonsense"}, "nonsense"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_plan(asked(**changes))


def test_what_just_fits_is_taken() -> None:
    assert plan_of(output_tokens=12).output_tokens == 12
    assert plan_of(output_tokens=29, speculations=("2/1/3@2.5",)).output_tokens == 29
    plan_of(prompts="tokens:128", server={"context_length": 640, "max_total_tokens": 640})


def test_prompts_fit_the_server_and_are_spread_over_the_categories() -> None:
    plan, prompts = make_plan(asked(requests=10))
    assert (plan.prompts.name, plan.prompts.requests) == ("mixed", 10)
    assert set(Counter(prompt.category for prompt in prompts).values()) == {2}
    plan, prompts = make_plan(asked(server={"flags": {"skip-tokenizer-init": ""}}))
    assert (plan.prompts.name.split(":")[0], len(prompts)) == ("tokens", 8)
    assert all(prompt.tokens for prompt in prompts)


@pytest.mark.parametrize(("texts", "said"), [(["x y"], "x y"), (["a=1", "--a=2"], "a second time"), (["=1"], "=1")])
def test_flags_that_are_none_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_flags(texts)
    assert parse_flags(["--dtype=bfloat16", "skip-tokenizer-init"]) == {"dtype": "bfloat16", "skip-tokenizer-init": ""}


def test_repetitions_go_forwards_and_backwards_and_no_group_spans_two() -> None:
    plan = plan_of(names=("a", "b"), speculations=("2/1/3",), starts=4, together=3)
    groups = plan.schedule()
    assert [len(group) for group in groups] == [3, 1] * 4
    turns = [[start for group in groups for start in group if start.repetition == number] for number in range(4)]
    names = [[(start.environment.name, start.arm.name) for start in turn] for turn in turns]
    assert names[1] == names[0][::-1]
    assert names[3] == names[2][::-1]
    assert len(set(names[0])) == 4
    assert plan.schedule() == groups, "it is fixed"


def test_the_seed_turns_the_order() -> None:
    firsts = {plan_of(speculations=("2/1/3",), seed=seed).schedule()[0][0].arm.name for seed in range(1, 20)}
    assert firsts == {"default/baseline", "default/2-1-3"}


def test_a_stored_plan_is_read_back_with_its_identity() -> None:
    plan = plan_of(speculations=("2/1/3",), server={"flags": {"dtype": "bfloat16"}}, probe=True)
    stored = parse_serving_plan(json.loads(json.dumps(plan.to_dict())))
    assert stored == plan
    assert stored.identity == plan.identity
    assert replace(plan, passes=4).identity != plan.identity


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("benchmark",), "allreduce"), (("arms",), []), (("arms",), 5), (("arms", 0, "spec"), None),
        (("arms", 0, "spec", "cuda_graphs"), 1), (("arms", 0, "spec", "flags"), {"a": 1}),
        (("arms", 0, "spec", "speculation"), {"steps": "2"}), (("arms", 0, "concurrencies"), ["1"]),
        (("arms", 0, "spec", "accept_length"), 2.0), (("arms", 1, "spec", "accept_length"), 99.0),
        (("arms", 1, "spec", "accept_length"), -1.0), (("arms", 0, "concurrencies"), [0]),
        (("arms", 0, "concurrencies"), [True]), (("environments",), []),
        (("environments", 0, "variables"), {"A": None}), (("prompts", "requests"), 0), (("prompts",), []),
        (("starts",), True), (("starts",), 10**9), (("margin",), float("nan")), (("seed",), -1), (("baseline",), "x"),
        (("extra",), 1), (("timeout",), "5"),
    ],
)  # fmt: skip
def test_a_plan_with_an_absurd_field_is_refused(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(json.dumps(plan_of(speculations=("2/1/3",)).to_dict()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises((ValueError, KeyError, TypeError, InputError)):
        validate(parse_serving_plan(document))
