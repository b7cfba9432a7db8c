"""Facts about CUDA graphs and NCCL that one GPU is enough for; JSON on standard output.

    python bench/cuda_findings.py            all of it, about a minute
    python bench/cuda_findings.py nodes      one of: nodes, one_rank, tree, logging

nodes: what a kernel node costs in a graph: graphs of 1, 10, 122 and 1,000 kernels that do nothing, and the slope.
one_rank: ncclAllReduce of a single rank, eager against in a graph. With one rank NCCL copies: a copy by
    cudaMemcpyAsync is timed beside it. Eager times hold this Python's cost of calling C as well.
tree: is NCCL's tree "incompatible with CUDA graphs"? Two ranks, on two GPUs where CUDA shows them, else both on one:
    captured with and without a warm-up call, connections made at first use (NCCL_RUNTIME_CONNECT=1) or at once (0), in
    each capture mode. Every combination has processes of its own, and ring is the control.
logging: what NCCL's TUNING log costs the host per enqueued call, and whether ncclResetDebugInit ends it: two ranks as
    above, the host's time of eager calls without a log, with it, and after the reset.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tuning.workers.cuda_buffers import DTYPES
    from tuning.workers.cuda_gpu import Gpu, open_gpu
    from tuning.workers.cuda_hub import Ranks, join, serve
    from tuning.workers.cuda_nccl import Library, find_nccl, parse_choices
    from tuning.workers.cuda_ways import DeviceError, Refused, Unusable
else:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tuning/workers"))
    from cuda_buffers import DTYPES
    from cuda_gpu import Gpu, open_gpu
    from cuda_hub import Ranks, join, serve
    from cuda_nccl import Library, find_nccl, parse_choices
    from cuda_ways import DeviceError, Refused, Unusable

NODES = (1, 10, 122, 1000)
SHAPES = ((1, 32), (1, 512), (8, 512))
"""(blocks, threads): the least, one NCCL channel's, eight channels'."""
REPEATS, REPLAYS = 5, 100
SIZES = (14336, 43008)
CALLS = 122
CASE_SECONDS = 60.0
LOGGED_CALLS = 20
BFLOAT16 = DTYPES["bfloat16"]


def nothing() -> None:
    """No watch is needed where no peer can go missing."""


def empty_kernel(gpu: Gpu) -> Callable[[int, int], None]:
    """A kernel that does nothing, compiled here; takes blocks and threads."""
    compiler, driver = importlib.import_module("cuda.bindings.nvrtc"), importlib.import_module("cuda.bindings.driver")
    runtime = importlib.import_module("cuda.bindings.runtime")

    def do(result: tuple[Any, ...]) -> Any:  # noqa: ANN401 - cuda-bindings has no stubs
        if int(result[0]):
            raise DeviceError(f"{result[0]!r}")
        return result[1] if len(result) == 2 else result[1:]

    capability = "".join(
        str(do(runtime.cudaDeviceGetAttribute(getattr(runtime.cudaDeviceAttr, name), gpu.index)))
        for name in ("cudaDevAttrComputeCapabilityMajor", "cudaDevAttrComputeCapabilityMinor")
    )
    program = do(compiler.nvrtcCreateProgram(b'extern "C" __global__ void empty() {}', b"empty.cu", 0, [], []))
    do(compiler.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{capability}".encode()]))
    binary = b" " * do(compiler.nvrtcGetCUBINSize(program))
    do(compiler.nvrtcGetCUBIN(program, binary))
    function = do(
        driver.cuModuleGetFunction(do(driver.cuModuleLoadData(np.frombuffer(binary, np.uint8).ctypes.data)), b"empty")
    )
    launch, stream = driver.cuLaunchKernel, gpu.stream

    def run(blocks: int, threads: int) -> None:
        launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, 0, 0)

    run.keep = (program, binary)  # type: ignore[attr-defined]
    return run


def timed(gpu: Gpu, run: Callable[[], None], *, marked: bool) -> tuple[float, float]:
    """Medians over replays: GPU time between the marks, and how long the host was busy starting it; us."""
    device, host = [], []
    for number in range(REPLAYS + 3):
        if not marked:
            gpu.mark("start", captured=False)
        begin = time.perf_counter()
        run()
        busy = time.perf_counter() - begin
        if not marked:
            gpu.mark("end", captured=False)
        gpu.wait(nothing)
        if number >= 3:
            device.append(gpu.elapsed_us())
            host.append(busy * 1e6)
    return statistics.median(device), statistics.median(host)


def in_graph(gpu: Gpu, call: Callable[[], None], count: int, *, marked: bool) -> Callable[[], None]:
    """A graph of `count` calls, with the marks as nodes around them if `marked`."""

    def work() -> None:
        if marked:
            gpu.mark("start", captured=True)
        for _ in range(count):
            call()
        if marked:
            gpu.mark("end", captured=True)

    return gpu.capture(work)


def repeated(gpu: Gpu, call: Callable[[], None], count: int) -> dict[str, list[float]]:
    """The same lot of calls three ways, each several times: us of the whole lot."""
    found: dict[str, list[float]] = {}
    inside, outside = (in_graph(gpu, call, count, marked=marked) for marked in (True, False))

    def eager() -> None:
        for _ in range(count):
            call()

    ways = {"graph": (inside, True), "graph_marks_outside": (outside, False), "eager": (eager, False)}
    for _ in range(REPEATS):
        for name, (run, marked) in ways.items():
            device, host = timed(gpu, run, marked=marked)
            found.setdefault(name, []).append(round(device, 3))
            found.setdefault(name + "_host", []).append(round(host, 3))
    return found


def nodes() -> list[dict[str, object]]:
    """Per shape: us of graphs of different lengths, and the slope in us a node."""
    gpu = open_gpu(0, 1)
    kernel = empty_kernel(gpu)
    kernel(1, 32)
    gpu.wait(nothing)
    results: list[dict[str, object]] = []
    for shape in SHAPES:
        lots = {count: repeated(gpu, partial(kernel, *shape), count) for count in NODES}
        slopes = {
            name: [
                round((b - a) / (NODES[-1] - NODES[1]), 4)
                for a, b in zip(lots[NODES[1]][name], lots[NODES[-1]][name], strict=True)
            ]
            for name in lots[NODES[0]]
        }
        results.append({"blocks": shape[0], "threads": shape[1], "us": lots, "us_a_node": slopes})
    return results


def one_rank() -> list[dict[str, object]]:
    """Per size: us a call of ncclAllReduce with one rank, and of the copy that it comes down to."""
    gpu = open_gpu(0, 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        library = Library(find_nccl(), Path(os.devnull))
        communicator = library.communicator(library.unique_id(), Ranks(0, 1, ours, sys.stderr))
    results: list[dict[str, object]] = []
    for nbytes in SIZES:
        send, receive = gpu.allocate(nbytes), gpu.allocate(nbytes)
        elements = nbytes // BFLOAT16.bytes

        def reduce(send: int = send, receive: int = receive, elements: int = elements) -> None:
            code = library.all_reduce(send, receive, elements, BFLOAT16.nccl, 0, communicator, gpu.stream)
            library.check("ncclAllReduce", code)

        for name, call in (("ncclAllReduce", reduce), ("cudaMemcpyAsync", partial(gpu.copy, receive, send, nbytes))):
            lots = repeated(gpu, call, CALLS)
            us = {way: [round(value / CALLS, 4) for value in values] for way, values in lots.items()}
            results.append({"call": name, "bytes": nbytes, "us_a_call": us, "nccl": library.version})
    return results


def tree() -> list[dict[str, object]]:
    """Per combination: what capture said, and whether replays gave right sums."""
    kinds, modes = (("tree", "LL"), ("tree", "Simple"), ("ring", "LL")), ("ThreadLocal", "Global", "Relaxed")
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(
            pool.map(
                two_ranks,
                [
                    {
                        "do": "tree",
                        "algo": a,
                        "proto": p,
                        "warm_up": warm,
                        "runtime_connect": connect,
                        "capture_mode": mode,
                    }
                    for (a, p), warm, connect, mode in itertools.product(kinds, (True, False), ("0", "1"), modes)
                ],
            )
        )


def logging() -> list[dict[str, object]]:
    """Host time of an eager ncclAllReduce on rank 0: us a call."""
    return [two_ranks({"do": "logging", "log": log, "algo": "ring", "proto": "LL"}) for log in (False, True)]


def two_ranks(case: dict[str, Any]) -> dict[str, object]:
    """One case, in processes of its own."""
    environment = {
        **os.environ,
        "NCCL_ALGO": f"allreduce:{case['algo']}",
        "NCCL_PROTO": str(case["proto"]),
        "NCCL_RUNTIME_CONNECT": str(case.get("runtime_connect", "1")),
    }
    with tempfile.TemporaryDirectory(prefix="lanewise-findings-") as scratch:
        environment["TMPDIR"] = scratch
        command = [sys.executable, __file__, "hub", json.dumps(case)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=CASE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return {**case, "ended": f"nothing within {CASE_SECONDS:g} s"}
    with suppress(ValueError, IndexError):
        answer: dict[str, object] = json.loads(done.stdout.decode().splitlines()[-1])
        return {**case, **answer}
    return {**case, "ended": f"exit code {done.returncode}", "stderr": done.stderr.decode()[-500:]}


class Pair:
    """One of two ranks, with a communicator, a message of 43,008 B and a result that was never written."""

    elements = SIZES[-1] // BFLOAT16.bytes

    def __init__(self, ranks: Ranks, *, log: bool) -> None:
        path = Path(os.environ["TMPDIR"]) / f"rank{ranks.rank}.log"
        try:
            self.gpu = open_gpu(ranks.rank, 2)
        except Unusable:  # one GPU: NCCL takes two ranks on it for two hosts
            self.gpu = open_gpu(0, 1)
            os.environ.update(NCCL_HOSTID=f"rank{ranks.rank}", NCCL_SOCKET_IFNAME="lo")
        if log:
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=str(path))
        self.library = Library(find_nccl(), path)
        identifier = ranks.exchange(self.library.unique_id() if ranks.rank == 0 else "")[0]
        self.communicator = self.library.communicator(identifier, ranks)
        self.send, self.receive = (self.gpu.allocate(2 * self.elements) for _ in range(2))
        self.gpu.write(self.send, BFLOAT16.encode(np.full(self.elements, ranks.rank + 1, np.float32)))
        self.poison()

    def poison(self) -> None:
        """NaN, on the stream."""
        self.gpu.fill(self.receive, 0xFF, 2 * self.elements)

    def call(self, count: int = 1) -> None:
        """Put calls on the stream."""
        for _ in range(count):
            code = self.library.all_reduce(
                self.send, self.receive, self.elements, BFLOAT16.nccl, 0, self.communicator, self.gpu.stream
            )
            self.library.check("ncclAllReduce", code)

    def wait(self) -> None:
        """Until they are done."""
        self.gpu.wait(partial(self.library.fault, self.communicator))

    def right(self) -> bool:
        """Whether every sum is 1 + 2."""
        return bool((BFLOAT16.decode(self.gpu.read(self.receive, 2 * self.elements)) == 3).all())


def tree_rank(ranks: Ranks, case: dict[str, Any]) -> dict[str, object]:
    """Capture four calls, replay three times."""
    pair = Pair(ranks, log=True)
    found: dict[str, object] = {"nccl": pair.library.version, "gpu": pair.gpu.index, "capture": "ok"}
    try:
        if case["warm_up"]:
            pair.call()
            pair.wait()
            pair.library.news()
        replay = pair.gpu.capture(partial(pair.call, 4), case["capture_mode"])
        found["ran"] = sorted({f"{c.algorithm} {c.protocol}" for c in parse_choices(pair.library.news())})
        sums = []
        for _ in range(3):
            pair.poison()
            replay()
            pair.wait()
            sums.append(pair.right())
        found["sums"] = "right" if all(sums) else "wrong"
    except (DeviceError, Refused) as error:
        found["capture"] = str(error)
    return found


def logging_rank(ranks: Ranks, case: dict[str, Any]) -> dict[str, object]:
    """Time the host at enqueueing, then again after the log was switched off."""
    pair = Pair(ranks, log=case["log"])

    def host_us() -> list[float]:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            pair.call(LOGGED_CALLS)
            times.append(round((time.perf_counter() - begin) / LOGGED_CALLS * 1e6, 2))
            pair.wait()
        return times

    pair.call()
    pair.wait()
    pair.library.news()
    before, lines = host_us(), pair.library.news()
    os.environ["NCCL_DEBUG"] = "WARN"
    os.environ.pop("NCCL_DEBUG_FILE", None)
    pair.library.silence()
    after = host_us()
    return {
        "nccl": pair.library.version,
        "us_a_call": before,
        "us_a_call_after_reset": after,
        "lines": lines.count("Bytes -> "),
        "line": lines.splitlines()[0] if lines else "",
        "lines_after_reset": pair.library.news().count("Bytes -> "),
    }


def rank_main(case: dict[str, Any], rank: int, hub: int) -> None:
    """One of the two ranks of a case; rank 0 prints what came of it, and the other's where it differs."""
    ranks = join(hub, rank, 2)
    found = {"tree": tree_rank, "logging": logging_rank}[case["do"]](ranks, case)
    everywhere = ranks.exchange(found)
    if rank == 0:
        ranks.events.write(json.dumps({**everywhere[0], "other_rank": everywhere[1]}) + "\n")
        ranks.events.flush()
    ranks.leave()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Do what the module says."""
    if arguments[:1] == ["hub"]:
        command = [sys.executable, __file__, "rank", arguments[1]]
        return serve([[*command, str(rank)] for rank in (0, 1)], dict(os.environ))
    if arguments[:1] == ["rank"]:  # rank CASE RANK --hub FD
        rank_main(json.loads(arguments[1]), int(arguments[2]), int(arguments[4]))
    sections = {"nodes": nodes, "one_rank": one_rank, "tree": tree, "logging": logging}
    found: dict[str, object] = {"gpu": open_gpu(0, 1).about()}
    for name in arguments or sections:
        started = time.monotonic()
        found[name] = sections[name]()
        sys.stderr.write(f"{name}: {time.monotonic() - started:.1f} s\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
