"""What the inventory wishes for a node, checked for its form."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lanewise.errors import InputError
from playbooks.filter_plugins.unwritable import unpinned_packages

GPU_MATCH = ("10de:0302", "10de:0300")
"""NVIDIA's 3D controllers and VGA controllers, as vendor:class."""
_MATCH = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """NCCL settings of one workload: why, and until when."""

    settings: Mapping[str, str]
    reason: str
    expires: str


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What inventory/group_vars/<type>/settings.yml says.

    Attributes:
        enable, disable: catalogue ids.
        values: catalogue id to the value wanted instead of the catalogue's.
        virtualised: replaces what was read; None: as read.
        gpu_match: which PCI functions are GPUs, as "vendor:class", hexadecimal.
        nccl_system: for /etc/nccl.conf.
        nccl_workloads: name to the settings of one workload.
        runtime_install: package to version.
    """

    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    virtualised: bool | None = None
    gpu_match: tuple[str, ...] = GPU_MATCH
    nccl_system: Mapping[str, str] = field(default_factory=dict)
    nccl_workloads: Mapping[str, Workload] = field(default_factory=dict)
    runtime_install: Mapping[str, str] = field(default_factory=dict)


def near(name: str, names: Iterable[str]) -> str:
    """ "did you mean ...", or nothing."""
    found = difflib.get_close_matches(name, list(names), n=3)
    return f"did you mean {', '.join(found)}?" if found else ""


def read_wishes(document: object) -> Wishes:
    """Check the form of wishes; whether they can be granted is the plan's matter.

    Raises:
        InputError: an unknown key, another type, or a YAML boolean where a value belongs.
    """
    wishes = _mapping({} if document is None else document, "the wishes")
    _refuse_others(
        wishes,
        "the wishes",
        "node_settings", "node_virtualised", "gpu_match", "nccl_system", "nccl_workloads", "reboot_ok",
        "runtime_install",
    )  # fmt: skip
    settings = _mapping(wishes.get("node_settings") or {}, "node_settings")
    _refuse_others(settings, "node_settings", "enable", "disable", "values")
    return Wishes(
        enable=_words(settings.get("enable"), "node_settings.enable"),
        disable=_words(settings.get("disable"), "node_settings.disable"),
        values=_values(settings.get("values"), "node_settings.values"),
        virtualised=_yes_or_no(wishes.get("node_virtualised"), "node_virtualised"),
        gpu_match=_gpu_match(wishes.get("gpu_match")),
        nccl_system=_values(wishes.get("nccl_system"), "nccl_system"),
        nccl_workloads=_workloads(wishes.get("nccl_workloads")),
        runtime_install=_packages(wishes.get("runtime_install")),
    )


def _wrong(what: str, expected: str) -> InputError:
    return InputError(what, expected=expected, todo="correct it in the inventory (group_vars/<type>/settings.yml)")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(f"{where} is {str(value)[:80]!r}", "a mapping from names")
    return value


def _refuse_others(given: Mapping[str, Any], where: str, *known: str) -> None:
    for key in given:
        if key not in known:
            raise _wrong(f"{where} has the unknown key {key[:80]!r}; {near(key, known)}".rstrip("; "), ", ".join(known))


def _words(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise _wrong(f"{where} is {str(value)[:80]!r}", "a list of words")
    return tuple(dict.fromkeys(value))


def _values(value: object, where: str) -> Mapping[str, str]:
    return {key: _text(one, f"{where}.{key}") for key, one in _mapping(value or {}, where).items()}


def _text(value: object, where: str) -> str:
    """Text or a whole number. Of a bare `on` YAML makes a boolean, of a bare `2.10` a number: not what was written."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        kind = next(one.__name__ for one in type(value).__mro__ if one.__module__ == "builtins")  # Ansible has its own
        raise _wrong(f"{where} is {str(value)[:80]!r}, a {kind}", 'text in quotes, such as "on"')
    text = str(value)
    if text != text.strip() or not text.isprintable() or not text:
        raise _wrong(f"{where} is {text[:80]!r}", "one line of text without blanks around it")
    return text


def _yes_or_no(value: object, where: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise _wrong(f"{where} is {str(value)[:80]!r}", "true or false, or nothing: as read")


def _gpu_match(value: object) -> tuple[str, ...]:
    found = _words(value, "gpu_match") or GPU_MATCH
    for one in found:
        if not _MATCH.fullmatch(one):
            raise _wrong(f"gpu_match has {one[:80]!r}", "vendor:class, 4 hexadecimal digits each, such as 10de:0302")
    return found


def _packages(value: object) -> Mapping[str, str]:
    found = _values(value, "runtime_install")
    for name in unpinned_packages(found):
        what = f"runtime_install.{name} is {found[name][:80]!r}"
        raise _wrong(what, "a package by name, and its exact version, as apt-cache madison PACKAGE lists them")
    return found


def _workloads(value: object) -> Mapping[str, Workload]:
    return {name: _workload(name, one) for name, one in _mapping(value or {}, "nccl_workloads").items()}


def _workload(name: str, value: object) -> Workload:
    where = f"nccl_workloads.{name}"
    given = _mapping(value, where)
    _refuse_others(given, where, "settings", "reason", "expires")
    expires = given.get("expires")
    if isinstance(expires, dt.date):  # what YAML makes of a bare date
        expires = expires.isoformat()
    return Workload(
        settings=_values(given.get("settings"), f"{where}.settings"),
        reason=_text(given["reason"], f"{where}.reason") if given.get("reason") else "",
        expires=_text(expires, f"{where}.expires") if expires else "",
    )
