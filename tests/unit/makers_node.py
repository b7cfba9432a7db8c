"""Trees of a made-up node, as files; written here after what Linux shows, fakes all."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils.node_record_tree import UNKNOWN

NVRM_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.44.01  Release Build  (builder@host)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
NVRM_PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86.10  Wed Jul 26 23:20:03 UTC 2023\n"


NOTHING = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
BARS = "\n".join([
    "0x0000600000000000 0x0000600003ffffff 0x000000000014220c", NOTHING,
    "0x0000400000000000 0x0000401fffffffff 0x000000000014220c", NOTHING,
    "0x0000600004000000 0x0000600005ffffff 0x000000000014220c", NOTHING, NOTHING,
])  # fmt: skip
"""Base address registers of a GPU: registers, 128 GiB of memory, 32 MiB."""


def write(root: Path, files: dict[str, str]) -> None:
    """Files of text below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def config_space(kind: int | None = None, *, acs: int | None = None, control: int = 0x2950, aspm: int = 0) -> bytes:
    """The configuration space of a PCI function, with as many registers as the record reads.

    Args:
        kind: code of the port type; None for a function that is not PCI Express.
        acs: what the ACS control register holds; None without that capability.
        control: the device control register.
        aspm: the ASPM bits of the link control register.
    """
    space = bytearray(4096)
    space[0:4] = b"\xde\x10\xb5\x2b"
    if kind is not None:
        space[0x06], space[0x34] = 0x10, 0x60
        struct.pack_into("<BBHIH", space, 0x60, 0x10, 0, kind << 4 | 2, 0, control)
        struct.pack_into("<IHH", space, 0x6C, 3 << 10 | 16 << 4 | 5, aspm, 16 << 4 | 5)
    if acs is not None:
        struct.pack_into("<IHH", space, 0x100, 1 << 16 | 0x0D, 0x5F, acs)
    return bytes(space)


def add_device(root: Path, below: str, address: str, ids: str, config: bytes = config_space(), **files: str) -> str:
    """A PCI device below a sysfs path; `ids` is class:vendor:device. Returns the device's own sysfs path."""
    where = f"{below}/{address}"
    class_, vendor, device = (f"0x{part}\n" for part in ids.split(":"))
    known = {"class": class_, "vendor": vendor, "device": device, "numa_node": "-1\n"}
    write(root, {f"sys/devices/{where}/{name}": text for name, text in known.items()})
    write(root, {f"sys/devices/{where}/{name}": f"{text}\n" for name, text in files.items()})
    (root / "sys/devices" / where / "config").write_bytes(config)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(f"../../../devices/{where}")
    return where


def link(current: str = "32.0 GT/s PCIe", width: str = "16") -> dict[str, str]:
    return {
        "current_link_speed": current,
        "current_link_width": width,
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }


def buses(secondary: int, subordinate: int) -> dict[str, str]:
    return {"secondary_bus_number": str(secondary), "subordinate_bus_number": str(subordinate)}


def add_switch(root: Path, bus: int, numa: int) -> None:
    """A root port, a switch below it and four GPUs (with their audio functions) below that, from bus `bus` on."""
    rest = {"numa_node": str(numa), **link()}
    port = add_device(
        root,
        f"pci0000:{bus:02x}",
        f"0000:{bus:02x}:01.1",
        "060400:1022:153e",
        config_space(4, acs=0x1D),
        **buses(bus + 1, bus + 6),
        **rest,
    )
    up = add_device(
        root, port, f"0000:{bus + 1:02x}:00.0", "060400:11f8:4128", config_space(5), **buses(bus + 2, bus + 6), **rest
    )
    for slot in range(4):
        own = bus + 3 + slot
        down = add_device(
            root,
            up,
            f"0000:{bus + 2:02x}:{slot:02x}.0",
            "060400:11f8:4128",
            config_space(6, acs=0x11),
            **buses(own, own),
            **rest,
        )
        add_device(root, down, f"0000:{own:02x}:00.0", "030200:10de:2bb5", config_space(0), resource=BARS, **rest)
        add_device(root, down, f"0000:{own:02x}:00.1", "040300:10de:22e8", config_space(0), **rest)
    gpu = root / f"sys/bus/pci/devices/0000:{bus + 3:02x}:00.0"
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    (gpu / "driver").symlink_to("../../../../../../../bus/pci/drivers/nvidia")


