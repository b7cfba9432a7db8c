"""Writes NCCL's topology XML, for NCCL_TOPO_FILE or for NCCL's own search; `topology_xml_read` reads it.

The form is that of NCCL 2.26 to 2.32 (src/graph/xml.cc, topo.cc). In `familyid` older releases write AMD's CPUs by a
formula of their own (191 for CPUID family 26), newer ones the CPUID family, and these understand both (ncclTopoAddCpu):
the number is written as the topology has it.
"""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from tuning.topology import Topology
from tuning.topology_links import GENERATIONS
from tuning.topology_nodes import Cpu, Device, Extra, FabricLink, Gpu, HostBridge, Nic, Node, Switch, bus_id
from tuning.topology_xml_read import GPU_PREFIX, PCI_KEYS


def to_nccl_xml(topology: Topology) -> str:
    """The topology as NCCL reads it, e.g. for NCCL_TOPO_FILE.

    What is not known is left out, a GPU's <gpu> element too where its compute capability is not known: NCCL fills it in
    on the node. Its search alone needs it; `topology_complete` puts assumptions there. Links are written as both ends
    can do, as NCCL up to 2.30.4 reads them from the kernel. What has no bus id gets one in the domain ffff,
    as function 0: NCCL from 2.30 refuses a GPU that is another function.
    """
    writer = _Writer(topology)
    lines = [line for cpu in topology.cpus for line in writer.lines(cpu, 1)]
    return "\n".join(['<system version="1">', *lines, "</system>"]) + "\n"


class _Writer:
    """Writes nodes of one topology.

    Args:
        topology: whose.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._bus_ids = {
            node.id: bus_id(node.id) or f"ffff:{number >> 5:02x}:{number & 31:02x}.0"
            for number, node in enumerate(topology.nodes)
        }

    def lines(self, node: Node, level: int) -> list[str]:
        """The lines of a node and all below it; host bridges, which NCCL does not show, pass on what is below them."""
        if isinstance(node, HostBridge):
            return self._below(node, level)
        if isinstance(node, Cpu):
            return _element("cpu", _cpu_attributes(node), self._below(node, level + 1), level)
        if isinstance(node, Nic):
            return self._nic(node, level)
        inner = self._below(node, level + 1)
        if isinstance(node, Gpu) and node.sm is not None:
            inner = self._gpu(node, level + 1)
        if isinstance(node, Switch):
            inner += [line for peer in node.peers for line in _element("pcilink", (("target", peer),), [], level + 1)]
        return self._pci(node, inner, level)

    def _below(self, node: Node, level: int) -> list[str]:
        return [line for below in self._topology.children(node) for line in self.lines(below, level)]

    def _nic(self, nic: Nic, level: int) -> list[str]:
        """A network card; one that is no PCI device stands in its CPU, as NCCL has virtual ones."""
        virtual = bool(nic.nets) and bus_id(nic.id) is None
        at = level if virtual else level + 1
        nets = [line for tag, attributes in nic.nets for line in _element(tag, attributes, [], at + 1)]
        card = _element("nic", (), nets, at) if nets else []
        return card if virtual else self._pci(nic, card, level)

    def _pci(self, node: Node, inner: list[str], level: int) -> list[str]:
        assert isinstance(node, Device)
        full = node.link.full
        stated = (
            ("busid", self._bus_ids[node.id]),
            *((key, str(getattr(node.ids, name))) for key, name in PCI_KEYS.items()),
            ("link_speed", f"{GENERATIONS[full.generation]:.1f} GT/s PCIe" if full.generation else ""),
            ("link_width", str(full.width or "")),
        )
        beside = ((key, value) for key, value in node.extra if not key.startswith(GPU_PREFIX))
        return _element("pci", (*((key, value) for key, value in stated if value), *beside), inner, level)

    def _gpu(self, gpu: Gpu, level: int) -> list[str]:
        stated = (("dev", str(gpu.index)), ("sm", str(gpu.sm)), ("rank", str(gpu.rank)), ("gdr", str(gpu.gdr)))
        beside = ((key.removeprefix(GPU_PREFIX), value) for key, value in gpu.extra if key.startswith(GPU_PREFIX))
        links = [line for link in gpu.fabric for line in self._fabric(link, level + 1)]
        return _element("gpu", (*stated, *beside), links, level)

    def _fabric(self, link: FabricLink, level: int) -> list[str]:
        target = self._bus_ids.get(link.target, link.target)
        stated = (("target", target), ("count", str(link.count)), ("tclass", link.target_class))
        return _element(link.kind, (*((key, value) for key, value in stated if value), *link.extra), [], level)


def _cpu_attributes(cpu: Cpu) -> Extra:
    stated = (
        ("numaid", str(-1 if cpu.numa is None else cpu.numa)),
        ("affinity", cpu.affinity),
        ("arch", cpu.arch),
        ("vendor", cpu.vendor),
        ("familyid", "" if cpu.family is None else str(cpu.family)),
        ("modelid", "" if cpu.model is None else str(cpu.model)),
    )
    return (*((key, value) for key, value in stated if value), *cpu.extra)


def _element(tag: str, attributes: Extra, inner: list[str], level: int) -> list[str]:
    """The lines of one element. NCCL's parser takes double quotes only."""
    stated = "".join(f" {key}={quoteattr(value, {chr(34): '&quot;'})}" for key, value in attributes)
    head = f"{'  ' * level}<{tag}{stated}"
    return [f"{head}>", *inner, f"{'  ' * level}</{tag}>"] if inner else [f"{head}/>"]
