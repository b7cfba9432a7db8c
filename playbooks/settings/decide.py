"""What is decided on one setting, from the catalogue, a node's record and the inventory's wishes; and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from playbooks.settings.catalogue import Case, Setting
from playbooks.settings.checks import CHECKS
from playbooks.settings.conditions import Answer, Condition, ask
from playbooks.settings.facts import FACTS
from playbooks.settings.known import Record
from playbooks.settings.mechanisms import MECHANISMS
from playbooks.settings.node_class import NodeClass, Tree
from playbooks.settings.readings import Question, Reading, State
from playbooks.settings.role_variables import Wanted
from playbooks.settings.wishes import Wishes

_VERDICTS = {
    State.HELD: "in_force",
    State.DIFFERS: "apply",
    State.MISSING: "skip",
    State.UNKNOWN: "refuse",
    State.BROKEN: "fault",
    State.FORBIDDEN: "refuse",
}
_NCCL = {
    "nccl_system": "nccl_system in the inventory sets it, not node_settings",
    "nccl_workload": "nccl_workloads in the inventory sets it, with a reason and an expiry, not node_settings",
}
HELD = ("apply", "in_force", "fault")
"""Verdicts under which a wanted value is the roles' to hold: dropping it at a fault would only make things swing."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is decided on one setting.

    Attributes:
        setting: catalogue id, or the unknown id that the inventory names.
        verdict: apply, in_force, leave, refuse, advise, fault, skip, ok or unknown (docs/settings.md).
        now, want: what is in force, and what is wanted; empty where there is no such thing.
        why: in words.
        source: URLs.
        role: which role applies it; empty: none.
        takes_effect: now, reload, reboot or next_start; empty where nothing is applied.
    """

    setting: str
    title: str
    policy: str
    verdict: str
    why: str
    now: str = ""
    want: str = ""
    source: tuple[str, ...] = ()
    role: str = ""
    takes_effect: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As the plan has it."""
        return {**asdict(self), "source": list(self.source)}


@dataclass(frozen=True, kw_only=True)
class Node:
    """All that decisions are made from."""

    record: Record
    tree: Tree
    node_class: NodeClass
    facts: Mapping[str, Any]
    wishes: Wishes

    def ask(self, condition: Condition) -> Answer:
        """Whether a condition holds on this node."""
        return ask(condition, self.facts, FACTS)


def decision_on(setting: Setting, verdict: str, why: str, *, now: str = "", want: str = "") -> Decision:
    """A decision with all that the catalogue says of the setting."""
    mechanism = MECHANISMS.get(setting.mechanism)
    return Decision(
        setting=setting.id,
        title=setting.title,
        policy=setting.policy,
        verdict=verdict,
        why=why,
        now=now,
        want=want,
        source=setting.source,
        role=mechanism.role if mechanism else "",
        takes_effect=mechanism.takes_effect if mechanism else "",
    )


def decide(setting: Setting, node: Node) -> tuple[Decision, Wanted | None]:
    """The decision on one setting, and what a role is to hold for it."""
    asked, valued = setting.id in node.wishes.enable, setting.id in node.wishes.values
    if setting.id in node.wishes.disable:
        verdict, why = ("refuse", "both enabled and disabled") if asked else ("leave", "disabled")
        return decision_on(setting, verdict, f"{why} in the inventory"), None
    required = node.ask(setting.requires)
    if (settled := _by_policy(setting, node, required, asked=asked, valued=valued)) is not None:
        return settled, None
    if required.holds is not True:
        return _not_possible(setting, required, asked=asked), None
    if not asked and not valued and (answer := node.ask(setting.when)).holds is not True:
        verdict = "refuse" if answer.holds is None else "leave"
        return decision_on(setting, verdict, f"not unasked here: {_told(answer)}"), None
    for forbidden in setting.forbidden:
        if (answer := node.ask(forbidden.when)).holds is not False:
            return decision_on(setting, "refuse", forbidden.says if answer.holds else _told(answer)), None
    return _valued(setting, node)


def _told(answer: Answer) -> str:
    return ", ".join(answer.because)


def _by_policy(setting: Setting, node: Node, required: Answer, *, asked: bool, valued: bool) -> Decision | None:
    """What is settled without looking at what is in force; None: the setting is wanted, if the node allows it."""
    if (asked or valued) and (why := _not_for_node_settings(setting)):
        return decision_on(setting, "refuse", why)
    if setting.policy == "never":
        return decision_on(setting, "leave", f"never: {setting.why}")
    if setting.policy == "check":
        return _checked(setting, node, required)
    if setting.mechanism == "by_hand":
        return _advised(setting, required)
    if setting.mechanism in _NCCL:
        return decision_on(setting, "leave", f"{setting.policy}: {_NCCL[setting.mechanism]}")
    if setting.policy != "default" and not asked:
        if valued:
            return decision_on(setting, "refuse", "node_settings.values gives it a value, and enable does not name it")
        return decision_on(setting, "leave", f"{setting.policy}: not enabled in the inventory")
    return None


