"""Worker of engine `mpi`: allreduce between ranks on this machine's CPU, one launch for many candidates.

Started as `mpirun -np N python mpi_allreduce.py JOB`, where JOB is JSON text (docs/worker-protocol.md). Rank 0 reports
events on stdout, a line each, `@lanewise ` then JSON. It needs mpi4py and numpy and nothing of the project, so that the
same file runs inside an image.

Open MPI reads which allreduce algorithm to use when a communicator is made. So each candidate gets a communicator of
its own, made while MPI's control variables (MPI 4.1, section 15.3) name its algorithm; all of them live in one launch
and are visited in a seeded random order, which is what makes their ratios comparable.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

Array = np.ndarray[Any, np.dtype[np.float32]]
Call = Callable[[Array, Array], None]
Decorate = Callable[[dict[str, Any], Call], Call]

CHECK_SIZES = (1, 2, 3, 5, 17, 255, 1023, 4097)
"""Elements of the ragged messages checked beside the workload's own: around ranks, segments and powers of two."""
WARMUP_CALLS = 8


def emit(**event: object) -> None:
    """Report one event from rank 0."""
    if MPI.COMM_WORLD.rank == 0:
        sys.stdout.write("@lanewise " + json.dumps(event) + "\n")
        sys.stdout.flush()


class ControlVariable:
    """One of the MPI library's control variables, written by name through the MPI_T interface."""

    def __init__(self, library: ctypes.CDLL, name: str, ctype: type[ctypes.c_int | ctypes.c_bool]) -> None:
        self._library, self._ctype, self._handle = library, ctype, ctypes.c_void_p()
        index, count = ctypes.c_int(), ctypes.c_int()
        failed = library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)) or library.MPI_T_cvar_handle_alloc(
            index, None, ctypes.byref(self._handle), ctypes.byref(count)
        )
        if failed:
            raise LookupError(f"this MPI library has no control variable {name}")

    def write(self, value: int) -> bool:
        """Set it; whether the library took the value, read back."""
        cell = self._ctype(value)
        if self._library.MPI_T_cvar_write(self._handle, ctypes.byref(cell)):
            return False
        seen = self._ctype()
        self._library.MPI_T_cvar_read(self._handle, ctypes.byref(seen))
        return bool(seen.value == cell.value)


class AlgorithmChoice:
    """Chooses the allreduce algorithm of the communicators made from now on."""

    def __init__(self) -> None:
        library = mpi_library()
        library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
        self._forced = ControlVariable(library, "coll_tuned_use_dynamic_rules", ctypes.c_bool)
        self._algorithm = ControlVariable(library, "coll_tuned_allreduce_algorithm", ctypes.c_int)
        self._segment = ControlVariable(library, "coll_tuned_allreduce_algorithm_segmentsize", ctypes.c_int)

    def set(self, *, algorithm: int, segment_bytes: int = 0) -> bool:
        """Choose; 0 is the library's own decision. Whether the library took the choice."""
        taken = self._forced.write(int(algorithm != 0))
        return self._algorithm.write(algorithm) and self._segment.write(segment_bytes) and taken


