#!/usr/bin/env python3
"""The node record: what a node is and how it is set, as read; `python3 node_record.py` prints it as JSON.

Runs by itself on Python >= 3.9 with the standard library, reads only, needs no privilege and does not fail as a whole:
a field that cannot be read is "unknown", and `unread` says why. docs/node-record.md describes every field. Serial
numbers, UUIDs and MAC addresses are never recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Parser = Callable[[str], Any]
    Files = dict[str, tuple[str, Parser]]  # field: file, parser

SCHEMA = "lanewise.node-record/1"
UNKNOWN = "unknown"
LIMIT = 64 * 1024  # bytes read of a file or of a command's output, CPUs in a list: odd ones cost no more than this
COMMAND_SECONDS = 30.0  # without persistence mode, nvidia-smi wakes GPU after GPU: seconds on a healthy node
FAULTS = (OSError, ValueError, LookupError, AttributeError)  # AttributeError: a call that this system does not have

ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
HYPERVISORS = re.compile(r"QEMU|KVM|VMware|VirtualBox|innotek|\bXen\b|Bochs|OpenStack|Virtual Machine|Parallels")
CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container", "run/secrets/kubernetes.io")
CONTAINER_CGROUPS = re.compile(r"docker|kubepods|containerd|libpod|lxc|crio|garden|machine\.slice")
IOMMU_MODES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
PRIVATE = re.compile(
    r"""(?P<kept>(?:uuid|machine[_-]id|passw\w*|secret|token|key|credential\w*|initiator|netroot|bootif)=
          | /dev/disk/by-\w*id/) (?:"[^"]*"|\S+)
      | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}  # UUID
      | \b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b  # MAC address
      | \b[0-9a-f]{32}\b""",
    re.IGNORECASE | re.VERBOSE,
)


def read_node(root: str | None = None) -> dict[str, Any]:
    """Read a node: this machine, or the file system below `root`, for which no command is run.

    Never raises for what the node holds: what cannot be read is "unknown" and has an entry in `unread`.
    """
    tree = _Tree(root)
    smi = _nvidia_smi() if tree.live else _Smi({}, "nvidia-smi is not run for another root", installed=False)
    pci = tree.ask("pci", _pci, tree)
    return {
        "schema": SCHEMA,
        "host": _host(tree),
        "cpu": _cpu(tree),
        "numa": tree.ask("numa", _numa, tree),
        "driver": _driver(tree, smi),
        "gpus": tree.ask("gpus", _gpus, tree, pci, smi),
        "pci": pci,
        "iommu": _iommu(tree),
        "limits": _limits(tree),
        "unread": tree.unread,
    }


class _Tree:
    """One root file system, read within bounds; keeps the reason of each field that could not be read."""

    def __init__(self, root: str | None) -> None:
        self.live = root is None
        self.root = Path(os.path.realpath(root or "/"))
        self.unread: list[dict[str, str]] = []

    def path(self, name: str) -> Path:
        """Where `name` lies; below another root, a link that leads out of it (into this machine) is refused."""
        path = self.root / name
        if not self.live and not Path(os.path.realpath(path)).is_relative_to(self.root):
            raise ValueError(f"/{name} leads out of the root")
        return path

    def text(self, name: str) -> str:
        """The first 64 KiB of a regular file: opening a pipe could hang, opening a device could do anything."""
        path = self.path(name)
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"/{name} is not a regular file")
        with path.open("rb") as file:
            return file.read(LIMIT).decode(errors="replace")

    def names(self, name: str) -> list[str]:
        """The sorted names in a directory."""
        return sorted(os.listdir(self.path(name)))  # noqa: PTH208 - iterdir makes a Path of each of a thousand names

    def link(self, name: str) -> Path:
        """What a symbolic link says, without following it."""
        parent, _, leaf = name.rpartition("/")
        return (self.path(parent) / leaf).readlink()

    def own(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """What a call says of this process, which says nothing about another root."""
        if not self.live:
            raise ValueError("a fact of the running process, not of another root")
        return call()

    def ask(self, field: str, call: Callable[..., Any], *arguments: Any, optional: bool = False) -> Any:  # noqa: ANN401
        """What `call` returns; None where a file of an optional field is not there, else "unknown" where it fails."""
        try:
            return call(*arguments)
        except FAULTS as error:
            if optional and isinstance(error, FileNotFoundError):
                return None
            if not isinstance(error, OSError) or not error.filename:
                return self.note(field, str(error))
            name = str(error.filename)
            return self.note(field, f"{name if self.live else name.removeprefix(str(self.root))}: {error.strerror}")

    def take(self, field: str, name: str, parse: Parser, *, optional: bool = False) -> Any:  # noqa: ANN401
        """The value of one file."""
        return self.ask(field, lambda: parse(self.text(name)), optional=optional)

    def table(self, field: str, directory: str, files: Files, *, optional: bool = False) -> dict[str, Any]:
        """The values of some files of one directory."""
        return {
            key: self.take(f"{field}.{key}", f"{directory}/{name}", parse, optional=optional)
            for key, (name, parse) in files.items()
        }

    def note(self, field: str, reason: str) -> str:
        """Record why a field is unknown; returns "unknown"."""
        self.unread.append({"field": field, "reason": _redacted(reason)})
        return UNKNOWN


# parsers: a value from text, or ValueError


def _redacted(text: str) -> str:
    return PRIVATE.sub(lambda found: f"{found['kept'] or ''}<redacted>", text)


def _word(text: str) -> str:
    word = text.strip()
    if not word or len(word) > 4096 or not word.isprintable() or "\ufffd" in word:
        raise ValueError(f"not one line of text: {word[:40]!r}")
    return word


def _form(pattern: str, value: Parser = str) -> Parser:
    """A parser of text that has this form; the value is made of its one group."""

    def parse(text: str) -> Any:  # noqa: ANN401
        found = re.fullmatch(pattern, text.strip())
        if not found:
            raise ValueError(f"not in the expected form: {text.strip()[:40]!r}")
        return value(found[1])

    return parse


def _line(key: str, parse: Parser, mark: str = ":") -> Parser:
    """A parser of the first line `key: value`."""

    def parse_line(text: str) -> Any:  # noqa: ANN401
        found = re.search(rf"^{key}[ \t]*{mark}(.*)$", text, re.MULTILINE)
        if not found:
            raise ValueError(f"no line {key!r}")
        return parse(found[1])

    return parse_line


_integer = _form("([0-9]{1,18})", int)
_kib = _form("([0-9]{1,18}) kB", lambda digits: int(digits) * 1024)  # the kernel writes kB and means KiB
_hex = _form("(0x[0-9a-f]{4,6})")


def _cpus(text: str) -> list[int]:
    """The CPU numbers of a list such as 0-238,240-255."""
    numbers: list[int] = []
    for part in _word(text).split(","):
        first, _, last = part.partition("-")
        span = range(_integer(first), _integer(last or first) + 1)
        if len(span) + len(numbers) > LIMIT:
            raise ValueError(f"more than {LIMIT} CPUs")
        numbers.extend(span)
    return numbers


# host, CPU, memory

DMI_FILES: Files = {"sys_vendor": ("sys_vendor", _word), "product_name": ("product_name", _word)}
HOST_FILES: Files = {
    "os": ("etc/os-release", _line("PRETTY_NAME", lambda text: _word(shlex.split(text)[0]), "=")),
    "kernel_command_line": ("proc/cmdline", lambda text: _redacted(_word(text))),
    "memory_bytes": ("proc/meminfo", _line("MemTotal", _kib)),
}
CPU_FILES: Files = {
    "model_name": ("proc/cpuinfo", _line("model name", _word)),
    "vendor": ("proc/cpuinfo", _line("vendor_id", _word)),
    "family": ("proc/cpuinfo", _line("cpu family", _integer)),
    "model": ("proc/cpuinfo", _line("model", _integer)),
    "threads": ("sys/devices/system/cpu/online", lambda text: len(_cpus(text))),
}
NUMA_FILES: Files = {
    "cpus": ("cpulist", str.strip),  # empty for a node that is memory only
    "memory_bytes": ("meminfo", _line("Node [0-9]+ MemTotal", _kib)),
    "distances": ("distance", lambda text: [_integer(part) for part in text.split()]),
}


def _host(tree: _Tree) -> dict[str, Any]:
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


def _uname(tree: _Tree, attribute: str, name: str) -> str:
    return str(getattr(os.uname(), attribute)) if tree.live else _word(tree.text(f"proc/sys/kernel/{name}"))


def _virtualised(tree: _Tree, dmi: dict[str, str]) -> bool:
    """Either sign suffices for yes; no takes both, since a hypervisor can hide the CPU flag."""
    if HYPERVISORS.search(" ".join(dmi.values())):
        return True
    if "hypervisor" in _line("flags", str.split)(tree.text("proc/cpuinfo")):
        return True
    if UNKNOWN in dmi.values():
        raise ValueError("no hypervisor flag in /proc/cpuinfo, but /sys/class/dmi/id, which could tell, cannot be read")
    return False


def _container(tree: _Tree) -> bool:
    """No takes a host's systemd in init.scope: in a cgroup namespace, a container's / looks like a host's."""
    if any(os.path.lexists(tree.path(mark)) for mark in CONTAINER_MARKS):
        return True
    cgroups = tree.text("proc/1/cgroup")
    if CONTAINER_CGROUPS.search(cgroups):
        return True
    if "/init.scope" not in cgroups:
        raise ValueError("no sign of a container, and /proc/1/cgroup does not show a host's init.scope")
    return False


