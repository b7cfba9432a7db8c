"""The facts that conditions may ask for, and where they come from."""

from __future__ import annotations

from typing import Any

from playbooks.settings.conditions import Fact
from playbooks.settings.known import Record, Unknown
from playbooks.settings.node_class import NodeClass, pci_tree
from playbooks.settings.wishes import Wishes

FACTS: dict[str, Fact] = {
    "path": Fact(words="path between GPUs"),
    "gpus": Fact(words="GPUs"),
    "switches": Fact(words="PCIe switches"),
    "root_complexes": Fact(words="root complexes"),
    "sockets": Fact(words="sockets"),
    "threads": Fact(words="CPU threads"),
    "numa_nodes": Fact(words="NUMA nodes"),
    "cpu_vendor": Fact(words="CPU vendor"),
    "iommu": Fact(words="IOMMU mode"),
    "acs_redirect": Fact(words="ACS redirect"),
    "virtualised": Fact(words="virtualised", yes="virtualised", no="bare metal"),
    "vfio": Fact(
        words="vfio-pci", yes="a device is bound to vfio-pci (given to VMs)", no="no device is bound to vfio-pci"
    ),
    "cpu_scaling": Fact(
        words="CPU frequency scaling", yes="the kernel scales CPU frequency", no="the kernel scales no CPU frequency"
    ),
    "driver": Fact(words="NVIDIA driver", yes="the NVIDIA driver is installed", no="no NVIDIA driver is installed"),
    "docker": Fact(words="Docker", yes="Docker is installed", no="Docker is not installed"),
    "nvidia_toolkit": Fact(
        words="NVIDIA container toolkit",
        yes="the NVIDIA container toolkit is installed",
        no="the NVIDIA container toolkit is not installed",
    ),
    "bus_options": Fact(words="pci= options"),
    "asked": Fact(words="enabled in the inventory"),
}
_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}


def collect(record: Record, node: NodeClass, wishes: Wishes) -> dict[str, Any]:
    """Every fact of `FACTS`; what is not known is an `Unknown`."""
    return {
        **_of_class(record, node),
        "numa_nodes": _mapped(record.listed("numa"), len),
        "cpu_vendor": _mapped(record.get("cpu.vendor"), lambda name: _VENDORS.get(str(name), "other")),
        "vfio": _vfio(record, wishes),
        "cpu_scaling": _mapped(record.get("cpu.governor"), lambda governor: governor is not None),
        "driver": record.get("driver.present"),
        "docker": record.get("container.docker.present"),
        "nvidia_toolkit": _mapped(record.get("container.nvidia_toolkit"), lambda version: version is not None),
        "bus_options": _mapped(record.get("host.kernel_command_line"), bus_options),
        "asked": list(wishes.enable),
    }


def _of_class(record: Record, node: NodeClass) -> dict[str, Any]:
    where = {"path": "pci", "switches": "pci", "root_complexes": "pci", "gpus": "pci", "acs_redirect": "pci",
             "iommu": "iommu.mode", "sockets": "cpu.sockets", "threads": "cpu.threads",
             "virtualised": "host.virtualised"}  # fmt: skip
    found: dict[str, Any] = {}
    for name, path in where.items():
        value = getattr(node, name)
        found[name] = _why_unknown(record, name, path) if value in (None, "unknown") else value
    return found


def _why_unknown(record: Record, name: str, path: str) -> Unknown:
    value = record.get(path)
    if isinstance(value, Unknown):
        return value
    ports = [reason for field, reason in record.reasons.items() if field.endswith(".acs_control")]
    if name == "acs_redirect" and ports:
        return Unknown(reason=f"{len(ports)} PCI functions: {ports[0]}")
    return Unknown(reason=f"cannot be told from {path} of the record")


def _mapped(value: Any, change: Any) -> Any:  # noqa: ANN401 - JSON values, or Unknown, which stays
    return value if isinstance(value, Unknown) else change(value)


def _vfio(record: Record, wishes: Wishes) -> bool | Unknown:
    tree = pci_tree(record, wishes.gpu_match)
    if isinstance(tree, Unknown):
        return tree
    return any(device.get("driver") == "vfio-pci" for device in tree.devices.values())


def bus_options(command_line: Any) -> list[str]:  # noqa: ANN401 - text as the record has it
    """The options of every `pci=` on a kernel command line; the kernel splits them at commas."""
    words = str(command_line or "").split()
    return [option for word in words if word.startswith("pci=") for option in word[4:].split(",") if option]
