"""Facts about CUDA graphs and NCCL that one GPU is enough for; JSON on standard output.

    python bench/cuda_findings.py            all of it, about a minute
    python bench/cuda_findings.py nodes      one of: nodes, one_rank, tree

nodes: what a kernel node costs in a graph: graphs of 1, 10, 122 and 1,000 kernels that do nothing, and the slope.
one_rank: ncclAllReduce of a single rank, eager against in a graph. With one rank NCCL copies: a copy by
    cudaMemcpyAsync is timed beside it. Eager times hold this Python's cost of calling C as well.
tree: is NCCL's tree "incompatible with CUDA graphs"? Two ranks share the GPU (times mean nothing): captured with and
    without a warm-up call, connections made at first use (NCCL_RUNTIME_CONNECT=1) or at once (0), in each capture mode.
    Every combination has processes of its own, and ring is the control.
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
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tuning.workers.cuda_buffers import DTYPES
    from tuning.workers.cuda_gpu import Gpu, open_gpu
    from tuning.workers.cuda_hub import Ranks, join, serve
    from tuning.workers.cuda_nccl import Library, find_nccl, parse_choices
    from tuning.workers.cuda_ways import DeviceError, Refused
else:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tuning/workers"))
    from cuda_buffers import DTYPES
    from cuda_gpu import Gpu, open_gpu
    from cuda_hub import Ranks, join, serve
    from cuda_nccl import Library, find_nccl, parse_choices
    from cuda_ways import DeviceError, Refused

NODES = (1, 10, 122, 1000)
SHAPES = ((1, 32), (1, 512), (8, 512))
"""(blocks, threads): the least, one NCCL channel's, eight channels'."""
REPEATS, REPLAYS = 5, 100
SIZES = (14336, 43008)
CALLS = 122
TREE_SECONDS = 60.0
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
        communicator = library.communicator(library.unique_id(), Ranks(0, 1, ours))
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
    combinations = [
        {"algo": algo, "proto": proto, "warm_up": warm_up, "runtime_connect": connect, "capture_mode": mode}
        for (algo, proto), warm_up, connect, mode in itertools.product(
            (("tree", "LL"), ("tree", "Simple"), ("ring", "LL")),
            (True, False),
            ("0", "1"),
            ("ThreadLocal", "Global", "Relaxed"),
        )
    ]
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(tree_case, combinations))


def tree_case(case: dict[str, Any]) -> dict[str, object]:
    """One combination, in processes of its own."""
    environment = {
        **os.environ,
        "NCCL_ALGO": f"allreduce:{case['algo']}",
        "NCCL_PROTO": str(case["proto"]),
        "NCCL_RUNTIME_CONNECT": str(case["runtime_connect"]),
    }
    with tempfile.TemporaryDirectory(prefix="lanewise-findings-") as scratch:
        environment |= {"TMPDIR": scratch, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        command = [sys.executable, __file__, "tree_hub", json.dumps(case)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=TREE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return {**case, "ended": f"nothing within {TREE_SECONDS:g} s"}
    with suppress(ValueError, IndexError):
        answer: dict[str, object] = json.loads(done.stdout.decode().splitlines()[-1])
        return {**case, **answer}
    return {**case, "ended": f"exit code {done.returncode}", "stderr": done.stderr.decode()[-500:]}


def tree_rank(rank: int, hub: int, case: dict[str, Any]) -> None:
    """One of the two ranks of a combination; rank 0 prints what came of it on both."""
    ranks = join(hub, rank, 2)
    log = Path(os.environ["TMPDIR"]) / f"rank{rank}.log"
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG_FILE=str(log))
    gpu, library = open_gpu(0, 1), Library(find_nccl(), log)
    identifier = ranks.exchange(library.unique_id() if rank == 0 else "")[0]
    communicator = library.communicator(identifier, ranks)
    elements, found = 21504, {"capture": "ok", "nccl": library.version}
    send, receive = gpu.allocate(2 * elements), gpu.allocate(2 * elements)
    gpu.write(send, BFLOAT16.encode(np.full(elements, rank + 1, np.float32)))

    def call() -> None:
        library.check(
            "ncclAllReduce", library.all_reduce(send, receive, elements, BFLOAT16.nccl, 0, communicator, gpu.stream)
        )

    try:
        with nullcontext():
            if case["warm_up"]:
                call()
                gpu.wait(partial(library.fault, communicator))
                library.news()
            replay = gpu.capture(lambda: [call() for _ in range(4)] and None, case["capture_mode"])
            found["ran"] = " ".join(dict.fromkeys(f"{c.algorithm} {c.protocol}" for c in parse_choices(library.news())))
            for _ in range(3):
                gpu.fill(receive, 0xFF, 2 * elements)
                replay()
                gpu.wait(partial(library.fault, communicator))
                found["sums"] = "right" if (BFLOAT16.decode(gpu.read(receive, 2 * elements)) == 3).all() else "wrong"
    except (DeviceError, Refused) as error:
        found["capture"] = str(error)
    everywhere = ranks.exchange(found)
    if rank == 0:
        sys.stdout.write(
            json.dumps(
                {**everywhere[0], "other_rank": everywhere[1]} if everywhere[0] != everywhere[1] else everywhere[0]
            )
            + "\n"
        )
        sys.stdout.flush()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Do what the module says."""
    if arguments[:1] == ["tree_hub"]:
        command = [sys.executable, __file__, "tree_rank", arguments[1]]
        return serve([[*command, str(rank)] for rank in (0, 1)], dict(os.environ))
    if arguments[:1] == ["tree_rank"]:
        tree_rank(int(arguments[2]), int(arguments[4]), json.loads(arguments[1]))
    sections: dict[str, Callable[[], list[dict[str, object]]]] = {"nodes": nodes, "one_rank": one_rank, "tree": tree}
    found: dict[str, object] = {"gpu": open_gpu(0, 1).about()}
    for name in arguments or sections:
        started = time.monotonic()
        found[name] = sections[name]()
        sys.stderr.write(f"{name}: {time.monotonic() - started:.1f} s\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
