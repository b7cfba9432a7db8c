"""Reads a topology written by hand: a small YAML file, as inventory/topologies/ holds them.

    name: my-node
    defaults:                                   # for every GPU and every switch; each may be left out
      gpu: {sm: 120, link: Gen5 x16, vendor: "0x10de", device: "0x2bb5"}
      switch: {link: Gen5 x16}
    cpus:
      - numa: 0
        vendor: AuthenticAMD                    # family and model as lscpu prints them
        family: 26
        model: 2
        below:
          - bridge: pci0000:40                  # host bridges may be left out
            below:
              - switch: 0000:41:00.0            # the bus id of its upstream port
                below:
                  - gpus: [0000:43:00.0, 0000:44:00.0]
                  - nic: 0000:45:00.0
                    link: Gen4 x8 of Gen4 x16   # runs on half of its lanes
      - numa: 1
        vendor: AuthenticAMD
    between_cpus: [{cpus: [0, 1], kind: xGMI, gb_per_s: 36}]
    p2p: OK                                     # of every pair, as nvidia-smi topo -p2p prints it
    unknown: [what nobody could tell]

GPUs are numbered as they stand. Devices take `link`, `port`, `acs_redirect`, `vendor`, `device` and `label`; GPUs `sm`
too, and switches `chip`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from lanewise.errors import InputError
from tuning.topology import MAX_GPUS, MAX_NODES, MAX_TEXT, P2P_STATES, SocketLink, Topology
from tuning.topology_links import UNKNOWN_LINK, Link, link_of
from tuning.topology_nodes import Cpu, Gpu, HostBridge, Nic, Node, PciIds, Switch, bus_id
from tuning.topology_yaml_load import TopologyLoader

_LINK = re.compile(r"Gen([0-9]{1,2}) x([0-9]{1,3})(?: of Gen([0-9]{1,2}) x([0-9]{1,3}))?", re.ASCII)
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_HEX = re.compile(r"0x[0-9a-f]{4}", re.ASCII)
_TOP = ("name", "defaults", "cpus", "between_cpus", "p2p", "unknown")
_CPU = ("numa", "arch", "vendor", "family", "model", "affinity", "below")
_DEVICE = ("link", "port", "acs_redirect", "vendor", "device", "label")
_KINDS: Mapping[str, tuple[str, ...]] = {
    "bridge": ("below",),
    "switch": (*_DEVICE, "chip", "below"),
    "gpu": (*_DEVICE, "sm"),
    "gpus": (*_DEVICE, "sm"),
    "nic": _DEVICE,
}
_CLASSES = {"switch": "0x060400", "gpu": "0x030200", "nic": "0x020000"}
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML's constructors let through for scalars such as 2026-13-45, `!!int x` or `!!bool x`."""
_TODO = "mend it; inventory/topologies/ holds right ones"


@dataclass(kw_only=True)
class _Reading:
    """What has been read of a file so far."""

    source: str
    defaults: Mapping[str, Mapping[str, Any]]
    nodes: list[Node] = field(default_factory=list)
    gpus: int = 0


def parse_yaml(text: str, *, name: str, source: str) -> Topology:
    """A topology from YAML in the form above.

    Args:
        text: the file's content.
        name: the topology's name, where the file gives none.
        source: where it is from, for errors.

    Raises:
        InputError: not such YAML, an unknown key, or a value that cannot be.
    """
    document = _mapping(_load(text, source), _TOP, source, "the file")
    defaults = _mapping(document.get("defaults", {}), ("gpu", "switch"), source, "defaults")
    reading = _Reading(
        source=source,
        defaults={kind: _mapping(value, _KINDS[kind], source, f"defaults.{kind}") for kind, value in defaults.items()},
    )
    for number, cpu in enumerate(_list(document.get("cpus"), source, "cpus")):
        _read_cpu(cpu, f"cpus[{number}]", reading)
    p2p = _text(document, "p2p", source)
    if p2p not in ("", *P2P_STATES):
        raise _wrong(source, f"has {_short(p2p)} as p2p", f"one of {', '.join(P2P_STATES)}")
    pairs = {(a, b): p2p for a in range(reading.gpus) for b in range(reading.gpus) if p2p and a != b}
    return Topology(
        name=_text(document, "name", source) or name,
        source=source,
        nodes=tuple(reading.nodes),
        socket_links=tuple(_socket_links(_list(document.get("between_cpus", []), source, "between_cpus"), source)),
        p2p=pairs,
        unknown=tuple(_strings(document.get("unknown", []), source, "unknown")),
    )


