"""A run carried out with real processes, the fakes: groups, endings, going on, and nothing left running."""

from __future__ import annotations

import os
import shlex
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanewise.errors import InputError
from tests.unit.serving.runs import carry_out, fake_environment, fake_request
from tuning.plan import Environment
from tuning.serving import measure, prepared, profiled, starts
from tuning.serving.campaign import resume_run, start_run
from tuning.serving.plan import ServingPlan
from tuning.serving.ports import Ports, held_ports
from tuning.serving.profile import parse_profile
from tuning.serving.prompts import Prompt
from tuning.serving.request import make_plan
from tuning.serving.runfile import ServingRun, read_serving_run
from tuning.serving.server import Server
from tuning.serving.server_ended import ServerEnded
from tuning.serving.starts import Step
from tuning.serving.summary import findings
from tuning.trial import Status

BASE = "default/baseline"


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_WARM_UP_WAVES", 2)


@pytest.fixture
def model() -> Iterator[str]:
    """A model's name, and so a word in the command line of every server; none may be left in the end."""
    word = f"fake-model-{uuid.uuid4().hex}"
    yield word
    assert not with_word(word)


def with_word(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found += [int(entry.name)] if word.encode() in (entry / "cmdline").read_bytes() else []
            except OSError:
                continue
    return found


def quick(folder: Path, model: str, *arms: str, fake: dict[str, Any] | None = None, **asked: Any) -> ServingRun:
    """A run of few short requests."""
    return carry_out(folder, request(folder, model, fake=fake, **asked), *(arms or (BASE,)))


def request(folder: Path, model: str, *, fake: dict[str, Any] | None = None, **asked: Any) -> Any:
    fake = {"compute_ms": 2.0, "truth": "", **(fake or {})}
    asked = {"requests": 1, "output_tokens": 32, "passes": 1, "timeout": 10, **asked}
    return fake_request(folder, fake=fake, server={"model": model}, **asked)


def frozen(word: str) -> int:
    """How many of the processes are stopped."""
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in with_word(word)]
    return sum(stat.rsplit(")", 1)[1].split()[0] == "T" for stat in stats)


def test_the_others_of_a_group_are_frozen_while_one_is_measured(tmp_path: Path, model: str) -> None:
    plan, prompts = planned(tmp_path, model, speculations=("2/1/3", "3/1/4"), together=3)
    seen: list[int] = []

    def look(step: Step) -> None:
        if "pass" in step.remark:
            seen.append(frozen(model))

    start_run(plan, prompts, tmp_path / "r.jsonl", look, command=["test"])
    assert seen == [2, 1, 0]


def test_servers_that_start_together_are_measured_one_after_the_other(tmp_path: Path, model: str) -> None:
    arms = (BASE, "default/2-1-3", "default/3-1-4")
    speculations = ("2/1/3", "3/1/4")
    run = quick(tmp_path, model, *arms, speculations=speculations, together=3, fake={"compute_ms": 6.0})
    assert [trial.status for trial in run.trials] == [Status.OK] * 3
    assert read_serving_run(run.path).trials == run.trials
    by_arm = {start.arm: start for start in run.starts.values()}
    assert set(by_arm) == set(arms)
    assert {start.release for start in run.starts.values()} == {"0.5.23"}
    assert by_arm["default/2-1-3"].resolved["speculative_num_draft_tokens"] == 3
    logs = [tmp_path / "r.logs" / launch / "server.log" for launch in run.starts]
    assert all("ready to roll" in log.read_text() for log in logs)


