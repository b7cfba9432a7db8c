"""The ledger: what is concluded of every approach, on which evidence, since when, and what reopens it.

Values and pure functions; `ledger_preflight` joins what preflight found, `ledger_read` reads the files, `ledger_view`
shows the answers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from packaging.version import Version

ANY = "any"
NVLINK_PAIR = "nvlink-pair"
NODE_CLASSES: Mapping[str, str] = {
    ANY: "every node whose SM120 GPUs are joined by PCIe",
    "one-switch": "all GPUs behind one PCIe switch (4gpu-1switch)",
    "two-switches-one-socket": "two switches on one CPU (8gpu-2switch-1socket)",
    "two-sockets": "two switches on two CPUs (8gpu-2switch-2socket-turin)",
    "broadcom-virtual-switches": "virtual switches of Broadcom chips (8gpu-4virtual-switch-broadcom)",
    "direct-attach": "GPUs on the CPUs' own ports (8gpu-direct-2socket, 2gpu)",
    "vm": "a virtual machine that GPUs are passed through to",
    NVLINK_PAIR: "two H200 joined by NVLink, on which this project measured: neither SM120 nor PCIe",
}
"""Kinds of nodes that a verdict is about, with the reference nodes of each."""


class Verdict(StrEnum):
    """What is concluded of an approach."""

    WORKS = "works"
    DOMINATED = "dominated"  # runs and is right, and something else is never worse
    UNSUPPORTED = "unsupported"  # does not start, or runs something else in its place
    FAULTY = "faulty"  # runs, and is wrong, hangs, or is far from what it is built for
    UNKNOWN = "unknown"  # nothing that deserves the name of evidence


class EvidenceKind(StrEnum):
    """What a verdict rests on."""

    RUN = "run"  # a run file, or the results of a bench script
    PREFLIGHT = "preflight"  # a rule that held on a toolchain's packages
    PLAN = "plan"  # what NCCL's own search and prices say
    PREDICTION = "prediction"  # computed
    SOURCE = "source"  # published by somebody else


def component(name: str) -> str:
    """A distribution's name as conditions have it: NCCL's wheels are all "nccl"."""
    plain = name.lower().replace("_", "-")
    return "nccl" if plain.startswith("nvidia-nccl-cu") else plain


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One thing that a verdict rests on.

    Attributes:
        kind: what it is.
        where: a path, a rule, a command, or an address.
        says: what is to be read there, with the numbers.
    """

    kind: EvidenceKind
    where: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that is, or may become, different: `what` is now `value`."""

    what: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Reopening:
    """What makes a verdict worth another look.

    Attributes:
        what: "nccl", "cuda", "driver", "topology" (its value a node class), or a component such as "sglang".
        at_least: the first version that reopens it; None: see `above`.
        above: the last version that does not, because it was looked at; None: see `value`.
        value: the value that reopens it, of what has no versions; "": every change does.
        why: what may be different then.
    """

    what: str
    at_least: Version | None = None
    above: Version | None = None
    value: str = ""
    why: str

    def holds(self, change: Change) -> bool:
        """Whether a change reopens; its value is a version where one is asked for."""
        if change.what != self.what:
            return False
        if self.at_least is not None:
            return Version(change.value) >= self.at_least
        if self.above is not None:
            return Version(change.value) > self.above
        return self.value in ("", change.value)

    def __str__(self) -> str:
        """E.g. "sglang 0.5.14 or later"."""
        if self.at_least is not None:
            return f"{self.what} {self.at_least} or later"
        if self.above is not None:
            return f"{self.what} after {self.above}"
        return f"{self.what} {self.value}" if self.value else f"any change of {self.what}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A verdict as somebody wrote it, or as preflight implies it.

    Attributes:
        approach: its id in the catalogue of approaches.
        toolchain: a toolchain's name, or "any".
        node_class: one of `NODE_CLASSES`.
        verdict: what is concluded.
        date: of the conclusion.
        why: in a sentence or two.
        believed: what the campaign before this project believed; "" where it said nothing.
        evidence: at least one.
        reopens: each of them is enough.
        origin: the file it is from.
    """

    approach: str
    toolchain: str
    node_class: str
    verdict: Verdict
    date: dt.date
    why: str
    believed: str = ""
    evidence: tuple[Evidence, ...]
    reopens: tuple[Reopening, ...] = ()
    origin: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about."""
        return self.approach, self.toolchain, self.node_class


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What holds now of one approach, toolchain and node class.

    Attributes:
        entry: the newest conclusion; what agrees with it has added its evidence.
        against: conclusions that say otherwise, newest first: older ones that it replaced, or what it is left against.
    """

    entry: Entry
    against: tuple[Entry, ...] = ()


