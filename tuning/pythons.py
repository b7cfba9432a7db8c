"""Finds the Python of this machine that can run ranks on GPUs; the toolkit's own environment holds no CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROBE = "import importlib.util as u, sys; sys.exit(not (u.find_spec('numpy') and u.find_spec('cuda.bindings')))"
_SECONDS = 30


def find_cuda_python() -> str | None:
    """The first python3 on PATH, the toolkit's own last, that has numpy and cuda-bindings; None where none has."""
    own = Path(sys.executable).parent
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    candidates = [
        str(f / "python3") for f in folders if f.resolve() != own.resolve() and os.access(f / "python3", os.X_OK)
    ]
    return next((python for python in [*dict.fromkeys(candidates), sys.executable] if _has_cuda(python)), None)


def _has_cuda(python: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
