"""The real pipeline on real ranks: right results, honest comparisons, and `--resume`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tests.ranks.conftest import FAULTY, named, vouched
from tuning.campaign import resume_run
from tuning.candidates import CANDIDATES
from tuning.compare import compare_names
from tuning.engines import MpiEngine
from tuning.plan import Environment
from tuning.runfile import Run, read_run
from tuning.stats import Outcome
from tuning.trial import Status
from tuning.workload import Message, Workload

ROOT = Path(__file__).resolve().parents[2]


def test_every_candidate_gives_right_sums_and_samples(measure: Callable[..., Run]) -> None:
    names = [candidate.name for candidate in CANDIDATES["mpi"]]
    run = measure(candidates=named(*names), ranks=4, launches=1)
    assert {trial.candidate for trial in run.trials} == set(names)
    for trial in run.trials:
        assert trial.status is Status.OK, trial
        assert [len(samples) for samples in trial.samples] == [2, 2]
        assert "mpirun" in run.launches[trial.launch].command[0]
    assert len({trial.launch for trial in run.trials}) == 2, (
        "default_tcp needs a launch of its own, the others share one"
    )
    assert len(run.trials) == 2 * (len(names) + 1), "the baseline twice"


@pytest.mark.parametrize("ranks", [2, 5])
def test_odd_ranks_and_sizes(measure: Callable[..., Run], ranks: int) -> None:
    odd = Workload(
        name="odd",
        dtype="bfloat16",
        messages=(Message(name="m", bytes=2, calls=3), Message(name="n", bytes=99998, calls=3)),
    )
    run = measure("ring", "segmented_ring", "rabenseifner", workload=odd, ranks=ranks, launches=1)
    assert {trial.status for trial in run.trials} == {Status.OK}


def test_a_delay_of_nothing_is_same_and_of_20_per_cent_worse(measure: Callable[..., Run]) -> None:
    """A candidate that is known to be 0 or 20 % slower, through the real pipeline: both must be decided."""
    workload = Workload(name="kimi", dtype="float32", messages=(Message(name="verify", bytes=43_008, calls=30),))
    faults = {"default": "slow:0", "delay_0": "slow:0", "delay_20": "slow:0.2"}
    run = measure("delay_0", "delay_20", faults=faults, workload=workload, ranks=2, launches=8, rounds=80, samples=1)
    (same,) = compare_names(run, "default", run, "delay_0")
    (worse,) = compare_names(run, "default", run, "delay_20")
    assert same.overall.outcome is Outcome.SAME, same.overall
    assert worse.overall.outcome is Outcome.WORSE, worse.overall
    assert worse.pairing == "same launch"


def test_two_environments_with_one_python_are_never_called_better_or_worse(measure: Callable[..., Run]) -> None:
    environments = tuple(Environment(name=name, python=sys.executable) for name in ("cu128", "cu130"))
    run = measure(environments=environments, launches=4)
    (comparison,) = compare_names(run, "cu128", run, "cu130")
    assert comparison.overall.outcome in (Outcome.SAME, Outcome.UNDECIDED)
    assert comparison.pairing == "neighbours"
    assert any("nothing about CUDA" in note for note in comparison.notes)
    assert comparison.is_a_a


def test_resume_runs_only_what_is_missing(measure: Callable[..., Run]) -> None:
    whole = measure("ring", launches=3)
    lines = whole.path.read_bytes().splitlines(keepends=True)
    second = next(n for n, t in enumerate(whole.trials) if t.repetition == 1)
    whole.path.write_bytes(b"".join(lines[: 1 + second + 2 + 2]) + b'{"kind": "trial", "torn')
    steps = []
    run = resume_run(whole.path, FAULTY, steps.append, known=vouched(whole))
    assert run.torn == 0
    assert (steps[0].done, steps[0].total) == (1, 3)
    added = [len(step.trials) for step in steps if step.finished]
    assert added == [6, 6], "launch 1 was whole, 2 was cut, 3 was missing"
    assert run.trials[: second + 2] == whole.trials[: second + 2], "what was there stays"
    (comparison,) = compare_names(run, "default", run, "ring")
    assert comparison.overall.n == 3
    again = resume_run(whole.path, FAULTY, lambda _step: None, known=vouched(whole))
    assert len(again.trials) == len(run.trials), "nothing is missing any more"


def test_resume_with_another_worker_or_machine_is_refused(measure: Callable[..., Run]) -> None:
    run = measure(launches=1)
    with pytest.raises(InputError, match="worker"):
        resume_run(run.path, MpiEngine(), lambda _step: None, known=vouched(run))
    text = run.path.read_text()
    kernel = run.header.node["host"]["kernel"]
    run.path.write_text(text.replace(f'"kernel": "{kernel}"', '"kernel": "0.0.0"', 1))
    with pytest.raises(InputError, match=r"0\.0\.0"):
        resume_run(run.path, FAULTY, lambda _step: None, known=vouched(run))


def test_resume_runs_nothing_that_only_the_file_names(measure: Callable[..., Run], tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    run = measure(launches=1)
    known = replace(vouched(run), environments=())
    for change in (("python", sys.executable, str(evil)), ("LD_PRELOAD", None, None)):
        text = run.path.read_text()
        name, old, new = change
        if old:
            changed = text.replace(json.dumps(old), json.dumps(new))
        else:
            changed = text.replace('"variables": {}', f'"variables": {{"{name}": "{evil}"}}', 1)
        assert changed != text
        path = tmp_path / f"{name}.jsonl"
        path.write_text(changed)
        with pytest.raises(InputError, match="would run environment here"):
            resume_run(path, FAULTY, lambda _step: None, known=known)
    with pytest.raises(InputError, match="would run candidate"):
        resume_run(run.path, FAULTY, lambda _step: None, known=replace(vouched(run), candidates=()))
    assert not (tmp_path / "ran").exists()


def test_resume_with_a_changed_plan_is_refused(measure: Callable[..., Run]) -> None:
    run = measure(launches=1)
    run.path.write_text(run.path.read_text().replace('"margin": 0.1', '"margin": 0.5', 1))
    with pytest.raises(InputError, match="plan"):
        resume_run(run.path, FAULTY, lambda _step: None, known=vouched(run))


def test_the_stored_command_can_be_run_again_by_hand(measure: Callable[..., Run]) -> None:
    run = measure(launches=1)
    done = subprocess.run(run.launches[run.trials[0].launch].command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert '"event": "done"' in done.stdout


def test_the_verbs_as_a_user_calls_them(tmp_path: Path) -> None:
    """bench-allreduce, then compare: ring against recursive doubling, by name, with intervals."""

    def inv(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    options = ["--candidates", "ring,recursive_doubling", "--launches", "3", "--rounds", "2", "--output", "out/r.jsonl"]
    bench = inv("bench-allreduce", *options)
    assert bench.returncode == 0, bench.stderr
    assert "[3/3]" in bench.stderr
    shown = inv("compare", "ring", "recursive_doubling", "--run", "out/r.jsonl")
    assert shown.returncode == 0, shown.stderr
    assert "host:recursive_doubling against host:ring: " in shown.stdout
    assert "14,336" in shown.stdout
    assert "\x1b[" not in shown.stdout + shown.stderr
    document = json.loads(inv("compare", "ring", "recursive_doubling", "--run", "out/r.jsonl", "--json").stdout)
    (comparison,) = document["comparisons"]
    assert comparison["overall"]["ci_low"] < comparison["overall"]["ratio"] < comparison["overall"]["ci_high"]
    answer = comparison["overall"]["outcome"]
    fail_on = inv(
        "compare", "ring", "recursive_doubling", "--run", "out/r.jsonl", "--fail-on", answer.replace(" ", "-")
    )
    assert fail_on.returncode == 3
    again = inv("bench-allreduce", *options)
    assert (again.returncode, "exists" in again.stderr) == (2, True)
    resumed = inv("bench-allreduce", "--resume", "out/r.jsonl")
    assert resumed.returncode == 0
    assert len(read_run(tmp_path / "out/r.jsonl").trials) == 3 * 4 * 2


def test_a_run_with_variables_of_its_own_goes_on_when_they_are_named_again(tmp_path: Path) -> None:
    def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "bench-allreduce", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    named = ("--environment", "tcp OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo")
    options = ("--ranks", "2", "--candidates", "default", "--rounds", "2", "--launches", "1", "--output", "r.jsonl")
    assert bench(*named, *options).returncode == 0
    alone = bench("--resume", "r.jsonl")
    assert (alone.returncode, "would run environment tcp" in alone.stderr) == (2, True)
    assert bench("--resume", "r.jsonl", *named).returncode == 0
