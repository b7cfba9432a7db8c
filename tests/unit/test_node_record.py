"""The node record against trees built here; the last part reads this machine, with a fake nvidia-smi on PATH."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from playbooks.module_utils import node_record
from playbooks.module_utils.node_record import UNKNOWN, read_node

SCRIPT = Path(node_record.__file__)
NVRM_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.44.01  Release Build  (builder@host)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)
NVRM_PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86.10  Wed Jul 26 23:20:03 UTC 2023\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def add_device(root: Path, below: str, address: str, ids: str, **files: str) -> str:
    """A PCI device below a sysfs path; `ids` is class:vendor:device. Returns the device's own sysfs path."""
    where = f"{below}/{address}"
    class_, vendor, device = (f"0x{part}\n" for part in ids.split(":"))
    known = {"class": class_, "vendor": vendor, "device": device, "numa_node": "-1\n"}
    write(root / "sys/devices" / where, {**known, **{name: f"{text}\n" for name, text in files.items()}})
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
        root, f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.1", "060400:1022:153e", **buses(bus + 1, bus + 6), **rest
    )
    up = add_device(root, port, f"0000:{bus + 1:02x}:00.0", "060400:11f8:4128", **buses(bus + 2, bus + 6), **rest)
    for slot in range(4):
        own = bus + 3 + slot
        down = add_device(root, up, f"0000:{bus + 2:02x}:{slot:02x}.0", "060400:11f8:4128", **buses(own, own), **rest)
        add_device(root, down, f"0000:{own:02x}:00.0", "030200:10de:2bb5", **rest)
        add_device(root, down, f"0000:{own:02x}:00.1", "040300:10de:22e8", **rest)
    gpu = root / f"sys/bus/pci/devices/0000:{bus + 3:02x}:00.0"
    (root / "sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    (gpu / "driver").symlink_to("../../../../../../../bus/pci/drivers/nvidia")


def cpu_files() -> dict[str, str]:
    """Two sockets of two cores of two threads; CPU 3 is offline and has no topology, as the kernel shows it."""
    files = {
        "sys/devices/system/cpu/online": "0-2,4-7\n",
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
        "proc/cpuinfo": f"{block}flags\t\t: fpu sse2 avx512f\n\n" * 100,
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


@pytest.fixture
def root(tmp_path):
    """A bare-metal node of two sockets without GPUs: a NIC, an NVMe drive, the board's own VGA, a bridge of a VMD."""
    root = tmp_path / "node"
    write(root, node_files())
    (root / "sys/class/iommu").mkdir(parents=True)
    add_device(root, "pci0000:00", "0000:00:01.0", "020000:15b3:a2dc", **link("16.0 GT/s PCIe", "8"))
    add_device(root, "pci0000:00", "0000:00:02.0", "010802:144d:a80c", **link("Unknown", "255"))
    add_device(root, "pci0000:00", "0000:00:03.0", "030000:1a03:2000")
    add_device(root, "pci0000:00/0000:00:04.0/pci10000:e0", "10000:e0:01.0", "060400:8086:352a")
    return root


@pytest.fixture
def rig(root):
    """The node with eight GPUs: four behind a switch on each socket."""
    add_switch(root, 0x40, numa=0)
    add_switch(root, 0xC0, numa=1)
    return root


def device(record, address):
    return next(device for device in record["pci"] if device["address"] == address)


def reason(record, field):
    return next(entry["reason"] for entry in record["unread"] if entry["field"] == field)


def unknowns(value, field=""):
    """The fields that are "unknown", named as `unread` names them."""
    if value == UNKNOWN:
        return {field}
    if isinstance(value, dict):
        return {name for key, inner in value.items() for name in unknowns(inner, f"{field}.{key}".lstrip("."))}
    if isinstance(value, list):
        names = [
            f"{field}[{inner.get('address', inner.get('id'))}]" if isinstance(inner, dict) else field for inner in value
        ]
        return {name for inner_name, inner in zip(names, value, strict=True) for name in unknowns(inner, inner_name)}
    return set()


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


def test_gpus_are_nvidia_display_controllers_and_no_command_runs_for_another_root(rig, tmp_path, monkeypatch):
    fake_smi(tmp_path, monkeypatch, f"touch {tmp_path}/ran")
    record = read_node(str(rig))
    assert [gpu["address"] for gpu in record["gpus"]] == [
        f"0000:{bus:02x}:00.0" for bus in (*range(0x43, 0x47), *range(0xC3, 0xC7))
    ]
    assert record["gpus"][0]["name"] == UNKNOWN
    assert "not run for another root" in reason(record, "gpus[0000:43:00.0].name")
    assert not (tmp_path / "ran").exists()


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
    }
    time.strptime(record["host"]["read_at"], "%Y-%m-%dT%H:%M:%SZ")
    cpu = record["cpu"]
    assert (cpu["model_name"], cpu["vendor"], cpu["family"], cpu["model"]) == ("AMD EPYC 9575F", "AuthenticAMD", 26, 2)
    assert (cpu["sockets"], cpu["cores"], cpu["threads"], cpu["governor"]) == (2, 4, 7, "performance")
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


def test_the_script_runs_by_itself_and_prints_json(rig, tmp_path):
    copy = shutil.copy(SCRIPT, tmp_path / "alone.py")
    done = subprocess.run([sys.executable, "-I", copy, "--root", rig], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["gpus"]) == 8
    wrong = subprocess.run(
        [sys.executable, "-I", copy, "--root", rig / "no"], capture_output=True, text=True, timeout=30
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "not a directory; expected" in wrong.stderr


def test_the_script_is_python_3_9():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 9))
    done = subprocess.run(["/usr/bin/env", "python3.9", SCRIPT], capture_output=True, text=True, timeout=60)
    if "node-record" not in done.stdout and "Traceback" not in done.stderr:
        pytest.skip("no python3.9 on this machine")
    assert json.loads(done.stdout)["schema"] == node_record.SCHEMA


