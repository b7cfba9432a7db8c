"""The node record's GPUs and their driver: nvidia-smi, the driver's own files, and the PCI devices."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .node_record_command import first_line, run
from .node_record_pci import ADDRESS
from .node_record_tree import UNKNOWN, Files, form, integer, word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node_record_tree import Parser, Tree

SMI_SECONDS = 30.0  # without persistence mode, nvidia-smi wakes GPU after GPU: seconds on a healthy node
THROTTLE_REASONS = {  # nvmlClocksEventReason* in https://docs.nvidia.com/deploy/nvml-api (nvml.h)
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def _reasons(text: str) -> list[str]:
    """Names of the bits that are set; a bit without a name here is told as a number."""
    mask = form("0x([0-9a-fA-F]{1,16})", lambda digits: int(digits, 16))(text)
    return [THROTTLE_REASONS.get(1 << n, hex(1 << n)) for n in range(64) if mask >> n & 1]


_watts = form(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)", float)
_switch = form("(Enabled|Disabled)", lambda text: text == "Enabled")

GPU_COLUMNS: Files = {  # field: column of nvidia-smi, parser
    "index": ("index", integer),
    "name": ("name", word),
    "memory_bytes": ("memory.total", lambda text: integer(text) * 1024 * 1024),
    "compute_capability": ("compute_cap", form(r"([0-9]+\.[0-9]+)")),
    "pstate": ("pstate", form("(P[0-9]+)")),
    "persistence_mode": ("persistence_mode", _switch),
    "power_limit_watts": ("power.limit", _watts),
    "power_default_watts": ("power.default_limit", _watts),
    "power_max_watts": ("power.max_limit", _watts),
    "clock_sm_mhz": ("clocks.current.sm", integer),
    "clock_memory_mhz": ("clocks.current.memory", integer),
    "clock_sm_max_mhz": ("clocks.max.sm", integer),
    "clock_memory_max_mhz": ("clocks.max.memory", integer),
    "throttle_reasons": ("clocks_event_reasons.active", _reasons),
    "ecc": ("ecc.mode.current", _switch),
    "mig": ("mig.mode.current", _switch),
    "compute_mode": ("compute_mode", word),
    "temperature_c": ("temperature.gpu", integer),
    "pcie_generation": ("pcie.link.gen.current", integer),
    "pcie_generation_max": ("pcie.link.gen.max", integer),
}
SMI_COLUMNS = ("pci.bus_id", "driver_version", *(column for column, _ in GPU_COLUMNS.values()))
NOT_ON_EVERY_GPU = ("ecc.mode.current", "mig.mode.current")  # there, N/A says that the GPU cannot do it
_unknown_column = re.compile(r'Field "([a-z_.]+)" is not a valid field')
_nvrm_version = form(r"(?s)NVRM version:.*?Kernel Module +(?:for \S+ +)?([0-9]+(?:\.[0-9]+)+).*")
_nvrm_kind = form(r"(?s)NVRM version:(.*?)Kernel Module.*", lambda text: "open" if "Open" in text else "proprietary")


@dataclass(frozen=True)
class Smi:
    """What nvidia-smi said.

    Attributes:
        rows: its columns by PCI address.
        trouble: what went wrong; "" if nothing.
        installed: whether there is an nvidia-smi.
    """

    rows: dict[str, dict[str, str]]
    trouble: str = ""
    installed: bool = True


def nvidia_smi(tree: Tree) -> Smi:
    """Ask nvidia-smi, of this machine only."""
    if not tree.live:
        return Smi({}, "nvidia-smi is not run for another root", installed=False)
    program = shutil.which("nvidia-smi")
    if program is None:
        return Smi({}, "nvidia-smi: not found", installed=False)
    try:
        columns, status, output = _query(program)
    except OSError as error:
        return Smi({}, f"nvidia-smi: {error.strerror or error}")
    rows = dict(filter(None, (_row(line, columns) for line in output.splitlines())))
    return Smi(rows, f"nvidia-smi: status {status}, {first_line(output)}" if status else "")


def _query(program: str) -> tuple[Sequence[str], int, str]:
    """Columns, exit status and output; without the columns that this driver's nvidia-smi does not know."""
    columns = list(SMI_COLUMNS)
    while True:
        command = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
        status, output = run(command, SMI_SECONDS)
        refused = _unknown_column.search(output)
        if not status or not refused or refused[1] not in columns[1:]:
            return columns, status, output
        columns.remove(refused[1])


