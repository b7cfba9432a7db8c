"""What is in force of a wanted value: read from the record, never assumed from a file that we wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from playbooks.settings.known import Record, Unknown
from playbooks.settings.node_class import Tree, acs_redirect, redirecting_ports

_REPEATABLE = {"pci"}
"""Options of which the kernel reads every occurrence, so that another one is no clash."""
_YES_NO = {"Y": "1", "N": "0", "y": "1", "n": "0"}
UNLIMITED = {"infinity", "unlimited", "-1"}
_ON = {"active", "enabled", "static", "alias"}


class State(Enum):
    """What the record says of a wanted value."""

    HELD = "held"
    DIFFERS = "differs"
    MISSING = "missing"  # this kernel or node does not have the thing
    UNKNOWN = "unknown"
    BROKEN = "broken"  # it was applied, and yet it is not in force
    FORBIDDEN = "forbidden"  # this node cannot take the value


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is in force: how it compares, the value in words, and what else there is to say."""

    state: State
    now: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to look for: see `Setting` and `Case`."""

    target: str
    value: Any
    reads: str = ""
    at_least: bool = False
    effective: tuple[str, ...] = ()


def _unknown(value: Unknown) -> Reading:
    return Reading(state=State.UNKNOWN, now="unknown", why=value.reason)


def _compared(now: object, wanted: str, *, at_least: bool = False) -> Reading:
    """A value against the one wanted, both as text of one line."""
    shown = " ".join(str(now).split())
    held = shown == wanted or (at_least and shown.isdigit() and wanted.isdigit() and int(shown) >= int(wanted))
    return Reading(state=State.HELD if held else State.DIFFERS, now=shown)


def _missing(why: str) -> Reading:
    return Reading(state=State.MISSING, now="not there", why=why)


def command_line(record: Record, _: Tree, question: Question) -> Reading:
    """Words on the kernel command line, and what the kernel made of them."""
    line = record.get("host.kernel_command_line")
    if isinstance(line, Unknown):
        return _unknown(line)
    present, wanted = str(line).split(), str(question.value).split()
    keys = {word.partition("=")[0] for word in wanted}
    same = [word for word in present if word.partition("=")[0] in keys]
    now = " ".join(same) or "not set"
    if set(wanted) - set(present):
        return Reading(state=State.DIFFERS, now=now)
    if clash := [word for word in same if word not in wanted and word.partition("=")[0] not in _REPEATABLE]:
        return Reading(
            state=State.BROKEN,
            now=now,
            why=f"the command line also has {' '.join(clash)}: remove it where it comes from",
        )
    return _in_effect(record, question, now)


def _in_effect(record: Record, question: Question, now: str) -> Reading:
    """Words that are on the command line, against what the kernel then did."""
    if not question.reads:
        return Reading(state=State.HELD, now=now)
    value = record.get(question.reads)
    if isinstance(value, Unknown):
        return _unknown(value)
    if question.effective and str(value) not in question.effective:
        why = f"the command line has it, and yet {question.reads} is {value}: firmware or another option decides"
        return Reading(state=State.BROKEN, now=f"{now} ({value})", why=why)
    return Reading(state=State.HELD, now=f"{now} ({value})")


def _entry(record: Record, path: str, key: str) -> Any:  # noqa: ANN401 - as Record.get
    """An entry of a mapping whose keys may hold dots."""
    found = record.get(path)
    if isinstance(found, Mapping):
        return record.of(found, key, f"{path}.{key}")
    return found


def sysctl(record: Record, _: Tree, question: Question) -> Reading:
    """A sysctl; one that this kernel does not have is missing."""
    value = _entry(record, "kernel.sysctl", question.target)
    if isinstance(value, Unknown):
        return _unknown(value)
    if value is None:
        return _missing("this kernel has no such sysctl")
    return _compared(value, str(question.value), at_least=question.at_least)


def module_option(record: Record, _: Tree, question: Question) -> Reading:
    """A module parameter in force; not in force while the module is not loaded."""
    module, option = question.target.split()
    loaded = _entry(record, "kernel.modules", module)
    if isinstance(loaded, Unknown):
        return _unknown(loaded)
    if loaded is None:
        return Reading(state=State.DIFFERS, now="module not loaded", why=f"{module} is not loaded: in force once it is")
    parameters = record.of(
        loaded if isinstance(loaded, Mapping) else {}, "parameters", f"kernel.modules.{module}.parameters"
    )
    if isinstance(parameters, Unknown):
        return _unknown(parameters)
    name = question.reads or (option.removeprefix("NVreg_") if module == "nvidia" else option)
    if not isinstance(parameters, Mapping) or parameters.get(name) is None:
        return _missing(f"the loaded {module} has no option {option}")
    value = record.of(parameters, name, f"kernel.modules.{module}.parameters.{name}")
    if isinstance(value, Unknown):
        return _unknown(value)
    shown = str(value).strip('"')
    return _compared(_YES_NO.get(shown, shown) or "empty", str(question.value))


def recorded(record: Record, _: Tree, question: Question) -> Reading:
    """The value at a path of the record."""
    value = record.get(question.reads)
    if isinstance(value, Unknown):
        return _unknown(value)
    if value is None:
        return _missing("this kernel does not have it")
    return _compared(value, str(question.value))


def pci_register(record: Record, tree: Tree, question: Question) -> Reading:
    """A register of the ports or GPUs."""
    return _REGISTERS[question.target](record, tree, str(question.value))


def _acs(_: Record, tree: Tree, __: str) -> Reading:
    state = acs_redirect(tree)
    if state == "absent":
        return _missing("no root or switch port has ACS")
    if state == "unknown":
        return _unknown(Unknown(reason="ACS control of a port could not be read; that needs root"))
    on = redirecting_ports(tree)
    return Reading(
        state=State.HELD if state == "off" else State.DIFFERS,
        now=f"on at {len(on)} port{'s' * (len(on) != 1)}" if on else "off",
    )


def _max_read_request(record: Record, tree: Tree, wanted: str) -> Reading:
    return _same_on(record, tree, tree.gpus, "max_read_request_bytes", wanted)


def _aspm(record: Record, tree: Tree, wanted: str) -> Reading:
    return _same_on(record, tree, tree.path(), "aspm_control", wanted)


def port_power(record: Record, tree: Tree, question: Question) -> Reading:
    """Run-time power management of the bridges above GPUs."""
    return _same_on(record, tree, bridges_of(tree), "power_control", str(question.value))


def bridges_of(tree: Tree) -> tuple[str, ...]:
    """The bridges above GPUs."""
    return tuple(address for address in tree.path() if address not in tree.gpus)


def _same_on(record: Record, tree: Tree, addresses: Iterable[str], key: str, wanted: str) -> Reading:
    """One register of several functions; those that do not have it are passed over."""
    values = [record.of(tree.devices[one], key, f"pci[{one}].{key}") for one in addresses]
    if unread := [value for value in values if isinstance(value, Unknown)]:
        return _unknown(Unknown(reason=f"{len(unread)} of {len(values)} could not be read: {unread[0].reason}"))
    found = sorted({str(value) for value in values if value is not None})
    if not found:
        return _missing("no function above the GPUs has it")
    return Reading(state=State.HELD if found == [wanted] else State.DIFFERS, now=", ".join(found))


_REGISTERS: Mapping[str, Callable[[Record, Tree, str], Reading]] = {
    "acs_redirect": _acs,
    "max_read_request": _max_read_request,
    "aspm": _aspm,
}


def service(record: Record, _: Tree, question: Question) -> Reading:
    """A unit that is to run now and at boot."""
    service = _entry(record, "services", question.target)
    if isinstance(service, Unknown):
        return _unknown(service)
    if not isinstance(service, Mapping):
        return _missing(f"there is no unit {question.target}")
    now = [f"{key}: {service.get(key)}" for key in ("active", "enabled")]
    held = all(str(service.get(key)) in _ON for key in ("active", "enabled"))
    return Reading(state=State.HELD if held else State.DIFFERS, now=", ".join(now))


def limit(record: Record, tree: Tree, question: Question) -> Reading:
    """A limit of processes; "unlimited" is more than any number."""
    if not question.reads:
        return Reading(state=State.DIFFERS, now="not recorded", why="look at /proc/PID/limits of a process")
    found = recorded(record, tree, question)
    return Reading(state=State.HELD, now="unlimited") if found.now in UNLIMITED else found


def docker_daemon(record: Record, _: Tree, question: Question) -> Reading:
    """A key of Docker's daemon.json."""
    daemon = record.get("container.docker.daemon")
    if isinstance(daemon, Unknown):
        return _unknown(daemon)
    value = daemon.get(question.target) if isinstance(daemon, Mapping) else None
    now = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return Reading(
        state=State.HELD if value == question.value else State.DIFFERS, now="not set" if value is None else now
    )


