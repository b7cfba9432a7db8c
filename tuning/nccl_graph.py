"""NCCL's graph files: the rings and trees that its search found ($NCCL_GRAPH_DUMP_FILE), or shall use
($NCCL_GRAPH_FILE)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from lanewise.errors import InputError

RING, TREE = 0, 1
"""Ids of the two graphs that one node without NVSwitch uses (src/init.cc)."""
PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
"""NCCL_TOPO_PATTERN_*, src/include/graph.h."""
TYPES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path types from near to far (topoPathTypeStr, src/graph/topo.cc of 2.27 and later; 2.26 has no P2C)."""
FALLBACK_GB_S = 0.1
"""What ncclTopoCompute writes where it found no path and takes the GPUs in their order (src/graph/search.cc)."""
_MAX_BYTES = 4 << 20
_MAX_CHANNELS = 64
"""MAXCHANNELS, src/include/device.h."""
_MAX_GPUS = 1024
_MAX_GB_S = 1e6


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One search's outcome.

    Attributes:
        id: 0 ring, 1 tree, 2 and 4 CollNet, 3 NVLS.
        pattern: see `PATTERNS`.
        gb_s: per channel between GPUs, GB/s ("speedintra").
        gb_s_net: per channel to the network, GB/s ("speedinter"); a tree's equals the other on one node.
        type: the farthest path between neighbours ("typeintra"), one of `TYPES`.
        type_net: the same to the network ("typeinter").
        same_channels: whether all channels take the same order.
        channels: the GPUs' device numbers in order, for each channel.
    """

    id: int
    pattern: int
    gb_s: float
    gb_s_net: float
    type: str
    type_net: str
    same_channels: bool
    channels: tuple[tuple[int, ...], ...]

    @property
    def failed(self) -> bool:
        """Whether NCCL found no path and fell back to the GPUs' order, at 0.1 GB/s on one channel."""
        return len(self.channels) == 1 and abs(self.gb_s - FALLBACK_GB_S) < 1e-6

    def __str__(self) -> str:
        """As NCCL's users write it: channels x GB/s, path type; e.g. "2 x 24 PHB"."""
        return f"{len(self.channels)} x {self.gb_s:g} {self.type}"


def read_graphs(text: str, *, where: str) -> tuple[Graph, ...]:
    """The graphs of a graph file.

    Args:
        text: its content.
        where: what it is, for errors, e.g. its path.

    Raises:
        InputError: it is not a graph file that NCCL could read.
    """
    root = parse_xml(text, where=where)
    if root.tag != "graphs":
        raise _wrong(where, f"begins with <{root.tag[:40]}>", "<graphs> as its outermost element")
    graphs = tuple(_graph(element, where) for element in root if element.tag == "graph")
    if not graphs or len({graph.id for graph in graphs}) < len(graphs):
        raise _wrong(where, f"holds {len(graphs)} graphs", "at least one, each id once")
    return graphs


def write_graphs(graphs: Iterable[Graph]) -> str:
    """A graph file in NCCL's own form, byte for byte what 2.26 to 2.29 dump; from 2.30 on dumps also carry ranks."""
    lines = ['<graphs version="1">']
    for graph in graphs:
        lines.append(
            f'  <graph id="{graph.id}" pattern="{graph.pattern}" crossnic="0" nchannels="{len(graph.channels)}" '
            f'speedintra="{graph.gb_s:g}" speedinter="{graph.gb_s_net:g}" latencyinter="0" typeintra="{graph.type}" '
            f'typeinter="{graph.type_net}" samechannels="{int(graph.same_channels)}"{">" if graph.channels else "/>"}'
        )
        for channel in graph.channels:
            gpus = (f'      <gpu dev="{_hexadecimal(device)}"/>' for device in channel)
            lines += ["    <channel>", *gpus, "    </channel>"]
        lines += ["  </graph>"] if graph.channels else []
    return "\n".join([*lines, "</graphs>", ""])


def _hexadecimal(number: int) -> str:
    """printf's "%#lx", which NCCL writes device numbers with: 0 has no prefix."""
    return f"{number:#x}" if number else "0"


def parse_xml(text: str, *, where: str) -> ET.Element:
    """The outermost element of an XML document from an unknown hand.

    Raises:
        InputError: it is no XML, too large, or defines entities, which can grow without bound.
    """
    if len(text) > _MAX_BYTES:
        raise _wrong(where, f"has {len(text):,} characters", f"at most {_MAX_BYTES:,}")
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise _wrong(where, "has a DOCTYPE or defines entities", "plain XML, as NCCL writes it")
    try:
        return ET.fromstring(text)  # noqa: S314 - no entities are left to expand, and the size is bounded
    except (ET.ParseError, ValueError) as error:  # ValueError: characters that no encoding has
        raise _wrong(where, f"is not XML: {str(error)[:200]}", "XML, as NCCL writes it") from error


def _graph(element: ET.Element, where: str) -> Graph:
    channels = tuple(_channel(child, where) for child in element if child.tag == "channel")
    declared = _number(element, "nchannels", where, 0, _MAX_CHANNELS)
    if len(channels) != declared:
        raise _wrong(where, f"declares {declared:g} channels and holds {len(channels)}", "as many as it declares")
    return Graph(
        id=int(_number(element, "id", where, 0, 15)),
        pattern=int(_number(element, "pattern", where, 1, max(PATTERNS))),
        gb_s=_number(element, "speedintra", where, 0, _MAX_GB_S),
        gb_s_net=_number(element, "speedinter", where, 0, _MAX_GB_S),
        type=_type(element, "typeintra", where),
        type_net=_type(element, "typeinter", where),
        same_channels=_number(element, "samechannels", where, 0, 1) == 1,
        channels=channels,
    )


def _channel(element: ET.Element, where: str) -> tuple[int, ...]:
    devices = []
    for gpu in element:
        if gpu.tag != "gpu":  # a <net> at an end: of nodes in a network
            continue
        text = gpu.get("dev", "")
        if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text, re.ASCII):
            raise _wrong(where, f"has a GPU {text[:40]!r}", "its device number, hexadecimal")
        devices.append(int(text, 16))
    if len(devices) > _MAX_GPUS or len(set(devices)) < len(devices):
        raise _wrong(where, f"has a channel of {len(devices)} GPUs", "every GPU once")
    return tuple(devices)


def _number(element: ET.Element, name: str, where: str, least: float, most: float) -> float:
    text = element.get(name, "")
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) and least <= (value := float(text)) <= most:
        return value
    raise _wrong(where, f"has {name}={text[:40]!r}", f"a number from {least:g} to {most:g}")


def _type(element: ET.Element, name: str, where: str) -> str:
    if (text := element.get(name, "")) in TYPES:
        return text
    raise _wrong(where, f"has {name}={text[:40]!r}", f"one of {', '.join(TYPES)}")


def _wrong(where: str, problem: str, expected: str) -> InputError:
    return InputError(f"{where} {problem}", expected=expected, todo="name a file that NCCL dumped, or mend it")