# this machine, with a fake nvidia-smi


def fake_smi(tmp_path, monkeypatch, script):
    """Put an nvidia-smi that runs this shell script first on PATH."""
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


def answer(*gpus):
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
}


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
    }
    assert gpu_of(record, "fffe:01:00.0")["persistence_mode"] is False
    assert record["driver"]["present"] is True


def test_cells_that_nvidia_smi_cannot_fill_are_unknown(tmp_path, monkeypatch):
    odd = {**GPU, "memory.total": "[N/A]", "compute_cap": "[Not Supported]", "pstate": "ERR!", "index": "N/A"}
    fake_smi(tmp_path, monkeypatch, answer({key: odd[key] for key in odd if key != "persistence_mode"}))
    record = read_node()
    gpu = gpu_of(record)
    assert gpu["name"] == GPU["name"]
    assert {key for key, value in gpu.items() if value == UNKNOWN} == {
        "memory_bytes", "compute_capability", "pstate", "index", "persistence_mode",
    }  # fmt: skip
    assert "'[N/A]' for memory.total" in reason(record, "gpus[10000:e1:00.0].memory_bytes")


def test_lines_of_another_kind_are_no_gpus(tmp_path, monkeypatch):
    fake_smi(
        tmp_path, monkeypatch, "echo 'WARNING: infoROM is corrupted at gpu 0000:00:00.0' >&2; echo; echo ,,,; echo a, b"
    )
    assert [gpu for gpu in read_node()["gpus"] if gpu["index"] != UNKNOWN] == []


@pytest.mark.parametrize("script", ["sleep 60 & sleep 60", "trap '' TERM; while :; do sleep 1; done"])
def test_an_nvidia_smi_that_hangs_is_left_behind(root, tmp_path, monkeypatch, script):
    monkeypatch.setattr(node_record, "COMMAND_SECONDS", 0.3)
    fake_smi(tmp_path, monkeypatch, script)
    started = time.monotonic()
    smi = node_record._nvidia_smi()
    assert time.monotonic() - started < 20
    assert smi.trouble == "nvidia-smi: no end within 0.3 s"


def test_a_failing_nvidia_smi_is_quoted_without_identifiers(tmp_path, monkeypatch):
    uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    fake_smi(
        tmp_path, monkeypatch, f"echo 'Unable to determine the device handle for GPU-{uuid}: Unknown Error'; exit 9"
    )
    tree = node_record._Tree(None)
    assert tree.ask("gpus", node_record._gpus, tree, UNKNOWN, node_record._nvidia_smi()) == UNKNOWN
    assert "status 9, Unable to determine the device handle for GPU-<redacted>" in tree.unread[0]["reason"]
    nvidia = [{"address": "0000:43:00.0", "vendor": "0x10de", "class": "0x030000"}]
    assert node_record._gpus(tree, nvidia, node_record._nvidia_smi())[0]["name"] == UNKNOWN


def test_without_nvidia_smi_an_empty_pci_list_means_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    tree, smi = node_record._Tree(None), node_record._nvidia_smi()
    assert smi.trouble == "nvidia-smi: not found"
    assert node_record._gpus(tree, [], smi) == []
    assert tree.ask("gpus", node_record._gpus, tree, UNKNOWN, smi) == UNKNOWN


def test_this_machine_can_be_read():
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-I", SCRIPT, "--indent"], capture_output=True, text=True, timeout=60)
    record = json.loads(done.stdout)
    assert time.monotonic() - started < node_record.COMMAND_SECONDS
    assert (done.returncode, done.stderr) == (0, "")
    assert record["host"]["hostname"] == os.uname().nodename
    assert record["cpu"]["allowed_cpus"] == len(os.sched_getaffinity(0))
    assert record["host"]["memory_bytes"] > 0
    assert {entry["field"] for entry in record["unread"]} == unknowns(record)
