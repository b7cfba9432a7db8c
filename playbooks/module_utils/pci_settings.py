"""PCI settings of a node: what they mean for each function, and writing them so that one knows that they took.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules and at boot.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from .pci_config import ALL_ONES, REGISTERS, SIZE, ConfigError, ConfigSpace

READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)  # bytes
PORTS = ("root_port", "upstream", "downstream")
BRIDGE = "0604"  # class of PCI bridges, which ports are

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
VENDOR_CLASS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")


@dataclass(frozen=True)
class Settings:
    """What shall hold on a node; by default nothing is wished for.

    Args:
        clear_redirect: ACS redirect and egress control off at each root port and switch port that has ACS.
        max_read_request: bytes, one of READ_REQUESTS, of the matched functions; 0 leaves it.
        disable_aspm: ASPM off at both ends of each link from the matched functions up to their root ports.
        match: `vendor:class` in hexadecimal (class without its last byte), such as "10de:0302".
        exclude: addresses of functions that are left alone.

    Raises:
        ValueError: a value has not this form.
    """

    clear_redirect: bool = False
    max_read_request: int = 0
    disable_aspm: bool = False
    match: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_read_request not in (0, *READ_REQUESTS):
            raise ValueError(f"MaxReadReq is {self.max_read_request}; expected one of 0 (leave it), {READ_REQUESTS}")
        for text, form, what in (
            *((text, VENDOR_CLASS, "a vendor:class such as 10de:0302") for text in self.match),
            *((text, ADDRESS, "an address such as 0000:01:00.0") for text in self.exclude),
        ):
            if not form.fullmatch(text):
                raise ValueError(f"{text!r} is not {what} (lower case hexadecimal)")
        if (self.max_read_request or self.disable_aspm) and not self.match:
            raise ValueError("MaxReadReq or ASPM is to be set, and nothing says of which functions (match)")


class Device:
    """One function in sysfs. Reads and writes go to `config` as 16-bit accesses; nothing is kept between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = folder.name

    def identity(self) -> str:
        """`vendor:device` as the kernel read it when it found the function, also of one that is gone since."""
        return f"{self._id('vendor')}:{self._id('device')}"

    def kind(self) -> str:
        """`vendor:class`, as in Settings.match."""
        return f"{self._id('vendor')}:{self._id('class')[:4]}"

    def space(self) -> ConfigSpace:
        """The configuration space as it is now."""
        with (self.folder / "config").open("rb") as file:
            return ConfigSpace(file.read(SIZE))

    def read(self, offset: int) -> int:
        """The 16-bit register at `offset` as it is now."""
        return self._access(offset, os.O_RDONLY, None)

    def write(self, offset: int, word: int) -> None:
        """Write the 16-bit register at `offset`."""
        self._access(offset, os.O_WRONLY, word)

    def _access(self, offset: int, flags: int, word: int | None) -> int:
        handle = os.open(self.folder / "config", flags)
        try:
            if word is not None:
                return os.pwrite(handle, struct.pack("<H", word), offset)
            return int.from_bytes(os.pread(handle, 2, offset), "little")
        finally:
            os.close(handle)

    def _id(self, name: str) -> str:
        return (self.folder / name).read_text().strip()[2:]  # 0x10de, 0x030200


@dataclass(frozen=True)
class Wish:
    """The bits that one of REGISTERS of one function shall have."""

    device: Device
    register: str
    bits: int

    @property
    def name(self) -> str:
        """`ADDRESS REGISTER`."""
        return f"{self.device.address} {self.register}"

    @property
    def mask(self) -> int:
        """The bits that this is about."""
        return REGISTERS[self.register]


@dataclass(frozen=True)
class Reading:
    """A register that a wish is about, as it was found."""

    wish: Wish
    offset: int
    word: int

    @property
    def holds(self) -> bool:
        """Whether the wish was fulfilled already."""
        return self.word & self.wish.mask == self.wish.bits

    @property
    def wanted(self) -> int:
        """The whole register with the bits that are wished for."""
        return self.word & ~self.wish.mask | self.wish.bits


