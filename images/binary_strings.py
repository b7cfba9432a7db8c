"""Versions that binaries carry as text: NVIDIA's compilers, and NCCL. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_TOOL = re.compile(rb"release (\d{1,2}\.\d{1,2}), V(\d{1,2}\.\d{1,2}\.\d{1,4})\b")
"""As every compiler of the toolkit prints for --version: "Cuda compilation tools, release 12.8, V12.8.93"."""
_TARGET = re.compile(rb"\bsm_(\d{2,3}[af]?)\0")
_NCCL = re.compile(rb"NCCL version (\d[\w.]{0,30}) compiled with CUDA (\d{1,2}\.\d{1,2})")
"""As libnccl says when it starts (NCCL's src/init.cc, showVersion)."""
TOOL_STRINGS = {b"release ": _TOOL, b"sm_": _TARGET}
NCCL_STRINGS = {b"NCCL version ": _NCCL}
"""What is looked for in which kind of file: what a pattern must begin with, and the pattern."""
_LEAST_SM = 50
"""CUDA 12 compiles for none below (its release notes), though its compilers still name some."""
_OVERLAP = 128
"""Bytes by which what is searched reaches back: longer than any match."""
_MOST_FOUND = 1000


@dataclass(frozen=True, kw_only=True)
class ToolVersion:
    """What a compiler says it is.

    Attributes:
        release: of the CUDA toolkit, e.g. "12.8".
        build: its own, e.g. "12.8.93".
    """

    release: str
    build: str


class StringFinder:
    """Collects what it recognises in a file that passes by in pieces (a Listener of device_code).

    Args:
        patterns: TOOL_STRINGS or NCCL_STRINGS.
    """

    def __init__(self, patterns: Mapping[bytes, re.Pattern[bytes]]) -> None:
        self._end = b""
        self._patterns = patterns
        self._found: dict[re.Pattern[bytes], set[tuple[bytes, ...]]] = {_TOOL: set(), _TARGET: set(), _NCCL: set()}

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        text = self._end + data
        for prefix, pattern in self._patterns.items():
            found = self._found[pattern]
            if prefix in text and len(found) < _MOST_FOUND:  # a hundred times faster than the pattern where it is rare
                found.update(match.groups() for match in pattern.finditer(text))
        self._end = text[-_OVERLAP:]

    @property
    def tool(self) -> ToolVersion | None:
        """The compiler's version; where a file holds several, as cuBLAS holds its compilers', none is its own."""
        if len(versions := self._found[_TOOL]) != 1:
            return None
        ((release, build),) = versions
        return ToolVersion(release=release.decode(), build=build.decode())

    @property
    def targets(self) -> tuple[str, ...]:
        """SM targets that the file names, e.g. "120a", oldest first."""
        names = [name.decode() for (name,) in self._found[_TARGET]]
        return tuple(sorted((name for name in names if _by_number(name)[0] >= _LEAST_SM), key=_by_number))

    @property
    def nccl(self) -> tuple[str, str] | None:
        """NCCL's version, and the CUDA version that it was compiled with."""
        found: Iterable[tuple[bytes, ...]] = sorted(self._found[_NCCL])
        return next(((version.decode(), cuda.decode()) for version, cuda in found), None)


def _by_number(target: str) -> tuple[int, str]:
    return int(target.rstrip("af")), target
