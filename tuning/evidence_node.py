"""Reads what tells of a node's PCI tree and settings: topo -m, lspci, NCCL's XML files, a node record."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lanewise.errors import InputError
from tuning.evidence import Reading, Sign
from tuning.nccl_graph import read_graphs
from tuning.topology import P2P_STATES, Topology
from tuning.topology_nodes import Gpu, Switch
from tuning.topology_paths import PathType, possible_paths
from tuning.topology_read import parse_topology

BROADCOM = ("0x1000", "0x10b5", "0x14e4")
"""LSI, PLX and Broadcom: the names that PEX switches go by (the PCI ID repository, https://pci-ids.ucw.cz)."""
_HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)", re.ASCII)
_ACS = re.compile(r"\bACSCtl:.*?ReqRedir([+-]) CmpltRedir([+-])", re.ASCII)
_CAN = re.compile(r"\bLnkCap:.*?Speed ([0-9.]+)GT/s, Width x([0-9]+)", re.ASCII)
_DOES = re.compile(r"\bLnkSta:.*?Speed ([0-9.]+)GT/s[^,]*, Width x([0-9]+)", re.ASCII)
_REFUSED = {"CNS", "GNS", "TNS", "NS", "DR"}
_BEYOND = {PathType.PHB, PathType.NODE, PathType.SYS}
_SHOWN = 4
_LONGEST_LINE = 400
_GPU = re.compile(r"GPU\d{1,3}", re.ASCII)


def read_graph_file(text: str, *, name: str) -> Reading:
    """What a dump of NCCL's graphs tells: whether the ring search succeeded."""
    graphs = read_graphs(text, where=name)
    rings = [graph for graph in graphs if graph.id == 0]
    signs = []
    for ring in rings:
        outcome = "search-failed" if ring.failed else "search-succeeded"
        signs.append(Sign(name=outcome, text=f"ring: {ring}", where=name))
    return Reading(
        path=name,
        kind="graph file of NCCL",
        said=tuple(f"graph {graph.id}: {graph}" for graph in graphs),
        signs=tuple(signs),
        ranks=max((len(channel) for ring in rings for channel in ring.channels), default=0),
    )


def looks_like_states(text: str) -> bool:
    """Whether it is `nvidia-smi topo -p2p`, and nothing beside it."""
    rows = list(_state_rows(text))
    cells = {cell for row in rows for cell in row}
    return bool(rows) and cells <= {*P2P_STATES, "X"} and (cells != {"X"} or "Status Ok" in text)


def _state_rows(text: str) -> Iterator[list[str]]:
    """The cells of each GPU's row; a header's are labels."""
    for line in text.splitlines():
        tokens = line.split()
        if len(tokens) > 1 and _GPU.fullmatch(tokens[0]) and not _GPU.fullmatch(tokens[1]):
            yield tokens[1:]


def read_p2p_states(text: str, *, name: str) -> Reading:
    """What `nvidia-smi topo -p2p` tells."""
    rows = list(_state_rows(text))
    states = Counter(cell for row in rows for cell in row if cell != "X")
    shown = ", ".join(f"{count} ways {state}" for state, count in states.items()) or "one GPU, no pairs"
    signs = [Sign(name="p2p-state-refused", text=shown, where=name)] if states.keys() & _REFUSED else []
    return Reading(path=name, kind="nvidia-smi topo -p2p", said=(shown,), signs=tuple(signs), gpus=len(rows))


def read_nccl_xml(text: str, *, name: str) -> Reading:
    """What a topology XML tells. Its rates are those that NCCL counts with, unlike those of lspci.

    Raises:
        InputError: as `read_topology_text`.
    """
    reading = read_topology_text(text, name=name, kind="topology XML of NCCL")
    signs = [
        replace(sign, name="nccl-counts-first-rate") if sign.name == "gpu-link-at-first-rate" else sign
        for sign in reading.signs
    ]
    return replace(reading, signs=tuple(signs))


def read_topology_text(text: str, *, name: str, kind: str) -> Reading:
    """What a topology of any kind tells of links, ACS, switches and paths.

    Raises:
        InputError: it is none that can be read, or holds no GPU.
    """
    topology = parse_topology(text, name="node", source=name)
    return of_topology(topology, name=name, kind=kind)


