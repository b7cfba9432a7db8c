"""Texts of topologies for tests, in every form that is read: written here after the tools' own output, fakes all."""

from __future__ import annotations

import json
from typing import Any

ESCAPE_ON, ESCAPE_OFF = "\x1b[4m", "\x1b[0m"
GPU_LINK = {"link_speed": "32.0 GT/s PCIe", "link_width": "16"}


def xml_gpu(bus_id: str, number: int, inner: str = "", **changes: str) -> str:
    link = {**GPU_LINK, **changes}
    stated = " ".join(f'{key}="{value}"' for key, value in link.items())
    return (
        f'<pci busid="{bus_id}" class="0x030200" vendor="0x10de" device="0x2bb5" {stated}>'
        f'<gpu dev="{number}" sm="120" rank="{number}" gdr="0">{inner}</gpu></pci>'
    )


def xml_switch(bus_id: str, *inner: str) -> str:
    return (
        f'<pci busid="{bus_id}" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" '
        f'subsystem_device="0x100b" link_speed="32.0 GT/s PCIe" link_width="16">{"".join(inner)}</pci>'
    )


def xml_cpu(numa: int, *inner: str) -> str:
    return (
        f'<cpu numaid="{numa}" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="26" modelid="2">'
        f"{''.join(inner)}</cpu>"
    )


def xml(*cpus: str) -> str:
    return f'<system version="1">{"".join(cpus)}</system>'


def fake_xml() -> str:
    """Two CPUs; a switch with two GPUs and a card on one, a GPU of its own and a virtual card on the other."""
    card = '<net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="64" gdr="1" rail="-1" plane="-1"/>'
    nic = (
        f'<pci busid="0000:05:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="8"><nic>{card}</nic></pci>'
    )
    switch = xml_switch(
        "0000:01:00.0",
        xml_gpu("0000:03:00.0", 0),
        xml_gpu("0000:04:00.0", 1),
        nic,
        '<pcilink target="0000:81:00.0"/>',
    )
    virtual = '<nic><net name="eth0" dev="1" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/></nic>'
    return xml(xml_cpu(0, switch), xml_cpu(1, xml_gpu("0000:81:00.0", 2), virtual))


def matrix(cells: list[list[str]], numa: list[int] | None = None, *, ansi: bool = False, tabs: bool = True) -> str:
    """`nvidia-smi topo -m` of GPUs with these cells off the diagonal's X."""
    labels = [f"GPU{number}" for number in range(len(cells))]
    gap = "\t" if tabs else "    "
    tail = [] if numa is None else ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    head = gap + gap.join([*labels, *tail])
    rows = []
    for number, row in enumerate(cells):
        stated = [] if numa is None else [f"{numa[number] * 8}-{numa[number] * 8 + 7}", str(numa[number]), "", "N/A"]
        rows.append(gap.join([labels[number], *(f" {cell} " if cell == "X" else cell for cell in row), *stated]))
    return "\n".join(
        [f"{ESCAPE_ON}{head}{ESCAPE_OFF}" if ansi else head, *rows, "", "Legend:", "", "  X    = Self", ""]
    )


def block_cells(sizes: list[int], near: str, far: str) -> list[list[str]]:
    """Cells of GPUs in groups: `near` within one, `far` between two."""
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    return [["X" if i == j else near if a == b else far for j, b in enumerate(group)] for i, a in enumerate(group)]


def lspci_function(
    address: str, kind: str, *details: str, name: str = "NVIDIA Corporation Device 2bb5 (rev a1)"
) -> str:
    return "\n".join([f"{address} {kind}: {name}", *(f"\t{line}" for line in details)]) + "\n"


def lspci_bridge(address: str, secondary: str, *details: str, numa: int | None = 0, redirect: str = "-") -> str:
    told = [] if numa is None else [f"NUMA node: {numa}"]
    buses = f"Bus: primary={address[-7:-5]}, secondary={secondary}, subordinate=ff, sec-latency=0"
    acs = (
        f"\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{redirect} CmpltRedir{redirect} UpstreamFwd+ EgressCtrl- DirectTrans-"
    )
    links = details or lspci_link()
    return lspci_function(address, "PCI bridge", *told, buses, *links, acs, name="Broadcom / LSI PEX890xx (rev b0)")


def lspci_link(speed: str = "32GT/s", width: int = 16, most_width: int = 16) -> tuple[str, str]:
    return (
        f"\tLnkCap:\tPort #0, Speed 32GT/s, Width x{most_width}, ASPM L1, Exit Latency L1 <64us",
        f"\tLnkSta:\tSpeed {speed}, Width x{width}",
    )


