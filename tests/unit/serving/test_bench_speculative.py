"""The verb from its command line to what it prints, over the fake servers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke.collection import Collection
from invoke.program import Program

from tests.unit.serving.runs import fake_environment
from tuning.serving import campaign, measure, starts
from tuning.serving.runfile import read_serving_run
from tuning.serving.verbs import bench_speculative

FEW = ("--requests", "1", "--output-tokens", "32", "--passes", "1", "--dummy-weights", "--seed", "3", "--timeout", "10")


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_WARM_UP_WAVES", 2)


def call(*words: str, capsys: Any) -> tuple[int, str, str]:
    """Exit code, output, error output."""
    try:
        Program(namespace=Collection(bench_speculative)).run(["inv", "bench-speculative", *words])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def where(folder: Path, **fake: Any) -> list[str]:
    """Options that name the fake."""
    environment = fake_environment(folder, **{"compute_ms": 3.0, "truth": "", "release": "0.5.12", **fake})
    settings = [word for name, value in environment.variables.items() for word in ("--set", f"{name}={value}")]
    return ["--model", "fake-model", "--python", environment.python, *settings]


def test_a_baseline_and_a_speculation_end_in_a_table_and_a_run_file(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "r.jsonl"
    spec = ("--draft", "d", "--speculation", "2/1/3", "--starts", "2", "--output", str(path))
    code, out, err = call(*where(tmp_path), *FEW, *spec, capsys=capsys)
    assert code == 0, err
    baseline, speculation = (line.split() for line in out.splitlines() if line.startswith("default/"))
    assert baseline[:3] == ["default/baseline", "1", "2"]
    assert speculation[0] == "default/2-1-3"
    assert float(speculation[7]) > 1.5, "the speed-up that the fake has"
    assert speculation[8].endswith("%"), "what as many starts would find"
    assert f"run file: {path}" in out
    assert err.splitlines()[0] == f"run file: {path}"
    assert "[4/4]" in err
    assert len(read_serving_run(path).trials) == 4


def test_going_on_needs_the_same_options_again(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "r.jsonl"
    few = [word for word in FEW if word not in ("--seed", "3")]
    begun = [*where(tmp_path), *few, "--starts", "1"]
    assert call(*begun, "--output", str(path), capsys=capsys)[0] == 0
    code, out, _ = call(*begun, "--resume", str(path), "--json", capsys=capsys)
    assert code == 0
    assert [row["starts"] for row in json.loads(out)["rows"]] == [1]
    code, _, err = call(*begun, "--resume", str(path), "--output", str(tmp_path / "other.jsonl"), capsys=capsys)
    assert code == 2
    assert "other.jsonl' beside --resume" in err
    code, _, err = call(*begun, "--set", "A=1", "--resume", str(path), "--plan", capsys=capsys)
    assert (code, "was begun with another plan" in err) == (2, True), "a plan that would not run is not shown"
    code, _, err = call(*begun, "--set", "LD_PRELOAD=/tmp/x.so", "--resume", str(path), capsys=capsys)
    assert code == 2
    assert "LD_PRELOAD: nothing / /tmp/x.so" in err


def test_a_plan_shows_the_argument_vectors_and_starts_nothing(tmp_path: Path, capsys: Any) -> None:
    asked = (*where(tmp_path), *FEW, "--draft", "d", "--speculation", "3/1/4@2.5", "--plan")
    code, out, _ = call(*asked, "--output", str(tmp_path / "r.jsonl"), capsys=capsys)
    assert code == 0
    assert "default/3-1-4@2.5 (SGLang 0.5.12)" in out
    assert "--speculative-num-draft-tokens 4" in out
    assert "SGLANG_SIMULATE_ACC_LEN=2.5" in out
    assert "1. host default/" in out
    assert not (tmp_path / "r.jsonl").exists()
    code, out, _ = call(*asked, "--json", capsys=capsys)
    assert [server["arm"] for server in json.loads(out)["servers"]] == ["default/baseline", "default/3-1-4@2.5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--flag", "no-such-flag"], "no-such-flag"),
        (["--flag", "speculative-adaptive"], "speculative-adaptive"),
        (["--allreduce", "nonsense"], "nonsense"),
        (["--speculation", "2/1/5", "--draft", "d"], "2/1/5"),
        (["--concurrency", "1,x"], "--concurrency is '1,x'"),
        (["--accept-length", "many"], "--accept-length is 'many'"),
        (["--set", "HF_TOKEN=abcdefghij"], "looks like a secret"),
        (["--prompts", "/nothing.jsonl"], "no such file"),
        (["--margin", "x"], "--margin is 'x'"),
        (["--margin", "0"], "--margin is '0'"),
        (["--accept-length", "0"], "--accept-length is '0'"),
        (["--accept-length", "0.0"], "--accept-length is '0.0'"),
        (["--memory-fraction", "0"], "--memory-fraction is '0'"),
        (["--set", "FOO"], "--set is 'FOO'"),
        (["--set", "python=/evil"], "--set is 'python=/evil'"),
        (["--context-length", "10"], "--context-length is 10"),
        (["--draft", "d"], "no --speculation is given"),
        (["--minutes", "-1"], "--minutes is -1"),
    ],
)
def test_what_cannot_be_is_refused_with_advice_before_anything_starts(
    tmp_path: Path, capsys: Any, words: list[str], said: str
) -> None:
    path = tmp_path / "r.jsonl"
    code, _, err = call(*where(tmp_path), *FEW, *words, "--output", str(path), capsys=capsys)
    assert code == 2
    assert said in err
    assert "expected:" in err
    assert "next:" in err
    assert "run file:" not in err
    assert not path.exists()


@pytest.mark.parametrize(("model", "there"), [("/no/such/model", False), ("fake-model", True)])
def test_a_run_that_cannot_begin_names_no_run_file(tmp_path: Path, capsys: Any, model: str, there: bool) -> None:
    path = tmp_path / "r.jsonl"
    if there:
        path.touch()
    words = [model if word == "fake-model" else word for word in where(tmp_path)]
    code, out, err = call(*words, *FEW, "--output", str(path), capsys=capsys)
    assert code == 2
    assert not [line for line in (out + err).splitlines() if line.startswith("run file:")]
    assert path.exists() is there


@pytest.mark.parametrize(("words", "said"), [([], "no --model"), (["--model", "m"], "no environment is named")])
def test_what_is_missing_is_named(capsys: Any, words: list[str], said: str) -> None:
    code, _, err = call(*words, capsys=capsys)
    assert code == 2
    assert said in err


def test_a_server_that_breaks_ends_in_exit_code_1_and_its_cause_in_the_table(tmp_path: Path, capsys: Any) -> None:
    dies = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    asked = (*where(tmp_path, dies=dies), *FEW, "--starts", "1", "--output", str(tmp_path / "r.jsonl"))
    code, out, _ = call(*asked, capsys=capsys)
    assert code == 1
    assert "without numbers:" in out
    assert "default/baseline at 1, start 1: launch_failed:" in out
    assert out.startswith("nothing has numbers\n")
    assert "step ms" not in out, "no head of a table without rows"


def test_a_folder_as_output_is_no_run_to_go_on_with(tmp_path: Path, capsys: Any) -> None:
    code, _, err = call(*where(tmp_path), *FEW, "--output", str(tmp_path), capsys=capsys)
    assert code == 2
    assert "a folder" in err
    assert f"--output {tmp_path / 'run.jsonl'}" in err
    assert "--resume" not in err


def test_a_run_that_is_broken_off_says_how_it_goes_on(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_given: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starts, "measure", interrupted)
    path = tmp_path / "r.jsonl"
    code, _, err = call(*where(tmp_path), *FEW, "--output", str(path), capsys=capsys)
    assert code == 130
    assert f"--resume {path} go on with it" in err
    assert "interrupted" in err
    monkeypatch.setattr(campaign, "prepare", interrupted)
    code, _, err = call(*where(tmp_path), *FEW, "--output", str(tmp_path / "other.jsonl"), capsys=capsys)
    assert (code, "--resume" in err) == (130, False)


def test_a_run_out_of_time_says_what_is_left(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(step=100.0)
    monkeypatch.setattr(starts, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    path = tmp_path / "r.jsonl"
    words = (*where(tmp_path), *FEW, "--starts", "3", "--minutes", "1", "--output", str(path))
    code, _, err = call(*words, capsys=capsys)
    assert code == 0, err
    assert "stopped for --minutes 1" in err
    assert f"2 of 3 starts; go on with --resume {path}" in err


def test_two_interpreters_are_two_environments(tmp_path: Path, capsys: Any) -> None:
    one = where(tmp_path)
    code, out, _ = call(*one, "--python", "/bin/python3", *FEW, "--plan", capsys=capsys)
    assert (code, out.count("default/baseline (SGLang 0.5.12)")) == (0, 2)
    assert "bin-python3 default/baseline" in out
