"""Looks over NCCL's settings: names that a release does not know, and values that mean something else than they seem.

What is known lies in `nccl_params.tsv` (names by release) and `nccl_facts.yaml` (values, and names of others), each
with its source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lanewise.errors import InputError
from tuning.nccl_graph import TYPES
from tuning.nccl_values import ALGORITHMS, FUNCTIONS, LIMIT, PROTOCOLS, as_integer, level_of, parse_choice
from tuning.workload import short

_HERE = Path(__file__).parent
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", re.ASCII)
_PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)", re.ASCII)
_MEANT = {"true": "1", "yes": "1", "on": "1", "enable": "1"}


class Gravity(StrEnum):
    """How much a remark matters."""

    REFUSED = "refused"  # NCCL makes no communicator
    NO_EFFECT = "no effect"
    MEANING = "meaning"  # it acts, but otherwise than it seems


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Something to know about one setting.

    Attributes:
        name: the variable.
        value: as set.
        gravity: how much it matters.
        says: what NCCL makes of it, and what to write instead.
        source: where that is known from.
    """

    name: str
    value: str
    gravity: Gravity
    says: str
    source: str


@dataclass(frozen=True, kw_only=True)
class _Name:
    """A variable that libnccl reads: in which releases, and how ("integer", "text", "-": not known)."""

    first: str
    last: str
    kind: str


def lint(settings: Mapping[str, str], release: str) -> tuple[Remark, ...]:
    """Remarks on every NCCL_ setting that a release ignores, refuses or reads otherwise than it seems.

    Args:
        settings: names and values; names that do not begin with NCCL_ are passed over.
        release: such as "2.30.7"; those between the looked-at wheels are judged by the wheels around them.

    Raises:
        InputError: the release is not one.
    """
    if not _RELEASE.fullmatch(release):
        raise InputError(f"NCCL {short(release)} is no release", expected="such as 2.30.7", todo="correct it")
    remarks: list[Remark] = []
    for name in sorted(name for name in settings if name.startswith("NCCL_")):
        problem = _of_name(name, settings[name], release)
        remarks += [problem] if problem else _of_value(name, settings[name], release)
    return tuple(remarks)


def known_names() -> tuple[str, ...]:
    """Every name that a looked-at libnccl reads."""
    return tuple(_names())


@cache
def _names() -> Mapping[str, _Name]:
    lines = (_HERE / "nccl_params.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if line.startswith("NCCL_"))
    return {name: _Name(first=first, last=last, kind=kind) for name, first, last, kind, _ in rows}


@cache
def _facts() -> Any:  # noqa: ANN401 - our own file; the tests read every entry
    return yaml.safe_load((_HERE / "nccl_facts.yaml").read_text(encoding="utf-8"))


@cache
def _wheels() -> tuple[str, ...]:
    """The releases that were looked at, oldest first."""
    named = {release for name in _names().values() for release in (name.first, name.last)}
    return tuple(sorted(named, key=_number))


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _of_name(name: str, value: str, release: str) -> Remark | None:
    """What is wrong with the name itself."""

    def remark(says: str, source: str) -> Remark:
        return Remark(name=name, value=value, gravity=Gravity.NO_EFFECT, says=says, source=source)

    facts = _facts()
    if name in facts["legacy"]:
        says = f"a legacy name that no libnccl from {_wheels()[0]} on reads; today: {facts['legacy'][name]}"
        return remark(says, "user guide; nccl_params.tsv")
    if name in facts["elsewhere"]:
        return remark(f"libnccl does not read it; read by: {facts['elsewhere'][name]}", "nccl_facts.yaml")
    if name not in _names():
        near = difflib.get_close_matches(name, _names(), n=1, cutoff=0.8)
        says = "a name that no looked-at libnccl holds" + (f"; did you mean {near[0]}?" if near else "")
        return remark(says, "nccl_params.tsv")
    known, wheels = _names()[name], _wheels()
    before = wheels[: wheels.index(known.first)]
    after = wheels[wheels.index(known.last) + 1 :]
    if before and _number(release) <= _number(before[-1]):
        return remark(f"NCCL {release} does not read it yet: first seen in {known.first}", "nccl_params.tsv")
    if after and _number(release) >= _number(after[0]):
        return remark(f"NCCL {release} no longer reads it: last seen in {known.last}", "nccl_params.tsv")
    return None


def _of_value(name: str, value: str, release: str) -> Iterator[Remark]:
    """What is to be said of a value of a name that the release reads."""
    facts = _facts()
    if name in facts["levels"]:
        yield from _of_level(name, value)
    elif name in facts["words"]:
        yield from _of_words(name, value, release, facts["words"][name])
    elif name in ("NCCL_ALGO", "NCCL_PROTO"):
        yield from _of_choice(name, value)
    elif _names()[name].kind == "integer" or name == "NCCL_P2P_DISABLE":
        yield from _of_integer(name, value)
    for fact in facts["meanings"]:
        applies = "since" not in fact or _number(release) >= _number(fact["since"])
        if fact["name"] == name and fact["value"] in ("*", value) and applies:
            yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=fact["says"], source=fact["source"])


