"""How GPUs of a topology reach each other: NVIDIA's path types, islands behind one switch, and the links on the way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tuning.topology import Topology
from tuning.topology_links import Link
from tuning.topology_nodes import Cpu, Device, Gpu, HostBridge, Node, Switch

NVSWITCH_CLASS = "0x0680"


class PathType(StrEnum):
    """What `nvidia-smi topo -m` calls the way between two GPUs, nearest first; the meanings are its legend's."""

    NVL = "NVL"
    """NVLink (printed as NV and the number of links), or another fabric beside PCIe."""
    PIX = "PIX"
    """At most a single PCIe switch."""
    PXB = "PXB"
    """Several PCIe switches, but no host bridge."""
    PHB = "PHB"
    """A PCIe host bridge."""
    NODE = "NODE"
    """Two host bridges of one NUMA node. NCCL knows no such type: PHB there."""
    SYS = "SYS"
    """Two NUMA nodes."""

    @property
    def nccl(self) -> str:
        """NCCL's name of it (topoPathTypeStr in NCCL's src/graph/topo.cc)."""
        return "PHB" if self is PathType.NODE else self.value


def possible_paths(topology: Topology, a: int, b: int) -> tuple[PathType, ...]:
    """What the way between GPUs `a` and `b` can be, nearest first: several where the source leaves it open.

    NCCL's topology XML has no host bridges, so two GPUs of one CPU are PHB or NODE there. `a` and `b` differ.
    """
    if a == b:
        raise ValueError(f"the way from GPU {a} to itself")
    first, second = topology.gpu(a), topology.gpu(b)
    if _share_fabric(topology, first, second):
        return (PathType.NVL,)
    up, over = _sides(topology, first, second)
    top = up[-1]
    if isinstance(top, Switch):
        crossed = {node.id for node in (*up, *over) if isinstance(node, Switch)}
        return (PathType.PIX if len(crossed) == 1 else PathType.PXB,)
    if isinstance(top, HostBridge):
        return (PathType.PHB,)
    if top.id != over[-1].id:
        return (PathType.SYS,)
    bridges = [isinstance(node, HostBridge) for node in (up[-2], over[-2])]
    within = (PathType.NODE,) if all(bridges) else (PathType.PHB, PathType.NODE)
    return (*within, PathType.SYS) if isinstance(top, Cpu) and top.several else within


def path_type(topology: Topology, a: int, b: int) -> PathType:
    """The way between GPUs `a` and `b`: the farthest of `possible_paths`, where the source leaves several open."""
    return possible_paths(topology, a, b)[-1]


def _sides(topology: Topology, first: Gpu, second: Gpu) -> tuple[list[Node], list[Node]]:
    """Both ways up, each ending in the node where they meet; in the two CPUs, where they do not."""
    up, over = list(topology.chain(first)), list(topology.chain(second))
    while len(up) > 1 and len(over) > 1 and up[-2].id == over[-2].id:
        up.pop()
        over.pop()
    return up, over


def _share_fabric(topology: Topology, first: Gpu, second: Gpu) -> bool:
    """Whether NVLink or the like joins them, directly or over NVSwitches; NCCL takes every NVSwitch as one."""
    if any(link.target == second.id for link in first.fabric):
        return True
    return any(link.target == first.id for link in second.fabric) or all(
        any(_leads_to_switch(topology, link.target, link.target_class) for link in gpu.fabric)
        for gpu in (first, second)
    )


def _leads_to_switch(topology: Topology, target: str, target_class: str) -> bool:
    end = topology.by_id.get(target)
    stated = end.ids.pci_class if isinstance(end, Device) else ""
    return (target_class or stated).startswith(NVSWITCH_CLASS)


def islands(topology: Topology) -> tuple[tuple[Gpu, ...], ...]:
    """The GPUs in groups that reach each other without a CPU: those below one topmost switch; NVLink apart.

    A GPU without a switch above it is an island of its own. This is as far as NCCL's P2P goes unless told otherwise
    (NCCL_P2P_LEVEL is PXB by default).
    """
    groups: dict[str, list[Gpu]] = {}
    for gpu in topology.gpus:
        switches = [node for node in topology.chain(gpu) if isinstance(node, Switch)]
        groups.setdefault(switches[-1].id if switches else gpu.id, []).append(gpu)
    return tuple(tuple(group) for group in groups.values())


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One step on the way between two GPUs.

    Attributes:
        start, end: ids of its ends.
        kind: "pcie", a link; "inside", within a CPU and its host bridges; "sockets", between CPUs; "fabric", NVLink or
            the like.
        link: of a PCIe step.
        gb_per_s: GB/s one way where it is known, by physics for PCIe, as stated between sockets.
    """

    start: str
    end: str
    kind: str
    link: Link | None = None
    gb_per_s: float | None = None


def path(topology: Topology, a: int, b: int) -> tuple[Hop, ...]:
    """The steps from GPU `a` to GPU `b`, in order; none where both are the same."""
    first, second = topology.gpu(a), topology.gpu(b)
    if a != b and _share_fabric(topology, first, second):
        return (Hop(start=first.id, end=second.id, kind="fabric"),)
    up, over = _sides(topology, first, second)
    rising = [_hop(low, high, low) for low, high in pairwise(up)]
    falling = [_hop(high, low, low) for low, high in pairwise(over)]
    across = [] if up[-1].id == over[-1].id else [_between(topology, up[-1].id, over[-1].id)]
    return (*rising, *across, *reversed(falling))


def _hop(start: Node, end: Node, lower: Node) -> Hop:
    if not isinstance(lower, Device):
        return Hop(start=start.id, end=end.id, kind="inside")
    return Hop(start=start.id, end=end.id, kind="pcie", link=lower.link, gb_per_s=lower.link.bandwidth)


def _between(topology: Topology, start: str, end: str) -> Hop:
    stated = [link.gb_per_s for link in topology.socket_links if set(link.cpus) == {start, end}]
    return Hop(start=start, end=end, kind="sockets", gb_per_s=next(iter(stated), None))
