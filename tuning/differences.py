"""What else differs between two arms or two runs: said always, so that nothing is blamed on the wrong thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuning.runfile import Header

_NO_DIFFERENCE = {"read_at", "unread", "PATH", "HOSTNAME", "TMPDIR"}
"""Times and places that differ between any two runs, and lists of what could not be read."""
_PLAN = ("engine", "ranks", "baseline", "launches", "rounds", "samples", "margin")
_SHOWN = 12


def between_environments(header: Header, a: str, b: str) -> list[str]:
    """Differences between two environments of one run: Python, libraries, variables, NCCL settings."""
    return _differences(header.environments.get(a, {}), header.environments.get(b, {}))


def between_runs(first: Header, second: Header, a: str, b: str) -> list[str]:
    """Differences between environment `a` of one run and `b` of another: these, and plan, node, toolkit, variables."""
    plans = [{name: getattr(header.plan, name) for name in _PLAN} for header in (first, second)]
    found = _differences({"plan": plans[0]}, {"plan": plans[1]})
    if first.plan.workload.identity != second.plan.workload.identity:
        found.append(f"workload: {first.plan.workload.name} / {second.plan.workload.name}")
    found += _differences(first.environments.get(a, {}), second.environments.get(b, {}))
    for name in ("node", "toolkit", "worker", "variables"):
        found += _differences({name: getattr(first, name)}, {name: getattr(second, name)})
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more; see the headers of the two files"]
    return found


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if key in _NO_DIFFERENCE or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key} ")
        elif isinstance(old, list) and isinstance(new, list):
            found += _list_differences(old, new, f"{prefix}{key}")
        else:
            found.append(f"{prefix}{key}: {_short(old)} / {_short(new)}")
    return found


def _list_differences(before: list[Any], after: list[Any], prefix: str) -> list[str]:
    """Lists of named things (NCCL settings, GPUs, PCI devices) are compared by name; others as a whole."""
    keys = ("name", "address", "id")
    for key in keys:
        if all(isinstance(item, dict) and key in item for item in (*before, *after)):
            named = [{str(item[key]): item for item in items} for items in (before, after)]
            return _differences(named[0], named[1], f"{prefix} ")
    return [f"{prefix}: {_short(before)} / {_short(after)}"]


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
