"""Reads the catalogue of approaches and the rules that decide whether each can start: images/approaches/*.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from images.conditions import CONDITIONS, READS_A_SOURCE, check_parameters
from lanewise.errors import InputError
from lanewise.files import read_text

CATALOGUE = Path(__file__).parent / "approaches"
_MAX_FILE_BYTES = 1 << 20


class Verdict(StrEnum):
    """What becomes of an approach on these packages."""

    STARTS = "starts"
    FALLS_BACK = "falls back"
    FAILS = "fails"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Group(StrEnum):
    """What an approach is part of, in the order in which they are shown."""

    ALLREDUCE = "allreduce"
    ALL_TO_ALL = "all-to-all"
    ENGINE_PART = "engine part"
    SPECULATION = "speculation"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Conditions, and what is so where all of them hold.

    Attributes:
        id: unique over the catalogue.
        when: condition name and parameters.
        verdict: what becomes of the approach.
        why: the reason, for people.
        source: where it is known from.
        error: what it ends in, or what runs instead; "" where it starts.
        unblock: what would change the verdict.
        needs: settings without which it would not start or not be on.
        note: what else to know.
    """

    id: str
    when: tuple[tuple[str, Mapping[str, Any]], ...]
    verdict: Verdict
    why: str
    source: str
    error: str = ""
    unblock: str = ""
    needs: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Approach:
    """One way to do a job, with the rules that decide, in order.

    Attributes:
        id: unique, kebab-case.
        name: for people.
        group: what it is part of.
        switch: how a user turns it on; "" where nothing need be done.
        rules: the first whose conditions all hold decides.
    """

    id: str
    name: str
    group: Group
    switch: str
    rules: tuple[Rule, ...]


def read_approaches(folder: Path = CATALOGUE) -> tuple[Approach, ...]:
    """The catalogue, group by group.

    Raises:
        InputError: a file is no catalogue; the error names file and entry.
    """
    approaches: list[Approach] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            document = yaml.safe_load(read_text(path, what="catalogue", limit=_MAX_FILE_BYTES))
            approaches += [_approach(path, entry) for entry in document["approaches"]]
        except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
            raise _wrong(path, "the file", " ".join(str(error).split())[:200]) from error
    ids = [a.id for a in approaches] + [rule.id for a in approaches for rule in a.rules]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise _wrong(folder, twice[0], "the id is given twice")
    order = list(Group)
    return tuple(sorted(approaches, key=lambda a: order.index(a.group)))


def sources_wanted(approaches: Iterable[Approach]) -> frozenset[str]:
    """Globs of the source files that the rules read."""
    return frozenset(str(parameters["file"]) for name, parameters in _conditions(approaches) if name in READS_A_SOURCE)


def libraries_wanted(approaches: Iterable[Approach]) -> frozenset[str]:
    """Globs of the libraries that the rules ask the audit about."""
    return frozenset(str(parameters["path"]) for name, parameters in _conditions(approaches) if name == "library")


def paths_wanted(approaches: Iterable[Approach]) -> frozenset[str]:
    """Globs of the paths of which the rules ask whether they are there."""
    return frozenset(str(parameters["path"]) for name, parameters in _conditions(approaches) if name == "file")


def _conditions(approaches: Iterable[Approach]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return (condition for approach in approaches for rule in approach.rules for condition in rule.when)


def _wrong(path: Path, entry: str, problem: str) -> InputError:
    return InputError(
        f"catalogue {path}: {entry}: {problem}",
        expected="approaches with id, name, group, switch and rules (id, when, verdict, why, source, ...)",
        todo="mend the file",
    )


def _approach(path: Path, entry: Mapping[str, Any]) -> Approach:
    name = str(entry.get("id", "an entry without id"))
    try:
        fields = dict(entry)
        rules = tuple(_rule(path, rule) for rule in fields.pop("rules"))
        return Approach(**{**fields, "group": Group(fields["group"])}, rules=rules)
    except (TypeError, KeyError, ValueError) as error:
        raise _wrong(path, name, str(error)) from error


def _rule(path: Path, entry: Mapping[str, Any]) -> Rule:
    name = str(entry.get("id", "a rule without id"))
    try:
        rule = Rule(
            **{
                **entry,
                "verdict": Verdict(entry["verdict"]),
                "when": tuple(_condition(c) for c in entry["when"]),
                "needs": tuple(entry.get("needs", ())),
            }
        )
    except (TypeError, KeyError, ValueError, re.error) as error:
        raise _wrong(path, name, str(error)) from error
    if not rule.why or not rule.source:
        raise _wrong(path, name, "why and source are needed")
    if rule.verdict in (Verdict.FAILS, Verdict.FALLS_BACK) and not rule.error:
        raise _wrong(path, name, "it does not say what it ends in (error)")
    if rule.verdict in (Verdict.FAILS, Verdict.FALLS_BACK, Verdict.ABSENT) and not rule.unblock:
        raise _wrong(path, name, "it does not say what would unblock it")
    return rule


def _condition(entry: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    ((name, parameters),) = entry.items()
    if name not in CONDITIONS:
        raise ValueError(f"no condition {name!r}: there are {', '.join(CONDITIONS)}")
    check_parameters(name, parameters)
    if any(c in str(parameters.get("path") or parameters.get("file", "")).partition("/")[0] for c in "*?["):
        raise ValueError(f"{name}: the package that a path begins with is no pattern")
    if "pattern" in parameters:
        re.compile(parameters["pattern"])
    return name, parameters
