"""The audit of freshly compiled libraries: what was asked of nvcc is what is found, and cuobjdump counts the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from images.audit import audit
from images.capability import Capability, CodeKind, Verdict

BLACKWELL = Capability.parse("12.0")
SOURCE = "__global__ void kernel(int *p) { for (int i = 0; i < 99; i++) p[i] = p[i * 3] + 7; }\n"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "plain and a": (["120:sm_120", "120a:sm_120a", "90a:sm_90a", "90:compute_90"], []),
    "family": (["120f:sm_120f", "100f:sm_100f", "120f:compute_120f"], []),
    "relocatable": (["120:sm_120"], ["-rdc=true"]),
    "compressed": (["120a:sm_120a", "120a:compute_120a"], ["-Xfatbin", "-compress-all"]),
}
WHEELS = ("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88",
          "nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85")  # fmt: skip
CUOBJDUMP = "nvidia-cuda-cuobjdump==13.5.37"


def fetched(folder: Path, *packages: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d"]
    done = subprocess.run([*command, str(folder), *packages], capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"cannot fetch {', '.join(packages)}: {done.stderr.strip()[-200:]}")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    root = folder / "nvidia/cu13"
    for program in (*root.glob("bin/*"), *root.glob("nvvm/bin/*")):
        if program.is_file():
            program.chmod(0o755)
    return root


def installed_nvcc() -> Path | None:
    home = os.environ.get("CUDA_HOME", "")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    return Path(found) if found else None


def check_compiled(nvcc: Path, folder: Path, *options: str) -> dict[str, Path]:
    """Compile every case, and hold the audit against what was asked for; returns the libraries."""
    (folder / "k.cu").write_text(SOURCE)
    made = {}
    for case, (targets, more) in CASES.items():
        gencodes = [f"-gencode=arch=compute_{t.split(':')[0]},code={t.split(':')[1]}" for t in targets]
        made[case] = folder / f"{case.replace(' ', '-')}.so"
        command = [
            str(nvcc),
            "-shared",
            "-Xcompiler",
            "-fPIC",
            *options,
            *more,
            *gencodes,
            "-o",
            str(made[case]),
            "k.cu",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
        if "nsupported gpu architecture" in done.stderr:
            pytest.skip(f"{nvcc} is too old: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr
        (library,) = audit(str(made[case]), capability=BLACKWELL).libraries
        assert Counter(str(code.target) for code in library.code) == Counter(t.split(":")[1] for t in targets)
        assert bool(library.relocatable) is ("-rdc=true" in more)
        assert library.verdict is Verdict.NATIVE
    return made


def test_what_an_installed_nvcc_compiled_is_read(tmp_path: Path) -> None:
    nvcc = installed_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc in PATH or CUDA_HOME")
    check_compiled(nvcc, tmp_path)


@pytest.mark.network
def test_what_nvcc_13_compiled_is_counted_as_cuobjdump_counts_it(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++, which nvcc needs")
    root = fetched(tmp_path / "cuda", *WHEELS, CUOBJDUMP)
    made = check_compiled(root / "bin/nvcc", tmp_path, f"-L{root}/lib")
    for library in made.values():
        command = [str(root / "bin/cuobjdump"), "--list-elf", str(library)]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        (found,) = audit(str(library), capability=BLACKWELL).libraries
        ours = Counter({
            str(code.target).rstrip("f"): code.count for code in found.code if code.target.kind is CodeKind.SASS
        })  # fmt: skip
        assert ours == Counter(re.findall(r"sm_\d+a?", listed))
