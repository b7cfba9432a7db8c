"""Checks that only read: each says ok, fault, unknown, or that there is nothing to check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playbooks.settings.known import Record, Unknown
from playbooks.settings.node_class import NodeClass, Tree, redirecting_ports

SHM_AT_LEAST = 1 << 30
"""Bytes: `--shm-size=1g`, as NCCL's user guide suggests ("Runtime and MPI issues", section "Shared memory")."""
NO_DRIVER = "no NVIDIA driver"
"""Why a check is skipped that only the driver could answer."""
_CAUSES_OF_THROTTLE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_LEFT_OUT_BY = ("nosmt", "maxcpus=", "nr_cpus=", "possible_cpus=")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The outcome of a check: "ok", "fault", "unknown" or "skip", what was found, and why it matters."""

    verdict: str
    now: str
    why: str = ""


Check = Callable[[Record, Tree, NodeClass], Found]


def _ok(now: str, why: str = "") -> Found:
    return Found(verdict="ok", now=now, why=why)


def _fault(now: str, why: str) -> Found:
    return Found(verdict="fault", now=now, why=why)


def _unknown(reason: str) -> Found:
    return Found(verdict="unknown", now="unknown", why=reason)


def _skip(why: str) -> Found:
    return Found(verdict="skip", now="not there", why=why)


def _some(faults: Sequence[str]) -> str:
    """The first few faults, and how many more."""
    more = f" and {len(faults) - 4} more" if len(faults) > 4 else ""
    return "; ".join(faults[:4]) + more


def _links(tree: Tree) -> list[tuple[str, str | None]]:
    """Functions on the GPUs' paths that have a link upwards, each with the bridge at its other end (None: root bus)."""
    internal = ("downstream", "root_complex_endpoint")  # joined to what is above them inside a chip
    found: list[tuple[str, str | None]] = []
    for address in tree.path():
        above = str(tree.devices[address].get("parent"))
        if above in tree.devices and tree.devices[address].get("port_type") not in internal:
            found.append((address, above))
        elif address in tree.gpus:
            found.append((address, None))
    return found


def _link_width(record: Record, tree: Tree, _: NodeClass) -> Found:
    faults, unread, seen = [], [], 0
    for address, above in _links(tree):
        widths = [_number(record, tree, one, key) for one, key in _width_fields(address, above)]
        if reasons := [value.reason for value in widths if isinstance(value, Unknown)]:
            unread += reasons
        elif None not in widths[:2]:
            seen += 1
            faults += _width_faults(address, above, widths)
    if faults:
        why = "lanes are lost: seat the card, cable or riser; bifurcation and slot settings in the firmware"
        return _fault(_some(faults), why)
    return _unknown(unread[0]) if unread else _ok(f"{seen} links at full width") if seen else _skip("no PCIe link")


def _width_fields(address: str, above: str | None) -> list[tuple[str, str]]:
    keys = ("current_link_width", "max_link_width")
    return [(one, key) for one in (address, above) if one is not None for key in keys]


def _number(record: Record, tree: Tree, address: str, key: str) -> Any:  # noqa: ANN401 - as Record.get
    return record.number(tree.devices[address], key, f"pci[{address}].{key}")


def _width_faults(address: str, above: str | None, widths: Sequence[Any]) -> list[str]:
    """The lower end must use all lanes it has, the upper end all that both have."""
    current, most, *upper = widths
    if not current and most:
        return [f"{address} has no link (0 of {most} lanes)"]
    faults = [f"{address} uses {current} of {most} lanes"] if current < most else []
    if upper and None not in upper and upper[0] < min(upper[1], most):
        faults.append(f"{above} uses {upper[0]} of {min(upper[1], most)} lanes")
    return faults


def _link_speed(record: Record, tree: Tree, _: NodeClass) -> Found:
    speeds = [
        (_number(record, tree, gpu, "current_link_speed_gts"), _number(record, tree, gpu, "max_link_speed_gts"))
        for gpu in tree.gpus
    ]
    if unread := [speed for pair in speeds for speed in pair if isinstance(speed, Unknown)]:
        return _unknown(unread[0].reason)
    told = sorted({f"{now:g} of {most:g} GT/s" for now, most in speeds if now is not None and most is not None})
    if not told:
        return _skip("no PCIe link")
    return _ok(", ".join(told), "an idle GPU lowers its speed; judge it under load")


