"""Reads a topology of any kind: recognises it by its content, or takes a reference node by name."""

from __future__ import annotations

import os
from pathlib import Path

from lanewise.errors import InputError
from lanewise.files import read_text
from tuning.topology import MAX_TEXT, Topology
from tuning.topology_joined import joined
from tuning.topology_lspci import looks_like_lspci, parse_lspci
from tuning.topology_lspci_tree import looks_like_lspci_tree, parse_lspci_tree
from tuning.topology_matrix import looks_like_matrix, parse_matrix
from tuning.topology_matrix_tree import tree_of
from tuning.topology_record import parse_record
from tuning.topology_xml_read import parse_xml
from tuning.topology_yaml import parse_yaml

REFERENCES = Path(__file__).resolve().parent.parent / "inventory" / "topologies"
MAX_BYTES = 4 << 20
"""A full `lspci -vvv` of a node with eight GPUs has about half a megabyte."""
_MAX_YAML_BYTES = 1 << 16
_KINDS = "NCCL's topology XML, a node record, `nvidia-smi topo -m`, `lspci -vvv`, `lspci -tv`, or YAML by hand"


def reference_names() -> list[str]:
    """Names of the nodes that ship with the toolkit."""
    return sorted(path.stem for path in REFERENCES.glob("*.yaml"))


def read_topology(name_or_path: str, lspci: str = "") -> Topology:
    """The reference node of that name, or what is in that file.

    Args:
        name_or_path: one of `reference_names()`, or a path: NCCL's topology XML, a node record, `nvidia-smi topo -m`,
            `lspci -vvv` or `-tv`, YAML (`topology_yaml`).
        lspci: for `topo -m`: path of the same node's `lspci -vvv` or `-tv`; "" for none.

    Raises:
        InputError: there is no such name or file, it is of no known kind, or what it holds cannot be.
    """
    known = name_or_path in reference_names()
    path = REFERENCES / f"{name_or_path}.yaml" if known else Path(name_or_path)
    if not known and "/" not in name_or_path and not (name_or_path and os.path.exists(path)):  # noqa: PTH110 - never raises
        raise InputError(
            f"there is no topology {name_or_path[:MAX_TEXT]!r}",
            expected=f"one of {', '.join(reference_names())}, or a path to {_KINDS}",
            todo="name one of these",
        )
    text = read_text(path, what="topology", limit=MAX_BYTES)
    source = f"{name_or_path}, shipped" if known else name_or_path
    if not lspci:
        return parse_topology(text, name=_name(path), source=source)
    if not looks_like_matrix(text):
        raise InputError(
            f"topology {source} needs no lspci beside it",
            expected="lspci only with the output of `nvidia-smi topo -m`",
            todo="leave the one or the other out",
        )
    beside = read_text(Path(lspci), what="lspci", limit=MAX_BYTES)
    tree = _lspci(beside, name=_name(path), source=_printable(lspci))
    both = _printable(f"{source} with {lspci}")
    return joined(parse_matrix(text, source=_printable(source)), tree, name=_name(path), source=both)


def _name(path: Path) -> str:
    return _printable(path.stem) or "topology"


def _printable(text: str) -> str:
    """A path as a topology may hold it; the operating system allows more in one."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)[:MAX_TEXT]


def parse_topology(text: str, *, name: str, source: str) -> Topology:
    """A topology from a text of any kind.

    Args:
        text: a file's content.
        name: the topology's name, where the text gives none.
        source: where it is from, for errors.

    Raises:
        InputError: as `read_topology`.
    """
    source = _printable(source)
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start == "<":
        return parse_xml(text.lstrip("\ufeff \t\r\n"), name=name, source=source)
    if start == "{":
        return parse_record(text.lstrip("\ufeff"), name=name, source=source)
    if looks_like_matrix(text):
        return tree_of(parse_matrix(text, source=source), name=name, source=source)
    if looks_like_lspci(text) or looks_like_lspci_tree(text):
        return _lspci(text, name=name, source=source)
    if "cpus:" in text and len(text) <= _MAX_YAML_BYTES:
        return parse_yaml(text, name=name, source=source)
    raise InputError(f"topology {source} is of no known kind", expected=_KINDS, todo="check the path")


def _lspci(text: str, *, name: str, source: str) -> Topology:
    if looks_like_lspci_tree(text):
        return parse_lspci_tree(text, name=name, source=source)
    return parse_lspci(text, name=name, source=source)
