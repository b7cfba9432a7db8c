"""Which command-line flags an SGLang release has: flags.tsv, and what an installation itself prints."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from lanewise.errors import InputError
from tuning.serving.backends import parse_release
from tuning.workload import short

_DATA = Path(__file__).with_name("flags.tsv")
_RENAMED = {
    "enable-ep-moe": "ep-size",
    "enable-deepep-moe": "moe-a2a-backend",
    "enable-dp-attention": "attn-dp-size",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "enable-flashinfer-allreduce-fusion": "flashinfer-allreduce-fusion-backend",
    "disable-piecewise-cuda-graph": "disable-prefill-cuda-graph",
    "enable-piecewise-cuda-graph": "cuda-graph-backend-prefill",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
}
"""What replaced a flag, or what it replaced: said where one is missing. Values may differ, so nothing is rewritten."""
_NEAR = 3


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag, without dashes, in the releases of the table: those that have it, and those that call it deprecated."""

    name: str
    present: frozenset[str]
    deprecated: frozenset[str]


@cache
def _table() -> tuple[tuple[str, ...], dict[str, Flag]]:
    lines = _DATA.read_text(encoding="utf-8").splitlines()
    order = tuple(next(line for line in lines if line.startswith("# releases: ")).split()[2:])
    rows = [line.split("\t") for line in lines if not line.startswith("#")][1:]
    flags = (
        Flag(name=name, present=_spans(present, order), deprecated=_spans(deprecated, order))
        for name, present, deprecated in rows
    )
    return order, {flag.name: flag for flag in flags}


def _spans(text: str, order: tuple[str, ...]) -> frozenset[str]:
    """Releases of "0.5.3-0.5.13,0.5.20"."""
    found: set[str] = set()
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        found |= set(order[order.index(first) : order.index(last or first) + 1])
    return frozenset(found)


def releases() -> tuple[str, ...]:
    """Releases that the table holds, oldest first."""
    return _table()[0]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The flags of one installation.

    Attributes:
        release: as asked for.
        version: the same, to compare with.
        flags: names without dashes that it takes.
        notes: what is known less well of it, in words.
    """

    release: str
    version: Version
    flags: frozenset[str]
    notes: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether it takes a flag of exactly this name."""
        return name in self.flags

    def first(self, *names: str) -> str:
        """The first of several names of one thing, newest first, that it takes; the last one where it takes none."""
        return next((name for name in names if name in self.flags), names[-1])

    def deprecated(self, name: str) -> bool:
        """Whether its release is in the table and calls that flag deprecated."""
        flag = _table()[1].get(name)
        return flag is not None and self.version.base_version in flag.deprecated

    def require(self, name: str) -> None:
        """Refuse a flag that it does not take: argparse would after minutes, or take a longer name for it.

        Raises:
            InputError: with the releases that have it, and the names nearest to it.
        """
        if self.has(name):
            return
        flag = _table()[1].get(name)
        had = [release for release in releases() if flag and release in flag.present]
        where = f"in {had[0]} to {had[-1]}" if len(had) > 1 else f"in {''.join(had)}"
        raise InputError(
            f"SGLang {self.release} has no flag --{short(name).strip(chr(39))}",
            expected=f"one that it has; this one is {where}" if had else "the full name of a flag that it has",
            todo=f"use {near}" if (near := self._near(name)) else "leave it out; `launch_server --help` lists them",
        )

    def _near(self, name: str) -> str:
        pairs = {**{new: old for old, new in _RENAMED.items()}, **_RENAMED}
        renamed = [pairs[name]] if pairs.get(name) in self.flags else []
        begins = sorted(flag for flag in self.flags if flag.startswith(name))[:_NEAR] if name else []
        found = renamed or begins or difflib.get_close_matches(name[:100], self.flags, n=_NEAR, cutoff=0.75)
        return " or ".join(f"--{flag}" for flag in found)


def dialect(release: str, known: frozenset[str] | None = None) -> Dialect:
    """The flags of a release.

    Args:
        release: SGLang's version.
        known: what the installation itself says that it takes. A release of the table takes both; of any other one it
            decides alone.

    Raises:
        InputError: the release is no version, is older than the table, or the table lacks it and nothing is known.
    """
    order, table = _table()
    version = parse_release(release)
    if version is None or version < Version(order[0]):
        raise InputError(
            f"SGLang {short(release)} is not supported",
            expected=f"a release from {order[0]} on",
            todo="name an environment that holds one",
        )
    notes: tuple[str, ...] = ()
    column = next((name for name in order if Version(name) == version), "")
    if not column and version.is_postrelease and version.base_version in order:
        column = version.base_version
        notes = (f"flags of SGLang {release} are taken to be those of {column}",)
    if column:
        flags = frozenset(flag.name for flag in table.values() if column in flag.present) | (known or frozenset())
        return Dialect(release=release, version=version, flags=flags, notes=notes)
    if not known:
        raise InputError(
            f"the flags of SGLang {release} are not known",
            expected=f"one of {', '.join(order)}, or an installation that prints its own with --help",
            todo="name the environment that holds it, so that it can be asked",
        )
    return Dialect(
        release=release,
        version=version,
        flags=known,
        notes=(f"flags of SGLang {release} are those that it prints itself; how it behaves is taken from older ones",),
    )
