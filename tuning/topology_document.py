"""A topology as a document for programs."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tuning.topology import Topology
from tuning.topology_nodes import Device, Gpu, Node
from tuning.topology_paths import possible_paths
from tuning.topology_text import island_names


def document(topology: Topology) -> dict[str, Any]:
    """The topology as JSON values; null is what is not known. Bandwidths are GB/s one way."""
    return {
        "name": topology.name,
        "source": topology.source,
        "nodes": [_node(node) for node in topology.nodes],
        "islands": {name: [gpu.index for gpu in gpus] for name, gpus in island_names(topology).items()},
        "paths": [
            {"gpus": [a.index, b.index], "possible": list(map(str, possible_paths(topology, a.index, b.index)))}
            for a, b in combinations(topology.gpus, 2)
        ],
        "between_cpus": [
            {"cpus": list(link.cpus), "kind": link.kind, "gb_per_s": link.gb_per_s, "distance": link.distance}
            for link in topology.socket_links
        ],
        "p2p": [{"from": a, "to": b, "state": state} for (a, b), state in topology.p2p.items()],
        "unknown": list(topology.unknown),
    }


def _node(node: Node) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": node.id, "kind": type(node).__name__, "parent": node.parent or None}
    if isinstance(node, Gpu):
        shown |= {"index": node.index, "sm": node.sm}
    if isinstance(node, Device):
        shown |= {
            "generation": node.link.generation,
            "width": node.link.width,
            "gb_per_s": node.link.bandwidth,
            "nccl_gb_per_s": node.link.nccl_bandwidth,
            "degraded": node.degraded,
            "acs_redirect": node.acs_redirect,
        }
    return shown
