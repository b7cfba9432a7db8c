"""Combinations of versions, CUDA, Python and arch that do not work: images/unsupported.yaml, asked before building."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lanewise.errors import InputError
from lanewise.files import read_text

UNSUPPORTED = Path(__file__).parent / "unsupported.yaml"
_MAX_FILE_BYTES = 1 << 20


class Verdict(StrEnum):
    """What follows where a combination is met."""

    REFUSED = "refused"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be built.

    Attributes:
        versions: distribution to version.
        cuda: CUDA version.
        python: Python version, major and minor.
        arch: tool to arch token.
        rebuilt: components that are built from source.
    """

    versions: Mapping[str, str]
    cuda: str
    python: str
    arch: Mapping[str, str]
    rebuilt: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Holds where every part of it does; a part that is not given always does.

    Attributes:
        versions: distribution to versions; one that is absent is none of them.
        plain: distributions whose version has no local part, such as +cu130.
        cuda: CUDA versions.
        python: Python versions.
        arch: tool to pattern of arch tokens; "*" is any tool.
        rebuilt: components that are all built from source.
    """

    versions: Mapping[str, SpecifierSet] = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    cuda: SpecifierSet = field(default_factory=SpecifierSet)
    python: SpecifierSet = field(default_factory=SpecifierSet)
    arch: Mapping[str, str] = field(default_factory=dict)
    rebuilt: tuple[str, ...] = ()

    def holds(self, subject: Subject) -> bool:
        """Whether it holds for this."""
        return (
            all(_among(subject.versions.get(name), wanted) for name, wanted in self.versions.items())
            and not any(Version(subject.versions.get(name, "0")).local for name in self.plain)
            and _among(subject.cuda, self.cuda)
            and _among(subject.python, self.python)
            and all(_told(tool, token, subject.arch) for tool, token in self.arch.items())
            and set(self.rebuilt) <= set(subject.rebuilt)
        )


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One that does not work, or not as one would think.

    Attributes:
        id: its name.
        when: where it is met,
        unless: but for these.
        verdict: what follows.
        why: what goes wrong.
        source: where that was read.
        todo: what to do instead.
    """

    id: str
    when: Condition
    unless: tuple[Condition, ...]
    verdict: Verdict
    why: str
    source: str
    todo: str

    def met(self, subject: Subject) -> bool:
        """Whether this is such a combination."""
        return self.when.holds(subject) and not any(condition.holds(subject) for condition in self.unless)


def check(subject: Subject, table: Sequence[Combination] | None = None) -> tuple[Combination, ...]:
    """The warnings.

    Args:
        subject: what is to be built.
        table: what to look for; images/unsupported.yaml where none is given.

    Raises:
        InputError: it is refused; all reasons are told.
    """
    found = [one for one in (read_unsupported() if table is None else table) if one.met(subject)]
    refused = [one for one in found if one.verdict is Verdict.REFUSED]
    if refused:
        raise InputError(
            "; ".join(f"{one.id}: {one.why} ({_values(one, subject)})" for one in refused),
            expected=f"a combination that works; read in {'; '.join(dict.fromkeys(one.source for one in refused))}",
            todo="; ".join(dict.fromkeys(one.todo for one in refused)),
        )
    return tuple(found)


@cache
def read_unsupported(path: Path = UNSUPPORTED) -> tuple[Combination, ...]:
    """The table, in the file's order; read once.

    Raises:
        InputError: the file is none.
    """
    try:
        rows = yaml.safe_load(read_text(path, what="table of combinations", limit=_MAX_FILE_BYTES))["combinations"]
        return tuple(_combination(row) for row in rows)
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(
            f"table {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="a list `combinations`, as the file's head says",
            todo="mend the file",
        ) from error


def _combination(row: Mapping[str, Any]) -> Combination:
    conditions = [_condition(fields) for fields in (row["when"], *row.get("unless", ()))]
    rest = {key: value for key, value in row.items() if key not in ("when", "unless", "verdict")}
    return Combination(when=conditions[0], unless=tuple(conditions[1:]), verdict=Verdict(row["verdict"]), **rest)


def _condition(fields: Mapping[str, Any]) -> Condition:
    specifiers = {key: SpecifierSet(fields[key]) for key in ("cuda", "python") if key in fields}
    lists = {key: tuple(fields[key]) for key in ("plain", "rebuilt") if key in fields}
    versions = {name: SpecifierSet(text) for name, text in fields.get("versions", {}).items()}
    return Condition(**{**fields, **specifiers, **lists, "versions": versions})


def _among(version: str | None, wanted: SpecifierSet) -> bool:
    return version is not None and wanted.contains(version, prereleases=True)


def _told(tool: str, token: str, arch: Mapping[str, str]) -> bool:
    told = arch.values() if tool == "*" else [arch[tool]] if tool in arch else []
    return any(fnmatchcase(one, token) for one in told)


def _values(one: Combination, subject: Subject) -> str:
    """What of the subject the combination is about, for a person."""
    parts = [f"{name} {subject.versions[name]}" for name in one.when.versions]
    parts += [f"CUDA {subject.cuda}"] if one.when.cuda else []
    parts += [f"Python {subject.python}"] if one.when.python else []
    asked = {tool for condition in (one.when, *one.unless) for tool in condition.arch}
    tools = [tool for tool in subject.arch if asked & {tool, "*"}]
    return ", ".join([*parts, *(f"{tool} is told {subject.arch[tool]}" for tool in tools)])
