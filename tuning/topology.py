"""A node's PCI tree as a value: its nodes, the links between them, and what is not known of them.

One model for every source (NCCL's topology XML, node record, `nvidia-smi topo -m`, lspci, YAML): `topology_read` reads
them, `topology_nodes` has its parts, `topology_paths` says how two GPUs reach each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lanewise.errors import InputError
from tuning.topology_nodes import Cpu, Device, Extra, Gpu, HostBridge, Nic, Node, OtherDevice, Switch

MAX_NODES = 1024
"""More than any node of today by a factor of ten; keeps every walk over a file's content short."""
MAX_GPUS = 128
"""More than any node of today has; there is a path for each pair of them."""
MAX_DEPTH = 32
"""Levels below a CPU; a GPU behind three switches is at 5."""
MAX_TEXT = 255
"""Characters in a name or value: NCCL's own bound (MAX_STR_LEN in NCCL's src/graph/xml.h)."""
P2P_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""What `nvidia-smi topo -p2p` prints: works, or not supported by chipset, GPU or topology, at all, off, unknown."""


@dataclass(frozen=True, kw_only=True)
class SocketLink:
    """What is known of the way between two CPUs; without one, NCCL and this model still take them as joined.

    Attributes:
        cpus: ids of both.
        kind: "xGMI", "UPI"; "" where not known.
        gb_per_s: what one pair of GPUs gets across, GB/s one way; None where not known.
        distance: the firmware's NUMA distance (10 is local); None where not known.
    """

    cpus: tuple[str, str]
    kind: str = ""
    gb_per_s: float | None = None
    distance: int | None = None


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A node's PCI tree, checked.

    Attributes:
        name: for people.
        source: what it was read from.
        nodes: all of them; siblings in the order of their source, which NCCL's search depends on.
        socket_links: what is known between CPUs.
        p2p: state of GPU pairs (from, to), by index, as `nvidia-smi topo -p2p` prints it; absent: not known.
        unknown: what the source does not tell, a sentence each.

    Raises:
        InputError: when made of nodes that are not a tree of CPUs, or that break a rule of their kind.
    """

    name: str
    source: str
    nodes: tuple[Node, ...]
    socket_links: tuple[SocketLink, ...] = ()
    p2p: Mapping[tuple[int, int], str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_nodes(self)
        _check_tree(self)
        _check_gpus(self)
        _check_relations(self)

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        """Every node by its id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def _children(self) -> Mapping[str, tuple[Node, ...]]:
        below: dict[str, list[Node]] = {}
        for node in self.nodes:
            below.setdefault(node.parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in below.items()}

    def children(self, node: Node) -> tuple[Node, ...]:
        """The nodes directly below one, in their order."""
        return self._children.get(node.id, ())

    def chain(self, node: Node) -> tuple[Node, ...]:
        """The node and all above it, its CPU last."""
        found = [node]
        while found[-1].parent:
            found.append(self.by_id[found[-1].parent])
        return tuple(found)

    @cached_property
    def cpus(self) -> tuple[Cpu, ...]:
        """The CPUs in their order."""
        return tuple(node for node in self.nodes if isinstance(node, Cpu))

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs by index."""
        return tuple(sorted((node for node in self.nodes if isinstance(node, Gpu)), key=lambda gpu: gpu.index))

    def gpu(self, index: int) -> Gpu:
        """The GPU of that index.

        Raises:
            InputError: there is none.
        """
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        raise _wrong(self, f"has no GPU {index}", f"one of {[gpu.index for gpu in self.gpus]}")


def _wrong(topology: Topology, problem: str, expected: str, todo: str = "mend it") -> InputError:
    return InputError(f"topology {topology.name} ({topology.source}) {problem}", expected=expected, todo=todo)


def _check_nodes(topology: Topology) -> None:
    if len(topology.nodes) > MAX_NODES:
        raise _wrong(topology, f"has {len(topology.nodes):,} nodes", f"at most {MAX_NODES:,}")
    for text in (topology.name, topology.source, *(text for node in topology.nodes for text in _texts(node))):
        if not text.isprintable() or len(text) > MAX_TEXT:
            raise _wrong(topology, f"holds {text[:40]!r}", f"at most {MAX_TEXT} printable characters in a value")
    if twice := [name for name, times in Counter(node.id for node in topology.nodes).items() if times > 1]:
        raise _wrong(topology, f"names {twice[0]} twice", "every bus id and CPU once")


def _texts(node: Node) -> Iterator[str]:
    """All free text of a node."""
    yield from (value for value in vars(node).values() if isinstance(value, str))
    if isinstance(node, Cpu | Device):
        yield from _flat(node.extra)
    if isinstance(node, Device):
        yield from vars(node.ids).values()
    if isinstance(node, Switch):
        yield from node.peers
    if isinstance(node, Gpu):
        for link in node.fabric:
            yield from (link.kind, link.target, link.target_class, *_flat(link.extra))
    if isinstance(node, Nic):
        for tag, attributes in node.nets:
            yield from (tag, *_flat(attributes))


def _flat(extra: Extra) -> Iterator[str]:
    return (text for pair in extra for text in pair)


def _check_tree(topology: Topology) -> None:
    """Every node leads up to a CPU: no orphan, no ring, nothing below what can hold nothing, nothing absurdly deep."""
    depth: dict[str, int] = {}
    for start in topology.nodes:
        trail: list[Node] = [start]
        while trail[-1].id not in depth and not (isinstance(trail[-1], Cpu) and not trail[-1].parent):
            above = _above(topology, trail[-1])
            if above in trail:
                raise _wrong(topology, f"has a ring through {above.id}", "a tree")
            if len(trail) > MAX_DEPTH:
                raise _wrong(topology, f"is deeper than {MAX_DEPTH} levels at {start.id}", "a PCI tree")
            trail.append(above)
        for number, node in enumerate(reversed(trail)):
            depth.setdefault(node.id, depth.get(trail[-1].id, 0) + number)
        if depth[start.id] > MAX_DEPTH:
            raise _wrong(topology, f"is deeper than {MAX_DEPTH} levels at {start.id}", "a PCI tree")


def _above(topology: Topology, node: Node) -> Node:
    above = topology.by_id.get(node.parent)
    if above is None:
        what = f"below {node.parent!r}, which is not in it" if node.parent else "below nothing"
        raise _wrong(topology, f"has the orphan {node.id} {what}", "every device below a CPU")
    allowed = (Cpu,) if isinstance(node, HostBridge) else (Cpu, HostBridge, Switch)
    if isinstance(node, Cpu) or not isinstance(above, allowed):
        raise _wrong(
            topology,
            f"has {node.id} below {above.id}, a {type(above).__name__}",
            "host bridges below CPUs, devices below CPUs, host bridges and switches",
        )
    return above


def _check_gpus(topology: Topology) -> None:
    if not any(isinstance(node, Gpu | OtherDevice) for node in topology.nodes):
        raise _wrong(topology, "holds no GPU", "at least one", "check that this is the file of a node with GPUs")
    if len(topology.gpus) > MAX_GPUS:
        raise _wrong(topology, f"has {len(topology.gpus):,} GPUs", f"at most {MAX_GPUS}")
    for what, numbers in (("GPU", [g.index for g in topology.gpus]), ("rank", [g.rank for g in topology.gpus])):
        if twice := [number for number, times in Counter(numbers).items() if times > 1]:
            raise _wrong(topology, f"numbers two GPUs alike ({what} {twice[0]})", "a number of its own for each")
        if odd := [number for number in numbers if not 0 <= number < MAX_NODES]:
            raise _wrong(topology, f"has {what} {odd[0]}", f"numbers from 0 to {MAX_NODES - 1}")
    for gpu in topology.gpus:
        for link in gpu.fabric:
            if link.count < 1:
                raise _wrong(topology, f"gives GPU {gpu.index} {link.count} {link.kind} links", "at least one")


def _check_relations(topology: Topology) -> None:
    known = {cpu.id for cpu in topology.cpus}
    for link in topology.socket_links:
        if not known.issuperset(link.cpus) or link.cpus[0] == link.cpus[1]:
            raise _wrong(topology, f"links the CPUs {' and '.join(link.cpus)}", f"two of {sorted(known)}")
        if link.gb_per_s is not None and not 0 < link.gb_per_s < 1e6:
            raise _wrong(topology, f"gives {' and '.join(link.cpus)} {link.gb_per_s} GB/s", "more than 0")
    indices = {gpu.index for gpu in topology.gpus}
    for pair, state in topology.p2p.items():
        if not indices.issuperset(pair) or state not in P2P_STATES:
            raise _wrong(topology, f"gives the GPUs {pair} the P2P state {state!r}", f"one of {', '.join(P2P_STATES)}")
