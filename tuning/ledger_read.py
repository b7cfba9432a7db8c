"""Reads the ledger's files: verdicts that ship, a user's own, and what preflight left; nothing in them is run."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from lanewise.errors import InputError
from lanewise.files import read_text, shown_path
from tuning.ledger import (
    NODE_CLASSES,
    Change,
    Entry,
    Evidence,
    EvidenceKind,
    Reopening,
    Standing,
    Verdict,
    component,
    latest,
)
from tuning.ledger_preflight import FORMAT, PreflightResult, join, preflight_result
from tuning.preflight_results import result_paths
from tuning.topology_yaml_load import TopologyLoader
from tuning.workload import short

SHIPPED = Path(__file__).with_name("verdicts.yaml")
_MAX_YAML_BYTES = 1 << 18
_MAX_JSON_BYTES = 4 << 20
_MAX_TEXT = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NEEDED = ("approach", "toolchains", "nodes", "verdict", "date", "why", "evidence")
_OTHER = ("believed", "reopens")
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What odd scalars and deep nesting raise in PyYAML."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All that is known.

    Attributes:
        standings: what holds, by approach, toolchain and node class.
        results: of preflight, by toolchain.
        remarks: results of preflight that were left out, and why.
    """

    standings: tuple[Standing, ...]
    results: tuple[PreflightResult, ...]
    remarks: tuple[str, ...] = ()

    @property
    def approaches(self) -> list[str]:
        """Every approach that a verdict is about."""
        return sorted({standing.entry.approach for standing in self.standings})

    @property
    def toolchains(self) -> list[str]:
        """Every toolchain that a verdict names, and "any"."""
        return sorted({standing.entry.toolchain for standing in self.standings})

    @property
    def subjects(self) -> list[str]:
        """Everything whose change reopens something."""
        conditions = (condition.what for standing in self.standings for condition in standing.entry.reopens)
        return sorted({*conditions, *(what for result in self.results for what in result.state)})


def read_ledger(runs: Path) -> Ledger:
    """The shipped verdicts, `runs`/verdicts.yaml where there is one, and every `runs`/TOOLCHAIN/preflight.json.

    A damaged result of preflight is remarked and left out: the verdicts stand without it.

    Raises:
        InputError: the verdicts are not what they should be.
    """
    entries = list(read_verdicts(SHIPPED, "shipped"))
    own = runs / "verdicts.yaml"
    if own.exists():
        entries += read_verdicts(own)
    results, remarks = [], []
    for path in result_paths(runs).values():
        try:
            results.append(read_preflight(path))
        except InputError as error:
            remarks.append(f"left out: {error.what}; {error.todo}")
    return Ledger(standings=join(latest(entries), results), results=tuple(results), remarks=tuple(remarks))


def read_verdicts(path: Path, origin: str = "") -> tuple[Entry, ...]:
    """The verdicts of a file in the form of docs/verdicts.md; one of several toolchains or nodes becomes several.

    Args:
        path: the file.
        origin: what to call it; "": its path.

    Raises:
        InputError: not such YAML, an unknown key or word, no evidence, no date, or two verdicts on the same.
    """
    where = origin or shown_path(path)
    text = read_text(path, what="verdicts", limit=_MAX_YAML_BYTES)
    try:
        document = yaml.load(text, TopologyLoader)  # noqa: S506 - a SafeLoader that allows less
    except (yaml.YAMLError, *_UNREADABLE) as error:
        raise _wrong(where, f"is no such YAML: {short(' '.join(str(error).split()))}", "docs/verdicts.md") from error
    if not isinstance(document, dict) or set(document) != {"verdicts"} or not isinstance(document["verdicts"], list):
        raise _wrong(where, f"holds {short(document)}", "one key, verdicts, with a list")
    seen: set[tuple[str, str, str]] = set()
    entries: list[Entry] = []
    for number, stated in enumerate(document["verdicts"], start=1):
        for entry in _entries(stated, number, where):
            if entry.key in seen:
                raise _wrong(where, f"has two verdicts on {', '.join(entry.key)}", "one a file")
            seen.add(entry.key)
            entries.append(entry)
    return tuple(entries)


