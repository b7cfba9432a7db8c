"""Shared memory that killed processes leave behind."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tuning.serving.process_tree import SHARED_MEMORY, HostTree, remove_segments, segments_mapped

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
