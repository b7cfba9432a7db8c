"""What a step of the ladder comes to (docs/verify-node.md): a status, what was found, and why it says nothing.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NAMES = ("config", "p2p", "copy", "rates", "allreduce", "engine")
"""The steps, cheap ones first."""
OK, FAULT, UNKNOWN = "ok", "fault", "unknown"
NOT_RUN, NOT_APPLICABLE = "not run", "not applicable"
_SHOWN = 4


@dataclass(frozen=True)
class Fault:
    """One fault: its code (playbooks/settings/faults.yaml), where it is, and what was found there."""

    code: str
    where: str
    found: str


@dataclass(frozen=True)
class Step:
    """The outcome of one step.

    Args:
        name: one of NAMES.
        status: OK (never without evidence), FAULT, UNKNOWN (it could not be told), NOT_RUN or NOT_APPLICABLE.
        reason: why it is unknown, not run or not applicable.
        faults: at least one where the status is FAULT.
        evidence: what was seen, a line each.
        measured: raw numbers, as documents of the step.
        seconds: how long it took.
    """

    name: str
    status: str
    reason: str = ""
    faults: list[Fault] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def settled(
    name: str, faults: list[Fault], unknown: str, evidence: list[str], measured: list[dict[str, Any]] | None = None
) -> Step:
    """The step that follows from what was found: faults before what is unknown, and that before all being well."""
    status = FAULT if faults else UNKNOWN if unknown else OK
    return Step(name, status, "" if faults else unknown, faults, evidence, measured or [])
