"""What NCCL says at NCCL_DEBUG=INFO: transports between ranks, search results, choices, settings, releases."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tuning.evidence import Sign

SMALL = 1 << 17
"""Bytes up to which LL should be chosen on PCIe: NCCL's own prices cross far above (tuning/nccl_cost.py)."""
RING_PATTERN = 4
_HOST = re.compile(r"(?:\[[0-9,]+\]<stdout>:)?([A-Za-z0-9<][\w.<>-]{0,80}):\d+:\d+ (?:\[|NCCL)", re.ASCII)
_VIA = re.compile(r"(\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via ([A-Z0-9]+)", re.ASCII)
_RANKS = re.compile(r"\bn[Rr]anks (\d{1,4})\b", re.ASCII)
_RELEASE = re.compile(r"(?:NCCL version |nccl==)(\d{1,4})\.(\d{1,4})\.(\d{1,4})", re.ASCII)
_PATTERN = re.compile(r"Pattern (\d+), crossNic \d+, nChannels (\d+), bw ([0-9.]+)/", re.ASCII)
_CHOICE = re.compile(r"(\w+)?:? ?\b(\d+) Bytes -> Algo (\w+) proto (\w+)", re.ASCII)
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (\S+?)\.?$", re.ASCII)
_ALGORITHMS = {"0": "TREE", "1": "RING"}
_PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
"""NCCL up to 2.23 logs numbers (src/include/nccl_tuner.h)."""
_LEVELS_WITHOUT_HOST_BRIDGES = {"LOC", "NVL", "PIX", "PXB", "0", "1", "2", "3"}
_OFF = {"0", "LOC"}


