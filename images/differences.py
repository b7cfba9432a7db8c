"""Says in words what differs between two toolchains, from their pins and their lock alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from images.lock import Lock
from images.matrix import Toolchain

_FAMILY_TARGETS_SINCE = Version("12.9")
"""sm_120f: CUDA 12.9 release notes, family-specific targets; absent from ptxas 12.8.93's own list."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs.

    Attributes:
        what: the thing.
        a: in the first toolchain; "" where it has none.
        b: in the second.
        meaning: what follows, where something does.
    """

    what: str
    a: str
    b: str
    meaning: str = ""


@dataclass(frozen=True, kw_only=True)
class Differences:
    """What differs between two toolchains.

    Attributes:
        named: CUDA, Python, arch tokens and pins.
        further: wheels that both locks hold, in other versions.
        same: what a person might expect to differ, and does not.
        conclusion: what may be said of a measured difference.
    """

    named: tuple[Difference, ...]
    further: tuple[Difference, ...]
    same: tuple[str, ...]
    conclusion: str


def differences(a: Toolchain, b: Toolchain, lock: Lock) -> Differences:
    """Hold two toolchains against each other; what is built for either CUDA under another name is one thing."""
    pins_a, pins_b = _by_role(a.pins), _by_role(b.pins)
    rows = [
        Difference(what="CUDA", a=a.cuda, b=b.cuda, meaning=_cuda_meaning(a, b)),
        Difference(what="Python", a=a.python, b=b.python),
        *(
            Difference(what=f"SM120 target for {tool}", a=a.arch.get(tool, ""), b=b.arch.get(tool, ""),
                       meaning="another instruction set is compiled for")
            for tool in {**a.arch, **b.arch}
        ),
        *(Difference(what=name, a=pins_a.get(name, ""), b=pins_b.get(name, "")) for name in {**pins_a, **pins_b}),
    ]  # fmt: skip
    named = tuple(row for row in rows if row.a != row.b)
    return Differences(
        named=named,
        further=tuple(_further(a, b, lock)),
        same=tuple(f"{row.what} {row.a}" for row in rows if row.a == row.b),
        conclusion=_conclusion(a, b, named),
    )


def _by_role(pins: Mapping[str, str]) -> dict[str, str]:
    """Versions without the CUDA that a name or a local version carries: nvidia-nccl-cu12 and -cu13 are both NCCL."""
    return {name.removesuffix("-cu12").removesuffix("-cu13"): Version(v).public for name, v in pins.items()}


def _cuda_meaning(a: Toolchain, b: Toolchain) -> str:
    old, new = sorted((Version(a.cuda), Version(b.cuda)))
    facts = []
    if old.major != new.major:
        facts.append("another major release: wheels and drivers of one do not serve the other")
    if old < _FAMILY_TARGETS_SINCE <= new:
        facts.append(f"sm_120f can be compiled for by {new} only")
    return "; ".join(facts)


def _further(a: Toolchain, b: Toolchain, lock: Lock) -> Iterable[Difference]:
    """Wheels that both have in other versions; a lock with something unresolved holds the pins only."""
    locked = [lock.find(toolchain.name, toolchain.python) for toolchain in (a, b)]
    if any(one is None or one.unresolved for one in locked):
        return
    wheels_a, wheels_b = (_by_role({w.name: w.version for w in one.wheels}) for one in locked if one)
    pinned = {*_by_role(a.pins), *_by_role(b.pins)}
    for name in sorted(wheels_a.keys() & wheels_b.keys() - pinned):
        if wheels_a[name] != wheels_b[name]:
            yield Difference(what=name, a=wheels_a[name], b=wheels_b[name])


def _conclusion(a: Toolchain, b: Toolchain, named: Iterable[Difference]) -> str:
    others = [row.what for row in named if row.what != "CUDA"]
    if a.name == b.name:
        return "it is the same toolchain"
    if a.pair == b.name:
        return "a matched pair: a difference measured between them is CUDA's, as far as the pins tell"
    if others:
        return (
            f"a difference measured between them is not CUDA's alone: {', '.join(others)} "
            f"{'differ' if len(others) > 1 else 'differs'}, too; a matched pair is for that question"
        )
    return "nothing but CUDA differs in the pins"
