"""What each family of allreduce kernels sends to whom, in which steps; and so what a call costs on a fabric beside its
kernels: latency, and time on the wires for each byte.

n GPUs, a message of S bytes on each. Shares are of S.

    Ring               2 (n - 1) steps; each GPU writes S/n to the next
    Tree               in one node NCCL's tree is a chain: S up, S down, 2 (n - 1) hops
    one-shot           every GPU reads, or is written, all of the n - 1 others: S each
    two-shot           every GPU reads S/n of each other and reduces it, then reads the n - 1 results
    hierarchical       in groups of m: reduce-scatter of S/m, exchange with the partners in other groups, all-gather
    copy-engine ring   Ring by copy engines
    host-staged        Ring through host memory

LL sends a flag with every word of data (twice the bytes), LL128 one in sixteen: src/device/prims_ll.h, prims_ll128.h of
NCCL; times as in "Demystifying NCCL", arXiv:2507.04786.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from types import MappingProxyType

from tuning.flows import Flow, completion
from tuning.predict_constants import Costs
from tuning.predict_fabric import Fabric, reads_of, writes_of

LL, LL128, SIMPLE = 2.0, 16 / 15, 1.0
"""Bytes on the wire for a byte of data."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A schedule on a fabric.

    Attributes:
        steps: rounds that wait for each other.
        latency_us: of all ways in them.
        us_per_byte: time on the wires for a byte of the message, all steps together, at the links' full rates.
        bottleneck: the link that sets it.
        overlapped: latency hides behind the wires, or they behind it: parts of a message follow each other.
        unable: why there is no such schedule here; "" where there is.
    """

    steps: int = 0
    latency_us: float = 0.0
    us_per_byte: float = 0.0
    bottleneck: str = ""
    overlapped: bool = False
    unable: str = ""

    def time_us(self, size: int, costs: Costs) -> float:
        """Of a call of `size` bytes: fixed cost, cost of each step, latency and wires."""
        wires = size * self.us_per_byte / costs.efficiency
        moved = max(self.latency_us, wires) if self.overlapped else self.latency_us + wires
        return costs.fixed_us + self.steps * costs.step_us + moved


@dataclass(frozen=True, kw_only=True)
class _Transfer:
    """What one GPU gets of another: a share of the message."""

    source: int
    target: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of kernels that share a schedule and its costs.

    Attributes:
        name: identifier, as `predict_constants.yaml` has it.
        title: for people.
        approaches: identifiers of preflight's approaches that carry it: it can start where one of them does.
        all_of: it needs every one of them, not one.
        p2p: whether GPUs have to reach each other's memory.
        shape: the schedule on a fabric.
    """

    name: str
    title: str
    approaches: tuple[str, ...]
    shape: Callable[[Fabric], Shape]
    all_of: bool = False
    p2p: bool = True


def _ring(wire: float, *, through_host: bool = False) -> Callable[[Fabric], Shape]:
    def shape(fabric: Fabric) -> Shape:
        n = len(fabric.gpus)
        hops = list(zip(fabric.gpus, (*fabric.gpus[1:], fabric.gpus[0]), strict=True))
        steps = 2 * (n - 1)
        flows = [Flow(links=fabric.route(a, b, through_host=through_host), size=wire / n) for a, b in hops]
        # What a GPU waits for went round the ring: in n - 1 steps n - 1 hops, so the mean hop counts, not the longest.
        latency = sum(fabric.through_host_us(a, b) if through_host else fabric.flag_us(a, b) for a, b in hops) / n
        done = completion(flows, fabric.capacities_of(hops))
        return Shape(
            steps=steps,
            latency_us=steps * latency,
            us_per_byte=steps * done.time / 1e3,
            bottleneck=done.busiest,
            overlapped=True,
        )

    return shape


def _chain(wire: float) -> Callable[[Fabric], Shape]:
    def shape(fabric: Fabric) -> Shape:
        up = list(pairwise(fabric.gpus))
        hops = [*up, *((b, a) for a, b in up)]
        done = completion([Flow(links=fabric.route(a, b), size=wire) for a, b in hops], fabric.capacities_of(hops))
        return Shape(
            steps=len(hops),
            latency_us=sum(fabric.flag_us(a, b) for a, b in hops),
            us_per_byte=done.time / 1e3,
            bottleneck=done.busiest,
        )

    return shape


def _one_shot_pull(fabric: Fabric) -> Shape:
    """A barrier, the reads, and a barrier, so that no buffer is written while others still read it."""
    return _sum(fabric, [_read(fabric, _all_pairs(fabric, 1.0))], barriers=2)


def _one_shot_push(fabric: Fabric) -> Shape:
    """No barrier: a value that cannot be data marks what has not come yet."""
    return _sum(fabric, [_write(fabric, _all_pairs(fabric, 1.0))])


def _two_shot(fabric: Fabric) -> Shape:
    share = 1 / len(fabric.gpus)
    return _sum(fabric, [_read(fabric, _all_pairs(fabric, share))] * 2, barriers=3)


