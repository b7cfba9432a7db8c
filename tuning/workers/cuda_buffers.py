"""Random inputs and poisoned results on the device, and the reference that sums are held against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .cuda_hub import Ranks
    from .cuda_ways import Bytes, Device

Floats = np.ndarray[Any, np.dtype[np.float64]]
_ALIGNMENT = 256


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """A data type that NCCL sums.

    Attributes:
        bytes: of one element.
        roundoff: unit roundoff u of round-to-nearest: 2^-p for p bits of significand (24, 11, 8).
        nccl: ncclDataType_t.
    """

    name: str
    bytes: int
    roundoff: float
    nccl: int

    def encode(self, values: np.ndarray[Any, np.dtype[np.float32]]) -> Bytes:
        """Round to nearest even, as bytes."""
        if self.name == "bfloat16":
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if self.name == "float16" else np.float32).view(np.uint8)

    def decode(self, raw: Bytes) -> Floats:
        """The numbers, exactly."""
        if self.name == "bfloat16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return raw.view(np.float16 if self.name == "float16" else np.float32).astype(np.float64)


DTYPES = {
    "float32": Dtype(name="float32", bytes=4, roundoff=2.0**-24, nccl=7),
    "float16": Dtype(name="float16", bytes=2, roundoff=2.0**-11, nccl=6),
    "bfloat16": Dtype(name="bfloat16", bytes=2, roundoff=2.0**-8, nccl=9),
}


def error_bound(dtype: Dtype, ranks: int, magnitudes: Floats) -> Floats:
    """How far a right sum may be from the exact sum of the rounded inputs.

    Any order of n - 1 additions, each rounded to nearest with unit roundoff u, stays within g x sum |x_r| with
    g = (n - 1) u / (1 - (n - 1) u) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
    NCCL adds bfloat16 and float16 pairs with __hadd2 and passes the rounded sum on to the next rank (its
    src/device/reduce_kernel.h), so u is the data type's own. A kernel that adds in float32 and rounds once is closer.
    """
    steps = (ranks - 1) * dtype.roundoff
    return steps / (1 - steps) * magnitudes


class Buffers:
    """Inputs and results of one message size on the device: `slots` pairs, and one more for the aligning call.

    All slots' inputs differ: slot i holds elements i, i + 1, ... of one long random vector, whose sum over the ranks is
    computed once, on the host. Every rank draws every rank's vector, so the reference needs no communication that could
    be wrong too.
    """

    def __init__(self, device: Device, ranks: Ranks, dtype: Dtype, elements: int, slots: int, seed: int) -> None:
        self.elements, self.slots, self.nbytes = elements, slots, elements * dtype.bytes
        self._device, self._dtype = device, dtype
        self._stride = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.total = self._stride * (slots + 1)
        self.inputs, self.results = device.allocate(self.total), device.allocate(self.total)
        length = elements + slots
        self._sum, magnitudes = np.zeros(length), np.zeros(length)
        for rank in range(ranks.size):
            drawn = dtype.encode(np.random.default_rng((seed, elements, rank)).standard_normal(length, np.float32))
            self._sum += dtype.decode(drawn)
            magnitudes += np.abs(dtype.decode(drawn))
            if rank == ranks.rank:
                pool = np.zeros((slots + 1, self._stride), np.uint8)
                for slot in range(slots + 1):
                    pool[slot, : self.nbytes] = drawn[slot * dtype.bytes :][: self.nbytes]
                device.write(self.inputs, pool.reshape(-1))
        self._bound = error_bound(dtype, ranks.size, magnitudes)

    def pair(self, slot: int) -> tuple[int, int]:
        """Addresses of one slot's input and result."""
        return self.inputs + slot * self._stride, self.results + slot * self._stride

    def poison(self) -> None:
        """Fill all results with 0xFF, a NaN in every data type, so that a result never written cannot pass."""
        self._device.fill(self.results, 0xFF, self.total)

    def read(self, slot: int) -> Bytes:
        """One slot's result."""
        return self._device.read(self.pair(slot)[1], self.nbytes)

    def fault(self, slots: Iterable[int], digest: Any = None) -> str:  # noqa: ANN401 - hashlib names no type
        """What is wrong with these slots' results on this rank, or ""; their bytes go into `digest`."""
        for slot in slots:
            raw = self.read(slot)
            if digest is not None:
                digest.update(raw.tobytes())
            got, wanted = self._dtype.decode(raw), self._sum[slot:][: self.elements]
            # a NaN compares false, so it counts as wrong
            wrong = ~(np.abs(got - wanted) <= self._bound[slot:][: self.elements])
            if wrong.any():
                at = int(np.argmax(wrong))
                where = f"first at element {at} of buffer {slot}: {got[at]:.9g} instead of {wanted[at]:.9g}"
                return f"{int(wrong.sum())} of {wrong.size} sums wrong, {where}"
        return ""
