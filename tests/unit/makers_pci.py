"""PCI trees as plain files: configuration spaces of 4096 bytes that remember what is written, and nothing reacts."""

from __future__ import annotations

import struct
from pathlib import Path

from playbooks.module_utils.pci_config import ConfigSpace

PORT, GPU, NVME, ISA = 0x060400, 0x030200, 0x010802, 0x060100  # classes
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, INTEGRATED = 0, 4, 5, 6, 9  # PCI Express port types

EXPRESS_AT, AER_AT, ACS_AT = 0x60, 0x100, 0x148
DEVICE_CONTROL_AT, LINK_CONTROL_AT, ACS_CONTROL_AT = EXPRESS_AT + 8, EXPRESS_AT + 0x10, ACS_AT + 6
BIOS_ACS, BIOS_DEVICE_CONTROL, L1 = 0x001D, 0x2936, 0x0042  # request 512, payload 256; ASPM L1 and common clock

ROOT_A, UP, DOWN_A, DOWN_B = "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"
GPU_A, GPU_B, ROOT_B, DISK, OLD = "0000:03:00.0", "0000:04:00.0", "0000:10:01.0", "0000:11:00.0", "0000:00:1f.0"


def space(
    ids: tuple[int, int], kind: int, port: int | None = None, *, acs: int | None = None, aspm: int = L1
) -> bytearray:
    """A configuration space: (vendor, device), class, port type (None: no PCI Express), ACS control, link control."""
    data = bytearray(4096)
    struct.pack_into("<HH", data, 0, *ids)
    data[9:12] = kind.to_bytes(3, "little")
    data[0x0E] = kind >> 8 == 0x0604  # header type
    if port is None:
        return data
    data[6], data[0x34] = 0x10, 0x40
    struct.pack_into("<BB", data, 0x40, 0x01, EXPRESS_AT)  # power management, then PCI Express
    struct.pack_into("<BBH", data, EXPRESS_AT, 0x10, 0, port << 4 | 2)
    struct.pack_into("<H", data, DEVICE_CONTROL_AT, BIOS_DEVICE_CONTROL)
    link_capabilities = 5 | 16 << 4 | 3 << 10  # 32 GT/s, x16, L0s and L1
    struct.pack_into("<IHH", data, EXPRESS_AT + 0x0C, link_capabilities, aspm, 1 | 16 << 4)
    struct.pack_into("<I", data, AER_AT, 0x0001 | 1 << 16 | (ACS_AT << 20 if acs is not None else 0))
    if acs is not None:
        struct.pack_into("<IHH", data, ACS_AT, 0x000D | 1 << 16, 0x005F, acs)
    return data


def add(root: Path, below: str, data: bytes) -> Path:
    """Put a function at a path such as pci0000:00/0000:00:01.0 of sysfs; its folder."""
    folder = root / "sys/devices" / below
    folder.mkdir(parents=True)
    vendor, device = struct.unpack_from("<HH", data)
    texts = {"vendor": vendor, "device": device}
    for name, number in texts.items():
        (folder / name).write_text(f"{number:#06x}\n")
    (folder / "class").write_text(f"0x{int.from_bytes(data[9:12], 'little'):06x}\n")
    (folder / "config").write_bytes(data)
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / folder.name).symlink_to(Path("../../../devices") / below)
    return folder


def small_tree(root: Path) -> Path:
    """Two root ports; below one a switch with two GPUs, below the other a disk; an ISA bridge without PCI Express."""
    a, b = f"pci0000:00/{ROOT_A}", f"pci0000:10/{ROOT_B}"
    for below, data in {
        f"pci0000:00/{OLD}": space((0x8086, 0x2918), ISA),
        a: space((0x1022, 0x14AB), PORT, ROOT_PORT, acs=BIOS_ACS),
        f"{a}/{UP}": space((0x1000, 0xC030), PORT, UPSTREAM),
        f"{a}/{UP}/{DOWN_A}": space((0x1000, 0xC030), PORT, DOWNSTREAM, acs=BIOS_ACS),
        f"{a}/{UP}/{DOWN_B}": space((0x1000, 0xC030), PORT, DOWNSTREAM, acs=0x0011),
        f"{a}/{UP}/{DOWN_A}/{GPU_A}": space((0x10DE, 0x2BB1), GPU, ENDPOINT),
        f"{a}/{UP}/{DOWN_B}/{GPU_B}": space((0x10DE, 0x2BB1), GPU, ENDPOINT, acs=BIOS_ACS),
        b: space((0x1022, 0x14AB), PORT, ROOT_PORT, acs=BIOS_ACS),
        f"{b}/{DISK}": space((0x144D, 0xA80A), NVME, ENDPOINT),
    }.items():
        add(root, below, data)
    return root


def folder(root: Path, address: str) -> Path:
    """A function's folder."""
    return (root / "sys/bus/pci/devices" / address).resolve()


def word(root: Path, address: str, offset: int) -> int:
    """A 16-bit register."""
    return ConfigSpace((folder(root, address) / "config").read_bytes()).word(offset)


def put(root: Path, address: str, offset: int, value: int) -> None:
    """Set a 16-bit register."""
    with (folder(root, address) / "config").open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(2, "little"))


def spaces(root: Path) -> dict[str, bytes]:
    """Every configuration space by address."""
    return {path.name: (path / "config").read_bytes() for path in (root / "sys/bus/pci/devices").iterdir()}
