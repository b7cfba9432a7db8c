"""The bed itself: what its kernel makes of the simulated server, and that every test finds it as it was."""

from __future__ import annotations

import socket

import pytest

from playbooks.module_utils.pci_config import ACS, ConfigSpace
from tests.vm.bed import USER_WRITES, Bed
from tests.vm.server import BIOS_ACS, make_server

GPUS = [f"0000:{bus:02x}:00.0" for bus in (0x43, 0x44, 0x53, 0x54, 0xA3, 0xA4, 0xB3, 0xB4)]
STUCK = "0000:a3:00.0"


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_kernel_enumerates_the_server(bed: Bed) -> None:
    assert [line[:12] for line in lines(bed.ssh("lspci -D -d 10de::0302"))] == GPUS
    assert len(lines(bed.ssh("lspci -d 10de:"))) == len(GPUS) + 1  # the NVSwitch, which is no GPU
    assert len(lines(bed.ssh("lspci -d ::0604"))) == 4 + 4 + 16
    assert bed.ssh("cat /sys/bus/pci/devices/0000:[4b]3:00.0/numa_node") == "0\n1"


def test_a_redirecting_iommu_is_what_a_node_starts_with(bed: Bed) -> None:
    assert "DMA" in bed.ssh("cat /sys/kernel/iommu_groups/*/type")
    on = [line for line in lines(bed.ssh("lspci -vvv -d ::0604 | grep ACSCtl")) if "ReqRedir+" in line]
    assert len(on) == 4 + 16
    assert bed.ssh("lspci -vvv -d 10de::0302 | grep -c 'LnkCtl:.*ASPM L1 Enabled'") == str(len(GPUS))


def test_registers_take_what_is_written_and_count_it(bed: Bed) -> None:
    assert bed.ssh(f"setpci -s {STUCK} CAP_EXP+8.w=5000:7000 && setpci -s {STUCK} CAP_EXP+8.w")[0] == "5"
    assert bed.ssh(f"cat {USER_WRITES}") == "1"


def test_a_stuck_register_keeps_its_value(bed: Bed) -> None:
    bed.load(make_server(stuck=STUCK))
    assert bed.ssh(f"setpci -s {STUCK} CAP_EXP+8.w=5000:7000; setpci -s {STUCK} CAP_EXP+8.w")[0] == "2"
    assert bed.ssh("setpci -s 0000:a4:00.0 CAP_EXP+8.w=5000:7000; setpci -s 0000:a4:00.0 CAP_EXP+8.w")[0] == "5"


def test_reset_brings_back_disk_registers_and_module(bed: Bed) -> None:
    bed.load(make_server(stuck=STUCK))
    bed.ssh("touch /root/mark && sync && setpci -s 0000:a4:00.0 CAP_EXP+8.w=5000:7000")
    bed.reset()
    assert bed.ssh("ls /root/mark", check=False) == ""
    assert bed.ssh("setpci -s 0000:a4:00.0 CAP_EXP+8.w")[0] == "2"
    assert bed.ssh(f"setpci -s {STUCK} CAP_EXP+8.w=5000:7000 && setpci -s {STUCK} CAP_EXP+8.w")[0] == "5"


def test_the_guest_reaches_nothing_of_this_machine(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"/dev/tcp/10.0.2.2/{server.getsockname()[1]}"  # QEMU's name for our loopback
        assert bed.ssh(f"timeout 3 bash -c '<{address}' && echo reached || echo not") == "not"


def test_the_product_reads_the_same_bytes() -> None:
    """Needs no machine: the capabilities are where the specification's linked lists say."""
    functions = make_server().functions
    assert len(functions) == 4 * (1 + 1 + 4 + 4)
    port = ConfigSpace(bytes(functions[0].space))
    at = port.extended(ACS)
    assert at is not None
    assert port.word(at + 6) == BIOS_ACS


def test_there_is_no_stuck_function_without_an_address_of_the_tree() -> None:
    with pytest.raises(ValueError, match="no function 0000:99"):
        make_server(stuck="0000:99:00.0")