def _of_level(name: str, value: str) -> Iterator[Remark]:
    source = "ncclGetLevel, src/graph/paths.cc"
    level = level_of(value)
    if level == value:
        return
    if level:
        says = f"read as an old-style number, which means {level}; write {level}"
        yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=source)
        return
    right = f"; did you mean {value.upper()}?" if value.upper() in TYPES else ""
    says = f"not a path type ({', '.join(TYPES)}, in capitals), so the default stays{right}"
    yield Remark(name=name, value=value, gravity=Gravity.NO_EFFECT, says=says, source=source)


def _of_words(name: str, value: str, release: str, fact: Mapping[str, Any]) -> Iterator[Remark]:
    tokens = [token for token in value.split("|") if token] if fact.get("joined") else [value]
    if "numbers_before" in fact and _number(release) < _number(fact["numbers_before"]):
        if not value.isdigit():
            says = f"before {fact['numbers_before']} it is a number, and a word counts as 0; write 0, 1 or 2"
            yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=fact["source"])
        return
    for token in tokens:
        if token.upper() not in fact["known"]:
            says = f"{short(token)} is none of {', '.join(fact['known'])}: {fact['otherwise']}"
            yield Remark(name=name, value=value, gravity=Gravity.NO_EFFECT, says=says, source=fact["source"])


def _of_choice(name: str, value: str) -> Iterator[Remark]:
    source = "parseList, src/graph/tuning.cc of 2.24 and later"
    try:
        chosen = parse_choice(name, value, ALGORITHMS if name == "NCCL_ALGO" else PROTOCOLS)
    except InputError as error:
        says = f"NCCL fails when it makes a communicator; expected {error.expected}"
        yield Remark(name=name, value=value, gravity=Gravity.REFUSED, says=says, source=source)
        return
    if name == "NCCL_PROTO":
        if any("LL128" in protocols for protocols in chosen.values()):
            says = (
                "naming LL128, or excluding another protocol with '^', skips NCCL's check that it is safe: "
                "over PCIe it can corrupt data"
            )
            yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=f"{source}; user guide")
        return
    # On PCIe Ring is all that these four have; it has been no silent fallback since 2.24.
    lost = [function for function in FUNCTIONS[:-1] if function in chosen and "Ring" not in chosen[function]]
    if lost:
        says = f"{', '.join(lost)} fail without Ring; to steer AllReduce alone write NCCL_ALGO=allreduce:{value}"
        yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=source)


def _of_integer(name: str, value: str) -> Iterator[Remark]:
    source = "ncclLoadParam, src/misc/param.cc"
    text, number = value.strip(), as_integer(value)
    if number in (LIMIT, -LIMIT - 1):
        says = "out of range, so the default stays"
        yield Remark(name=name, value=value, gravity=Gravity.NO_EFFECT, says=says, source=source)
    elif text and number is None:
        says = f"a word where a number is read: it counts as 0; write {_MEANT.get(text.lower(), 'a number')}"
        yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=source)
    elif text and not _PLAIN_NUMBER.fullmatch(text):
        says = f"read as the number {number}"
        yield Remark(name=name, value=value, gravity=Gravity.MEANING, says=says, source=source)
