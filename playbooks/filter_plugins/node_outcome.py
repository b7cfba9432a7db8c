"""The filter `plan_outcome`: what a node's plan says there is to do, or, made again after applying, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

_NOT_LOADED = "module not loaded"
_NOT_RECORDED = "not recorded"
"""What `now` says where no reading can tell (playbooks/settings/mechanisms.py): that is no failure."""


def plan_outcome(plan: Mapping[str, Any], *, roles: Collection[str], rebooted: bool = False) -> dict[str, Any]:
    """The decisions of a plan by what follows from them.

    Args:
        plan: as the filter `node_plan` returns it.
        roles: those that run: with --tags, not all do, and what the others would apply cannot be expected.
        rebooted: whether the node was booted since the roles ran, so that nothing waits for that any more.

    Returns:
        `apply`: ids to apply; `refused`: texts; `waiting`: ids by reboot, reload and next_start; `failing`: texts of
        those that a role applied and that are not in force; `faults`: texts of checks that a role can do nothing about;
        `counts`: decisions by verdict.
    """
    decisions = plan["decisions"]
    wanted = [one for one in decisions if one["verdict"] == "apply"]
    ours = [one for one in wanted if one["role"] in roles]
    waits = [one for one in ours if _waits(one, rebooted=rebooted)]
    applied = [one for one in ours if one not in waits and one["now"] != _NOT_RECORDED]
    faults = [one for one in decisions if one["verdict"] == "fault"]
    verdicts = [str(one["verdict"]) for one in decisions]
    return {
        "apply": [one["setting"] for one in wanted],
        "refused": _told(one for one in decisions if one["verdict"] == "refuse"),
        "waiting": {
            when: [one["setting"] for one in waits if one["takes_effect"] == when]
            for when in ("reboot", "reload", "next_start")
        },
        "failing": _told([*applied, *(one for one in faults if one["role"] in roles)]),
        "faults": _told(one for one in faults if not one["role"]),
        "counts": {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
    }


def _waits(decision: Mapping[str, Any], *, rebooted: bool) -> bool:
    """Whether what was applied comes into force later: a module that is not loaded takes its options when it is."""
    when = decision["takes_effect"]
    return when == "next_start" or (when in ("reboot", "reload") and (not rebooted or decision["now"] == _NOT_LOADED))


def _told(decisions: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{one['setting']}: {_values(one)}{one['why']}" for one in decisions]


def _values(decision: Mapping[str, Any]) -> str:
    """What a check found, or what is and what was wanted."""
    if decision["want"]:
        return f"wanted {decision['want']}, is {decision['now'] or 'not known'}; "
    return f"{decision['now']}; " if decision["now"] else ""


class FilterModule:
    """What Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {"plan_outcome": plan_outcome}
