"""Every way in which a launch can fail ends as the right status with a reason, and leaves nothing running.

The fixture `nothing_left_behind` checks the latter for every test here.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lanewise.errors import ExitCode, InputError
from tests.ranks.conftest import marked, named, small_plan
from tuning.arms import failures
from tuning.campaign import start_run
from tuning.candidates import Candidate
from tuning.compare import overview
from tuning.engines import MpiEngine
from tuning.plan import Environment
from tuning.runfile import Run, read_run
from tuning.trial import Status, Trial

ROOT = Path(__file__).resolve().parents[2]


def by_candidate(run: Run, name: str) -> list[Trial]:
    return [trial for trial in run.trials if trial.candidate == name]


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("wrong", Status.WRONG_RESULT, "sums wrong, first at element 77"),
        ("wrong_later", Status.WRONG_RESULT, "checked after timed passes"),
        ("nan", Status.WRONG_RESULT, "nan"),
        ("hang", Status.TIMED_OUT, "no sign of life for 4 s"),
        ("chatter", Status.TIMED_OUT, "no sign of life for 4 s"),
        ("die", Status.LAUNCH_FAILED, "exit code"),
        ("die_later", Status.CRASHED, "exit code"),
        ("garble", Status.UNREADABLE, "cannot understand the worker"),
        ("leave", Status.UNREADABLE, "without saying that it was done"),
    ],
)
def test_a_fault_ends_as_its_status_and_the_others_are_measured(
    measure: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, fault: str, status: Status, reason: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush-hush-hush")
    # A busy machine may need seconds to start ranks; only where silence is the fault does the test wait for its end.
    run = measure("ring", "broken", faults={"broken": fault}, timeout=4.0 if status is Status.TIMED_OUT else 30.0)
    first, *rest = [trial for trial in by_candidate(run, "broken") if trial.message == "odd"]
    assert (first.status, reason in first.reason) == (status, True), first
    assert {trial.status for trial in rest} <= {Status.SKIPPED, status}
    assert rest, "the second launch has a line for it, too"
    for name in ("default", "ring"):
        assert {trial.status for trial in by_candidate(run, name)} == {Status.OK}
        assert {trial.repetition for trial in by_candidate(run, name)} == {0, 1}
    assert "hush" not in run.path.read_text()
    assert next(trial.candidate for trial in failures(run)) == "broken"
    (comparison,) = [c for c in overview(run).candidates[0].comparisons if c.b.candidate == "broken"]
    assert comparison.overall.n == 0


def test_an_algorithm_that_the_library_lacks_is_unsupported(measure: Callable[..., Run]) -> None:
    lacking = Candidate(name="lacking", engine="mpi", meaning="test only", parameters={"algorithm": 99})
    run = measure(candidates=(*named("default"), lacking))
    first = by_candidate(run, "lacking")[0]
    assert first.status is Status.UNSUPPORTED
    assert "Open MPI" in first.reason
    assert {trial.status for trial in by_candidate(run, "default")} == {Status.OK}


def test_a_launch_that_cannot_start_fails_for_all_and_is_given_up(measure: Callable[..., Run]) -> None:
    broken = Environment(name="broken", python=sys.executable, variables={"OMPI_MCA_btl": "nonsense"})
    run = measure("ring", environments=(broken,), launches=4)
    assert {trial.status for trial in run.trials} == {Status.LAUNCH_FAILED, Status.SKIPPED}
    tried = {trial.launch for trial in run.trials if trial.status is Status.LAUNCH_FAILED}
    assert len(tried) == 2, "twice, no more"
    assert run.launches[run.trials[0].launch].output


def test_a_python_without_mpi4py_is_refused_before_anything_runs(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (bare / "bin/mpirun").symlink_to(Path(sys.executable).parent / "mpirun")
    plan = small_plan(environments=(Environment(name="bare", python=str(bare / "bin/python")),))
    with pytest.raises(InputError, match="lacks mpi4py, numpy"):
        start_run(plan, MpiEngine(), tmp_path / "r.jsonl", lambda _step: None, command=[])
    assert not (tmp_path / "r.jsonl").exists()


def test_a_missing_mpirun_or_python_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.symlink_to(sys.executable)
    for python, says in ((str(bare), "no mpirun"), (str(tmp_path / "none"), "no Python")):
        plan = small_plan(environments=(Environment(name="x", python=python),))
        with pytest.raises(InputError, match=says) as caught:
            start_run(plan, MpiEngine(), tmp_path / "r.jsonl", lambda _step: None, command=[])
        assert caught.value.exit_code == ExitCode.INPUT
    assert not (tmp_path / "r.jsonl").exists()


def test_a_rank_killed_from_outside(tmp_path: Path) -> None:
    """As the out-of-memory killer does it: one rank of a running launch gets SIGKILL."""
    plan = small_plan(launches=1, rounds=300, samples=20)
    code = (
        "import sys, pickle; from pathlib import Path\n"
        "from tuning.campaign import start_run; from tuning.engines import MpiEngine\n"
        "plan = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "start_run(plan, MpiEngine(), Path(sys.argv[2]), lambda s: None, command=[])"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code, pickle.dumps(plan).hex(), str(tmp_path / "r.jsonl")], cwd=ROOT
    )
    ranks: list[str] = []
    deadline = time.monotonic() + 30
    while len(ranks) < plan.ranks and time.monotonic() < deadline:
        ranks = [line for line in marked(str(tmp_path)) if "mpi_allreduce" in line and "oversubscribe" not in line]
    time.sleep(4)  # into the timed passes
    assert len(ranks) == plan.ranks, ranks
    os.kill(int(ranks[1].split(":")[0]), signal.SIGKILL)
    assert harness.wait(100) == 0
    statuses = {trial.status for trial in read_run(tmp_path / "r.jsonl").trials}
    assert Status.CRASHED in statuses


def test_ctrl_c_ends_everything_and_keeps_what_was_measured(tmp_path: Path) -> None:
    options = ["--launches", "50", "--rounds", "1", "--samples", "1", "--output", str(tmp_path / "r.jsonl")]
    command = [sys.executable, "-m", "invoke", "bench-allreduce", *options]
    harness = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert harness.stderr
    seen = [harness.stderr.readline() for _ in range(3)]
    assert "[2/50]" in seen[-1]
    harness.send_signal(signal.SIGINT)
    _, rest = harness.communicate(timeout=30)
    assert harness.returncode == 130, rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert len(read_run(tmp_path / "r.jsonl").trials) >= 2 * 12
