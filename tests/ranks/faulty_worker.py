"""A FAKE for tests: the real worker of engine mpi with candidates that are slow, wrong, hang or die on demand.

LANEWISE_TEST_FAULTS holds JSON, candidate name to fault: "slow:0.2", or one of the functions below, with
"_later" for after some calls. It goes through the same main(), ranks and protocol as the product's worker.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

from mpi4py import MPI

_PATH = Path(__file__).resolve().parents[2] / "tuning/workers/mpi_allreduce.py"
_SPEC = importlib.util.spec_from_file_location("mpi_allreduce", _PATH)
assert _SPEC
assert _SPEC.loader
worker = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(worker)

FAULTS = json.loads(os.environ.get("LANEWISE_TEST_FAULTS", "{}"))
RANK = MPI.COMM_WORLD.rank


def wrong(receive):
    if RANK == 1 and receive.size > 100:
        receive[77] += 1e-2


def nan(receive):
    if MPI.COMM_WORLD.size - 1 == RANK:
        receive[-1] = float("nan")


def hang(_receive):
    if RANK == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)


def chatter(_receive):
    while RANK == 1:
        sys.stdout.write("still warming up\n")
        sys.stdout.flush()
        time.sleep(0.05)


def die(_receive):
    if RANK == 1:
        sys.stderr.write(f"about to die, HF_TOKEN is {os.environ.get('HF_TOKEN')}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def garble(_receive):
    if RANK == 0:
        sys.stdout.write('@lanewise {"event": "samp\n')
        sys.stdout.flush()


def leave(_receive):
    MPI.COMM_WORLD.Barrier()
    MPI.Finalize()
    os._exit(0)


LATER = 60  # calls: past the checks, in the middle of timed passes


def slow(call, amount):
    def slowed(send, receive):
        start = time.perf_counter()
        call(send, receive)
        until = start + (time.perf_counter() - start) * (1 + amount)
        while time.perf_counter() < until:
            pass

    return slowed


def decorate(candidate, call):
    kind, _, amount = FAULTS.get(candidate["key"].partition("#")[0], "").partition(":")
    if not kind:
        return call
    if kind == "slow":
        return slow(call, float(amount))
    harm, first = globals()[kind.removesuffix("_later")], LATER if kind.endswith("_later") else 1
    calls = 0

    def faulty(send, receive):
        nonlocal calls
        calls += 1
        call(send, receive)
        if calls >= first:
            harm(receive)

    return faulty


worker.main(decorate)
