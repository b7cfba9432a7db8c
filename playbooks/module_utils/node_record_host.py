"""The node record's host, CPU, NUMA nodes and limits."""

from __future__ import annotations

import os
import re
import resource
import shlex
import time
from typing import TYPE_CHECKING, Any

from .node_record_services import service_memlock, unit_memlock
from .node_record_tree import LIMIT, UNKNOWN, Files, form, integer, line, redacted, word

if TYPE_CHECKING:
    from pathlib import Path

    from .node_record_services import Units
    from .node_record_tree import Tree

HYPERVISORS = re.compile(r"QEMU|KVM|VMware|VirtualBox|innotek|\bXen\b|Bochs|OpenStack|Virtual Machine|Parallels")
CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container", "run/secrets/kubernetes.io")
CONTAINER_CGROUPS = re.compile(r"docker|kubepods|containerd|libpod|lxc|crio|garden|machine\.slice")
CPUFREQ = "sys/devices/system/cpu/cpufreq"


def _cpus(text: str) -> list[int]:
    """The CPU numbers of a list such as 0-238,240-255."""
    numbers: list[int] = []
    for part in word(text).split(","):
        first, _, last = part.partition("-")
        span = range(integer(first), integer(last or first) + 1)
        if len(span) + len(numbers) > LIMIT:
            raise ValueError(f"more than {LIMIT} CPUs")
        numbers.extend(span)
    return numbers


_kib = form("([0-9]{1,18}) kB", lambda digits: int(digits) * 1024)  # the kernel writes kB and means KiB

DMI_FILES: Files = {"sys_vendor": ("sys_vendor", word), "product_name": ("product_name", word)}
HOST_FILES: Files = {
    "os": ("etc/os-release", line("PRETTY_NAME", lambda text: word(shlex.split(text)[0]), "=")),
    "kernel_command_line": ("proc/cmdline", lambda text: redacted(word(text))),
    "memory_bytes": ("proc/meminfo", line("MemTotal", _kib)),
    "x2apic": ("proc/cpuinfo", line("flags", lambda text: "x2apic" in text.split())),
}
CPU_FILES: Files = {
    "model_name": ("proc/cpuinfo", line("model name", word)),
    "vendor": ("proc/cpuinfo", line("vendor_id", word)),
    "family": ("proc/cpuinfo", line("cpu family", integer)),
    "model": ("proc/cpuinfo", line("model", integer)),
    "threads": ("sys/devices/system/cpu/online", lambda text: len(_cpus(text))),
    "threads_present": ("sys/devices/system/cpu/present", lambda text: len(_cpus(text))),
}
NUMA_FILES: Files = {
    "cpus": ("cpulist", str.strip),  # empty for a node that is memory only
    "memory_bytes": ("meminfo", line("Node [0-9]+ MemTotal", _kib)),
    "distances": ("distance", lambda text: [integer(part) for part in text.split()]),
}


