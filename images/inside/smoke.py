"""Says, as JSON in its last line of output, what an image really holds; run inside it, without GPU and network.

Run as `python3 -c <this text> REQUEST`. REQUEST is JSON: `imports`, module names, each of which is imported by a
process of its own; `left_out`, the path of the report on what was left out; `writable`, folders. Or `import`, one
module: that is how the processes are told.

The library that a process really uses is not the one that a path promises: torch's libraries carry DT_RPATH, which
LD_LIBRARY_PATH does not override. So libnccl is read from /proc/self/maps, and hashed.
"""

from __future__ import annotations

import base64
import csv
import ctypes
import hashlib
import io
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_SECONDS = 600
_NCCL = "nvidia/nccl/lib/libnccl.so.2"
_MARK = "@smoke "


def mapped_nccl() -> list[str]:
    """Paths of every libnccl that this process has mapped, links resolved."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "libnccl" in line}
    return sorted(os.path.realpath(path) for path in paths)


def use_nccl() -> dict[str, Any]:
    """Load NCCL as the benchmark's worker does, by the path of its wheel, and ask for its version."""
    import nvidia.nccl  # type: ignore[import-not-found]  # noqa: PLC0415

    library = ctypes.CDLL(str(Path(next(iter(nvidia.nccl.__path__))) / "lib/libnccl.so.2"))
    version = ctypes.c_int()
    code = library.ncclGetVersion(ctypes.byref(version))
    return {"code": code, "version": version.value}


def use_mpi() -> dict[str, Any]:
    """Start MPI as one rank."""
    from mpi4py import MPI  # noqa: PLC0415

    return {"library": MPI.Get_library_version().split("\0")[0].strip(), "ranks": MPI.COMM_WORLD.size}


def import_module(name: str) -> dict[str, Any]:
    """Import a module, or use it where that says more."""
    if name == "nccl":
        return use_nccl()
    if name == "mpi4py":
        return use_mpi()
    __import__(name)
    return {}


def tried(name: str) -> dict[str, Any]:
    """One import in a process of its own: what it said, and which libnccl it ended up with."""
    command = [sys.executable, *sys.orig_argv[1:-1], json.dumps({"import": name})]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {_SECONDS} s"}
    said = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if said:  # what a library does when the process ends is not asked
        return dict(json.loads(said[-1].removeprefix(_MARK)))
    return {"error": " ".join(done.stderr.split())[-600:] or f"ended with {done.returncode}"}


def recorded_nccl() -> list[dict[str, str]]:
    """Every distribution that says it owns libnccl, with the hash that it recorded."""
    return [
        {"owner": distribution.name, "hash": row[1]}
        for distribution in metadata.distributions()
        for row in csv.reader(io.StringIO(distribution.read_text("RECORD") or ""))
        if row and row[0] == _NCCL
    ]


def file_hash(path: str) -> str:
    """As RECORD writes it (PEP 376, PEP 427): urlsafe base64 without padding."""
    total = hashlib.sha256()
    with open(path, "rb") as file:  # noqa: PTH123
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return "sha256=" + base64.urlsafe_b64encode(total.digest()).decode().rstrip("=")


def pip_check() -> list[str]:
    """The lines of `pip check` that are complaints."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    return done.stdout.splitlines() if done.returncode else []


def smoke(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request: the result of one import, or everything."""
    if "import" in request:
        return {**import_module(request["import"]), "nccl": mapped_nccl()}
    imports = {name: tried(name) for name in request["imports"]}
    mapped = sorted({path for result in imports.values() for path in result.get("nccl", ())})
    return {
        "user": os.getuid(),
        "versions": {distribution.name: distribution.version for distribution in metadata.distributions()},
        "imports": imports,
        "nccl": {"recorded": recorded_nccl(), "mapped": {path: file_hash(path) for path in mapped}},
        "pip": pip_check(),
        "left_out": json.loads(Path(request["left_out"]).read_text(encoding="utf-8")),
        "writable": {path: os.access(path, os.W_OK) for path in request["writable"]},
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + _MARK + json.dumps(smoke(json.loads(sys.argv[-1]))) + "\n")
