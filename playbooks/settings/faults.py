"""The ladder on the controller: its first step from a node's plan, what its faults mean, and the result of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from playbooks.module_utils.ladder_steps import some
from playbooks.settings.checks import NO_DRIVER
from playbooks.settings.known import Record, read_record
from playbooks.settings.node_class import Tree, pci_tree

SCHEMA = "lanewise.node-verify/1"
OK, FAULT, UNKNOWN, FAILED, UNREACHABLE = "ok", "fault", "unknown", "failed", "unreachable"
"""How verifying a node ended. Unknown: no fault, but a step could not be told."""
_FILE = Path(__file__).with_name("faults.yaml")
_UNREADABLE = ("not recorded", "unknown", "module not loaded")
"""What a decision's `now` says where no reading can tell whether it is in force yet (mechanisms.py, readings.py)."""
_LATER = {"reboot": "the node has booted anew", "reload": "its module is loaded anew"}
"""Of settings for the next start of something the record has what that start will read: nothing to wait for."""


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """What a fault code means.

    Attributes:
        code: as steps report it.
        meaning, remedy: for people.
        by_hand: the remedy on a node that is never changed from here; empty: it is the same.
        settings: ids of the catalogue that remedy it.
        cause: id in tuning/causes.yaml; empty: none is the same.
        source: URLs; of CONFIG_*, the setting has its own.
    """

    code: str
    meaning: str
    remedy: str
    by_hand: str
    settings: tuple[str, ...]
    cause: str
    source: tuple[str, ...]


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return document


@cache
def fault_kinds() -> Mapping[str, FaultKind]:
    """Every fault by its code."""
    return {
        code: FaultKind(
            code=code,
            meaning=entry["meaning"],
            remedy=entry["remedy"],
            by_hand=entry.get("by_hand", ""),
            settings=tuple(entry.get("settings", [])),
            cause=entry.get("cause", ""),
            source=tuple(entry.get("source", [])),
        )
        for code, entry in _document()["faults"].items()
    }


