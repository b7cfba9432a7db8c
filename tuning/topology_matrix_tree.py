"""From the matrix of `nvidia-smi topo -m` to the tree that it implies, and what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from lanewise.errors import InputError
from tuning.topology import Topology
from tuning.topology_matrix import CLOSENESS, Matrix, gpu_number
from tuning.topology_nodes import Cpu, FabricLink, Gpu, HostBridge, Nic, Node, PciIds, Switch
from tuning.topology_pci import P2P_OPEN

_MOST_NVLINKS = 18
"""Links that a GPU of today has (Hopper, Blackwell); one that shows more in all shows them through NVSwitch."""
_NVSWITCH = "nvswitch"
_SWITCH, _GPU, _NIC = (PciIds(pci_class=number) for number in ("0x060400", "0x030000", "0x020000"))
_OPEN = (
    "PCI bus ids, link rates and widths, CPU models, compute capability and ACS state, which topo -m does not show",
    "whether two switches share a root port, a root complex or, as virtual switches, a chip: topo -m shows the same",
    "whether a GPU that is alone hangs on a root port or on a switch of its own",
)

Group = tuple[str, ...]


def tree_of(matrix: Matrix, *, name: str, source: str) -> Topology:
    """The tree with the fewest switches that has this matrix.

    Raises:
        InputError: no tree has it: two devices are near a third but far from each other.
    """
    _check_nesting(matrix, source)
    nodes: list[Node] = []
    for cpu, groups in _cpus(matrix, source):
        nodes.append(cpu)
        for group in groups:
            bridge = HostBridge(id=f"above {group[0]}", parent=cpu.id)
            nodes += [bridge, *_below(matrix, group, bridge.id)]
    return Topology(
        name=name, source=source, nodes=tuple(nodes), p2p=matrix.p2p, unknown=tuple(_unknown(matrix, nodes))
    )


def _groups(matrix: Matrix, labels: Sequence[str], level: str) -> tuple[Group, ...]:
    """The labels in groups of those that paths of this type or nearer join."""
    near = CLOSENESS[: CLOSENESS.index(level) + 1]
    leader = {label: label for label in labels}
    for a, b in combinations(labels, 2):
        if matrix.cells[a, b] in near and leader[a] != leader[b]:
            old, new = leader[b], leader[a]
            leader = {label: new if above == old else above for label, above in leader.items()}
    return tuple(tuple(label for label in labels if leader[label] == head) for head in dict.fromkeys(leader.values()))


def _check_nesting(matrix: Matrix, source: str) -> None:
    for level in CLOSENESS:
        near = CLOSENESS[: CLOSENESS.index(level) + 1]
        for group in _groups(matrix, matrix.labels, level):
            for a, b in combinations(group, 2):
                if matrix.cells[a, b] not in near and not matrix.links(a, b):
                    what = f"{a} and {b} are {matrix.cells[a, b]}, but others join them by {level} or nearer"
                    raise _contradiction(source, what)


def _cpus(matrix: Matrix, source: str) -> Iterator[tuple[Cpu, list[Group]]]:
    """Each CPU with its groups of one host bridge; by NUMA node where it is told, else by NODE and SYS.

    GPUs that only NVLink joins may be on one CPU or on several: without a NUMA node, nobody knows.
    """
    groups = _groups(matrix, matrix.labels, "NODE")
    apart = all(matrix.cells[a[0], b[0]] == "SYS" for a, b in combinations(groups, 2))
    homes: dict[str, list[str]] = {}
    for group in groups:
        numa = _numa_of(matrix, group, source)
        home = f"cpu{numa}" if numa is not None else f"cpu of {group[0]}" if apart else "cpu"
        homes.setdefault(home, []).extend(group)
    for home, labels in homes.items():
        for a, b in combinations(labels, 2):
            if matrix.cells[a, b] == "SYS" and home != "cpu":
                raise _contradiction(source, f"{a} and {b} are SYS, but on the same NUMA node")
        numas = [matrix.numa[label] for label in labels if label in matrix.numa]
        cpu = Cpu(id=home, numa=next(iter(numas), None), several=home == "cpu")
        yield cpu, list(_groups(matrix, labels, "PHB"))


def _numa_of(matrix: Matrix, group: Group, source: str) -> int | None:
    told = {matrix.numa[label] for label in group if label in matrix.numa}
    if len(told) > 1:
        raise _contradiction(source, f"{group[0]} is joined by NODE or nearer to devices of NUMA nodes {sorted(told)}")
    return next(iter(told), None)


def _contradiction(source: str, how: str) -> InputError:
    return InputError(
        f"topology {source} contradicts itself: {how}",
        expected="paths of a tree: what is near the same device is as near to each other, and on one NUMA node",
        todo="record it anew: `nvidia-smi topo -m > topo.txt`",
    )


def _below(matrix: Matrix, group: Group, parent: str) -> Iterator[Node]:
    """A host bridge's devices; switches of switches where PXB says that there are several on the way."""
    for wide in _groups(matrix, group, "PXB"):
        above, narrow = parent, _groups(matrix, wide, "PIX")
        if len(narrow) > 1:
            above = f"above {wide[0]}, upper switch"
            yield Switch(id=above, parent=parent, ids=_SWITCH)
        for close in narrow:
            home = above
            if len(close) > 1 or len(narrow) > 1:
                home = f"above {close[0]}, switch"
                yield Switch(id=home, parent=above, ids=_SWITCH)
            for label in close:
                yield _device(matrix, label, home)


def _device(matrix: Matrix, label: str, parent: str) -> Node:
    number = gpu_number(label)
    if number is None:
        return Nic(id=label, parent=parent, ids=_NIC)
    fabric = tuple(_fabric(matrix, label))
    return Gpu(id=label, parent=parent, ids=_GPU, index=number, rank=number, fabric=fabric)


def _fabric(matrix: Matrix, label: str) -> Iterator[FabricLink]:
    links = {other: matrix.links(label, other) for other in matrix.labels if other != label}
    if sum(links.values()) > _MOST_NVLINKS:
        yield FabricLink(kind="nvlink", target=_NVSWITCH, count=max(links.values()), target_class="0x068000")
        return
    yield from (
        FabricLink(kind="nvlink", target=other, count=count, target_class="0x030200")
        for other, count in links.items()
        if count
    )


def _unknown(matrix: Matrix, nodes: Sequence[Node]) -> Iterator[str]:
    yield from _OPEN
    if any(isinstance(node, Cpu) and node.numa is None for node in nodes):
        yield "the NUMA node of some devices, and with it which CPU they hang on"
    if any(cell == "PXB" for cell in matrix.cells.values()):
        yield "how the switches between GPUs that are PXB hang on each other"
    if any(matrix.links(a, b) for a, b in combinations(matrix.labels, 2)):
        yield "how GPUs that NVLink joins are joined over PCIe"
    if not matrix.p2p:
        yield P2P_OPEN