def host(tree: Tree) -> dict[str, Any]:
    """The record's `host`."""
    dmi = tree.table("host", "sys/class/dmi/id", DMI_FILES)
    return {
        "hostname": tree.ask("host.hostname", _uname, tree, "nodename", "hostname"),
        "kernel": tree.ask("host.kernel", _uname, tree, "release", "osrelease"),
        "architecture": tree.ask("host.architecture", _uname, tree, "machine", "arch"),
        **tree.table("host", ".", HOST_FILES),
        **dmi,
        "virtualised": tree.ask("host.virtualised", _virtualised, tree, dmi),
        "container": tree.ask("host.container", _container, tree),
        "read_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _uname(tree: Tree, attribute: str, name: str) -> str:
    return str(getattr(os.uname(), attribute)) if tree.live else word(tree.text(f"proc/sys/kernel/{name}"))


def _virtualised(tree: Tree, dmi: dict[str, str]) -> bool:
    """Either sign suffices for yes; no takes both, since a hypervisor can hide the CPU flag."""
    if HYPERVISORS.search(" ".join(dmi.values())):
        return True
    if "hypervisor" in line("flags", str.split)(tree.text("proc/cpuinfo")):
        return True
    if UNKNOWN in dmi.values():
        raise ValueError("no hypervisor flag in /proc/cpuinfo, but /sys/class/dmi/id, which could tell, cannot be read")
    return False


def _container(tree: Tree) -> bool:
    """No takes a host's systemd in init.scope: in a cgroup namespace, a container's / looks like a host's."""
    if any(os.path.lexists(tree.path(mark)) for mark in CONTAINER_MARKS):
        return True
    cgroups = tree.text("proc/1/cgroup")
    if CONTAINER_CGROUPS.search(cgroups):
        return True
    if "/init.scope" not in cgroups:
        raise ValueError("no sign of a container, and /proc/1/cgroup does not show a host's init.scope")
    return False


def cpu(tree: Tree) -> dict[str, Any]:
    """The record's `cpu`."""
    preference = "energy_performance_preference"
    return {
        **tree.table("cpu", ".", CPU_FILES),
        "sockets": tree.ask("cpu.sockets", _distinct, tree, "physical_package_id"),
        "cores": tree.ask("cpu.cores", _distinct, tree, "thread_siblings_list"),
        "governor": tree.ask("cpu.governor", _of_policies, tree, "scaling_governor"),
        # Only some drivers (amd_pstate, intel_pstate) have it, for all policies or for none.
        preference: tree.ask(f"cpu.{preference}", _of_policies, tree, preference, optional=tree.holds(CPUFREQ)),
        "allowed_cpus": tree.ask("cpu.allowed_cpus", tree.own, lambda: len(os.sched_getaffinity(0))),
    }


def _distinct(tree: Tree, leaf: str) -> int:
    """How many values a topology file has over the online CPUs: as many as there are sockets, or groups of threads."""
    online = _cpus(tree.text("sys/devices/system/cpu/online"))
    values = {word(tree.text(f"sys/devices/system/cpu/cpu{number}/topology/{leaf}")) for number in online}
    if "-1" in values:
        raise ValueError(f"the kernel does not know {leaf}")
    return len(values)


def _of_policies(tree: Tree, leaf: str) -> str | None:
    """The one value that a file has in every CPU's scaling policy, or mixed; None where the kernel scales no CPU."""
    policies = [name for name in tree.names(CPUFREQ) if name.startswith("policy")]
    values = {word(tree.text(f"{CPUFREQ}/{name}/{leaf}")) for name in policies}
    return "mixed" if len(values) > 1 else next(iter(values), None)


def numa(tree: Tree) -> list[dict[str, Any]]:
    """The record's `numa`."""
    nodes = "sys/devices/system/node"
    numbers = sorted(int(name[4:]) for name in tree.names(nodes) if re.fullmatch("node[0-9]{1,6}", name))
    return [{"id": n, **tree.table(f"numa[{n}]", f"{nodes}/node{n}", NUMA_FILES)} for n in numbers]


def limits(tree: Tree, units: Units) -> dict[str, Any]:
    """The record's `limits`: of this process, of services, and of the container engine."""
    return {
        "memlock_soft_bytes": tree.ask("limits.memlock_soft_bytes", tree.own, lambda: _memlock(0)),
        "memlock_hard_bytes": tree.ask("limits.memlock_hard_bytes", tree.own, lambda: _memlock(1)),
        "service_memlock": tree.ask("limits.service_memlock", service_memlock, tree),
        "docker_memlock": tree.ask("limits.docker_memlock", unit_memlock, units, "docker"),
        "shm_bytes": tree.ask("limits.shm_bytes", tree.own, lambda: _shm(tree.path("dev/shm"))),
    }


def _memlock(which: int) -> int | str:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[which]
    return "unlimited" if limit == resource.RLIM_INFINITY else limit


def _shm(path: Path) -> int:
    status = os.statvfs(path)
    if status.f_blocks == 0:
        raise ValueError("the file system states no size")
    return status.f_blocks * status.f_frsize
