"""What was read of a set of packages, once: enough for every rule, and nothing of it was imported or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from images.examine import Library, NcclBuild

_TOP_LEVEL = {
    "flashinfer-python": "flashinfer",
    "sglang-kernel": "sgl_kernel",
    "sgl-kernel": "sgl_kernel",
    "sgl-deep-ep": "deep_ep",
    "sgl-deep-gemm": "deep_gemm",
    "sgl-flash-mla": "flash_mla",
    "flash-attn-4": "flash_attn",
    "nvidia-cutlass-dsl-libs-base": "nvidia_cutlass_dsl",
    "nvidia-nccl-cu12": "nvidia/nccl",
    "nvidia-nccl-cu13": "nvidia/nccl",
}
"""Where a distribution puts its files, if not under its own name."""


def top_level(distribution: str) -> str:
    """The folder in site-packages that a distribution owns."""
    return _TOP_LEVEL.get(distribution, distribution.replace("-", "_"))


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Sources, libraries and versions of packages; paths are as in site-packages.

    Attributes:
        texts: source by path, of the files that rules ask for.
        libraries: audited libraries by path, of those that rules ask for.
        versions: distribution (normalised name) to version.
        nccl: the libnccl that was found.
        unreadable: distribution or path to what is wrong with it.
        paths: every path that the packages hold.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, Library] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    nccl: NcclBuild | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()

    @cached_property
    def _all(self) -> tuple[str, ...]:
        return tuple(sorted({*self.paths, *self.texts, *self.libraries}))

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Paths that match a glob (`*` also matches `/`), sorted."""
        if not any(c in pattern for c in "*?["):
            return (pattern,) if pattern in self.texts or pattern in self.paths or pattern in self.libraries else ()
        return tuple(path for path in self._all if fnmatchcase(path, pattern))

    def fault_of(self, pattern: str) -> str:
        """Why the package that a path belongs to cannot be read; "" where it can."""
        for what, reason in self.unreadable.items():
            if what == pattern or fnmatchcase(what, pattern) or pattern.startswith(f"{top_level(what)}/"):
                return f"{what}: {reason}"
        return ""
