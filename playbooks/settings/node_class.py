"""A node's class: how its GPUs reach one another, and what else decides settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from playbooks.settings.known import Record, Unknown
from playbooks.settings.wishes import Wishes

ACS_REDIRECT = 0x2C
"""P2P Request Redirect, Completion Redirect and Egress Control of the ACS Control register (PCI_ACS_RR, PCI_ACS_CR and
PCI_ACS_EC in Linux's include/uapi/linux/pci_regs.h): the bits that send what one GPU writes to another up to the root
complex instead. Source Validation (bit 0) and the rest leave peers alone."""
_PORTS = ("root_port", "upstream", "downstream")
Device = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The PCI functions of a record.

    Attributes:
        devices: by address.
        gpus: addresses of the functions that `gpu_match` picks, in their order.
    """

    devices: Mapping[str, Device]
    gpus: tuple[str, ...]

    def bridges(self, address: str) -> tuple[str, ...]:
        """The bridges above a function, nearest first."""
        found: list[str] = []
        above = str(self.devices[address].get("parent"))
        while above in self.devices and above not in found:
            found.append(above)
            above = str(self.devices[above].get("parent"))
        return tuple(found)

    def root(self, address: str) -> str | None:
        """The host bridge above a function, e.g. "pci0000:40"; None where the way up ends somewhere else."""
        top = (address, *self.bridges(address))[-1]
        parent = self.devices[top].get("parent")
        return parent if isinstance(parent, str) and parent.startswith("pci") else None

    def switch(self, address: str) -> str | None:
        """The upstream port of the switch nearest the root above a GPU, or None: attached to a root port or bus.

        A virtual switch of a larger chip has an upstream port of its own and counts as one. Where the kind of the
        bridges cannot be read, which needs root, it is the bridge below the root port that has another one below it.
        """
        chain = self.bridges(address)
        upstream = [one for one in chain if self.devices[one].get("port_type") == "upstream"]
        below_root = chain[-2] if len(chain) > 2 else None
        return upstream[-1] if upstream else below_root

    def path(self) -> tuple[str, ...]:
        """Every GPU and every bridge above one, each once."""
        return tuple(dict.fromkeys(one for gpu in self.gpus for one in (gpu, *self.bridges(gpu))))


def pci_tree(record: Record, gpu_match: Sequence[str]) -> Tree | Unknown:
    """The PCI functions of a record, and which of them are GPUs."""
    listed = record.listed("pci")
    if isinstance(listed, Unknown):
        return listed
    devices = {str(item["address"]): item for item in listed if "address" in item}
    return Tree(devices=devices, gpus=tuple(one for one in devices if _matches(devices[one], gpu_match)))


def _matches(device: Device, gpu_match: Sequence[str]) -> bool:
    vendor, kind = (str(device.get(key, "")).removeprefix("0x") for key in ("vendor", "class"))
    return f"{vendor}:{kind[:4]}" in gpu_match


@dataclass(frozen=True, kw_only=True)
class NodeClass:
    """What follows from a record and decides which settings apply.

    Attributes:
        path: how GPUs are attached: "switch" (all behind switches), "host_bridge" (none), "mixed", "single" (one GPU),
            "none", "unknown".
        switches: switches above GPUs, counted by the upstream port nearest the root; None: unknown.
        root_complexes: host bridges above GPUs; None: unknown.
        sockets, threads: of the online CPUs; None: unknown.
        gpus: how many; None: unknown.
        iommu: as the record says: off, passthrough, translated, mixed, unknown.
        acs_redirect: "on": a port redirects; "off": every port that could does not; "absent": no port could; "unknown".
        virtualised: as read or as the inventory says; None: unknown.
        overridden: what the inventory says otherwise than was read.
    """

    path: str
    switches: int | None
    root_complexes: int | None
    sockets: int | None
    gpus: int | None
    iommu: str
    acs_redirect: str
    virtualised: bool | None
    threads: int | None
    overridden: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan's `node_class`: what is not known is "unknown"."""
        found = {key: "unknown" if value is None else value for key, value in asdict(self).items()}
        return {**found, "overridden": list(self.overridden)}


def classify(record: Record, wishes: Wishes) -> NodeClass:
    """The class of a node."""
    tree = pci_tree(record, wishes.gpu_match)
    read = record.get("host.virtualised")
    read = read if isinstance(read, bool) else None
    wanted = wishes.virtualised
    mode = record.get("iommu.mode")
    return NodeClass(
        path="unknown" if isinstance(tree, Unknown) else _path_class(tree),
        switches=None if isinstance(tree, Unknown) else _switches(tree),
        root_complexes=None if isinstance(tree, Unknown) else _root_complexes(tree),
        sockets=_count(record, "cpu.sockets"),
        gpus=None if isinstance(tree, Unknown) else len(tree.gpus),
        iommu=mode if isinstance(mode, str) else "unknown",
        acs_redirect="unknown" if isinstance(tree, Unknown) else acs_redirect(tree),
        virtualised=read if wanted is None else wanted,
        threads=_count(record, "cpu.threads"),
        overridden=() if wanted is None or wanted is read else ("virtualised",),
    )


def _count(record: Record, path: str) -> int | None:
    value = record.get(path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _path_class(tree: Tree) -> str:
    if not tree.gpus:
        return "none"
    if any(tree.root(gpu) is None for gpu in tree.gpus):
        return "unknown"
    if len(tree.gpus) == 1:
        return "single"
    behind = {tree.switch(gpu) is not None for gpu in tree.gpus}
    return "mixed" if len(behind) > 1 else "switch" if behind == {True} else "host_bridge"


def _switches(tree: Tree) -> int | None:
    if any(tree.root(gpu) is None for gpu in tree.gpus):
        return None
    return len({tree.switch(gpu) for gpu in tree.gpus} - {None})


def _root_complexes(tree: Tree) -> int | None:
    roots = {tree.root(gpu) for gpu in tree.gpus}
    return None if None in roots else len(roots)


def redirecting_ports(tree: Tree) -> tuple[str, ...]:
    """Ports with a redirect bit set."""
    return tuple(
        address
        for address, device in tree.devices.items()
        if isinstance(control := device.get("acs_control"), int) and control & ACS_REDIRECT and _is_port(device)
    )


def acs_redirect(tree: Tree) -> str:
    """The state of ACS redirect over every root and switch port; one that cannot be read makes it unknown."""
    controls = [device.get("acs_control", "unknown") for device in tree.devices.values() if _is_port(device)]
    if "unknown" in controls:
        return "unknown"
    if not any(isinstance(control, int) for control in controls):
        return "absent"
    return "on" if redirecting_ports(tree) else "off"


def _is_port(device: Device) -> bool:
    """A root or switch port; a bridge of which that cannot be told counts as one."""
    kind = device.get("port_type", "unknown")
    return kind in _PORTS or (kind == "unknown" and str(device.get("class", "")).startswith("0x0604"))
