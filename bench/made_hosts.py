"""Hosts with one fault or none, made up: times by a model of their own, and files as such a host would show them.

The times do not come from the curves of tuning/causes.yaml: steps of a ring, reads over an uplink, a staging copy
through the host, each with what is published of it. Every time is multiplied by exp(N(0, 0.25)). A host shows each file
that it could with a chance of 60 %: some show times only. All texts are fakes in the tools' formats.
"""
# ruff: noqa: ARG001, ARG005 - every fault has the same parameters

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuning.evidence import Latency

HEALTHY = "healthy"
SIZES = (14_336, 28_672, 43_008, 57_344)
NOISE = 0.25
_SHOWN = 0.6
_GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_WATCHDOG = (
    "[rank3]:[E1129 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=21504, Timeout(ms)=600000) ran for 600020 milliseconds\n"
)
_EXCEPTION = "Scheduler hit an exception: Traceback (most recent call last):"
Times = Callable[[int], float]
Files = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class MadeHost:
    """A host: what is wrong with it, and what it shows.

    Attributes:
        fault: id of the cause, or "healthy".
        ranks: GPUs that work together.
        latencies: measured, with noise.
        files: name and content of each file.
    """

    fault: str
    ranks: int
    latencies: tuple[Latency, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def slowest(self) -> float:
        """The longest time measured, us."""
        return max(latency.us for latency in self.latencies)


def make_hosts(number: int, seed: int) -> list[MadeHost]:
    """So many hosts, each fault about equally often, and healthy ones twice as often."""
    chance = random.Random(seed)  # noqa: S311 - no secrets
    faults = [*_FAULTS, HEALTHY, HEALTHY]
    return [_make(chance, faults[index % len(faults)]) for index in range(number)]


def _make(chance: random.Random, fault: str) -> MadeHost:
    ranks = chance.choice((4, 8))
    fine = _healthy(chance, ranks)
    times, eager, files = (
        _FAULTS[fault](chance, ranks, fine) if fault in _FAULTS else (fine, None, _fine(chance, ranks))
    )
    measured = [_measured(chance, size, times, ranks, "graph") for size in SIZES]
    if eager:
        measured = [_measured(chance, size, eager, ranks, "eager") for size in SIZES]
        if chance.random() < _SHOWN:
            measured += [_measured(chance, size, fine, ranks, "graph") for size in SIZES]
    shown = {name: text for name, text in sorted(files.items()) if name.startswith("sure") or chance.random() < _SHOWN}
    return MadeHost(fault=fault, ranks=ranks, latencies=tuple(measured), files=shown)


def _measured(chance: random.Random, size: int, times: Times, ranks: int, mode: str) -> Latency:
    us = times(size) * chance.lognormvariate(0, NOISE)
    return Latency(size=size, us=us, ranks=ranks, mode=mode, where="made up")


def _healthy(chance: random.Random, ranks: int) -> Times:
    """Ring LL: 3 us, and 1.0 to 1.55 a step; 24 to 80 GB/s for what is sent."""
    step, rate = chance.uniform(1.0, 1.55), chance.uniform(12e3, 60e3)  # bytes a us
    return lambda size: 3 + 2 * (ranks - 1) * step + 2 * size / rate


def _fine(chance: random.Random, ranks: int) -> Files:
    return {
        "nccl.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 24.000000/24.000000"),
        "p2p.txt": matrix(ranks, lambda a, b: chance.uniform(0.4, 1.1)),
        "lspci.txt": lspci(ranks),
        "server.log": decode_log(graph=True),
    }