def config_step(plan: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The ladder's first step, as module node_ladder takes it: whether what was decided is in force.

    Args:
        plan: of the node.
        document: its record.
    """
    decisions = plan["decisions"]
    faults = _driver_missing(read_record(document), plan["roles"]["pcie"]["gpu_match"])
    faults += [fault for one in decisions if (fault := _fault(one)) is not None]
    unread = [one for one in decisions if one["verdict"] in ("refuse", "unknown")]
    decisive = [one for one in unread if one["verdict"] == "refuse" or one["setting"] in _document()["decisive"]]
    later = [one for one in decisions if one["verdict"] == "apply" and one["now"] in _UNREADABLE]
    counts = {verdict: sum(one["verdict"] == verdict for one in decisions) for verdict in ("in_force", "ok")}
    reason = "; ".join(f"{one['setting']}: {one['why']}" for one in decisive)
    evidence = [f"{counts['in_force']} settings in force, {counts['ok']} checks ok"]
    evidence += [f"not known: {one['setting']}: {one['why']}" for one in unread if one not in decisive]
    evidence += [f"cannot be read back: {one['setting']}: {one['now']}" for one in later]
    if skipped := [one["setting"] for one in decisions if (one["verdict"], one["why"]) == ("skip", NO_DRIVER)]:
        evidence.append(f"not checked, {NO_DRIVER}: {', '.join(skipped)}")
    if not any(counts.values()):
        reason = reason or "nothing could be checked"
    return {
        "name": "config",
        "status": FAULT if faults else UNKNOWN if reason else OK,
        "reason": "" if faults else reason,
        "faults": faults,
        "evidence": evidence,
    }


def _driver_missing(record: Record, gpu_match: Sequence[str]) -> list[dict[str, str]]:
    """A fault where there are GPUs for this node's own use, and certainly no driver for them."""
    tree = pci_tree(record, gpu_match)
    if record.get("driver.present") is not False or not isinstance(tree, Tree):
        return []
    gpus = [gpu for gpu in tree.gpus if tree.devices[gpu].get("driver") != "vfio-pci"]
    return [{"code": "DRIVER_MISSING", "where": some(gpus), "found": "no NVIDIA driver is loaded"}] if gpus else []


def _fault(decision: Mapping[str, Any]) -> dict[str, str] | None:
    """What is wrong with one decision; None: nothing that could be told."""
    verdict, when, now = decision["verdict"], decision["takes_effect"], decision["now"]
    if verdict == "fault":
        return {"code": "CONFIG_FAULT", "where": decision["setting"], "found": f"{now}; {decision['why']}"}
    if verdict != "apply" or now in _UNREADABLE:
        return None
    found = f"is {now or 'not known'}, wanted {decision['want']}"
    if when in _LATER:
        return {
            "code": "CONFIG_PENDING",
            "where": decision["setting"],
            "found": f"{found}; in force once {_LATER[when]}",
        }
    return {"code": "CONFIG_NOT_IN_FORCE", "where": decision["setting"], "found": found}


def verify_result(
    node: str, read: Mapping[str, Any], climbed: Mapping[str, Any], ended: str, *, untouched: bool
) -> dict[str, Any]:
    """The result of one node.

    Args:
        node: its name in the inventory.
        read: what module gpu_node_info returned, or Ansible in its place.
        climbed: the same of module node_ladder; empty where it was not run.
        ended: when, ISO 8601.
        untouched: whether the node is one that is never changed from here, so that remedies are for a person.
    """
    steps = [_explained(step, untouched=untouched) for step in climbed.get("steps", [])]
    last = climbed or read
    message = "" if steps else str(last.get("msg") or "it does not say why")
    return {
        "schema": SCHEMA,
        "node": node,
        "status": _status([step["status"] for step in steps], unreachable=bool(last.get("unreachable"))),
        "message": message,
        "verified": [step["name"] for step in steps if step["status"] == OK],
        "steps": steps,
        "ended": ended,
    }


def _status(statuses: Sequence[str], *, unreachable: bool) -> str:
    if unreachable:
        return UNREACHABLE
    if not statuses:
        return FAILED
    return FAULT if FAULT in statuses else UNKNOWN if UNKNOWN in statuses else OK


def _explained(step: Mapping[str, Any], *, untouched: bool) -> dict[str, Any]:
    """A step with the meaning and the remedy of each of its faults."""
    kinds = fault_kinds()
    explained = [{**asdict(kinds[fault["code"]]), **fault} for fault in step["faults"]]
    for fault in explained:
        by_hand = fault.pop("by_hand")
        fault["remedy"] = by_hand if untouched and by_hand else fault["remedy"]
        if fault["code"].startswith("CONFIG_"):
            fault["settings"] = [fault["where"]]
    return {**step, "faults": explained}


def told(result: Mapping[str, Any]) -> list[str]:
    """What there is to say of a node's result beyond the status of each step: a line each."""
    lines = [f"{result['status']}: {result['message']}"] if result["message"] else _verified(result)
    alike: dict[str, list[str]] = {}
    for step in result["steps"]:
        lines += [f"{step['name']}: {one['code']} {one['where']}: {one['found']}" for one in step["faults"]]
        remedies = {fault["code"]: fault["remedy"] for fault in step["faults"]}
        lines += [f"remedy: {code}: {remedy}{_settings(fault_kinds()[code])}" for code, remedy in remedies.items()]
        if step["reason"]:
            alike.setdefault(f"{step['status']}: {step['reason']}", []).append(step["name"])
    return [*lines, *(f"{', '.join(names)}: {why}" for why, names in alike.items())]


def _verified(result: Mapping[str, Any]) -> list[str]:
    """What the status is about, and what it says nothing of."""
    rest = [step["name"] for step in result["steps"] if step["name"] not in result["verified"]]
    return [f"verified: {', '.join(result['verified']) or 'nothing'}; not verified: {', '.join(rest) or 'nothing'}"]


def _settings(kind: FaultKind) -> str:
    return f" (docs/settings.md: {', '.join(kind.settings)})" if kind.settings else ""
