"""Which NCCL settings of the inventory are granted, and where they go.

The names that NCCL reads are those of tuning/nccl_params.tsv, which is read as a file: parts do not import one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from playbooks.filter_plugins.unwritable import WORKLOAD
from playbooks.settings.catalogue import load_catalogue
from playbooks.settings.known import Record, Unknown
from playbooks.settings.wishes import Workload, near

SYSTEM_FILE = "/etc/nccl.conf"
_PARAMETERS = Path(__file__).parents[2] / "tuning" / "nccl_params.tsv"
_MOST = 1023
"""NCCL cuts values after so many characters (src/misc/param.cc)."""
_WORKLOAD = re.compile(WORKLOAD)
"""As the roles nccl and container take it."""
_RELEASE = re.compile(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?", re.ASCII)
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What becomes of one NCCL wish.

    Attributes:
        title: the variable, or the workload.
        verdict: apply, in_force, refuse or fault.
        now, want, why: as in a decision.
        settings: what is granted, by name; empty where it is refused.
    """

    title: str
    verdict: str
    now: str
    want: str
    why: str
    settings: Mapping[str, str]


@cache
def known_names() -> frozenset[str]:
    """Every variable that a looked-at libnccl reads."""
    lines = _PARAMETERS.read_text(encoding="utf-8").splitlines()
    return frozenset(line.partition("\t")[0] for line in lines if line.startswith("NCCL_"))


@cache
def _facts() -> Any:  # noqa: ANN401 - our own file
    return yaml.safe_load(Path(__file__).with_name("nccl_names.yaml").read_text(encoding="utf-8"))


def is_system(name: str) -> bool:
    """Whether NCCL's user guide lists the variable under "System configuration"."""
    return name in _facts()["system"]


def refusal(name: str, value: str) -> str:
    """Why NCCL would not do what is meant, whichever file says so; empty where it would."""
    if name not in known_names():
        return f"no NCCL from 2.26 to 2.32 reads {name}; {near(name, known_names())}".rstrip("; ")
    never = [s for s in load_catalogue().values() if s.policy == "never" and s.target == name]
    if never:
        return f"{never[0].id}: {never[0].why}"
    if len(value) > _MOST:
        return f"NCCL cuts values after {_MOST} characters, and this has {len(value)}"
    return _of_level(value) if name in _facts()["levels"]["names"] else ""


def _of_level(value: str) -> str:
    levels = _facts()["levels"]
    if value in levels["words"]:
        return ""
    if re.fullmatch(r"\d{1,9}", value, re.ASCII):
        word = levels["legacy"][min(int(value), len(levels["legacy"]) - 1)]
        return f"a number is the old way to say it, and {value} means {word}: write {word}"
    return f"NCCL passes over {value}: it knows {', '.join(levels['words'])}, in capitals"


def system_grants(wanted: Mapping[str, str], record: Record) -> Iterator[Grant]:
    """One grant for each setting meant for /etc/nccl.conf."""
    for name, value in wanted.items():
        why = refusal(name, value)
        if not why and not is_system(name):
            why = (
                "NCCL's user guide does not list it as system configuration, and what stays in a system file outlives "
                "its reason: say it in nccl_workloads, with a reason and an expiry"
            )
        verdict, now, told = ("refuse", "", why) if why else _in_force(name, value, record)
        yield Grant(title=name, verdict=verdict, now=now, want=value, why=told, settings={} if why else {name: value})


def _in_force(name: str, value: str, record: Record) -> tuple[str, str, str]:
    """Verdict, what is in force now, and what to say."""
    settings = record.listed("nccl.settings")
    if isinstance(settings, Unknown):
        return "apply", "unknown", settings.reason
    found = [one for one in settings if one.get("name") == name]
    if not found:
        return "apply", "not set", ""
    now, source = str(found[0].get("value")), str(found[0].get("source"))
    told = f"{now} ({source})"
    hidden = found[0].get("hidden") or []
    if source == SYSTEM_FILE:
        return ("in_force" if now == value else "apply"), told, ""
    if now != value and f"{SYSTEM_FILE}: {value}" in hidden:
        return "fault", told, f"{SYSTEM_FILE} says {value}, and {source} wins"
    held = f"{SYSTEM_FILE}: {value}" in hidden
    return ("in_force" if held else "apply"), told, "" if held else f"{source} will still win"


def workload_grants(wanted: Mapping[str, Workload], record: Record) -> Iterator[Grant]:
    """One grant for each workload."""
    read_at = record.get("host.read_at")
    today = read_at[:10] if isinstance(read_at, str) else ""
    for name, workload in wanted.items():
        why = "; ".join(_faults(name, workload, today))
        yield Grant(
            title=f"workload {name}",
            verdict="refuse" if why else "apply",
            now="not recorded",
            want=" ".join(f"{key}={value}" for key, value in workload.settings.items()),
            why=why or f"{workload.reason} (until {workload.expires})",
            settings={} if why else workload.settings,
        )


def _faults(name: str, workload: Workload, today: str) -> Iterator[str]:
    if not _WORKLOAD.fullmatch(name):
        yield "the name becomes a file's: a-z, 0-9, '_' and '-', at most 63"
    if not workload.settings:
        yield "it has no settings"
    if not workload.reason:
        yield "it lacks a reason"
    yield from _of_expiry(workload.expires, today)
    for key, value in workload.settings.items():
        if why := refusal(key, value):
            yield f"{key}={value}: {why}"


def _of_expiry(expires: str, today: str) -> Iterator[str]:
    if _DATE.fullmatch(expires):
        if today and expires < today:
            yield f"it expired on {expires}: measure again whether it is still needed"
    elif not _RELEASE.fullmatch(expires):
        yield f"it lacks an expiry: an NCCL release such as 2.31 or a date such as 2027-03-01, not {expires!r}"
