"""One GPU, through cuda-bindings: memory, one stream with two marks on it, graphs. Engine `cuda`'s hands."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .cuda_ways import Bytes, DeviceError, Unusable, Work
else:
    from cuda_ways import DeviceError, Unusable

_POLL_SECONDS = 50e-6
_WATCH_SECONDS = 0.2


class Gpu:
    """The device of cuda_measuring.py, by the CUDA runtime API."""

    def __init__(self, index: int) -> None:
        self._runtime: Any = importlib.import_module("cuda.bindings.runtime")
        self.index = index
        self._do("cudaSetDevice", index)
        self.l2_bytes = int(
            self._do("cudaDeviceGetAttribute", self._runtime.cudaDeviceAttr.cudaDevAttrL2CacheSize, index)
        )
        # Its own stream, and one that does not wait for the default stream, which cannot be captured.
        self._stream = self._do("cudaStreamCreateWithFlags", self._runtime.cudaStreamNonBlocking)
        self.stream = int(self._stream)
        self._marks = {which: self._do("cudaEventCreate") for which in ("start", "end")}

    def _do(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - cuda-bindings has no stubs
        error, *values = getattr(self._runtime, name)(*arguments)
        if int(error):
            raise DeviceError(f"{name}: {error_text(self._runtime, error)}")
        return values[0] if len(values) == 1 else values

    def about(self) -> dict[str, object]:
        """Names and versions, e.g. "13.0" of the driver."""
        return {
            "gpu": self._do("cudaGetDeviceProperties", self.index).name.decode(),
            "cuda_driver": version_text(self._do("cudaDriverGetVersion")),
            "cuda_runtime": version_text(self._do("cudaRuntimeGetVersion")),
        }

    def allocate(self, nbytes: int) -> int:
        """See Device. Nothing is ever freed: the process's end does that."""
        return int(self._do("cudaMalloc", nbytes))

    def write(self, address: int, data: Bytes) -> None:
        """See Device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._do("cudaMemcpyAsync", address, data.ctypes.data, data.nbytes, kind, self._stream)
        self._do("cudaStreamSynchronize", self._stream)

    def read(self, address: int, nbytes: int) -> Bytes:
        """See Device."""
        data = np.empty(nbytes, np.uint8)
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._do("cudaMemcpyAsync", data.ctypes.data, address, nbytes, kind, self._stream)
        self._do("cudaStreamSynchronize", self._stream)
        return data

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """See Device."""
        self._do("cudaMemsetAsync", address, byte, nbytes, self._stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """See Device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._do("cudaMemcpyAsync", target, source, nbytes, kind, self._stream)

    def mark(self, which: str, *, captured: bool) -> None:
        """See Device. In a graph the event becomes a node of its own, recorded anew at every replay."""
        flag = self._runtime.cudaEventRecordExternal if captured else self._runtime.cudaEventRecordDefault
        self._do("cudaEventRecordWithFlags", self._marks[which], self._stream, flag)

    def wait(self, watch: Work) -> None:
        """See Device. It polls, so that a fault that NCCL notices ends a wait which otherwise nothing would end."""
        look = time.monotonic() + _WATCH_SECONDS
        not_ready = self._runtime.cudaError_t.cudaErrorNotReady
        while True:
            (error,) = self._runtime.cudaStreamQuery(self._stream)
            if not int(error):
                return
            if error != not_ready:
                raise DeviceError(f"on the stream: {error_text(self._runtime, error)}")
            if time.monotonic() > look:
                watch()
                look = time.monotonic() + _WATCH_SECONDS
            time.sleep(_POLL_SECONDS)

    def elapsed_us(self) -> float:
        """See Device."""
        return float(self._do("cudaEventElapsedTime", self._marks["start"], self._marks["end"])) * 1000

    def capture(self, work: Work, mode: str = "ThreadLocal") -> Callable[[], None]:
        """Capture into a graph, instantiate and upload it; what launches it.

        Thread-local, so that CUDA calls of NCCL's and torch's own threads do not break the capture. nccl-tests says why
        it matters: connections made during capture allocate memory.
        """
        graph = self._captured(work, getattr(self._runtime.cudaStreamCaptureMode, f"cudaStreamCaptureMode{mode}"))
        executable = self._do("cudaGraphInstantiate", graph, 0)
        self._do("cudaGraphUpload", executable, self._stream)
        launch, stream = self._runtime.cudaGraphLaunch, self._stream

        def replay() -> None:
            (error,) = launch(executable, stream)
            if int(error):
                raise DeviceError(f"cudaGraphLaunch: {error_text(self._runtime, error)}")

        return replay

    def _captured(self, work: Work, mode: object) -> Any:  # noqa: ANN401 - as above
        self._do("cudaStreamBeginCapture", self._stream, mode)
        try:
            work()
        except BaseException:
            self._runtime.cudaStreamEndCapture(
                self._stream
            )  # what failed is told; that the capture did too is not news
            raise
        return self._do("cudaStreamEndCapture", self._stream)


def open_gpu(index: int, needed: int) -> Gpu:
    """The GPU of this rank; Unusable says why there is none.

    Args:
        index: as CUDA numbers the GPUs it shows, so CUDA_VISIBLE_DEVICES decides.
        needed: how many GPUs the launch wants.
    """
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise Unusable(f"this Python has no cuda-bindings, which the cuda engine's ranks need ({error})") from error
    _, driver = runtime.cudaDriverGetVersion()
    if not driver:
        raise Unusable("no NVIDIA driver answers here (no libcuda.so.1, or no GPU in this container)")
    failed, count = runtime.cudaGetDeviceCount()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    if int(failed):
        text = f"CUDA does not start: {error_text(runtime, failed)}"
        if failed == runtime.cudaError_t.cudaErrorInsufficientDriver:
            hint = f"; the driver speaks CUDA {version_text(driver)}, cuda-bindings is for {runtime_version(runtime)}"
        raise Unusable(text + hint)
    if count < needed:
        raise Unusable(f"{needed} ranks need {needed} GPUs, one each, and CUDA shows {count}{hint}")
    return Gpu(index)


def runtime_version(runtime: Any) -> str:  # noqa: ANN401 - as above
    """CUDA release of the runtime that cuda-bindings holds."""
    error, version = runtime.cudaRuntimeGetVersion()
    return "?" if int(error) else version_text(version)


def version_text(version: int) -> str:
    """13000 is "13.0"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def error_text(runtime: Any, error: Any) -> str:  # noqa: ANN401 - as above
    """An error's name and what CUDA says of it."""
    _, text = runtime.cudaGetErrorString(error)
    return f"{error.name} ({text.decode() if isinstance(text, bytes) else text})"
