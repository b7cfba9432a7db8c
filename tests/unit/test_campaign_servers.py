"""The servers of a campaign: found, planned before anything is measured, run after it. SGLang is a fake."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.collection import Collection
from invoke.program import Program

import tasks
from lanewise.engine import EngineState
from lanewise.errors import InputError
from tests.unit.makers import fake_plan, fake_run
from tests.unit.serving.runs import fake_environment
from tuning import bench, campaign_servers, pythons, survey
from tuning.container_images import PYTHON, Image
from tuning.plan import Environment
from tuning.serving import measure
from tuning.serving.request import ServingRequest, make_plan
from tuning.serving.runfile import read_serving_run
from tuning.serving.verbs import bench_speculative


def fake_python(folder: Path, *, sglang: bool = True) -> str:
    """A python3 that holds the fake SGLang, or none."""
    environment = fake_environment(folder, release="0.5.12", compute_ms=2.0, truth="")
    settings = [f"{name}={value}" for name, value in environment.variables.items()] if sglang else []
    python = folder / "bin" / "python3"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec env {shlex.join(settings)} {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return str(python)


def fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(survey, "gpu_count", lambda: count)
    monkeypatch.setattr(tasks, "gpu_count", lambda: count)


# ------------------------------------------------------------------------------------------------ where servers can run


def test_sglang_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without, holding = tmp_path / "a", tmp_path / "b"
    for folder in (without, holding):
        folder.mkdir()
    fake_python(without, sglang=False)
    python = fake_python(holding)
    (holding / "site-0.5.12" / "sglang" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setenv("PATH", os.pathsep.join([str(without / "bin"), str(holding / "bin"), "/usr/bin", "/bin"]))
    assert pythons.find_sglang_python() == python
    monkeypatch.setenv("PATH", str(without / "bin"))
    assert pythons.find_sglang_python() is None
    assert not pythons.has_sglang("/no/python3")
    assert not pythons.has_sglang("a\0b")


@pytest.mark.parametrize(
    ("gpus", "model", "python", "said"),
    [
        (0, "/m", "", "speculative decoding: no NVIDIA GPU; where there is one, give --model PATH, and --draft PATH"),
        (2, "", "", "speculative decoding: no model is named; give --model PATH, and --draft PATH"),
        (1, "/m", "/no/python3", "speculative decoding: /no/python3 has no SGLang; give --python one that has"),
        (1, "/m", "", "speculative decoding: no python3 on PATH has SGLang; name one with --python, or build an image"),
    ],
)
def test_what_is_lacking_is_said_with_what_to_give(
    monkeypatch: pytest.MonkeyPatch, gpus: int, model: str, python: str, said: str
) -> None:
    fake_gpus(monkeypatch, gpus)
    monkeypatch.setattr(survey, "find_sglang_python", lambda: None)
    found = survey.survey_servers(python, model, ["a"], {})
    assert found.environments == ()
    assert [line.startswith(said) for line in found.skipped] == [True]


def test_servers_run_in_the_images_that_hold_sglang_or_in_the_python_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_gpus(monkeypatch, 1)
    monkeypatch.setattr(survey, "has_sglang", lambda python: True)
    images = {"a": Image(id="sha256:" + "a" * 64, tags=("lanewise/a:full",), labels={})}
    inside = survey.survey_servers("", "/m", ["a", "b"], images)
    assert inside.environments == (Environment(name="a", python=PYTHON, image=images["a"].id),)
    assert inside.found == ("image lanewise/a:full of a for servers",)
    assert inside.skipped == ("speculative decoding in b: no image with SGLang (./inv build-image --toolchain b)",)
    named = survey.survey_servers("/opt/python3", "/m", ["a", "b"], images)
    assert (named.environments, named.skipped) == ((Environment(name="host", python="/opt/python3"),), ())


# --------------------------------------------------------------------------------------------------------- the campaign


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(request: ServingRequest) -> Any:
        return make_plan(replace(request, requests=1, output_tokens=32, passes=1))

    monkeypatch.setattr(campaign_servers, "make_plan", small)
    monkeypatch.setattr(measure, "MOST_WARM_UP_WAVES", 2)


@pytest.fixture
def allreduces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with one GPU and no containers; fakes the allreduce run. What was measured, in order."""
    measured: list[str] = []

    def start(_request: object, _output: str) -> object:
        measured.append("allreduces")
        return fake_run(fake_plan(), lambda *_: 10.0)

    def start_servers(servers: campaign_servers.Servers) -> Any:
        measured.append("servers")
        return campaign_servers.start_servers(servers)

    fake_gpus(monkeypatch, 1)
    monkeypatch.setattr(bench, "start", start)
    monkeypatch.setattr(tasks, "start_servers", start_servers)
    monkeypatch.setattr(tasks, "engine_state", lambda: EngineState(present=False, detail="no Docker engine"))
    monkeypatch.setattr(tasks, "outlook", lambda *_: None)
    return measured