def _entries(stated: object, number: int, where: str) -> Iterable[Entry]:
    name = stated.get("approach") if isinstance(stated, dict) else None
    here = f"{where}, verdict {number} ({short(name)})"
    fields = _mapping(stated, _NEEDED, _OTHER, here)
    kinds = list(map(str, Verdict))
    if fields["verdict"] not in kinds:
        raise _wrong(here, f"has the verdict {short(fields['verdict'])}", f"one of {', '.join(kinds)}")
    nodes = _names(fields["nodes"], here, "nodes")
    if unknown := [node for node in nodes if node not in NODE_CLASSES]:
        raise _wrong(here, f"names the node class {short(unknown[0])}", f"one of {', '.join(NODE_CLASSES)}")
    evidence = tuple(_evidence(entry, here) for entry in _list(fields["evidence"], here, "evidence"))
    if not evidence:
        raise _wrong(here, "has no evidence", "at least one, with its source")
    return [
        Entry(
            approach=_names([fields["approach"]], here, "approach")[0],
            toolchain=toolchain,
            node_class=node,
            verdict=Verdict(fields["verdict"]),
            date=_date(fields["date"], here),
            why=_text(fields["why"], here, "why"),
            believed=_text(fields["believed"], here, "believed") if "believed" in fields else "",
            evidence=evidence,
            reopens=tuple(_reopening(entry, here) for entry in _list(fields.get("reopens", []), here, "reopens")),
            origin=where,
        )
        for toolchain in _names(fields["toolchains"], here, "toolchains")
        for node in nodes
    ]


def _evidence(stated: object, here: str) -> Evidence:
    kinds = list(map(str, EvidenceKind))
    fields = _mapping(stated, ("says",), tuple(kinds), f"{here}: evidence")
    named = [kind for kind in kinds if kind in fields]
    if len(named) != 1:
        raise _wrong(here, f"has evidence of {len(named)} kinds", f"says, and one of {', '.join(kinds)}")
    return Evidence(
        kind=EvidenceKind(named[0]),
        where=_text(fields[named[0]], here, named[0]),
        says=_text(fields["says"], here, "evidence.says"),
    )


def _reopening(stated: object, here: str) -> Reopening:
    fields = _mapping(stated, ("what", "why"), ("at_least", "above", "is"), f"{here}: reopens")
    bounds = [name for name in ("at_least", "above", "is") if name in fields]
    if len(bounds) > 1:
        raise _wrong(here, f"reopens by {' and '.join(bounds)} at once", "one of them, or none for any change")
    what = component(_names([fields["what"]], here, "reopens.what")[0])
    value = _text(fields["is"], here, "reopens.is") if "is" in fields else ""
    if what == "topology" and bounds and value not in NODE_CLASSES:
        raise _wrong(here, f"reopens for the node class {short(value)}", f"is, with one of {', '.join(NODE_CLASSES)}")
    return Reopening(
        what=what,
        at_least=_version(fields["at_least"], here) if "at_least" in fields else None,
        above=_version(fields["above"], here) if "above" in fields else None,
        value=value,
        why=_text(fields["why"], here, "reopens.why"),
    )


def _version(value: object, here: str) -> Version:
    try:
        return Version(value if isinstance(value, str) else "")
    except ValueError as error:  # as in _change
        raise _wrong(here, f"has {short(value)} as a version", 'a version in quotes, such as "2.31"') from error


def _date(value: object, here: str) -> dt.date:
    try:
        if isinstance(value, str) and _DATE.fullmatch(value):
            return dt.date.fromisoformat(value)
    except ValueError:
        pass
    raise _wrong(here, f"has the date {short(value)}", "a day such as 2026-11-29")


