"""How NCCL connects two GPUs of one node: directly over PCIe or NVLink (P2P), or through host memory (SHM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from tuning.nccl_graph import TYPES
from tuning.nccl_search import SearchResult
from tuning.nccl_values import as_integer, level_of
from tuning.topology import Topology
from tuning.topology_paths import path_type

_P2P_BROKEN = ("CNS", "GNS", "TNS", "NS", "DR")


@dataclass(frozen=True, kw_only=True)
class PairTransport:
    """How two GPUs are connected.

    Attributes:
        gpus: their indices, the smaller first.
        path: NCCL's type of the way between them, one of `nccl_graph.TYPES`.
        p2p: whether they are connected directly; else through host memory.
        why: what decides it.
    """

    gpus: tuple[int, int]
    path: str
    p2p: bool
    why: str


def p2p_level(topology: Topology, settings: Mapping[str, str]) -> tuple[str, str]:
    """The farthest path type that NCCL uses P2P over, and what sets it.

    The default is PXB: over switches, but not over a CPU. On AMD with up to two GPUs it is SYS, everything; on Intel
    and others never. Source: ncclTopoCheckP2p and ncclGetLevel, src/graph/paths.cc, alike from 2.26 to 2.32.
    """
    if as_integer(settings.get("NCCL_P2P_DISABLE", "")) == 1:
        return "LOC", "NCCL_P2P_DISABLE=1"
    if level := level_of(value := settings.get("NCCL_P2P_LEVEL", "")):
        return level, f"NCCL_P2P_LEVEL={value}"
    first = topology.cpus[0]
    if first.arch == "x86_64" and first.vendor == "AuthenticAMD" and len(topology.gpus) <= 2:
        return "SYS", "default on AMD with up to two GPUs"
    return "PXB", "default"


def transports(topology: Topology, settings: Mapping[str, str], search: SearchResult) -> tuple[PairTransport, ...]:
    """How each pair of GPUs would be connected: by NCCL's own word, but for what the topology knows to be broken.

    Args:
        topology: what was searched.
        settings: NCCL's settings, to say why.
        search: its outcome, which holds what NCCL would connect directly if the GPUs can.
    """
    level, source = p2p_level(topology, settings)
    found = []
    for one, other in combinations(topology.gpus, 2):
        gpus = (one.index, other.index)
        path = path_type(topology, *gpus).nccl
        states = {topology.p2p.get(pair) for pair in (gpus, gpus[::-1])}
        wanted = (max(one.rank, other.rank), min(one.rank, other.rank)) in search.p2p
        within = TYPES.index(path) <= TYPES.index(level)
        why = f"{path} is {'within' if within else 'beyond'} {level} ({source})"
        if wanted != within:  # a link that NCCL does not know, such as xGMI between GPUs
            why = f"NCCL's own word; {why} by this topology"
        if broken := sorted(state for state in states if state in _P2P_BROKEN):
            why = f"the driver gives no P2P ({broken[0]})"
        found.append(PairTransport(gpus=gpus, path=path, p2p=wanted and not broken, why=why))
    return tuple(found)