def mpi_library() -> ctypes.CDLL:
    """The libmpi that mpi4py has loaded."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        path = next(line.split(None, 5)[5].strip() for line in maps if "/libmpi.so" in line)
    return ctypes.CDLL(path)


def agree(ok: bool) -> bool:
    """Whether `ok` holds on every rank; through gather and broadcast, since allreduce is what is under test."""
    everywhere = MPI.COMM_WORLD.gather(ok, root=0)
    return bool(MPI.COMM_WORLD.bcast(everywhere is not None and all(everywhere), root=0))


def make_call(candidate: dict[str, Any], choice: AlgorithmChoice) -> Call | None:
    """The allreduce of one candidate on a communicator of its own, or None where the library refuses the algorithm."""
    if not agree(choice.set(**candidate["parameters"])):
        return None
    communicator = MPI.COMM_WORLD.Dup()
    return lambda send, receive: communicator.Allreduce(send, receive, MPI.SUM)


class Buffers:
    """Send and receive buffers of one message size.

    The sum is checked against a float64 reference. Any order of n - 1 float32 additions of values x_r stays within
    (n - 1) u / (1 - (n - 1) u) x sum |x_r| of the true sum, u = 2^-24 (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 4.2).
    """

    def __init__(self, elements: int, seed: int) -> None:
        world = MPI.COMM_WORLD
        self.send: Array = np.empty(elements, np.float32)
        self.receive: Array = np.empty(elements, np.float32)
        self._reference, self._bound = np.zeros(elements), np.zeros(elements)
        # Every rank draws every rank's data, so the reference needs no communication that could be wrong too.
        for rank in range(world.size):
            drawn = np.random.default_rng((seed, rank)).standard_normal(elements, np.float32)
            if rank == world.rank:
                self.send[:] = drawn
            self._reference += drawn
            self._bound += np.abs(drawn)
        steps = (world.size - 1) * 2.0**-24
        self._bound *= steps / (1 - steps)

    def poison(self) -> None:
        """Fill the result with NaN, so that a result never written cannot pass."""
        self.receive.fill(np.nan)

    def fault(self) -> str:
        """What is wrong with the result on this rank, or ""."""
        error = np.abs(self.receive.astype(np.float64) - self._reference)
        wrong = ~(error <= self._bound)  # a NaN compares false, so it counts as wrong
        if not wrong.any():
            return ""
        at = int(np.argmax(wrong))
        return (
            f"{int(wrong.sum())} of {wrong.size} sums wrong, first at element {at}: "
            f"{self.receive[at]!r} instead of {self._reference[at]:.9g}"
        )


def check(call: Call, buffers: Buffers) -> str:
    """Run one allreduce into a poisoned buffer: "" where it is right on every rank, else what is wrong and where."""
    buffers.poison()
    call(buffers.send, buffers.receive)
    return verdict(buffers)


def verdict(buffers: Buffers) -> str:
    """The faults of all ranks in words, the same on every rank; "" where there is none."""
    faults = MPI.COMM_WORLD.gather(buffers.fault(), root=0)
    found = [f"rank {rank}: {fault}" for rank, fault in enumerate(faults or []) if fault]
    return str(MPI.COMM_WORLD.bcast("; ".join(found[:2]), root=0))


def time_passes(call: Call, buffers: Buffers, calls: int, samples: int) -> list[float]:
    """Microseconds a call of `samples` passes of `calls` calls each; the slowest rank counts."""
    world, mine = MPI.COMM_WORLD, np.empty(samples)
    for _ in range(WARMUP_CALLS):
        call(buffers.send, buffers.receive)
    for sample in range(samples):
        world.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call(buffers.send, buffers.receive)
        mine[sample] = (time.perf_counter() - start) / calls * 1e6
    everywhere = world.gather(mine, root=0)
    return [] if everywhere is None else [round(float(us), 4) for us in np.max(everywhere, axis=0)]


def measure(job: dict[str, Any], calls: dict[str, Call]) -> None:
    """Check every candidate on every size; then time those that are right, in `rounds` random orders."""
    messages = {message["name"]: message for message in job["messages"]}
    buffers = {name: Buffers(message["elements"], job["seed"]) for name, message in messages.items()}
    ragged = [Buffers(elements, job["seed"] + 1) for elements in CHECK_SIZES]
    for key in list(calls):
        for name in messages:
            emit(event="begin", phase="check", candidate=key, message=name)
            fault = check(calls[key], buffers[name])
            if not fault:
                fault = next((f for b in ragged if (f := check(calls[key], b))), "")
            if fault:
                emit(event="wrong", candidate=key, reason=f"{fault} (checked before timing)")
                del calls[key]
                break
    order = random.Random(job["seed"])  # noqa: S311 - the same seed gives every rank the same order
    for number in range(job["rounds"]):
        visits = [(key, name) for name in messages for key in calls]
        order.shuffle(visits)
        for key, name in visits:
            if key not in calls:
                continue
            emit(event="begin", phase="time", candidate=key, message=name, mode="eager", working_set="warm")
            buffers[name].poison()
            us = time_passes(calls[key], buffers[name], messages[name]["calls"], job["samples"])
            if fault := verdict(buffers[name]):
                emit(event="wrong", candidate=key, reason=f"{fault} (checked after timed passes)")
                del calls[key]
            else:
                emit(
                    event="samples", candidate=key, message=name, mode="eager", working_set="warm", round=number, us=us
                )


def main(decorate: Decorate = lambda _candidate, call: call) -> None:
    """Do the job named on the command line; `decorate` lets tests slow down, break or hang a candidate's call."""
    job = json.loads(sys.argv[1])
    world = MPI.COMM_WORLD
    version = MPI.Get_library_version().split(",")[0].strip()
    emit(event="ready", ranks=world.size, libraries={"mpi": version})
    try:
        choice = AlgorithmChoice()
    except (LookupError, StopIteration) as error:
        emit(event="failed", reason=f"cannot choose algorithms: {error!r}")
        return
    calls: dict[str, Call] = {}
    for candidate in job["candidates"]:
        key = candidate["key"]
        emit(event="begin", phase="setup", candidate=key, message=job["messages"][0]["name"])
        call = make_call(candidate, choice)
        if call is None:
            emit(event="unsupported", candidate=key, reason=f"{version} refuses algorithm {candidate['parameters']}")
        else:
            calls[key] = decorate(candidate, call)
    measure(job, calls)
    emit(event="done")


if __name__ == "__main__":
    main()
