"""Values for tests: small plans, headers and runs of known truth. Fakes, and named so."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from tuning.candidates import Candidate
from tuning.plan import Environment, Plan
from tuning.runfile import Header, Kind, Run
from tuning.trial import LaunchRecord, Status, Trial
from tuning.workload import Message, Workload

FAKE_WORKLOAD = Workload(
    name="fake",
    dtype="float32",
    messages=(Message(name="small", bytes=64, calls=2), Message(name="large", bytes=4096, calls=2)),
)


def fake_candidate(name: str, **process_environment: str) -> Candidate:
    return Candidate(name=name, engine="mpi", meaning="for tests", process_environment=process_environment)


def fake_plan(
    *,
    candidates: tuple[Candidate, ...] = (fake_candidate("default"), fake_candidate("ring")),
    environments: tuple[str, ...] = ("here",),
    launches: int = 5,
    margin: float = 0.1,
    workload: Workload = FAKE_WORKLOAD,
) -> Plan:
    return Plan(
        engine="mpi",
        ranks=2,
        workload=workload,
        environments=tuple(Environment(name=name, python="python3") for name in environments),
        candidates=candidates,
        baseline="default",
        launches=launches,
        rounds=2,
        samples=3,
        margin=margin,
        seed=1,
        timeout=5,
    )


def fake_header(plan: Plan, kind: Kind = Kind.MEASURED, **environments: Mapping[str, object]) -> Header:
    return Header(
        created="2026-11-29T00:00:00+00:00",
        kind=kind,
        plan=plan,
        toolkit={"revision": "0" * 40, "changed": False},
        node={"host": {"hostname": "fake"}, "cpu": {"threads": 8}},
        environments={env.name: environments.get(env.name, {"python": "3.12.0"}) for env in plan.environments},
        worker={"name": "fake.py", "sha256": "0" * 64},
        variables={},
        command=["test"],
    )


def fake_trial(**changes: object) -> Trial:
    fields: dict[str, object] = {
        "environment": "here",
        "candidate": "default",
        "message": "small",
        "repetition": 0,
        "launch": "abc",
        "status": Status.OK,
        "samples": ((1.0, 2.0), (3.0, 4.0)),
    }
    return Trial(**{**fields, **changes})  # type: ignore[arg-type]


def fake_launch(**changes: object) -> LaunchRecord:
    fields: dict[str, object] = {
        "launch": "abc",
        "environment": "here",
        "repetition": 0,
        "plan": "0" * 16,
        "command": ("mpirun", "-np", "2"),
        "started": "2026-11-29T00:00:00+00:00",
        "seconds": 1.5,
        "busy": 0.1,
    }
    return LaunchRecord(**{**fields, **changes})  # type: ignore[arg-type]


def fake_run(
    plan: Plan,
    truth: Callable[[str, str, str], float],
    *,
    spread: float = 0.001,
    start_spread: float = 0.0,
    seed: int = 1,
    kind: Kind = Kind.MEASURED,
    path: Path = Path("fake.jsonl"),
    **environments: Mapping[str, object],
) -> Run:
    """A run whose times are truth(environment, candidate, message) times lognormal noise.

    `spread` is each arm's own noise; `start_spread` is common to all arms of a launch, as real launches have it.
    """
    draw = random.Random(seed)
    trials, launches = [], {}
    for number, launch in enumerate(plan.schedule()):
        launches[f"launch{number}"] = fake_launch(launch=f"launch{number}", repetition=launch.repetition)
        start = math.exp(draw.gauss(0, start_spread))
        for arm in launch.arms:
            for message in plan.workload.messages:
                middle = truth(launch.environment.name, arm.candidate.name, message.name)
                us = middle * start * math.exp(draw.gauss(0, spread))
                trials.append(
                    Trial(
                        environment=launch.environment.name,
                        candidate=arm.candidate.name,
                        copy=arm.copy,
                        message=message.name,
                        repetition=launch.repetition,
                        launch=f"launch{number}",
                        status=Status.OK,
                        samples=((us, us, us),),
                    )
                )
    return Run(path=path, header=fake_header(plan, kind, **environments), trials=tuple(trials), launches=launches)


def litter(folder: Path) -> None:
    """More folders in one another than shutil.rmtree takes; by relative names, since no path is as long."""
    folder.mkdir()
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("x", dir_fd=inner)
        outer, inner = inner, os.open("x", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
