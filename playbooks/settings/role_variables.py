"""From what is wanted to the variables of the roles; the roles' argument_specs are the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from playbooks.settings.catalogue import Setting
from playbooks.settings.node_class import Tree
from playbooks.settings.readings import bridges_of
from playbooks.settings.wishes import Wishes

P2P_CACHES = (
    "/root/.cache/vllm/gpu_p2p_access_cache_for_*.json",
    "/home/*/.cache/vllm/gpu_p2p_access_cache_for_*.json",
)

POWER_LIMIT = "power.limit"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A setting that is to be held, with its value."""

    setting: Setting
    value: Any


def role_variables(
    held: Iterable[Wanted],
    tree: Tree,
    wishes: Wishes,
    *,
    nccl_system: Mapping[str, str],
    nccl_workloads: Mapping[str, Any],
    threads: int,
) -> dict[str, dict[str, Any]]:
    """The variables of every role, complete: what nobody wants is there, and empty."""
    by_mechanism: dict[str, list[Wanted]] = {}
    for one in held:
        by_mechanism.setdefault(one.setting.mechanism, []).append(one)

    def targets(mechanism: str) -> dict[str, Any]:
        return {one.setting.target: one.value for one in by_mechanism.get(mechanism, [])}

    options = _module_options(targets("module_option"))
    registers = targets("pci_register")
    return {
        "runtime": {"runtime_install": dict(wishes.runtime_install), "runtime_checks": True},
        "kernel": {
            "kernel_command_line": _words(by_mechanism.get("kernel_command_line", [])),
            "kernel_sysctl": targets("sysctl"),
            "kernel_module_options": {name: given for name, given in options.items() if not name.startswith("nvidia")},
            "kernel_values": [
                *_values(targets("sysfs_value"), threads),
                *_port_values(by_mechanism.get("port_power", []), tree),
            ],
            "kernel_limits": targets("limit"),
        },
        "pcie": {
            "pcie_acs_redirect": registers.get("acs_redirect", ""),
            "pcie_max_read_request": int(registers.get("max_read_request", 0)),
            "pcie_aspm": registers.get("aspm", ""),
            "gpu_match": list(wishes.gpu_match),
        },
        "gpu": {
            "gpu_persistence": "nvidia-persistenced" in targets("service"),
            "gpu_power_limit_watts": int(targets("power_limit").get(POWER_LIMIT, 0)),
            "gpu_module_options": {name: given for name, given in options.items() if name.startswith("nvidia")},
        },
        "nccl": {"nccl_system": dict(nccl_system), "nccl_workloads": dict(nccl_workloads)},
        "container": {
            "container_memlock": "docker_memlock" in by_mechanism,
            "container_docker": targets("docker_daemon"),
            "container_cdi": "cdi" in by_mechanism,
            "container_p2p_caches": list(P2P_CACHES) if "p2p_caches" in by_mechanism else [],
        },
    }


def _words(settings: Iterable[Wanted]) -> list[str]:
    return list(dict.fromkeys(word for one in settings for word in str(one.value).split()))


def _module_options(targets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for target, value in targets.items():
        module, option = target.split()
        found.setdefault(module, {})[option] = value
    return found


def _values(paths: Mapping[str, str], threads: int) -> list[dict[str, str]]:
    """A `*` stands for the number of a CPU; files that are not there are passed over on the node."""
    return [
        {"path": path.replace("*", str(number)), "value": value}
        for path, value in paths.items()
        for number in (range(threads) if "*" in path else range(1))
    ]


def _port_values(ports: Iterable[Wanted], tree: Tree) -> list[dict[str, str]]:
    return [
        {"path": f"/sys/bus/pci/devices/{address}/power/control", "value": one.value}
        for one in ports
        for address in bridges_of(tree)
    ]
