"""Step p2p of the ladder: what the driver says of every pair of GPUs (`nvidia-smi topo -p2p`); and who uses the GPUs.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from .ladder_steps import NOT_APPLICABLE, UNKNOWN, Fault, Step, settled, some
from .node_record_command import first_line, run

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[..., str]  # arguments of nvidia-smi to what it prints; OSError or ValueError where it fails

SECONDS = 60.0
"""Without persistence mode, nvidia-smi wakes GPU after GPU."""
JUDGED, SHOWN = ("r", "w"), "p"
"""Reads and writes are judged. What the driver says of PCI Express alone (p) is shown: GPUs with NVLink do without."""
CODES = {
    "CNS": "P2P_CHIPSET",
    "GNS": "P2P_GPU",
    "TNS": "P2P_TOPOLOGY",
    "NS": "P2P_NOT_SUPPORTED",
    "DR": "P2P_DISABLED",
}
"""Fault codes by the words of nvidia-smi's legend (NVML_P2P_STATUS_* in nvml.h); U, unknown, is none."""
NO_DEVICES = "No devices were found"
"""What nvidia-smi prints where the driver has no GPU; it ends with status 6 then (its manual, section Return Value)."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU[0-9]{1,3}")

Matrix = dict[tuple[str, str], str]


def ask_nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints.

    Raises:
        OSError: there is none, or it does not end.
        ValueError: it fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi: not found")
    status, output = run([program, *arguments], SECONDS)
    if status:
        raise ValueError(f"nvidia-smi {arguments[0]}: status {status}, {first_line(output)}")
    return output


def read_matrix(text: str) -> Matrix:
    """The status of every ordered pair of GPUs; their own are left out.

    Raises:
        ValueError: it is no such matrix, or a part of one.
    """
    rows = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    header = next((row for row in rows if row and all(map(_GPU.fullmatch, row))), None)
    if header is None:
        raise ValueError("no row of GPUs in the matrix")
    found: Matrix = {}
    seen = []
    for row in rows[rows.index(header) + 1 :]:
        if len(row) == len(header) + 1 and row[0] in header:
            seen.append(row[0])
            found.update({(row[0], gpu): row[n + 1] for n, gpu in enumerate(header) if gpu != row[0]})
    if seen != header:
        raise ValueError(f"{len(seen)} of {len(header)} rows in the matrix")
    return found


def p2p(ask: Ask) -> Step:
    """What the driver grants; it does not say that data arrive."""
    try:
        matrices = {kind: read_matrix(ask("topo", "-p2p", kind)) for kind in (*JUDGED, SHOWN)}
    except (OSError, ValueError) as error:
        return Step("p2p", UNKNOWN, str(error))
    pairs = list(matrices[JUDGED[0]])
    if not pairs:
        return Step("p2p", NOT_APPLICABLE, "one GPU: there is no pair")
    faults, unknown = [], []
    for status in sorted({matrices[kind][pair] for kind in JUDGED for pair in pairs} - {"OK"}):
        where = [f"{a}-{b}" for a, b in pairs if any(matrices[kind].get((a, b)) == status for kind in JUDGED)]
        if status in CODES:
            faults.append(Fault(CODES[status], some(where), f"nvidia-smi topo -p2p: {status}"))
        else:
            unknown.append(f"{some(where)}: {status}")
    evidence = [f"{kind}: {_counted(matrix)}" for kind, matrix in matrices.items()]
    return settled("p2p", faults, "; ".join(unknown), evidence)


def _counted(matrix: Matrix) -> str:
    statuses = list(matrix.values())
    return ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))


def users(ask: Ask) -> list[str]:
    """Processes that compute on GPUs, as `pid name`.

    Raises:
        OSError, ValueError: nvidia-smi does not tell.
    """
    lines = ask("--query-compute-apps=pid,process_name", "--format=csv,noheader").splitlines()
    return [" ".join(line.replace(",", " ").split()) for line in lines if re.match(r"\s*[0-9]+\s*,", line)]