@dataclass(kw_only=True)
class NcclFacts:
    """What the lines of a log said so far."""

    hosts: set[str] = field(default_factory=set)
    ways: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    ranks: int = 0
    releases: set[tuple[int, int, int]] = field(default_factory=set)
    rings: list[tuple[int, float]] = field(default_factory=list)
    choices: dict[int, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    begun: bool = False
    went_on: bool = False

    def signs(self, where: str) -> Iterator[Sign]:
        """What these facts speak for."""
        yield from self._transport(where)
        yield from self._search(where)
        yield from self._chosen(where)
        yield from self._set(where)
        if len(self.releases) > 1:
            shown = ", ".join(".".join(map(str, release)) for release in sorted(self.releases))
            yield Sign(name="nccl-several-releases", text=f"NCCL {shown} in one log", where=where)
        if self.begun and not self.went_on:
            text = "NCCL begins to start, and nothing tells that it went on"
            yield Sign(name="stopped-in-first-collective", text=text, where=where)

    def _transport(self, where: str) -> Iterator[Sign]:
        slow = {way: pairs for way, pairs in self.ways.items() if way != "P2P"}
        if slow:
            shown = ", ".join(f"{len(pairs)} pairs via {way}" for way, pairs in slow.items())
            yield Sign(name="transport-host", text=shown, where=where)
        elif self.ways:
            yield Sign(name="transport-p2p-only", text=f"all {len(self.ways['P2P'])} pairs via P2P", where=where)

    def _search(self, where: str) -> Iterator[Sign]:
        if not self.rings:
            return
        channels, gb_s = max(self.rings, key=lambda ring: ring[1])
        name = "search-succeeded" if gb_s >= 1 else "search-failed"
        yield Sign(name=name, text=f"the ring has {channels} channels of {gb_s:g} GB/s", where=where)

    def _chosen(self, where: str) -> Iterator[Sign]:
        small = {size: choice for size, choice in self.choices.items() if 4096 <= size <= SMALL}
        if not small:
            return
        shown = ", ".join(f"{size:,} B {choice}" for size, choice in sorted(small.items())[:4])
        if len(set(small.values())) > 1:
            yield Sign(name="several-protocols", text=shown, where=where)
        simple = all(choice.endswith("SIMPLE") for choice in small.values())
        if simple or all(choice.endswith(" LL") for choice in small.values()):
            yield Sign(name=f"chose-{'simple' if simple else 'll'}-when-small", text=shown, where=where)

    def _set(self, where: str) -> Iterator[Sign]:
        level = self.settings.get("NCCL_P2P_LEVEL", "")
        if self.settings.get("NCCL_P2P_DISABLE", "0") not in ("0", "") or level in _OFF:
            yield Sign(name="p2p-off-by-setting", text=_shown(self.settings, "NCCL_P2P"), where=where)
        elif level in _LEVELS_WITHOUT_HOST_BRIDGES:
            text = f"NCCL_P2P_LEVEL={level} keeps P2P within a switch"
            yield Sign(name="pairs-beyond-default-level", text=text, where=where)
        if (protocols := self.settings.get("NCCL_PROTO", "")) and not {"LL", "ll"} & set(protocols.split(",")):
            yield Sign(name="protocol-forced", text=f"NCCL_PROTO={protocols} leaves LL out", where=where)
        if "NCCL_GRAPH_FILE" in self.settings:
            yield Sign(name="graph-file-set", text=_shown(self.settings, "NCCL_GRAPH_FILE"), where=where)

    def said(self) -> Iterator[str]:
        """What was read, in words."""
        if self.releases:
            yield "NCCL " + ", ".join(".".join(map(str, release)) for release in sorted(self.releases))
        if self.ranks:
            yield f"{self.ranks} ranks"
        if self.ways:
            yield "; ".join(f"{len(pairs)} pairs via {way}" for way, pairs in sorted(self.ways.items()))
        if self.settings:
            yield _shown(self.settings, "NCCL_")


def _shown(settings: Mapping[str, str], start: str) -> str:
    found = [f"{name}={value}" for name, value in settings.items() if name.startswith(start)]
    return ", ".join(found)[:160]


def _via(facts: NcclFacts, text: str) -> None:
    facts.went_on = True
    if found := _VIA.search(text):
        facts.ways.setdefault(found[3], set()).add((int(found[1]), int(found[2])))


def _info(facts: NcclFacts, text: str) -> None:
    if found := _HOST.match(text.lstrip()):
        facts.hosts.add(found[1])
    facts.begun |= "Using network" in text


def _ranks(facts: NcclFacts, text: str) -> None:
    if found := _RANKS.search(text):
        facts.ranks = max(facts.ranks, int(found[1]))


def _release(facts: NcclFacts, text: str) -> None:
    if found := _RELEASE.search(text):
        facts.releases.add((int(found[1]), int(found[2]), int(found[3])))


def _pattern(facts: NcclFacts, text: str) -> None:
    if (found := _PATTERN.search(text)) and int(found[1]) == RING_PATTERN:
        facts.rings.append((int(found[2]), number(found[3])))


def _choice(facts: NcclFacts, text: str) -> None:
    found = _CHOICE.search(text)
    if found and found[1] in (None, "AllReduce", "INFO"):
        algorithm, protocol = _ALGORITHMS.get(found[3], found[3]), _PROTOCOLS.get(found[4], found[4])
        facts.choices[int(found[2][:18])] = f"{algorithm} {protocol}"


def _setting(facts: NcclFacts, text: str) -> None:
    if found := _SETTING.search(text.strip()):
        facts.settings[found[1]] = found[2][:80]


def _progress(facts: NcclFacts, _text: str) -> None:
    facts.went_on = True


def number(text: str) -> float:
    """What a log prints as a number; 0 of what is none, or of none that can be counted with."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


NCCL_LINES: Mapping[bytes, Callable[[NcclFacts, str], None]] = {
    b"] via ": _via,
    b"NCCL INFO": _info,
    b"Using network": _info,
    b"nranks ": _ranks,
    b"nRanks ": _ranks,
    b"NCCL version ": _release,
    b"using nccl==": _release,
    b"crossNic": _pattern,
    b"Bytes -> Algo": _choice,
    b"set by environment to": _setting,
    b"Init COMPLETE": _progress,
    b"Connected all": _progress,
    b"Trees [": _progress,
    b"NCCL CALL": _progress,
}
"""What to do with a line, by a literal that it holds."""