def of_topology(topology: Topology, *, name: str, kind: str) -> Reading:
    """What a topology tells."""
    gpus, switches = len(topology.gpus), sum(isinstance(node, Switch) for node in topology.nodes)
    return Reading(
        path=name,
        kind=kind,
        said=(f"{gpus} GPUs, {switches} switches, {len(topology.cpus)} CPUs",),
        signs=tuple(topology_signs(topology, name)),
        gpus=gpus,
        topology=topology,
    )


def topology_signs(topology: Topology, name: str) -> Iterator[Sign]:
    """What a PCI tree speaks for."""
    yield from _link_signs(topology, name)
    yield from _acs_signs(topology, name)
    yield from _switch_signs(topology, name)
    yield from _path_signs(topology, name)
    refused = Counter(state for state in topology.p2p.values() if state in _REFUSED)
    if refused:
        text = ", ".join(f"{count} pairs {state}" for state, count in refused.items())
        yield Sign(name="p2p-state-refused", text=text, where=name)


def _above_gpus(topology: Topology) -> dict[str, Gpu | Switch]:
    """GPUs, and the switches that lead to one."""
    return {n.id: n for gpu in topology.gpus for n in topology.chain(gpu) if isinstance(n, Gpu | Switch)}


def _link_signs(topology: Topology, name: str) -> Iterator[Sign]:
    devices = _above_gpus(topology).values()
    narrow = [f"{device.id} {device.link}" for device in devices if device.link.narrowed]
    slow = [f"{device.id} {device.link}" for device in devices if device.link.slowed and isinstance(device, Switch)]
    first = [device.id for device in devices if isinstance(device, Gpu) and device.link.generation == 1]
    if narrow:
        yield Sign(name="link-narrow", text=f"fewer lanes than both ends have: {_few(narrow)}", where=name)
    if slow:
        yield Sign(name="link-slow", text=f"a switch's link below its rate: {_few(slow)}", where=name)
    if first:
        text = f"{len(first)} GPUs at 2.5 GT/s: idle, or a fault; NCCL from 2.30.5 on takes it for the link's rate"
        yield Sign(name="gpu-link-at-first-rate", text=text, where=name)
    known = [device for device in devices if device.link.width and device.link.max_width]
    if known and not narrow and not slow and not first:
        yield Sign(name="links-full", text=f"{len(known)} links above GPUs run at what they can", where=name)


def _acs_signs(topology: Topology, name: str) -> Iterator[Sign]:
    devices = _above_gpus(topology).values()
    on = [device.port or device.id for device in devices if device.acs_redirect]
    if on:
        yield Sign(name="acs-redirect", text=f"ACS redirect is on above GPUs: {_few(on)}", where=name)
    elif devices and any(device.acs_redirect is False for device in devices):
        known = sum(device.acs_redirect is False for device in devices)
        yield Sign(name="acs-clear", text=f"ACS redirect is off at {known} of {len(devices)} ports", where=name)


def _switch_signs(topology: Topology, name: str) -> Iterator[Sign]:
    """A chip in several virtual switches: by its name, or several Broadcom uplinks on one CPU."""
    switches = [node for node in _above_gpus(topology).values() if isinstance(node, Switch)]
    if not switches or any(not switch.ids.vendor for switch in switches):
        return
    broadcom = [switch for switch in switches if switch.ids.vendor in BROADCOM]
    if not broadcom:
        text = f"{len(switches)} switches, none of Broadcom"
        yield Sign(name="no-broadcom-switch", text=text, where=name)
        return
    several = any(count > 1 for chip, count in Counter(switch.chip for switch in broadcom).items() if chip)
    if several or len(broadcom) > len(topology.cpus):
        text = f"{len(broadcom)} Broadcom switches above {len(topology.gpus)} GPUs, it seems parts of split chips"
        yield Sign(name="split-broadcom-switch", text=text, where=name)


def _path_signs(topology: Topology, name: str) -> Iterator[Sign]:
    """NCCL's P2P level is PXB unless there are at most two GPUs (src/graph/paths.cc)."""
    indices = [gpu.index for gpu in topology.gpus]
    pairs = [(a, b) for a in indices for b in indices if a < b]
    if len(indices) <= 2 or len(indices) > 32:
        return
    beyond = [pair for pair in pairs if set(possible_paths(topology, *pair)) <= _BEYOND]
    if beyond:
        text = f"{len(beyond)} of {len(pairs)} pairs lie beyond PXB, as far as NCCL uses P2P unless told (predicted)"
        yield Sign(name="pairs-beyond-default-level", text=text, where=name)


