"""Reads `nvidia-smi topo -m`, with `topo -p2p` in the same text if it is there, as people paste it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.topology import P2P_STATES

_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[ -/]?[@-~]|\([0-9A-B])|\r", re.ASCII)
_GPU = re.compile(r"GPU([0-9]{1,3})", re.ASCII)
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}", re.ASCII)
_CPUS = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*,?", re.ASCII)
_NVLINKS = re.compile(r"NV([0-9]{1,2})", re.ASCII)
_MAX_LABELS = 128
CLOSENESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe path types, nearest first."""
_TODO = "record it anew: `nvidia-smi topo -m > topo.txt`"


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What a matrix says.

    Attributes:
        labels: of rows and columns: "GPU0", "NIC0", "mlx5_0".
        cells: path type of an ordered pair: one of `CLOSENESS`, or "NV" and a number of links; none of a label with
            itself.
        numa: NUMA node by label, where it is told.
        p2p: `topo -p2p` state of an ordered pair of GPUs, where it is told.
    """

    labels: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    numa: Mapping[str, int]
    p2p: Mapping[tuple[int, int], str]

    def links(self, a: str, b: str) -> int:
        """How many NVLinks join two; 0 where PCIe does."""
        found = _NVLINKS.fullmatch(self.cells[a, b])
        return int(found[1]) if found else 0


def looks_like_matrix(text: str) -> bool:
    """Whether a line begins as a matrix does."""
    return any(line.split()[:1] and _GPU.fullmatch(line.split()[0]) for line in _lines(text))


def gpu_number(label: str) -> int | None:
    """3 of "GPU3"; None of what is no GPU."""
    found = _GPU.fullmatch(label)
    return int(found[1]) if found else None


def parse_matrix(text: str, *, source: str) -> Matrix:
    """The matrix in a text; escape sequences of terminals, prompts and legends around it are passed over.

    Raises:
        InputError: there is none, it is cut, or contradicts itself.
    """
    tables = [_rows(header, lines, source) for header, lines in _tables(text)]
    paths = [table for table in tables if not _is_p2p(table, text)]
    if len(paths) != 1:
        what = "only the P2P state (topo -p2p) of GPUs, not how they are joined" if tables else "no matrix"
        raise InputError(
            f"topology {source} holds {f'{len(paths)} matrices' if paths else what}",
            expected="the output of one `nvidia-smi topo -m`",
            todo=_TODO,
        )
    p2p = {
        (first, second): state
        for table in tables
        if table is not paths[0]
        for (a, b), state in table.cells.items()
        if (first := gpu_number(a)) is not None and (second := gpu_number(b)) is not None
    }
    table = paths[0]
    _check_cells(table, source)
    return Matrix(labels=table.labels, cells=table.cells, numa=table.numa, p2p=p2p)


def _lines(text: str) -> list[str]:
    return _CONTROL.sub("", text).splitlines()


def _tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each header with the lines after it, up to the next header."""
    header, below = "", list[str]()
    for line in _lines(text):
        if _is_header(line):
            if header:
                yield header, below
            header, below = line, []
        elif header:
            below.append(line)
    if header:
        yield header, below


def _is_header(line: str) -> bool:
    """GPU labels stand side by side only there; a row has a path type behind its label."""
    tokens = line.split()
    if not tokens or not _GPU.fullmatch(tokens[0]):
        return False
    return len(tokens) == 1 or bool(_GPU.fullmatch(tokens[1])) or (tokens[1] != "X" and _columns(tokens) == tokens[:1])


def _columns(tokens: list[str]) -> list[str]:
    """The labels of a header: all before "CPU Affinity"."""
    end = tokens.index("CPU") if "CPU" in tokens else len(tokens)
    return tokens[:end]


def _rows(header: str, lines: list[str], source: str) -> Matrix:
    labels = _columns(header.split())
    if len(labels) > _MAX_LABELS or len(set(labels)) < len(labels) or not all(map(_LABEL.fullmatch, labels)):
        raise InputError(
            f"topology {source} has a header of {len(labels)} labels such as {labels[-1][:40]!r}",
            expected=f"up to {_MAX_LABELS} different ones such as GPU0 and NIC0",
            todo=_TODO,
        )
    cells: dict[tuple[str, str], str] = {}
    numa: dict[str, int] = {}
    for line in lines:
        label, *rest = line.split() or [""]
        if label not in labels or (label, labels[-1]) in cells or (label, labels[0]) in cells:
            continue
        if len(rest) < len(labels):
            raise _cut(source, f"row {label} has {len(rest)} of {len(labels)} cells")
        for column, cell in zip(labels, rest, strict=False):
            _put(cells, label, column, cell, source)
        if (node := _numa(rest[len(labels) :])) is not None:
            numa[label] = node
    if missing := [label for label in labels if not any(row == label for row, _ in cells) and len(labels) > 1]:
        raise _cut(source, f"row {missing[0]} is missing")
    return Matrix(labels=tuple(labels), cells=cells, numa=numa, p2p={})


def _cut(source: str, how: str) -> InputError:
    return InputError(f"topology {source} is cut: {how}", expected="a whole matrix", todo=_TODO)


def _put(cells: dict[tuple[str, str], str], row: str, column: str, cell: str, source: str) -> None:
    named = "SYS" if cell == "SOC" else cell  # drivers before 387 wrote SOC
    if (named == "X") != (row == column) or not (
        named in (*CLOSENESS, *P2P_STATES, "X") or (_NVLINKS.fullmatch(named) and named != "NV0")
    ):
        raise InputError(
            f"topology {source} has {cell[:40]!r} between {row} and {column}",
            expected=f"X of a device with itself, else NV#, {', '.join((*CLOSENESS, *P2P_STATES))}",
            todo=_TODO,
        )
    if row != column:
        cells[row, column] = named


def _numa(rest: list[str]) -> int | None:
    """The NUMA node behind a row's cells: after the CPU list, or as hand-made tables write it ("NUMA 0")."""
    if len(rest) > 1 and (rest[0] == "NUMA" or _CPUS.fullmatch(rest[0])) and re.fullmatch("[0-9]{1,4}", rest[1]):
        return int(rest[1])
    return None


def _is_p2p(table: Matrix, text: str) -> bool:
    """By its cells; a lone GPU has none, then by the legend."""
    if table.cells:
        return all(cell in P2P_STATES for cell in table.cells.values())
    return "Status Ok" in text


def _check_cells(table: Matrix, source: str) -> None:
    for (a, b), cell in table.cells.items():
        if cell in P2P_STATES or table.cells[b, a] != cell:
            raise InputError(
                f"topology {source} contradicts itself: {a} to {b} is {cell}, {b} to {a} is {table.cells[b, a]}",
                expected="a path type, alike both ways",
                todo=_TODO,
            )