@pytest.mark.parametrize(
    ("fake", "status", "said"),
    [
        ({"crash_after_tokens": 20}, Status.CRASHED, "illegal memory access"),
        ({"hang": "decode", "hang_after_tokens": 20}, Status.TIMED_OUT, "answering"),
        ({"hang": "capture"}, Status.TIMED_OUT, "graph"),
        (
            {"dies": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."},
            Status.LAUNCH_FAILED,
            "memory",
        ),
        ({"dies": "boom", "exit_code": 3}, Status.LAUNCH_FAILED, ""),
    ],
)
def test_a_server_that_breaks_is_a_result_with_its_cause(
    tmp_path: Path, model: str, fake: dict[str, Any], status: Status, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_SECONDS_A_TOKEN", 0.02)
    run = quick(tmp_path, model, fake=fake, concurrencies=(1, 2), timeout=2.5)
    (start,) = run.starts.values()
    assert (start.status, {trial.status for trial in run.trials}) == (status, {status})
    assert said in start.reason
    assert start.output
    assert len(run.trials) == 2, "every load says how it ended"
    assert read_serving_run(run.path).starts == run.starts


def test_what_breaks_for_good_is_not_started_again(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model, fake={"hang": "capture"}, starts=3, timeout=1)
    assert [trial.status for trial in run.trials] == [Status.TIMED_OUT, Status.SKIPPED, Status.SKIPPED]
    assert "not tried again after timed_out in repetition 1" in run.trials[-1].reason
    assert len(run.starts) == 1


def test_what_may_pass_is_tried_twice(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model, fake={"dies": "boom"}, starts=3)
    assert [trial.status for trial in run.trials] == [Status.LAUNCH_FAILED, Status.LAUNCH_FAILED, Status.SKIPPED]


def test_one_load_that_cannot_be_does_not_cost_the_others(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model, fake={"slot_limit": 2}, starts=2, concurrencies=(1, 4))
    assert [(trial.concurrency, trial.status) for trial in run.trials] == [
        (1, Status.OK), (4, Status.UNSUPPORTED), (4, Status.SKIPPED), (1, Status.OK),
    ]  # fmt: skip


def test_a_start_with_numbers_is_none_that_failed_and_says_how_it_ended(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model, fake={"crash_after_tokens": 130}, concurrencies=(1, 2))
    (start,) = run.starts.values()
    assert [trial.status for trial in run.trials] == [Status.OK, Status.CRASHED]
    assert start.status is Status.OK
    assert any("ended while it was measured" in finding for finding in start.findings)
    assert start.output


@pytest.mark.parametrize(("failures", "status"), [(1, Status.OK), (2, Status.LAUNCH_FAILED)])
def test_a_start_that_fails_beside_others_starts_once_more_by_itself(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, failures: int, status: Status
) -> None:
    left, whole = [ServerEnded(Status.LAUNCH_FAILED, "no memory")] * failures, Server.wait_ready

    def wait_ready(self: Server, deadline: float) -> None:
        if "--speculative-num-steps" in self.command and left:
            raise left.pop()
        whole(self, deadline)

    monkeypatch.setattr(Server, "wait_ready", wait_ready)
    run = quick(tmp_path, model, "default/baseline", "default/2-1-3", speculations=("2/1/3",), together=2)
    assert {trial.arm.split("/")[1]: trial.status for trial in run.trials} == {"baseline": Status.OK, "2-1-3": status}
    assert len(run.starts) == 2, "the start beside others is not recorded"


def test_a_port_that_is_taken_meanwhile_costs_nothing(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offered = [taken.getsockname()[1]]

        @contextmanager
        def ports(**asked: bool) -> Iterator[Ports]:
            with held_ports(**asked) as free:
                yield replace(free, nccl=offered.pop()) if offered else free

        monkeypatch.setattr(starts, "held_ports", ports)
        run = quick(tmp_path, model)
    assert [trial.status for trial in run.trials] == [Status.OK]


def test_starts_of_two_speeds_are_told(tmp_path: Path, model: str) -> None:
    fake = {"modes": (1.0, 1.6), "starts": str(tmp_path / "count"), "compute_ms": 6.0}
    run = quick(tmp_path, model, fake=fake, starts=4, passes=2)
    assert any("the start decides" in finding for finding in findings(run))


def test_a_profile_is_taken_of_every_server_after_its_passes(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scratch := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    plan, prompts = planned(tmp_path, model, speculations=("2/1/3",), together=2, fake={"calls": 6})
    run = start_run(plan, prompts, tmp_path / "r.jsonl", lambda step: None, command=["test"], profile=True)
    stored = read_serving_run(run.path).starts.values()
    profiles = [parse_profile(start.profile) for start in stored]
    assert [(one.concurrency, one.allreduces) for one in profiles if one] == [(1, 6)] * 2
    assert not [finding for start in stored for finding in start.findings if "profile" in finding]
    assert not list(scratch.iterdir()), "traces are large, and go with their server"
    assert {path.name for path in (tmp_path / "r.logs").glob("*/*")} == {"server.log"}


def test_a_profile_tells_of_the_backend_what_the_log_does_not(tmp_path: Path, model: str) -> None:
    plan, prompts = planned(tmp_path, model, fake={"calls": 6})
    arms = tuple(replace(arm, spec=replace(arm.spec, tensor_parallel=2)) for arm in plan.arms)
    plan = replace(plan, arms=arms)
    run = start_run(plan, prompts, tmp_path / "r.jsonl", lambda step: None, command=["test"], profile=True)
    (start,) = run.starts.values()
    assert start.engaged == {"allreduce": "default: nccl: 6 ncclDevKernel_AllReduce_fake a step (profile)"}
    assert not any("no line of the log" in finding for finding in start.findings)


def test_a_profile_that_cannot_be_taken_is_a_finding_and_the_numbers_stay(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled, "_MOST_SECONDS", 1.0)
    plan, prompts = planned(tmp_path, model, fake={"profiler": False})
    run = start_run(plan, prompts, tmp_path / "r.jsonl", lambda step: None, command=["test"], profile=True)
    (start,) = run.starts.values()
    assert (start.status, [trial.status for trial in run.trials]) == (Status.OK, [Status.OK])
    assert not start.profile
    assert any(finding.startswith("not profiled: ") and "wrote no profile" in finding for finding in start.findings)


def test_a_model_or_sglang_that_is_missing_is_refused_before_a_run_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model"):
        quick(tmp_path, str(tmp_path / "nothing"))
    broken = replace(fake_environment(tmp_path), variables={})
    with pytest.raises(InputError, match="no SGLang"):
        quick(tmp_path, "m", environments=(broken,))
    assert not (tmp_path / "r.jsonl").exists()


def planned(folder: Path, model: str, **asked: Any) -> tuple[ServingPlan, tuple[Prompt, ...]]:
    return make_plan(request(folder, model, **asked))


def test_an_interrupted_run_leaves_nothing_and_goes_on_with_what_is_missing(tmp_path: Path, model: str) -> None:
    plan, prompts = planned(tmp_path, model, starts=2, speculations=("2/1/3",), together=2)

    def interrupt(step: Step) -> None:
        if step.done == 2 and "pass" in step.remark:
            assert with_word(model)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_run(plan, prompts, tmp_path / "r.jsonl", interrupt, command=["test"])
    assert not with_word(model)
    before = read_serving_run(tmp_path / "r.jsonl")
    assert len(before.trials) == 2
    steps: list[Step] = []
    after = resume_run(tmp_path / "r.jsonl", plan, prompts, steps.append)
    assert (steps[0].done, steps[0].total) == (2, 4)
    assert after.trials[:2] == before.trials
    assert [(trial.repetition, trial.status) for trial in after.trials[2:]] == [(1, Status.OK)] * 2


def test_going_on_takes_the_plan_that_the_run_was_begun_with_and_no_other(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model)
    plan, prompts = planned(tmp_path, model)
    again = resume_run(run.path, plan, prompts, lambda step: None)
    assert again.trials == run.trials, "nothing is missing"
    other = replace(plan, environments=(replace(plan.environments[0], python="/evil/python"),), passes=5)
    with pytest.raises(InputError, match="passes: 1 / 5") as caught:
        resume_run(run.path, other, prompts, lambda step: None)
    assert "host python: " in str(caught.value)
    assert "/ /evil/python" in str(caught.value)
    assert "never run" in str(caught.value)


def test_the_command_of_a_run_is_told_whole_and_as_a_shell_takes_it(tmp_path: Path, model: str) -> None:
    plan, prompts = planned(tmp_path, model)
    command = ["./inv", "bench-speculative", "--set", "A=b c", *("--flag", "x=" + "1" * 500), "--minutes", "9"]
    run = start_run(plan, prompts, tmp_path / "r.jsonl", lambda step: None, command=command)
    with pytest.raises(InputError) as caught:
        resume_run(run.path, replace(plan, starts=2), prompts, lambda step: None)
    assert caught.value.todo.endswith(shlex.join(command))
    assert "starts: 1 / 2" in caught.value.what


def test_plans_that_differ_in_much_are_told_by_a_few_differences(tmp_path: Path, model: str) -> None:
    run = quick(tmp_path, model)
    plan, prompts = planned(tmp_path, model)
    other = replace(plan, starts=2, passes=5, seed=9, margin=0.5, timeout=77, output_tokens=99)
    with pytest.raises(InputError) as caught:
        resume_run(run.path, other, prompts, lambda step: None)
    assert caught.value.what.endswith("seed: 1 / 9; 2 more")


def test_a_run_begins_no_repetition_that_would_end_too_late(tmp_path: Path, model: str) -> None:
    plan, prompts = planned(tmp_path, model, starts=5)
    steps: list[Step] = []
    run = start_run(plan, prompts, tmp_path / "r.jsonl", steps.append, command=["test"], minutes=0.001)
    assert len(run.trials) == 2
    (stopped,) = [step.remark for step in steps if step.stopped]
    assert "--minutes 0.001" in stopped
    assert "2 of 5 starts; go on with --resume" in stopped
    assert str(run.path) in stopped


def test_a_launcher_is_asked_only_where_its_answer_counts_and_that_is_told(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fake_flags(environment: Environment) -> frozenset[str]:
        asked.append(environment.name)
        return frozenset()

    monkeypatch.setattr(prepared, "help_flags", fake_flags)
    steps: list[Step] = []
    for release, said, times in (("0.4.0", "'0.4.0' is not supported", 0), ("0.99.0", "0.99.0 are not known", 1)):
        (tmp_path / release).mkdir()
        plan, prompts = make_plan(fake_request(tmp_path / release, release=release, server={"model": model}))
        with pytest.raises(InputError, match=said):
            start_run(plan, prompts, tmp_path / "r.jsonl", steps.append, command=["test"])
        assert len(asked) == times
    (step,) = steps
    assert "asking the launcher of SGLang 0.99.0 for its flags" in step.remark


@pytest.mark.parametrize("option", ["--model", "--draft"])
def test_a_folder_without_config_json_is_refused_before_a_run_file_is_made(tmp_path: Path, option: str) -> None:
    (tmp_path / "empty").mkdir()
    empty = str(tmp_path / "empty")
    asked = {"draft": empty if option == "--draft" else "d", "speculations": ("2/1/3",)}
    plan, prompts = planned(tmp_path, empty if option == "--model" else "m", **asked)
    with pytest.raises(InputError, match=f"{option} is .*/empty, a folder without config.json"):
        start_run(plan, prompts, tmp_path / "r.jsonl", lambda step: None, command=["test"])
    assert not (tmp_path / "r.jsonl").exists()
