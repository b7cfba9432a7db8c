"""A run in short: medians over starts, speed-up, what could be found, and what the starts say of themselves."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lanewise.errors import ExitCode
from tests.unit.serving.test_serving_runfile import PASS, START, TRIAL, header
from tuning.serving import verbs, view
from tuning.serving.records import ServingTrial
from tuning.serving.runfile import ServingRun
from tuning.serving.summary import findings, rows
from tuning.serving.summary_view import document, show
from tuning.trial import Status


def trial(arm: str, repetition: int, *step_ms: float, accept: float = 1.0) -> ServingTrial:
    passes = tuple(
        replace(PASS, step_ms=ms, accept_length=accept, tokens_per_second=1000 * accept / ms, requests=PASS.requests)
        for ms in step_ms
    )
    return replace(TRIAL, arm=arm, repetition=repetition, launch=f"{arm}{repetition}", passes=passes)


def run_of(*trials: ServingTrial) -> ServingRun:
    return ServingRun(path=Path("r.jsonl"), header=header()).with_records([START, *trials])


def shown(run: ServingRun) -> str:
    screen = Console(file=io.StringIO(), width=200)
    screen.print(show(run))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


BASELINE = [trial("default/baseline", number, 10.0 + number / 10, 10.0 + number / 10) for number in range(3)]
SPECULATION = [trial("default/2-1-3", number, 12.5, 12.5 + number / 5, accept=2.5) for number in range(3)]


def test_a_row_holds_medians_over_starts_and_the_speed_up_over_its_baseline() -> None:
    baseline, speculation = rows(run_of(*BASELINE, *SPECULATION))
    assert (baseline.step_ms, baseline.speed_up, baseline.detectable) == (pytest.approx(10.1), None, None)
    assert speculation.starts == 3
    assert speculation.step_ms == pytest.approx(12.6)
    assert speculation.speed_up == pytest.approx((2500 / 12.6) / (1000 / 10.1), rel=1e-3)
    assert speculation.detectable is not None
    assert 0 < speculation.detectable < 0.1
    assert speculation.ttft_ms == 3.5
    assert speculation.tpot_ms == pytest.approx((250 - 3.5) / 63)
    assert (speculation.itl_p50_ms, speculation.itl_p99_ms) == (None, None), "as in files of before"


def test_inter_token_latencies_are_medians_over_passes() -> None:
    told = [
        replace(one, passes=tuple(replace(done, itl_p50_ms=10.0 + n, itl_p99_ms=20.0 + n) for done in one.passes))
        for n, one in enumerate(BASELINE)
    ]
    (row,) = rows(run_of(*told))
    assert (row.itl_p50_ms, row.itl_p99_ms) == (11, 21)
    text = shown(run_of(*told))
    assert "ITL p50/p99" in text
    assert "11.00/21.00" in text


def test_of_a_start_that_was_repeated_the_later_one_counts() -> None:
    (row,) = rows(run_of(trial("default/baseline", 0, 20.0), trial("default/baseline", 0, 10.0)))
    assert (row.starts, row.step_ms, row.spread) == (1, 10.0, None)


def test_a_failure_of_a_start_that_was_repeated_and_has_numbers_is_none() -> None:
    failed = replace(
        TRIAL, arm="default/baseline", passes=(), status=Status.LAUNCH_FAILED, reason="no memory", launch="a"
    )
    run = run_of(replace(failed, repetition=0), trial("default/baseline", 0, 10.0), replace(failed, repetition=1))
    assert [failure["repetition"] for failure in document(run)["failures"]] == [1]
    assert view.failures(run) == ["here:default/baseline at 1, start 2: launch_failed: no memory"]
    assert verbs.exit_code(run) is ExitCode.FAILED
    assert verbs.exit_code(replace(run, trials=run.trials[:2])) is None


def test_starts_that_differ_while_their_passes_agree_are_told() -> None:
    apart = [trial("default/baseline", number, ms, ms * 1.001) for number, ms in enumerate((10.0, 13.0, 10.0))]
    assert any("the start decides: 10, 13" in finding for finding in findings(run_of(*apart)))
    noisy = [trial("default/baseline", number, ms, ms * 1.2) for number, ms in enumerate((10.0, 13.0, 10.0))]
    assert not [finding for finding in findings(run_of(*noisy)) if "decides" in finding]
    assert "here default/2-1-3 start 1: x" in list(findings(run_of()))


def test_one_pass_agrees_with_none() -> None:
    once = [trial("default/baseline", number, ms) for number, ms in enumerate((10.0, 13.0, 10.0))]
    assert not [finding for finding in findings(run_of(*once)) if "decides" in finding]


def test_what_could_be_found_is_said_to_be_of_the_step_time() -> None:
    wild = [trial("default/2-1-3", number, ms, accept=2.5) for number, ms in enumerate((10.0, 90.0, 12.0))]
    text = shown(run_of(*BASELINE, *wild))
    assert "step detectable" in text
    assert ">100%" in text


def test_everything_is_shown_and_is_json() -> None:
    failed = replace(TRIAL, repetition=3, passes=(), status=Status.CRASHED, reason="gone\x1b[2J")
    run = run_of(*BASELINE, *SPECULATION, failed)
    text = shown(run)
    assert "default/2-1-3" in text
    assert "crashed: gone" in text
    assert "\x1b" not in text
    told = json.loads(json.dumps(document(run), allow_nan=False))
    assert [row["arm"] for row in told["rows"]] == ["default/baseline", "default/2-1-3"]
    assert told["failures"][0]["status"] == "crashed"
