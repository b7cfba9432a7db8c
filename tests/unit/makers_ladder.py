"""What the ladder meets in tests: a FAKE libcuda compiled here, a FAKE nvidia-smi, GPUs that do not exist."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils.ladder_places import Place

LIMITS = {
    "pair_share": {"switch": 0.7, "host_bridge": 0.7, "node": 0.7, "system": 0.45},
    "collapse_share": 0.5,
}


def fake_libcuda(folder: Path) -> Path:
    """The library of fake_libcuda.c; skips where no C compiler is."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", library, source], check=True)
    return library


def matrix(gpus: int = 2, **cells: str) -> str:
    """`nvidia-smi topo -p2p` as it prints; cells such as GPU0_GPU1="CNS", else OK."""
    names = [f"GPU{n}" for n in range(gpus)]
    lines = ["\x1b[4m\t" + "\t".join(names) + "\x1b[0m"]
    rows = [["X" if row == name else cells.get(f"{row}_{name}", "OK") for name in names] for row in names]
    lines += [f" {row}\t" + "\t".join(words) for row, words in zip(names, rows, strict=True)]
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok", ""])


def fake_smi(text: str, users: str = "") -> Callable[..., str]:
    """An nvidia-smi that says this of P2P, and of processes."""

    def ask(*arguments: str) -> str:
        return text if arguments[0] == "topo" else users

    return ask


def place(number: int, *, switch: int | None = None, root: int = 0, numa: int | None = 0, gb_s: float = 63.0) -> Place:
    port = f"0000:{root:02x}:01.1"
    behind = () if switch is None else (f"0000:a{switch}:{number:02x}.0", f"0000:b{switch}:00.0")
    return Place(f"0000:{number:02x}:00.0", f"pci0000:{root:02x}", (*behind, port), numa, gb_s)


def decision(setting: str, verdict: str, **more: Any) -> dict[str, Any]:
    """One decision of a plan."""
    told = {"setting": setting, "verdict": verdict, "now": "0", "want": "1", "why": "because", "takes_effect": "now"}
    return {**told, **more}
