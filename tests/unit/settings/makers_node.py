"""Records of nodes that do not exist, for tests: fakes all, in the form of docs/node-record.md."""

from __future__ import annotations

import copy
from typing import Any

from playbooks.settings.plan import make_plan

REDIRECT_ON, REDIRECT_OFF = 0x1D, 0x11
"""ACS control as a BIOS with redirect left it, and the same without the redirect bits."""
GIB = 1 << 30


def device(address: str, parent: str, kind: str, **changes: Any) -> dict[str, Any]:
    is_gpu = kind == "endpoint"
    return {
        "address": address, "parent": parent, "port_type": kind,
        "class": "0x030200" if is_gpu else "0x060400", "vendor": "0x10de" if is_gpu else "0x1000", "device": "0x2bb5",
        "driver": "nvidia" if is_gpu else "pcieport", "numa_node": 0,
        "current_link_speed_gts": 32.0, "max_link_speed_gts": 32.0, "current_link_width": 16, "max_link_width": 16,
        "acs_capability": None if kind in ("endpoint", "upstream") else 0x5F,
        "acs_control": None if kind in ("endpoint", "upstream") else REDIRECT_ON,
        "max_payload_bytes": 256, "max_read_request_bytes": 512, "aspm_control": "disabled", "power_control": "auto",
        "aer_correctable": 0, "aer_nonfatal": 0, "aer_fatal": 0, "bar_bytes": [1 << 24, 128 * GIB], **changes,
    }  # fmt: skip


def behind_switches(switches: int = 2, gpus_each: int = 4, **changes: Any) -> list[dict[str, Any]]:
    """GPUs behind switches, each switch on a root complex of its own; `changes` are for the ports."""
    found = []
    for number in range(switches):
        bus = 0x40 * number
        root, up = f"0000:{bus:02x}:01.1", f"0000:{bus + 1:02x}:00.0"
        found += [device(root, f"pci0000:{bus:02x}", "root_port", **changes), device(up, root, "upstream")]
        for slot in range(gpus_each):
            down = f"0000:{bus + 2:02x}:{slot:02x}.0"
            found.append(device(down, up, "downstream", **changes))
            found.append(device(f"0000:{bus + 3 + slot:02x}:00.0", down, "endpoint"))
    return found


def on_root_ports(gpus: int = 4) -> list[dict[str, Any]]:
    found = []
    for number in range(gpus):
        root = f"0000:{0x40 * number:02x}:01.1"
        found.append(device(root, f"pci0000:{0x40 * number:02x}", "root_port"))
        found.append(device(f"0000:{0x40 * number + 1:02x}:00.0", root, "endpoint"))
    return found


def gpu(address: str, **changes: Any) -> dict[str, Any]:
    return {
        "address": address, "memory_bytes": 96 * GIB, "bar1_bytes": 128 * GIB, "persistence_mode": True,
        "power_limit_watts": 600.0, "power_default_watts": 600.0, "power_max_watts": 600.0, "throttle_reasons": [],
        "mig": False, "compute_mode": "Default", **changes,
    }  # fmt: skip


def record(pci: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """8 GPUs behind two switches, one AMD socket, 128 threads, nothing set yet; `changes` by path: cpu__threads=256."""
    pci = behind_switches() if pci is None else pci
    found: dict[str, Any] = {
        "schema": "lanewise.node-record/1",
        "host": {
            "kernel_command_line": "root=/dev/sda1 ro quiet",
            "virtualised": False,
            "read_at": "2026-12-01T10:00:00Z",
        },
        "cpu": {
            "vendor": "AuthenticAMD", "sockets": 1, "threads": 128, "threads_present": 128,
            "governor": "schedutil", "energy_performance_preference": "balance_performance",
        },
        "numa": [{"id": 0}, {"id": 1}],
        "driver": {"present": True, "version": "595.58.03", "kernel_module": "open"},
        "gpus": [gpu(one["address"]) for one in pci if one["port_type"] == "endpoint"],
        "pci": pci,
        "iommu": {"mode": "translated", "group_types": {"DMA-FQ": 40}},
        "kernel": {
            "modules": {
                "nvidia": {"version": "595.58.03", "parameters": {"EnableResizableBar": "0", "RegistryDwords": ""}},
                "nvidia_uvm": {"version": None, "parameters": {"uvm_disable_hmm": "N"}},
            },
            "sysctl": {
                "kernel.numa_balancing": "1", "vm.swappiness": "60", "vm.max_map_count": "1048576",
                "kernel.sched_migration_cost_ns": None,
            },
            "transparent_hugepage": "always", "transparent_hugepage_defrag": "madvise", "aspm_policy": "default",
        },
        "limits": {"service_memlock": 8388608, "docker_memlock": 8388608, "shm_bytes": 64 * GIB},
        "nccl": {"settings": [], "files": []},
        "container": {
            "docker": {"present": True, "version": "28.0", "daemon": {"runtimes": ["nvidia"]}},
            "nvidia_toolkit": "1.18.0", "cdi": [],
        },
        "services": {"nvidia-persistenced": {"active": "inactive", "enabled": "disabled"}},
        "unread": [],
    }  # fmt: skip
    for path, value in changes.items():
        *above, key = path.split("__")
        target = found
        for part in above:
            target = target[part]
        target[key] = value
    return copy.deepcopy(found)


def with_device(pci: list[dict[str, Any]], address: str, **changes: Any) -> list[dict[str, Any]]:
    assert address in [one["address"] for one in pci]
    return [{**one, **(changes if one["address"] == address else {})} for one in pci]


def decision(plan: dict[str, Any], setting: str) -> dict[str, Any]:
    (found,) = [one for one in plan["decisions"] if one["setting"] == setting]
    return found


def decided(setting: str, node: dict[str, Any] | None = None, **wishes: Any) -> dict[str, Any]:
    return decision(make_plan(record() if node is None else node, wishes), setting)


def enabling(*settings: str, **values: str) -> dict[str, Any]:
    return {"node_settings": {"enable": list(settings), "values": values}}
