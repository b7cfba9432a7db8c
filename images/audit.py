"""Audits a target: which device code its libraries hold, whether a GPU runs it, which compilers lie beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from images.capability import Capability, Verdict, verdict
from images.contents import DamagedError, Member
from images.examine import Library, NcclBuild, Tool, examine, merged
from images.targets import Target, TargetKind, find_target, walk
from images.unused import SITE, Unused, read_unused, reason
from lanewise.errors import ExitCode, InputError

__all__ = ["Audit", "CompiledAtRunTime", "Fault", "Library", "NcclBuild", "Tool", "audit", "exit_code"]

Progress = Callable[[int, str], None]
"""Told how many files were looked at, and which comes next."""

_LIBRARY = re.compile(r"\.so(\.\d+)*$|\.(cubin|fatbin|ptx|a|o)$", re.ASCII)
_LOOSE = re.compile(r"\.(cubin|fatbin|ptx)$", re.ASCII)
"""Files of one kernel each; packages hold thousands."""
_SOURCE = re.compile(r"\.cuh?$", re.ASCII)
_SYSTEM_FOLDERS = ("usr/", "opt/nvidia/")
"""Where CUDA's own headers and samples lie; sources there belong to no package."""
_LEAST_PROGRAM_BYTES = 4096
"""No smaller program holds device code."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A file that could not be understood, and why."""

    path: str
    error: str


@dataclass(frozen=True, kw_only=True)
class CompiledAtRunTime:
    """A package whose device code is compiled where it runs: toolkit JIT.

    Attributes:
        package: its folder.
        sources: number of .cu and .cuh files.
        unused: as of a Library.
    """

    package: str
    sources: int
    unused: Unused | None = None


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found.

    Attributes:
        target: what was audited.
        capability: the GPU that was asked for.
        toolchain_cuda: the CUDA version that tools were held against, or "".
        libraries: those with device code.
        others: number of libraries and programs without.
        faults: what could not be understood.
        tools: CUDA's compilers.
        nccl: libnccl, each one there is.
        compiled_at_run_time: packages that bring sources.
    """

    target: Target
    capability: Capability
    toolchain_cuda: str = ""
    libraries: tuple[Library, ...] = ()
    others: int = 0
    faults: tuple[Fault, ...] = ()
    tools: tuple[Tool, ...] = ()
    nccl: tuple[NcclBuild, ...] = ()
    compiled_at_run_time: tuple[CompiledAtRunTime, ...] = ()

    @property
    def missing(self) -> tuple[Library, ...]:
        """Libraries that are used and cannot run."""
        return tuple(library for library in self.libraries if library.missing)

    @property
    def nvcc_missing(self) -> bool:
        """Whether a whole system holds sources to compile, and no nvcc."""
        needs = any(package.unused is None for package in self.compiled_at_run_time)
        return needs and self.target.kind.whole_system and not any(tool.name == "nvcc" for tool in self.tools)


def exit_code(audit: Audit) -> ExitCode | None:
    """FAILED where something could not be understood, else ANSWER_IS_NO where something used cannot run."""
    if audit.faults:
        return ExitCode.FAILED
    return ExitCode.ANSWER_IS_NO if audit.missing or audit.nvcc_missing else None


def audit(name: str, *, capability: Capability, toolchain_cuda: str = "", progress: Progress | None = None) -> Audit:
    """Audit a file, a wheel, a folder, an archive or a container image.

    Args:
        name: path or image.
        capability: the GPU that the code should run on.
        toolchain_cuda: CUDA version, e.g. "12.8.1", that compilers are held against; "" for none.
        progress: is told of every file that is looked at.

    Raises:
        InputError: the target cannot be understood, or is a single file that is damaged or of another kind.
        UnreachableError, LanewiseError: it is an image, and the engine does not answer or refuses.
    """
    target = find_target(name)
    found = _Found(capability=capability, table=read_unused())
    with closing(walk(target, _wanted)) as members:
        for number, member in enumerate(members):
            if progress:
                progress(number, member.path)
            found.look_at(member)
    if target.kind is TargetKind.FILE and not (found.single or found.others):
        error = found.faults[0].error if found.faults else "holds neither device code nor host code"
        raise InputError(
            f"{name[:300]!r} {error}",
            expected="a whole ELF library or program, object, static library, cubin, fatbin or PTX file",
            todo="check the path, or fetch or build the file again",
        )
    return Audit(
        target=target,
        capability=capability,
        toolchain_cuda=toolchain_cuda,
        libraries=tuple(sorted(found.libraries(), key=_worst_and_largest_first)),
        others=found.others,
        faults=tuple(found.faults),
        tools=_with_roles([_held(tool, toolchain_cuda) for tool in found.tools]),
        nccl=tuple(found.nccl),
        compiled_at_run_time=tuple(found.packages()),
    )


def _wanted(path: str, size: int) -> bool:
    name = path.rpartition("/")[2]
    if "." not in name:
        return size >= _LEAST_PROGRAM_BYTES or name == "nvcc"
    return bool(_LIBRARY.search(name) or _SOURCE.search(name))


@dataclass(kw_only=True)
class _Found:
    """What a walk has come upon so far."""

    capability: Capability
    table: Sequence[Unused]
    single: list[Library] = field(default_factory=list)
    loose: dict[tuple[str, str, Unused | None], list[Library]] = field(default_factory=dict)
    sources: Counter[tuple[str, Unused | None]] = field(default_factory=Counter)
    tools: list[Tool] = field(default_factory=list)
    nccl: list[NcclBuild] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    others: int = 0

    def look_at(self, member: Member) -> None:
        if _SOURCE.search(member.name):
            if package := _package(member.path):
                self.sources[package, reason(member.path, self.capability, self.table)] += 1
            return
        try:
            examined = examine(member, capability=self.capability, table=self.table)
        except DamagedError as error:
            self.faults.append(Fault(path=member.path, error=str(error)))
            return
        self.others += examined.known and not examined.library
        self.tools += [examined.tool] if examined.tool else []
        self.nccl += [examined.nccl] if examined.nccl else []
        if examined.library:
            self._keep(examined.library)

    def _keep(self, library: Library) -> None:
        folder, _, name = library.path.rpartition("/")
        if folder and _LOOSE.search(name):
            key = (_package(library.path) or folder, name.rpartition(".")[2], library.unused)
            self.loose.setdefault(key, []).append(library)
        else:
            self.single.append(library)

    def libraries(self) -> list[Library]:
        return self.single + [
            files[0] if len(files) == 1 else self._together(f"{folder}/**/*.{ending}", files)
            for (folder, ending, _), files in self.loose.items()
        ]

    def _together(self, path: str, files: Sequence[Library]) -> Library:
        code = merged(code for file in files for code in file.code)
        return Library(
            path=path,
            size=sum(file.size for file in files),
            code=code,
            verdict=verdict((code.target for code in code), self.capability),
            unused=files[0].unused,
            files=len(files),
        )

    def packages(self) -> list[CompiledAtRunTime]:
        """Where only some of a package's sources are used, those count."""
        used = {package for (package, why) in self.sources if why is None}
        return [
            CompiledAtRunTime(package=package, sources=count, unused=why)
            for (package, why), count in sorted(self.sources.items(), key=lambda item: -item[1])
            if why is None or (why.only_on and package not in used)
        ]


