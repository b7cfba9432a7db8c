"""What this machine can measure, and what it therefore skips: found before anything runs, in words."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Protocol

from tuning.provenance import gpu_count
from tuning.pythons import find_cuda_python


class EngineState(Protocol):
    """Whether a container engine answers, in words."""

    @property
    def present(self) -> bool:
        """Whether it answers."""
        ...

    @property
    def detail(self) -> str:
        """Its version, or the reason why not."""
        ...


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a campaign can do here.

    Attributes:
        engine: the engine to measure with.
        python: the interpreter for its ranks.
        found: what there is, a line each.
        skipped: what is not measured and why, a line each.
    """

    engine: str
    python: str
    found: tuple[str, ...]
    skipped: tuple[str, ...]


def survey(python: str, containers: EngineState) -> Survey:
    """Look at GPUs, interpreters and the container engine.

    Args:
        python: interpreter for ranks on GPUs that the user named, or "".
        containers: what is known of the container engine.
    """
    count = gpu_count()
    cuda_python = (python or find_cuda_python()) if count >= 2 else None
    found = [f"{count} NVIDIA GPUs" if count else "no NVIDIA GPU", containers.detail]
    skipped = []
    if count < 2:
        skipped.append("allreduce on GPUs: two are needed")
    elif cuda_python is None:
        skipped.append("allreduce on GPUs: no python3 on PATH has numpy and cuda-bindings; name one with --python")
    else:
        found.append(f"{cuda_python} for ranks on GPUs")
    skipped.append("images of the toolchains: there are none yet; both toolchains ran the same Python on this host")
    skipped.append("speculative decoding: not part of this version")
    return Survey(
        engine="cuda" if cuda_python else "mpi",
        python=cuda_python or sys.executable,
        found=tuple(found),
        skipped=tuple(skipped),
    )


def default_python(engine: str) -> str:
    """The interpreter that an engine's ranks run with where the user names none."""
    return (find_cuda_python() or sys.executable) if engine == "cuda" else sys.executable