def _cpu(tree: _Tree) -> dict[str, Any]:
    return {
        **tree.table("cpu", ".", CPU_FILES),
        "sockets": tree.ask("cpu.sockets", _distinct, tree, "physical_package_id"),
        "cores": tree.ask("cpu.cores", _distinct, tree, "thread_siblings_list"),
        "governor": tree.ask("cpu.governor", _governor, tree),
        "allowed_cpus": tree.ask("cpu.allowed_cpus", tree.own, lambda: len(os.sched_getaffinity(0))),
    }


def _distinct(tree: _Tree, leaf: str) -> int:
    """How many values a topology file has over the online CPUs: as many as there are sockets, or groups of threads."""
    online = _cpus(tree.text("sys/devices/system/cpu/online"))
    values = {_word(tree.text(f"sys/devices/system/cpu/cpu{number}/topology/{leaf}")) for number in online}
    if "-1" in values:
        raise ValueError(f"the kernel does not know {leaf}")
    return len(values)


def _governor(tree: _Tree) -> str | None:
    cpufreq = "sys/devices/system/cpu/cpufreq"
    policies = [name for name in tree.names(cpufreq) if name.startswith("policy")]
    governors = {_word(tree.text(f"{cpufreq}/{name}/scaling_governor")) for name in policies}
    return "mixed" if len(governors) > 1 else next(iter(governors), None)


