"""PCI devices, their configuration spaces and the IOMMU, against trees built here."""

from __future__ import annotations

import os
import shutil

import pytest

from playbooks.module_utils.node_record import read_node
from playbooks.module_utils.node_record_tree import UNKNOWN
from tests.unit.makers_node import add_device, config_space, device, fake_node, fake_rig, reason, write


@pytest.fixture
def root(tmp_path):
    return fake_node(tmp_path / "node")


@pytest.fixture
def rig(tmp_path):
    return fake_rig(tmp_path / "node")


def test_parents_lead_from_each_gpu_over_its_switch_to_its_host_bridge(rig):
    record = read_node(str(rig))
    for bus, numa in ((0x40, 0), (0xC0, 1)):
        for slot in range(4):
            path = [f"0000:{bus + 3 + slot:02x}:00.0"]
            while not path[-1].startswith("pci"):
                path.append(device(record, path[-1])["parent"])
            expected = [
                f"0000:{bus + 2:02x}:{slot:02x}.0",
                f"0000:{bus + 1:02x}:00.0",
                f"0000:{bus:02x}:01.1",
                f"pci0000:{bus:02x}",
            ]
            assert path[1:] == expected
            assert device(record, path[0])["numa_node"] == numa
    assert device(record, "10000:e0:01.0")["parent"] == "pci10000:e0"
    assert len(record["pci"]) == 2 * (2 + 4 * 3) + 4


def test_links_buses_and_drivers_of_pci_devices(rig):
    record = read_node(str(rig))
    assert device(record, "0000:43:00.0") == {
        "address": "0000:43:00.0",
        "parent": "0000:42:00.0",
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2bb5",
        "driver": "nvidia",
        "numa_node": 0,
        "current_link_speed_gts": 32.0,
        "current_link_width": 16,
        "max_link_speed_gts": 32.0,
        "max_link_width": 16,
        "secondary_bus": None,
        "subordinate_bus": None,
        "bar_bytes": [64 << 20, 128 << 30, 32 << 20],
        "aer_correctable": None,
        "aer_nonfatal": None,
        "aer_fatal": None,
        "power_control": None,
        "runtime_status": None,
        "port_type": "endpoint",
        "acs_capability": None,
        "acs_control": None,
        "max_payload_bytes": 512,
        "max_read_request_bytes": 512,
        "relaxed_ordering": True,
        "extended_tag": True,
        "no_snoop": True,
        "aspm_supported": "l0s l1",
        "aspm_control": "disabled",
    }
    up = device(record, "0000:41:00.0")
    assert (up["secondary_bus"], up["subordinate_bus"], up["driver"]) == (0x42, 0x46, None)
    nic = device(record, "0000:00:01.0")
    assert (nic["current_link_speed_gts"], nic["current_link_width"], nic["numa_node"]) == (16.0, 8, None)


def test_a_link_that_the_kernel_does_not_know_is_unknown_and_one_that_is_not_there_is_null(root):
    record = read_node(str(root))
    nvme, vga = device(record, "0000:00:02.0"), device(record, "0000:00:03.0")
    assert (nvme["current_link_speed_gts"], nvme["current_link_width"], nvme["max_link_width"]) == (
        UNKNOWN,
        UNKNOWN,
        16,
    )
    assert "'Unknown'" in reason(record, "pci[0000:00:02.0].current_link_speed_gts")
    assert (vga["current_link_speed_gts"], vga["max_link_width"]) == (None, None)


def test_of_a_device_that_has_gone_nothing_is_said_to_be_absent(root):
    shutil.rmtree(root / "sys/devices/pci0000:00/0000:00:01.0")
    gone = device(read_node(str(root)), "0000:00:01.0")
    assert gone["parent"] == "pci0000:00"
    assert {value for key, value in gone.items() if key not in ("address", "parent")} == {UNKNOWN}


def test_a_pci_list_of_odd_entries(root):
    bus = root / "sys/bus/pci/devices"
    (bus / "0000:01:00.0").symlink_to("0000:01:00.0")
    (bus / "0000:02:00.0").symlink_to("/proc/self")
    (bus / "0000:03:00.0").mkdir()
    (bus / "not a device").mkdir()
    record = read_node(str(root))
    assert {device(record, f"0000:{bus:02}:00.0")["vendor"] for bus in (1, 2, 3)} == {UNKNOWN}
    assert device(record, "0000:03:00.0")["parent"] == UNKNOWN
    assert "leads out of the root" in reason(record, "pci[0000:02:00.0].class")


@pytest.mark.parametrize(
    ("types", "mode"),
    [
        ([], UNKNOWN),
        (["identity", "identity"], "passthrough"),
        (["DMA", "DMA-FQ"], "translated"),
        (["identity", "DMA"], "mixed"),
        (["blocked"], "mixed"),
        (["identity", ""], UNKNOWN),
    ],
)
def test_iommu_is_summed_up_from_its_groups(root, types, mode):
    write(root, {"sys/class/iommu/dmar0/name": "dmar0"})
    write(root, {f"sys/kernel/iommu_groups/{number}/type": f"{kind}\n" for number, kind in enumerate(types)})
    assert read_node(str(root))["iommu"]["mode"] == mode


def test_iommu_is_off_where_its_class_is_empty_and_unknown_where_the_class_is_not_there(root):
    assert read_node(str(root))["iommu"] == {"mode": "off", "group_types": {}}
    (root / "sys/class/iommu").rmdir()
    assert read_node(str(root))["iommu"] == {"mode": UNKNOWN, "group_types": UNKNOWN}


REGISTERS = {
    "port_type", "acs_capability", "acs_control", "max_payload_bytes", "max_read_request_bytes", "relaxed_ordering",
    "extended_tag", "no_snoop", "aspm_supported", "aspm_control",
}  # fmt: skip
HERE = "sys/bus/pci/devices"
GPU = "0000:43:00.0"


