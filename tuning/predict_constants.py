"""The constants of a prediction, read from two files: what others published, and what was fitted to it.

`predict_constants.yaml` is written by hand, a source beside every value; `predict_fitted.yaml` is written by
`python bench/predict_validation.py --write`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
CONSTANTS = _HERE / "predict_constants.yaml"
FITTED = _HERE / "predict_fitted.yaml"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a family of kernels costs beside its wires.

    Attributes:
        fixed_us: us a call: launch as a graph's node, grid start, last fence.
        step_us: us a step, beside the way's latency.
        efficiency: share of the links' rates that its transfers reach.
    """

    fixed_us: float
    step_us: float
    efficiency: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What fitting a family to published rows gave.

    Attributes:
        costs: the constants.
        low, high: the middle 90 % of measured over predicted lies between these, on hosts left out of the fit; where
            there is no second host, a factor of two.
        hosts: names of the hosts it was fitted on.
        rows: how many rows they gave.
    """

    costs: Costs
    low: float
    high: float
    hosts: tuple[str, ...]
    rows: int

    @property
    def validated(self) -> bool:
        """Whether it was tried on a host that it was not fitted on."""
        return len(self.hosts) > 1


@dataclass(frozen=True, kw_only=True)
class HostClass:
    """What kernels on GPUs behind one kind of host reach.

    Attributes:
        name: "switches", "root ports" or "split switches".
        reads_gb_s, writes_gb_s: of one GPU with several peers at once, GB/s.
        collapsed_gb_s: what an uplink falls to where several GPUs behind it send to several others; None: it does not.
    """

    name: str
    reads_gb_s: float
    writes_gb_s: float
    collapsed_gb_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Constants:
    """All that a prediction counts with, beside the topology.

    Attributes:
        payload_share: of a PCIe link's rate after encoding, what payload gets.
        floor_share: the same, at the very most.
        socket_gb_s: of one pair of GPUs on two sockets, where the topology does not tell, GB/s.
        flag_us, read_us: latency by `PathType`, us.
        host_classes: by name.
        starts: by family that has published rows: where its fit begins.
        likes: by family that has none: which it is taken to be like, at how many times its efficiency.
    """

    payload_share: float
    floor_share: float
    socket_gb_s: float
    flag_us: Mapping[str, float]
    read_us: Mapping[str, float]
    host_classes: Mapping[str, HostClass]
    starts: Mapping[str, Costs]
    likes: Mapping[str, tuple[str, float]]


@lru_cache(maxsize=1)
def constants() -> Constants:
    """The constants that ship."""
    document = _load(CONSTANTS)
    links, families = document["links"], document["families"]
    return Constants(
        payload_share=links["payload_share"]["value"],
        floor_share=links["floor_share"]["value"],
        socket_gb_s=links["socket_gb_s"]["value"],
        flag_us=_without_source(document["flag_us"]),
        read_us=_without_source(document["read_us"]),
        host_classes={
            name: HostClass(name=name, **_without_source(entry)) for name, entry in document["host_classes"].items()
        },
        starts={name: Costs(**entry["start"]) for name, entry in families.items() if "start" in entry},
        likes={
            name: (entry["like"]["family"], entry["like"]["times"])
            for name, entry in families.items()
            if "like" in entry
        },
    )


@lru_cache(maxsize=1)
def fitted() -> Mapping[str, Fitted]:
    """What ships of the fits, by family."""
    return {
        name: Fitted(
            costs=Costs(**entry["costs"]),
            low=entry["low"],
            high=entry["high"],
            hosts=tuple(entry["hosts"]),
            rows=entry["rows"],
        )
        for name, entry in _load(FITTED)["families"].items()
    }


def _load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _without_source(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "source"}