def _package(path: str) -> str:
    """The package that a file belongs to: its first folder, in site-packages if it lies there; none in the system's."""
    inside = SITE.split(path)
    return "" if len(inside) == 1 and path.startswith(_SYSTEM_FOLDERS) else inside[-1].rpartition("/")[0].split("/")[0]


_ORDER = (Verdict.NONE, Verdict.TOOLKIT_JIT, Verdict.DRIVER_JIT, Verdict.NATIVE)


def _worst_and_largest_first(library: Library) -> tuple[bool, int, int]:
    return library.unused is not None, _ORDER.index(library.verdict), -library.size


def _held(tool: Tool, toolchain_cuda: str) -> Tool:
    """A tool held against the toolchain's CUDA version; one that does not tell its own cannot differ."""
    release = ".".join(toolchain_cuda.split(".")[:2])
    return replace(tool, differs=bool(release and tool.release and tool.release != release))


def _with_roles(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Triton's own assemblers named for what they do.

    Where there is a ptxas-blackwell, Triton takes it from compute capability 10.0 on; where there is none, ptxas for
    everything (triton/backends/nvidia/compiler.py, get_ptxas, of triton 3.8.0 and 3.5.1).
    """
    paths = {tool.path for tool in tools}
    return tuple(replace(tool, role=_triton_role(tool, paths)) for tool in tools)


def _triton_role(tool: Tool, paths: set[str]) -> str:
    folder = tool.path.rpartition("/")[0]
    if not folder.endswith("triton/backends/nvidia/bin"):
        return ""
    if tool.name == "ptxas-blackwell":
        return "Triton's, from 10.0 on"
    return "Triton's, below 10.0" if f"{folder}/ptxas-blackwell" in paths else "Triton's"
