"""GPUs and their driver, by a fake nvidia-smi on PATH and by files."""

from __future__ import annotations

import shutil
import time

import pytest

from playbooks.module_utils import node_record_gpus
from playbooks.module_utils.node_record import read_node
from playbooks.module_utils.node_record_tree import UNKNOWN, Tree
from tests.unit.makers_node import GPU, NVRM_PROPRIETARY, answer, fake_node, fake_rig, fake_smi, reason, write


@pytest.fixture
def root(tmp_path):
    return fake_node(tmp_path / "node")


@pytest.fixture
def rig(tmp_path):
    return fake_rig(tmp_path / "node")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ("open", "590.44.01", True)),
        ({"proc/driver/nvidia/version": NVRM_PROPRIETARY}, ("proprietary", "535.86.10", True)),
        ({"proc/driver/nvidia/version": None}, (UNKNOWN, "590.44.01", True)),
        ({"proc/driver/nvidia/version": "odd\n"}, (UNKNOWN, UNKNOWN, True)),
        ({"proc/driver/nvidia/version": None, "sys/module/nvidia/version": None}, (None, None, False)),
        ({"proc/driver/nvidia/version": None, "sys/module": None}, (UNKNOWN, UNKNOWN, UNKNOWN)),
    ],
)
def test_driver(root, files, expected):
    for name, text in files.items():
        if text is None:
            shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        else:
            write(root, {name: text})
    driver = read_node(str(root))["driver"]
    assert (driver["kernel_module"], driver["version"], driver["present"]) == expected


def test_gpus_are_nvidia_display_controllers_and_no_command_runs_for_another_root(rig, tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, f"touch {tmp_path}/ran")
    record = read_node(str(rig))
    assert [gpu["address"] for gpu in record["gpus"]] == [
        f"0000:{bus:02x}:00.0" for bus in (*range(0x43, 0x47), *range(0xC3, 0xC7))
    ]
    assert record["gpus"][0]["name"] == UNKNOWN
    assert "not run for another root" in reason(record, "gpus[0000:43:00.0].name")
    assert not (tmp_path / "ran").exists()


def gpu_of(record, address="10000:e1:00.0"):
    return next(gpu for gpu in record["gpus"] if gpu["address"] == address)


def test_nvidia_smi_describes_gpus_even_where_sysfs_does_not_show_them(tmp_path, monkeypatch):
    fake_smi(
        tmp_path, monkeypatch, answer(GPU, {**GPU, "pci.bus_id": "0000FFFE:01:00.0", "persistence_mode": "Disabled"})
    )
    record = read_node()
    assert gpu_of(record) == {
        "address": "10000:e1:00.0",
        "index": 3,
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "memory_bytes": 97887 * 1024 * 1024,
        "compute_capability": "12.0",
        "pstate": "P8",
        "persistence_mode": True,
        "power_limit_watts": 450.0,
        "power_default_watts": 600.0,
        "power_max_watts": 600.0,
        "clock_sm_mhz": 180,
        "clock_memory_mhz": 405,
        "clock_sm_max_mhz": 2430,
        "clock_memory_max_mhz": 12481,
        "throttle_reasons": ["gpu_idle", "sw_power_cap"],
        "ecc": True,
        "mig": None,
        "compute_mode": "Default",
        "temperature_c": 31,
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "bar1_bytes": UNKNOWN,  # sysfs does not show this device
    }
    assert gpu_of(record, "fffe:01:00.0")["persistence_mode"] is False
    assert record["driver"]["present"] is True


def test_cells_that_nvidia_smi_cannot_fill_are_unknown(tmp_path, monkeypatch):
    odd = {**GPU, "memory.total": "[N/A]", "compute_cap": "[Not Supported]", "pstate": "ERR!", "index": "N/A"}
    fake_smi(tmp_path, monkeypatch, answer({key: odd[key] for key in odd if key != "pcie.link.gen.max"}))
    record = read_node()
    gpu = gpu_of(record)
    assert gpu["name"] == GPU["name"]
    assert {key for key, value in gpu.items() if value == UNKNOWN} == {
        "memory_bytes", "compute_capability", "pstate", "index", "pcie_generation_max", "bar1_bytes",
    }  # fmt: skip
    assert "'[N/A]' for memory.total" in reason(record, "gpus[10000:e1:00.0].memory_bytes")