def _aer(record: Record, tree: Tree, _: NodeClass) -> Found:
    totals = {kind: [_number(record, tree, one, f"aer_{kind}") for one in tree.path()] for kind in _AER}
    flat = [value for values in totals.values() for value in values]
    if unread := [value for value in flat if isinstance(value, Unknown)]:
        return _unknown(unread[0].reason)
    if all(value is None for value in flat):
        return _unknown("the kernel shows no error counters: the firmware kept AER (_OSC), so no error is told of")
    sums = {kind: sum(value for value in values if value is not None) for kind, values in totals.items()}
    told = ", ".join(f"{number} {kind}" for kind, number in sums.items())
    if sums["nonfatal"] or sums["fatal"]:
        return _fault(told, "errors that were not corrected, since boot: cables, risers, retimers, power")
    return _ok(told, "correctable errors matter where they grow under load" if sums["correctable"] else "")


_AER = ("correctable", "nonfatal", "fatal")


def _driverless(record: Record) -> bool:
    return record.get("driver.present") is False


def _bar1(record: Record, tree: Tree, _: NodeClass) -> Found:
    if _driverless(record):
        return _skip(NO_DRIVER)
    gpus = record.listed("gpus")
    if isinstance(gpus, Unknown):
        return _unknown(gpus.reason)
    faults, unread = [], []
    for gpu in gpus:
        address = str(gpu.get("address"))
        bar, memory = (record.of(gpu, key, f"gpus[{address}].{key}") for key in ("bar1_bytes", "memory_bytes"))
        bar = _largest_bar(record, tree, address) if not isinstance(bar, int) else bar
        if isinstance(bar, int) and isinstance(memory, int):
            faults += [f"{address}: {_gib(bar)} of {_gib(memory)}"] if bar < memory else []
        else:
            unread += [value.reason for value in (bar, memory) if isinstance(value, Unknown)] or ["not recorded"]
    if faults:
        return _fault(
            _some(faults), "BAR1 does not cover the memory: Resizable BAR and Above 4G Decoding in the firmware"
        )
    return _unknown(unread[0]) if unread else _ok("BAR1 covers the memory") if gpus else _skip("no GPU")


def _largest_bar(record: Record, tree: Tree, address: str) -> Any:  # noqa: ANN401 - as Record.get
    if address not in tree.devices:
        return Unknown(reason=f"{address} is not among the PCI functions")
    bars = record.of(tree.devices[address], "bar_bytes", f"pci[{address}].bar_bytes")
    return max(bars, default=0) if isinstance(bars, list) and all(isinstance(bar, int) for bar in bars) else bars


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"


def _numa_node(record: Record, tree: Tree, node: NodeClass) -> Found:
    if not tree.gpus:
        return _skip("no GPU")
    if node.sockets is None:
        return _unknown("the number of sockets is unknown")
    if node.sockets < 2:
        return _skip("one socket")
    nodes = {gpu: _number(record, tree, gpu, "numa_node") for gpu in tree.gpus}
    if unread := [value for value in nodes.values() if isinstance(value, Unknown)]:
        return _unknown(unread[0].reason)
    if lost := [gpu for gpu, where in nodes.items() if where is None]:
        return _fault(
            _some([f"{gpu}: -1" for gpu in lost]), "the firmware does not say at which socket the GPU is (_PXM)"
        )
    return _ok("nodes " + ", ".join(map(str, sorted(set(nodes.values())))))


_APIC_IDS = 255


def _cpus_online(record: Record, _: Tree, node: NodeClass) -> Found:
    present = record.get("cpu.threads_present")
    if isinstance(present, Unknown) or node.threads is None:
        return _unknown(present.reason if isinstance(present, Unknown) else "the number of CPU threads is unknown")
    told = f"{node.threads} of {present} CPU threads online"
    if not isinstance(present, int) or node.threads >= present:
        return _ok(told)
    line = str(record.get("host.kernel_command_line"))
    if given := [word for word in line.split() if word.startswith(_LEFT_OUT_BY)]:
        return _ok(told, f"so asked by {' '.join(given)}")
    cause = (
        "the IOMMU is off, and x2APIC with it: APIC ids above 254 cannot start; use iommu=pt"
        if node.iommu == "off" and present >= _APIC_IDS // 2  # ids have gaps
        else "see the kernel log for CPUs that did not come up"
    )
    return _fault(told, cause)


