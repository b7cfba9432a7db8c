"""Puts assumptions where a topology tells nothing, so that NCCL's search can run on it; what is assumed is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuning.topology import Topology
from tuning.topology_nodes import Cpu, Device, Gpu, Node

CPU_MODELS = {"AuthenticAMD": (26, 2), "GenuineIntel": (6, 207)}
"""CPUID family and model that stand for a vendor's CPU whose model is not known: EPYC Turin, Xeon Emerald Rapids."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What stands for what is not known; the values here are those of the boxes that this toolkit is for.

    Attributes:
        sm: of GPUs, as NCCL has it.
        generation, width: of PCIe links.
        vendor: of CPUs; their model is that of `CPU_MODELS`.
    """

    sm: int = 120
    generation: int = 5
    width: int = 16
    vendor: str = "AuthenticAMD"


def completed(topology: Topology, assumptions: Assumptions) -> Topology:
    """The topology with nothing missing that NCCL's search needs; `unknown` names each assumption.

    A matrix of `nvidia-smi topo -m` alone tells no link, no CPU model and no compute capability.
    """
    free = iter(sorted(set(range(len(topology.cpus))) - {cpu.numa for cpu in topology.cpus}))
    nodes = tuple(_with_assumed(node, assumptions, free) for node in topology.nodes)
    said = dict.fromkeys(
        f"assumed where not known: {text}"
        for old, new in zip(topology.nodes, nodes, strict=True)
        for text in _assumed(old, new)
    )
    return replace(topology, nodes=nodes, unknown=(*topology.unknown, *said))


def _with_assumed(node: Node, assumptions: Assumptions, free: Iterator[int]) -> Node:
    if isinstance(node, Cpu):
        return _cpu(node, assumptions, free)
    if not isinstance(node, Device):
        return node
    link = replace(
        node.link,
        generation=node.link.generation or assumptions.generation,
        width=node.link.width or assumptions.width,
    )
    if isinstance(node, Gpu):
        return replace(node, link=link, sm=assumptions.sm if node.sm is None else node.sm)
    return replace(node, link=link)


def _cpu(cpu: Cpu, assumptions: Assumptions, free: Iterator[int]) -> Cpu:
    numa = next(free) if cpu.numa is None else cpu.numa
    numbered = replace(cpu, numa=numa, several=False, arch=cpu.arch or "x86_64")
    if numbered.arch != "x86_64":
        return numbered
    vendor = cpu.vendor or assumptions.vendor
    family, model = CPU_MODELS.get(vendor, (cpu.family, cpu.model))
    stated = cpu.family is not None and cpu.model is not None
    return numbered if stated and cpu.vendor else replace(numbered, vendor=vendor, family=family, model=model)


def _assumed(old: Node, new: Node) -> Iterator[str]:
    if isinstance(old, Cpu) and old.several:
        yield "devices whose CPU is not known are on one"
    if isinstance(old, Cpu) and isinstance(new, Cpu) and (old.vendor, old.family) != (new.vendor, new.family):
        yield f"CPUs are {new.vendor} of family {new.family}, model {new.model}"
    if isinstance(old, Device) and isinstance(new, Device) and old.link != new.link:
        yield f"links are {new.link}"
    if isinstance(old, Gpu) and isinstance(new, Gpu) and old.sm != new.sm:
        yield f"GPUs are sm_{new.sm}"
