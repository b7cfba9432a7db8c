"""A FAKE for tests: engine `cuda`'s real worker, processes and hub, on a device of numpy arrays without any GPU.

Its allreduce goes through the hub. LANEWISE_TEST_FAULTS holds JSON, candidate name to what goes wrong with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

_PATH = Path(__file__).resolve().parents[2] / "tuning/workers/cuda_allreduce.py"
_SPEC = importlib.util.spec_from_file_location("cuda_allreduce", _PATH)
assert _SPEC
assert _SPEC.loader
worker = importlib.util.module_from_spec(_SPEC)
sys.modules["cuda_allreduce"] = worker
_SPEC.loader.exec_module(worker)

from cuda_buffers import DTYPES  # noqa: E402 - the worker has put its folder on the path
from cuda_ways import Choice, DeviceError, Refused, Unusable  # noqa: E402

FAULTS = json.loads(os.environ.get("LANEWISE_TEST_FAULTS", "{}"))


class FakeGpu:
    l2_bytes = 4096

    def __init__(self):
        self._memory = np.full(1 << 22, 0x55, np.uint8)
        self._used, self._graph, self._marks = 256, None, {}

    def put(self, operation):
        if self._graph is None:
            operation()
        else:
            self._graph.append(operation)

    def capture(self, work):
        self._graph = graph = []
        try:
            work()
        finally:
            self._graph = None
        return lambda: [operation() for operation in graph]

    def view(self, address, nbytes):
        return self._memory[address : address + nbytes]

    def allocate(self, nbytes):
        address, self._used = self._used, self._used + -(-nbytes // 256) * 256
        assert self._used <= self._memory.size
        return address

    def write(self, address, data):
        self.view(address, data.nbytes)[:] = data

    def read(self, address, nbytes):
        return self.view(address, nbytes).copy()

    def fill(self, address, byte, nbytes):
        self.put(lambda: self.view(address, nbytes).fill(byte))

    def copy(self, target, source, nbytes):
        self.put(lambda: self.write(target, self.read(source, nbytes)))

    def mark(self, which, *, captured):
        assert captured == (self._graph is not None)
        self.put(lambda: self._marks.__setitem__(which, time.perf_counter()))

    def wait(self, watch):
        watch()

    def elapsed_us(self):
        return (self._marks["end"] - self._marks["start"]) * 1e6


class FakeWay:
    def __init__(self, name, gpu, ranks, job):
        self._gpu, self._ranks, self._dtype, self._job = gpu, ranks, DTYPES[job.dtype], job
        self.fault = FAULTS.get(name, "")
        self.in_place = name.startswith("in_place")
        self.granularity = 4 if name.startswith("coarse") else 1
        self.bitwise = name.startswith("bitwise")
        self.logged = name.startswith("logged")
        self.library_version = "2.28.9"
        self._calls, self._log = 0, []

    def call(self, send, receive, elements):
        assert elements % self.granularity == 0
        self._log.append(elements * self._dtype.bytes)
        self._gpu.put(lambda: self._reduce(receive if self.in_place else send, receive, elements))

    def _reduce(self, send, receive, elements):
        self._calls += 1
        nbytes = elements * self._dtype.bytes
        everywhere = self._ranks.exchange(self._gpu.read(send, nbytes).tobytes().hex())
        values = [self._dtype.decode(np.frombuffer(bytes.fromhex(text), np.uint8)) for text in everywhere]
        total = self._dtype.encode(np.sum(values, axis=0).astype(np.float32))
        if self.fault and (not self.fault.endswith("_later") or self._calls > 150):
            total = getattr(self, self.fault.removesuffix("_later"))(total)
        self._gpu.write(receive, total)

    def capture(self, work):
        if self.fault == "no_capture" and self._ranks.rank == 1:
            raise Refused("OutOfMemory: graph")
        return self._gpu.capture(work)

    def choices(self):
        found = [Choice(bytes=nbytes, algorithm="RING", protocol="LL", channels=1) for nbytes in self._log]
        self._log = []
        return found if self._ranks.rank == 0 else []

    def refuses(self, choice):
        return "asked for tree, NCCL ran RING LL" if self.fault == "other_choice" and choice else ""

    def watch(self):
        pass

    # faults
    def no_capture(self, total):
        return total

    def other_choice(self, total):
        return total

    def wrong(self, total):
        total = total.copy()
        if self._ranks.rank == 1 and total.size > 100:
            total[-1] ^= 0x40
        return total

    def nan(self, total):
        return np.full_like(total, 0xFF) if self._ranks.rank == 1 else total

    def unwritten(self, total):
        return np.full_like(total, 0xFF)

    def flipped_bit(self, total):
        total = total.copy()  # the last bit of the sum nearest to zero of many: too little to be wrong
        if total.size > 2000:
            total[np.argmin(np.abs(self._dtype.decode(total))) * self._dtype.bytes] ^= 1
        return total

    def sometimes(self, total):
        return self.flipped_bit(total) if self._calls % 3 == 0 else total

    def chatter(self, total):
        subprocess.run(["echo", f"from C, on rank {self._ranks.rank}"])
        return total

    def hang(self, total):
        time.sleep(60)

    def unequal(self, total):
        return self.flipped_bit(total) if self._ranks.rank == 1 else total

    def die(self, total):
        if self._ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def error(self, total):
        if self._ranks.rank == 1:
            raise DeviceError("cudaGraphLaunch: cudaErrorIllegalAddress (an illegal memory access)")
        time.sleep(60)

    def leave(self, total):
        if self._ranks.rank == 1:
            os._exit(0)
        time.sleep(60)


class FakeBackend:
    def __init__(self, job, ranks):
        self.device, self._job, self._ranks = FakeGpu(), job, ranks

    def open(self, candidate):
        name = candidate.key.partition("#")[0]
        if FAULTS.get(name) == "refused":
            raise Refused("ncclCommInitRank: invalid usage (no such algorithm)")
        return FakeWay(name, self.device, self._ranks, self._job)

    def quiet(self):
        pass


def open_fake(job, ranks):
    if FAULTS.get("launch") == "unusable":
        raise Unusable("2 ranks need 2 GPUs, one each, and CUDA shows 1")
    if FAULTS.get("launch") == "one_unusable" and ranks.rank == 1:
        raise Unusable("CUDA does not start")
    return FakeBackend(job, ranks), {"gpu": f"Fake {ranks.rank}", "nccl": "2.28.9"}


if __name__ == "__main__":
    worker.run(open_fake)
