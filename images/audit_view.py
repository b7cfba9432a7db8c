"""Shows an audit: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images.audit import Audit, CompiledAtRunTime, Library
from images.capability import Verdict
from images.examine import Code
from lanewise.talk import printable

_STYLES = {
    Verdict.NATIVE: "green",
    Verdict.DRIVER_JIT: "yellow",
    Verdict.TOOLKIT_JIT: "yellow",
    Verdict.NONE: "bold red",
}
_MEGABYTE = 1e6
_MOST_FAULTS = 20


def show(audit: Audit) -> RenderableType:
    """The verdict, then what it rests on."""
    used = [library for library in audit.libraries if library.unused is None]
    unused = [library for library in audit.libraries if library.unused is not None]
    parts: list[RenderableType] = [headline(audit)]
    if used:
        parts.append(_libraries(used))
    if unused:
        parts += ["", Text(f"not used on {audit.capability}:"), _libraries(unused), *_reasons(unused)]
    if audit.compiled_at_run_time:
        parts += ["", *map(_package, audit.compiled_at_run_time)]
    parts += [Text(printable(f"{n.path}: NCCL {n.version}, compiled with CUDA {n.cuda}")) for n in audit.nccl]
    if audit.tools:
        parts += ["", _tools(audit)]
    parts += [Text(printable(f"damaged: {f.path} {f.error}"), style="bold red") for f in audit.faults[:_MOST_FAULTS]]
    if more := len(audit.faults) - _MOST_FAULTS:
        parts += [Text(f"and {more:,} more damaged files (all of them: --json)")] if more > 0 else []
    return Group(*parts, Text(_summary(audit), style="dim"))


def headline(audit: Audit) -> Text:
    """The verdict in one line."""
    text = Text(printable(f"{audit.target.name} ({audit.target.kind}), compute capability {audit.capability}: "))
    text.append_text(_verdict(audit))
    if audit.faults:
        text.append(f"; {_count(len(audit.faults), 'damaged file')}", style="bold red")
    return text


def _verdict(audit: Audit) -> Text:
    if audit.missing:
        size = _megabytes(sum(library.size for library in audit.missing))
        return Text(f"{_count(len(audit.missing), 'library')} in use without code, {size} MB", style="bold red")
    packages = [package.package for package in audit.compiled_at_run_time if package.unused is None]
    at_run_time = printable(f"; compiled at run time: {', '.join(packages)}") if packages else ""
    if audit.nvcc_missing:
        return Text(f"no nvcc, which is needed{at_run_time}", style="bold red")
    verdicts = {library.verdict for library in audit.libraries if library.unused is None}
    if Verdict.DRIVER_JIT in verdicts:
        return Text(f"all that is in use runs, some of it compiled by the driver first{at_run_time}", style="yellow")
    if verdicts:
        return Text(f"all that is in use runs natively{at_run_time}", style="bold green")
    return Text(f"no compiled device code in use{at_run_time}")


def _summary(audit: Audit) -> str:
    whole = sum(library.size for library in audit.libraries)
    device = sum(library.device_bytes for library in audit.libraries)
    unused = sum(library.size for library in audit.libraries if library.unused is not None)
    files = _count(sum(library.files for library in audit.libraries), "file")
    sizes = (
        f"{_megabytes(whole)} MB, {_megabytes(device)} MB of it device code, {_megabytes(unused)} MB in files not used"
    )
    return f"{files} with device code: {sizes}; {audit.others:,} libraries and programs without"


def _table(*headings: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def _libraries(libraries: Sequence[Library]) -> Table:
    table = _table("verdict", "library", "MB", "device MB", "code", right=("MB", "device MB"))
    for library in libraries:
        name = printable(library.path) + (f" ({library.files:,} files)" if library.files > 1 else "")
        table.add_row(
            Text(str(library.verdict), style=_STYLES[library.verdict]),
            Text(name),
            _megabytes(library.size),
            _megabytes(library.device_bytes),
            Text(_codes(library.code)),
        )
    return table


def _codes(codes: Iterable[Code]) -> str:
    return ", ".join(f"{code.target} x{code.count}" if code.count > 1 else str(code.target) for code in codes)


def _reasons(libraries: Sequence[Library]) -> list[Text]:
    whys = dict.fromkeys((row.why, row.paths) for library in libraries if (row := library.unused))
    return [Text(f"  {', '.join(paths)}: {why}", style="dim") for why, paths in whys]


def _package(package: CompiledAtRunTime) -> Text:
    sources = _count(package.sources, "CUDA source")
    text = f"{package.package}: {Verdict.TOOLKIT_JIT}, {sources} compiled at run time, which needs nvcc"
    return Text(printable(text) + (f" (not used: {package.unused.why})" if package.unused else ""))


def _tools(audit: Audit) -> Table:
    against = f"against CUDA {audit.toolchain_cuda}" if audit.toolchain_cuda else ""
    major = audit.capability.major
    table = _table("tool", "version", against, f"knows of {major}.x", "path")
    for tool in audit.tools:
        judged = "differs" if tool.differs else "same" if audit.toolchain_cuda and tool.release else ""
        table.add_row(
            tool.name + (f" ({tool.role})" if tool.role else ""),
            tool.build or "unknown",
            Text(judged, style="yellow" if tool.differs else ""),
            " ".join(target for target in tool.targets if int(target.rstrip("af")) // 10 == major),
            Text(printable(tool.path)),
        )
    return table


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:,.1f}"


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def document(audit: Audit) -> dict[str, Any]:
    """For --json; sizes in bytes."""
    return {
        "target": audit.target.name,
        "kind": str(audit.target.kind),
        "capability": str(audit.capability),
        "toolchain_cuda": audit.toolchain_cuda or None,
        "missing": [library.path for library in audit.missing],
        "nvcc_missing": audit.nvcc_missing,
        "libraries": [_library_document(library) for library in audit.libraries],
        "libraries_without_device_code": audit.others,
        "compiled_at_run_time": [
            {"package": package.package, "sources": package.sources, "unused": package.unused and package.unused.why}
            for package in audit.compiled_at_run_time
        ],
        "nccl": [{"path": build.path, "version": build.version, "cuda": build.cuda} for build in audit.nccl],
        "tools": [{name: getattr(tool, name) for name in tool.__dataclass_fields__} for tool in audit.tools],
        "damaged": [{"path": fault.path, "error": fault.error} for fault in audit.faults],
    }


def _library_document(library: Library) -> dict[str, Any]:
    return {
        "path": library.path,
        "files": library.files,
        "bytes": library.size,
        "device_bytes": library.device_bytes,
        "verdict": str(library.verdict),
        "unused": library.unused and {"why": library.unused.why, "source": library.unused.source},
        "code": _codes_document(library.code),
        "relocatable": _codes_document(library.relocatable),
    }


def _codes_document(codes: Iterable[Code]) -> list[dict[str, Any]]:
    return [
        {
            "target": str(code.target),
            "sm": code.target.sm,
            "suffix": code.target.suffix,
            "kind": str(code.target.kind),
            "count": code.count,
            "bytes": code.bytes,
        }
        for code in codes
    ]