def _not_for_node_settings(setting: Setting) -> str:
    """Why the inventory cannot enable a setting or give it a value; empty where it can."""
    if setting.policy == "never":
        return f"never: {setting.why}"
    if setting.policy == "check":
        return "a check reads only: there is nothing to enable"
    if setting.mechanism == "by_hand":
        return f"nothing that a playbook could do: {setting.target}"
    return _NCCL.get(setting.mechanism, "")


def _advised(setting: Setting, required: Answer) -> Decision:
    if required.holds is False:
        return _not_possible(setting, required, asked=False)
    return decision_on(setting, "advise", setting.why, want=setting.target)


def _not_possible(setting: Setting, required: Answer, *, asked: bool) -> Decision:
    if required.holds is None:
        return decision_on(setting, "refuse", f"cannot be decided: {_told(required)}")
    return decision_on(setting, "refuse" if asked else "skip", f"not on this node: {_told(required)}")


def _checked(setting: Setting, node: Node, required: Answer) -> Decision:
    if required.holds is False:
        return decision_on(setting, "skip", f"not on this node: {_told(required)}")
    if not setting.check:
        return decision_on(setting, "advise", setting.why, want=setting.read)
    found = CHECKS[setting.check](node.record, node.tree, node.node_class)
    return decision_on(setting, found.verdict, found.why or setting.why, now=found.now)


def _valued(setting: Setting, node: Node) -> tuple[Decision, Wanted | None]:
    """A setting that is wanted: its value, and how that compares with what is in force."""
    case, why = _case(setting, node)
    if case is None:
        return decision_on(setting, "refuse", why), None
    question = Question(
        target=setting.target,
        value=case.value,
        reads=setting.reads,
        at_least=setting.at_least,
        effective=case.effective,
    )
    mechanism = MECHANISMS[setting.mechanism]
    reading = mechanism.read(node.record, node.tree, question)
    if reading.state is State.UNKNOWN and mechanism.blind:
        reading = replace(reading, state=State.DIFFERS)
    decision = decision_on(
        setting, _VERDICTS[reading.state], _why(setting, why, reading), now=reading.now, want=_text(case.value)
    )
    return decision, Wanted(setting=setting, value=case.value)


def _why(setting: Setting, chosen: str, reading: Reading) -> str:
    return "; ".join(part for part in (reading.why or setting.why, chosen) if part)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _case(setting: Setting, node: Node) -> tuple[Case | None, str]:
    """The value, and what decided on it; no value where it cannot be told or the wish cannot be granted."""
    wish = node.wishes.values.get(setting.id)
    names = {case.name for case in setting.cases if case.name}
    if wish is not None and wish not in names:
        return _wished(setting, wish, names)
    because: list[str] = []
    for case in setting.cases:
        if wish is not None and case.name != wish:
            continue
        answer = node.ask(case.when)
        if answer.holds is None:
            return None, f"cannot be decided: {_told(answer)}"
        because += [line for line in answer.because if line not in because]
        if answer.holds:
            return case, ", ".join(because) if wish is None else f"{wish}: asked for in the inventory"
    if wish is None:
        return None, f"it needs a value in node_settings.values: {_accepted(setting)}"
    return None, f"the inventory asks for {wish}, which this node forbids: {', '.join(because)}"


def _wished(setting: Setting, wish: str, names: set[str]) -> tuple[Case | None, str]:
    """A value from the inventory that is no case's name."""
    accepts = setting.accepts or {}
    if wish in accepts.get("one_of", ()) or _in_range(wish, accepts):
        return Case(value=wish), f"{wish}: asked for in the inventory"
    told = f"one of {', '.join(sorted(names))}" if names else _accepted(setting)
    return None, f"the inventory asks for {wish}; {told}"


def _in_range(wish: str, accepts: Mapping[str, Any]) -> bool:
    """As the kernel would print it: no sign, no zeros in front."""
    plain = re.fullmatch(r"0|[1-9][0-9]{0,11}", wish) is not None
    return plain and "from" in accepts and accepts["from"] <= int(wish) <= accepts["to"]


def _accepted(setting: Setting) -> str:
    accepts = setting.accepts or {}
    if "one_of" in accepts:
        return f"one of {', '.join(accepts['one_of'])}"
    if "from" in accepts:
        return f"a whole number from {accepts['from']} to {accepts['to']}"
    return "it takes no value"
