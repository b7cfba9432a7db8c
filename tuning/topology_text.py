"""A topology as text for people, and the words that its picture shares with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuning.topology import SocketLink, Topology
from tuning.topology_nodes import Cpu, Device, Gpu, Nic, Node, Switch
from tuning.topology_paths import islands, possible_paths

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def text_tree(topology: Topology) -> str:
    """The tree with its links, the path between every two GPUs, the islands, and what is not known."""
    parts = [
        [headline(topology), f"from {topology.source}"],
        list(_tree(topology)),
        _matrix(topology),
        [f"island {name}: {_numbers(gpus)}" for name, gpus in island_names(topology).items()],
        facts(topology),
        [f"not known: {text}" for text in topology.unknown],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def headline(topology: Topology) -> str:
    """What it is, in one line."""
    groups = len(islands(topology))
    counts = (
        _plural(len(topology.gpus), "GPU"),
        _plural(groups, "island"),
        _plural(sum(isinstance(node, Switch) for node in topology.nodes), "switch", "switches"),
        _plural(len(topology.cpus), "CPU"),
    )
    return f"{topology.name}: {', '.join(counts)}"


def _plural(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def island_names(topology: Topology) -> Mapping[str, tuple[Gpu, ...]]:
    """The islands, named A, B and so on; past Z by number."""
    groups = islands(topology)
    return {_LETTERS[n] if n < len(_LETTERS) else str(n + 1): group for n, group in enumerate(groups)}


def _numbers(gpus: tuple[Gpu, ...]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def title(node: Node) -> str:
    """What a node is called."""
    if isinstance(node, Cpu):
        return "CPU (which is not known)" if node.several else f"CPU {'?' if node.numa is None else node.numa}"
    if isinstance(node, Gpu):
        return f"GPU {node.index}"
    if not isinstance(node, Device):
        return "host bridge"
    if isinstance(node, Switch):
        return "virtual switch" if node.chip else "switch"
    return "NIC" if isinstance(node, Nic) else "device"


def details(node: Node) -> tuple[str, ...]:
    """What more is known of a node than its title: address, model."""
    if isinstance(node, Cpu):
        model = () if node.family is None else (f"family {node.family} model {node.model}",)
        return (node.vendor or node.arch or "model not known", *model)
    if isinstance(node, Gpu) and node.sm is not None:
        return node.id, f"sm_{node.sm}"
    if isinstance(node, Switch) and node.chip:
        return node.id, f"in {node.chip}"
    return (node.id,)


def link_label(device: Device) -> str:
    """Its link upwards: "Gen5 x16"; "link not known" where neither rate nor lanes are."""
    if device.link.generation is None and device.link.width is None:
        return "link not known"
    return str(device.link)


def marks(device: Device) -> tuple[str, ...]:
    """What deserves attention about its link or port, in words."""
    found = []
    if device.degraded:
        found.append("DEGRADED")
    elif device.link.slowed:
        found.append("idle rate?")
    if device.acs_redirect:
        found.append("ACS REDIRECT")
    return tuple(found)


def facts(topology: Topology) -> list[str]:
    """What is known beside the tree: between CPUs, links beside PCIe, P2P and ACS."""
    fabric = [
        f"GPU {gpu.index}: {link.count} {link.kind} to {_end(topology, link.target)}"
        for gpu in topology.gpus
        for link in gpu.fabric
    ]
    states = sorted(set(topology.p2p.values()))
    p2p = [f"P2P: {_p2p(topology, state)}" for state in states]
    return [*map(between, topology.socket_links), *fabric, *p2p, *_acs(topology)]


def _end(topology: Topology, target: str) -> str:
    end = topology.by_id.get(target)
    return title(end) if isinstance(end, Gpu) else target or "the CPU"


def between(link: SocketLink) -> str:
    """What is known between two CPUs."""
    rate = "" if link.gb_per_s is None else f", {link.gb_per_s:g} GB/s one way"
    distance = "" if link.distance is None else f", NUMA distance {link.distance}"
    return f"{' to '.join(link.cpus)}: {link.kind or 'joined'}{rate}{distance}"


def _p2p(topology: Topology, state: str) -> str:
    pairs = [pair for pair, stated in topology.p2p.items() if stated == state]
    if len(pairs) == len(topology.gpus) * (len(topology.gpus) - 1):
        return f"{state} between all GPUs"
    return f"{state} for {', '.join(f'{a}-{b}' for a, b in pairs)}"


def _acs(topology: Topology) -> list[str]:
    states = [node.acs_redirect for node in topology.nodes if isinstance(node, Device)]
    told = sum(state is not None for state in states)
    return [f"ACS redirect: on at {states.count(True)} of {told} ports that are known"] if told else []


def _tree(topology: Topology) -> Iterator[str]:
    for cpu in topology.cpus:
        yield f"{title(cpu)}  {' '.join(details(cpu))}"
        yield from _below(topology, cpu, "")


def _below(topology: Topology, node: Node, indent: str) -> Iterator[str]:
    children = topology.children(node)
    for number, child in enumerate(children):
        last = number == len(children) - 1
        yield f"{indent}{'└─' if last else '├─'} {title(child)}  {' '.join(details(child))}{_link(child)}"
        yield from _below(topology, child, indent + ("   " if last else "│  "))


def _link(node: Node) -> str:
    if not isinstance(node, Device):
        return ""
    known = node.link.bandwidth
    bandwidth = "" if known is None else f", {known:.1f} GB/s, NCCL counts {node.link.nccl_bandwidth:g}"
    noted = f"  {', '.join(marks(node))}" if marks(node) else ""
    return f"  [{link_label(node)}{bandwidth}]{noted}"


def _matrix(topology: Topology) -> list[str]:
    """The path between every two GPUs; several types where the source leaves them open."""
    labels = [f"GPU{gpu.index}" for gpu in topology.gpus]
    rows = [
        ["X" if a is b else "/".join(possible_paths(topology, a.index, b.index)) for b in topology.gpus]
        for a in topology.gpus
    ]
    width = max((len(cell) for row in [labels, *rows] for cell in row), default=0) + 1
    head = " " * width + "".join(label.ljust(width) for label in labels)
    body = [
        label.ljust(width) + "".join(cell.ljust(width) for cell in row) for label, row in zip(labels, rows, strict=True)
    ]
    return [line.rstrip() for line in (head, *body)] if len(labels) > 1 else []
