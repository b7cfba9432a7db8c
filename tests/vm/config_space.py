"""Configuration spaces of PCI functions, and which of their bits software can write, as bytes.

Registers and their layout: PCI Express Base Specification 5.0, section 7; the same names are in Linux's
include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

SIZE = 4096
"""Bytes of a PCI Express configuration space."""
BRIDGE_CLASS = 0x060400

_COMMAND, _STATUS, _HEADER_TYPE, _CAPABILITIES, _INTERRUPT_LINE = 0x04, 0x06, 0x0E, 0x34, 0x3C
_BUS_NUMBERS, _IO_WINDOW, _MEMORY_WINDOW, _PREFETCHABLE_WINDOW, _BRIDGE_CONTROL = 0x18, 0x1C, 0x20, 0x24, 0x3E
_SUBSYSTEM = 0x2C
_POWER_MANAGEMENT, _SUBSYSTEM_OF_BRIDGE, _EXPRESS = 0x01, 0x0D, 0x10
_AER, _ACS = 0x0001, 0x000D


class Port(IntEnum):
    """Port type in the PCI Express capability."""

    ENDPOINT = 0
    ROOT = 4
    UPSTREAM = 5
    DOWNSTREAM = 6


@dataclass(frozen=True, order=True, kw_only=True)
class Address:
    """Where a function is; domain 0000."""

    bus: int
    slot: int = 0

    def __str__(self) -> str:
        return f"0000:{self.bus:02x}:{self.slot:02x}.0"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A function's end of a PCI Express link.

    Attributes:
        generation: 5.
        width: lanes.
        aspm: bits 1:0 of link control at reset: 0 off, 1 L0s, 2 L1. Both are supported.
    """

    generation: int = 5
    width: int = 16
    aspm: int = 0

    @property
    def speed(self) -> str:
        """GT/s."""
        return f"{2.0**self.generation:.1f}"  # so from generation 4 on


