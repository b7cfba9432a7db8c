"""What killed processes leave behind: shared memory, and processes below them."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tuning.serving import process_tree
from tuning.serving.process_tree import (
    SHARED_MEMORY,
    HostTree,
    began,
    end_survivors,
    remove_segments,
    segments_mapped,
)

MAPPER = """
import mmap, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(handle, 4096)
held = mmap.mmap(handle, 4096)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def segment():
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip(f"{SHARED_MEMORY} cannot be written to")
    path = SHARED_MEMORY / f"lanewise-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


def test_what_a_killed_process_had_mapped_is_removed_once_nobody_has_it_mapped(segment: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", MAPPER, str(segment)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        found = segments_mapped(HostTree(os.getpid()).pids())
        assert segment in found
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            process.kill()
            process.wait()
            remove_segments(found)
            assert segment.exists(), "another process uses it"
    remove_segments(found)
    assert not segment.exists()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_survivors_are_killed_with_those_that_they_started_since(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        assert end_survivors(began([process.pid])) == []
        assert process.wait(5) == -9
    assert process_tree._state(child) in ("Z", "")


def refused(_pid: int) -> int:
    raise OSError(errno.ENOSYS, "as of an old kernel")


@pytest.mark.parametrize("lack", ["Python", "kernel"])
def test_without_descriptors_of_processes_survivors_are_killed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    if lack == "Python":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refused)
    with subprocess.Popen(["sleep", "60"]) as process:
        assert end_survivors(began([process.pid])) == []
        assert process.wait(5) == -9


def test_a_number_that_another_process_has_by_now_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        noted = began([process.pid])
        assert end_survivors({pid: start - 1 for pid, start in noted.items()}) == []
        assert process.poll() is None
        process.kill()
    assert began([process.pid]) == {}


def test_one_that_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_KILL_SECONDS", 0.05)
    monkeypatch.setattr(process_tree, "_kill", lambda _pid, _start: None)  # as of one stuck in the kernel
    with subprocess.Popen(["sleep", "60"]) as process:
        (said,) = end_survivors(began([process.pid]))
        process.kill()
    assert said == f"process {process.pid} (sleep) could not be ended"
