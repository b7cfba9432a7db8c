"""From a list of PCI functions, as lspci or a node record has it, to the nodes of a topology."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.topology import MAX_DEPTH, MAX_NODES
from tuning.topology_links import UNKNOWN_LINK, Link, link_of
from tuning.topology_nodes import Cpu, Device, Gpu, HostBridge, Nic, Node, PciIds, Switch

BRIDGE_CLASS, HOST_BRIDGE_CLASS, DISPLAY_CLASS, NETWORK_CLASS = "0x0604", "0x0600", "0x03", "0x02"
NVIDIA = "0x10de"
P2P_OPEN = "P2P state, which only `nvidia-smi topo -p2p` shows"


@dataclass(frozen=True, kw_only=True)
class PciFunction:
    """One PCI function.

    Attributes:
        address: its bus id.
        parent: bus id of the bridge above, a host bridge such as "pci0000:40", or "" where neither is known.
        ids: its numbers.
        name: for people.
        numa: its NUMA node; None where not known.
        generation, width: what its link to the bridge above runs at; None where not known.
        most: what this end of that link can do.
        acs_redirect: for a bridge, whether it redirects what peers send each other; None where not known.
    """

    address: str
    parent: str
    ids: PciIds
    name: str = ""
    numa: int | None = None
    generation: int | None = None
    width: int | None = None
    most: Link = UNKNOWN_LINK
    acs_redirect: bool | None = None

    @property
    def is_host_bridge(self) -> bool:
        """Whether it stands for a root bus."""
        return self.ids.pci_class.startswith(HOST_BRIDGE_CLASS)

    @property
    def is_gpu(self) -> bool:
        """Whether it is NVIDIA's display or 3D controller; a board's own VGA is none."""
        return self.ids.pci_class.startswith(DISPLAY_CLASS) and self.ids.vendor == NVIDIA

    @property
    def is_nic(self) -> bool:
        """Whether it is a network card; its further ports are functions of one device, as NCCL counts them."""
        return self.ids.pci_class.startswith(NETWORK_CLASS) and self.address.endswith(".0")


def by_address(functions: Iterable[PciFunction], source: str) -> dict[str, PciFunction]:
    """The functions by their addresses.

    Raises:
        InputError: one stands twice, as in two listings that were put together.
    """
    found: dict[str, PciFunction] = {}
    for function in functions:
        if function.address in found:
            raise InputError(
                f"topology {source} names {function.address} twice",
                expected="the devices of one node, each once",
                todo="record it anew",
            )
        found[function.address] = function
    return found


def build_tree(
    functions: Mapping[str, PciFunction], *, cpu: Cpu, numa_nodes: Collection[int], source: str
) -> tuple[Node, ...]:
    """CPUs, host bridges, switches, GPUs and NICs; GPUs are numbered by bus id, as nvidia-smi numbers them.

    Bridges come in pairs, as ncclTopoGetXmlFromSys in NCCL's src/graph/xml.cc takes them: a root port, then a switch's
    upstream and downstream port, and so on down.

    Args:
        functions: all functions by address.
        cpu: what is known alike of all CPUs.
        numa_nodes: the node's NUMA nodes; where there is one, what tells none is on it. Empty: not known.
        source: for errors.

    Raises:
        InputError: the bridges make a ring, or there are too many devices.
    """
    ends = sorted(name for name, function in functions.items() if function.is_gpu or function.is_nic)
    gpu_names = [name for name in ends if functions[name].is_gpu]
    ranks = {name: number for number, name in enumerate(gpu_names)}
    made: dict[str, Node] = {}
    for end in ends:
        chain = _chain(functions, end, source)
        numa = next((f.numa for f in chain if f.numa is not None), None)
        if numa is None and len(numa_nodes) == 1:
            numa = next(iter(numa_nodes))
        above = _root(made, chain[-1].parent, cpu, numa)
        for level, function in enumerate(reversed(chain), start=1):
            if level % 2 == 0 or function is chain[0]:
                made.setdefault(function.address, _device(functions, function, above, ranks))
                above = function.address
        if len(made) > MAX_NODES:
            raise InputError(
                f"topology {source} has more than {MAX_NODES:,} devices", expected="one node's", todo="check the file"
            )
    return tuple(sorted(made.values(), key=_order))


def _order(node: Node) -> tuple[int, str]:
    """CPUs, then host bridges, then devices by bus id: as NCCL keeps siblings."""
    return (0 if isinstance(node, Cpu) else 1 if isinstance(node, HostBridge) else 2), node.id


def _chain(functions: Mapping[str, PciFunction], end: str, source: str) -> list[PciFunction]:
    """The function and the bridges above it, the root port last."""
    chain = [functions[end]]
    while chain[-1].parent in functions:
        chain.append(functions[chain[-1].parent])
        if len(chain) > 2 * MAX_DEPTH:
            raise InputError(
                f"topology {source} has a ring of bridges, or {len(chain)} of them, above {end}",
                expected="a PCI tree",
                todo="mend the file, or record it anew",
            )
    return chain


def _root(made: dict[str, Node], bridge: str, cpu: Cpu, numa: int | None) -> str:
    """The id that a root port hangs on: its host bridge, else its CPU; both are made where they are new."""
    if bridge in made:
        return bridge
    name = "cpu" if numa is None else f"cpu{numa}"
    shared = {key: value for key, value in vars(cpu).items() if key not in ("id", "numa", "several")}
    made.setdefault(name, Cpu(**shared, id=name, numa=numa, several=numa is None))
    if not bridge.startswith("pci"):
        return name
    made[bridge] = HostBridge(id=bridge, parent=name)
    return bridge


def _device(
    functions: Mapping[str, PciFunction], function: PciFunction, above: str, ranks: Mapping[str, int]
) -> Device:
    port = functions.get(function.parent)
    most = _both(function.most, port.most) if port else function.most
    device = Device(
        id=function.address,
        parent=above,
        ids=function.ids,
        link=link_of(function.address, generation=function.generation, width=function.width, most=most),
        port=port.address if port else "",
        acs_redirect=port.acs_redirect if port else None,
        name=function.name,
    )
    if function.is_gpu:
        return Gpu(**vars(device), index=ranks[function.address], rank=ranks[function.address])
    return Nic(**vars(device)) if function.is_nic else Switch(**vars(device))


def _both(end: Link, port: Link) -> Link:
    """What two ends can do together; where one tells nothing, the other's word."""
    return Link(
        generation=_least(end.generation, port.generation),
        width=_least(end.width, port.width),
    )


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def describe_unknown(nodes: Sequence[Node]) -> list[str]:
    """What a tree of PCI functions leaves open, a sentence each."""
    devices = [node for node in nodes if isinstance(node, Device)]
    gpus = [device for device in devices if isinstance(device, Gpu)]
    found = []
    if any(isinstance(node, Cpu) and node.several for node in nodes):
        found.append("which CPU some devices hang on: the source tells no NUMA node of them")
    if unbridged := [device.id for device in devices if device.parent.startswith("cpu")]:
        found.append(f"the host bridge and ports above {', '.join(unbridged[:4])}{', ...' if unbridged[4:] else ''}")
    if any(device.link.generation is None or device.link.width is None for device in devices):
        found.append("rate or width of some links")
    if slow := [str(gpu.index) for gpu in gpus if gpu.link.slowed]:
        found.append(f"the rate of the links of GPU {', '.join(slow)} under load: idle GPUs lower it, and it was low")
    if any(device.acs_redirect is None for device in devices):
        found.append("the ACS state of some ports; only root can read it")
    return found