class Function:
    """One function: its bytes after a reset, and the mask of the bits that can be written.

    Args:
        address: where it is.
        ids: vendor and device.
        kind: class, subclass and programming interface: 24 bits.
        subsystem: vendor and device.
        buses: of a bridge: primary, secondary and subordinate bus.
    """

    def __init__(
        self,
        address: Address,
        ids: tuple[int, int],
        kind: int,
        *,
        subsystem: tuple[int, int],
        buses: tuple[int, int, int] | None = None,
    ) -> None:
        self.address, self.ids, self.kind, self.subsystem, self.buses = address, ids, kind, subsystem, buses
        self.space, self.writable = bytearray(SIZE), bytearray(SIZE)
        self.link = Link()
        self._last_pointer, self._free = _CAPABILITIES, 0x40
        self._last_extended, self._free_extended = 0, 0x100
        self._put(0, "HH", *ids)
        self._put(8, "I", kind << 8)
        self._allow(_COMMAND, "H", 0x0547)
        self._allow(_INTERRUPT_LINE, "B", 0xFF)
        if buses:
            self._be_a_bridge(buses)
        else:
            self._put(_SUBSYSTEM, "HH", *subsystem)

    def _be_a_bridge(self, buses: tuple[int, int, int]) -> None:
        self.space[_HEADER_TYPE] = 1
        self._put(_BUS_NUMBERS, "BBB", *buses)
        self._allow(_BUS_NUMBERS, "BBB", 0xFF, 0xFF, 0xFF)
        self._put(_IO_WINDOW, "BB", 0xF1, 0x01)  # limit below base: closed
        self._put(_MEMORY_WINDOW, "HH", 0xFFF0, 0)
        self._allow(_MEMORY_WINDOW, "HH", 0xFFF0, 0xFFF0)
        self._put(_PREFETCHABLE_WINDOW, "HH", 0xFFF1, 1)
        self._allow(_PREFETCHABLE_WINDOW, "HHII", 0xFFF0, 0xFFF0, 0xFFFFFFFF, 0xFFFFFFFF)
        self._allow(_BRIDGE_CONTROL, "H", 0x0FFF)
        self._put(self._capability(_SUBSYSTEM_OF_BRIDGE, 8) + 4, "HH", *self.subsystem)

    def power_management(self) -> Function:
        """Add the capability; D0 to D3hot."""
        at = self._capability(_POWER_MANAGEMENT, 8)
        self._put(at + 2, "HH", 3, 0x0008)
        self._allow(at + 4, "H", 0x0103)
        return self

    def express(self, port: Port, link: Link, *, slot: int = 0, payload: int = 1, stuck: bool = False) -> Function:
        """Add the PCI Express capability.

        Args:
            port: its type.
            link: its end of the link.
            slot: number of the slot below a port; 0: none.
            payload: largest payload that it supports, as log2(bytes / 128).
            stuck: MaxReadReq cannot be changed.
        """
        self.link = link
        leads_down = port in (Port.ROOT, Port.DOWNSTREAM)
        endpoint = port is Port.ENDPOINT
        at = self._capability(_EXPRESS, 0x3C)
        reached = link.generation | link.width << 4
        self._put(at + 0x02, "H", 2 | port << 4 | bool(slot) << 8)
        self._put(at + 0x04, "I", payload | 0x8020 | (0x10000FC0 if endpoint else 0))
        self._put(at + 0x08, "H", 0x2810)  # device control: MaxReadReq 512, relaxed ordering, no snoop
        self._allow(at + 0x08, "H", 0x0FFF if stuck else 0x7FFF)
        self._put(at + 0x0C, "I", reached | 3 << 10 | 4 << 12 | 4 << 15 | leads_down << 20 | 1 << 22 | slot << 24)
        self._put(at + 0x10, "H", 0x0040 | link.aspm)  # link control: common clock
        self._allow(at + 0x10, "H", 0x03CB)
        self._put(at + 0x12, "H", reached | 0x1000 | leads_down << 13)
        self._put(at + 0x14, "I", slot << 19)
        self._put(at + 0x1A, "H", 0x40 if slot else 0)  # slot status: a card is there
        self._put(at + 0x24, "I", 0x00070813 if endpoint else 0x00000820)
        self._allow(at + 0x28, "H", 0x07FF)
        self._put(at + 0x2C, "I", (1 << link.generation + 1) - 2)  # all speeds up to it
        self._put(at + 0x30, "H", link.generation)
        self._allow(at + 0x30, "H", 0x0FFF)
        return self

    def error_reporting(self) -> Function:
        """Add advanced error reporting (AER)."""
        at = self._extended(_AER, 2, 0x48)
        self._put(at + 0x0C, "I", 0x00462030)
        self._allow(at + 0x08, "II", 0x07FFF030, 0x07FFF030)
        self._allow(at + 0x14, "I", 0xF1C1)
        return self

    def access_control(self, control: int) -> Function:
        """Add access control services (ACS) with that control word at reset."""
        at = self._extended(_ACS, 1, 8)
        capability = 0x005F  # all but egress control
        self._put(at + 4, "HH", capability, control)
        self._allow(at + 6, "H", capability)
        return self

    def _capability(self, number: int, size: int) -> int:
        at = self._free
        self._free += (size + 3) & ~3
        self.space[self._last_pointer], self.space[at] = at, number
        self._last_pointer = at + 1
        self.space[_STATUS] |= 0x10
        return at

    def _extended(self, number: int, version: int, size: int) -> int:
        at = self._free_extended
        self._free_extended += (size + 3) & ~3
        self._put(at, "I", number | version << 16)
        if self._last_extended:
            (header,) = struct.unpack_from("<I", self.space, self._last_extended)
            self._put(self._last_extended, "I", header | at << 20)
        self._last_extended = at
        return at

    def _put(self, at: int, layout: str, *values: int) -> None:
        struct.pack_into(f"<{layout}", self.space, at, *values)

    def _allow(self, at: int, layout: str, *masks: int) -> None:
        struct.pack_into(f"<{layout}", self.writable, at, *masks)


def image(roots: Sequence[tuple[int, int, int]], functions: Sequence[Function]) -> bytes:
    """The firmware file that pcisim reads.

    Args:
        roots: of each root bus: its number, the last bus below it, its NUMA node.
        functions: all functions.
    """
    parts = [b"PCISIM1\0", struct.pack("<II", len(roots), len(functions))]
    parts += [struct.pack("<HBBi", 0, *root) for root in roots]
    for function in functions:
        parts.append(struct.pack("<HBBI", 0, function.address.bus, function.address.slot << 3, 0))
        parts += [bytes(function.space), bytes(function.writable)]
    return b"".join(parts)
