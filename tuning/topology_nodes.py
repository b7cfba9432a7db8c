"""What a node's PCI tree is made of: CPUs, host bridges, switches, GPUs, NICs, and links beside PCIe.

A switch is one node, named after its upstream port, as NCCL names it; the port that a device is plugged into is a field
of the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuning.topology_links import UNKNOWN_LINK, Link

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)
"""domain:bus:device.function. The last digit goes to f: providers' files name virtual devices so."""

Extra = tuple[tuple[str, str], ...]
"""What a file says beyond the model, in its order, so that writing it again loses nothing."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A place in the tree.

    Attributes:
        id: unique in the topology: a PCI bus id, or such as "cpu0" and "pci0000:40".
        parent: id of the node above; "" for a CPU.
    """

    id: str
    parent: str = ""


@dataclass(frozen=True, kw_only=True)
class Cpu(Node):
    """A NUMA node with its PCI buses: NCCL and nvidia-smi both count these, not sockets.

    Attributes:
        numa: its number; None where it is not known.
        several: it stands for an unknown number of CPUs: which of them a device hangs on is not known.
        arch, vendor: as NCCL has them: "x86_64", "AuthenticAMD"; "" where not known.
        family, model: CPUID numbers as /proc/cpuinfo has them, or the file's own; see `topology_xml`.
        affinity: mask of its CPUs as NCCL writes it.
    """

    numa: int | None = None
    several: bool = False
    arch: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None
    affinity: str = ""
    extra: Extra = ()


@dataclass(frozen=True, kw_only=True)
class HostBridge(Node):
    """A root bus of a CPU, e.g. "pci0000:40"; sources that do not show them leave them out."""


@dataclass(frozen=True, kw_only=True)
class PciIds:
    """PCI numbers as the kernel writes them ("0x060400", "0x10de"); "" where not known."""

    pci_class: str = ""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""


@dataclass(frozen=True, kw_only=True)
class Device(Node):
    """A PCI device, and what leads up from it.

    Attributes:
        ids: its PCI numbers.
        link: the link to the port above.
        port: bus id of that port (a root port, or a switch's downstream port); "" where not known.
        acs_redirect: whether that port's ACS sends what peers send each other up to the CPU (ReqRedir or CmpltRedir in
            ACSCtl); None where not known.
        name: for people.
    """

    ids: PciIds = PciIds()
    link: Link = UNKNOWN_LINK
    port: str = ""
    acs_redirect: bool | None = None
    name: str = ""
    extra: Extra = ()

    @property
    def degraded(self) -> bool:
        """Whether its link runs below what both ends can do. An idle GPU's lower rate is no fault, fewer lanes are."""
        return self.link.narrowed or (self.link.slowed and not isinstance(self, Gpu))


@dataclass(frozen=True, kw_only=True)
class Switch(Device):
    """A PCIe switch, or one of the virtual switches that a chip is partitioned into.

    Attributes:
        chip: name of the chip that it is a part of; virtual switches of one chip share it. "" where not known.
        peers: bus ids of switches that its fabric reaches directly (NCCL's `pcilink`, read from Broadcom's driver).
    """

    chip: str = ""
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FabricLink:
    """A GPU's link beside PCIe.

    Attributes:
        kind: "nvlink", "xgmi" or "c2c".
        target: bus id at the other end; "" for c2c, whose other end is the CPU.
        count: bonded links.
        target_class: PCI class at the other end: 0x03.... a GPU, 0x068000 an NVSwitch.
    """

    kind: str
    target: str
    count: int
    target_class: str = ""
    extra: Extra = ()


@dataclass(frozen=True, kw_only=True)
class Gpu(Device):
    """A GPU.

    Attributes:
        index: nvidia-smi's number of it.
        rank: NCCL's rank on it.
        sm: compute capability as NCCL has it, 120 for 12.0; None where not known.
        gdr: whether NICs can write into it, as NCCL has it.
        fabric: its links beside PCIe.
    """

    index: int
    rank: int
    sm: int | None = None
    gdr: int = 0
    fabric: tuple[FabricLink, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Nic(Device):
    """A network card; `nets` holds NCCL's elements of its ports: tag and attributes."""

    nets: tuple[tuple[str, Extra], ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherDevice(Device):
    """A device of another class (an NVSwitch), or whose class the file does not tell: it may be a GPU."""


def bus_id(text: str) -> str | None:
    """A bus id in the kernel's form ("0000:3b:00.0") from any usual one ("3B:00.0", "00000000:3B:00.0"), or None."""
    low = text.strip().lower()
    if low.count(":") == 1:
        low = f"0000:{low}"
    if not BUS_ID.fullmatch(low):
        return None
    domain, rest = low.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"
