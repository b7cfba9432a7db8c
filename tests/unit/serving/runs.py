"""Runs of fake SGLang servers for tests: plans of them, carried out, beside the truth that the fakes write."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.unit.serving.fake_sglang import install
from tuning.plan import Environment
from tuning.serving.campaign import start_run
from tuning.serving.plan import ServingPlan
from tuning.serving.prompts import Prompt
from tuning.serving.request import ServingRequest, make_plan
from tuning.serving.runfile import ServingRun
from tuning.serving.spec import ServerSpec

MODEL = "fake-model"


def fake_environment(folder: Path, *, name: str = "host", release: str = "0.5.23", **fake: Any) -> Environment:
    """An environment whose SGLang is the fake."""
    site = folder / f"site-{release}"
    variables = install(site)
    about = site / f"sglang-{release}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {release}\n")
    options = {"truth": str(folder / "truth.jsonl"), "compute_ms": 9.0, **fake, "release": release}
    return Environment(name=name, python=sys.executable, variables={**variables, "FAKE_SGLANG": json.dumps(options)})


def fake_request(
    folder: Path, *, release: str = "0.5.23", fake: dict[str, Any] | None = None, **asked: Any
) -> ServingRequest:
    """A small run of one environment; `fake` are its servers' options, `asked` the request's."""
    server = {"model": MODEL, "dummy_weights": True, **asked.pop("server", {})}
    return replace(
        ServingRequest(
            environments=(fake_environment(folder, release=release, **(fake or {})),),
            server=ServerSpec(**server),
            draft="fake-draft",
            requests=4,
            output_tokens=64,
            starts=1,
            passes=2,
            seed=1,
            timeout=10,
        ),
        **asked,
    )


def carry_out(folder: Path, request: ServingRequest, *arms: str) -> ServingRun:
    """Carry a request out, or only some of its arms."""
    plan, prompts = make_plan(request)
    if arms:
        plan = replace(plan, arms=tuple(arm for arm in plan.arms if arm.name in arms), baseline=arms[0])
    return start(folder, plan, prompts)


def start(folder: Path, plan: ServingPlan, prompts: tuple[Prompt, ...]) -> ServingRun:
    return start_run(plan, prompts, folder / "r.jsonl", lambda step: None, command=["test"])


def truth(folder: Path, running: int, waves: int) -> tuple[float, float]:
    """Mean step time, ms, and accept length of the last so many waves of that many requests, as they came true."""
    entries = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
    found: list[list[tuple[float, float]]] = []
    for before, entry in pairwise(entries):
        if entry["kind"] == "step" and entry["running"] == running:
            if before["kind"] != "step" or before["running"] != running:
                found.append([])  # its time holds a prefill, or is of the next wave
            else:
                found[-1].append((entry["time"] - before["time"], entry["tokens"] / running))
    steps = [step for wave in found[-waves:] for step in wave]
    return 1000 * statistics.fmean(time for time, _ in steps), statistics.fmean(tokens for _, tokens in steps)