def latest(entries: Sequence[Entry]) -> tuple[Standing, ...]:
    """What holds: the newest entry on each subject. Those that agree add their evidence, others are kept beside it.

    Args:
        entries: where two of one date speak of the same, the later in this order wins.
    """
    standings: dict[tuple[str, str, str], Standing] = {}
    for entry in sorted(entries, key=lambda entry: entry.date):
        earlier = standings.get(entry.key)
        standings[entry.key] = _succeed(entry, earlier) if earlier else Standing(entry=entry)
    return tuple(standings.values())


def _succeed(newer: Entry, earlier: Standing) -> Standing:
    if newer.verdict is earlier.entry.verdict:
        evidence = tuple(dict.fromkeys((*newer.evidence, *earlier.entry.evidence)))
        return Standing(entry=replace(newer, evidence=evidence), against=earlier.against)
    return Standing(entry=newer, against=(earlier.entry, *earlier.against))


def about(
    standings: Iterable[Standing], *, approach: str = "", toolchain: str = "", node_class: str = ""
) -> tuple[Standing, ...]:
    """Those that speak of what is asked; a verdict on any toolchain or node speaks of each.

    "" asks for all. The node class NVLINK_PAIR is no node of PCIe, so verdicts on any node do not speak of it.
    """
    classes = {node_class} if node_class == NVLINK_PAIR else {node_class, ANY}
    return tuple(
        standing
        for standing in standings
        if approach in ("", standing.entry.approach)
        and (not toolchain or standing.entry.toolchain in (toolchain, ANY))
        and (not node_class or standing.entry.node_class in classes)
    )


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A verdict that a change reopens.

    Attributes:
        standing: the verdict.
        reasons: the changes and the conditions that hold for them.
        closers: verdicts "unsupported" on the same, of other toolchains, that were looked at up to the changed versions
            and beyond: what is known of those closes the verdict rather than opens it.
    """

    standing: Standing
    reasons: tuple[tuple[Change, Reopening], ...]
    closers: tuple[Standing, ...] = ()


def reopened(
    standings: Iterable[Standing], changes: Sequence[Change], *, beside: Sequence[Standing] = ()
) -> tuple[Reopened, ...]:
    """The verdicts that changes reopen, and why.

    Args:
        standings: those that are asked about.
        changes: what is different.
        beside: all that is known, to tell what is closed already.
    """
    found = []
    for standing in standings:
        reasons = tuple(
            (change, condition) for change in changes for condition in standing.entry.reopens if condition.holds(change)
        )
        if reasons:
            causes = [change for change, _ in reasons]
            closers = tuple(other for other in beside if _closes(other.entry, standing.entry, causes))
            found.append(Reopened(standing=standing, reasons=reasons, closers=closers))
    return tuple(found)


def _closes(other: Entry, entry: Entry, changes: Iterable[Change]) -> bool:
    same = other.approach == entry.approach and other.node_class == entry.node_class
    if not same or other.toolchain == entry.toolchain or other.verdict is not Verdict.UNSUPPORTED:
        return False
    looked_at = [condition for condition in other.reopens if condition.above is not None]
    return all(
        any(condition.what == change.what and not condition.holds(change) for condition in looked_at)
        for change in changes
    )
