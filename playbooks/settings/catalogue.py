"""The catalogue of settings: `catalogue.yaml`, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lanewise.errors import InputError
from playbooks.settings.checks import CHECKS
from playbooks.settings.conditions import ALWAYS, Condition, check, facts_of
from playbooks.settings.facts import FACTS
from playbooks.settings.mechanisms import MECHANISMS

LAYERS = {
    "firmware": "Firmware and hardware",
    "kernel": "Kernel command line",
    "pcie": "PCIe registers and links",
    "driver": "NVIDIA driver",
    "os": "Operating system",
    "container": "Containers",
    "nccl": "NCCL and engines",
    "vm": "Virtual machines",
}
POLICIES = {
    "default": "applied wherever its condition holds, unless the inventory disables it",
    "candidate": "may help; measure it first, then enable it in the inventory",
    "opt-in": "a choice with a price; only where the inventory enables it",
    "check": "read only: ok or a fault",
    "advisory": "firmware or hardware: for a person",
    "never": "cannot be enabled; listed with the reason, so that nobody adds it again",
}
_FILE = Path(__file__).with_name("catalogue.yaml")
_KEYS = {
    "id", "title", "layer", "policy", "requires", "when", "forbid", "value", "cases", "accepts", "apply", "reads",
    "compare", "check", "recheck", "why", "read", "risk", "source",
}  # fmt: skip
_NEEDED = ("id", "title", "layer", "policy", "why", "read", "source")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One value that a setting may get.

    Attributes:
        name: by which the inventory asks for it; empty where there is but one.
        when: where it is right.
        value: text, or what a key of Docker's daemon.json gets.
        effective: what the record's `reads` may then say; empty: the value itself.
    """

    value: Any
    name: str = ""
    when: Condition = field(default_factory=lambda: ALWAYS)
    effective: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Forbidden:
    """What forbids a setting where everything else allows it, and what to say then."""

    when: Condition
    says: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing that a node can be told, or be checked for.

    Attributes:
        id, title, layer, policy: as `LAYERS` and `POLICIES` know them.
        requires: must hold wherever it is applied.
        when: must hold where it is applied unasked.
        forbidden: each forbids it.
        cases: the first that is right is its value.
        accepts: values that the inventory may give: {"one_of": [...]} or {"from": n, "to": n}; None: names of cases.
        mechanism, target: how it is applied (`MECHANISMS`), and on what.
        reads: path in the record where the effective value stands, for mechanisms that need telling.
        at_least: the effective value may be larger.
        check: name in `CHECKS`; empty for a check that a person makes.
        recheck: ids of settings after whose change this one must be looked at again.
        why, read, risk: text.
        source: URLs.
    """

    id: str
    title: str
    layer: str
    policy: str
    requires: Condition
    when: Condition
    forbidden: tuple[Forbidden, ...]
    cases: tuple[Case, ...]
    accepts: Mapping[str, Any] | None
    mechanism: str
    target: str
    reads: str
    at_least: bool
    check: str
    recheck: tuple[str, ...]
    why: str
    read: str
    risk: str
    source: tuple[str, ...]

    def facts(self) -> Iterator[str]:
        """Names of the facts that decide over it."""
        for condition in (self.requires, self.when, *(f.when for f in self.forbidden), *(c.when for c in self.cases)):
            yield from facts_of(condition)


@cache
def load_catalogue() -> Mapping[str, Setting]:
    """Every setting by its id, in the file's order.

    Raises:
        InputError: the file is damaged.
    """
    return parse_catalogue(yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def parse_catalogue(document: Any) -> Mapping[str, Setting]:  # noqa: ANN401 - what YAML gives
    """As `load_catalogue`, from a document.

    Raises:
        InputError: an entry lacks something, says too much, or two have the same id.
    """
    found: dict[str, Setting] = {}
    for entry in document["settings"]:
        setting = _setting(entry)
        if setting.id in found:
            raise _damaged(setting.id, "is there twice", "each id once")
        found[setting.id] = setting
    return found


def _damaged(where: object, what: str, expected: str) -> InputError:
    return InputError(f"{_FILE.name}: {where} {what}", expected=expected, todo="correct the entry")


def _setting(entry: Mapping[str, Any]) -> Setting:
    where = entry.get("id", str(entry)[:60])
    if others := sorted(set(entry) - _KEYS):
        raise _damaged(where, f"has the unknown keys {', '.join(others)}", ", ".join(sorted(_KEYS)))
    if lacking := [key for key in _NEEDED if not entry.get(key)]:
        raise _damaged(where, f"lacks {', '.join(lacking)}", "all of " + ", ".join(_NEEDED))
    for key, known in (("layer", LAYERS), ("policy", POLICIES)):
        if entry[key] not in known:
            raise _damaged(where, f"has the {key} {entry[key]!r}", ", ".join(known))
    mechanism, target = _mechanism(entry, where)
    if (check_name := entry.get("check", "")) and check_name not in CHECKS:
        raise _damaged(where, f"names the check {check_name!r}", ", ".join(CHECKS))
    return Setting(
        id=where,
        title=entry["title"],
        layer=entry["layer"],
        policy=entry["policy"],
        requires=check(entry.get("requires", ALWAYS), FACTS, where),
        when=check(entry.get("when", ALWAYS), FACTS, where),
        forbidden=tuple(
            Forbidden(when=check(one["when"], FACTS, where), says=one["says"]) for one in entry.get("forbid", [])
        ),
        cases=_cases(entry, where),
        accepts=entry.get("accepts"),
        mechanism=mechanism,
        target=target,
        reads=entry.get("reads", ""),
        at_least=entry.get("compare") == "at_least",
        check=check_name,
        recheck=tuple(entry.get("recheck", [])),
        why=entry["why"],
        read=entry["read"],
        risk=entry.get("risk", ""),
        source=tuple(entry["source"]),
    )


def _mechanism(entry: Mapping[str, Any], where: str) -> tuple[str, str]:
    apply = entry.get("apply", {})
    if not isinstance(apply, Mapping) or len(apply) > 1 or not set(apply) <= set(MECHANISMS):
        raise _damaged(where, f"is applied by {str(apply)[:80]}", "one of " + ", ".join(MECHANISMS))
    (mechanism, target) = next(iter(apply.items()), ("", ""))
    if not mechanism and entry["policy"] in ("default", "candidate", "opt-in"):
        raise _damaged(where, "has no apply", f"how a setting of policy {entry['policy']} is applied")
    return mechanism, str(target)


def _cases(entry: Mapping[str, Any], where: str) -> tuple[Case, ...]:
    if "value" in entry:
        return (Case(value=entry["value"]),)
    return tuple(
        Case(
            name=one["name"],
            when=check(one.get("when", ALWAYS), FACTS, where),
            value=one["value"],
            effective=tuple(one.get("effective", [])),
        )
        for one in entry.get("cases", [])
    )
