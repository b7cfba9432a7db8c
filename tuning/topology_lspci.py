"""Reads a PCI tree from `lspci -vvv` (as root: without it lspci shows neither link nor ACS state)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lanewise.errors import InputError
from tuning.topology import Topology
from tuning.topology_links import Link, generation_of
from tuning.topology_nodes import Cpu, PciIds, bus_id
from tuning.topology_pci import (
    BRIDGE_CLASS,
    HOST_BRIDGE_CLASS,
    NVIDIA,
    P2P_OPEN,
    PciFunction,
    build_tree,
    by_address,
    describe_unknown,
)

_HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)", re.ASCII)
_CLASS_NUMBER = re.compile(r"(?:.*\[|Class |)([0-9a-f]{4})\]?", re.ASCII)
_IDS = re.compile(r".*\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.ASCII)
_DEVICE = re.compile(r".*\bDevice ([0-9a-f]{4})\b", re.ASCII)
_CLASSES = {
    "PCI bridge": f"{BRIDGE_CLASS}00",
    "Host bridge": f"{HOST_BRIDGE_CLASS}00",
    "VGA compatible controller": "0x030000",
    "3D controller": "0x030200",
    "Ethernet controller": "0x020000",
    "Infiniband controller": "0x020700",
    "Network controller": "0x028000",
}
_VENDORS = {
    "NVIDIA Corporation": NVIDIA,
    "Broadcom / LSI": "0x1000",
    "Mellanox Technologies": "0x15b3",
    "Advanced Micro Devices": "0x1022",
    "Intel Corporation": "0x8086",
}
_CPU_VENDORS = {"0x1022": "AuthenticAMD", "0x8086": "GenuineIntel"}
"""Whose host bridges are in whose CPUs."""
_NUMA = re.compile(r"NUMA node: ([0-9]{1,5})", re.ASCII)
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}),", re.ASCII)
_LINK = re.compile(r"Lnk(Cap|Sta):.{0,40}?Speed ([0-9.]{1,5}|unknown).{0,40}?Width x([0-9]{1,3})", re.ASCII)
_ACS = re.compile(r"ACSCtl:.{0,80}?ReqRedir([+-]).{0,20}?CmpltRedir([+-])", re.ASCII)
_TODO = "record it anew with `sudo lspci -D -nn -vvv`"


@dataclass(kw_only=True)
class _Block:
    """What lspci says of one function, as it is being read."""

    function: PciFunction
    secondary: str = ""
    lines: list[str] = field(default_factory=list)


def looks_like_lspci(text: str) -> bool:
    """Whether some line begins as lspci's do."""
    return any(_HEADER.match(line) for line in text.splitlines())


def parse_lspci(text: str, *, name: str, source: str) -> Topology:
    """A topology from `lspci -vvv`; -nn adds numbers that NCCL's XML has.

    Raises:
        InputError: a listing without its details, or one that shows no GPU of NVIDIA.
    """
    blocks = _blocks(text)
    if not any(block.lines for block in blocks):
        raise InputError(
            f"topology {source} lists {len(blocks)} devices without their details",
            expected="buses, links and NUMA nodes, as `lspci -vvv` prints them",
            todo=_TODO,
        )
    functions = by_address(_joined(blocks), source)
    if not any(function.is_gpu for function in functions.values()):
        raise InputError(
            f"topology {source} shows no GPU of NVIDIA among {len(functions)} devices",
            expected="the whole of a node's lspci",
            todo=_TODO,
        )
    vendors = {_CPU_VENDORS.get(f.ids.vendor, "") for f in functions.values() if f.is_host_bridge}
    vendor = next(iter(vendors)) if len(vendors) == 1 else ""
    cpu = Cpu(id="", vendor=vendor, arch="x86_64" if vendor else "")
    nodes = build_tree(functions, cpu=cpu, numa_nodes=(), source=source)
    missing = "the CPUs' models and compute capability, which lspci does not show"
    return Topology(name=name, source=source, nodes=nodes, unknown=(*describe_unknown(nodes), missing, P2P_OPEN))


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            blocks.append(_Block(function=_function(header[1], header[2])))
        elif blocks and line[:1].isspace() and line.strip():
            blocks[-1].lines.append(line)
            _detail(blocks[-1], line)
    return blocks


def _function(address: str, rest: str) -> PciFunction:
    """Class, vendor and device from names or, where -nn or -n printed them, from numbers."""
    kind, _, what = rest.partition(": ")
    number = _CLASS_NUMBER.fullmatch(kind)
    named = next((value for key, value in _CLASSES.items() if kind.startswith(key)), "")
    numbers = _IDS.match(what) or re.match("(?:Device )?([0-9a-f]{4}):([0-9a-f]{4})", what, re.ASCII)
    device = _DEVICE.match(what)
    ids = PciIds(
        pci_class=f"0x{number[1]}00" if number else named,
        vendor=f"0x{numbers[1]}" if numbers else next((v for k, v in _VENDORS.items() if what.startswith(k)), ""),
        device=f"0x{numbers[2]}" if numbers else f"0x{device[1]}" if device else "",
    )
    return PciFunction(address=bus_id(address) or address, parent="", ids=ids, name=what.partition(" (")[0][:100])


def _detail(block: _Block, line: str) -> None:
    if found := _NUMA.search(line):
        block.function = replace(block.function, numa=int(found[1]))
    elif found := _BUSES.search(line):
        block.secondary = found[2]
    elif found := _ACS.search(line):
        block.function = replace(block.function, acs_redirect="+" in found.groups())
    elif found := _LINK.search(line):
        generation, width = _generation(found[2]), int(found[3])
        if found[1] == "Sta":
            block.function = replace(block.function, generation=generation, width=width)
        elif width:
            block.function = replace(block.function, most=Link(generation=generation, width=min(width, 32)))


def _generation(rate: str) -> int | None:
    try:
        return generation_of(float(rate))
    except ValueError:  # "unknown"
        return None


def _joined(blocks: list[_Block]) -> Iterator[PciFunction]:
    """The functions, each below the bridge that leads to its bus, or below its host bridge."""
    bridges = {f"{_domain(block)}:{block.secondary}": block.function.address for block in blocks if block.secondary}
    roots = {block.function.address.rpartition(":")[0] for block in blocks if block.function.is_host_bridge}
    for block in blocks:
        bus = block.function.address.rpartition(":")[0]
        yield replace(block.function, parent=bridges.get(bus) or (f"pci{bus}" if bus in roots else ""))


def _domain(block: _Block) -> str:
    return block.function.address.partition(":")[0]
