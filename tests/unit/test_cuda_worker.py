"""Engine `cuda`'s worker in real processes with its real hub, on a device that is a fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.makers import fake_candidate
from tuning.plan import Arm
from tuning.protocol import MARK, Ending, LaunchLog
from tuning.trial import Status

FAKE = Path(__file__).with_name("fake_cuda_worker.py")
MESSAGES = [{"name": "odd", "bytes": 2042, "calls": 3}, {"name": "even", "bytes": 4096, "calls": 2}]
CASES = tuple((m["name"], mode, kept) for m in MESSAGES for mode in ("graph", "eager") for kept in ("warm", "cold"))


def job(*names: str, **changes: object) -> str:
    fields: dict[str, object] = {
        "protocol": 1,
        "ranks": 2,
        "seed": 3,
        "rounds": 2,
        "samples": 2,
        "dtype": "bfloat16",
        "modes": ["graph", "eager"],
        "working_sets": ["warm", "cold"],
        "messages": MESSAGES,
        "bitwise_replays": 5,
        "candidates": [{"key": f"{name}#0", "parameters": {"kind": "nccl"}} for name in names],
    }
    return json.dumps({**fields, **changes})


class Launch:
    """A finished launch: its events, what else it said, and how it ended."""

    def __init__(self, text: str, faults: dict[str, str] | None = None) -> None:
        environment = {**os.environ, "LANEWISE_TEST_FAULTS": json.dumps(faults or {})}
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(FAKE), text], capture_output=True, text=True, env=environment, timeout=50, check=False
        )
        self.seconds = time.monotonic() - started
        self.code, self.errors, self.lines = done.returncode, done.stderr, done.stdout.splitlines()
        self.events = [json.loads(line.removeprefix(MARK)) for line in self.lines]

    def of(self, kind: str, **fields: object) -> list[dict[str, object]]:
        return [e for e in self.events if e["event"] == kind and all(e.get(k) == v for k, v in fields.items())]

    def results(self, *names: str) -> dict[str, set[tuple[Status, str]]]:
        """What the harness makes of it: status and reason of each arm."""
        log = LaunchLog(arms=tuple(Arm(candidate=fake_candidate(name)) for name in names), cases=CASES)
        for line in self.lines:
            log.feed(line)
        found: dict[str, set[tuple[Status, str]]] = {}
        for (key, _), result in log.results(log.breakage(Ending.EXITED, self.code, 5)).items():
            found.setdefault(key.removesuffix("#0"), set()).add((result.status, result.reason))
        return found


@pytest.fixture(scope="module")
def whole() -> Launch:
    return Launch(job("default", "in_place", "bitwise", "logged"))


def test_every_case_is_checked_then_timed_in_every_round(whole: Launch) -> None:
    assert whole.code == 0, whole.errors
    assert [event["event"] for event in (whole.events[0], whole.events[-1])] == ["ready", "done"]
    visits = Counter(
        (e["candidate"], e["message"], e["mode"], e["working_set"], e["round"]) for e in whole.of("samples")
    )
    assert len(visits) == 4 * len(CASES) * 2
    assert set(visits.values()) == {1}
    assert all(len(e["us"]) == 2 and min(e["us"]) > 0 for e in whole.of("samples"))
    phases = [event.get("phase") for event in whole.events]
    assert phases.index("time") > max(i for i, phase in enumerate(phases) if phase in ("setup", "check"))
    assert len(whole.of("begin", phase="check bit for bit", candidate="bitwise#0")) == 2
    names = ("default", "in_place", "bitwise", "logged")
    assert whole.results(*names) == {name: {(Status.OK, "")} for name in names}


def test_what_it_says_of_itself(whole: Launch) -> None:
    ready = whole.events[0]
    assert ready["libraries"] == {"nccl": "2.28.9", "gpus": ["Fake 0", "Fake 1"]}
    assert "shared_gpu" not in ready
    choice = whole.of("choice", candidate="default#0", message="odd")
    assert choice == [
        {"event": "choice", "candidate": "default#0", "message": "odd", "algorithm": "RING", "protocol": "LL",
         "channels": 1, "modes": ["eager", "graph"], "nccl": "2.28.9"}
    ]  # fmt: skip


def test_only_eager_samples_beside_a_log_are_marked(whole: Launch) -> None:
    marked = {(e["candidate"], e["mode"]) for e in whole.of("samples", logged=True)}
    assert marked == {("logged#0", "eager")}


def test_the_order_is_random_and_the_seed_decides_it(whole: Launch) -> None:
    def order(launch: Launch, number: int) -> list[tuple[object, ...]]:
        samples = launch.of("samples", round=number)
        return [(e["candidate"], e["message"], e["mode"], e["working_set"]) for e in samples]

    again = Launch(job("default", "in_place", "bitwise", "logged"))
    other = Launch(job("default", "in_place", "bitwise", "logged", seed=4))
    assert order(again, 0) == order(whole, 0)
    assert order(whole, 0) != order(whole, 1)
    assert order(whole, 0) != order(other, 0)
    assert sorted(order(whole, 0)) == sorted(order(other, 1))


def test_a_shared_gpu_is_told() -> None:
    assert Launch(job("default", shared_gpu=True)).events[0]["shared_gpu"] is True


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_data_types(dtype: str) -> None:
    messages = [{"name": "m", "bytes": 400, "calls": 2}]
    launch = Launch(job("default", "in_place", dtype=dtype, ranks=3, messages=messages))
    assert len(launch.of("samples")) == 2 * 4 * 2, launch.errors


@pytest.mark.parametrize(
    ("name", "fault", "status", "says"),
    [
        ("bad", "wrong", Status.WRONG_RESULT, "rank 1: 1 of 1021 sums wrong, first at element 1020 of buffer 0"),
        ("bad", "wrong_later", Status.WRONG_RESULT, "checked after timed passes"),
        ("in_place_bad", "wrong_later", Status.WRONG_RESULT, "checked after timed passes"),
        ("bad", "nan", Status.WRONG_RESULT, "rank 1: 1021 of 1021 sums wrong, first at element 0 of buffer 0: nan"),
        ("bad", "unwritten", Status.WRONG_RESULT, "1021 of 1021 sums wrong"),
        ("bad", "refused", Status.UNSUPPORTED, "ncclCommInitRank: invalid usage"),
        ("bad", "no_capture", Status.UNSUPPORTED, "rank 1: OutOfMemory: graph"),
        ("bad", "other_choice", Status.UNSUPPORTED, "message odd: asked for tree, NCCL ran RING LL"),
        ("coarse", "", Status.UNSUPPORTED, "message odd: 1021 elements, not a multiple of 4"),
        ("bitwise", "sometimes", Status.WRONG_RESULT, "gave other bits than the first"),
    ],
)
def test_one_candidates_fault_is_its_own(name: str, fault: str, status: Status, says: str) -> None:
    launch = Launch(job("default", name, "last"), {name: fault})
    assert launch.code == 0, launch.errors
    results = launch.results("default", name, "last")
    assert results["default"] == results["last"] == {(Status.OK, "")}
    ((found, reason),) = results[name]
    assert found is status
    assert says in reason


def test_results_that_differ_between_ranks_are_told() -> None:
    launch = Launch(job("default", "odd_one"), {"odd_one": "unequal"})
    equal = {(e["candidate"], e["equal_on_ranks"]) for e in launch.of("samples")}
    assert equal == {("default#0", True), ("odd_one#0", False)}


@pytest.mark.parametrize("later", ["", "_later"])
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("die", 137, "rank 1 was killed by SIGKILL; the other ranks were ended"),
        ("error", 3, "rank 1: cudaGraphLaunch: cudaErrorIllegalAddress (an illegal memory access)"),
        ("leave", 1, "rank 1 ended before it was done; the other ranks were ended"),
    ],
)
def test_a_rank_that_dies_ends_the_launch_at_once(fault: str, code: int, says: str, later: str) -> None:
    launch = Launch(job("default", "bad"), {"bad": fault + later})
    assert launch.code == code
    assert says in launch.errors
    assert launch.seconds < 20
    ((status, reason),) = launch.results("default", "bad")["bad"]
    assert status in (Status.CRASHED, Status.LAUNCH_FAILED)
    assert f"exit code {code}" in reason


@pytest.mark.parametrize("fault", ["unusable", "one_unusable"])
def test_a_machine_that_cannot_fails_the_launch_with_the_reason(fault: str) -> None:
    launch = Launch(job("default"), {"launch": fault})
    assert launch.code == 0
    (event,) = launch.events
    assert event["event"] == "failed"
    assert event["reason"] in ("2 ranks need 2 GPUs, one each, and CUDA shows 1", "rank 1: CUDA does not start")


def test_a_job_that_is_none_fails_the_launch() -> None:
    launch = Launch('{"protocol": 3}')
    assert launch.code == 0
    assert launch.events == [{"event": "failed", "reason": "this worker speaks protocol 1"}]


def test_what_libraries_print_is_no_event() -> None:
    launch = Launch(job("default"), {"default": "chatter"})
    assert launch.events[-1]["event"] == "done"
    assert "from C, on rank 0" in launch.errors
    assert "from C, on rank 1" in launch.errors


def test_without_cuda_the_real_worker_says_so(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/__init__.py").touch()
    worker = FAKE.resolve().parents[2] / "tuning/workers/cuda_allreduce.py"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", str(worker), job("default")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert "this Python has no cuda-bindings" in json.loads(line.removeprefix(MARK))["reason"]


def test_ranks_go_with_their_hub(tmp_path: Path) -> None:
    environment = {**os.environ, "LANEWISE_TEST_FAULTS": '{"default": "hang"}', "TMPDIR": str(tmp_path)}
    hub = subprocess.Popen([sys.executable, str(FAKE), job("default")], stdout=subprocess.PIPE, env=environment)
    assert hub.stdout
    while b'"check"' not in hub.stdout.readline():
        pass
    children = Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split()
    assert len(children) == 2
    hub.send_signal(signal.SIGKILL)
    hub.wait()
    hub.stdout.close()
    deadline = time.monotonic() + 5
    while (left := [pid for pid in children if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
