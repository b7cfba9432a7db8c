"""The constants of NCCL's prices, by release; `nccl_cost` computes with them.

Read from the libraries of the wheels in `nccl_search.KNOWN`: symbols baseLat, hwLat, llMaxBws, perChMax*Bws (2.26 and
2.27), ncclTunerConstantsDefaults (from 2.28) and treeCorrectionFactor; immediates of scheduleCollTasksToPlan,
ncclTopoTuneModel and ncclTuningSetThreadThresholds. Source: src/graph/tuning.cc, from 2.31 on src/tuning/cost_model.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BASE_US = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
"""baseLat, for `PROTOCOLS`."""
HOP_US = {
    "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4)},
    "pci": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7)},
}
"""hwLat. Everything that is not direct NVLink counts as PCI, host memory and the way between sockets too."""
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
        0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ),
}  # fmt: skip
"""treeCorrectionFactor: per power of two from 64 B to 256 MB."""
MAX_THREADS = {"LL": 512, "LL128": 640, "Simple": 512}
"""NCCL_*_MAX_NTHREADS, src/include/device.h."""
THRESHOLDS = {"LL": 8, "LL128": 8, "Simple": 64}
"""NCCL_*_THREAD_THRESHOLD, src/include/comm.h: bytes a thread below which channels are given up; Ring LL's x ranks."""
NARROW_GB_S = 12.0
"""PCI_BW, src/graph/topo.h: a ring of no more than this got 256 threads for Simple, up to 2.30."""
TRAFFIC_PER_BYTE = 2
"""ncclFuncTrafficPerByte of AllReduce, src/include/info.h; LL counts four times (src/enqueue.cc)."""


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Bandwidth caps on one node, GB/s: LL in all, then per channel."""

    ll: float
    ring_ll128: float
    tree_ll128: float
    tree: float


OLDER_CAPS = {
    0: Caps(ll=39.0, ring_ll128=20.0, tree_ll128=20.0, tree=26.5),
    80: Caps(ll=87.7, ring_ll128=20.0, tree_ll128=20.0, tree=24.0),
    90: Caps(ll=141.0, ring_ll128=36.7, tree_ll128=36.7, tree=38.7),
}
"""Before Blackwell, by least compute capability; alike in all releases here."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """What differs between releases.

    Attributes:
        blackwell: caps of compute capability 10.0 and later, 12.0 too.
        cell_traffic: bytes of traffic below which no further channel is opened (MinTrafficPerChannel, src/enqueue.cc).
        narrow_threads: threads of Ring Simple on a narrow ring.
    """

    blackwell: Caps
    cell_traffic: int
    narrow_threads: int = 256


_FIRST = Release(blackwell=Caps(ll=282.0, ring_ll128=73.4, tree_ll128=73.4, tree=77.4), cell_traffic=16 << 10)
_LATER_CAPS = Caps(ll=282.0, ring_ll128=40.0, tree_ll128=55.6, tree=70.0)
RELEASES: Mapping[str, Release] = {
    "2.26.2": _FIRST,
    "2.27.5": _FIRST,
    "2.27.7": _FIRST,
    "2.28.9": Release(blackwell=Caps(ll=282.0, ring_ll128=73.4, tree_ll128=55.6, tree=70.0), cell_traffic=16 << 10),
    "2.29.7": Release(blackwell=_LATER_CAPS, cell_traffic=32 << 10),
    "2.30.7": Release(blackwell=_LATER_CAPS, cell_traffic=32 << 10),
    "2.31.2": Release(blackwell=_LATER_CAPS, cell_traffic=32 << 10, narrow_threads=512),
    "2.32.3": Release(
        blackwell=Caps(ll=282.4, ring_ll128=40.0, tree_ll128=55.6, tree=70.0),
        cell_traffic=32 << 10,
        narrow_threads=512,
    ),
}
