"""Finds the Pythons of this machine that can run ranks on GPUs, or servers; the toolkit's own has neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_CUDA = "import importlib.util as u, sys; sys.exit(not (u.find_spec('numpy') and u.find_spec('cuda.bindings')))"
_SGLANG = "import importlib.metadata as m; m.version('sglang')"
_SECONDS = 30


def find_cuda_python() -> str | None:
    """The first python3 on PATH, the toolkit's own last, that has numpy and cuda-bindings; None where none has."""
    return next((python for python in _candidates() if _succeeds(python, _CUDA)), None)


def find_sglang_python() -> str | None:
    """The first python3 on PATH, the toolkit's own last, that has SGLang; None where none has."""
    return next((python for python in _candidates() if has_sglang(python)), None)


def has_sglang(python: str) -> bool:
    """Whether SGLang is installed for an interpreter; nothing of it is imported."""
    return _succeeds(python, _SGLANG)


def _candidates() -> list[str]:
    own = Path(sys.executable).parent
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    found = [str(f / "python3") for f in folders if f.resolve() != own.resolve() and os.access(f / "python3", os.X_OK)]
    return [*dict.fromkeys(found), sys.executable]


def _succeeds(python: str, probe: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", probe], capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
