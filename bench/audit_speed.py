"""The audit's counts and speed against cuobjdump's, on libraries of real wheels: python bench/audit_speed.py [FOLDER]

FOLDER holds wheels, or gets them from the Python index (1.7 GB; default: .cache/wheels). Three libraries are unpacked,
one is compiled by nvcc (13.0 or newer, in PATH) from FlashInfer's headers. For each: device code per SM as `cuobjdump
--list-elf` prints it and as the audit reads it, which must be the same but for the suffix f, which cuobjdump leaves
out; and the times of both with the file in the page cache: the median of 5 runs of cuobjdump and of 51 readings in
process. Ends with 1 on any difference.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from images.capability import CodeKind
from images.contents import file_member
from images.device_code import read_device_code

CUOBJDUMP = "nvidia-cuda-cuobjdump==13.5.37"
FLASHINFER = "flashinfer-python==0.6.3"
LIBRARIES = {
    "torch==2.9.1": "torch/lib/libtorch_cuda.so",
    "sgl-kernel==0.3.21": "sgl_kernel/sm100/common_ops.abi3.so",
    "nvidia-nccl-cu13==2.30.7": "nvidia/nccl/lib/libnccl.so.2",
}
PAGE = """#include <flashinfer/page.cuh>
template cudaError_t flashinfer::AppendPagedKVCache<half, int>(
    flashinfer::paged_kv_t<half, int>, half*, half*, int*, int*, uint32_t, size_t, size_t, size_t, size_t,
    cudaStream_t);
"""
GENCODES = ("75", "80", "86", "89", "90a", "100f", "103a", "110a", "120f", "121a")
RUNS, READINGS = 5, 51


def wheel(requirement: str, folder: Path) -> Path:
    """The wheel of a pinned requirement, fetched if it is not there."""
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--python-version", "3.12",
                        "--only-binary=:all:", "-d", str(folder), requirement], check=True)  # fmt: skip
    return next(folder.glob(pattern))


def unpacked(path: Path, inside: str, to: Path) -> Path:
    """One member of a wheel, or all below a folder, as files."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(to, [name for name in archive.namelist() if name.startswith(inside)])
    return to / inside


def compiled(folder: Path, to: Path) -> Path:
    """FlashInfer's paged KV cache kernels as a library."""
    include = unpacked(wheel(FLASHINFER, folder), "flashinfer/data/include", to)
    (to / "page.cu").write_text(PAGE)
    library = to / "page.so"
    gencodes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in GENCODES]
    options = ["-shared", "-Xcompiler", "-fPIC", "-std=c++17", "-I", str(include), *gencodes]
    subprocess.run(["nvcc", *options, "-o", str(library), str(to / "page.cu")], check=True)
    return library


def listed(cuobjdump: Path, library: Path) -> tuple[Counter[str], float]:
    """What cuobjdump counts per SM, and its seconds."""
    start = time.perf_counter()
    done = subprocess.run([str(cuobjdump), "--list-elf", str(library)], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    return Counter(re.findall(r"\.(sm_\d+a?)\.cubin", done.stdout)), seconds


def scanned(library: Path) -> tuple[Counter[str], float]:
    """What the audit counts per SM, without f, and its seconds."""
    member = file_member(library.name, str(library), library.stat().st_size)
    start = time.perf_counter()
    with member.open() as content:
        code = read_device_code(content, member.size, name=member.name)
    seconds = time.perf_counter() - start
    entries = code.relevant if code else ()
    return Counter(str(e.target).rstrip("f") for e in entries if e.target.kind is CodeKind.SASS), seconds


def warmed(library: Path) -> Path:
    """Bring the file into the page cache."""
    with library.open("rb") as file:
        while file.read(1 << 24):
            pass
    return library


def repeated(measure: Callable[[], tuple[Counter[str], float]], times: int) -> tuple[Counter[str], float]:
    """The counts, and the median of the seconds."""
    readings = [measure() for _ in range(times)]
    return readings[0][0], statistics.median(seconds for _, seconds in readings)


def main(folder: Path) -> int:
    """Print both side by side."""
    with tempfile.TemporaryDirectory() as temporary:
        to = Path(temporary)
        cuobjdump = unpacked(wheel(CUOBJDUMP, folder), "nvidia/cu13/bin/cuobjdump", to)
        cuobjdump.chmod(0o755)
        libraries = [unpacked(wheel(package, folder), inside, to) for package, inside in LIBRARIES.items()]
        libraries += [compiled(folder, to)] if shutil.which("nvcc") else []
        print(f"{'library':22} {'MB':>7} {'cubins':>6} {'cuobjdump ms':>12} {'audit ms':>8} {'ratio':>6}")
        differs = False
        for library in map(warmed, libraries):
            theirs, their_seconds = repeated(partial(listed, cuobjdump, library), RUNS)
            ours, seconds = repeated(partial(scanned, library), READINGS)
            row = f"{library.name:22} {library.stat().st_size / 1e6:7.1f} {ours.total():6}"
            print(f"{row} {their_seconds * 1e3:12.1f} {seconds * 1e3:8.2f} {their_seconds / seconds:6.0f}")
            if ours != theirs:
                differs = True
                print(f"  differs: cuobjdump {dict(theirs)}, audit {dict(ours)}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".cache/wheels"))
