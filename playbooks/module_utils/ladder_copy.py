"""Step copy of the ladder: between every ordered pair of GPUs data arrive, read back at their destination.

A tool that reports bandwidth alone has been seen to report it where no byte arrived
(https://github.com/noonghunna/club-3090/blob/master/docs/PCIE_P2P.md); so each copy has a pattern of its own, its
destination is poisoned before, and the destination itself reads it back. A pair has a child process of its own under a
watchdog, since a copy that never arrives may never end.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from .ladder_child import in_child
from .ladder_steps import Fault, Step, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ladder_cuda import Cuda

    Open = Callable[[Sequence[int]], Cuda]

SIZES = (4096, 64 << 20)
"""Bytes: one that fits into a few packets, and one that no buffer on the way holds."""
PAIR_SECONDS = 60.0
"""The work takes well under a second, the driver's start on GPUs that sleep a few."""
_POISON = 0xA5
HOST = "host"
"""The path of copies between GPUs whose peer access the driver refuses; otherwise "peer"."""


def copy_pair(cuda: Cuda, source: int, target: int) -> dict[str, Any]:
    """Copy from device 0 to device 1, which are GPUs `source` and `target`: the path, and what arrived wrong."""
    here, there = cuda.open(0), cuda.open(1)
    refused = cuda.allow(here, there)
    sent, received = cuda.allocate(here, max(SIZES)), cuda.allocate(there, max(SIZES))
    wrong = []
    for size in SIZES:
        pattern = hashlib.shake_128(f"lanewise {source} to {target}, {size} bytes".encode()).digest(size)
        cuda.upload(here, sent, pattern)
        cuda.fill(there, received, _POISON, size)
        cuda.copy(here, sent, there, received, size)
        cuda.wait(here)
        arrived = cuda.download(there, received, size)
        if arrived != pattern:
            wrong.append(f"{size} bytes: {_difference(pattern, arrived)}")
    return {"path": HOST if refused else "peer", "refused": refused, "wrong": wrong}


def _difference(pattern: bytes, arrived: bytes) -> str:
    """What is wrong with what arrived, in words."""
    for byte, meaning in ((_POISON, "nothing arrived"), (0xFF, "all of it is 0xff"), (0, "all of it is 0")):
        if arrived.count(byte) == len(arrived):
            return meaning
    first = next(n for n in range(len(pattern)) if pattern[n] != arrived[n])
    return f"wrong from byte {first} on"


def copies(gpus: int, open_cuda: Open, seconds: float = PAIR_SECONDS) -> Step:
    """Copy between every ordered pair; a hang ends it, since the GPUs may then be stuck."""
    faults: list[Fault] = []
    unable: list[str] = []
    measured: list[dict[str, Any]] = []
    for source, target in [(a, b) for a in range(gpus) for b in range(gpus) if a != b]:
        ended = in_child(lambda a=source, b=target: copy_pair(open_cuda((a, b)), a, b), seconds)  # type: ignore[misc]
        where = f"GPU{source}-GPU{target}"
        if ended.hang:
            faults.append(Fault("COPY_HANG", where, f"{ended.hang}; no further pair was tried"))
            break
        if ended.failed:
            faults.append(Fault("COPY_FAILED", where, ended.failed))
        elif ended.unable:
            unable.append(f"{where}: {ended.unable}")
        else:
            measured.append({"source": source, "target": target, **ended.value})
            faults += [Fault("COPY_WRONG", where, found) for found in ended.value["wrong"]]
    by_host = sum(row["path"] == HOST for row in measured)
    evidence = [f"{len(measured)} ordered pairs of {gpus} GPUs, {by_host} through host memory; sizes {SIZES} bytes"]
    return settled("copy", faults, unable[0] if unable else "", evidence if measured else [], measured)
