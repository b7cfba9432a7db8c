"""The node record against trees built here, and of this machine; its parts: test_node_record_*.py."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from playbooks.module_utils import node_record
from playbooks.module_utils.node_record import read_node
from playbooks.module_utils.node_record_gpus import SMI_SECONDS
from playbooks.module_utils.node_record_tree import UNKNOWN
from tests.unit.makers_node import fake_node, fake_rig, reason, unknowns, write

SCRIPT = Path(node_record.__file__)


@pytest.fixture
def root(tmp_path):
    return fake_node(tmp_path / "node")


@pytest.fixture
def rig(tmp_path):
    return fake_rig(tmp_path / "node")


def test_host_cpu_and_memory(root):
    record = read_node(str(root))
    assert record["schema"] == "lanewise.node-record/1"
    host = {key: value for key, value in record["host"].items() if key != "read_at"}
    assert host == {
        "hostname": "node7",
        "kernel": "6.17.0-20-generic",
        "architecture": "x86_64",
        "os": "Ubuntu 24.04.3 LTS",
        "sys_vendor": "ASUSTeK COMPUTER INC.",
        "product_name": "ESC8000A-E13P",
        "virtualised": False,
        "container": False,
        "kernel_command_line": "BOOT_IMAGE=/vmlinuz ro amd_iommu=off iommu=off",
        "memory_bytes": 1000 * 1024,
        "x2apic": True,
    }
    time.strptime(record["host"]["read_at"], "%Y-%m-%dT%H:%M:%SZ")
    cpu = record["cpu"]
    assert (cpu["model_name"], cpu["vendor"], cpu["family"], cpu["model"]) == ("AMD EPYC 9575F", "AuthenticAMD", 26, 2)
    assert (cpu["sockets"], cpu["cores"], cpu["threads"], cpu["governor"]) == (2, 4, 7, "performance")
    assert (cpu["threads_present"], cpu["energy_performance_preference"]) == (8, None)
    assert record["numa"][1] == {"id": 1, "cpus": "2-3", "memory_bytes": 500 * 1024, "distances": [32, 10]}


def test_facts_of_this_process_are_unknown_for_another_root(root):
    record = read_node(str(root))
    assert record["cpu"]["allowed_cpus"] == UNKNOWN
    assert set(record["limits"].values()) == {UNKNOWN}
    assert "not of another root" in reason(record, "limits.shm_bytes")


def test_what_is_unknown_is_exactly_what_unread_explains(rig):
    shutil.rmtree(rig / "sys/devices/system/node/node1")
    (rig / "sys/devices/system/node/node1").mkdir()
    shutil.rmtree(rig / "sys/class")
    for tree in (rig, rig / "proc"):  # the second: hardly anything where it is looked for
        record = read_node(str(tree))
        fields = [entry["field"] for entry in record["unread"]]
        assert len(fields) == len(set(fields))
        assert set(fields) == unknowns(record)
        assert str(rig) not in json.dumps(record)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n"}, True),
        ({"proc/cpuinfo": "flags\t:\n"}, False),
        ({"sys/class/dmi/id/product_name": "KVM Virtual Machine\n"}, True),
        ({"sys/class/dmi/id/product_name": "\n"}, UNKNOWN),
        ({"proc/cpuinfo": "CPU implementer\t: 0x41\n"}, UNKNOWN),
    ],
)
def test_virtualised(root, files, expected):
    write(root, files)
    assert read_node(str(root))["host"]["virtualised"] == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({".dockerenv": ""}, True),
        ({"run/.containerenv": ""}, True),
        ({"proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, True),
        ({"proc/1/cgroup": "0::/\n"}, UNKNOWN),
    ],
)
def test_container(root, files, expected):
    write(root, files)
    assert read_node(str(root))["host"]["container"] == expected


def test_governors_that_differ_are_mixed_and_a_machine_that_has_none_says_null(root):
    write(root, {"sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "schedutil\n"})
    assert read_node(str(root))["cpu"]["governor"] == "mixed"
    for policy in (root / "sys/devices/system/cpu/cpufreq").iterdir():
        shutil.rmtree(policy)
    assert read_node(str(root))["cpu"]["governor"] is None


@pytest.mark.parametrize(
    "private",
    [
        "root=UUID=1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "root=PARTUUID=b921b045-02",
        "rd.md.uuid=8f2c0a11:77aa12bc:1d2e3f40:99887766",
        "BOOTIF=01-52-54-00-12-34-56",
        "ip=eth0:52:54:00:12:34:56",
        "resume=/dev/disk/by-id/nvme-Drive_S5GXNX0T",
        "systemd.machine_id=0123456789abcdef0123456789abcdef",
        'opt.password="two words"',
        "nvidia.gpu=GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427",
    ],
)
def test_identifying_values_leave_the_kernel_command_line(root, private):
    write(root, {"proc/cmdline": f"iommu=off {private} pci=0000:41:00.0 quiet\n"})
    line = read_node(str(root))["host"]["kernel_command_line"]
    assert line.startswith("iommu=off ")
    assert line.endswith("<redacted> pci=0000:41:00.0 quiet")
    assert not any(
        part in line for part in ("1b4e28ba", "b921b045", "8f2c0a11", "54-00", "54:00", "S5GX", "012345", "words")
    )


def spoil_directory(path):
    path.mkdir()


def spoil_pipe(path):
    os.mkfifo(path)


def spoil_loop(path):
    path.symlink_to(path.name)


def spoil_device(path):
    path.symlink_to("/dev/zero")


def spoil_outside(path):
    path.symlink_to("/proc/self/status")


def spoil_binary(path):
    path.write_bytes(bytes(range(256)) * 16)


def spoil_huge(path):
    with path.open("wb") as file:
        file.write(b"9" * 200_000)
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "spoil", [spoil_directory, spoil_pipe, spoil_loop, spoil_device, spoil_outside, spoil_binary, spoil_huge]
)
def test_odd_files_make_their_field_unknown_and_nothing_else(rig, spoil):
    names = [
        "proc/cmdline",
        "proc/meminfo",
        "proc/driver/nvidia/version",
        "etc/os-release",
        "sys/devices/system/cpu/online",
    ]
    names += [
        "sys/class/dmi/id/sys_vendor",
        "sys/devices/system/node/node0/cpulist",
        "sys/bus/pci/devices/0000:43:00.0/class",
    ]
    for name in [*names, "sys/bus/pci/devices/0000:43:00.0/current_link_width"]:
        (rig / name).unlink()
        spoil(rig / name)
    started = time.monotonic()
    record = read_node(str(rig))
    assert time.monotonic() - started < 20
    json.dumps(record)
    assert {"host.kernel_command_line", "host.memory_bytes", "host.os", "driver.version", "cpu.threads"} <= unknowns(
        record
    )
    assert {"pci[0000:43:00.0].class", "pci[0000:43:00.0].current_link_width"} <= unknowns(record)
    assert len(record["gpus"]) == 7
    assert record["host"]["product_name"] == "ESC8000A-E13P"


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_of_which_any_part_is_spoiled_gives_a_record_that_explains_itself(rig, seed):
    rng = random.Random(seed)
    spoils = [spoil_directory, spoil_pipe, spoil_loop, spoil_device, spoil_outside, spoil_binary, spoil_huge]
    more = ["proc/driver/nvidia/params", "proc/sys/vm/swappiness", "sys/kernel/mm/transparent_hugepage/enabled"]
    more += ["etc/nccl.conf", "etc/docker/daemon.json", "etc/cdi/x.yaml", "run/cdi/x.json", "usr/bin/dockerd"]
    write(
        rig, dict.fromkeys([*more, "sys/bus/pci_express/drivers/aer/a:pcie002", "sys/kernel/iommu_groups/0/type"], "")
    )
    everything = sorted(path for path in rig.rglob("*") if path.parent != rig)
    for path in rng.sample(everything, len(everything) // 4):
        if os.path.lexists(path):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            rng.choice(spoils)(path)
    record = read_node(str(rig))
    fields = [entry["field"] for entry in record["unread"]]
    assert len(fields) == len(set(fields))
    assert set(fields) == unknowns(record)
    json.loads(json.dumps(record, allow_nan=False))
    assert str(rig) not in json.dumps(record)


def test_the_script_runs_by_itself_with_its_folder_and_prints_json(rig, tmp_path):
    folder = shutil.copytree(SCRIPT.parent, tmp_path / "a copy.of it", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-I", "-S", "-W", "error", folder / SCRIPT.name, "--root"]
    done = subprocess.run([*command, rig], cwd="/", capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["gpus"]) == 8
    wrong = subprocess.run([*command, rig / "no"], capture_output=True, text=True, timeout=30)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "not a directory; expected" in wrong.stderr


@pytest.mark.parametrize("path", sorted(SCRIPT.parent.glob("node_record*.py")), ids=lambda path: path.stem)
def test_the_reader_is_python_3_9(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_reader_runs_on_python_3_9():
    done = subprocess.run(["/usr/bin/env", "python3.9", SCRIPT], capture_output=True, text=True, timeout=60)
    if "node-record" not in done.stdout and "Traceback" not in done.stderr:
        pytest.skip("no python3.9 on this machine")
    assert json.loads(done.stdout)["schema"] == node_record.SCHEMA


def test_this_machine_can_be_read():
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-I", SCRIPT, "--indent"], capture_output=True, text=True, timeout=60)
    record = json.loads(done.stdout)
    assert time.monotonic() - started < SMI_SECONDS
    assert (done.returncode, done.stderr) == (0, "")
    assert record["host"]["hostname"] == os.uname().nodename
    assert record["cpu"]["allowed_cpus"] == len(os.sched_getaffinity(0))
    assert record["host"]["memory_bytes"] > 0
    assert {entry["field"] for entry in record["unread"]} == unknowns(record)
