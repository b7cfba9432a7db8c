"""Runs of servers of known truth, without a server. Fakes, and named so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tuning.plan import Environment
from tuning.runlines import Kind
from tuning.serving.plan import PromptChoice, ServingArm, ServingPlan
from tuning.serving.records import Pass, Request, ServerStart, ServingTrial
from tuning.serving.runfile import ServingHeader, ServingRun
from tuning.serving.spec import ServerSpec, Speculation

PROMPTS = tuple((f"{kind}-{number}", kind) for kind in ("code", "chat") for number in range(4))
OUTPUT_TOKENS = 201
SPEC = ServerSpec(model="m", max_running=64)
SPECULATION = Speculation(algorithm="EAGLE3", steps=2, topk=1, draft_tokens=3, draft="d")
Truth = Callable[[str, str, int, int], float]
"""Step time, ms, by environment, arm, number of requests and repetition."""


def fake_arm(
    name: str, *concurrencies: int, speculation: Speculation | None = None, accept_length: float = 0.0
) -> ServingArm:
    backend = name.split("/", maxsplit=1)[0]
    spec = replace(SPEC, allreduce=backend, speculation=speculation, accept_length=accept_length)
    return ServingArm(name=name, spec=spec, concurrencies=concurrencies or (1,))


BASELINE = fake_arm("default/baseline")
EAGLE = fake_arm("default/2-1-3", speculation=SPECULATION)


def fake_serving_plan(
    *arms: ServingArm, environments: tuple[str, ...] = ("host",), starts: int = 3, margin: float = 0.02
) -> ServingPlan:
    arms = arms or (BASELINE, EAGLE)
    return ServingPlan(
        environments=tuple(Environment(name=name, python="python3") for name in environments),
        arms=arms,
        baseline=arms[0].name,
        prompts=PromptChoice(name="fake", identity="0" * 16, requests=len(PROMPTS)),
        output_tokens=OUTPUT_TOKENS,
        starts=starts,
        passes=2,
        together=1,
        margin=margin,
        seed=1,
        timeout=60,
    )


def fake_accept(prompt: str, steps: int) -> float:
    """Accept length of a prompt: code is accepted more readily, and each prompt has its own luck."""
    draw = random.Random(prompt)
    return 1 + min(steps, (1.2 if prompt.startswith("code") else 0.7) + draw.uniform(-0.2, 0.2))


def fake_requests(arm: ServingArm, accept: Callable[[str, int], float] = fake_accept) -> tuple[Request, ...]:
    found = []
    for number, (prompt, category) in enumerate(PROMPTS):
        speculation = arm.spec.speculation
        passes = round((OUTPUT_TOKENS - 1) / accept(prompt, speculation.steps)) if speculation else None
        found.append(
            Request(
                prompt=prompt,
                category=category,
                prompt_tokens=20 + number,
                completion_tokens=OUTPUT_TOKENS,
                verify_passes=passes,
                accepted=(passes // 4, passes // 4, passes // 2) if passes else (),
                output=f"{prompt}",
            )
        )
    return tuple(found)


def fake_serving_run(
    plan: ServingPlan,
    truth: Truth,
    *,
    spread: float = 0.001,
    disturbance: float = 0.0,
    accept: Callable[[str, int], float] = fake_accept,
    path: Path = Path("fake.jsonl"),
    seed: int = 1,
    environments: Mapping[str, Mapping[str, object]] | None = None,
    resolved: Callable[[str, str], Mapping[str, object]] = lambda _environment, _arm: {},
    release: Callable[[str], str] = lambda _environment: "0.5.13",
) -> ServingRun:
    """Step times are truth(...) times lognormal noise; `disturbance` is common to all starts of a repetition."""
    draw = random.Random(seed)
    records: list[ServerStart | ServingTrial] = []
    shared = [math.exp(draw.gauss(0, disturbance)) for _ in range(plan.starts)]
    for number, (start,) in enumerate(plan.schedule()):
        arm, environment, launch = start.arm, start.environment.name, f"start{number}"
        records.append(
            ServerStart(
                launch=launch,
                environment=environment,
                arm=arm.name,
                repetition=start.repetition,
                plan=plan.identity,
                command=("python3",),
                release=release(environment),
                resolved={"random_seed": draw.randrange(10**9), **resolved(environment, arm.name)},
            )
        )
        for concurrency in arm.concurrencies:
            own = math.exp(draw.gauss(0, spread)) * shared[start.repetition]
            step = truth(environment, arm.name, concurrency, start.repetition) * own
            requests = fake_requests(arm, accept)
            steps = sum(request.verify_passes or request.completion_tokens - 1 for request in requests)
            tau = sum(request.completion_tokens - 1 for request in requests) / steps
            done = Pass(
                step_ms=step,
                accept_length=tau,
                tokens_per_second=1000 * concurrency * tau / step,
                source="counters",
                seconds=10.0,
                running=float(concurrency),
                graph_share=1.0,
                requests=requests,
            )
            records.append(
                ServingTrial(
                    environment=environment,
                    arm=arm.name,
                    concurrency=concurrency,
                    repetition=start.repetition,
                    launch=launch,
                    passes=(done, done),
                )
            )
    described = environments or {}
    header = ServingHeader(
        created="2026-11-29T00:00:00+00:00",
        kind=Kind.MEASURED,
        plan=plan,
        toolkit={"revision": "0" * 40, "changed": False},
        node={"host": {"hostname": "fake"}, "cpu": {"threads": 8}},
        environments={env.name: dict(described.get(env.name, {"python": "3.12.0"})) for env in plan.environments},
        worker={"name": "client.py", "sha256": "0" * 64},
        variables={},
        command=["inv", "bench-speculative", "--model", "m"],
    )
    return ServingRun(path=path, header=header).with_records(records)


def with_latencies(run: ServingRun, *, slower: float) -> ServingRun:
    """TTFT, TPOT and ITL in proportion to the step time; TTFT of speculation `slower` times that."""

    def told(one: ServingTrial) -> ServingTrial:
        more = slower if "2-1-3" in one.arm else 1.0
        passes = []
        for done in one.passes:
            requests = [
                replace(r, ttft_ms=3 * more * done.step_ms, seconds=0.001 * done.step_ms * (OUTPUT_TOKENS - 1) + 0.1)
                for r in done.requests
            ]
            passes.append(replace(done, requests=tuple(requests), itl_p50_ms=done.step_ms, itl_p99_ms=2 * done.step_ms))
        return replace(one, passes=tuple(passes))

    return replace(run, trials=tuple(map(told, run.trials)))