def _few(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def read_lspci(text: str, *, name: str) -> Reading:
    """What an `lspci -vvv` tells, also a part of one that shows no GPU.

    Raises:
        InputError: it shows no details of anything.
    """
    try:
        return read_topology_text(text, name=name, kind="lspci")
    except InputError as error:
        functions = list(_functions(text))
        signs = list(_loose_signs(functions, name))
        if not signs:
            raise error from None
        return Reading(
            path=name, kind="part of an lspci", said=(f"{len(functions)} devices, no whole node",), signs=tuple(signs)
        )


def _functions(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Address, description and details of every device."""
    current: tuple[str, str, list[str]] | None = None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            if current:
                yield current
            current = (header[1], header[2], [])
        elif current:
            current[2].append(line[:_LONGEST_LINE])
    if current:
        yield current


def _loose_signs(functions: list[tuple[str, str, list[str]]], name: str) -> Iterator[Sign]:
    redirect, narrow, idle, clear = [], [], [], 0
    for address, what, lines in functions:
        details = "\n".join(lines)
        acs, can, does = _ACS.search(details), _CAN.search(details), _DOES.search(details)
        gpu = "NVIDIA" in what and "bridge" not in what
        if acs and "bridge" in what:
            redirect += [address] * ("+" in acs.groups())
            clear += "+" not in acs.groups()
        if gpu and can and does:
            narrow += [f"{address} x{does[2]} of x{can[2]}"] * (0 < int(does[2]) < int(can[2]))
            idle += [address] * (does[1] == "2.5" and can[1] != "2.5")
    if redirect:
        yield Sign(name="acs-redirect", text=f"ACS redirect is on: {_few(redirect)}", where=name)
    elif clear:
        yield Sign(name="acs-clear", text=f"ACS redirect is off on {clear} bridges", where=name)
    if narrow:
        yield Sign(name="link-narrow", text=f"fewer lanes than the device has: {_few(narrow)}", where=name)
    if idle:
        yield Sign(name="gpu-link-at-first-rate", text=f"at 2.5 GT/s, idle or a fault: {_few(idle)}", where=name)


def read_record(text: str, *, name: str) -> Reading:
    """What a node record tells (docs/node-record.md).

    Raises:
        InputError: it is damaged.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"node record {name} is no JSON: {str(error)[:100]}",
            expected="what ./inv record prints",
            todo="record it again",
        ) from error
    try:
        topology: Topology | None = parse_topology(text, name="node", source=name)
    except InputError:
        topology = None  # a node without GPUs, or whose PCI devices could not be read
    reading = of_topology(topology, name=name, kind="node record") if topology else None
    return Reading(
        path=name,
        kind="node record",
        said=reading.said if reading else ("no PCI tree with GPUs",),
        signs=(*(reading.signs if reading else ()), *record_signs(document, name)),
        hosts=_texts(_part(document, "host").get("hostname")),
        models=record_models(document),
        gpus=reading.gpus if reading else 0,
        topology=topology,
    )


def record_models(document: Mapping[str, Any]) -> frozenset[str]:
    """The GPU models that a node record names."""
    return _texts(*(gpu.get("name") for gpu in _list(document, "gpus")))


def record_signs(document: Mapping[str, Any], name: str) -> Iterator[Sign]:
    """What a node record tells of its IOMMU."""
    mode = _part(document, "iommu").get("mode")
    if mode in ("translated", "mixed"):
        yield Sign(name="iommu-translates", text=f"the IOMMU is {mode}", where=name)
    elif mode in ("off", "passthrough"):
        yield Sign(name="iommu-off", text=f"the IOMMU is {mode}", where=name)


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, dict) else {}


def _list(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    part = document.get(key)
    return [entry for entry in part if isinstance(entry, dict)] if isinstance(part, list) else []


def _texts(*values: object) -> frozenset[str]:
    return frozenset(v[:100] for v in values if isinstance(v, str) and v not in ("", "unknown"))
