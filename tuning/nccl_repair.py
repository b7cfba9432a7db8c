"""Writes the graph file that repairs a failed search: two channels around all GPUs, at a speed that NCCL itself uses.

When: NCCL takes the speed between sockets from a table of CPUs (16 GB/s for AMD up to 2.30) and tries fixed speeds, on
Blackwell none below 18 GB/s or so. Where the table says less it finds nothing, goes on at 0.1 GB/s, and prices every
protocol so high that it takes Simple for all but the smallest messages. With a graph file it does not search, and its
prices are those of a healthy node. A file in this form is in use on dual-socket EPYC Turin nodes:
https://github.com/local-inference-lab/rtx6kpro/blob/master/optimization/nccl-tuning.md
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

from lanewise.errors import InputError
from tuning.nccl_graph import RING, TREE, TYPES, Graph, write_graphs
from tuning.nccl_search import SearchResult
from tuning.topology import Topology
from tuning.topology_paths import islands, path_type

_CHANNELS = 2
_GB_S = 24.0
"""Of a channel, GB/s: what NCCL finds by itself behind switches of one socket, where links are generation 5 x16."""
_OLD_GENERATION = 2
"""No GPU of today runs at this generation unless it idles, or its link is faulty."""
_RING_PATTERN, _TREE_PATTERN = 4, 1


def repaired(topology: Topology, search: SearchResult) -> str:
    """A graph file for $NCCL_GRAPH_FILE with which this node's search does not fail.

    The ring follows the islands, so that each way between two of them is taken once a direction; the tree is the same
    chain, as NCCL's own is on one node.

    Args:
        topology: the node.
        search: what came of its search.

    Raises:
        InputError: the search did not fail, or a graph file would only hide what is wrong.
    """
    if not any(graph.failed for graph in search.graphs):
        raise InputError(
            f"NCCL {search.release} finds its rings and trees on {topology.name}",
            expected="a search that fell back to 0.1 GB/s",
            todo="nothing: there is nothing to repair",
        )
    idle = [gpu for gpu in topology.gpus if (gpu.link.full.generation or _OLD_GENERATION + 1) <= _OLD_GENERATION]
    if idle:
        raise InputError(
            f"GPU {idle[0].index} of {topology.name} is linked at {idle[0].link}",
            expected="links that are awake: from 2.30.5 on NCCL reads a GPU's present rate, and idle ones lower it",
            todo="wake the GPUs before NCCL starts, or set NCCL_TOPO_FILE to a topology with their full rate; "
            "if it stays so under load, look at the slot",
        )
    order = tuple(gpu.index for gpu in chain.from_iterable(islands(topology)))
    slowest = min(gpu.link.nccl_bandwidth for gpu in topology.gpus)
    gb_s = min(_GB_S, slowest / _CHANNELS)
    graph = Graph(
        id=RING,
        pattern=_RING_PATTERN,
        gb_s=gb_s,
        gb_s_net=gb_s,
        type=_farthest(topology, order),
        type_net="PIX",
        same_channels=True,
        channels=(order,) * _CHANNELS,
    )
    return write_graphs((graph, replace(graph, id=TREE, pattern=_TREE_PATTERN)))


def _farthest(topology: Topology, order: tuple[int, ...]) -> str:
    """The type that the file states: PHB where neighbours meet in a CPU or beyond, as in the file that is in use."""
    types = {path_type(topology, one, other).nccl for one, other in pairwise((*order, order[0]))}
    return min(max(types, key=TYPES.index), "PHB", key=TYPES.index)