def cpu_files() -> dict[str, str]:
    """Two sockets of two cores of two threads; CPU 3 is offline and has no topology, as the kernel shows it."""
    files = {
        "sys/devices/system/cpu/online": "0-2,4-7\n",
        "sys/devices/system/cpu/present": "0-7\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
    }
    for cpu in (0, 1, 2, 4, 5, 6, 7):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{topology}/physical_package_id"] = f"{cpu % 4 // 2}\n"
        files[f"{topology}/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}\n" if cpu != 7 else "7\n"
    return files


def node_files() -> dict[str, str]:
    block = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9575F\n"
    files = {
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "6.17.0-20-generic\n",
        "proc/sys/kernel/arch": "x86_64\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro amd_iommu=off iommu=off\n",
        "proc/meminfo": "MemTotal:       1000 kB\nMemFree:         10 kB\n",
        "proc/cpuinfo": f"{block}flags\t\t: fpu sse2 x2apic avx512f\n\n" * 100,
        "proc/1/cgroup": "0::/init.scope\n",
        "proc/driver/nvidia/version": NVRM_OPEN,
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
        "sys/class/dmi/id/sys_vendor": "ASUSTeK COMPUTER INC.\n",
        "sys/class/dmi/id/product_name": "ESC8000A-E13P\n",
        "sys/module/nvidia/version": "590.44.01\n",
    }
    for number in (0, 1):
        here = f"sys/devices/system/node/node{number}"
        files[f"{here}/cpulist"] = f"{number * 2}-{number * 2 + 1}\n"
        files[f"{here}/meminfo"] = f"Node {number} MemTotal:       500 kB\nNode {number} MemFree:  1 kB\n"
        files[f"{here}/distance"] = "10 32\n" if number == 0 else "32 10\n"
    return {**files, **cpu_files()}


def fake_node(root: Path) -> Path:
    """A bare-metal node of two sockets without GPUs: a NIC, an NVMe drive, the board's own VGA, a bridge of a VMD."""
    write(root, node_files())
    (root / "sys/class/iommu").mkdir(parents=True)
    add_device(root, "pci0000:00", "0000:00:01.0", "020000:15b3:a2dc", **link("16.0 GT/s PCIe", "8"))
    add_device(root, "pci0000:00", "0000:00:02.0", "010802:144d:a80c", **link("Unknown", "255"))
    add_device(root, "pci0000:00", "0000:00:03.0", "030000:1a03:2000")
    add_device(root, "pci0000:00/0000:00:04.0/pci10000:e0", "10000:e0:01.0", "060400:8086:352a")
    return root


def fake_rig(root: Path) -> Path:
    """The node with eight GPUs: four behind a switch on each socket."""
    fake_node(root)
    add_switch(root, 0x40, numa=0)
    add_switch(root, 0xC0, numa=1)
    return root


# looking into a record


def device(record: dict[str, Any], address: str) -> dict[str, Any]:
    """One PCI device of a record."""
    return next(device for device in record["pci"] if device["address"] == address)


def reason(record: dict[str, Any], field: str) -> str:
    """Why a field is unknown."""
    return next(entry["reason"] for entry in record["unread"] if entry["field"] == field)


def unknowns(value: Any, field: str = "") -> set[str]:
    """The fields that are "unknown", named as `unread` names them."""
    if value == UNKNOWN:
        return {field}
    if isinstance(value, dict):
        return {name for key, inner in value.items() for name in unknowns(inner, f"{field}.{key}".lstrip("."))}
    if isinstance(value, list):
        names = [
            f"{field}[{inner.get('address', inner.get('id', inner.get('path')))}]" if isinstance(inner, dict) else field
            for inner in value
        ]
        return {name for inner_name, inner in zip(names, value, strict=True) for name in unknowns(inner, inner_name)}
    return set()


# commands


# this machine, with a fake nvidia-smi


def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an nvidia-smi that runs this shell script first on PATH."""
    fake_program(tmp_path, monkeypatch, "nvidia-smi", script)


def fake_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a program that runs this shell script first on PATH."""
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


def answer(*gpus: dict[str, str]) -> str:
    """A script that prints, for each GPU, those of the columns asked for that it has."""
    lines = [",".join(f"{key}={value}" for key, value in gpu.items()) for gpu in gpus]
    code = (
        "import sys\n"
        "columns = sys.argv[1].removeprefix('--query-gpu=').split(',')\n"
        "assert sys.argv[2:] == ['--format=csv,noheader,nounits'], sys.argv\n"
        f"for line in {lines!r}:\n"
        "    gpu = dict(cell.split('=') for cell in line.split(','))\n"
        "    print(', '.join(gpu[column] for column in columns if column in gpu))\n"
    )
    return f"exec {sys.executable} - \"$@\" <<'END'\n{code}END"


GPU = {
    "index": "3",
    "pci.bus_id": "00010000:E1:00.0",
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "memory.total": "97887",
    "compute_cap": "12.0",
    "driver_version": "595.58.03",
    "pstate": "P8",
    "persistence_mode": "Enabled",
    "power.limit": "450.00",
    "power.default_limit": "600.00",
    "power.max_limit": "600.00",
    "clocks.current.sm": "180",
    "clocks.current.memory": "405",
    "clocks.max.sm": "2430",
    "clocks.max.memory": "12481",
    "clocks_event_reasons.active": "0x0000000000000005",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "[N/A]",
    "compute_mode": "Default",
    "temperature.gpu": "31",
    "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "5",
}
