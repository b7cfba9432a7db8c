"""The simulated server: two sockets, four switches, eight GPUs, and what must not be taken for a GPU.

python -m tests.vm.server FILE [--acs HEX] [--stuck ADDRESS]     writes the file that pcisim reads
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.vm.config_space import BRIDGE_CLASS, Address, Function, Link, Port, image

BIOS_ACS = 0x001D
"""ACS control as firmware, or Linux with an IOMMU, leaves it: validation, both redirects, upstream forwarding."""
_ROOTS = ((0x40, 0), (0x50, 0), (0xA0, 1), (0xB0, 1))
"""Number of each root bus, and its NUMA node."""
_BUSES = 0x10
"""Of each root."""
_INTEL, _BROADCOM, _NVIDIA, _MELLANOX, _SAMSUNG = 0x8086, 0x1000, 0x10DE, 0x15B3, 0x144D
_GPU_CLASS, _NETWORK_CLASS, _DISK_CLASS, _OTHER_BRIDGE_CLASS = 0x030200, 0x020700, 0x010802, 0x068000
_LINK = Link(aspm=2)
"""Generation 5, 16 lanes; firmware turned L1 on."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Root buses (number, last bus below it, NUMA node) and all functions, each after the bridge above it."""

    roots: tuple[tuple[int, int, int], ...]
    functions: tuple[Function, ...]

    def image(self) -> bytes:
        """What pcisim reads."""
        return image(self.roots, self.functions)


def make_server(*, acs: int = BIOS_ACS, stuck: str = "") -> Server:
    """The server.

    Args:
        acs: ACS control of every root port and downstream port at reset.
        stuck: address of a function whose MaxReadReq cannot be changed.

    Raises:
        ValueError: there is no such function.
    """
    functions = [one for number, (bus, _) in enumerate(_ROOTS) for one in _root(number, bus, acs, stuck)]
    if stuck and stuck not in {str(one.address) for one in functions}:
        raise ValueError(f"no function {stuck}")
    roots = tuple((bus, bus + _BUSES - 1, node) for bus, node in _ROOTS)
    return Server(roots=roots, functions=tuple(functions))


def _root(number: int, bus: int, acs: int, stuck: str) -> list[Function]:
    """A root port, a switch, and below its four ports two GPUs, a network card, and a disk or, once, an NVSwitch."""
    up, inner, last = bus + 1, bus + 2, bus + 6
    port = _bridge(bus, 1, (_INTEL, 0x352A), (bus, up, last)).express(Port.ROOT, _LINK, slot=number + 1)
    switch = _bridge(up, 0, (_BROADCOM, 0xC030), (up, inner, last)).express(Port.UPSTREAM, _LINK, payload=2)
    functions = [port.error_reporting().access_control(acs), switch.error_reporting()]
    for at in range(4):
        below = inner + 1 + at
        down = _bridge(inner, at, (_BROADCOM, 0xC030), (inner, below, below))
        down.express(Port.DOWNSTREAM, _LINK, slot=16 + 4 * number + at, payload=2)
        address = Address(bus=below)
        device = _card(address, at, first=number == 0, stuck=stuck)
        functions += [down.error_reporting().access_control(acs), device]
    return functions


def _bridge(bus: int, slot: int, ids: tuple[int, int], buses: tuple[int, int, int]) -> Function:
    function = Function(Address(bus=bus, slot=slot), ids, BRIDGE_CLASS, subsystem=(ids[0], 0x2004), buses=buses)
    return function.power_management()


def _card(address: Address, at: int, *, first: bool, stuck: str) -> Function:
    """What is below a switch's port: GPU, GPU, network card, disk; on the first root an NVSwitch for the disk."""
    gpu, network = (_NVIDIA, 0x2330, _GPU_CLASS), (_MELLANOX, 0x1021, _NETWORK_CLASS)
    disk, nvswitch = (_SAMSUNG, 0xA80C, _DISK_CLASS), (_NVIDIA, 0x22A3, _OTHER_BRIDGE_CLASS)
    vendor, device, kind = (gpu, gpu, network, nvswitch if first else disk)[at]
    function = Function(address, (vendor, device), kind, subsystem=(vendor, 0x1796)).power_management()
    function.express(Port.ENDPOINT, _LINK, stuck=str(address) == stuck).error_reporting()
    return function.access_control(0) if kind == _NETWORK_CLASS else function
