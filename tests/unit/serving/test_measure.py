"""Measuring against fakes of known truth: what is recovered, from which source, and what is found out about it."""

from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serving.runs import carry_out, fake_request, truth
from tests.unit.serving.servers import fake_server
from tuning.serving import measure
from tuning.serving.prompts import Prompt
from tuning.serving.records import ServerStart, ServingTrial
from tuning.serving.served import Api, Load, Served
from tuning.trial import Status

ARM = "default/2-1-3"


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is never stable."""
    monkeypatch.setattr(measure, "MOST_WARM_UP_WAVES", 3)


def measured(folder: Path, **asked: Any) -> tuple[list[ServingTrial], ServerStart]:
    """The trials of a server with speculation 2/1/3, and its start."""
    run = carry_out(folder, fake_request(folder, **{"speculations": ("2/1/3",), **asked}), ARM)
    (start,) = run.starts.values()
    return list(run.trials), start


@pytest.mark.parametrize(
    ("release", "asked", "source"),
    [
        ("0.5.23", {}, "counters"),
        ("0.5.12", {}, "requests"),
        ("0.5.12", {"prompts": "mixed"}, "log"),
        ("0.5.12", {"prompts": "mixed", "server": {"flags": {"decode-log-interval": "1000"}}}, "chunks"),
    ],
)
def test_step_time_and_accept_length_are_recovered_from_every_source(
    tmp_path: Path, release: str, asked: dict[str, Any], source: str
) -> None:
    asked = {"concurrencies": (2,), "output_tokens": 96, "fake": {"accept": (0.8, 0.6)}, **asked}
    off: list[tuple[float, float]] = []
    for attempt in range(4):  # what else runs on this machine can disturb one, never all in the same way
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        ((trial,), _) = measured(folder, release=release, **asked)
        assert trial.ok, trial.reason
        assert {done.source for done in trial.passes} == {source}
        step_ms, accept_length = truth(folder, running=2, waves=2 * 2)
        steps, accepted = ([getattr(done, name) for done in trial.passes] for name in ("step_ms", "accept_length"))
        off.append((statistics.fmean(steps) / step_ms - 1, statistics.fmean(accepted) / accept_length - 1))
        if abs(off[-1][0]) < 0.01 and abs(off[-1][1]) < 0.02:
            return
    pytest.fail(f"step time and accept length are off by {off}")


QUICK = {"fake": {"compute_ms": 4.0}, "requests": 1, "output_tokens": 64}


def quick(**fake: Any) -> dict[str, Any]:
    """What is asked where only findings matter."""
    return {**QUICK, "fake": {"compute_ms": 4.0, **fake}}


def test_verify_passes_that_ran_eagerly_are_a_finding(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **quick(eager=True))
    assert {done.graph_share for done in trial.passes} == {0.0}
    assert any("verify passes ran eagerly" in finding for finding in start.findings)


def test_steps_that_replay_a_graph_are_none(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **quick())
    assert {done.graph_share for done in trial.passes} == {1.0}
    assert not [finding for finding in start.findings if "eager" in finding]
    assert (trial.passes[0].requests[0].gaps_ms != (), trial.passes[1].requests[0].gaps_ms) == (True, ())


def test_a_cold_start_is_warmed_up_and_does_not_reach_the_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MOST_WARM_UP_WAVES", 6)
    ((trial,), _) = measured(tmp_path, **quick(cold_steps=40, cold_factor=4.0))
    assert trial.warm_up[0] > 1.5 * trial.warm_up[-1]
    assert trial.passes[-1].step_ms < 1.2 * trial.warm_up[-1]


def test_a_step_time_that_never_settles_is_a_finding(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **quick(drift=30.0))
    assert len(trial.warm_up) == 3
    assert any("still drifting after 3 warm-up waves" in finding for finding in start.findings)


def test_a_drift_over_the_passes_is_a_finding(tmp_path: Path) -> None:
    (_, start) = measured(tmp_path, **quick(drift=30.0), passes=3)
    assert any("drifted over the passes" in finding for finding in start.findings)


def test_requests_that_never_decode_together_have_no_numbers(tmp_path: Path) -> None:
    ((alone, four), _) = measured(tmp_path, **quick(slot_limit=2), concurrencies=(1, 4))
    assert alone.ok
    assert (four.status, four.passes) == (Status.UNSUPPORTED, ())
    assert "of 4 requests sent at once at most 2 decoded together" in four.reason


def test_counts_that_the_server_itself_contradicts_are_a_finding(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **{**quick(wrong_counts=-1), "output_tokens": 128})
    assert trial.passes[0].source == "requests"
    (found,) = [finding for finding in start.findings if "counters gained" in finding]
    waves = len(trial.warm_up) + len(trial.passes)
    assert f"in {waves} waves the server's" in found, "once, however many there were"
    assert "(first 128 where they hold 127)" in found


def test_a_trial_whose_answers_and_counters_contradict_each_other_has_no_numbers(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **quick(wrong_counts=-5))
    assert (trial.status, trial.passes) == (Status.UNREADABLE, ())
    assert "its answers hold 118 tokens, and the server's counters gained 128" in trial.reason
    assert start.status is Status.OK, "the server lives"


def test_a_server_that_others_use_meanwhile_gives_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.generate

    def with_another(url: str, load: Load, **more: Any) -> Served:
        real(url, replace(load, max_tokens=20), concurrency=1, timeout=10)
        return real(url, load, **more)

    monkeypatch.setattr(measure, "generate", with_another)
    ((trial,), _) = measured(tmp_path, **quick())
    assert (trial.status, trial.passes) == (Status.UNREADABLE, ())
    assert "somebody else uses it" in trial.reason


def test_counters_that_count_nothing_contradict_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.metrics

    def stuck(url: str) -> str:
        return re.sub(r"(generation_tokens_total\S*) \S+", r"\1 0.0", real(url))

    monkeypatch.setattr(measure, "metrics", stuck)
    monkeypatch.setattr(measure, "_SETTLED_SECONDS", 0.05)
    ((trial,), _) = measured(tmp_path, **quick())
    assert trial.ok, trial.reason
    assert {done.source for done in trial.passes} == {"requests"}


def test_more_tokens_than_were_asked_for_are_unreadable_by_both_numbers(tmp_path: Path) -> None:
    ((trial,), _) = measured(tmp_path, **quick(wrong_counts=7))
    assert (trial.status, trial.passes) == (Status.UNREADABLE, ())
    assert "completion_tokens is 71, and at most 64 were asked for" in trial.reason


def test_a_stream_that_ends_too_early_is_unreadable_and_says_where(tmp_path: Path) -> None:
    ((trial,), start) = measured(tmp_path, **quick(half_close_after=20))
    assert trial.status is Status.UNREADABLE
    assert "half-closed" in trial.reason
    assert start.status is Status.OK, "the server lives"


def test_a_refusal_is_told_with_the_servers_words(tmp_path: Path) -> None:
    ((trial,), _) = measured(tmp_path, **quick(refuse=400))
    assert trial.status is Status.UNREADABLE
    assert "a fake refusal" in trial.reason


@pytest.mark.parametrize(("stops", "ok"), [(2, True), (3, False)])
def test_a_wave_in_which_this_process_stood_still_is_sent_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: int, ok: bool
) -> None:
    """Ctrl-Z and fg: the server went on, and no chunk was read in time."""
    real, calls = measure.generate, itertools.count()

    def stopped(*given: Any, **more: Any) -> Served:
        served = real(*given, **more)
        return replace(served, stopped=5.0) if next(calls) < stops else served

    monkeypatch.setattr(measure, "generate", stopped)
    ((trial,), start) = measured(tmp_path, **quick(), passes=1)
    assert trial.ok is ok, trial.reason
    assert (trial.status is Status.UNREADABLE and "stood still" in trial.reason) is not ok
    assert start.status is Status.OK


def test_how_long_this_process_stood_still_is_told(tmp_path: Path) -> None:
    with fake_server(tmp_path, compute_ms=10.0) as running:
        load = Load(prompts=(Prompt(id="p", category="c", tokens=(1, 2)),), max_tokens=40, api=Api.GENERATE)
        assert measure.generate(running.url, load, concurrency=1, timeout=10).stopped < 1
        lull = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        before = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1.5))  # the thread that waits stands still
        try:
            lull.start()
            assert 1.2 < measure.generate(running.url, load, concurrency=1, timeout=10).stopped < 3
        finally:
            signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("times", "drifts"),
    [
        ([10, 10.05, 10.2], True),
        ([10.2, 10.1, 10], True),
        ([10, 10.2, 10.1], False),
        ([10, 10.5], False),
        ([10, 10, 10], False),
    ],
)
def test_only_what_goes_one_way_drifts(times: list[float], drifts: bool) -> None:
    assert measure._drifts(times) is drifts


def test_a_wave_that_is_not_full_is_made_up_from_the_first_prompts() -> None:
    prompts = [Prompt(id=str(number), category="c", text="t") for number in range(5)]
    waves = ["".join(prompt.id for prompt in wave) for wave in measure.waves_of(prompts, 3)]
    assert waves == ["012", "340"]
    assert [len(wave) for wave in measure.waves_of(prompts, 8)] == [8]
