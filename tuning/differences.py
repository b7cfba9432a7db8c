"""What else differs between two arms or two runs: said always, so that nothing is blamed on the wrong thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuning.workload import encodable, short

if TYPE_CHECKING:
    from tuning.runfile import Header
    from tuning.runlines import AnyHeader

_NO_DIFFERENCE = {"read_at", "unread", "PATH", "HOSTNAME", "TMPDIR"}
"""Times and places that differ between any two runs, and lists of what could not be read."""
_PLAN = ("engine", "ranks", "baseline", "launches", "rounds", "samples", "margin")
_SHOWN = 12
_MOST_DEPTH = 16


def between_environments(header: AnyHeader, a: str, b: str) -> list[str]:
    """Differences between two environments of one run: Python, libraries, variables, NCCL settings."""
    return differences(described(header, a), described(header, b))


def between_runs(first: Header, second: Header, a: str, b: str) -> list[str]:
    """Differences between environment `a` of one run and `b` of another: these, and plan, node, toolkit, variables."""
    plans = [{name: getattr(header.plan, name) for name in _PLAN} for header in (first, second)]
    found = differences({"plan": plans[0]}, {"plan": plans[1]})
    if first.plan.workload.identity != second.plan.workload.identity:
        found.append(f"workload: {first.plan.workload.name} / {second.plan.workload.name}")
    found += differences(described(first, a), described(second, b))
    for name in ("node", "toolkit", "worker", "variables"):
        found += differences({name: getattr(first, name)}, {name: getattr(second, name)})
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more; see the headers of the two files"]
    return found


def described(header: AnyHeader, name: str) -> Mapping[str, Any]:
    """What a header says of an environment, whatever shape that has."""
    described = header.environments.get(name, {})
    return described if isinstance(described, Mapping) else {"described": described}


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[str]:
    """What differs between two JSON mappings, a line "name: before / after" each.

    Args:
        before, after: the two.
        prefix: stands before each name.
        depth: how deep they lie in others.
    """
    found: list[str] = []
    for key in sorted(before.keys() | after.keys(), key=str):
        old, new = before.get(key), after.get(key)
        if key in _NO_DIFFERENCE or _same(old, new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and depth < _MOST_DEPTH:
            found += differences(old, new, f"{prefix}{_short(key)} ", depth + 1)
        elif isinstance(old, list) and isinstance(new, list):
            found += _list_differences(old, new, f"{prefix}{_short(key)}", depth)
        else:
            found.append(f"{prefix}{_short(key)}: {_short(old)} / {_short(new)}")
    return found


def _same(old: object, new: object) -> bool:
    try:
        return old == new
    except RecursionError:  # nested beyond what Python compares
        return False


def _list_differences(before: list[Any], after: list[Any], prefix: str, depth: int) -> list[str]:
    """Lists of named things (NCCL settings, GPUs, PCI devices) are compared by name; others as a whole."""
    keys = ("name", "address", "id")
    for key in keys:
        if all(isinstance(item, dict) and key in item for item in (*before, *after)):
            named = [{_text(item[key]): item for item in items} for items in (before, after)]
            return differences(named[0], named[1], f"{prefix} ", depth + 1)
    return [f"{prefix}: {_short(before)} / {_short(after)}"]


def _short(value: object) -> str:
    text = _text(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _text(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict) and isinstance(value.get("value"), str):  # a setting: what it says, and who said it
        return f"{_text(value['value'])} ({_text(value.get('source'))})"
    return value if isinstance(value, str) and encodable(value) else short(value)
