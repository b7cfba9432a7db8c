"""`kill -9` at random moments, full disks, folders that cannot be written to: nothing lost, nothing left."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks.conftest import leftovers
from tuning.runfile import read_run
from tuning.trial import Status

ROOT = Path(__file__).resolve().parents[2]
KILLS = 20
OPTIONS = ["--ranks", "2", "--candidates", "ring", "--rounds", "2", "--samples", "1"]


def inv(*arguments: str, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "invoke", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.timeout(400)
def test_killed_at_20_random_moments_it_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    before, draw = set(Path("/dev/shm").iterdir()), random.Random(20)
    known: list[str] = []
    launches = 40
    for number in range(KILLS):
        resume = ["--resume", str(path)] if path.exists() and path.stat().st_size else None
        if resume is None:
            path.unlink(missing_ok=True)  # killed before its header was whole: there is nothing to go on with
        start = ["bench-allreduce", *(resume or [*OPTIONS, "--launches", str(launches), "--output", str(path)])]
        harness = inv(*start)
        time.sleep(draw.uniform(0.2, 4.0))
        harness.kill()
        harness.communicate()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and (left := leftovers(tmp_path, before)):
            time.sleep(0.02)
        assert not left, f"after kill {number + 1}"
        if path.exists() and path.stat().st_size:
            lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            assert lines[: len(known)] == known, "what was measured before stays to the letter"
            known = lines
    assert read_run(path).trials, "twenty starts measured something"
    harness = inv("bench-allreduce", "--resume", str(path))
    _, talk = harness.communicate(timeout=200)
    assert harness.returncode == 0, talk
    run = read_run(path)
    assert {trial.status for trial in run.trials} == {Status.OK}
    told = {(t.repetition, t.candidate, t.copy, t.message) for t in run.trials}
    assert len(told) == launches * 3 * 2, "every trial of the plan is there"


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "lanewise-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_with_advice_and_whole_lines(small_disk: Path) -> None:
    path = small_disk / "r.jsonl"
    harness = inv("bench-allreduce", *OPTIONS, "--launches", "60", "--output", str(path))
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 1, talk
    assert "no space left" in talk
    assert "--resume" in talk
    assert "Traceback" not in talk
    run = read_run(path)
    assert run.trials
    assert run.torn == 0
    roomy = small_disk.parent / "r.jsonl"
    shutil.copy(path, roomy)
    lines = roomy.read_text().replace('"launches": 60', f'"launches": {run.trials[-1].repetition + 1}', 1)
    roomy.write_text(lines)
    harness = inv("bench-allreduce", "--resume", str(roomy))
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 0, talk


def test_a_read_only_folder_is_refused_before_anything_is_measured(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    harness = inv("bench-allreduce", *OPTIONS, "--output", str(small_disk / "r.jsonl"))
    _, talk = harness.communicate(timeout=60)
    assert harness.returncode == 2, talk
    assert "cannot write" in talk
    assert "Read-only" in talk
    assert "launch 1" not in talk


def test_no_shared_memory_is_a_failed_launch_not_a_hang(small_disk: Path, tmp_path: Path) -> None:
    """Ranks whose temporary folder is on a full disk: Open MPI cannot make its session folder."""
    (small_disk / "filler").write_bytes(b"x" * os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize)
    harness = inv(
        "bench-allreduce", *OPTIONS, "--launches", "1", "--timeout", "15", "--output", str(tmp_path / "r.jsonl"),
        env={**os.environ, "TMPDIR": str(small_disk)},
    )  # fmt: skip
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 1, talk
    assert {t.status for t in read_run(tmp_path / "r.jsonl").trials} <= {
        Status.LAUNCH_FAILED,
        Status.SKIPPED,
        Status.TIMED_OUT,
    }


def test_a_stale_scratch_folder_is_swept_at_the_next_start(tmp_path: Path) -> None:
    stale = tmp_path / "tmp" / "lanewise-999999-1-dead"
    stale.mkdir()
    (stale / "segment").write_bytes(b"x")
    live = tmp_path / "tmp" / "lanewise-not-ours"
    live.mkdir()
    harness = inv("bench-allreduce", *OPTIONS, "--launches", "1", "--output", str(tmp_path / "r.jsonl"))
    harness.communicate(timeout=60)
    assert harness.returncode == 0
    assert not stale.exists()
    assert live.exists()
    live.rmdir()
