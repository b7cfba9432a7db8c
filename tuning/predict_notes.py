"""What has to be said beside a prediction: what is assumed, what is wrong with the node, what to set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tuning.nccl_graph import TYPES
from tuning.nccl_transport import p2p_level
from tuning.predict_fabric import Fabric
from tuning.predict_inputs import OwnRows, Preflight
from tuning.topology_nodes import Device
from tuning.topology_paths import path_type


def notes(fabric: Fabric, preflight: Preflight | None, own: OwnRows | None) -> Iterator[str]:
    """The sentences.

    Args:
        fabric: the GPUs that work together, and their node.
        preflight: what it says of a toolchain, where it was asked.
        own: measurements of this host, where there are any.
    """
    yield "predicted: calls inside a CUDA graph, ranks in step; launch from the host and skew come on top"
    if own:
        yield f"constants of {len({row.family for row in own.rows})} families are from {own.source}"
    yield "LL128 may corrupt data where its way crosses a CPU; NCCL takes it on PCIe only if NCCL_PROTO lists it"
    yield from _nccl_over_host(fabric)
    yield from _faults(fabric)
    if preflight and preflight.gpus != (number := len(fabric.gpus)):
        yield (
            f"preflight of {preflight.toolchain} looked at {preflight.gpus} GPUs, not {number}: "
            f"./inv preflight --toolchain {preflight.toolchain} --gpus {number}"
        )
    yield from (text if text.startswith("assumed") else f"not known: {text}" for text in fabric.topology.unknown)


def _nccl_over_host(fabric: Fabric) -> Iterator[str]:
    level, source = p2p_level(fabric.topology, {})
    ring = list(pairwise((*fabric.gpus, fabric.gpus[0])))
    beyond = [pair for pair in ring if TYPES.index(path_type(fabric.topology, *pair).nccl) > TYPES.index(level)]
    if beyond:
        yield (
            f"NCCL's P2P reaches {level} ({source}): {len(beyond)} of the ring's {len(ring)} hops go through host "
            "memory unless NCCL_P2P_LEVEL=SYS, which the NCCL families take as set"
        )


def _faults(fabric: Fabric) -> Iterator[str]:
    if (collapsed := fabric.host_class.collapsed_gb_s) is not None:
        yield (
            "virtual switches of one Broadcom chip: where several GPUs behind one send to several others, its uplink "
            f"is taken to fall to {collapsed:g} GB/s; NCCL's rings were slowed there as well"
        )
    node = fabric.topology
    chains = (node.chain(node.gpu(gpu)) for gpu in fabric.gpus)
    devices = {device.id: device for chain in chains for device in chain if isinstance(device, Device)}.values()
    if redirected := [device.id for device in devices if device.acs_redirect]:
        yield f"ACS sends what these send each other up to the CPU: {', '.join(redirected)}"
    if degraded := [f"{device.id} ({device.link})" for device in devices if device.degraded]:
        yield f"below what both ends can do: {', '.join(degraded)}"