def fake_lspci(*, numa: bool = True, redirect: str = "-", gpu_links: tuple[tuple[str, str], ...] = ()) -> str:
    """Two root buses, on two NUMA nodes; a switch with two GPUs on each."""
    blocks = []
    links = iter(gpu_links)
    for node, bus in enumerate((0x00, 0x80)):
        told = node if numa else None
        root, up, down = f"{bus:02x}", f"{bus + 1:02x}", f"{bus + 2:02x}"
        host = "Advanced Micro Devices, Inc. [AMD] Device 153a"
        blocks.append(lspci_function(f"{root}:00.0", "Host bridge", name=host))
        blocks.append(lspci_bridge(f"{root}:01.1", up, numa=told))
        blocks.append(lspci_bridge(f"{up}:00.0", down, numa=told))
        for slot in range(2):
            below = f"{bus + 3 + slot:02x}"
            blocks.append(lspci_bridge(f"{down}:{slot:02x}.0", below, numa=told, redirect=redirect))
            told_gpu = [] if told is None else [f"NUMA node: {told}"]
            link = next(links, lspci_link())
            blocks.append(lspci_function(f"{below}:00.0", "3D controller", *told_gpu, *link))
    return "\n".join(blocks)


FAKE_LSPCI_TREE = r"""-+-[0000:40]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           +-01.1-[41-46]----00.0-[42-46]--+-00.0-[43]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |           |                               +-01.0-[44]--+-00.0  NVIDIA Corporation Device 2bb5
 |           |                               |            \-00.1  NVIDIA Corporation Device 22e8 Audio
 |           |                               \-02.0-[45]----00.0  NVIDIA Corporation Device 2bb5
 |           \-07.1-[47]----00.0  Samsung Electronics Co Ltd NVMe SSD Controller PM174X
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
             \-01.1-[01]----00.0  NVIDIA Corporation Device 2bb5
"""


def record_device(address: str, parent: str, pci_class: str, **changes: Any) -> dict[str, Any]:
    return {
        "address": address, "parent": parent, "class": pci_class, "vendor": "0x10de", "device": "0x2bb5",
        "driver": None, "numa_node": 0, "current_link_speed_gts": 32.0, "max_link_speed_gts": 32.0,
        "current_link_width": 16, "max_link_width": 16, "secondary_bus": None, "subordinate_bus": None, **changes,
    }  # fmt: skip


def fake_record(**changes: Any) -> dict[str, Any]:
    """Two GPUs behind a switch, a third on a root bus of the other NUMA node."""
    bridge = {"vendor": "0x1000", "device": "0xc030"}
    return {
        "schema": "lanewise.node-record/1",
        "host": {"architecture": "x86_64"},
        "cpu": {"vendor": "AuthenticAMD", "family": 26, "model": 2},
        "numa": [{"id": 0, "distances": [10, 32]}, {"id": 1, "distances": [32, 10]}],
        "gpus": [
            {"address": "0000:03:00.0", "index": 0, "name": "Fake GPU", "compute_capability": "12.0"},
            {"address": "0000:04:00.0", "index": 1, "name": "Fake GPU", "compute_capability": "12.0"},
            {"address": "0000:81:00.0", "index": 2, "name": "unknown", "compute_capability": "unknown"},
        ],
        "pci": [
            record_device("0000:00:01.1", "pci0000:00", "0x060400", **bridge),
            record_device("0000:01:00.0", "0000:00:01.1", "0x060400", **bridge),
            record_device("0000:02:00.0", "0000:01:00.0", "0x060400", **bridge),
            record_device("0000:02:01.0", "0000:01:00.0", "0x060400", **bridge),
            record_device("0000:03:00.0", "0000:02:00.0", "0x030200"),
            record_device("0000:04:00.0", "0000:02:01.0", "0x030200"),
            record_device("0000:80:01.1", "pci0000:80", "0x060400", numa_node=1, **bridge),
            record_device("0000:81:00.0", "0000:80:01.1", "0x030200", numa_node=1),
        ],
        "unread": [],
        **changes,
    }


def fake_record_text(**changes: Any) -> str:
    return json.dumps(fake_record(**changes))


FAKE_YAML = """
name: fake
defaults:
  gpu: {sm: 120, link: Gen5 x16}
cpus:
  - numa: 0
    vendor: AuthenticAMD
    family: 26
    model: 2
    below:
      - bridge: pci0000:40
        below:
          - switch: 0000:41:00.0
            link: Gen5 x16
            below:
              - gpus: [0000:43:00.0, 0000:44:00.0]
              - {gpu: 0000:45:00.0, link: Gen5 x8 of Gen5 x16, acs_redirect: true}
  - numa: 1
    below:
      - {nic: 0000:81:00.0, link: Gen4 x8}
between_cpus:
  - {cpus: [0, 1], kind: xGMI, gb_per_s: 36}
p2p: OK
"""
