"""The node record's kernel: module parameters in force, sysctls, and the choices that sysfs offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .node_record_tree import UNKNOWN, Files, chosen, line_of_text, redacted, word

if TYPE_CHECKING:
    from .node_record_tree import Tree

MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_peermem", "pcie_aspm", "processor", "intel_idle", "nvme_core", "amd_pstate",
)  # fmt: skip
NVIDIA_PARAMETERS = "proc/driver/nvidia/params"
SYSCTLS = (
    "kernel.numa_balancing",
    "kernel.sched_migration_cost_ns",
    "vm.max_map_count",
    "vm.min_free_kbytes",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"


def _value(text: str) -> str:
    return redacted(line_of_text(text))


def _nvidia_parameters(text: str) -> dict[str, str]:
    """The driver's own list, a line `Name: value` each; a text stands in quotes."""
    pairs = (line.split(": ", 1) for line in text.splitlines())
    return {word(name): _value(value).strip('"') for name, value in pairs}


def kernel(tree: Tree, counting_ports: int | str | None) -> dict[str, Any]:
    """The record's `kernel`; `counting_ports` is the number of ports at which it handles errors."""
    huge_pages: Files = {
        "transparent_hugepage": ("enabled", chosen),
        "transparent_hugepage_defrag": ("defrag", chosen),
    }
    there, policy = tree.holds("sys/module"), "sys/module/pcie_aspm/parameters/policy"
    return {
        "modules": _modules(tree),
        "sysctl": {name: _sysctl(tree, name) for name in SYSCTLS},
        **tree.table("kernel", HUGE_PAGES, huge_pages, optional=tree.holds("sys/kernel/mm")),
        "aspm_policy": tree.take("kernel.aspm_policy", policy, chosen, optional=there),
        "aer_ports": counting_ports,
    }


def _modules(tree: Tree) -> dict[str, Any] | str:
    loaded = tree.ask("kernel.modules", tree.names, "sys/module")
    if loaded == UNKNOWN:
        return UNKNOWN
    return {name: _module(tree, name) if name in loaded else None for name in MODULES}


def _module(tree: Tree, name: str) -> dict[str, Any]:
    field, here = f"kernel.modules.{name}", f"sys/module/{name}"
    return {
        "version": tree.take(f"{field}.version", f"{here}/version", word, optional=True),
        "parameters": _parameters(tree, f"{field}.parameters", f"{here}/parameters", own=name == "nvidia"),
    }


def _parameters(tree: Tree, field: str, here: str, *, own: bool) -> dict[str, Any] | str:
    """What sysfs shows, and for nvidia the driver's own list: sysfs shows its texts empty, or not at all."""
    listed = tree.take(field, NVIDIA_PARAMETERS, _nvidia_parameters, optional=True) if own else None
    names = tree.ask(field, tree.names, here, optional=True) if listed != UNKNOWN else UNKNOWN
    if names == UNKNOWN:
        return UNKNOWN
    shown = {name: tree.take(f"{field}.{name}", f"{here}/{name}", _value) for name in names or ()}
    return {**shown, **(listed or {})}


def _sysctl(tree: Tree, name: str) -> Any:  # noqa: ANN401
    path = f"proc/sys/{name.replace('.', '/')}"
    there = tree.holds(path.rpartition("/")[0])
    return tree.take(f"kernel.sysctl.{name}", path, word, optional=there)