def _mapping(value: object, needed: tuple[str, ...], other: tuple[str, ...], here: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(here, f"is {short(value)}", f"a mapping with {', '.join(needed)}")
    if unknown := [key for key in value if key not in (*needed, *other)]:
        raise _wrong(here, f"has the key {short(unknown[0])}", f"{', '.join((*needed, *other))}")
    if missing := [key for key in needed if key not in value]:
        raise _wrong(here, f"lacks {', '.join(missing)}", f"{', '.join(needed)}")
    return value


def _list(value: object, here: str, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(here, f"has {short(value)} as {what}", "a list")
    return value


def _names(value: object, here: str, what: str) -> tuple[str, ...]:
    names = _list(value, here, what)
    if wrong := [name for name in names if not (isinstance(name, str) and _NAME.fullmatch(name))]:
        raise _wrong(here, f"has {short(wrong[0])} in {what}", "names of letters, digits, '.', '_' and '-'")
    if not names:
        raise _wrong(here, f"names no {what}", "at least one")
    return tuple(names)


def _text(value: object, here: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > _MAX_TEXT:
        raise _wrong(here, f"has {short(value)} as {what}", f"1 to {_MAX_TEXT:,} printable characters in one line")
    return value


def _wrong(here: str, problem: str, expected: str) -> InputError:
    return InputError(f"{here} {problem}", expected=expected, todo="mend it; docs/verdicts.md has the form")


def read_preflight(path: Path) -> PreflightResult:
    """What `./inv preflight` wrote.

    Raises:
        InputError: it is not that, or of another format.
    """
    where = shown_path(path)
    text = read_text(path, what="preflight result", limit=_MAX_JSON_BYTES)
    try:
        return preflight_result(json.loads(text), where)
    except (RecursionError, ValueError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            f"{where} is no result of preflight: {said}",
            expected=f"the form of docs/preflight.md, format {FORMAT}",
            todo="write it anew with ./inv preflight, or remove it",
        ) from error


def parse_changes(texts: Iterable[str], ledger: Ledger) -> tuple[Change, ...]:
    """Changes as a user types them: nccl=2.32.3, topology=two-sockets; toolchain=NAME is all of its versions.

    Raises:
        InputError: not of that form, nothing depends on it, or the value cannot be.
    """
    found: list[Change] = []
    for text in texts:
        what, equals, value = text.partition("=")
        what, value = component(what.strip()), value.strip()
        if not equals or not value:
            raise _bad_change(text, "NAME=VALUE, such as nccl=2.32.3")
        found += _of_toolchain(text, value, ledger) if what == "toolchain" else [_change(text, what, value, ledger)]
    return tuple(dict.fromkeys(found))


def _of_toolchain(text: str, name: str, ledger: Ledger) -> list[Change]:
    known = {result.toolchain: result for result in ledger.results}
    if name not in known:
        raise _bad_change(text, f"a toolchain with a result of ./inv preflight: {', '.join(known) or 'none has one'}")
    return [Change(what=what, value=value) for what, value in known[name].state.items()]


def _change(text: str, what: str, value: str, ledger: Ledger) -> Change:
    if what not in ledger.subjects:
        raise _bad_change(text, f"one of {', '.join((*ledger.subjects, 'toolchain'))}")
    if what == "topology":
        if value not in NODE_CLASSES:
            raise _bad_change(text, f"one of {', '.join(NODE_CLASSES)}")
        return Change(what=what, value=value)
    try:
        return Change(what=what, value=str(Version(value)))
    except ValueError as error:  # InvalidVersion is one; so is that of a number with thousands of digits
        raise _bad_change(text, "a version, such as nccl=2.32.3") from error


def _bad_change(text: str, expected: str) -> InputError:
    return InputError(f"--changed is {short(text)}", expected=expected, todo="correct it")
