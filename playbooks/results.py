"""What a run of provision.yml or revert.yml came to, a document a node: made by the callback plugin, read by verbs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lanewise.errors import ExitCode

SCHEMA = "lanewise.node-result/1"
FACTS = (
    "node_plan_before", "node_plan", "node_outcome", "node_differences", "node_rebooted", "node_reboot_waits",
    "container_advice", "runtime_state", "gpu_driver_present",
)  # fmt: skip
"""Facts of the plays and roles that a result is made of."""
_OF_PLAN = re.compile(r"^.*The filter plugin 'node_plan' failed: ", re.DOTALL)
"""Ansible's words before those of our own."""
_REFUSED = "refused: "
"""By which plays say that a run was asked for wrongly, before anything was done (roles/node/tasks/asked.yml)."""
_LINES = re.compile(r"\s*\n\s*(expected|next):\s*")
_DIFF_LIMIT = 20_000
"""Characters of a task's difference that a result keeps; the run's log has all of it."""


class Status(StrEnum):
    """How a run ended for a node."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    WAITING = "pending reboot"
    WOULD_CHANGE = "would change"
    REFUSED = "refused"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


@dataclass(kw_only=True)
class Gathered:
    """What was seen of one node while a run goes on.

    Attributes:
        facts: of FACTS, the newest of each.
        changes: changed tasks: `role`, `task` and `difference`, as Ansible would print it.
        trouble: the message of the task that failed; `task` names it.
        malformed: whether that is what the inventory says, what was asked for, or the record: no plan could be made.
        unreachable: whether the node did not answer.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    changes: list[dict[str, str]] = field(default_factory=list)
    trouble: str = ""
    task: str = ""
    malformed: bool = False
    unreachable: bool = False

    def fail(self, task: str, said: str) -> None:
        """A task failed; the first failure is the cause."""
        if not self.trouble:
            words = _OF_PLAN.sub("", said)
            of_plan = words != said
            self.malformed = of_plan or said.startswith(_REFUSED)
            self.trouble, self.task = _LINES.sub(r"; \1: ", words) if of_plan else said, task

    def change(self, role: str, task: str, difference: str) -> None:
        """A task changed something, or would."""
        cut = difference if len(difference) <= _DIFF_LIMIT else f"{difference[:_DIFF_LIMIT]}\n... cut; see the log\n"
        self.changes.append({"role": role, "task": task, "difference": cut})


def document(node: str, verb: str, seen: Gathered, *, check: bool, ended: str) -> dict[str, Any]:
    """The result of one node."""
    facts = seen.facts
    before, outcome = facts.get("node_plan_before"), facts.get("node_outcome") or {}
    decided = facts.get("node_plan") or {}
    stopped = seen.trouble and (before is None or decided == before)  # before it was looked what came of it
    return {
        "schema": SCHEMA,
        "node": node,
        "verb": verb,
        "check": check,
        "status": str(_status(seen, check=check)),
        "message": seen.trouble,
        "task": seen.task,
        "ended": ended,
        "node_class": decided.get("node_class"),
        "decisions_before": before["decisions"] if before else decided.get("decisions", []),
        "decisions": decided.get("decisions", []),
        "waiting": {} if stopped else outcome.get("waiting", {}),
        "faults": outcome.get("faults", []),
        "changes": seen.changes,
        "rebooted": facts.get("node_rebooted", False),
        "advice": facts.get("container_advice", []),
        "runtime": facts.get("runtime_state", {}),
        "driver_present": facts.get("gpu_driver_present"),
        "differences": facts.get("node_differences", []),
    }


def _status(seen: Gathered, *, check: bool) -> Status:
    outcome = seen.facts.get("node_outcome") or {}
    if seen.unreachable:
        return Status.UNREACHABLE
    if seen.trouble:
        planned = "node_plan_before" in seen.facts  # after that it is no refusal: something may have been changed
        return Status.REFUSED if not planned and (seen.malformed or outcome.get("refused")) else Status.FAILED
    if check:
        return Status.WOULD_CHANGE if seen.changes else Status.UNCHANGED
    if seen.facts.get("node_reboot_waits") or outcome.get("waiting", {}).get("reboot"):
        return Status.WAITING
    return Status.CHANGED if seen.changes else Status.UNCHANGED


def exit_code(results: Iterable[Mapping[str, Any]]) -> ExitCode:
    """The worst of the nodes: failed, refused, unreachable, would change, done."""
    statuses = {Status(result["status"]) for result in results}
    for status, code in (
        (Status.FAILED, ExitCode.FAILED),
        (Status.REFUSED, ExitCode.INPUT),
        (Status.UNREACHABLE, ExitCode.UNREACHABLE),
        (Status.WOULD_CHANGE, ExitCode.ANSWER_IS_NO),
    ):
        if status in statuses:
            return code
    return ExitCode.DONE


def reasons(result: Mapping[str, Any]) -> list[str]:
    """What there is to say of a node beyond its status: a line each."""
    lines = [result["message"]] if result["message"] else []
    if result["check"] and result["status"] == Status.WOULD_CHANGE and result["verb"] == "provision":
        lines += [
            f"would set {one['setting']}: {one['now'] or 'not known'} -> {one['want']} ({one['why']})"
            for one in result["decisions_before"]
            if one["verdict"] == "apply"
        ]
    lines += [f"waits for {when.replace('_', ' ')}: {', '.join(ids)}" for when, ids in _waiting(result).items() if ids]
    lines += [f"fault: {text}" for text in result["faults"]]
    lines += [f"advice: {text}" for text in result["advice"]]
    told = "would bring back" if result["check"] else "differs from before:"
    lines += [f"{told} {one['field']}: {one['before']} -> {one['after']}" for one in result["differences"]]
    return lines


def _waiting(result: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """In check mode everything still waits for being applied."""
    return {} if result["check"] else result["waiting"]