def _row(line: str, columns: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """One GPU's columns by name; nothing for a line of another kind (a warning, an error)."""
    cells = [cell.strip() for cell in line.split(",")]
    found = ADDRESS.fullmatch(cells[0])
    if not found or len(cells) > len(columns):
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}", {columns[i]: cell for i, cell in enumerate(cells)}


def gpus(tree: Tree, pci: list[dict[str, Any]] | str, smi: Smi) -> list[dict[str, Any]]:
    """NVIDIA's display controllers, from sysfs and from nvidia-smi: a sandbox may hide the one, a fault the other."""
    devices = [] if isinstance(pci, str) else pci
    if not devices and smi.trouble and (pci == UNKNOWN or smi.installed):
        raise ValueError(f"no PCI devices to read in /sys/bus/pci/devices, and {smi.trouble}")
    nvidia = {device["address"]: device for device in devices if device["vendor"] == "0x10de"}
    seen = {address for address, device in nvidia.items() if device["class"].startswith("0x03")}
    return [_gpu(tree, address, smi, nvidia.get(address, {})) for address in sorted(seen | set(smi.rows))]


def _gpu(tree: Tree, address: str, smi: Smi, device: dict[str, Any]) -> dict[str, Any]:
    gpu: dict[str, Any] = {"address": address}
    for key, (column, parse) in GPU_COLUMNS.items():
        gpu[key] = tree.ask(f"gpus[{address}].{key}", _cell, smi, address, column, parse)
    gpu["bar1_bytes"] = tree.ask(f"gpus[{address}].bar1_bytes", _bar1, device)
    return gpu


def _cell(smi: Smi, address: str, column: str, parse: Parser) -> Any:  # noqa: ANN401
    if address not in smi.rows:
        raise ValueError(smi.trouble or "nvidia-smi does not list this GPU")
    text = smi.rows[address].get(column, "")
    if column in NOT_ON_EVERY_GPU and text.strip("[]") in ("N/A", "Not Supported"):
        return None
    if not text or text.startswith("[") or text == "N/A":
        raise ValueError(f"nvidia-smi prints {text!r} for {column}")
    return parse(text)


def _bar1(device: dict[str, Any]) -> int:
    """The size of what NVIDIA calls BAR1, the second that a GPU has: registers are below the first."""
    bars = device.get("bar_bytes", UNKNOWN)
    if not isinstance(bars, list) or len(bars) < 2:
        raise ValueError(f"the base address registers in pci are {bars}")
    return int(bars[1])


def driver(tree: Tree, smi: Smi) -> dict[str, Any]:
    """The NVIDIA kernel driver; that there is none is known only where the kernel shows its modules."""
    own = "proc/driver/nvidia/version"
    version = tree.take("driver.version", own, _nvrm_version, optional=True)
    kind = tree.take("driver.kernel_module", own, _nvrm_kind, optional=True)
    if version is None:
        version = tree.take("driver.version", "sys/module/nvidia/version", word, optional=True) or _smi_driver(smi)
        kind = version and tree.note("driver.kernel_module", f"/{own}: not there")
    if version is None and tree.ask("driver.present", tree.names, "sys/module") == UNKNOWN:
        unknown = {key: tree.note(f"driver.{key}", "no trace of a driver") for key in ("version", "kernel_module")}
        return {"present": UNKNOWN, **unknown}
    return {"present": version is not None, "version": version, "kernel_module": kind}


def _smi_driver(smi: Smi) -> str | None:
    versions = [row.get("driver_version", "") for row in smi.rows.values()]
    return next((version for version in versions if re.fullmatch(r"[0-9.]+", version)), None)
