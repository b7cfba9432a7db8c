"""What others published of allreduce on PCIe: rows of latencies with their sources, and the hosts that they are from.

`published_latency.csv` holds a row a measurement: the host, the family of kernels (`predict_schedules.FAMILIES`; "none"
where it is another schedule), whether NCCL's protocol is stated there or taken from NCCL's prices, and its use. A
row's use is by what its source says of it, never by how well it fits (docs/prediction.md):

    fit             a healthy host of the GPUs that this is for, and a known family
    check           another kernel of a family, or another GPU where there is no better row; never fitted
    pathological    its source calls the host or the baseline broken or slow
    anything else   says why it is not compared: eager launch, fused kernel, another schedule, another GPU, told twice,
                    computed
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tuning.predict_constants import constants
from tuning.predict_fabric import Fabric, make_fabric
from tuning.predict_schedules import FAMILIES, Shape
from tuning.topology_complete import Assumptions, completed
from tuning.topology_read import read_topology
from tuning.topology_yaml import parse_yaml

_HERE = Path(__file__).parent
LATENCIES = _HERE / "published_latency.csv"
HOSTS = _HERE / "published_hosts.yaml"
FIT, CHECK, PATHOLOGICAL = "fit", "check", "pathological"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        host: where, a name in `published_hosts.yaml`, or the run file of this host.
        machine: which machine that is: hosts that may be one count as one.
        family: of the kernels.
        size: bytes of the message.
        us: a call, microseconds.
        use: what it is good for.
        source: its address.
    """

    host: str
    machine: str
    family: str
    size: int
    us: float
    use: str = FIT
    source: str = ""


@lru_cache(maxsize=1)
def published() -> tuple[Row, ...]:
    """Every row that ships."""
    hosts = _hosts()
    with LATENCIES.open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(
                host=line["host"],
                machine=hosts[line["host"]]["machine"],
                family=line["family"],
                size=int(line["bytes"]),
                us=float(line["us"]),
                use=line["use"],
                source=line["source"],
            )
            for line in csv.DictReader(file)
        )


@lru_cache(maxsize=64)
def fabric_of(host: str) -> Fabric:
    """The fabric of a published host.

    Raises:
        KeyError: there is no such host, or nobody told what joins its GPUs.
    """
    entry = _hosts()[host]
    stated = entry["topology"]
    known = "\n" not in stated
    topology = read_topology(stated) if known else parse_yaml(stated, name=host, source=HOSTS.name)
    return make_fabric(completed(topology, Assumptions()), entry.get("gpus", []), constants())


@lru_cache(maxsize=1024)
def shape_of(family: str, host: str) -> Shape:
    """A family's schedule on a published host."""
    return FAMILIES[family].shape(fabric_of(host))


@lru_cache(maxsize=1)
def _hosts() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = yaml.safe_load(HOSTS.read_text(encoding="utf-8"))
    return document
