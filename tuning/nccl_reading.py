"""Says in sentences what an NCCL plan means for a message of inference's size: why it costs what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tuning.nccl_cost import Choice
from tuning.nccl_graph import Graph
from tuning.nccl_plan import NcclOutcome, NcclPlan

_DECODE_BYTES = 1 << 16
"""Messages of decoding and verifying a few tokens are below this."""
_LIMITS = (
    "A price ranks NCCL's choices, and knows nothing of host memory in place of P2P, ACS, IOMMU, launches outside a "
    "CUDA graph, or ranks that wait for each other: a call that takes several times its price is slow for one of these."
)


def reading(plan: NcclPlan) -> tuple[str, ...]:
    """What the plan says of its largest message up to 64 KiB (of its smallest, where all are larger)."""
    size = max((size for size in plan.sizes if size <= _DECODE_BYTES), default=plan.sizes[0])
    number = plan.sizes.index(size)
    choice = plan.base.choices[number]
    if plan.base.model is None:
        return (f"NCCL {plan.nccl} has no ring and no tree here, so there is nothing to price.",)
    if choice is None:
        return ("The settings leave NCCL nothing to choose: every call fails.",)
    told = _failed(plan.base, choice) if plan.base.failed else _found(plan, choice)
    return (told, *_through_host_memory(plan), *_better(plan, number, choice), _LIMITS)


def _failed(base: NcclOutcome, choice: Choice) -> str:
    without = " and no ".join(name for name, graph in _graphs(base) if graph.failed)
    begin = f"NCCL finds no {without} on this node"
    takes = f"{choice.cell} for {choice.size:,} B, on {_channels(choice.channels)}"
    if not (base.search.ring and base.search.ring.failed and base.model):
        return (
            f"{begin}, and gives both no more channels than that one has: {takes}, priced at {choice.time_us:,.1f} us."
        )
    quick, slow = min(base.model.cells, key=lambda cell: cell.latency_us), ""
    if choice.cell != quick:
        slow = (
            f" Its start and steps alone are priced at {choice.cell.latency_us:,.1f} us, those of {quick} at "
            f"{quick.latency_us:,.1f} us."
        )
    return (
        f"{begin}. It goes on around the GPUs in their order, with one channel that it takes for 0.1 GB/s. The prices "
        f"below are then no times, but they drive its choice: {takes}.{slow}"
    )


def _graphs(outcome: NcclOutcome) -> list[tuple[str, Graph]]:
    pairs = (("ring", outcome.search.ring), ("tree", outcome.search.tree))
    return [(name, graph) for name, graph in pairs if graph]


def _found(plan: NcclPlan, choice: Choice) -> str:
    ranks = len(plan.topology.gpus)
    latency = choice.cell.latency_us
    return (
        f"{choice.size:,} B: {choice.cell} on {_channels(choice.channels)}, priced at {choice.time_us:,.1f} us: "
        f"{latency:,.1f} us for start and {2 * (ranks - 1)} steps around {ranks} GPUs, whatever the size, and "
        f"{choice.time_us - latency:,.1f} us for the bytes."
    )


def _channels(count: int) -> str:
    return f"{count} channel{'' if count == 1 else 's'}"


def _through_host_memory(plan: NcclPlan) -> Iterator[str]:
    """How many steps around the ring are not direct, and which level would make them so."""
    if not (steps := _indirect_steps(plan.base)):
        return
    told = f"{steps} of {len(plan.topology.gpus)} steps around the ring go through host memory"
    levels = [outcome for outcome in plan.alternatives if outcome.label.startswith("NCCL_P2P_LEVEL=")]
    if direct := [outcome.label for outcome in levels if outcome.transports and not _indirect_steps(outcome)]:
        told += f"; with {direct[0]} all are direct, where the GPUs can be"
    yield f"{told}."


def _indirect_steps(outcome: NcclOutcome) -> int:
    ring = outcome.search.ring
    if ring is None or not ring.channels:
        return 0
    direct = {frozenset(pair.gpus) for pair in outcome.transports if pair.p2p}
    order = ring.channels[0]
    return sum(frozenset(step) not in direct for step in pairwise((*order, order[0])))


def _better(plan: NcclPlan, number: int, choice: Choice) -> Iterator[str]:
    """What takes something else for this size, as far as it finds a ring."""
    for outcome in plan.alternatives:
        other, ring = outcome.choices[number], outcome.search.ring
        if other and ring and not ring.failed and other.cell != choice.cell:
            yield f"With {outcome.label}: {other.cell}, priced at {other.time_us:,.1f} us."
