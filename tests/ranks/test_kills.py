"""`kill -9` at random moments, full disks, folders that cannot be written to: nothing lost, nothing left."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ranks.conftest import leftovers, marked
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
    launches = 25
    began = time.monotonic()
    inv("bench-allreduce", *OPTIONS, "--launches", "1", "--output", str(tmp_path / "whole.jsonl")).communicate()
    whole = time.monotonic() - began  # a start, one launch and an end, as fast as this machine is now
    for number in range(KILLS):
        resume = ["--resume", str(path)] if path.exists() and path.stat().st_size else None
        if resume is None:
            path.unlink(missing_ok=True)  # killed before its header was whole: there is nothing to go on with
        start = ["bench-allreduce", *(resume or [*OPTIONS, "--launches", str(launches), "--output", str(path)])]
        harness = inv(*start)
        time.sleep(draw.uniform(0.05, 1.4) * whole)
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
    """A file system of 24 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24k", "lanewise-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_with_advice_and_whole_lines(small_disk: Path) -> None:
    path = small_disk / "r.jsonl"
    harness = inv("bench-allreduce", *OPTIONS, "--launches", "24", "--output", str(path))
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
    harness = inv("bench-allreduce", "--resume", str(roomy))
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 0, talk
    assert len(read_run(roomy).trials) == 24 * 3 * 2


def test_a_read_only_folder_is_refused_before_anything_is_measured(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    harness = inv("bench-allreduce", *OPTIONS, "--output", str(small_disk / "r.jsonl"))
    _, talk = harness.communicate(timeout=60)
    assert harness.returncode == 2, talk
    assert "cannot write" in talk
    assert "Read-only" in talk
    assert "launch 1" not in talk


def test_no_room_for_temporary_files_is_said_before_anything_runs(small_disk: Path, tmp_path: Path) -> None:
    about = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(b"x" * about.f_bavail * about.f_bsize)
    arguments = ["bench-allreduce", *OPTIONS, "--launches", "1", "--output", str(tmp_path / "r.jsonl")]
    harness = inv(*arguments, env={**os.environ, "TMPDIR": str(small_disk)})
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 1, talk
    assert "no space left" in talk
    harness = inv(*arguments, env={**os.environ, "TMPDIR": str(tmp_path / "none")})
    _, talk = harness.communicate(timeout=100)
    assert harness.returncode == 2, talk
    assert "is not a folder" in talk
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize("harm", ["removed", "emptied", "replaced"])
def test_a_run_file_that_somebody_takes_away_is_rescued(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "r.jsonl"
    harness = inv("bench-allreduce", *OPTIONS, "--launches", "30", "--output", str(path))
    assert harness.stderr
    while "[2/30]" not in harness.stderr.readline():
        pass
    if harm == "emptied":
        path.write_text("")
    else:
        path.unlink()
        if harm == "replaced":
            path.write_text("something else\n")
    _, talk = harness.communicate(timeout=60)
    assert harness.returncode == 1, talk
    assert "removed or changed" in talk
    assert len(read_run(path.with_name("r.jsonl.rescued")).trials) >= 2 * 3 * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stopped", ["supervisor", "harness"])
def test_a_stopped_process_neither_hangs_nor_blames_an_arm(tmp_path: Path, stopped: str) -> None:
    path = tmp_path / "r.jsonl"
    arguments = ["--launches", "3", "--timeout", "10", "--output", str(path)]  # a busy machine is silent, too
    harness = inv("bench-allreduce", *OPTIONS[:-4], "--rounds", "40", "--samples", "4", *arguments)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (ranks := [m for m in marked(str(tmp_path)) if "supervisor.py" in m]):
        time.sleep(0.01)
    pid = int(ranks[-1].split(":")[0]) if stopped == "supervisor" else harness.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(12)
    if stopped == "harness":
        os.kill(pid, signal.SIGCONT)
    _, talk = harness.communicate(timeout=200)
    assert harness.returncode == 0, talk
    assert {trial.status for trial in read_run(path).trials} == {Status.OK}


def test_a_stale_scratch_folder_is_swept_at_the_next_start(tmp_path: Path) -> None:
    parent = tmp_path / "tmp"
    stale, live, users = (parent / name for name in (f"lanewise-{'0' * 32}", f"lanewise-{'1' * 32}", "lanewise-2026"))
    for folder in (stale, live, users):
        folder.mkdir()
        (folder / ".lanewise-scratch").touch()
        (folder / "thesis.txt").write_text("x")
    with (live / ".lanewise-scratch").open() as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        harness = inv("bench-allreduce", *OPTIONS, "--launches", "1", "--output", str(tmp_path / "r.jsonl"))
        harness.communicate(timeout=60)
    assert harness.returncode == 0
    assert not stale.exists()
    assert live.exists()
    assert users.exists()
    shutil.rmtree(live)
    shutil.rmtree(users)
