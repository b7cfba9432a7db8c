"""The small language of conditions, three-valued: each holds, does not, or cannot be told.

    {fact: threads, below: 256}            also at_least
    {fact: path, is: switch}               also one_of: [switch, mixed]
    {fact: bus_options, has: pcie_bus_perf}  also lacks; the fact is a list of words
    {all: [C, ...]}   {any: [C, ...]}   {not: C}

What cannot be read makes a condition unknown, unless the rest decides it anyway. The facts are those of
`playbooks.settings.facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lanewise.errors import InputError
from playbooks.settings.known import Unknown

Condition = Mapping[str, Any]
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda value, wanted: bool(value == wanted),
    "one_of": lambda value, wanted: value in wanted,
    "below": lambda value, wanted: bool(value < wanted),
    "at_least": lambda value, wanted: bool(value >= wanted),
    "has": lambda value, wanted: wanted in value,
    "lacks": lambda value, wanted: wanted not in value,
}
_ARGUMENT: dict[str, type | tuple[type, ...]] = {
    "is": (str, bool, int), "one_of": list, "below": int, "at_least": int, "has": str, "lacks": str,
}  # fmt: skip
_JOINED = {"all": " and ", "any": " or "}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """How a fact is told.

    Attributes:
        words: what it is, e.g. "CPU threads".
        yes, no: what to say where it is true or false, for a fact that is either.
    """

    words: str
    yes: str = ""
    no: str = ""

    def state(self, value: object) -> str:
        """The fact as found, in words."""
        if isinstance(value, Unknown):
            return f"{self.words}: unknown ({value.reason})"
        if isinstance(value, bool) and self.yes:
            return self.yes if value else self.no
        shown = " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else value
        return f"{self.words}: {shown}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether a condition holds (None: cannot be told), and the facts that made it so, in words."""

    holds: bool | None
    because: tuple[str, ...] = ()


ALWAYS: Condition = {"all": []}


def ask(condition: Condition, facts: Mapping[str, Any], known: Mapping[str, Fact]) -> Answer:
    """Whether a checked condition holds for these facts; `known` says how they are told."""
    if "not" in condition:
        answer = ask(condition["not"], facts, known)
        return Answer(holds=None if answer.holds is None else not answer.holds, because=answer.because)
    for joint in _JOINED:
        if joint in condition:
            answers = [ask(part, facts, known) for part in condition[joint]]
            return _joined(answers, decides=joint == "any")
    return _fact(condition, facts, known)


def _joined(answers: list[Answer], *, decides: bool) -> Answer:
    """`decides`: the one answer that settles it: true for any, false for all."""
    for wanted in (decides, None):
        if some := [answer for answer in answers if answer.holds is wanted]:
            return Answer(holds=wanted, because=tuple(dict.fromkeys(line for one in some for line in one.because)))
    return Answer(holds=not decides, because=tuple(dict.fromkeys(line for one in answers for line in one.because)))


def _fact(condition: Condition, facts: Mapping[str, Any], known: Mapping[str, Fact]) -> Answer:
    name, test = condition["fact"], _test_of(condition)
    value = facts[name]
    because = (known[name].state(value),)
    if isinstance(value, Unknown):
        return Answer(holds=None, because=because)
    return Answer(holds=_TESTS[test](value, condition[test]), because=because)


def _test_of(condition: Condition) -> str:
    return next(key for key in condition if key != "fact")


def facts_of(condition: Condition) -> Iterator[str]:
    """The names of the facts that a checked condition asks for."""
    if "fact" in condition:
        yield condition["fact"]
    parts = [condition["not"]] if "not" in condition else condition.get("all", condition.get("any", []))
    for part in parts:
        yield from facts_of(part)


def in_words(condition: Condition, known: Mapping[str, Fact]) -> str:
    """A checked condition as a phrase; empty where it always holds."""
    if "not" in condition:
        return f"not ({in_words(condition['not'], known)})"
    for joint, word in _JOINED.items():
        if joint in condition:
            parts = [_bracketed(part, joint, known) for part in condition[joint]]
            return word.join(parts)
    return _fact_in_words(condition, known)


def _bracketed(part: Condition, joint: str, known: Mapping[str, Fact]) -> str:
    other = "any" if joint == "all" else "all"
    words = in_words(part, known)
    return f"({words})" if len(part.get(other, [])) > 1 else words


def _fact_in_words(condition: Condition, known: Mapping[str, Fact]) -> str:
    fact, test = known[condition["fact"]], _test_of(condition)
    wanted = condition[test]
    if test == "is" and isinstance(wanted, bool):
        return fact.yes if wanted else fact.no
    if test == "at_least":
        return f"{wanted} or more {fact.words}"
    if test == "below":
        return f"fewer than {wanted} {fact.words}"
    shown = " or ".join(map(str, wanted)) if test == "one_of" else wanted
    return f"{fact.words} {'is' if test == 'one_of' else test} {shown}"


def check(condition: object, known: Mapping[str, Fact], where: str) -> Condition:
    """Refuse what is no condition.

    Raises:
        InputError: it has another form, or names a fact or test that does not exist.
    """
    if not isinstance(condition, Mapping):
        raise _malformed(condition, where)
    keys = set(condition)
    if keys == {"not"}:
        check(condition["not"], known, where)
    elif len(keys) == 1 and keys <= set(_JOINED) and isinstance(parts := condition[next(iter(keys))], list):
        for part in parts:
            check(part, known, where)
    elif not _is_fact(condition, known):
        raise _malformed(condition, where)
    return condition


def _is_fact(condition: Condition, known: Mapping[str, Fact]) -> bool:
    tests = [key for key in condition if key != "fact"]
    if condition.get("fact") not in known or len(tests) != 1 or tests[0] not in _TESTS:
        return False
    return isinstance(condition[tests[0]], _ARGUMENT[tests[0]])


def _malformed(condition: object, where: str) -> InputError:
    return InputError(
        f"{where}: {str(condition)[:120]} is no condition",
        expected="{all: [...]}, {any: [...]}, {not: ...}, or {fact: NAME, TEST: ...} with one of " + ", ".join(_TESTS),
        todo="correct it; playbooks/settings/facts.py has the names of the facts",
    )
