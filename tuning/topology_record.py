"""Reads the PCI tree of a node record (docs/node-record.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from lanewise.errors import InputError
from tuning.topology import SocketLink, Topology
from tuning.topology_links import MAX_WIDTH, Link, generation_of
from tuning.topology_nodes import Cpu, Gpu, Node, PciIds, bus_id
from tuning.topology_pci import NVIDIA, P2P_OPEN, PciFunction, build_tree, by_address, describe_unknown

_SCHEMA = re.compile(r"lanewise\.node-record/1", re.ASCII)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_VERSION = re.compile(r"([0-9]{1,2})\.([0-9])", re.ASCII)
_HEX = re.compile(r"0x[0-9a-f]{4,6}", re.ASCII)
_MAX_NUMBER = 1 << 16
_ACS_REDIRECT = 0x0C
"""ReqRedir and CmpltRedir: PCI_ACS_RR and PCI_ACS_CR in Linux's include/uapi/linux/pci_regs.h."""
_TODO = "record the node anew (`python3 node_record.py > node.json`)"

Entry = Mapping[str, Any]


def parse_record(text: str, *, name: str, source: str) -> Topology:
    """A topology from a node record.

    Raises:
        InputError: it is no node record, or its PCI devices and GPUs could not be read.
    """
    record = _document(text, source)
    functions = by_address(_functions(_entries(record, "pci", source)), source)
    gpus = {bus_id(str(entry.get("address"))): entry for entry in _entries(record, "gpus", source)}
    for address in gpus.keys() - functions.keys():
        if address is not None:  # a sandbox may show a GPU to nvidia-smi and hide it from sysfs
            functions[address] = PciFunction(
                address=address, parent="", ids=PciIds(pci_class="0x030000", vendor=NVIDIA)
            )
    numa = [number for entry in _entries(record, "numa", source) if (number := _whole(entry.get("id"))) is not None]
    tree = build_tree(functions, cpu=_cpu(record), numa_nodes=numa, source=source)
    nodes = tuple(_with_facts(node, gpus.get(node.id, {})) if isinstance(node, Gpu) else node for node in tree)
    unknown = [*describe_unknown(nodes), P2P_OPEN]
    if any(isinstance(node, Gpu) and node.sm is None for node in nodes):
        unknown.append("the compute capability of some GPUs: nvidia-smi did not tell it")
    return Topology(
        name=name,
        source=source,
        nodes=_numbered(nodes, gpus),
        socket_links=tuple(_socket_links(record, nodes, source)),
        unknown=tuple(unknown),
    )


def _document(text: str, source: str) -> Entry:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"topology {source} is not JSON: {str(error)[:100]}", expected="a node record", todo=_TODO
        ) from error
    if not isinstance(document, dict) or not _SCHEMA.fullmatch(str(document.get("schema"))):
        found = document.get("schema") if isinstance(document, dict) else None
        raise InputError(
            f"topology {source} is JSON of schema {str(found)[:60]!r}",
            expected="a node record, of schema lanewise.node-record/1",
            todo=_TODO,
        )
    return document


def _entries(record: Entry, key: str, source: str) -> list[Entry]:
    """A list of mappings; "unknown" where it could not be read is refused for what a tree is made of."""
    value = record.get(key)
    if value == "unknown" and key != "pci":
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        reasons = record.get("unread")
        told = [str(entry.get("reason"))[:100] for entry in reasons if isinstance(entry, dict)
                and entry.get("field") == key] if isinstance(reasons, list) else []  # fmt: skip
        raise InputError(
            f"topology {source} holds no list {key}{f' ({told[0]})' if told else ''}",
            expected=f"a node record whose {key} could be read",
            todo=_TODO,
        )
    return value


