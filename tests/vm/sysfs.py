"""The simulated server as plain files, for /sys/bus/pci of a container: every bit can be written, nothing reacts."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.vm.config_space import Function
from tests.vm.server import Server


def write_tree(folder: Path, server: Server) -> None:
    """Write FOLDER/bus/pci/devices, and FOLDER/devices that its links point to; what was there goes.

    The links are absolute, so that they hold wherever FOLDER itself has the same path.
    """
    shutil.rmtree(folder, ignore_errors=True)
    links = folder / "bus/pci/devices"
    links.mkdir(parents=True)
    paths = {first: folder / f"devices/pci0000:{first:02x}" for first, _last, _node in server.roots}
    nodes = {bus: node for first, last, node in server.roots for bus in range(first, last + 1)}
    for function in server.functions:  # each after the bridge above it
        path = paths[function.address.bus] / str(function.address)
        (path / "power").mkdir(parents=True)
        (path / "config").write_bytes(function.space)
        for name, text in _files(function, nodes[function.address.bus]).items():
            (path / name).write_text(f"{text}\n")
        (links / path.name).symlink_to(path.absolute())
        if function.buses:
            paths[function.buses[1]] = path


def _files(function: Function, node: int) -> dict[str, str]:
    link = {"speed": f"{function.link.speed} GT/s PCIe", "width": str(function.link.width)}
    names = ("secondary_bus_number", "subordinate_bus_number")
    buses = dict(zip(names, function.buses[1:], strict=True)) if function.buses else {}
    return {
        "vendor": f"{function.ids[0]:#06x}",
        "device": f"{function.ids[1]:#06x}",
        "class": f"{function.kind:#08x}",
        "numa_node": str(node),
        "power/control": "auto",
        "power/runtime_status": "active",
        **{f"{when}_link_{name}": text for name, text in link.items() for when in ("current", "max")},
        **{name: str(bus) for name, bus in buses.items()},
    }
