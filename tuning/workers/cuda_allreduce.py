"""Worker of engine `cuda`: allreduce between GPUs, inside CUDA graphs as an inference engine calls it.

Started as `python cuda_allreduce.py JOB`, where JOB is JSON text (docs/worker-protocol.md). This process starts one
process per rank, `python cuda_allreduce.py --rank R --hub FD JOB`, and is their hub: what they have to tell each other
outside NCCL (unique ids, times, faults) goes through a socket pair each of them inherits, so nothing listens on a
network and nothing has to be found. Rank 0 reports events on standard output, a line each, `@lanewise ` then JSON.
Where a rank dies, the hub says which and how, kills the others, whose GPU memory their death frees, and ends with that
rank's exit code (128 + signal).

It needs cuda-bindings and numpy, torch only for torch's own candidates, and nothing of the project but the files
`cuda_*.py` beside it, so that this folder runs inside an image. What is measured, and how: cuda_measuring.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .cuda_hub import Ranks, emit, join, serve
    from .cuda_ways import Backend
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # the files beside this one, also under `python -P`
    from cuda_hub import Ranks, emit, join, serve

MODES = ("graph", "eager")
WORKING_SETS = ("warm", "cold")
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Message:
    """One allreduce size and how many calls of it one pass makes."""

    name: str
    bytes: int
    calls: int


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to do it; `parameters` names its kind (nccl, torch_distributed, symm_mem) and what that kind needs."""

    key: str
    parameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to measure, as the harness wrote it.

    Attributes:
        ranks: processes, each on a GPU of its own unless `shared_gpu`.
        shared_gpu: all of them on the first GPU: for trying things, times mean nothing.
        seed: of the random data and of the order of visits.
        rounds: visits of each (candidate, message, mode, working set).
        samples: passes timed per visit.
        nccl: the libnccl of candidates that name none; "" for the one that this Python brings.
        allow_ll128: measure LL128 although it can corrupt data on PCIe.
        bitwise_replays: passes of LL128 compared bit for bit: a store that arrives in pieces corrupts rarely, so one
            right sum proves little.
    """

    ranks: int
    seed: int
    rounds: int
    samples: int
    dtype: str
    modes: tuple[str, ...]
    working_sets: tuple[str, ...]
    messages: tuple[Message, ...]
    candidates: tuple[Candidate, ...]
    shared_gpu: bool = False
    nccl: str = ""
    allow_ll128: bool = False
    bitwise_replays: int = 1000


def parse_job(text: str) -> Job:
    """Read a job; ValueError says what is wrong with it."""
    try:
        fields = json.loads(text)
        if fields.pop("protocol") != 1:
            raise ValueError("this worker speaks protocol 1")
        for name in ("modes", "working_sets"):
            fields[name] = tuple(fields[name])
        fields["messages"] = tuple(Message(**message) for message in fields["messages"])
        fields["candidates"] = tuple(Candidate(**candidate) for candidate in fields["candidates"])
        job = Job(**fields)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a job of this worker: {type(error).__name__}: {error}") from error
    _require("ranks, rounds and samples of at least 1", min(job.ranks, job.rounds, job.samples) >= 1)
    _require("at least one message and one candidate", job.messages and job.candidates)
    _require(f"a dtype of {', '.join(ITEM_BYTES)}", job.dtype in ITEM_BYTES)
    _require(f"modes of {', '.join(MODES)}", job.modes and set(job.modes) <= set(MODES))
    _require(
        f"working_sets of {', '.join(WORKING_SETS)}", job.working_sets and set(job.working_sets) <= set(WORKING_SETS)
    )
    for message in job.messages:
        whole = message.bytes > 0 and message.bytes % ITEM_BYTES[job.dtype] == 0
        _require(f"messages of at least one call and a whole number of {job.dtype}", whole and message.calls > 0)
    return job


def _require(what: str, holds: object) -> None:
    if not holds:
        raise ValueError(f"a job needs {what}")


OpenBackend = Callable[[Job, Ranks], tuple["Backend", dict[str, object]]]
"""Makes a rank ready to measure; also what it says of itself: gpu, libraries."""


def open_cuda(job: Job, ranks: Ranks) -> tuple[Backend, dict[str, object]]:
    """The real thing: this rank's GPU and libraries."""
    if not TYPE_CHECKING:
        from cuda_nccl import CudaBackend  # noqa: PLC0415 - the hub needs none of it
    else:
        from .cuda_nccl import CudaBackend  # noqa: PLC0415

    backend = CudaBackend(job, ranks)
    return backend, backend.about()


def run_rank(job: Job, ranks: Ranks, open_backend: OpenBackend) -> int:
    """One rank's whole life; the exit code."""
    if not TYPE_CHECKING:
        from cuda_measuring import Bench  # noqa: PLC0415 - as above
        from cuda_ways import DeviceError, Unusable  # noqa: PLC0415
    else:
        from .cuda_measuring import Bench  # noqa: PLC0415
        from .cuda_ways import DeviceError, Unusable  # noqa: PLC0415

    fault = ""
    backend: Backend | None = None
    about: dict[str, object] = {}
    try:
        try:
            backend, about = open_backend(job, ranks)
        except Unusable as error:
            fault = str(error)
        everywhere = ranks.exchange({"fault": fault, "gpu": about.get("gpu")})
        if faults := ranks.named([rank["fault"] for rank in everywhere]):
            ranks.emit(event="failed", reason=faults)
            return 0
        assert backend
        libraries = {**about, "gpus": [rank["gpu"] for rank in everywhere]}
        libraries.pop("gpu", None)
        shared: dict[str, object] = {"shared_gpu": True} if job.shared_gpu else {}
        ranks.emit(event="ready", ranks=job.ranks, libraries=libraries, **shared)
        Bench(job, backend, ranks).run()
        ranks.exchange("done")  # no rank tears NCCL's connections down while another still measures
        ranks.emit(event="done")
    except DeviceError as error:
        sys.stderr.write(f"rank {ranks.rank}: {error}\n")
        return 3
    return 0


def main(arguments: Sequence[str], open_backend: OpenBackend) -> int:
    """Be the hub, or with --rank a rank; tests put something else in the place of CUDA."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--hub", type=int)
    options = parser.parse_args(arguments)
    try:
        job = parse_job(options.job)
    except ValueError as error:
        emit({"event": "failed", "reason": str(error)}, sys.stdout)
        return 0
    if options.rank is not None:
        ranks = join(options.hub, options.rank, job.ranks)
        try:
            code = run_rank(job, ranks, open_backend)
        except ImportError as error:
            ranks.emit(event="failed", reason=f"{sys.executable} cannot import what a rank needs: {error}")
            code = 0
        if code == 0:
            ranks.leave()
        return code
    command = [sys.executable, sys.argv[0], options.job]
    with tempfile.TemporaryDirectory(prefix="lanewise-cuda-") as scratch:
        environment = {**os.environ, "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        return serve([[*command, "--rank", str(rank)] for rank in range(job.ranks)], environment)


def run(open_backend: OpenBackend = open_cuda) -> NoReturn:
    """Do what the command line says, and end: libraries' exit handlers may wait for peers that have gone."""
    code = main(sys.argv[1:], open_backend)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
