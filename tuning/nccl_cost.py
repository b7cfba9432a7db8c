"""NCCL's own price of an allreduce on one node: the time that its tuning model expects of each algorithm and protocol,
and so what it chooses. These are the numbers that NCCL decides by, not what a call takes: all of it is predicted.

Time = latency + bytes / bandwidth; the smallest wins. Formulas: ncclTopoTuneModel and ncclTopoGetAlgoTime in
src/graph/tuning.cc (2.26 to 2.30), ncclTuningRingModelInit, ncclTuningTreeModelInit and ncclTuningGetChannels in
src/tuning/ (from 2.31), each for one node. The tests hold them against lines of NCCL 2.28.9's own log on two GPUs: its
table of latencies and bandwidths, and what it chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil

from lanewise.errors import InputError
from tuning.nccl_constants import (
    BASE_US,
    HOP_US,
    MAX_THREADS,
    NARROW_GB_S,
    OLDER_CAPS,
    RELEASES,
    THRESHOLDS,
    TRAFFIC_PER_BYTE,
    TREE_CORRECTION,
    Caps,
)
from tuning.nccl_graph import Graph
from tuning.nccl_values import ALGORITHMS, PROTOCOLS, parse_choice
from tuning.workload import short

_MAX_CHANNELS = 64
"""MAXCHANNELS, src/include/device.h."""
_SAFE_FOR_LL128 = ("LOC", "NVL", "NVB")
_TREE_PATTERN = 3
MODELLED_SETTINGS = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_THREAD_THRESHOLDS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
)  # fmt: skip
"""Settings that the model obeys, beside those of the search."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm with one protocol.

    Attributes:
        algorithm: "Tree" or "Ring".
        protocol: "LL", "LL128" or "Simple".
        latency_us: what a call of no bytes would take.
        gb_s: bytes of the message a ns; before the tree's correction.
        barred: why NCCL will not choose it; "" where it may.
    """

    algorithm: str
    protocol: str
    latency_us: float
    gb_s: float
    barred: str = ""

    def time_us(self, size: int) -> float:
        """NCCL's expectation for an allreduce of `size` bytes, us."""
        gb_s = self.gb_s
        step = (size >> 6).bit_length() - 1
        if self.algorithm == "Tree" and 0 <= step < len(TREE_CORRECTION[self.protocol]):
            gb_s *= TREE_CORRECTION[self.protocol][step]
        return self.latency_us + size / (1000 * gb_s)

    def __str__(self) -> str:
        """E.g. "Ring LL"."""
        return f"{self.algorithm} {self.protocol}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What NCCL chooses for a size: the cell, its price in us, and the channels that carry it."""

    size: int
    cell: Cell
    time_us: float
    channels: int


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """NCCL's prices on one node.

    Attributes:
        release: NCCL's, e.g. "2.30.7".
        cells: the six of Tree and Ring, in the order in which NCCL compares them.
        channels: channels of the communicator: twice those that ring and tree have in common, in the set bounds.
        threads: threads of a channel that the channel rule counts with, by (algorithm, protocol).
        thresholds: bytes a thread below which channels are given up, by (algorithm, protocol).
    """

    release: str
    cells: tuple[Cell, ...]
    channels: int
    threads: Mapping[tuple[str, str], int]
    thresholds: Mapping[tuple[str, str], int]

    def choose(self, size: int) -> Choice | None:
        """What NCCL takes for an allreduce of `size` bytes; None where every cell is barred, and the call fails."""
        allowed = [cell for cell in self.cells if not cell.barred]
        if not allowed:
            return None
        best = min(allowed, key=lambda cell: cell.time_us(size))  # the first of equals, as NCCL's "<" takes it
        return Choice(size=size, cell=best, time_us=best.time_us(size), channels=self.channels_for(size, best))

    def channels_for(self, size: int, cell: Cell) -> int:
        """How many channels carry `size` bytes: first the rule on bytes a thread, then that on traffic a channel.

        Sources: getAlgoInfo (2.26 to 2.30, src/enqueue.cc) or ncclTuningGetChannels; scheduleCollTasksToPlan.
        """
        key = (cell.algorithm, cell.protocol)
        share = self.threads[key] * self.thresholds[key]
        most = max(1, min(self.channels, size // share)) if share else self.channels
        per_byte = TRAFFIC_PER_BYTE * (4 if cell.protocol == "LL" else 1)
        traffic_per_cell = RELEASES[self.release].cell_traffic
        cells = ceil(size * per_byte / traffic_per_cell)
        cells_per_channel = max(1, ceil(max(traffic_per_cell, size * per_byte) // most / traffic_per_cell))
        return max(1, min(most, ceil(cells / cells_per_channel)))

    def crossovers(self, least: int = 1 << 8, most: int = 1 << 28) -> tuple[tuple[int, Cell], ...]:
        """From which size on, in bytes, NCCL takes which cell; the first entry starts at `least`.

        Sizes are looked at 16 to the octave, then halved to the byte: a cell that wins for a shorter stretch is missed.
        """
        found: list[tuple[int, Cell]] = []
        below = least
        for size in _ladder(least, most):
            choice = self.choose(size)
            if choice is None:
                return ()
            if not found or choice.cell != found[-1][1]:
                found.append((self._first(below, size, choice.cell), choice.cell))
            below = size
        return tuple(found)

    def _first(self, low: int, high: int, cell: Cell) -> int:
        """The smallest size in (low, high] for which `cell` is chosen, where it is for `high`."""
        while low + 1 < high:
            middle = (low + high) // 2
            choice = self.choose(middle)
            low, high = (low, middle) if choice and choice.cell == cell else (middle, high)
        return high


def _ladder(least: int, most: int) -> Iterator[int]:
    step = 0
    while (size := int(least * 2 ** (step / 16))) <= most:
        yield size
        step += 1


def cost_model(
    ring: Graph, tree: Graph, *, release: str, ranks: int, sm: int, settings: Mapping[str, str] | None = None
) -> CostModel:
    """NCCL's prices for ring and tree as a search found them.

    Args:
        ring, tree: the search's outcome.
        release: one of `nccl_search.KNOWN`.
        ranks: GPUs of the communicator, all on one node.
        sm: the least compute capability among them, 120 for 12.0.
        settings: NCCL's settings; those in `MODELLED_SETTINGS` are obeyed.

    Raises:
        InputError: the release is not known, or a setting is one that NCCL refuses.
    """
    settings = settings or {}
    if release not in RELEASES:
        raise InputError(
            f"NCCL {release}'s prices are not known",
            expected=f"one of {', '.join(RELEASES)}",
            todo="name one of these",
        )
    common = min(len(ring.channels), len(tree.channels))  # src/init.cc
    cells = tuple(
        Cell(
            algorithm=algorithm,
            protocol=protocol,
            latency_us=_latency(algorithm, protocol, graph, ranks),
            gb_s=_bandwidth(algorithm, protocol, graph, common, ranks, _caps(release, sm)),
            barred=_barred(algorithm, protocol, graph, sm, settings),
        )
        for (algorithm, graph), protocol in product((("Tree", tree), ("Ring", ring)), PROTOCOLS)
    )
    narrow = common * ring.gb_s <= NARROW_GB_S
    keys = [(cell.algorithm, cell.protocol) for cell in cells]
    return CostModel(
        release=release,
        cells=cells,
        channels=_channels(common, settings),
        threads={
            key: RELEASES[release].narrow_threads if narrow and key == ("Ring", "Simple") else MAX_THREADS[key[1]]
            for key in keys
        },
        thresholds=_thresholds(keys, ranks, settings),
    )


def _caps(release: str, sm: int) -> Caps:
    if sm >= 100:
        return RELEASES[release].blackwell
    return OLDER_CAPS[max(least for least in OLDER_CAPS if sm >= least)]


def _latency(algorithm: str, protocol: str, graph: Graph, ranks: int) -> float:
    """Base and 2 (ranks - 1) hops: within a node NCCL's tree is a chain, as long as the ring."""
    hops = HOP_US["nvlink" if graph.type == "NVL" else "pci"]
    column = PROTOCOLS.index(protocol)
    return BASE_US[algorithm][column] + 2 * (ranks - 1) * hops[algorithm][column]


def _bandwidth(algorithm: str, protocol: str, graph: Graph, channels: int, ranks: int, caps: Caps) -> float:
    bus = channels * graph.gb_s
    if algorithm == "Ring":
        if protocol == "LL":
            bus = min(caps.ll, bus * 0.5)
        elif protocol == "LL128":
            bus = min(bus * 0.92, channels * caps.ring_ll128)
        return bus * ranks / (2 * (ranks - 1))
    bus = min(bus * 0.92, channels * caps.tree)
    if protocol == "LL":
        bus = min(bus / 3.8, caps.ll)
    elif protocol == "LL128":
        bus = min(bus * 7 / 9, channels * caps.tree_ll128)
    return bus * (0.85 if graph.pattern == _TREE_PATTERN else 1.0) * 0.5


def _barred(algorithm: str, protocol: str, graph: Graph, sm: int, settings: Mapping[str, str]) -> str:
    """Why NCCL will not choose this cell for an allreduce; "" where it may."""
    algorithms = parse_choice("NCCL_ALGO", settings.get("NCCL_ALGO", ""), ALGORITHMS).get("AllReduce")
    protocols = parse_choice("NCCL_PROTO", settings.get("NCCL_PROTO", ""), PROTOCOLS).get("AllReduce")
    if algorithms is not None and algorithm not in algorithms:
        return "NCCL_ALGO leaves it out"
    if protocols is not None:
        return "" if protocol in protocols else "NCCL_PROTO leaves it out"
    if protocol == "LL128" and (graph.type not in _SAFE_FOR_LL128 or sm < 70):
        # Elsewhere a 128-byte store may be split and reordered, and data be corrupted; only NCCL_PROTO overrides this.
        return f"LL128 needs NVLink between neighbours; here {graph.type}"
    return ""


def _channels(common: int, settings: Mapping[str, str]) -> int:
    """ncclTopoPostset, src/graph/connect.cc: doubled, then bounded from above, then from below."""
    most = min(_whole(settings, name, _MAX_CHANNELS) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))
    least = max(_whole(settings, name, 1) for name in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"))
    return min(_MAX_CHANNELS, max(least, 1, min(most, 2 * common)))


def _whole(settings: Mapping[str, str], name: str, default: int) -> int:
    value = settings.get(name, "")
    if not value:
        return default
    if value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise InputError(f"{name} is {short(value)}", expected="a whole number", todo="correct it")


def _thresholds(keys: list[tuple[str, str]], ranks: int, settings: Mapping[str, str]) -> Mapping[tuple[str, str], int]:
    """By (algorithm, protocol); NCCL_THREAD_THRESHOLDS holds them in the order of `keys`, and may hold fewer."""
    found = {key: THRESHOLDS[key[1]] * (ranks if key == ("Ring", "LL") else 1) for key in keys}
    for key, text in zip(keys, settings.get("NCCL_THREAD_THRESHOLDS", "").split(), strict=False):
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InputError(
                f"NCCL_THREAD_THRESHOLDS holds {short(text)}", expected="up to six whole numbers", todo="correct it"
            )
        found[key] = int(text)
    return found
