"""Shows toolchains: as a list, one with all that it resolves to, two with what differs. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images.build_plan import BaseKind
from images.differences import Differences
from images.lock import Lock, LockedToolchain, LockedWheel, Resolved
from images.matrix import Toolchain


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "meaning")
    return table


def show_all(toolchains: Iterable[Toolchain]) -> RenderableType:
    """One line a toolchain."""
    table = _table("toolchain", "CUDA", "Python", "torch", "SGLang", "FlashInfer", "meaning")
    for toolchain in toolchains:
        pins = [toolchain.pins.get(name, "-") for name in ("torch", "sglang", "flashinfer-python")]
        table.add_row(toolchain.name, toolchain.cuda, ", ".join(toolchain.pythons), *pins, toolchain.meaning)
    return table


def show_one(toolchain: Toolchain, lock: Lock) -> RenderableType:
    """All that a toolchain resolves to, with sizes."""
    arch = ", ".join(f"{tool} {token}" for tool, token in toolchain.arch.items())
    lines: list[RenderableType] = [
        Text(f"{toolchain.name}: {toolchain.meaning}", style="bold"),
        Text(f"CUDA {toolchain.cuda}, SM120 targets: {arch}"),
        _bases(toolchain, lock),
    ]
    locked = lock.find(toolchain.name, toolchain.python)
    if locked is None:
        return Group(*lines, Text("not locked: run ./inv lock"))
    lines.append(_wheels(locked))
    lines += [Text(_sizes(one)) for python in toolchain.pythons if (one := lock.find(toolchain.name, python))]
    lines += [Text(f"unresolved: {pin}: {why}") for pin, why in locked.unresolved.items()]
    if locked.unresolved:
        lines.append(Text("what the others need is resolved once all of them are; the profile core is whole"))
    return Group(*lines)


def _bases(toolchain: Toolchain, lock: Lock) -> Table:
    table = _table("base", "is", "Python", "CUDA's toolkit", "digest")
    for base in toolchain.bases:
        digest = "of its packages, when it is made"
        if base.kind is BaseKind.REGISTRY:
            found = lock.bases.get(base.reference, Resolved(unresolved="not locked: run ./inv lock"))
            digest = found.value or f"unresolved: {found.unresolved}"
        table.add_row(base.name, f"{base.kind} {base.reference}", base.python, base.cuda or "from wheels", digest)
    return table


def _wheels(locked: LockedToolchain) -> Table:
    table = _table("wheel", "version", "profile")
    table.add_column("MB", justify="right")
    for wheel in sorted(locked.wheels, key=lambda wheel: -wheel.size):
        profile = "core" if wheel.name in locked.core else "full"
        table.add_row(wheel.name, wheel.version, profile, f"{wheel.size / 1e6:,.1f}")
    return table


def _sizes(locked: LockedToolchain) -> str:
    core = [wheel for wheel in locked.wheels if wheel.name in locked.core]
    return f"Python {locked.python}: core {_size(core)} to fetch; full {_size(locked.wheels)}"


def _size(wheels: Sequence[LockedWheel]) -> str:
    return f"{len(wheels)} wheels, {sum(wheel.size for wheel in wheels) / 1e9:.2f} GB"


def show_differences(a: Toolchain, b: Toolchain, found: Differences) -> RenderableType:
    """What differs, in words."""
    table = _table("differs", a.name, b.name, "meaning")
    for row in found.named:
        table.add_row(row.what, row.a or "none", row.b or "none", row.meaning)
    lines: list[RenderableType] = [Text(found.conclusion, style="bold"), table]
    if found.same:
        lines.append(Text(f"the same: {', '.join(found.same)}"))
    if found.further:
        shown = ", ".join(f"{row.what} {row.a} / {row.b}" for row in found.further)
        lines.append(Text(f"{len(found.further)} wheels that come along differ: {shown}"))
    return Group(*lines)


def document(toolchains: Mapping[str, Toolchain], lock: Lock, *, with_wheels: bool) -> dict[str, Any]:
    """The toolchains as a program wants them."""
    return {
        name: {
            **{key: value for key, value in asdict(toolchain).items() if key != "name"},
            **(_locked(toolchain, lock) if with_wheels else {}),
        }
        for name, toolchain in toolchains.items()
    }


def _locked(toolchain: Toolchain, lock: Lock) -> dict[str, Any]:
    references = [base.reference for base in toolchain.bases if base.reference in lock.bases]
    return {
        "locked": {python: asdict(locked) for python, locked in lock.toolchains.get(toolchain.name, {}).items()},
        "digests": {reference: asdict(lock.bases[reference]) for reference in references},
    }


def differences_document(found: Differences) -> dict[str, Any]:
    """What differs, as a program wants it."""
    return asdict(found)