def _numa(tree: _Tree) -> list[dict[str, Any]]:
    nodes = "sys/devices/system/node"
    numbers = sorted(int(name[4:]) for name in tree.names(nodes) if re.fullmatch("node[0-9]{1,6}", name))
    return [{"id": n, **tree.table(f"numa[{n}]", f"{nodes}/node{n}", NUMA_FILES)} for n in numbers]


def _limits(tree: _Tree) -> dict[str, Any]:
    return {
        "memlock_soft_bytes": tree.ask("limits.memlock_soft_bytes", tree.own, lambda: _memlock(0)),
        "memlock_hard_bytes": tree.ask("limits.memlock_hard_bytes", tree.own, lambda: _memlock(1)),
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


# PCI

_width = _form("([0-9]|[12][0-9]|3[0-2])", int)  # x32 is the widest; 255 is the kernel's "unknown"
_speed = _form(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s.*", float)

PCI_FILES: Files = {"class": ("class", _hex), "vendor": ("vendor", _hex), "device": ("device", _hex)}
PCI_OPTIONAL_FILES: Files = {  # absent where the device is not PCIe, is no bridge, or the kernel knows no NUMA
    "numa_node": ("numa_node", _form("(-1|[0-9]{1,6})", lambda number: None if number == "-1" else int(number))),
    "current_link_speed_gts": ("current_link_speed", _speed),
    "current_link_width": ("current_link_width", _width),
    "max_link_speed_gts": ("max_link_speed", _speed),
    "max_link_width": ("max_link_width", _width),
    "secondary_bus": ("secondary_bus_number", _integer),
    "subordinate_bus": ("subordinate_bus_number", _integer),
}


def _pci(tree: _Tree) -> list[dict[str, Any]]:
    return [_device(tree, name) for name in tree.names("sys/bus/pci/devices") if ADDRESS.fullmatch(name)]


def _device(tree: _Tree, address: str) -> dict[str, Any]:
    field, here = f"pci[{address}]", f"sys/bus/pci/devices/{address}"
    there = os.path.isdir(tree.root / here)  # noqa: PTH112 - never raises; of a device that is gone, nothing is known
    return {
        "address": address,
        "parent": tree.ask(f"{field}.parent", lambda: _parent(tree.link(here).parent.name)),
        **tree.table(field, here, PCI_FILES),
        "driver": tree.ask(f"{field}.driver", lambda: tree.link(f"{here}/driver").name, optional=there),
        **tree.table(field, here, PCI_OPTIONAL_FILES, optional=there),
    }


_parent = _form(f"(pci[0-9a-f]{{4,8}}:[0-9a-f]{{2}}|{ADDRESS.pattern})")  # a host bridge or a bridge


def _iommu(tree: _Tree) -> dict[str, Any]:
    types = tree.ask("iommu.group_types", _group_types, tree)
    if types == UNKNOWN:
        return {"mode": tree.note("iommu.mode", "follows from group_types"), "group_types": UNKNOWN}
    modes = {IOMMU_MODES.get(kind, "mixed") for kind in types}
    return {"mode": "mixed" if len(modes) > 1 else next(iter(modes), "off"), "group_types": types}


def _group_types(tree: _Tree) -> dict[str, int]:
    """How many IOMMU groups have each type; none where the IOMMU is off (the kernel's log does not tell)."""
    if not tree.names("sys/class/iommu"):
        return {}
    groups = tree.names("sys/kernel/iommu_groups")
    if not groups:
        raise ValueError("/sys/kernel/iommu_groups is empty, although /sys/class/iommu names an IOMMU")
    types = Counter(_word(tree.text(f"sys/kernel/iommu_groups/{group}/type")) for group in groups)
    return dict(sorted(types.items()))


# GPUs and their driver

GPU_COLUMNS: Files = {  # field: column of nvidia-smi, parser
    "index": ("index", _integer),
    "name": ("name", _word),
    "memory_bytes": ("memory.total", lambda text: _integer(text) * 1024 * 1024),
    "compute_capability": ("compute_cap", _form(r"([0-9]+\.[0-9]+)")),
    "pstate": ("pstate", _form("(P[0-9]+)")),
    "persistence_mode": ("persistence_mode", _form("(Enabled|Disabled)", lambda text: text == "Enabled")),
}
SMI_COLUMNS = ("pci.bus_id", "driver_version", *(column for column, _ in GPU_COLUMNS.values()))
_nvrm_version = _form(r"(?s)NVRM version:.*?Kernel Module +(?:for \S+ +)?([0-9]+(?:\.[0-9]+)+).*")
_nvrm_kind = _form(r"(?s)NVRM version:(.*?)Kernel Module.*", lambda text: "open" if "Open" in text else "proprietary")


@dataclass(frozen=True)
class _Smi:
    """What nvidia-smi said: its columns by PCI address, and what went wrong ("" if nothing)."""

    rows: dict[str, dict[str, str]]
    trouble: str = ""
    installed: bool = True


def _nvidia_smi() -> _Smi:
    program = shutil.which("nvidia-smi")
    if program is None:
        return _Smi({}, "nvidia-smi: not found", installed=False)
    try:
        status, output = _run([program, f"--query-gpu={','.join(SMI_COLUMNS)}", "--format=csv,noheader,nounits"])
    except OSError as error:
        return _Smi({}, f"nvidia-smi: {error.strerror or error}")
    said = output.strip().partition("\n")[0][:200]
    rows = dict(filter(None, map(_smi_row, output.splitlines())))
    return _Smi(rows, f"nvidia-smi: status {status}, {said}" if status else "")


def _smi_row(line: str) -> tuple[str, dict[str, str]] | None:
    """One GPU's columns by name; nothing for a line of another kind (a warning, an error)."""
    cells = [cell.strip() for cell in line.split(",")]
    found = ADDRESS.fullmatch(cells[0])
    if not found or len(cells) > len(SMI_COLUMNS):
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}", {SMI_COLUMNS[i]: cell for i, cell in enumerate(cells)}


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a command; goes on without one that hangs in the driver and that no signal ends."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = child.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(1)
            raise TimeoutError(f"no end within {COMMAND_SECONDS:g} s") from None
        output.seek(0)
        return status, output.read(LIMIT).decode(errors="replace")


def _gpus(tree: _Tree, pci: list[dict[str, Any]] | str, smi: _Smi) -> list[dict[str, Any]]:
    """NVIDIA's display controllers, from sysfs and from nvidia-smi: a sandbox may hide the one, a fault the other."""
    devices = [] if isinstance(pci, str) else pci
    if not devices and smi.trouble and (pci == UNKNOWN or smi.installed):
        raise ValueError(f"no PCI devices to read in /sys/bus/pci/devices, and {smi.trouble}")
    nvidia = [device for device in devices if device["vendor"] == "0x10de"]
    seen = {device["address"] for device in nvidia if device["class"].startswith("0x03")}
    return [_gpu(tree, address, smi) for address in sorted(seen | set(smi.rows))]


def _gpu(tree: _Tree, address: str, smi: _Smi) -> dict[str, Any]:
    gpu: dict[str, Any] = {"address": address}
    for key, (column, parse) in GPU_COLUMNS.items():
        gpu[key] = tree.ask(f"gpus[{address}].{key}", _cell, smi, address, column, parse)
    return gpu


def _cell(smi: _Smi, address: str, column: str, parse: Parser) -> Any:  # noqa: ANN401
    if address not in smi.rows:
        raise ValueError(smi.trouble or "nvidia-smi does not list this GPU")
    text = smi.rows[address].get(column, "")
    if not text or text.startswith("[") or text == "N/A":
        raise ValueError(f"nvidia-smi prints {text!r} for {column}")
    return parse(text)


def _driver(tree: _Tree, smi: _Smi) -> dict[str, Any]:
    """The NVIDIA kernel driver; that there is none is known only where the kernel shows its modules."""
    own = "proc/driver/nvidia/version"
    version = tree.take("driver.version", own, _nvrm_version, optional=True)
    kind = tree.take("driver.kernel_module", own, _nvrm_kind, optional=True)
    if version is None:
        version = tree.take("driver.version", "sys/module/nvidia/version", _word, optional=True) or _smi_driver(smi)
        kind = version and tree.note("driver.kernel_module", f"/{own}: not there")
    if version is None and tree.ask("driver.present", tree.names, "sys/module") == UNKNOWN:
        unknown = {key: tree.note(f"driver.{key}", "no trace of a driver") for key in ("version", "kernel_module")}
        return {"present": UNKNOWN, **unknown}
    return {"present": version is not None, "version": version, "kernel_module": kind}


def _smi_driver(smi: _Smi) -> str | None:
    versions = [row.get("driver_version", "") for row in smi.rows.values()]
    return next((version for version in versions if re.fullmatch(r"[0-9.]+", version)), None)


def main(arguments: list[str] | None = None) -> int:
    """Print the node record as JSON on stdout; exit status 0, or 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(description="Print the node record (what a node is and how it is set) as JSON.")
    parser.add_argument("--indent", action="store_true", help="one field a line, for people")
    parser.add_argument("--root", metavar="DIR", help="read the file system below DIR instead; runs no command")
    options = parser.parse_args(arguments)
    if options.root is not None and not Path(options.root).is_dir():
        parser.error(f"--root {options.root}: not a directory; expected one that holds sys, proc and etc")
    sys.stdout.write(json.dumps(read_node(options.root), indent=2 if options.indent else None) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
