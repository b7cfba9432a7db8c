"""The node record's PCI devices and IOMMU: sysfs, and each device's configuration space."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .node_record_tree import UNKNOWN, Files, form, integer, word
from .pci_config import SIZE, ConfigSpace

if TYPE_CHECKING:
    from .node_record_tree import Tree

ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
IOMMU_MODES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
BARS = 6
UNASSIGNED = 0x20000000  # IORESOURCE_UNSET in Linux's include/linux/ioport.h

_hex = form("(0x[0-9a-f]{4,6})")
_width = form("([0-9]|[12][0-9]|3[0-2])", int)  # x32 is the widest; 255 is the kernel's "unknown"
_speed = form(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s.*", float)
_total = form(r"(?s)(?:.*\n)?TOTAL_ERR_[A-Z]+ ([0-9]{1,20})", int)
_parent = form(f"(pci[0-9a-f]{{4,8}}:[0-9a-f]{{2}}|{ADDRESS.pattern})")  # a host bridge or a bridge


def _bars(text: str) -> list[int]:
    """Sizes of the base address registers in use; 0 for one that got no addresses."""
    rows = [[int(part, 16) for part in row.split()] for row in text.splitlines()[:BARS]]
    if len(rows) < BARS:
        raise ValueError(f"{len(rows)} of {BARS} base address registers")
    return [0 if flags & UNASSIGNED else last - first + 1 for first, last, flags in rows if last]


POWER_FILES: Files = {  # read before all else of a device: to look into its registers may wake it
    "power_control": ("power/control", word),
    "runtime_status": ("power/runtime_status", word),
}
FILES: Files = {"class": ("class", _hex), "vendor": ("vendor", _hex), "device": ("device", _hex)}
OPTIONAL_FILES: Files = {  # absent where the device is not PCIe, is no bridge, or the kernel knows no such thing
    "numa_node": ("numa_node", form("(-1|[0-9]{1,6})", lambda number: None if number == "-1" else int(number))),
    "current_link_speed_gts": ("current_link_speed", _speed),
    "current_link_width": ("current_link_width", _width),
    "max_link_speed_gts": ("max_link_speed", _speed),
    "max_link_width": ("max_link_width", _width),
    "secondary_bus": ("secondary_bus_number", integer),
    "subordinate_bus": ("subordinate_bus_number", integer),
    "bar_bytes": ("resource", _bars),
}
AER_FILES: Files = {
    "aer_correctable": ("aer_dev_correctable", _total),
    "aer_nonfatal": ("aer_dev_nonfatal", _total),
    "aer_fatal": ("aer_dev_fatal", _total),
}


def _part(register: Callable[[ConfigSpace], object], name: str) -> Callable[[ConfigSpace], Any]:
    """A reader of one part of a register; None where the device has no such register."""
    return lambda space: getattr(register(space), name, None)


REGISTERS: dict[str, Callable[[ConfigSpace], Any]] = {
    "port_type": ConfigSpace.port_type,
    "acs_capability": lambda space: (space.acs() or (None, None))[0],
    "acs_control": lambda space: (space.acs() or (None, None))[1],
    "max_payload_bytes": _part(ConfigSpace.device_control, "max_payload"),
    "max_read_request_bytes": _part(ConfigSpace.device_control, "max_read_request"),
    "relaxed_ordering": _part(ConfigSpace.device_control, "relaxed_ordering"),
    "extended_tag": _part(ConfigSpace.device_control, "extended_tag"),
    "no_snoop": _part(ConfigSpace.device_control, "no_snoop"),
    "aspm_supported": _part(ConfigSpace.link, "aspm_supported"),
    "aspm_control": _part(ConfigSpace.link, "aspm_control"),
}


def aer_ports(tree: Tree) -> int:
    """At how many ports the kernel handles errors: their services are called such as 0000:40:01.1:pcie002."""
    return sum(":pcie" in name for name in tree.names("sys/bus/pci_express/drivers/aer"))


def pci(tree: Tree, counting_ports: int | str | None) -> list[dict[str, Any]]:
    """The record's `pci`: every device, in the order of addresses.

    Args:
        tree: the root.
        counting_ports: `aer_ports`; None where this kernel knows no AER.
    """
    names = filter(ADDRESS.fullmatch, tree.names("sys/bus/pci/devices"))
    return [_device(tree, name, counts=bool(counting_ports)) for name in names]


def _device(tree: Tree, address: str, *, counts: bool) -> dict[str, Any]:
    field, here = f"pci[{address}]", f"sys/bus/pci/devices/{address}"
    there = os.path.isdir(tree.root / here)  # noqa: PTH112 - never raises; of a device that is gone, nothing is known
    power = tree.table(field, here, POWER_FILES, optional=there)
    # Where the firmware kept the errors to itself, the kernel shows counts that stay 0 whatever happens.
    aer = tree.table(field, here, AER_FILES, optional=there) if counts or not there else dict.fromkeys(AER_FILES)
    return {
        "address": address,
        "parent": tree.ask(f"{field}.parent", lambda: _parent(tree.link(here).parent.name)),
        **tree.table(field, here, FILES),
        "driver": tree.ask(f"{field}.driver", lambda: tree.link(f"{here}/driver").name, optional=there),
        **tree.table(field, here, OPTIONAL_FILES, optional=there),
        **aer,
        **power,
        **_registers(tree, field, f"{here}/config"),
    }


def _registers(tree: Tree, field: str, name: str) -> dict[str, Any]:
    """What the configuration space tells; of its bytes, the kernel shows others than root only the first 64."""
    try:
        space = ConfigSpace(tree.data(name, SIZE))
    except (OSError, ValueError):  # asked again for each field, so that each has its reason
        return {key: tree.ask(f"{field}.{key}", tree.data, name, SIZE) for key in REGISTERS}
    return {key: tree.ask(f"{field}.{key}", read, space) for key, read in REGISTERS.items()}


def iommu(tree: Tree) -> dict[str, Any]:
    """The record's `iommu`."""
    types = tree.ask("iommu.group_types", _group_types, tree)
    if types == UNKNOWN:
        return {"mode": tree.note("iommu.mode", "follows from group_types"), "group_types": UNKNOWN}
    modes = {IOMMU_MODES.get(kind, "mixed") for kind in types}
    return {"mode": "mixed" if len(modes) > 1 else next(iter(modes), "off"), "group_types": types}


def _group_types(tree: Tree) -> dict[str, int]:
    """How many IOMMU groups have each type; none where the IOMMU is off (the kernel's log does not tell)."""
    if not tree.names("sys/class/iommu"):
        return {}
    groups = tree.names("sys/kernel/iommu_groups")
    if not groups:
        raise ValueError("/sys/kernel/iommu_groups is empty, although /sys/class/iommu names an IOMMU")
    types = Counter(word(tree.text(f"sys/kernel/iommu_groups/{group}/type")) for group in groups)
    return dict(sorted(types.items()))
