"""How many compiler jobs fit: memory is what a CUDA build runs out of first."""

from __future__ import annotations

import os
from pathlib import Path

_GIB = 1 << 30
RESERVED_GIB = 3.0
"""Left to everything else on the machine."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number about this large where there is no limit."""


def job_count(*, cores: int, memory: int, gb_per_job: float) -> int:
    """Compiler jobs that fit side by side; at least one.

    One heavy nvcc peaks at 3 to 8 GiB (flashinfer#3634, flash-attention PR 2079), and what runs out of memory is killed
    hours into a build: so memory decides, after a reserve for the rest of the machine.

    Args:
        cores: CPUs that may be used.
        memory: bytes that are available.
        gb_per_job: peak of one job, in GiB.
    """
    fitting = int((memory / _GIB - RESERVED_GIB) // gb_per_job)
    return max(1, min(cores, fitting))


def memory_limit(memory: int) -> int:
    """The most bytes that a builder container may take of those that are available, so that only it is killed."""
    return max(memory - _GIB, _GIB)


def usable_cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that a build may take: what the kernel calls available, or what the control group leaves of it."""
    lines = (line.split(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    available = next(int(value.split()[0]) * 1024 for name, value in lines if name == "MemAvailable")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            left = int((cgroup / limit).read_text(encoding="ascii")) - int((cgroup / used).read_text(encoding="ascii"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if left < _NO_LIMIT:
            available = min(available, max(left, 0))
    return available