def registers(record, address):
    return {key: value for key, value in device(record, address).items() if key in REGISTERS}


def unread_registers(record, address):
    return {key for key, value in registers(record, address).items() if value == UNKNOWN}


def test_acs_is_told_of_every_port_that_has_it(rig):
    record = read_node(str(rig))
    told = {d["port_type"]: (d["acs_capability"], d["acs_control"]) for d in record["pci"]}
    assert told == {
        "root_port": (0x5F, 0x1D), "upstream": (None, None), "downstream": (0x5F, 0x11),
        "endpoint": (None, None), None: (None, None),
    }  # fmt: skip


def test_control_registers_are_decoded(root):
    add_device(root, "pci0000:00", "0000:00:05.0", "030200:10de:2bb5", config_space(0, control=0x5020, aspm=2))
    found = registers(read_node(str(root)), "0000:00:05.0")
    assert (found["max_payload_bytes"], found["max_read_request_bytes"], found["aspm_control"]) == (256, 4096, "l1")
    assert (found["relaxed_ordering"], found["extended_tag"], found["no_snoop"]) == (False, False, False)


def test_a_device_that_is_not_pci_express_has_no_such_registers_even_by_64_bytes(root):
    (root / HERE / "0000:00:03.0/config").write_bytes(config_space()[:64])
    assert set(registers(read_node(str(root)), "0000:00:03.0").values()) == {None}


@pytest.mark.parametrize(
    ("size", "unread"),
    [
        (0, REGISTERS),
        (63, REGISTERS),
        (64, REGISTERS),  # what the kernel shows others than root
        (256, {"acs_capability", "acs_control"}),  # a kernel that cannot reach the rest
        (4096, set()),
    ],
)
def test_registers_that_were_cut_off_are_unknown_and_never_absent(rig, size, unread):
    port = "0000:42:00.0"
    (rig / HERE / port / "config").write_bytes(config_space(6, acs=0x1D)[:size])
    record = read_node(str(rig))
    assert unread_registers(record, port) == unread
    assert all(f"only {size} bytes" in reason(record, f"pci[{port}].{field}") for field in unread)


def test_a_device_that_answers_with_ones_and_lists_that_loop_are_unknown(rig):
    gone, loops, far = "0000:43:00.0", "0000:44:00.0", "0000:42:00.0"
    (rig / HERE / gone / "config").write_bytes(b"\xff" * 4096)
    looping = bytearray(config_space(0))
    looping[0x60:0x62] = b"\x01\x60"
    (rig / HERE / loops / "config").write_bytes(looping)
    looping = bytearray(config_space(6))
    looping[0x100:0x104] = b"\x01\x00\x01\x10"
    (rig / HERE / far / "config").write_bytes(looping)
    record = read_node(str(rig))
    assert unread_registers(record, gone) == unread_registers(record, loops) == REGISTERS
    assert unread_registers(record, far) == {"acs_capability", "acs_control"}
    assert "all ones" in reason(record, f"pci[{gone}].acs_control")


def test_a_configuration_space_that_cannot_be_opened_is_unknown_with_its_reason(rig):
    config = rig / HERE / GPU / "config"
    config.unlink()
    assert unread_registers(read_node(str(rig)), GPU) == REGISTERS
    os.mkfifo(config)
    record = read_node(str(rig))
    assert "not a regular file" in reason(record, f"pci[{GPU}].port_type")


def test_power_states_and_bars(rig):
    write(rig, {f"{HERE}/{GPU}/power/control": "auto\n", f"{HERE}/{GPU}/power/runtime_status": "suspended\n"})
    unassigned = "0x0 0x1fffffffff 0x2014220c"  # 128 GiB, for which the firmware left no room
    write(rig, {f"{HERE}/0000:44:00.0/resource": f"{unassigned}\n" + "0x0 0x0 0x0\n" * 5})
    write(rig, {f"{HERE}/0000:45:00.0/resource": "0x0 0x0 0x0\n"})
    record = read_node(str(rig))
    gpu = device(record, GPU)
    assert (gpu["power_control"], gpu["runtime_status"]) == ("auto", "suspended")
    assert device(record, "0000:44:00.0")["bar_bytes"] == [0]
    assert device(record, "0000:45:00.0")["bar_bytes"] == UNKNOWN


def counts(kind, total):
    return f"RxErr 1\nBadTLP 2\nTOTAL_ERR_{kind} {total}\n"


def test_errors_are_told_only_where_the_kernel_counts_them(rig):
    names = ("aer_correctable", "aer_nonfatal", "aer_fatal")
    files = {"aer_dev_correctable": "COR", "aer_dev_nonfatal": "NONFATAL", "aer_dev_fatal": "FATAL"}
    write(rig, {f"{HERE}/{GPU}/{name}": counts(kind, 7) for name, kind in files.items()})
    services = rig / "sys/bus/pci_express/drivers/aer"
    services.mkdir(parents=True)
    (services / "bind").touch()
    record = read_node(str(rig))
    assert (record["kernel"]["aer_ports"], device(record, GPU)["aer_fatal"]) == (0, None)
    (services / "0000:40:01.1:pcie002").mkdir()
    record = read_node(str(rig))
    assert record["kernel"]["aer_ports"] == 1
    assert [device(record, GPU)[name] for name in names] == [7, 7, 7]
    assert device(record, "0000:44:00.0")["aer_fatal"] is None
    write(rig, {f"{HERE}/{GPU}/aer_dev_fatal": "odd\n"})
    assert device(read_node(str(rig)), GPU)["aer_fatal"] == UNKNOWN