def _hierarchical(fabric: Fabric) -> Shape:
    groups = fabric.groups
    if not groups:
        return Shape(unable="the GPUs do not fall into equal groups of several, by switch or by CPU")
    share = 1 / len(groups[0])
    within = [_Transfer(source=a, target=b, share=share) for group in groups for a, b in permutations(group, 2)]
    across = [
        _Transfer(source=a, target=b, share=share)
        for one, other in permutations(groups, 2)
        for a, b in zip(one, other, strict=True)
    ]
    return _sum(fabric, [_write(fabric, within), _write(fabric, across), _write(fabric, within)])


def _all_pairs(fabric: Fabric, share: float) -> list[_Transfer]:
    return [_Transfer(source=a, target=b, share=share) for a, b in permutations(fabric.gpus, 2)]


def _read(fabric: Fabric, transfers: Sequence[_Transfer]) -> Shape:
    """A step in which GPUs read from others."""
    latency = max(fabric.read_us(t.target, t.source) for t in transfers)
    several = _repeated(t.target for t in transfers)
    return _step(fabric, transfers, latency, lambda t: (reads_of(t.target),) if t.target in several else ())


def _write(fabric: Fabric, transfers: Sequence[_Transfer]) -> Shape:
    """A step in which GPUs write to others."""
    latency = max(fabric.flag_us(t.source, t.target) for t in transfers)
    several = _repeated(t.source for t in transfers)
    return _step(fabric, transfers, latency, lambda t: (writes_of(t.source),) if t.source in several else ())


def _repeated(gpus: Iterable[int]) -> set[int]:
    """GPUs with several peers: what their kernels reach is a limit of its own; one stream runs at the link's rate."""
    return {gpu for gpu, times in Counter(gpus).items() if times > 1}


def _step(
    fabric: Fabric,
    transfers: Sequence[_Transfer],
    latency: float,
    limits: Callable[[_Transfer], tuple[str, ...]],
) -> Shape:
    flows = [Flow(links=(*fabric.route(t.source, t.target), *limits(t)), size=t.share) for t in transfers]
    done = completion(flows, fabric.capacities_of((t.source, t.target) for t in transfers))
    return Shape(steps=1, latency_us=latency, us_per_byte=done.time / 1e3, bottleneck=done.busiest)


def _sum(fabric: Fabric, steps: Sequence[Shape], barriers: int = 0) -> Shape:
    """Steps one after another, with barriers of all GPUs between or around them; a barrier is a flag to everyone."""
    flag = max(fabric.flag_us(a, b) for a, b in permutations(fabric.gpus, 2))
    return Shape(
        steps=len(steps),
        latency_us=barriers * flag + sum(step.latency_us for step in steps),
        us_per_byte=sum(step.us_per_byte for step in steps),
        bottleneck=max(steps, key=lambda step: step.us_per_byte).bottleneck,
    )


_CUSTOM = ("flashinfer-pcie-ipc", "sglang-pcie-ipc")
_ALL = (
    Family(name="nccl-ring-ll", title="NCCL Ring LL", approaches=("nccl-ring",), shape=_ring(LL)),
    Family(
        name="nccl-ring-ll128",
        title="NCCL Ring LL128",
        approaches=("nccl-ring", "nccl-ll128"),
        all_of=True,
        shape=_ring(LL128),
    ),
    Family(name="nccl-ring-simple", title="NCCL Ring Simple", approaches=("nccl-ring",), shape=_ring(SIMPLE)),
    Family(name="nccl-tree-ll", title="NCCL Tree LL", approaches=("nccl-tree",), shape=_chain(LL)),
    Family(
        name="nccl-tree-ll128",
        title="NCCL Tree LL128",
        approaches=("nccl-tree", "nccl-ll128"),
        all_of=True,
        shape=_chain(LL128),
    ),
    Family(name="nccl-tree-simple", title="NCCL Tree Simple", approaches=("nccl-tree",), shape=_chain(SIMPLE)),
    Family(
        name="one-shot-pull",
        title="one-shot, reading",
        approaches=("b12x", "torch-symm-mem", "sglang-custom-allreduce-v1", "sglang-custom-allreduce-v2"),
        shape=_one_shot_pull,
    ),
    Family(name="one-shot-push", title="one-shot, writing", approaches=_CUSTOM, shape=_one_shot_push),
    Family(
        name="two-shot",
        title="two-shot, flat",
        approaches=("torch-symm-mem", "sglang-custom-allreduce-v1", "sglang-custom-allreduce-v2"),
        shape=_two_shot,
    ),
    Family(name="hierarchical", title="hierarchical, by island", approaches=(*_CUSTOM, "b12x"), shape=_hierarchical),
    Family(name="copy-engine-ring", title="copy-engine ring", approaches=("b12x", *_CUSTOM), shape=_ring(SIMPLE)),
    Family(
        name="host-staged",
        title="NCCL through host memory",
        approaches=("nccl-ring",),
        p2p=False,
        shape=_ring(SIMPLE, through_host=True),
    ),
)
FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})