def _load(text: str, source: str) -> object:
    try:
        return yaml.load(text, TopologyLoader)  # noqa: S506 - a SafeLoader that allows less
    except (yaml.YAMLError, *_UNREADABLE) as error:
        detail = " ".join(str(error).split())[:200]
        problem = f"is not YAML that can be read: {detail or type(error).__name__}"
        raise _wrong(source, problem, "YAML without anchors, each key once") from error


def _wrong(source: str, problem: str, expected: str) -> InputError:
    return InputError(f"topology {source} {problem}", expected=expected, todo=_TODO)


def _mapping(value: object, keys: tuple[str, ...], source: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(source, f"has {_short(value)} as {where}", f"a mapping of {', '.join(keys)}")
    if odd := [key for key in value if key not in keys]:
        raise _wrong(source, f"has {_short(odd[0])} in {where}", f"one of {', '.join(keys)}")
    return value


def _list(value: object, source: str, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_NODES:
        raise _wrong(source, f"has {_short(value)} as {where}", f"a list of at most {MAX_NODES}")
    return value


def _strings(value: object, source: str, where: str) -> Iterator[str]:
    for item in _list(value, source, where):
        if not isinstance(item, str) or len(item) > MAX_TEXT:
            raise _wrong(source, f"has {_short(item)} in {where}", f"texts of at most {MAX_TEXT} characters")
        yield item


def _short(value: object) -> str:
    """A value for people; whole documents and endless numbers are not printed."""
    return f"a {type(value).__name__}" if isinstance(value, dict | list | int | float) else repr(value)[:60]


def _text(mapping: Mapping[str, Any], key: str, source: str) -> str:
    value = mapping.get(key, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(source, f"has {_short(value)} as {key}", f"a text of at most {MAX_TEXT} characters")
    return value


def _whole(mapping: Mapping[str, Any], key: str, source: str) -> int | None:
    value = mapping.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 16):
        raise _wrong(source, f"has {_short(value)} as {key}", "a whole number below 65,536")
    return value


def _read_cpu(value: object, where: str, reading: _Reading) -> None:
    entry = _mapping(value, _CPU, reading.source, where)
    numa = _whole(entry, "numa", reading.source)
    if numa is None:
        raise _wrong(reading.source, f"has no numa in {where}", "the NUMA node's number")
    cpu = Cpu(
        id=f"cpu{numa}",
        numa=numa,
        arch=_text(entry, "arch", reading.source) or "x86_64",
        vendor=_text(entry, "vendor", reading.source),
        family=_whole(entry, "family", reading.source),
        model=_whole(entry, "model", reading.source),
        affinity=_text(entry, "affinity", reading.source),
    )
    reading.nodes.append(cpu)
    _read_below(entry, cpu.id, f"{where}.below", reading)


def _read_below(entry: Mapping[str, Any], parent: str, where: str, reading: _Reading) -> None:
    for number, below in enumerate(_list(entry.get("below", []), reading.source, where)):
        _read_device(below, parent, f"{where}[{number}]", reading)


def _read_device(value: object, parent: str, where: str, reading: _Reading) -> None:
    kinds = [kind for kind in _KINDS if isinstance(value, dict) and kind in value]
    if len(kinds) != 1 or not isinstance(value, dict):
        raise _wrong(reading.source, f"has {_short(value)} as {where}", f"a mapping with one of {', '.join(_KINDS)}")
    kind = kinds[0]
    entry = _mapping(value, (kind, *_KINDS[kind]), reading.source, where)
    if len(reading.nodes) >= MAX_NODES:
        raise _wrong(reading.source, f"has more than {MAX_NODES:,} devices", "the devices of one node")
    if kind == "gpus":
        for address in _list(entry["gpus"], reading.source, f"{where}.gpus"):
            _read_device({**{k: v for k, v in entry.items() if k != kind}, "gpu": address}, parent, where, reading)
        return
    node = _bridge(entry, parent, where, reading) if kind == "bridge" else _device(kind, entry, parent, where, reading)
    reading.nodes.append(node)
    _read_below(entry, node.id, f"{where}.below", reading)


def _bridge(entry: Mapping[str, Any], parent: str, where: str, reading: _Reading) -> HostBridge:
    name = entry["bridge"]
    if not isinstance(name, str) or not _BRIDGE.fullmatch(name):
        raise _wrong(reading.source, f"has {_short(name)} as {where}.bridge", "a root bus such as pci0000:40")
    return HostBridge(id=name, parent=parent)


def _device(kind: str, entry: Mapping[str, Any], parent: str, where: str, reading: _Reading) -> Node:
    stated = {**reading.defaults.get(kind, {}), **entry}
    address = _address(entry[kind], f"{where}.{kind}", reading.source)
    redirect = stated.get("acs_redirect")
    if redirect is not None and not isinstance(redirect, bool):
        raise _wrong(reading.source, f"has {_short(redirect)} as {where}.acs_redirect", "true or false")
    fields: dict[str, Any] = {
        "id": address,
        "parent": parent,
        "ids": PciIds(
            pci_class=_CLASSES[kind],
            vendor=_hex(stated, "vendor", reading.source),
            device=_hex(stated, "device", reading.source),
        ),
        "link": _link(stated.get("link"), address, reading.source),
        "port": _address(stated["port"], f"{where}.port", reading.source) if "port" in stated else "",
        "acs_redirect": redirect,
        "name": _text(stated, "label", reading.source),
    }
    if kind == "gpu":
        reading.gpus += 1
        if reading.gpus > MAX_GPUS:
            raise _wrong(reading.source, f"has more than {MAX_GPUS} GPUs", "the GPUs of one node")
        number = reading.gpus - 1
        return Gpu(**fields, index=number, rank=number, sm=_whole(stated, "sm", reading.source))
    return Nic(**fields) if kind == "nic" else Switch(**fields, chip=_text(stated, "chip", reading.source))


def _address(value: object, where: str, source: str) -> str:
    found = bus_id(value) if isinstance(value, str) else None
    if found is None:
        raise _wrong(source, f"has {_short(value)} as {where}", "a bus id such as 0000:43:00.0")
    return found


def _hex(mapping: Mapping[str, Any], key: str, source: str) -> str:
    value = _text(mapping, key, source)
    if value and not _HEX.fullmatch(value):
        raise _wrong(source, f"has {_short(value)} as {key}", 'a PCI number in quotes, such as "0x10de"')
    return value


def _link(value: object, address: str, source: str) -> Link:
    if value is None:
        return UNKNOWN_LINK
    found = _LINK.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise _wrong(source, f"has {_short(value)} as link of {address}", "such as Gen5 x16, or Gen5 x8 of Gen5 x16")
    generation, width, most_generation, most_width = (int(part) if part else None for part in found.groups())
    link_of(address, generation=most_generation, width=most_width)  # a width of 0 must not pass as not known
    return link_of(
        f"topology {source}: {address}",
        generation=generation,
        width=width,
        most=Link(generation=most_generation, width=most_width),
    )


def _socket_links(entries: list[Any], source: str) -> Iterator[SocketLink]:
    for entry in entries:
        stated = _mapping(entry, ("cpus", "kind", "gb_per_s"), source, "between_cpus")
        ends = _list(stated.get("cpus"), source, "between_cpus.cpus")
        if len(ends) != 2 or not all(isinstance(end, int) and 0 <= end < 1 << 16 for end in ends):
            raise _wrong(source, f"has {_short(ends)} as between_cpus.cpus", "two NUMA nodes, such as [0, 1]")
        rate = stated.get("gb_per_s")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e6):
            raise _wrong(source, f"has {_short(rate)} as between_cpus.gb_per_s", "GB/s one way, more than 0")
        yield SocketLink(
            cpus=(f"cpu{ends[0]:d}", f"cpu{ends[1]:d}"),
            kind=_text(stated, "kind", source),
            gb_per_s=None if rate is None else float(rate),
        )
