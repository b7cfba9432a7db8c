"""Predictions of servers as people and programs see them, from files: text, document, refusals, and the real runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Console

from lanewise.errors import InputError
from tests.unit.serving.makers import fake_serving_plan, fake_serving_run
from tests.unit.serving.test_attribution import reduced
from tests.unit.serving.test_forecast import ARMS, BASELINE, DRAFTING, PROBE, arm, elsewhere, served, truth, wanted
from tuning.runwriter import RunWriter
from tuning.serving.estimates import certain
from tuning.serving.forecast import forecast
from tuning.serving.forecast_request import AskedOfServers, predict_servers
from tuning.serving.forecast_values import Forecast
from tuning.serving.forecast_view import document, headlines, show
from tuning.serving.runfile import ServingRun, ServingWriter
from tuning.speculation_verbs import predict_speculation

ROOT = Path(__file__).resolve().parents[3]
REAL, REAL_PROBE = ROOT / "docs/runs/h200-speculative.jsonl", ROOT / "docs/runs/h200-speculative-probe.jsonl"
SEVERAL = served(*ARMS, arm("nccl/probe", *PROBE), arm("nccl-sockets/baseline", 1, 4), gpus=2, spread=0.001)


def text(found: Forecast, width: int = 80) -> str:
    console = Console(width=width, file=sys.stderr)
    with console.capture() as captured:
        console.print(show(found), soft_wrap=True)  # as talk.put does
    return captured.get()


def written(tmp_path: Path, run: ServingRun, name: str) -> str:
    run = replace(run, path=tmp_path / name)
    with ServingWriter.begin(replace(run, trials=(), starts={})) as writer:
        writer.append(*run.records())
    return str(run.path)


def asked(**options: Any) -> AskedOfServers:
    given = {"servers": "", "run": "", "drafting": "", "speculations": (), "accept_length": "", **options}
    return AskedOfServers(**given)


def refused(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """What the verb says, once it ended as wrong input in three parts."""
    with pytest.raises(Exit) as ended:
        predict_speculation(Context(), **options)
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "expected:" in said
    assert "next:" in said
    return said


def test_headlines_say_from_which_accept_length_it_pays_or_that_it_cannot() -> None:
    found = forecast(served(BASELINE), wanted(2), drafting=DRAFTING)
    (cell,) = found.cells
    assert list(headlines([cell])) == ["host:nccl/2-1-3 at 1 pays from an accept length of 1.44 (1.44 to 1.44)"]
    hopeless = replace(cell, baseline_ms=certain(1.2))
    (line,) = headlines([hopeless])
    assert (
        line == "host:nccl/2-1-3 at 1 does not pay: it takes an accept length of 3.83 (3.83 to 3.83), and 3 is the most"
    )


def test_text_holds_all_that_was_asked_in_80_columns() -> None:
    shown = text(forecast(SEVERAL, wanted(2, 3, accept_length=2.5), drafting=DRAFTING, allreduce_run=reduced()))
    parts = ("Predicted", "break-even", "speed-up", "measured at 3", "error of 2 predictions", "Not told", "Assumed")
    for part in parts:
        assert part in shown
    assert "nccl-sockets/2-1-3 at 4 requests: a pass of 12 rows" in shown
    tables = [line for line in shown.splitlines() if line.startswith(("at once", "      1", "      4"))]
    assert len(tables) == 12
    assert max(map(len, tables)) <= 80


def test_numbers_are_never_cut_where_there_are_fewer_columns() -> None:
    found = forecast(SEVERAL, wanted(2), drafting=DRAFTING)
    assert text(found, 40).count("measured at 3") == text(found).count("measured at 3") == 1
    assert "…" not in text(found, 40)


def test_columns_without_numbers_are_left_out() -> None:
    shown = text(forecast(served(BASELINE), wanted(2)))
    for part in ("tok/s", "speed-up", "error", "Not told"):
        assert part not in shown


def test_an_extrapolation_is_marked() -> None:
    found = forecast(served(BASELINE), wanted(6), drafting=DRAFTING)
    assert "steps 2 and 3, extrapolated" in text(found)
    assert document(found)["cells"][0]["extrapolated"] is True


def test_the_document_is_plain_json_and_says_that_it_is_predicted() -> None:
    found = forecast(SEVERAL, wanted(2, accept_length=2.5), drafting=DRAFTING)
    made = document(found)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["kind"] == "predicted"
    first = made["cells"][0]
    assert (first["speculation"], first["requests"], first["rows"]) == ("2-1-3", 1, 3)
    assert first["step_ms"]["value"] == pytest.approx(first["pass_ms"]["value"] + first["drafting_ms"]["value"])
    assert first["break_even"]["value"] == pytest.approx(first["step_ms"]["value"] / first["baseline_ms"]["value"])
    assert first["speed_up"] == pytest.approx(2.5 / first["break_even"]["value"])
    assert made["errors"]["count"] == 1
    assert {one["backend"] for one in made["not_told"]} == {"nccl", "nccl-sockets"}


@pytest.mark.parametrize("plain", [1e-6, 1.0, 1e12])
@pytest.mark.parametrize("speculating", [5e-324, 1e-6, 1e12])
def test_extremes_that_a_file_may_hold_stay_plain_json(plain: float, speculating: float) -> None:
    def step(_environment: str, name: str, _concurrency: int, _repetition: int) -> float:
        return speculating if name.endswith("-3") else plain

    run = fake_serving_run(fake_serving_plan(*ARMS), step, spread=0)
    for drafting in (None, DRAFTING, replace(run, header=replace(run.header, created="x"))):
        found = forecast(run, wanted(2, accept_length=3.0), drafting=drafting)
        json.dumps(document(found), allow_nan=False)
        assert text(found)


def test_a_baseline_of_no_time_at_all_counts_as_none() -> None:
    with pytest.raises(InputError, match="no baseline with numbers"):
        forecast(fake_serving_run(fake_serving_plan(BASELINE), lambda _e, _a, _n, _r: 5e-324, spread=0), wanted(2))


def test_the_verb_reads_the_files_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = written(tmp_path, served(BASELINE, gpus=2), "a.jsonl")
    drafting = written(tmp_path, DRAFTING, "b.jsonl")
    run = replace(reduced(), path=tmp_path / "c.jsonl")
    with RunWriter.begin(replace(run, trials=(), launches={})) as writer:
        writer.append(*run.records())
    options: dict[str, Any] = {"drafting": drafting, "run": str(run.path), "speculation": ["2/1/3"] * 2}
    predict_speculation(Context(), servers=servers, accept_length="2.5", json=True, **options)
    made = json.loads(capsys.readouterr().out)
    (cell,) = made["cells"]
    assert cell["step_ms"]["value"] == pytest.approx(8.648, abs=0.003)
    assert cell["accept_length"] == 2.5
    assert (made["run"], made["drafting_run"], made["allreduce_run"]) == (servers, drafting, str(run.path))
    predict_speculation(Context(), servers=servers, **options)
    assert "pays from an accept length of 1.41" in capsys.readouterr().out


def test_speculations_are_those_of_the_run_where_none_is_named(tmp_path: Path) -> None:
    other = arm("nccl/2-1-3@1.5", 1, accept_length=1.5)
    path = written(tmp_path, served(*ARMS, arm("custom/baseline", 1), arm("custom/2-1-3", 1), other), "a.jsonl")
    found = predict_servers(asked(servers=path))
    kinds = {(cell.backend, cell.wanted.kind, cell.accept_length) for cell in found.cells}
    assert kinds == {(b, k, None) for b in ("nccl", "custom") for k in ("2-1-3", "3-1-4")} | {
        ("nccl", "2-1-3@1.5", 1.5),
        ("custom", "2-1-3@1.5", None),
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drafting": "x"}, "--drafting is given without --servers"),
        ({"speculation": ["2/1/3"]}, "--speculation is given without --servers"),
        ({"servers": "x", "baseline": "80"}, "--baseline is given with --servers"),
        ({"servers": "x", "with_speculation": "80"}, "--with-speculation is given"),
        ({"servers": "x", "instead": ["a=1"]}, "--instead is given"),
        ({"servers": "x", "per_position": "0.5"}, "--per-position is given"),
        ({"servers": "x", "allreduce": ["1=1"]}, "--allreduce is given"),
        ({"servers": "x", "model": "glm-5"}, "--model is given"),
        ({"servers": "x", "gpu": "h200"}, "--gpu is given"),
        ({"servers": "x", "gpus": 4}, "--gpus is given"),
        ({"servers": "x", "draft_tokens": 4}, "--draft-tokens is given"),
        ({"servers": "x", "svg": "a.svg"}, "--svg is given"),
        ({"servers": "/no/such.jsonl"}, "/no/such.jsonl"),
        *(
            ({"servers": "x", "speculation": [text]}, f"--speculation is '{text}'")
            for text in ("", "2/1", "2/1/4", "0/1/1", "2/1/3@2", "2/1/3 ", "9999/1/2", "2/0/3", "2/4/1")
        ),
    ],
)
def test_options_that_do_not_go_together_or_mean_nothing_are_refused(
    options: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, **options)


@pytest.mark.parametrize("length", ["0.5", "3.5", "2-3", "many"])
def test_an_accept_length_that_a_speculation_cannot_have_is_refused(
    length: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, served(*ARMS), "a.jsonl")
    assert "--accept-length is" in refused(capsys, servers=path, accept_length=length)


def test_a_run_of_another_benchmark_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allreduce = str(ROOT / "docs/runs/h200x2-thresholds.jsonl")
    assert "is of benchmark 'allreduce'" in refused(capsys, servers=allreduce, speculation=["2/1/3"])
    path = written(tmp_path, served(*ARMS), "a.jsonl")
    assert "is of benchmark 'speculative'" in refused(capsys, servers=path, run=path)


def test_a_run_cannot_tell_its_own_drafting_not_even_as_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, served(*ARMS), "a.jsonl")
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(path).read_bytes())
    for other in (path, str(copy)):
        assert "would judge itself" in refused(capsys, servers=path, drafting=other)


def test_a_run_of_baselines_alone_needs_a_speculation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, served(BASELINE), "a.jsonl")
    assert "holds no speculation, and none is named" in refused(capsys, servers=path)


def absurd(steps: int, topk: int, draft_tokens: int, accept_length: float) -> Callable[[str], str]:
    def change(line: str) -> str:
        found = json.loads(line)
        for one in found["plan"]["arms"]:
            if one["spec"]["speculation"]:
                one["spec"]["speculation"].update(steps=steps, topk=topk, draft_tokens=draft_tokens)
                one["spec"]["accept_length"] = accept_length
        return json.dumps(found)

    return change


@pytest.mark.parametrize(
    "numbers",
    [(10**15, 1, 3, 0.0), (-2, 1, 3, 0.0), (2, 0, 3, 0.0), (2, 1, 0, 0.0), (2, 1, 10**9, 0.0), (2, 1, 3, 1e308)],
)
def test_absurd_speculations_of_a_file_are_refused(
    numbers: tuple[int, int, int, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, path = written(tmp_path, served(*ARMS), "a.jsonl"), tmp_path / "bad.jsonl"
    header, rest = Path(written(tmp_path, elsewhere(*ARMS), "b.jsonl")).read_text().split("\n", 1)
    path.write_text(absurd(*numbers)(header) + "\n" + rest)
    said = "simulates an accept length" if numbers[3] else "speculates"  # the first is refused when the file is read
    assert said in refused(capsys, servers=str(path))
    assert said in refused(capsys, servers=good, drafting=str(path))


def test_trials_of_arms_and_starts_that_a_plan_does_not_hold_do_no_harm() -> None:
    run = served(*ARMS)
    strangers = tuple(replace(trial, arm="x/y", environment="z") for trial in run.trials)
    other = replace(run, trials=(*run.trials, *strangers), starts={})
    assert len(forecast(other, wanted(2)).cells) == 2


def test_a_fake_run_whose_truth_is_the_formula_is_predicted_exactly() -> None:
    """The whole way: what docs/speculation-model.md has as formula, of another machine's drafting."""
    arms = (arm("nccl/baseline", 1, 2), arm("nccl/2-1-3", 1, 2), arm("nccl/probe", 1, 2, 3, 6))
    found = forecast(served(*arms, gpus=2), wanted(2), drafting=elsewhere(*arms, gpus=2))
    assert [cell.error for cell in found.cells] == pytest.approx([0, 0], abs=1e-9)
    assert found.cells[1].step_ms.value == pytest.approx(truth(2)("host", "nccl/2-1-3", 2, 0))


def errors_of(drafting: str) -> dict[tuple[str, int], float]:
    found = predict_servers(asked(servers=str(REAL_PROBE), drafting=drafting))
    return {(cell.wanted.kind, cell.requests): cell.error for cell in found.cells if cell.error is not None}


def test_one_machines_drafting_predicts_the_others_steps_within_10_per_cent() -> None:
    """Six cells of two H200 machines: the table of docs/speculation-model.md, whose numbers must stay these."""
    errors = errors_of(str(REAL))
    page = (ROOT / "docs/speculation-model.md").read_text()
    assert len(errors) == 6
    assert max(map(abs, errors.values())) < 0.10
    for drafting in (errors, errors_of("")):
        for number, error in drafting.items():
            assert f"{100 * error:+.1f}" in page, number