def call(*words: str, capsys: Any) -> tuple[int, str, str]:
    """Exit code, output, error output."""
    try:
        Program(namespace=Collection(tasks.campaign, bench_speculative)).run(["inv", *words])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.usefixtures("_small")
def test_servers_are_measured_after_the_allreduces_into_a_file_of_their_own(
    tmp_path: Path, allreduces: list[str], capsys: Any
) -> None:
    few = ("--model", "m", "--draft", "d", "--speculation", "2/1/3", "--starts", "1", "--seed", "3")
    words = ("campaign", "--python", fake_python(tmp_path), *few, "--output", str(tmp_path / "r.jsonl"))
    code, out, err = call(*words, capsys=capsys)
    assert code == 0, err
    assert allreduces == ["allreduces", "servers"]
    run = read_serving_run(tmp_path / "r-speculative.jsonl")
    assert {trial.arm for trial in run.trials if trial.ok} == {"default/baseline", "default/2-1-3"}
    assert out.index("measured: allreduce") < out.index("default/2-1-3")
    assert "measured: speculative decoding, 2 servers, 1 starts each in host" in out
    assert "skipped:  speculative" not in out
    code, _, err = call(*words, capsys=capsys)
    assert (code, len(allreduces)) == (2, 2), "its second file is there: refused before anything is measured"
    assert "r-speculative.jsonl exists" in err


@pytest.mark.usefixtures("_small")
def test_json_is_one_document_of_both(tmp_path: Path, allreduces: list[str], capsys: Any) -> None:
    words = ("campaign", "--python", fake_python(tmp_path), "--model", "m", "--starts", "1", "--json")
    code, out, err = call(*words, "--output", str(tmp_path / "r.jsonl"), capsys=capsys)
    assert code == 0, err
    document = json.loads(out)
    arms = {row["arm"] for row in document["speculative"]["rows"]}
    assert arms == {"default/baseline", "default/probe"}, "what needs no draft"
    assert document["comparisons"]
    assert call("campaign", "--json", capsys=capsys)[0] == 0
    assert allreduces == ["allreduces", "servers", "allreduces"]


def test_the_run_file_holds_the_call_that_goes_on_with_it(tmp_path: Path, capsys: Any) -> None:
    python = fake_python(tmp_path)
    planned = campaign_servers.plan_servers(
        (Environment(name="host", python=python),),
        model="m", draft="d", speculations=(), tensor_parallel=2, starts=4, seed=0, output="",
    )  # fmt: skip
    code, out, err = call(*planned.command[1:], "--plan", "--json", capsys=capsys)
    assert code == 0, err
    assert json.loads(out)["plan"] == json.loads(json.dumps(planned.plan.to_dict()))
    assert [arm.name for arm in planned.plan.arms] == ["default/baseline", "default/2-1-3", "default/3-1-4"]


def test_a_server_that_breaks_fails_the_campaign(tmp_path: Path, allreduces: list[str], capsys: Any) -> None:
    python = Path(fake_python(tmp_path))
    python.write_text(python.read_text().replace('"release"', '"dies": "it died", "release"'))
    words = ("campaign", "--python", str(python), "--model", "m", "--starts", "1")
    code, out, _ = call(*words, "--output", str(tmp_path / "r.jsonl"), capsys=capsys)
    assert (code, allreduces) == (1, ["allreduces", "servers"])
    assert "default/baseline at 1, start 1: launch_failed" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "/no/model"], "/no/model"),
        (["--model", "m", "--draft", "d", "--speculation", "2/1/9"], "2/1/9"),
        (["--model", "m", "--draft", "d", "--speculation", "two"], "two"),
        (["--model", "m", "--starts", "0"], "--starts is 0"),
        (["--model", "m", "--speculation", "2/1/3"], "no --draft is given"),
        (["--draft", "d"], "no --model is given"),
    ],
)
def test_nonsense_is_refused_before_anything_is_measured(
    tmp_path: Path, allreduces: list[str], capsys: Any, words: list[str], said: str
) -> None:
    code, _, err = call("campaign", "--python", fake_python(tmp_path), *words, capsys=capsys)
    assert (code, allreduces) == (2, [])
    assert said in err
    assert "next:" in err


def test_a_draft_without_its_model_is_refused() -> None:
    with pytest.raises(InputError, match="--draft is 'd', and no --model"):
        campaign_servers.require_model("", "d", [])
    campaign_servers.require_model("m", "d", ["2/1/3"])
    campaign_servers.require_model("", "", [])
