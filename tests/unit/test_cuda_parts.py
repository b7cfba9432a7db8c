"""What engine `cuda`'s worker knows without a GPU: NCCL's log, jobs, rounding and bounds, how CUDA is missing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.makers import fake_plan
from tuning.engines import CudaEngine
from tuning.workers import cuda_allreduce  # puts its folder on the path

from cuda_buffers import DTYPES, Buffers, error_bound  # isort: skip
from cuda_gpu import Gpu, open_gpu  # isort: skip
from cuda_hub import Ranks  # isort: skip
from cuda_nccl import Library, _environment, find_nccl, loaded_path, parse_choices, refusal  # isort: skip
from cuda_ways import Choice, DeviceError, Refused, Unusable  # isort: skip

JOB = {
    "protocol": 1, "ranks": 2, "seed": 1, "rounds": 1, "samples": 1, "dtype": "bfloat16", "modes": ["graph"],
    "working_sets": ["warm"], "messages": [{"name": "m", "bytes": 64, "calls": 2}],
    "candidates": [{"key": "default#0", "parameters": {"kind": "nccl"}}],
}  # fmt: skip
RING_LL = Choice(bytes=43008, algorithm="RING", protocol="LL", channels=1)


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("43008 Bytes -> Algo 1 proto 0 time 19.543", ("RING", "LL", None)),  # 2.21
        ("AllReduce: 43008 Bytes -> Algo 0 proto 2 time 8.1", ("TREE", "SIMPLE", None)),  # 2.23
        ("AllReduce: 43008 Bytes -> Algo 5 proto 1 time 8.1", ("NVLS_TREE", "LL128", None)),
        ("AllReduce: 43008 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}", ("RING", "LL", 1)),  # 2.26 to 2.30
        ("AllReduce: 43008 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={2..9}", ("TREE", "SIMPLE", 8)),
        (
            "AllReduce: 43008 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..1} cgaClusterSize 4",
            ("RING", "LL128", 2),
        ),
        (
            "AllReduce [Symmetric]: 43008 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512",
            ("SYMMETRIC", "AGxLL_R", 4),
        ),
        ("AllReduce: 43008 Bytes -> Algo 9 proto 7 time 8.1", ("9", "7", None)),  # a release that knows more of them
    ],
)
def test_the_log_of_every_release(line: str, choice: tuple[object, ...]) -> None:
    algorithm, protocol, channels = choice
    wanted = Choice(bytes=43008, algorithm=algorithm, protocol=protocol, channels=channels)
    assert parse_choices(f"host:4464:4470 [0] NCCL INFO {line}\n") == [wanted]


@pytest.mark.parametrize(
    "line",
    [
        "h:1:1 [0] NCCL INFO Broadcast: 43008 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "h:1:1 [0] NCCL INFO AllGather [Symmetric]: 43008 Bytes -> Kernel AllGather_LL nchannels 4 nthreads 512",
        "h:1:1 [0] NCCL INFO AllGather [Copy Engine]: 43008 Bytes -> cudaMemcpy",
        "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init COMPLETE",
        "h:1:1 [0] NCCL INFO AllReduce: 43008 Bytes -> Algo",  # torn
        "",
    ],
)
def test_other_lines_are_no_choice(line: str) -> None:
    assert parse_choices(line) == []


@pytest.mark.parametrize(
    ("algorithm", "protocol", "choice", "says"),
    [
        ("", "", RING_LL, ""),
        ("", "", None, ""),
        ("ring", "LL", RING_LL, ""),
        ("allreduce:ring", "LL", RING_LL, ""),
        ("tree,ring", "Simple,LL", RING_LL, ""),
        ("^tree", "", RING_LL, ""),
        ("allreduce:tree", "LL", RING_LL, "asked for allreduce:tree, NCCL ran RING LL"),
        ("ring", "Simple", RING_LL, "asked for Simple, NCCL ran RING LL"),
        ("ring", "LL128", RING_LL, "asked for LL128, NCCL ran RING LL"),
        ("ring", "LL", None, "asked for ring, and NCCL's log does not say what it ran"),
    ],
)
def test_a_candidate_is_what_it_says(algorithm: str, protocol: str, choice: Choice | None, says: str) -> None:
    assert refusal(algorithm, protocol, choice) == says


def test_a_job_of_the_engine() -> None:
    plan = fake_plan()
    job = cuda_allreduce.parse_job(json.dumps(CudaEngine().job(plan, next(iter(plan.schedule())))))
    assert (job.ranks, job.dtype, job.messages[1].bytes) == (2, "float32", 4096)
    assert not job.shared_gpu
    assert not job.allow_ll128


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": 2}, "protocol 1"),
        ({"ranks": 0}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"messages": []}, "at least one message"),
        ({"candidates": []}, "at least one message and one candidate"),
        ({"dtype": "float8"}, "a dtype of bfloat16, float16, float32"),
        ({"modes": ["lazy"]}, "modes of graph, eager"),
        ({"working_sets": []}, "working_sets of warm, cold"),
        ({"messages": [{"name": "m", "bytes": 7, "calls": 1}]}, "whole number of bfloat16"),
        ({"messages": [{"name": "m", "bytes": 8, "calls": 0}]}, "at least one call"),
        ({"messages": [{"name": "m"}]}, "TypeError"),
        ({"surprise": 1}, "surprise"),
        ({"modes": 3}, "TypeError"),
    ],
)
def test_jobs_that_are_none(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cuda_allreduce.parse_job(json.dumps({**JOB, **changes}))


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "{}"])
def test_text_that_is_no_job(text: str) -> None:
    with pytest.raises(ValueError, match="not a job of this worker"):
        cuda_allreduce.parse_job(text)


def test_bfloat16_rounds_to_nearest_even() -> None:
    exact = [1.0, 1.0078125, -3.140625, 2.0**-130, 0.0]
    halfway = np.array([1.00390625, 1.01171875], np.float32)  # between 1 and 1 + 2^-7, between 1 + 2^-7 and 1 + 2^-6
    dtype = DTYPES["bfloat16"]
    assert dtype.decode(dtype.encode(np.array(exact, np.float32))).tolist() == exact
    assert dtype.decode(dtype.encode(halfway)).tolist() == [1.0, 1.015625]


@pytest.mark.parametrize("name", DTYPES)
def test_poison_is_not_a_number(name: str) -> None:
    dtype = DTYPES[name]
    assert np.isnan(dtype.decode(np.full(4 * dtype.bytes, 0xFF, np.uint8))).all()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_order_of_rounded_additions_stays_within_the_bound(name: str, ranks: int) -> None:
    dtype, draw = DTYPES[name], np.random.default_rng(5)

    def rounded(values):
        return dtype.decode(dtype.encode(np.asarray(values, np.float32)))

    values = rounded(draw.standard_normal(ranks * 4096).astype(np.float32)).reshape(ranks, -1)
    bound = error_bound(dtype, ranks, np.abs(values).sum(axis=0))
    ring = values[0]
    for value in values[1:]:
        ring = rounded(ring + value)
    pairs = list(values)
    while len(pairs) > 1:
        pairs = [rounded(a + b) for a, b in zip(pairs[::2], pairs[1::2], strict=False)] + pairs[len(pairs) & ~1 :]
    once = rounded(values.sum(axis=0))
    worst = max(float(np.max(np.abs(result - values.sum(axis=0)) / bound)) for result in (ring, pairs[0], once))
    assert worst <= 1
    assert worst > 0.2  # the bound is of the size of what happens, not far above it


class HostMemory:
    """A device of plain memory."""

    l2_bytes = 1024

    def __init__(self) -> None:
        self.memory = np.zeros(1 << 20, np.uint8)
        self.used = 0

    def allocate(self, nbytes):
        self.used += nbytes
        return self.used - nbytes

    def write(self, address, data):
        self.memory[address : address + data.nbytes] = data

    def read(self, address, nbytes):
        return self.memory[address : address + nbytes].copy()

    def fill(self, address, byte, nbytes):
        self.memory[address : address + nbytes] = byte


def test_buffers_know_right_from_wrong() -> None:
    dtype, device = DTYPES["bfloat16"], HostMemory()
    ranks = [Ranks(rank, 2, None, None) for rank in range(2)]
    pools = [Buffers(device, rank, dtype, 100, 3, seed=9) for rank in ranks]
    pools[0].poison()
    assert "100 of 100 sums wrong" in pools[0].fault([0])
    inputs = [[pool._device.read(pool.pair(slot)[0], 200).tobytes() for slot in range(4)] for pool in pools]
    assert len({raw for rank in inputs for raw in rank}) == 8  # every rank, every slot: different data
    for slot in range(3):
        total = sum(dtype.decode(np.frombuffer(rank[slot], np.uint8)) for rank in inputs)
        device.write(pools[0].pair(slot)[1], dtype.encode(total.astype(np.float32)))
    assert pools[0].fault(range(3)) == ""
    one_rank_only = np.frombuffer(inputs[0][1], np.uint8)
    device.write(pools[0].pair(1)[1], one_rank_only)
    assert "of buffer 1:" in pools[0].fault(range(3))


class Code(int):
    def __new__(cls, value, name):
        code = super().__new__(cls, value)
        code.name = name
        return code


class FakeRuntime:
    """As much of cuda.bindings.runtime as finding out about a machine takes."""

    cudaError_t = SimpleNamespace(cudaErrorInsufficientDriver=Code(35, "cudaErrorInsufficientDriver"))  # noqa: N815

    def __init__(self, driver: int = 13000, count: int = 1, failed: bool = False) -> None:
        self._driver, self._count, self._failed = driver, count, failed

    def cudaDriverGetVersion(self):  # noqa: N802
        return 0, self._driver

    def cudaRuntimeGetVersion(self):  # noqa: N802
        return 0, 13030

    def cudaGetDeviceCount(self):  # noqa: N802
        if not self._failed:
            return 0, self._count
        return Code(35, "cudaErrorInsufficientDriver"), None

    def cudaGetErrorString(self, error):  # noqa: N802
        return 0, b"CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        (None, "no cuda-bindings"),
        (FakeRuntime(driver=0), "no NVIDIA driver answers"),
        (FakeRuntime(driver=12020, failed=True), "insufficient .*driver speaks CUDA 12.2, cuda-bindings is for 13.3"),
        (FakeRuntime(), r"8 ranks need 8 GPUs, one each, and CUDA shows 1 \(CUDA_VISIBLE_DEVICES is '3'\)"),
    ],
)
def test_machines_that_cannot(monkeypatch: pytest.MonkeyPatch, runtime: object, says: str) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(Unusable, match=says):
        open_gpu(3, 8)


def test_a_failed_capture_is_ended_and_its_reason_kept() -> None:
    calls = []

    class Runtime:
        cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

        def __getattr__(self, name):
            return lambda *_: calls.append(name) or (Code(0, ""), None)

    gpu = Gpu.__new__(Gpu)
    gpu._runtime, gpu._stream = Runtime(), 7

    def work() -> None:
        raise Refused("ncclAllReduce: invalid usage")

    with pytest.raises(Refused, match="invalid usage"):
        gpu.capture(work)
    assert calls == ["cudaStreamBeginCapture", "cudaStreamEndCapture"]


def test_a_failed_call_names_itself() -> None:
    gpu = Gpu.__new__(Gpu)
    gpu._runtime = SimpleNamespace(
        cudaMalloc=lambda _: (Code(2, "cudaErrorMemoryAllocation"), None),
        cudaGetErrorString=lambda _: (0, b"out of memory"),
    )
    with pytest.raises(DeviceError, match=r"cudaMalloc: cudaErrorMemoryAllocation \(out of memory\)"):
        gpu.allocate(1 << 60)


def test_libraries_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"does not load: .*no-such-file\.so"):
        Library(str(tmp_path / "no-such-file.so"), tmp_path / "log")
    with pytest.raises(Refused, match="is no libnccl: it lacks 7 symbols, ncclGetVersion first"):
        Library(loaded_path("/libc.so.6"), tmp_path / "log")
    (tmp_path / "torn.so").write_bytes(b"\x7fELF")
    with pytest.raises(Refused, match="does not load"):
        Library(str(tmp_path / "torn.so"), tmp_path / "log")


def test_only_news_of_a_log_are_read(tmp_path: Path) -> None:
    library = Library.__new__(Library)
    library.log, library._read, library._noisy = tmp_path / "log", 0, False
    assert library.news() == ""
    with library.log.open("a") as log:
        log.write("one\n")
        log.flush()
        assert library.news() == "one\n"
        assert not library.logged
        log.write("two\n")
    assert library.logged
    assert library.logged  # once noticed, it stays


def test_the_environment_holds_only_while_a_communicator_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "allreduce:tree")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "before")
    library = SimpleNamespace(number=22809, log=tmp_path / "log")
    with _environment("ring", "LL", library):
        assert (os.environ["NCCL_ALGO"], os.environ["NCCL_PROTO"]) == ("allreduce:ring", "LL")
        assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"]) == ("INFO", str(tmp_path / "log"))
    assert os.environ["NCCL_ALGO"] == "allreduce:tree"
    assert "NCCL_PROTO" not in os.environ
    with _environment("", "", library):  # the default candidate is what the user's environment makes of it
        assert os.environ["NCCL_ALGO"] == "allreduce:tree"
    library.number = 22105
    with _environment("ring", "", library):
        assert os.environ["NCCL_ALGO"] == "ring"


def test_the_wheels_libnccl_is_found_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    for name in [name for name in sys.modules if name == "nvidia" or name.startswith("nvidia.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_nccl() == str(library)
    library.unlink()
    assert find_nccl() == "libnccl.so.2"


def test_a_loaded_library_is_named_by_its_file() -> None:
    assert loaded_path("/libc.so.6").startswith("/")
    assert loaded_path("libnosuch.so") == "libnosuch.so"