@dataclass(frozen=True)
class Fault:
    """A register that does not have the bits that it shall have, and why."""

    address: str
    register: str
    why: str

    @property
    def name(self) -> str:
        """`ADDRESS REGISTER`."""
        return f"{self.address} {self.register}"

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def devices(root: Path) -> list[Device]:
    """The functions that the kernel below `root` knows, by address.

    Raises:
        ConfigError: there are none to list, or one lies outside `root`: below another root than /, this machine's
            own devices must not be reached.
    """
    top = Path(os.path.realpath(root))
    try:
        found = sorted((top / "sys/bus/pci/devices").iterdir())
    except OSError as error:
        raise ConfigError(f"cannot list the PCI devices of {top / 'sys/bus/pci/devices'}: {error.strerror}") from error
    folders = [Path(os.path.realpath(path)) for path in found if ADDRESS.fullmatch(path.name)]
    for folder in folders:
        if not folder.is_relative_to(top):
            raise ConfigError(f"{folder} lies outside {top}")
    return [Device(folder) for folder in folders]


def wishes(found: list[Device], settings: Settings) -> list[Wish]:
    """What the settings mean for each function, in the order of writing.

    ASPM goes last, from the lower end of each link to the upper: L1 must be off below before it is off above (PCI
    Express Base Specification, link control register).
    """
    free = {device.address: device for device in found if device.address not in settings.exclude}
    kinds = {address: device.kind() for address, device in free.items()}
    ports = [device for address, device in free.items() if kinds[address].endswith(f":{BRIDGE}")]
    matched = [device for address, device in free.items() if kinds[address] in settings.match]
    above = {name for device in matched for name in device.folder.parts if name in free}
    result = [Wish(device, "acs_control", 0) for device in ports if settings.clear_redirect]
    if settings.max_read_request:
        code = READ_REQUESTS.index(settings.max_read_request)
        result += [Wish(device, "max_read_request", code << 12) for device in matched]
    if settings.disable_aspm:
        lowest_first = sorted(above, key=lambda address: (-len(free[address].folder.parts), address))
        result += [Wish(free[address], "aspm", 0) for address in lowest_first]
    return result


def survey(wanted: list[Wish]) -> tuple[list[Reading], list[Fault]]:
    """The registers that the wishes are about, as they are; functions without such a register are passed over."""
    readings, faults = [], []
    for wish in wanted:
        try:
            reading = _reading(wish)
        except (ConfigError, OSError) as error:
            why = f"cannot be read, so nothing is assumed: {error}"
            faults.append(Fault(wish.device.address, wish.register, why))
            continue
        readings += [reading] if reading else []
    return readings, faults


def apply(readings: list[Reading]) -> list[Fault]:
    """Write what does not hold, and read it back; all of it is tried, whatever goes wrong on the way."""
    faults = []
    for reading in readings:
        if not reading.holds:
            why = _write(reading)
            faults += [Fault(reading.wish.device.address, reading.wish.register, why)] if why else []
    return faults


def _reading(wish: Wish) -> Reading | None:
    space = wish.device.space()
    offset = space.locate(wish.register)
    if offset is None or (wish.register == "acs_control" and space.port_type() not in PORTS):
        return None
    return Reading(wish, offset, space.register(offset))


def _write(reading: Reading) -> str:
    """Write one register; why it does not have the wanted bits afterwards, or ""."""
    wish, device, offset = reading.wish, reading.wish.device, reading.offset
    try:
        fresh = Reading(wish, offset, device.read(offset))  # the other bits may have changed since the survey
        if fresh.word == ALL_ONES:
            return "the device does not answer any more (all ones), so nothing was written"
        device.write(offset, fresh.wanted)
        now = device.read(offset)
    except OSError as error:
        # https://github.com/torvalds/linux/blob/master/drivers/pci/pci-sysfs.c: pci_write_config, LOCKDOWN_PCI_ACCESS
        lockdown = "; a kernel in lockdown, as with secure boot, forbids it" if error.errno == errno.EPERM else ""
        return f"cannot be written: {error}{lockdown}"
    if now != ALL_ONES and now & wish.mask == wish.bits:
        return ""
    return f"did not stick: wanted {fresh.wanted:#06x}, reads {now:#06x}"