def cdi(record: Record, _: Tree, __: Question) -> Reading:
    """A CDI specification that offers GPUs."""
    listed = record.listed("container.cdi")
    if isinstance(listed, Unknown):
        return _unknown(listed)
    found = [str(spec.get("path")) for spec in listed if spec.get("kind") == "nvidia.com/gpu" and spec.get("devices")]
    return Reading(state=State.HELD if found else State.DIFFERS, now=", ".join(found) or "no specification for GPUs")


def power_limit(record: Record, _: Tree, question: Question) -> Reading:
    """The power limit of all GPUs."""
    limits, most = _watts_of(record, "power_limit_watts"), _watts_of(record, "power_max_watts")
    if isinstance(limits, Unknown) or isinstance(most, Unknown):
        return _unknown(
            limits if isinstance(limits, Unknown) else Unknown(reason="the most that the GPUs take is unknown")
        )
    if not limits or not most:
        return _missing("no GPU")
    wanted, now = int(question.value), ", ".join(f"{limit:g} W" for limit in sorted(set(limits)))
    if wanted > min(most):
        return Reading(state=State.FORBIDDEN, now=now, why=f"the most that every GPU takes is {min(most):g} W")
    return Reading(state=State.HELD if set(limits) == {wanted} else State.DIFFERS, now=now)


def _watts_of(record: Record, key: str) -> list[float] | Unknown:
    gpus = record.listed("gpus")
    if isinstance(gpus, Unknown):
        return gpus
    values = [record.of(gpu, key, f"gpus[{gpu.get('address')}].{key}") for gpu in gpus]
    if unread := [value for value in values if isinstance(value, Unknown)]:
        return unread[0]
    return [float(value) for value in values if isinstance(value, int | float)]


def not_recorded(*_: object) -> Reading:
    """What no record holds."""
    return Reading(state=State.DIFFERS, now="not recorded")