def _eager(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    late = chance.uniform(40, 300)
    server = decode_log(graph=chance.random() < 0.3)
    return fine, lambda size: fine(size) + late, {**_fine(chance, ranks), "server.log": server}


def _host_memory(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    """Steps between islands are staged in host memory: 10 to 20 us each, two at a time over a slower copy."""
    hop, crossing, rate = chance.uniform(6, 12), ranks // 2, chance.uniform(2e3, 8e3)
    files = {
        "nccl.log": nccl_log(ranks, way="SHM/direct/direct", ring="bw 24.000000/24.000000"),
        "p2p.txt": matrix(ranks, lambda a, b: chance.uniform(10, 18) if (a < ranks // 2) != (b < ranks // 2) else 0.6),
        "lspci.txt": lspci(ranks),
    }
    return lambda size: fine(size) + crossing * hop + 2 * size / rate, None, files


def _failed_search(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    """Ring Simple: 8.4 us and 2.3 to 2.8 a step."""
    step = chance.uniform(2.3, 2.8)
    files = {
        "nccl.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 0.100000/0.100000"),
        "tuning.log": tuning_log(dict.fromkeys(SIZES, "SIMPLE")),
        "lspci.txt": lspci(ranks),
    }
    return lambda size: 8.4 + 2 * (ranks - 1) * step + 2 * size / 20e3, None, files


def _switch(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    at, factor = chance.choice(SIZES[1:]), chance.uniform(2, 4.5)
    chosen = {size: "LL" if size < at else "SIMPLE" for size in SIZES}
    files = {
        "tuning.log": tuning_log(chosen),
        "nccl.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 24.000000/24.000000"),
    }
    return lambda size: fine(size) * (factor if size >= at else 1), None, files


def _collapse(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    """A one-shot kernel whose uplink carries (ranks / 2)^2 messages at 2.2 to 3.1 GB/s."""
    rate = chance.uniform(2.2e3, 3.1e3)
    return lambda size: 7 + (ranks / 2) ** 2 * size / rate, None, {"lspci.txt": lspci(ranks, broadcom=True)}


def _redirect(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    hop, rate = chance.uniform(2, 10), chance.uniform(4e3, 12e3)
    files = {
        "lspci.txt": lspci(ranks, redirect="+"),
        "p2p.txt": matrix(ranks, lambda a, b: chance.uniform(8, 19)),
        "nccl.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 24.000000/24.000000"),
    }
    return lambda size: fine(size) + 2 * (ranks - 1) * hop + 2 * size / rate, None, files


def _link(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    lanes = chance.choice((1, 2, 4))
    files = {
        "lspci.txt": lspci(ranks, width=lanes),
        "bandwidth.txt": matrix(ranks, lambda a, b: 3.0 * lanes if 1 in (a, b) else 53.0, what="Bandwidth"),
        "nccl.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 24.000000/24.000000"),
    }
    return lambda size: fine(size) + 2 * size / (3.3e3 * lanes / 2), None, files


def _wrong_nccl(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    return fine, None, {"sure.log": nccl_log(ranks, way="P2P/CUMEM", ring="bw 24.000000/24.000000", release="2.26.2")}


def _fell_back(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    lines = (
        "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence",
        "PCIe-IPC all-reduce: this FlashInfer build has no pcie_ipc_comm; reductions stay on NCCL",
        "SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available.",
    )
    return fine, None, {"sure.log": _server(chance.choice(lines)) + decode_log(graph=True)}


def _memory(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    lines = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.16 GiB. GPU 3 has a total capacity of 94.97",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    )
    return (
        fine,
        None,
        {"sure.log": _server("Scheduler hit an exception: Traceback (most recent call last):") + chance.choice(lines)},
    )


def _arch(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    lines = (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "KeyError: 12",
        "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
    )
    return (
        fine,
        None,
        {"sure.log": _server("Scheduler hit an exception: Traceback (most recent call last):") + chance.choice(lines)},
    )


def _hang(chance: random.Random, ranks: int, fine: Times) -> tuple[Times, Times | None, Files]:
    lines = (
        _server("Capture cuda graph begin. This can take up to several minutes. avail mem=11.02 GB"),
        _WATCHDOG,
        _server("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
    )
    return fine, None, {"sure.log": chance.choice(lines)}


_FAULTS: Mapping[str, Callable[[random.Random, int, Times], tuple[Times, Times | None, Files]]] = {
    "eager-or-skew": _eager,
    "host-memory": _host_memory,
    "failed-search": _failed_search,
    "protocol-switch": _switch,
    "write-collapse": _collapse,
    "acs-or-iommu": _redirect,
    "degraded-link": _link,
    "wrong-nccl": _wrong_nccl,
    "fell-back": _fell_back,
    "out-of-memory": _memory,
    "unsupported-arch": _arch,
    "hang": _hang,
}


def _server(text: str) -> str:
    return f"[2026-11-29 10:00:00 TP0] {text}\n"


def decode_log(*, graph: bool) -> str:
    """SGLang's decode lines."""
    line = "Decode batch, #running-req: 1, #token: 300, token usage: 0.00, accept len: 2.30, cuda graph: {}, "
    return "".join(_server(line.format(graph) + "gen throughput (token/s): 54.10, #queue-req: 0") for _ in range(8))


def nccl_log(ranks: int, *, way: str, ring: str, release: str = "2.30.7") -> str:
    """NCCL's INFO output: half of the ring's links go the given way, the rest by P2P; GPUs as nccl-tests names them."""
    lines = [f"NCCL version {release}+cuda13.0"]
    for rank in range(ranks):
        start = f"made:{100 + rank}:{200 + rank} [{rank}] NCCL INFO "
        through = way if rank % 2 else "P2P/CUMEM"
        lines += [
            f"{start}comm 0x1 rank {rank} nRanks {ranks} nNodes 1 localRanks {ranks} localRank {rank} MNNVL 0",
            f"{start}Pattern 4, crossNic 0, nChannels 1, {ring}, type SYS/PIX, sameChannels 1",
            f"{start}Channel 00/0 : {rank}[{rank}] -> {(rank + 1) % ranks}[{(rank + 1) % ranks}] via {through}",
            f"{start}Connected all rings",
        ]
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {100 + rank} on made device {rank:2} [0000:{rank + 1:02x}:00] {_GPU}"
        for rank in range(ranks)
    ]
    table = (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "    67108864      16777216     float     sum      -1   3000.0   22.37   39.15      0\n"
    )
    header = "# nThread 1 nGpus 8 minBytes 8 graph: 0\n# Collective test starting: all_reduce_perf\n# Using devices\n"
    return header + "\n".join([*devices, *lines]) + "\n" + table


def tuning_log(choices: Mapping[int, str]) -> str:
    """What NCCL says that it chose for each size."""
    return "".join(
        f"made:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo RING proto {proto} channel{{Lo..Hi}}={{0..0}}\n"
        for size, proto in choices.items()
    )


def matrix(ranks: int, cell: Callable[[int, int], float], what: str = "Latency") -> str:
    """p2pBandwidthLatencyTest's matrix of GPUs."""
    corner = "GPU" if what == "Latency" else "D\\D"
    unit = "(P2P Writes) Matrix (us)" if what == "Latency" else "(P2P Writes) Matrix (GB/s)"
    rows = [f"   {corner}  " + "  ".join(f"{number:5}" for number in range(ranks))]
    for a in range(ranks):
        cells = (2.07 if a == b else cell(a, b) for b in range(ranks))
        rows.append(f"     {a}  " + "  ".join(f"{value:5.2f}" for value in cells))
    return f"P2P=Enabled {what} {unit}\n" + "\n".join(rows) + "\n"


def lspci(ranks: int, *, redirect: str = "-", width: int = 16, broadcom: bool = False) -> str:
    """`lspci -vvv` of a node: a switch for each two GPUs, the first GPU's link of the given width."""
    maker = "Broadcom / LSI PEX890xx PCIe Gen 5 Switch" if broadcom else "PMC-Sierra Inc. Device 4128"
    lines = [_function("00:00.0", "Host bridge: Advanced Micro Devices, Inc. [AMD] Device 153a")]
    for pair in range(ranks // 2):
        root, up, down, gpu = 0x10 * (pair + 1), 0x10 * (pair + 1) + 1, 0x10 * (pair + 1) + 2, 0x10 * (pair + 1) + 3
        lines.append(_bridge(f"00:{pair + 1:02x}.1", "Advanced Micro Devices, Inc. [AMD] Device 153b", root, redirect))
        lines.append(_bridge(f"{root:02x}:00.0", maker, up, ""))
        for which in range(2):
            lines.append(_bridge(f"{up:02x}:{which:02x}.0", maker, down + 2 * which, redirect))
            lanes = width if pair == 0 and which == 0 else 16
            name = "3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition]"
            lines.append(_function(f"{gpu - 1 + 2 * which:02x}:00.0", name, _link_lines(lanes)))
    return "\n".join(lines) + "\n"


def _function(address: str, what: str, *details: str) -> str:
    return "\n".join([f"{address} {what}", "\tNUMA node: 0", *details])


def _link_lines(width: int) -> str:
    return (
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        f"\t\tLnkSta:\tSpeed 32GT/s, Width x{width}{'' if width == 16 else ' (downgraded)'}"
    )


def _bridge(address: str, maker: str, secondary: int, redirect: str) -> str:
    acs = f"\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{redirect} CmpltRedir{redirect} UpstreamFwd-"
    primary = address.partition(":")[0]
    bus = f"\tBus: primary={primary}, secondary={secondary:02x}, subordinate={secondary + 12:02x}, sec-latency=0"
    details = [bus, _link_lines(16), *([acs] if redirect else [])]
    return _function(address, f"PCI bridge: {maker} (prog-if 00 [Normal decode])", *details)
