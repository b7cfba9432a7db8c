"""torch's own allreduces for engine `cuda`: torch.distributed, and one-shot and two-shot over symmetric memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cuda_gpu import Gpu
    from .cuda_hub import Ranks
    from .cuda_nccl import Library, loaded_path, parse_choices
    from .cuda_ways import Choice, Refused, Way, Work
else:
    from cuda_nccl import loaded_path, parse_choices
    from cuda_ways import Refused

Call = Callable[[Any, Any], None]
_SYMMETRIC_ALIGNMENT = 16
"""Bytes: torch refuses sizes that are no multiple of 4, and an odd size takes a slower path than the model's."""


class TorchRanks:
    """torch in this rank's process, working on the GPU and the stream that all other candidates use."""

    def __init__(self, gpu: Gpu, ranks: Ranks, dtype: str, elements: int) -> None:
        # Symmetric memory asks for NVLink multicast objects wherever it can get them; one-shot and two-shot use none.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        self.torch: Any = importlib.import_module("torch")
        self.version = str(self.torch.__version__)
        library = loaded_path("/libnccl.so")
        self.nccl = library if Path(library).is_file() else ""  # "": linked into torch, so it cannot be asked anything
        self.device = self.torch.device("cuda", gpu.index)
        self.torch.cuda.set_device(self.device)
        self.stream = self.torch.cuda.ExternalStream(gpu.stream, device=self.device)
        self.torch.cuda.set_stream(self.stream)
        self.dtype = getattr(self.torch, dtype)
        self._ranks, self._elements = ranks, elements
        self._group: Any = None

    def open(self, kind: str, library: Library | None, variant: str = "") -> Way:
        """One of torch's ways; raises Refused with torch's own words. Collective."""
        try:
            if kind == "torch_distributed":
                self._join()
                distributed: Any = self.torch.distributed
                return TorchWay(self, lambda _, receive: distributed.all_reduce(receive), library, in_place=True)
            if kind == "symm_mem" and variant in ("one_shot", "two_shot"):
                self._join()
                aligned = _SYMMETRIC_ALIGNMENT // self.dtype.itemsize
                return TorchWay(self, self._symmetric(variant), None, in_place=False, granularity=aligned)
        except Exception as error:
            raise Refused(in_words(error)) from error
        raise Refused(f"this worker knows no {kind} {variant}".rstrip())

    def _join(self) -> None:
        if self._group is None:
            distributed = self.torch.distributed
            store = distributed.FileStore(os.environ["TMPDIR"] + "/torch-store", self._ranks.size)
            distributed.init_process_group(
                "nccl", store=store, rank=self._ranks.rank, world_size=self._ranks.size, device_id=self.device
            )
            self._group = distributed.group.WORLD

    def _symmetric(self, variant: str) -> Call:
        """The calls that engines make: SGLang copies in, reduces and copies out; one-shot can copy in by itself."""
        symmetric = importlib.import_module("torch.distributed._symmetric_memory")
        buffer = symmetric.empty(self._elements, dtype=self.dtype, device=self.device)
        symmetric.rendezvous(buffer, self._group)
        operations, name = self.torch.ops.symm_mem, self._group.group_name

        def one_shot(send: Any, receive: Any) -> None:  # noqa: ANN401 - tensors
            operations.one_shot_all_reduce_copy_out(buffer[: send.numel()], send, "sum", name, receive)

        def two_shot(send: Any, receive: Any) -> None:  # noqa: ANN401 - tensors
            part = buffer[: send.numel()]
            part.copy_(send)
            operations.two_shot_all_reduce_(part, "sum", name)
            receive.copy_(part)

        return one_shot if variant == "one_shot" else two_shot


class TorchWay:
    """See Way: an operation on tensors that lie in the worker's own buffers."""

    bitwise = False

    def __init__(
        self, ranks: TorchRanks, operation: Call, library: Library | None, *, in_place: bool, granularity: int = 1
    ) -> None:
        self.in_place, self.granularity = in_place, granularity
        self._ranks, self._operation, self._library = ranks, operation, library
        self._tensor = cache(self._make_tensor)

    @property
    def library_version(self) -> str:
        """See Way."""
        return "" if self._library is None else self._library.version

    @property
    def logged(self) -> bool:
        """See Way."""
        return self._library is not None and self._library.logged

    def _make_tensor(self, address: int, elements: int) -> Any:  # noqa: ANN401 - a tensor
        torch = self._ranks.torch
        memory = _Memory(address, elements, self._ranks.dtype.itemsize)
        return torch.as_tensor(memory, device=self._ranks.device).view(self._ranks.dtype)

    def call(self, send: int, receive: int, elements: int) -> None:
        """See Way."""
        try:
            self._operation(self._tensor(send, elements), self._tensor(receive, elements))
        except Exception as error:
            raise Refused(in_words(error)) from error

    def capture(self, work: Work) -> Work:
        """See Way."""
        torch = self._ranks.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._ranks.stream, capture_error_mode="thread_local"):
                work()
        except Refused:
            raise
        except Exception as error:
            raise Refused(in_words(error)) from error
        replay: Work = graph.replay
        return replay

    def choices(self) -> list[Choice]:
        """See Way."""
        return [] if self._library is None else parse_choices(self._library.news())

    def refuses(self, choice: Choice | None) -> str:  # noqa: ARG002 - see Way
        """See Way: whatever torch lets NCCL choose is what this candidate stands for."""
        return ""

    def watch(self) -> None:
        """See Way: torch's own watchdog thread ends the process where NCCL reports a fault."""


class _Memory:
    """Memory as torch.as_tensor takes it (the CUDA array interface, version 3), as integers or float32 of its width."""

    def __init__(self, address: int, elements: int, itemsize: int) -> None:
        kind = "<f4" if itemsize == 4 else "<i2"
        self.__cuda_array_interface__ = {"shape": (elements,), "typestr": kind, "data": (address, False), "version": 3}


def in_words(error: BaseException) -> str:
    """An exception's type and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
