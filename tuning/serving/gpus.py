"""This machine's GPUs as nvidia-smi tells of them: what they are, how they run, who holds their memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.printed import printed
from tuning.topology_matrix import gpu_number, parse_matrix

_STATE_FIELDS: Mapping[str, str] = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "celsius": "temperature.gpu",
    "watts": "power.draw",
    "limit_watts": "power.limit",
    "throttle": "clocks_throttle_reasons.active",  # its old name, which new drivers take as well
    "pcie_generation": "pcie.link.gen.current",
    "pcie_width": "pcie.link.width.current",
    "persistence": "persistence_mode",
    "memory_used_mib": "memory.used",
}
"""Our name of a field, and nvidia-smi's (`nvidia-smi --help-query-gpu`)."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What decides which allreduce backends may run.

    Attributes:
        count: GPUs that a server can use.
        capability: compute capability, e.g. (12, 0); None where unknown or where they differ.
        nvlink: whether every pair of them is joined by NVLink; None where nobody knows.
    """

    count: int
    capability: tuple[int, int] | None = None
    nvlink: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds GPU memory.

    Attributes:
        pid: its number, as nvidia-smi sees it: inside a container that need not be the number there.
        name: its program.
        mib: MiB that it holds, "[N/A]" where the driver does not tell.
        gpu: the GPU's UUID.
    """

    pid: int
    name: str
    mib: str
    gpu: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}) holds {self.mib} MiB of {self.gpu}"


def read_gpus(visible: str | None = None) -> GpuFacts | None:
    """What the GPUs here are; None where nvidia-smi tells nothing.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the server, or this process's own where None; its indices count and choose.
    """
    rows = _query("gpu", ("index", "compute_cap"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if visible and all(word.strip().isdigit() for word in visible.split(",")):
        wanted = {word.strip() for word in visible.split(",")}
        rows = [row for row in rows if row[0] in wanted]
    if not rows:
        return None
    capabilities = {row[1] for row in rows}
    return GpuFacts(
        count=len(rows),
        capability=_capability(capabilities.pop()) if len(capabilities) == 1 else None,
        nvlink=_all_nvlink({int(row[0]) for row in rows if row[0].isdigit()}),
    )


def gpu_states() -> tuple[Mapping[str, str], ...]:
    """Clocks, temperature, power, throttle reasons and memory of every GPU at the moment, as nvidia-smi words them."""
    return tuple(dict(zip(_STATE_FIELDS, row, strict=True)) for row in _query("gpu", tuple(_STATE_FIELDS.values())))


def holders() -> tuple[Holder, ...]:
    """Every process that holds GPU memory for computing."""
    rows = _query("compute-apps", ("pid", "process_name", "used_memory", "gpu_uuid"))
    return tuple(Holder(pid=int(pid), name=name, mib=mib, gpu=gpu) for pid, name, mib, gpu in rows if pid.isdigit())


def holders_after(pids: Collection[int], *, seconds: float) -> tuple[Holder, ...]:
    """Those of some ended processes that still hold GPU memory when that time is over; at once () where none does.

    The driver frees the memory of a killed process when its last kernel is done, which takes a moment.
    """
    deadline = time.monotonic() + seconds
    while left := tuple(holder for holder in holders() if holder.pid in pids):
        if time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)
    return ()


def _query(what: str, fields: tuple[str, ...]) -> list[list[str]]:
    """Rows of nvidia-smi's answer; none where there is no nvidia-smi, no GPU, or no such answer."""
    if not (program := shutil.which("nvidia-smi")):
        return []
    told = printed([program, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in told.lines] if told.ok else []
    return [row for row in rows if len(row) == len(fields)]


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _all_nvlink(indices: set[int]) -> bool | None:
    if len(indices) < 2:
        return None
    if not (program := shutil.which("nvidia-smi")):
        return None
    told = printed([program, "topo", "-m"])
    try:
        matrix = parse_matrix("\n".join(told.lines), source="nvidia-smi topo -m")
    except InputError:
        return None
    labels = [label for label in matrix.labels if gpu_number(label) in indices]
    if len(labels) < len(indices):
        return None
    return all(matrix.links(a, b) for a in labels for b in labels if a != b)
