"""Step allreduce: the worker's events are judged, with workers made here, and with the real one on a fake device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from playbooks.module_utils import ladder_allreduce
from playbooks.module_utils.ladder_allreduce import MAIN, allreduce
from tuning.workers.cuda_allreduce import parse_job

FAKE = Path(__file__).with_name("fake_cuda_worker.py")
SAMPLES = {"event": "samples", "message": "8B", "mode": "eager", "us": [3.0, 2.0]}


def worker(*events: object, status: int = 0) -> dict[str, str]:
    """A worker that reports these events, or these lines."""
    lines = [event if isinstance(event, str) else f"@lanewise {json.dumps(event)}" for event in events]
    return {MAIN: f"import sys\nprint({json.dumps(chr(10).join(lines))})\nsys.exit({status})\n"}


def test_right_sums_are_ok_with_what_was_summed() -> None:
    step = allreduce(sys.executable, worker(SAMPLES, {"event": "done"}), 2)
    assert step.status == "ok"
    assert step.evidence[1] == "8B: 2.0 us eager"


@pytest.mark.parametrize(
    ("events", "status", "code"),
    [
        ([{"event": "wrong", "candidate": "default", "reason": "off by 2"}, {"event": "done"}], 0, "ALLREDUCE_WRONG"),
        (["rank 1 was killed by SIGSEGV"], 139, "ALLREDUCE_FAILED"),
    ],
)
def test_each_fault_has_its_code(events: list[object], status: int, code: str) -> None:
    step = allreduce(sys.executable, worker(*events, status=status), 2)
    assert [fault.code for fault in step.faults] == [code]


def test_a_hang_is_a_fault() -> None:
    step = allreduce(sys.executable, {MAIN: "import time\ntime.sleep(60)\n"}, 2, 0.5)
    assert [(fault.code, fault.found) for fault in step.faults] == [("ALLREDUCE_HANG", "no end within 0.5 s; killed")]


@pytest.mark.parametrize(
    "events",
    [
        [],
        [SAMPLES],
        [{"event": "done"}],
        ["@lanewise {"],
        ["@lanewise 3"],
        [{"event": "samples"}, {"event": "done"}],
        [{"event": "failed", "reason": "cannot import cuda"}],
    ],
)
def test_no_whole_answer_is_unknown(events: list[object]) -> None:
    assert allreduce(sys.executable, worker(*events), 2).status == "unknown"


def test_it_is_not_run_without_a_python_and_unknown_with_a_wrong_one(tmp_path: Path) -> None:
    assert allreduce("", worker(), 2).status == "not run"
    assert "cannot start" in allreduce(str(tmp_path / "python"), worker(), 2).reason


def test_the_real_worker_takes_the_job_and_its_answer_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_job(json.dumps(ladder_allreduce._job(8))).ranks == 8
    monkeypatch.setattr(ladder_allreduce, "BYTES", (8, 4096))
    main = f"import runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    step = allreduce(sys.executable, {MAIN: main}, 2)
    assert (step.status, len(step.measured)) == ("ok", 4), step.reason
    monkeypatch.setenv("LANEWISE_TEST_FAULTS", json.dumps({"default": "wrong"}))
    assert [fault.code for fault in allreduce(sys.executable, {MAIN: main}, 2).faults] == ["ALLREDUCE_WRONG"]