def _functions(entries: list[Entry]) -> Iterator[PciFunction]:
    for entry in entries:
        address = bus_id(str(entry.get("address"))[:40])
        if address is None:
            continue
        above = str(entry.get("parent"))[:40]
        most = Link(generation=_generation(entry.get("max_link_speed_gts")), width=_lanes(entry.get("max_link_width")))
        yield PciFunction(
            address=address,
            parent=bus_id(above) or (above if _HOST_BRIDGE.fullmatch(above) else ""),
            ids=PciIds(pci_class=_hex(entry, "class"), vendor=_hex(entry, "vendor"), device=_hex(entry, "device")),
            numa=_whole(entry.get("numa_node")),
            generation=_generation(entry.get("current_link_speed_gts")),
            width=_whole(entry.get("current_link_width")),
            most=most,
            acs_redirect=_acs_redirect(entry),
        )


def _acs_redirect(entry: Entry) -> bool | None:
    """Whether its ACS redirects; not known where the record lacks it, as one does that was not read by root."""
    if entry.get("acs_control", "") is None:
        return False  # it has no ACS at all
    control = _whole(entry.get("acs_control"))
    return None if control is None else bool(control & _ACS_REDIRECT)


def _hex(entry: Entry, key: str) -> str:
    value = str(entry.get(key))[:40]
    return value if _HEX.fullmatch(value) else ""


def _whole(value: object) -> int | None:
    """A whole number that a record may hold; None of what is unknown, absent or no such number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER:
        return value
    return None


def _lanes(value: object) -> int | None:
    """Lanes that an end can do; 0 and all ones, which the kernel shows of what is no link, are not known."""
    width = _whole(value)
    return width if width and width <= MAX_WIDTH else None


def _generation(value: object) -> int | None:
    return generation_of(float(value)) if isinstance(value, int | float) and abs(value) < _MAX_NUMBER else None


def _cpu(record: Entry) -> Cpu:
    host, cpu = record.get("host"), record.get("cpu")
    host, cpu = host if isinstance(host, dict) else {}, cpu if isinstance(cpu, dict) else {}
    arch, vendor = str(host.get("architecture"))[:40], str(cpu.get("vendor"))[:40]
    return Cpu(
        id="",
        arch={"x86_64": "x86_64", "aarch64": "arm64"}.get(arch, ""),
        vendor=vendor if vendor in ("AuthenticAMD", "GenuineIntel") else "",
        family=_whole(cpu.get("family")),
        model=_whole(cpu.get("model")),
    )


def _with_facts(gpu: Gpu, entry: Entry) -> Gpu:
    version = _VERSION.fullmatch(str(entry.get("compute_capability")))
    name = str(entry.get("name"))[:100]
    fields = {**vars(gpu), "sm": int(version[1]) * 10 + int(version[2]) if version else None}
    return Gpu(**{**fields, "name": name if name.isprintable() and name not in ("unknown", "None") else ""})


def _numbered(nodes: tuple[Node, ...], gpus: Mapping[str | None, Entry]) -> tuple[Node, ...]:
    """nvidia-smi's own numbers, where it told one for every GPU; else they stay by bus id, as it numbers them."""
    numbers = {node.id: _whole(gpus.get(node.id, {}).get("index")) for node in nodes if isinstance(node, Gpu)}
    if None in numbers.values():
        return nodes
    ranks = {name: rank for rank, name in enumerate(sorted(numbers, key=lambda name: numbers[name] or 0))}
    return tuple(
        Gpu(**{**vars(node), "index": numbers[node.id], "rank": ranks[node.id]}) if isinstance(node, Gpu) else node
        for node in nodes
    )


def _socket_links(record: Entry, nodes: tuple[Node, ...], source: str) -> Iterator[SocketLink]:
    """The firmware's distances between the CPUs that devices hang on."""
    cpus = {node.numa: node.id for node in nodes if isinstance(node, Cpu)}
    entries = _entries(record, "numa", source)
    order = [_whole(entry.get("id")) for entry in entries]
    for (a, row), (b, _) in combinations(enumerate(entries), 2):
        distances = row.get("distances")
        if not isinstance(distances, list) or b >= len(distances) or {order[a], order[b]} - cpus.keys():
            continue
        yield SocketLink(cpus=(cpus[order[a]], cpus[order[b]]), distance=_whole(distances[b]))
