"""How NCCL reads the values of its settings: whole numbers, path types, and the lists of NCCL_ALGO and NCCL_PROTO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lanewise.errors import InputError
from tuning.nccl_graph import TYPES
from tuning.workload import short

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
"""ncclFuncStr, ncclAlgoStr and ncclProtoStr, src/init.cc of 2.26 and later."""
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""What the numbers from 0 mean where a path type is expected (levelsOldToNew, src/graph/paths.cc)."""
LIMIT = 2**63 - 1
_MOST_DIGITS = 30
_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9]\d*))", re.ASCII)


def as_integer(value: str) -> int | None:
    """What NCCL makes of a value where it reads a number: strtoll with base 0, which takes what a text begins with.

    "0x" means hexadecimal, a leading "0" octal. None where it begins with no number: NCCL takes that as 0. What is out
    of range becomes the nearest in range, by which NCCL knows it and keeps its default.
    Source: ncclLoadParam, src/misc/param.cc.
    """
    if not (found := _NUMBER.match(value)):
        return None
    sign, hexadecimal, octal, decimal = (group or "" for group in found.groups())
    digits, base = max((hexadecimal, 16), (octal, 8), (decimal, 10), key=lambda pair: len(pair[0]))
    number = int(digits[:_MOST_DIGITS] or "0", base) * (-1 if sign == "-" else 1)
    return max(-LIMIT - 1, min(number, LIMIT))


def level_of(value: str) -> str | None:
    """The path type that NCCL takes from e.g. NCCL_P2P_LEVEL; None where it takes none, and its default stays.

    Names count in capitals only; what begins with a digit is an old-style number, and a large one means the last.
    Source: ncclGetLevel, src/graph/paths.cc.
    """
    if value in TYPES:
        return value
    if value[:1].isascii() and value[:1].isdigit():
        return OLD_LEVELS[min(as_integer(value) or 0, len(OLD_LEVELS) - 1)]
    return None


def parse_choice(name: str, value: str, known: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """What each function may use, for the functions that the value speaks of.

    The grammar is that of 2.24 and later (parseList, src/graph/tuning.cc): lists separated by ";", each after an
    optional "function:" which only the first may lack; a list is separated by "," and "^" before it excludes. Upper and
    lower case are alike.

    Args:
        name: the variable, for errors.
        value: its value.
        known: `ALGORITHMS` or `PROTOCOLS`.

    Raises:
        InputError: NCCL would refuse it (ncclInvalidUsage when a communicator is made).
    """
    allowed: dict[str, frozenset[str]] = {}
    for number, part in enumerate(_tokens(value, ";")):
        fields = _tokens(part, ":")
        if len(fields) < 2 and number:
            raise _refused(name, value, "a function and a colon before every list but the first")
        functions = FUNCTIONS if len(fields) < 2 else (_one_of(fields[0], FUNCTIONS, name, value),)
        chosen = frozenset(
            _one_of(entry, known, name, value) for entry in _tokens(fields[:2][-1].removeprefix("^"), ",")
        )
        if fields[:2][-1].startswith("^"):
            chosen = frozenset(known) - chosen
        allowed |= dict.fromkeys(functions, chosen)
    return allowed


def _tokens(text: str, separator: str) -> list[str]:
    """As strtok_r has them: empty ones do not count."""
    return [token for token in text.split(separator) if token]


def _one_of(token: str, known: Sequence[str], name: str, value: str) -> str:
    for entry in known:
        if entry.lower() == token.lower():
            return entry
    raise _refused(name, value, f"{', '.join(known)} in place of {short(token)}")


def _refused(name: str, value: str, expected: str) -> InputError:
    return InputError(f"NCCL refuses {name}={short(value)}", expected=expected, todo="correct it")
