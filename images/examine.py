"""Examines one file: its device code and whether a GPU can run it; a compiler's version; what NCCL was built with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from images.binary_strings import NCCL_STRINGS, TOOL_STRINGS, StringFinder
from images.capability import Capability, CodeTarget, Verdict, verdict
from images.contents import Buffer, Member, Stream
from images.device_code import DeviceCode, read_device_code
from images.fatbin import Entry
from images.unused import Unused, reason

_PROGRAM = re.compile(r"(?:^|^bin/|/bin/)(nvcc|ptxas|ptxas-blackwell|cicc)$", re.ASCII)
_COMPILER_LIBRARY = re.compile(r"(?:^|/)(libnvvm|libnvrtc)\.so(?:\.\d+)*$", re.ASCII)
_NCCL = re.compile(r"(?:^|/)libnccl\.so(?:\.\d+)*$", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Code:
    """Device code of one target in a library.

    Attributes:
        target: what it was compiled for.
        count: how many entries.
        bytes: their size in the file.
    """

    target: CodeTarget
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Library:
    """A file with device code, or a package's loose cubins and PTX files together.

    Attributes:
        path: within the target; of several files, a pattern.
        size: bytes.
        code: what runs as it is; of a file that has only relocatable code, that.
        relocatable: further copies for device linking, which never run.
        verdict: how the code comes to run on the GPU that was asked for.
        unused: why nothing of it is used on such a GPU; None where it counts as used.
        files: how many files it stands for.
    """

    path: str
    size: int
    code: tuple[Code, ...]
    relocatable: tuple[Code, ...] = ()
    verdict: Verdict
    unused: Unused | None = None
    files: int = 1

    @property
    def device_bytes(self) -> int:
        """How much of it is device code, relocatable copies included."""
        return sum(code.bytes for code in (*self.code, *self.relocatable))

    @property
    def missing(self) -> bool:
        """Whether it is used and cannot run."""
        return self.unused is None and self.verdict is Verdict.NONE


@dataclass(frozen=True, kw_only=True)
class NcclBuild:
    """A libnccl.

    Attributes:
        path: within the target.
        version: NCCL's, e.g. "2.27.5".
        cuda: the CUDA version that it was compiled with, e.g. "12.9".
    """

    path: str
    version: str
    cuda: str


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A compiler of CUDA's toolkit.

    Attributes:
        path: within the target.
        name: nvcc, ptxas, ptxas-blackwell, cicc, libnvvm or libnvrtc.
        release: of the toolkit it belongs to, e.g. "12.8"; "" where the file does not tell.
        build: its own version, e.g. "12.8.93"; "" likewise.
        targets: SM targets that it names, e.g. "120a"; only ptxas' are a list of what it can do.
        role: what uses it, where that is known.
        differs: whether its release is another than the toolchain's.
    """

    path: str
    name: str
    release: str = ""
    build: str = ""
    targets: tuple[str, ...] = ()
    role: str = ""
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What one file is; all None for one without device code that is no tool.

    Attributes:
        known: whether it is of a kind that can hold device code.
        library: its device code, if it has any.
        tool: the compiler that it is.
        nccl: the libnccl that it is.
    """

    known: bool
    library: Library | None = None
    tool: Tool | None = None
    nccl: NcclBuild | None = None


def examine(member: Member, *, capability: Capability, table: Sequence[Unused]) -> Examined:
    """Read a file's headers, and of compilers and NCCL their text.

    Raises:
        DamagedError: it cannot be read, or does not hold what its headers promise.
    """
    named = _PROGRAM.search(member.path) or _COMPILER_LIBRARY.search(member.path)
    finder = StringFinder(TOOL_STRINGS) if named else StringFinder(NCCL_STRINGS) if _NCCL.search(member.path) else None
    with member.open() as content:
        code = read_device_code(content, member.size, name=member.name, listener=finder)
        if code:
            _read_to_the_end(content)
    nccl = finder.nccl if finder and not named else None
    return Examined(
        known=code is not None,
        library=_library(member, code, capability, table) if code and code.relevant else None,
        tool=_tool(member.path, named[1], finder) if named and finder else None,
        nccl=NcclBuild(path=member.path, version=nccl[0], cuda=nccl[1]) if nccl else None,
    )


def _read_to_the_end(content: Buffer | Stream) -> None:
    """A stream's checksum is checked at its end."""
    while not isinstance(content, Buffer) and content.read(1 << 20):
        pass


def _library(member: Member, code: DeviceCode, capability: Capability, table: Sequence[Unused]) -> Library:
    return Library(
        path=member.path,
        size=member.size,
        code=_summed(code.relevant),
        relocatable=_summed(code.relocatable if code.executable or code.embedded else ()),
        verdict=verdict({entry.target for entry in code.relevant}, capability),
        unused=reason(member.path, capability, table),
    )


def _summed(entries: Iterable[Entry]) -> tuple[Code, ...]:
    return merged(Code(target=entry.target, count=1, bytes=entry.size) for entry in entries)


def merged(parts: Iterable[Code]) -> tuple[Code, ...]:
    """One Code a target, in the targets' order."""
    counts: Counter[CodeTarget] = Counter()
    sizes: Counter[CodeTarget] = Counter()
    for part in parts:
        counts[part.target] += part.count
        sizes[part.target] += part.bytes
    return tuple(Code(target=target, count=counts[target], bytes=sizes[target]) for target in sorted(counts))


def _tool(path: str, name: str, finder: StringFinder) -> Tool:
    version = finder.tool
    return Tool(
        path=path,
        name=name,
        release=version.release if version else "",
        build=version.build if version else "",
        targets=finder.targets if name.startswith("ptxas") else (),
    )
