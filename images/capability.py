"""Which device code runs on which GPU: the rules of CUDA's compatibility, as pure functions.

Sources, all NVIDIA's:
- CUDA Programming Guide 13, "The CUDA platform": a cubin runs on GPUs of the same major and the same or a higher minor
  compute capability; PTX is compiled by the driver for any GPU of the same or a higher compute capability.
  https://docs.nvidia.com/cuda/cuda-programming-guide/01-introduction/cuda-platform.html
- The same guide, "Compute Capabilities", Feature Set Compiler Targets: what was compiled for an architecture-specific
  target (suffix a) runs on that compute capability alone, for a family-specific target (suffix f) on it and on higher
  minors of the same family; cubins and PTX alike.
  https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
- CUDA C++ Programming Guide 12, "Binary Compatibility": neither between desktop and Tegra, nor among Tegra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from lanewise.errors import InputError

_CAPABILITY = re.compile(r"([1-9][0-9]?)\.([0-9])", re.ASCII)
_TEGRA = frozenset({32, 53, 62, 72, 87, 101, 110})
"""SM numbers of Tegra GPUs (https://developer.nvidia.com/cuda-gpus, Jetson and Drive)."""


@dataclass(frozen=True, kw_only=True, order=True)
class Capability:
    """A GPU's compute capability, such as 12.0."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From what a person writes, e.g. "12.0".

        Raises:
            InputError: it is no compute capability.
        """
        if not (found := _CAPABILITY.fullmatch(text)):
            raise InputError(
                f"{text[:40]!r} is no compute capability",
                expected="major and minor with a dot, e.g. 12.0 for an RTX PRO 6000 Blackwell",
                todo="correct it; nvidia-smi --query-gpu=compute_cap --format=csv tells a GPU's",
            )
        return cls(major=int(found[1]), minor=int(found[2]))

    @property
    def sm(self) -> int:
        """As NVIDIA's tools number it: 120 for 12.0."""
        return self.major * 10 + self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


SM120 = Capability(major=12, minor=0)
"""The GPUs that this toolkit is for: RTX PRO 6000 Blackwell, RTX 5090."""


class CodeKind(StrEnum):
    """What device code is: finished machine code, or text that the driver still has to compile."""

    SASS = "SASS"
    PTX = "PTX"


@dataclass(frozen=True, kw_only=True, order=True)
class CodeTarget:
    """What device code was compiled for.

    Attributes:
        sm: SM number, e.g. 120.
        suffix: "" portable, "a" this architecture only, "f" this family only.
        kind: SASS or PTX.
    """

    sm: int
    suffix: str = ""
    kind: CodeKind = CodeKind.SASS

    def __str__(self) -> str:
        """As nvcc's options name it: sm_120a for SASS, compute_120a for PTX."""
        return f"{'sm' if self.kind is CodeKind.SASS else 'compute'}_{self.sm}{self.suffix}"


class Verdict(StrEnum):
    """How code comes to run on a GPU, the best way first."""

    NATIVE = "native"
    DRIVER_JIT = "driver JIT"
    TOOLKIT_JIT = "toolkit JIT"
    NONE = "none"


def verdict(targets: Iterable[CodeTarget], capability: Capability) -> Verdict:
    """The best way in which any of these targets runs: native, driver JIT or none.

    Toolkit JIT is never the answer here: it is a property of sources, not of compiled code.
    """
    fitting = {target.kind for target in targets if runs(target, capability)}
    if CodeKind.SASS in fitting:
        return Verdict.NATIVE
    return Verdict.DRIVER_JIT if fitting else Verdict.NONE


def runs(target: CodeTarget, capability: Capability) -> bool:
    """Whether a GPU of this capability runs the code, the driver compiling it first if it is PTX."""
    if target.suffix == "a":
        return target.sm == capability.sm
    if target.kind is CodeKind.PTX and not target.suffix:
        return target.sm <= capability.sm
    same_major = target.sm // 10 == capability.major
    return target.sm == capability.sm or (same_major and target.sm < capability.sm and not _tegra(target, capability))


def _tegra(target: CodeTarget, capability: Capability) -> bool:
    return not _TEGRA.isdisjoint((target.sm, capability.sm))
