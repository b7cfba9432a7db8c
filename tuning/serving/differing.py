"""What else differs between two arms of servers, and whether a difference may be called CUDA's. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tuning.differences import described, differences
from tuning.serving.records import ServerStart
from tuning.serving.sides import ServingSide

_EVERY_START_ITS_OWN = frozenset({"random_seed"})
"""Resolved arguments that a server draws anew whenever it starts."""
_ASKED = re.compile(r"speculative_\w+", re.ASCII)
"""Resolved arguments that differ since the arms were asked to speculate differently."""
_FOLLOWS_FROM_SPECULATION = re.compile(
    r"(cuda_graph_bs|cuda_graph_max_bs|mem_fraction_static|disable_overlap_schedule|enable_mixed_chunk"
    r"|SGLANG_SIMULATE_ACC_\w+): ",
    re.ASCII,
)
"""Resolved arguments that a server with speculation sets otherwise (server_args.py of the wheel sglang 0.5.12: more and
smaller captured batches, room for the draft model, what its algorithm cannot do); and how acceptance is simulated."""
_CUDA = frozenset({"nvidia-cuda-runtime", "cuda-bindings", "cuda-core"})
"""Libraries whose version is CUDA's own."""
_CUDA_SUFFIX = re.compile(r"-cu\d+$", re.ASCII)
_CUDA_TAG = re.compile(r"\+cu\d+$", re.ASCII)
_FOLLOWS = frozenset({"max_total_num_tokens"})
"""Resolved arguments that follow from the memory that is left, and do not change the time of a step."""
_OF_STARTS = ("release", "resolved", "engaged", "variables")
_PLAN = ("output_tokens", "passes", "together", "starts", "margin")
_MOST, _MOST_NAMED = 20, 6


def asked(a: ServingSide, b: ServingSide) -> list[str]:
    """What the two arms were meant to differ in: their specs."""
    before, after = ({name: _spoken(getattr(s.spec, name)) for name in s.spec.__dataclass_fields__} for s in (a, b))
    return differences(before, after)


def _spoken(value: object) -> object:
    """A speculation by its label; other values as they are."""
    label = getattr(value, "label", None)
    return value if label is None else f"{getattr(value, 'algorithm', '')} {label}"


def follows(a: ServingSide, b: ServingSide) -> tuple[str, ...]:
    """What differs between servers since they speculate differently, beside how they do; "name: A / B" each."""
    if not _speculate_differently(a, b):
        return ()
    return tuple(line for line in _of_starts(a, b) if _FOLLOWS_FROM_SPECULATION.match(line))


def differs(a: ServingSide, b: ServingSide) -> tuple[str, ...]:
    """Everything else that differs, in words: software, variables, what the servers resolved and their logs prove."""
    found = differences(described(a.run.header, a.environment), described(b.run.header, b.environment))
    if a.run.path != b.run.path:
        found += _between_runs(a, b)
    explained = set(follows(a, b))
    found += [line for line in _of_starts(a, b) if line not in explained]
    if len(found) > _MOST:
        found = [*found[:_MOST], f"and {len(found) - _MOST} more; see the run file"]
    return tuple(found)


def _of_starts(a: ServingSide, b: ServingSide) -> list[str]:
    """What differs between the servers of two arms, but for how they were asked to speculate."""
    lines = [line for part in _OF_STARTS for line in _between_starts(a.starts, b.starts, part)]
    return [line for line in lines if not (_speculate_differently(a, b) and _ASKED.match(line))]


def _speculate_differently(a: ServingSide, b: ServingSide) -> bool:
    return (a.spec.speculation, a.spec.accept_length) != (b.spec.speculation, b.spec.accept_length)


def _between_runs(a: ServingSide, b: ServingSide) -> list[str]:
    first, second = a.run.header, b.run.header
    plans = [{name: getattr(header.plan, name) for name in _PLAN} for header in (first, second)]
    found = differences({"plan": plans[0]}, {"plan": plans[1]})
    if first.plan.prompts.identity != second.plan.prompts.identity:
        found.append(f"prompts: {first.plan.prompts.name} / {second.plan.prompts.name}")
    for name in ("node", "toolkit", "worker", "variables"):
        found += differences({name: getattr(first, name)}, {name: getattr(second, name)})
    return found


def _between_starts(a: list[ServerStart], b: list[ServerStart], part: str) -> list[str]:
    """Of one field of starts: values of which the two arms share none."""
    sides = [_values(starts, part) for starts in (a, b)]
    shared = {key for key in sides[0].keys() & sides[1].keys() if set(sides[0][key]) & set(sides[1][key])}
    before, after = (
        {key: " or ".join(values) for key, values in side.items() if key not in shared | _EVERY_START_ITS_OWN}
        for side in sides
    )
    return differences(before, after) if a and b else []


def _values(starts: list[ServerStart], part: str) -> dict[str, list[str]]:
    """By name, the different values that starts have, as text."""
    found: dict[str, list[str]] = {}
    for start in starts:
        value: Any = getattr(start, part)
        for key, inner in value.items() if isinstance(value, Mapping) else ((f"SGLang {part}", value),):
            # What a log line proves is the claim before it: the line itself has a time.
            found.setdefault(str(key), []).append(str(inner).split(":")[0] if part == "engaged" else str(inner))
    return {key: list(dict.fromkeys(values)) for key, values in found.items()}


def on_cuda(a: ServingSide, b: ServingSide) -> Iterator[str]:
    """Where CUDA differs between two environments: whether a difference may be called CUDA's, in a sentence.

    Only where nothing but CUDA differs, as far as libraries, settings and the servers themselves tell.
    """
    sides = [described(side.run.header, side.environment) for side in (a, b)]
    libraries = [_mapping(side.get("libraries")) for side in sides]
    roles = [{_CUDA_SUFFIX.sub("", name): str(version) for name, version in held.items()} for held in libraries]
    changed = {role for role in roles[0].keys() | roles[1].keys() if roles[0].get(role) != roles[1].get(role)}
    others = {role for role in changed - _CUDA if not _same_but_tag(roles[0].get(role), roles[1].get(role))}
    built_for = [{name for name in held if _CUDA_SUFFIX.search(name)} for held in libraries]
    if changed <= others and built_for[0] == built_for[1]:
        return
    named = [*sorted(others), *dict.fromkeys(line.split(":")[0] for line in _beside_libraries(a, b, sides))]
    if not named:
        yield "nothing but CUDA differs, as far as libraries, settings and servers tell: the difference is CUDA's"
        return
    listed = f"{', '.join(named[:_MOST_NAMED])}{' and more' if len(named) > _MOST_NAMED else ''}"
    yield f"the difference is not CUDA's alone: {listed} {'differ' if len(named) > 1 else 'differs'}, too"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _same_but_tag(old: str | None, new: str | None) -> bool:
    """Whether two versions are one release, built for two CUDAs: 2.9.1+cu128 and 2.9.1+cu130."""
    return old is not None and new is not None and _CUDA_TAG.sub("", old) == _CUDA_TAG.sub("", new)


def _beside_libraries(a: ServingSide, b: ServingSide, sides: list[Mapping[str, Any]]) -> list[str]:
    """Differences of environments other than libraries and which image it is; of specs; and of the servers."""
    before, after = ({k: value for k, value in side.items() if k not in ("libraries", "image")} for side in sides)
    found = differences(before, after) + asked(a, b)
    for part in _OF_STARTS:
        found += _between_starts(a.starts, b.starts, part)
    if a.run.path != b.run.path:
        found += _between_runs(a, b)
    return [line for line in found if line.split(":")[0] not in _FOLLOWS]
