"""Puts `nvidia-smi topo -m` and lspci of one node together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations

from lanewise.errors import InputError
from tuning.topology import Topology
from tuning.topology_matrix import CLOSENESS, Matrix, gpu_number
from tuning.topology_matrix_tree import tree_of
from tuning.topology_nodes import Cpu, FabricLink, Gpu, Node
from tuning.topology_paths import PathType, possible_paths
from tuning.topology_pci import P2P_OPEN, describe_unknown


def joined(matrix: Matrix, tree: Topology, *, name: str, source: str) -> Topology:
    """lspci's tree with what `nvidia-smi topo -m` adds: NVLink, P2P state, and NUMA nodes where lspci tells none.

    Raises:
        InputError: they are not of the same node: other GPUs, or other paths between them. GPUs are matched by bus id,
            by which nvidia-smi numbers them.
    """
    matrix_tree = tree_of(matrix, name=name, source=source)
    numbers = [[gpu.index for gpu in each.gpus] for each in (matrix_tree, tree)]
    if numbers[0] != numbers[1]:
        raise _contradiction(source, f"the one shows {len(numbers[0])} GPUs, {numbers[0]}, the other {len(numbers[1])}")
    nodes = _with_numa(matrix, tree) if any(cpu.several for cpu in tree.cpus) else tree.nodes
    ids = {f"GPU{gpu.index}": gpu.id for gpu in tree.gpus}
    fabric = {gpu.index: tuple(_renamed(link, ids) for link in gpu.fabric) for gpu in matrix_tree.gpus}
    both = Topology(
        name=name,
        source=source,
        nodes=tuple(replace(node, fabric=fabric[node.index]) if isinstance(node, Gpu) else node for node in nodes),
        p2p=matrix.p2p,
        unknown=(*describe_unknown(nodes), *_still_open(matrix, tree)),
    )
    _check_paths(matrix, both, source)
    return both


def _still_open(matrix: Matrix, tree: Topology) -> Iterator[str]:
    """What lspci leaves open whatever its nodes are, but for what the matrix tells."""
    settled = [*describe_unknown(tree.nodes), *([P2P_OPEN] if matrix.p2p else [])]
    return (text for text in tree.unknown if text not in settled)


def _contradiction(source: str, how: str) -> InputError:
    return InputError(
        f"topology {source}: the two files contradict each other: {how}",
        expected="topo -m and lspci of the same node, taken between two changes of its hardware",
        todo="record both anew on the node",
    )


def _renamed(link: FabricLink, ids: Mapping[str, str]) -> FabricLink:
    return replace(link, target=ids.get(link.target, link.target))


def _with_numa(matrix: Matrix, tree: Topology) -> tuple[Node, ...]:
    """The tree with each branch below the CPU that the matrix tells of the first GPU in it that it tells one of."""
    old = tree.cpus[0]
    homes: dict[str, str] = {}
    cpus: dict[str, Cpu] = {}
    for gpu in tree.gpus:
        numa = matrix.numa.get(f"GPU{gpu.index}")
        branch = tree.chain(gpu)[-2].id
        if numa is not None and branch not in homes:
            homes[branch] = f"cpu{numa}"
            cpus[homes[branch]] = replace(old, id=homes[branch], numa=numa, several=False)
    rest = [node for node in tree.nodes if not isinstance(node, Cpu)]
    kept = [cpu for cpu in tree.cpus if any(node.parent == cpu.id and node.id not in homes for node in rest)]
    moved = (replace(node, parent=homes.get(node.id, node.parent)) for node in rest)
    return (*(cpu for name, cpu in sorted(cpus.items()) if name not in {c.id for c in kept}), *kept, *moved)


def _check_paths(matrix: Matrix, both: Topology, source: str) -> None:
    """PHB and NODE are not told apart: the driver counts host bridges in ways of its own on some CPUs."""
    for a, b in permutations(matrix.labels, 2):
        first, second = gpu_number(a), gpu_number(b)
        cell = matrix.cells[a, b]
        if first is None or second is None or cell not in CLOSENESS:
            continue
        possible = {path.nccl for path in possible_paths(both, first, second)}
        if PathType(cell).nccl not in possible:
            raise _contradiction(source, f"{a} and {b} are {cell} in the one and {' or '.join(possible)} in the other")