def _translated_redirect(_: Record, tree: Tree, node: NodeClass) -> Found:
    told = f"IOMMU {node.iommu}, ACS redirect {node.acs_redirect}"
    if node.iommu == "unknown" or node.acs_redirect == "unknown":
        return _unknown(told)
    if node.iommu in ("translated", "mixed") and node.acs_redirect == "on" and not node.virtualised:
        ports = len(redirecting_ports(tree))
        return _fault(told, f"{ports} ports send what peers write through a translating IOMMU: P2P stalls or hangs")
    return _ok(told)


def _max_payload(record: Record, tree: Tree, _: NodeClass) -> Found:
    values = [_number(record, tree, one, "max_payload_bytes") for one in tree.path()]
    if unread := [value for value in values if isinstance(value, Unknown)]:
        return _unknown(unread[0].reason)
    sizes = sorted({value for value in values if value is not None})
    if not sizes:
        return _skip("no PCIe function above a GPU")
    told = ", ".join(f"{size} bytes" for size in sizes)
    return _ok(told) if len(sizes) == 1 else _fault(told, "differs along the GPUs' paths: packets may be malformed")


def _shm(record: Record, _: Tree, __: NodeClass) -> Found:
    size = record.get("limits.shm_bytes")
    if not isinstance(size, int):
        return _unknown(size.reason if isinstance(size, Unknown) else "no /dev/shm")
    if size < SHM_AT_LEAST:
        return _fault(_gib(size), "NCCL's user guide suggests 1 GB")
    return _ok(_gib(size))


def _of_gpus(key: str, *, missing: str = "nvidia-smi does not tell it") -> Callable[[Record], list[Any] | Found]:
    def read(record: Record) -> list[Any] | Found:
        if _driverless(record):
            return _skip(NO_DRIVER)
        gpus = record.listed("gpus")
        if isinstance(gpus, Unknown):
            return _unknown(gpus.reason)
        values = [record.of(gpu, key, f"gpus[{gpu.get('address')}].{key}") for gpu in gpus]
        if unread := [value for value in values if isinstance(value, Unknown)]:
            return _unknown(unread[0].reason)
        return [value for value in values if value is not None] or (_skip(missing) if gpus else _skip("no GPU"))

    return read


def _all_gpus(key: str, good: Callable[[str], bool], why: str) -> Check:
    """A check that one field of every GPU is good."""
    read = _of_gpus(key)

    def check(record: Record, _: Tree, __: NodeClass) -> Found:
        values = read(record)
        if isinstance(values, Found):
            return values
        told = ", ".join(sorted({_lower(value) for value in values}))
        return _ok(told) if all(good(_lower(value)) for value in values) else _fault(told, why)

    return check


def _lower(value: object) -> str:
    return (" ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)).lower()


def _equal_power(record: Record, _: Tree, __: NodeClass) -> Found:
    values = _of_gpus("power_limit_watts")(record)
    if isinstance(values, Found):
        return values
    if not all(isinstance(value, int | float) for value in values):
        return _unknown("a power limit is no number")
    told = ", ".join(f"{value:g} W" for value in sorted(set(values)))
    return _ok(told) if len(set(values)) == 1 else _fault(told, "ranks wait for the GPU with the lowest limit")


def _open_modules(record: Record, _: Tree, __: NodeClass) -> Found:
    if _driverless(record):
        return _skip(NO_DRIVER)
    kind = record.get("driver.kernel_module")
    if not isinstance(kind, str):
        return _unknown(kind.reason if isinstance(kind, Unknown) else "the driver does not tell")
    return _ok(kind) if kind == "open" else _fault(kind, "Blackwell needs the open kernel modules")


CHECKS: Mapping[str, Check] = {
    "link_width": _link_width,
    "link_speed": _link_speed,
    "aer": _aer,
    "bar1": _bar1,
    "numa_node": _numa_node,
    "cpus_online": _cpus_online,
    "translated_redirect": _translated_redirect,
    "max_payload": _max_payload,
    "shm": _shm,
    "equal_power": _equal_power,
    "open_modules": _open_modules,
    "mig": _all_gpus("mig", lambda mode: mode in ("disabled", "false", "n/a"), "MIG forbids P2P between GPUs"),
    "compute_mode": _all_gpus(
        "compute_mode", lambda mode: mode == "default", "an exclusive mode keeps a second process off the GPU"
    ),
    "throttle": _all_gpus(
        "throttle_reasons",
        lambda reasons: not any(cause in reasons for cause in _CAUSES_OF_THROTTLE),
        "hardware slows the GPU down: cooling or power",
    ),
}
