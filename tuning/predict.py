"""Predicts what an allreduce takes on a node: each family of kernels with bounds, what limits it, the physical floor.

Time = fixed cost + cost of each step + latency of the ways + max-min fair transfers over the tree. Schedules are in
`predict_schedules`, constants in `predict_constants`, how they were fitted and how well they hold in `calibration` and
docs/prediction.md. Everything here is predicted, not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.calibration import fit, spread
from tuning.predict_constants import Fitted, constants, fitted
from tuning.predict_fabric import Fabric, Floor, make_fabric
from tuning.predict_inputs import OwnRows, Preflight, Start, start_of
from tuning.predict_notes import notes
from tuning.predict_schedules import FAMILIES, Family, Shape
from tuning.published import Row
from tuning.topology import Topology
from tuning.topology_complete import Assumptions, completed
from tuning.workload import MAX_MESSAGE_BYTES

MOST_SIZES = 256
_OWN_BOUND = 1.1
"""How far a host's own numbers are trusted at sizes that were not measured, at best."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one call takes: the likely time, and bounds that hold for nine rows in ten, us."""

    size: int
    us: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One family on the node.

    Attributes:
        family: which.
        shape: its schedule there; `shape.bottleneck` names the link that limits it.
        evidence: what its constants rest on, in words.
        validated: they were tried on a machine that they were not fitted on, or are this host's own.
        start: whether it can start, and what carries it.
        estimates: one for each size; none where it cannot start, or where there is no such schedule.
    """

    family: Family
    shape: Shape
    evidence: str
    validated: bool
    start: Start
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A node, and what allreduces take on it.

    Attributes:
        topology: the node's name.
        gpus: which of them work together.
        host_class: which kind of host it was taken for.
        sizes: bytes of the messages.
        floor: what no allreduce can beat there, kernels apart.
        families: all of them.
        notes: what was assumed, what is wrong with the node, what to set; a sentence each.
    """

    topology: str
    gpus: tuple[int, ...]
    host_class: str
    sizes: tuple[int, ...]
    floor: Floor
    families: tuple[Predicted, ...]
    notes: tuple[str, ...]


def predict(
    topology: Topology,
    *,
    sizes: Sequence[int],
    gpus: Sequence[int] = (),
    preflight: Preflight | None = None,
    own: OwnRows | None = None,
) -> Prediction:
    """Predict every family of allreduce kernels.

    Args:
        topology: the node.
        sizes: bytes of the messages.
        gpus: indices of the GPUs that work together; none for all.
        preflight: what it says of a toolchain; None where it is not asked for.
        own: measurements of this host, whose families take their constants from them.

    Raises:
        InputError: a size or a GPU cannot be, measurements are of another number of GPUs, or NVLink joins GPUs.
    """
    sizes = _checked(sizes)
    node = completed(topology, Assumptions())
    fabric = make_fabric(node, gpus, constants())
    if own and own.ranks != len(fabric.gpus):
        raise InputError(
            f"{own.source} is of {own.ranks} GPUs",
            expected=f"measurements of the {len(fabric.gpus)} GPUs that are to work together",
            todo="name as many with --gpus, or another file",
        )
    return Prediction(
        topology=topology.name,
        gpus=fabric.gpus,
        host_class=fabric.host_class.name,
        sizes=sizes,
        floor=fabric.floor,
        families=tuple(_predicted(family, fabric, sizes, preflight, own) for family in FAMILIES.values()),
        notes=tuple(notes(fabric, preflight, own)),
    )


def _checked(sizes: Sequence[int]) -> tuple[int, ...]:
    wrong = [size for size in sizes if not 0 < size <= MAX_MESSAGE_BYTES]
    if wrong or not 0 < len(sizes) <= MOST_SIZES:
        raise InputError(
            f"sizes are {wrong[0] if wrong else f'{len(sizes)} in number'}",
            expected=f"1 to {MOST_SIZES} sizes from 1 to {MAX_MESSAGE_BYTES:,} bytes",
            todo="correct --sizes, or name a workload",
        )
    return tuple(sorted(set(sizes)))


def _predicted(
    family: Family,
    fabric: Fabric,
    sizes: tuple[int, ...],
    preflight: Preflight | None,
    own: OwnRows | None,
) -> Predicted:
    shape = family.shape(fabric)
    start = start_of(family, preflight)
    if family.p2p and fabric.without_p2p:
        start = Start(able=False, says=f"no P2P between {fabric.without_p2p}")
    elif shape.unable:
        start = Start(able=False, says=shape.unable)
    rows = [row for row in own.rows if row.family == family.name] if own else []
    known = _refitted(family.name, shape, rows) if rows else fitted()[family.name]
    estimates = tuple(_estimate(size, shape, known, fabric.floor) for size in sizes) if start.able is not False else ()
    return Predicted(
        family=family,
        shape=shape,
        evidence=f"measured here, {len(rows)} sizes" if rows else _evidence(known),
        validated=bool(rows) or known.validated,
        start=start,
        estimates=estimates,
    )


def _estimate(size: int, shape: Shape, known: Fitted, floor: Floor) -> Estimate:
    least = floor.time_us(size)
    us = max(least, shape.time_us(size, known.costs))
    return Estimate(size=size, us=us, low=max(least, us * known.low), high=us * known.high)


def _refitted(family: str, shape: Shape, rows: Sequence[Row]) -> Fitted:
    """The family's constants by this host's own rows, from the published ones on."""
    costs = fit(rows, fitted()[family].costs, lambda _family, _host: shape)
    low, high = spread([row.us / shape.time_us(row.size, costs) for row in rows])
    return Fitted(
        costs=costs, low=min(low, 1 / _OWN_BOUND), high=max(high, _OWN_BOUND), hosts=("this host",), rows=len(rows)
    )


def _evidence(known: Fitted) -> str:
    if not known.rows:
        return "unvalidated: no published row"
    if not known.validated:
        return f"unvalidated: {known.rows} rows of one machine"
    return f"{known.rows} rows of {len(known.hosts)} machines"