def test_lines_of_another_kind_are_no_gpus(tmp_path, monkeypatch):
    fake_smi(
        tmp_path, monkeypatch, "echo 'WARNING: infoROM is corrupted at gpu 0000:00:00.0' >&2; echo; echo ,,,; echo a, b"
    )
    assert [gpu for gpu in read_node()["gpus"] if gpu["index"] != UNKNOWN] == []


@pytest.mark.parametrize("script", ["sleep 60 & sleep 60", "trap '' TERM; while :; do sleep 1; done"])
def test_an_nvidia_smi_that_hangs_is_left_behind(root, tmp_path, monkeypatch, script):
    monkeypatch.setattr(node_record_gpus, "SMI_SECONDS", 0.3)
    fake_smi(tmp_path, monkeypatch, script)
    started = time.monotonic()
    smi = node_record_gpus.nvidia_smi(Tree(None))
    assert time.monotonic() - started < 20
    assert smi.trouble == "nvidia-smi: no end within 0.3 s"


def test_a_failing_nvidia_smi_is_quoted_without_identifiers(tmp_path, monkeypatch):
    uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    fake_smi(
        tmp_path, monkeypatch, f"echo 'Unable to determine the device handle for GPU-{uuid}: Unknown Error'; exit 9"
    )
    tree = Tree(None)
    assert tree.ask("gpus", node_record_gpus.gpus, tree, UNKNOWN, node_record_gpus.nvidia_smi(Tree(None))) == UNKNOWN
    assert "status 9, Unable to determine the device handle for GPU-<redacted>" in tree.unread[0]["reason"]
    nvidia = [{"address": "0000:43:00.0", "vendor": "0x10de", "class": "0x030000"}]
    assert node_record_gpus.gpus(tree, nvidia, node_record_gpus.nvidia_smi(Tree(None)))[0]["name"] == UNKNOWN


def test_without_nvidia_smi_an_empty_pci_list_means_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    tree, smi = Tree(None), node_record_gpus.nvidia_smi(Tree(None))
    assert smi.trouble == "nvidia-smi: not found"
    assert node_record_gpus.gpus(tree, [], smi) == []
    assert tree.ask("gpus", node_record_gpus.gpus, tree, UNKNOWN, smi) == UNKNOWN


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0x0000000000000000", []),
        ("0x00000000000000C8", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]),
        ("0x8000000000000200", ["0x200", "0x8000000000000000"]),
        ("Active", UNKNOWN),
    ],
)
def test_throttle_reasons_are_named_bit_by_bit(tmp_path, monkeypatch, mask, names):
    fake_smi(tmp_path, monkeypatch, answer({**GPU, "clocks_event_reasons.active": mask}))
    assert gpu_of(read_node())["throttle_reasons"] == names


def test_a_column_that_this_nvidia_smi_does_not_know_costs_only_its_own_field(tmp_path, monkeypatch):
    column = "clocks_event_reasons.active"
    refusal = f"case $1 in *{column}*) echo 'Field \"{column}\" is not a valid field to query.'; exit 2;; esac\n"
    fake_smi(tmp_path, monkeypatch, refusal + answer({key: GPU[key] for key in GPU if key != column}))
    gpu = gpu_of(read_node())
    assert {key for key, value in gpu.items() if value == UNKNOWN} == {"throttle_reasons", "bar1_bytes"}
    assert (gpu["ecc"], gpu["pcie_generation_max"]) == (True, 5)


def test_an_nvidia_smi_that_refuses_the_address_is_asked_once(tmp_path, monkeypatch):
    log = tmp_path / "log"
    refusal = 'Field "pci.bus_id" is not a valid field to query.'
    fake_smi(tmp_path, monkeypatch, f"echo asked >> {log}; echo '{refusal}'; exit 2")
    assert "status 2" in node_record_gpus.nvidia_smi(Tree(None)).trouble
    assert log.read_text() == "asked\n"


def test_bar1_is_the_second_base_address_register_in_use(rig):
    first, second = "0000:43:00.0", "0000:44:00.0"
    write(rig, {f"sys/bus/pci/devices/{second}/resource": "0x1000 0x1fff 0x40200\n" + "0x0 0x0 0x0\n" * 5})
    record = read_node(str(rig))
    sizes = {gpu["address"]: gpu["bar1_bytes"] for gpu in record["gpus"]}
    assert (sizes[first], sizes[second]) == (128 << 30, UNKNOWN)
    assert "[4096]" in reason(record, f"gpus[{second}].bar1_bytes")
