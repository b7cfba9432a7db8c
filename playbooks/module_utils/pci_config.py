"""PCI configuration space: what a function's registers say, and the bits of them that Lanewise sets.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules and at boot. Register names,
offsets and codes: PCI Express Base Specification, chapter 7, as in Linux's include/uapi/linux/pci_regs.h
(https://github.com/torvalds/linux/blob/master/include/uapi/linux/pci_regs.h).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PCI_EXPRESS = 0x10  # capability
ACS = 0x000D  # extended capability
ACS_REDIRECT = 0x2C  # P2P request redirect, P2P completion redirect, egress control: what keeps peers apart
SIZE = 4096
ALL_ONES = 0xFFFF  # what a 16-bit read gives that no device answers

PORT_TYPES = {
    0: "endpoint",
    1: "legacy_endpoint",
    4: "root_port",
    5: "upstream",
    6: "downstream",
    7: "bridge",
    8: "bridge",
    9: "root_complex_endpoint",
    10: "root_complex_event_collector",
}
LARGEST_SIZE = 5  # code of 4096 bytes; 6 and 7 are reserved
LINKLESS = ("root_complex_endpoint", "root_complex_event_collector")
ASPM_STATES = ("disabled", "l0s", "l1", "l0s l1")
REGISTERS = {"acs_control": ACS_REDIRECT, "max_read_request": 0x7000, "aspm": 0x0003}
"""The registers that can be set, and which of their bits: no other bit is ever changed."""


class ConfigError(ValueError):
    """A configuration space does not tell: too short, all ones (the device is gone), or against the specification."""


@dataclass(frozen=True)
class DeviceControl:
    """The device control register; sizes in bytes."""

    max_payload: int
    max_read_request: int
    relaxed_ordering: bool
    extended_tag: bool
    no_snoop: bool


@dataclass(frozen=True)
class Link:
    """The link registers.

    Speeds are codes (1 is 2.5 GT/s, 5 is 32 GT/s), 0 where the register holds none; widths are lanes, 0 without a
    link. `aspm_supported` and `aspm_control` are one of ASPM_STATES; "disabled" as supported means that there is none.
    """

    max_speed: int
    max_width: int
    current_speed: int
    current_width: int
    aspm_supported: str
    aspm_control: str


class ConfigSpace:
    """The bytes of one function's configuration space, as `config` in sysfs gives them: 64 without root, up to 4096.

    Of every question, None means that the function certainly lacks the thing. Where the bytes do not tell, it raises
    ConfigError (a ValueError): a space that was cut off is never taken for one without capabilities.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data[:SIZE]

    @property
    def truncated(self) -> bool:
        """Whether not even the first 256 bytes were readable: without root, the kernel gives 64."""
        return len(self.data) < 256

    @property
    def gone(self) -> bool:
        """Whether the device no longer answers: a read that nobody answers is all ones, and no vendor is 0xffff."""
        return self.data[:4] == b"\xff\xff\xff\xff"

    def word(self, offset: int) -> int:
        """The 16-bit register at `offset`."""
        return self._unpack("<H", offset)

    def capability(self, number: int) -> int | None:
        """The offset of a capability of the first 256 bytes."""
        if not self.word(0x06) & 0x10:  # status: has a list of capabilities
            return None
        pointer, seen = self._unpack("<B", 0x14 if self._header() == 2 else 0x34) & 0xFC, set()
        while pointer:
            if pointer < 0x40 or pointer in seen:
                raise ConfigError(f"damaged list of capabilities: it leads to {pointer:#04x}")
            seen.add(pointer)
            found, following = self._unpack("<B", pointer), self._unpack("<B", pointer + 1)
            if found == number:
                return pointer
            pointer = following & 0xFC
        return None

    def extended(self, number: int) -> int | None:
        """The offset of an extended capability, which only PCI Express functions have, from byte 256 on."""
        if self.capability(PCI_EXPRESS) is None:
            return None
        pointer, seen = 0x100, set()
        while pointer:
            if pointer < 0x100 or pointer in seen:
                raise ConfigError(f"damaged list of extended capabilities: it leads to {pointer:#05x}")
            seen.add(pointer)
            header = self._unpack("<I", pointer)
            if header == 0xFFFFFFFF:
                raise ConfigError(f"the extended capability at {pointer:#05x} reads as all ones")
            if header & 0xFFFF == number:
                return pointer
            pointer = header >> 20 & 0xFFC
        return None

    def port_type(self) -> str | None:
        """One of PORT_TYPES; None without a PCI Express capability."""
        express = self.capability(PCI_EXPRESS)
        if express is None:
            return None
        code = self.word(express + 2) >> 4 & 0xF
        if code not in PORT_TYPES:
            raise ConfigError(f"port type {code} is reserved")
        return PORT_TYPES[code]

    def acs(self) -> tuple[int, int] | None:
        """The ACS capability and control registers."""
        acs = self.extended(ACS)
        return None if acs is None else (self.register(acs + 4), self.register(acs + 6))

    def device_control(self) -> DeviceControl | None:
        """The device control register; None without a PCI Express capability."""
        express = self.capability(PCI_EXPRESS)
        if express is None:
            return None
        control = self.register(express + 8)
        return DeviceControl(
            max_payload=_size(control >> 5),
            max_read_request=_size(control >> 12),
            relaxed_ordering=bool(control & 0x10),
            extended_tag=bool(control & 0x100),
            no_snoop=bool(control & 0x800),
        )

    def link(self) -> Link | None:
        """The link registers; None where there is no link: no PCI Express capability, or inside the root complex."""
        express = self.capability(PCI_EXPRESS)
        if express is None or self.port_type() in LINKLESS:
            return None
        capabilities, status = self._unpack("<I", express + 0x0C), self.register(express + 0x12)
        return Link(
            max_speed=capabilities & 0xF,
            max_width=capabilities >> 4 & 0x3F,
            current_speed=status & 0xF,
            current_width=status >> 4 & 0x3F,
            aspm_supported=ASPM_STATES[capabilities >> 10 & 3],
            aspm_control=ASPM_STATES[self.register(express + 0x10) & 3],
        )

    def register(self, offset: int) -> int:
        """The 16-bit register at `offset`, which has reserved bits and so cannot be all ones on a living device."""
        value = self.word(offset)
        if value == ALL_ONES:
            raise ConfigError(f"the register at {offset:#05x} reads as all ones: the device does not answer")
        return value

    def locate(self, register: str) -> int | None:
        """The offset of one of REGISTERS; None where the function has none."""
        if register == "acs_control":
            acs = self.extended(ACS)
            return None if acs is None else acs + 6
        express = self.capability(PCI_EXPRESS)
        if express is None or (register == "aspm" and self.port_type() in LINKLESS):
            return None
        return express + (8 if register == "max_read_request" else 0x10)

    def _header(self) -> int:
        if self.gone:
            raise ConfigError("the device does not answer: all ones")
        return self._unpack("<B", 0x0E) & 0x7F

    def _unpack(self, form: str, offset: int) -> int:
        end = offset + struct.calcsize(form)
        if end > len(self.data):
            raise ConfigError(f"only {len(self.data)} bytes of the configuration space could be read, {end} are needed")
        return int(struct.unpack_from(form, self.data, offset)[0])


def _size(code: int) -> int:
    """Bytes of a size code."""
    if code & 7 > LARGEST_SIZE:
        raise ConfigError(f"size code {code & 7} is reserved")
    return 128 << (code & 7)


def shown(register: str, word: int) -> str:
    """What one of REGISTERS says, for people: the size in bytes, the states of ASPM, else the word."""
    if register == "max_read_request" and word >> 12 & 7 <= LARGEST_SIZE:
        return str(_size(word >> 12))
    return ASPM_STATES[word & 3] if register == "aspm" else f"{word:#06x}"
