"""Decides which components of an image are rebuilt from source, and why; for the others the index's wheels will do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from packaging.version import Version

from images.build_plan import Base, SourceKind
from images.components import Component, read_components
from images.matrix import Toolchain
from images.patching import patches_for
from images.stock import Stock
from lanewise.errors import InputError

NVCC = "nvidia-cuda-nvcc"
"""Of CUDA 13. CUDA 12's wheel of this name (-cu12) holds ptxas, libnvvm and headers, but no nvcc."""


class Rebuild(StrEnum):
    """What is rebuilt where no components are named."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is rebuilt.

    Attributes:
        reasons: component to why it is rebuilt.
        remarks: what is not rebuilt, though one might expect it.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def wanted(
    rebuild: str, toolchain: Toolchain, base: Base, versions: Mapping[str, str], stock: Mapping[str, Stock]
) -> Wanted:
    """What is rebuilt.

    Args:
        rebuild: auto, always, never, or a comma list of components.
        toolchain: for which.
        base: on which base.
        versions: distribution to version, of what the image is to hold.
        stock: what the wheels of the index hold, as far as that is known.

    Raises:
        InputError: a component is unknown, or replaces nothing that the image is to hold.
    """
    components = read_components()
    within = {name: one for name, one in components.items() if set(distributions(one, toolchain)) & versions.keys()}
    if rebuild == Rebuild.NEVER:
        return Wanted()
    if rebuild == Rebuild.ALWAYS:
        return Wanted(reasons=dict.fromkeys(within, "everything is rebuilt"))
    if rebuild == Rebuild.AUTO:
        return _auto(within, toolchain, base, versions, stock)
    names = [word for part in rebuild.split(",") if (word := part.strip())]
    possible = [name for name, one in components.items() if name in within or one.version_of in toolchain.from_source]
    if unknown := [name for name in names or [rebuild] if name not in possible]:
        raise InputError(
            f"--rebuild names {', '.join(map(repr, unknown))}",
            expected=f"{', '.join(Rebuild)}, or components of this profile: {', '.join(possible)}",
            todo="correct it",
        )
    return Wanted(reasons=dict.fromkeys(names, "it was named"))


def _auto(
    within: Mapping[str, Component],
    toolchain: Toolchain,
    base: Base,
    versions: Mapping[str, str],
    stock: Mapping[str, Stock],
) -> Wanted:
    reasons, remarks = dict[str, str](), list[str]()
    for name, component in within.items():
        present = [one for one in distributions(component, toolchain) if one in versions]
        if reason := _reason(component, present, versions, stock):
            reasons[name] = reason
        elif _compiles_ahead(component):
            if has_nvcc(toolchain, base):
                reasons[name] = "compiled ahead of time, so that less is compiled at the first request"
            else:
                remarks.append(f"{name} is not compiled ahead of time: there is no nvcc")
        remarks += [
            f"{one} was not fetched yet: --rebuild auto does not know what it holds for SM120"
            for one in present
            if one not in stock and component.toolkit
        ]
    return Wanted(reasons=reasons, remarks=tuple(remarks))


def _reason(component: Component, present: list[str], versions: Mapping[str, str], stock: Mapping[str, Stock]) -> str:
    """Why the wheel of the index will not do; "" where it does."""
    # Sources carry no local version, such as +cu130.
    patches = patches_for(component.name, Version(versions[present[0]]).public)
    if patches:
        return f"patched: {', '.join(patch.name for patch in patches)}"
    wrong = [item for one in present if one in stock for item in stock[one].wrong]
    return "; ".join(f"{path}: {verdict}" for path, verdict in wrong)


def _compiles_ahead(component: Component) -> bool:
    """Whether its build adds compiled modules to the wheel of the index, which compiles them where it runs."""
    return component.source is SourceKind.WHEEL and bool(component.toolkit)


def has_nvcc(toolchain: Toolchain, base: Base) -> bool:
    """Whether an image on this base can compile: the base brings nvcc, or the index has one of the toolchain's CUDA."""
    return base.cuda or NVCC in toolchain.together


def distributions(component: Component, toolchain: Toolchain) -> list[str]:
    """What the component's wheels are called for the toolchain's CUDA."""
    major = str(Version(toolchain.cuda).major)
    return [name.replace("{cuda_major}", major) for name in component.distributions]
