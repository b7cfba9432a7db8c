"""Reads images/components/: how each component is built from source for SM120, as data and a build script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.build_plan import Base, ComponentBuild, Estimate, Source, SourceKind
from images.matrix import Toolchain
from images.patching import PATCHES, patches_for
from lanewise.errors import InputError
from lanewise.files import read_text

COMPONENTS = Path(__file__).parent / "components"
PRELUDE = "prelude.sh"
_MAX_FILE_BYTES = 1 << 20
_LISTS = ("distributions", "packages", "requires", "toolkit", "needs")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@dataclass(frozen=True, kw_only=True)
class Component:
    """How one component is built, for any version; texts in braces are filled in by components_for.

    Attributes:
        name: of the component, e.g. "nccl".
        meaning: what a rebuild is good for.
        distributions: what the wheels that it makes are called on the index.
        version_of: the distribution whose pinned version is built.
        source: kind of its sources.
        location: where they are.
        ref: of a git repository the tag.
        cuda: the CUDA releases with which it can be built.
        packages: Debian packages that the builder container needs.
        requires: wheels that the builder container needs, pinned.
        toolkit: wheels that hold CUDA's toolkit, for bases without one; their versions are the lock's.
        needs: components whose wheels it is built with, where they are rebuilt, too.
        environment: what the script is told.
        settings: which of these a user may change, and what they mean.
        estimate: what a build takes.
        untried: whether it was never run end to end.
        script: the build script.
    """

    name: str
    meaning: str
    distributions: tuple[str, ...]
    version_of: str
    source: SourceKind
    location: str
    ref: str = ""
    cuda: SpecifierSet = field(default_factory=SpecifierSet)
    packages: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    toolkit: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    estimate: Estimate
    untried: bool = False
    script: str

    def __post_init__(self) -> None:
        if wrong := [name for name in self.packages if not _PACKAGE.fullmatch(name)]:
            raise ValueError(f"{self.name}: {wrong[0]!r} is no Debian package")
        if wrong := [text for text in self.requires if "==" not in text]:
            raise ValueError(f"{self.name}: {wrong[0]!r} is not pinned")
        if wrong := [name for name in self.settings if name not in self.environment]:
            raise ValueError(f"{self.name}: setting {wrong[0]} has no value in the environment")


@cache
def read_components(folder: Path = COMPONENTS) -> Mapping[str, Component]:
    """The components by name, each after those that it needs.

    Raises:
        InputError: a file is no component.
    """
    prelude = read_text(folder / PRELUDE, what="build script", limit=_MAX_FILE_BYTES)
    found = {path.stem: _read(path, prelude) for path in sorted(folder.glob("*.yaml"))}
    return {name: found[name] for name in _in_order(found)}


def components_for(
    wanted: Mapping[str, str],
    toolchain: Toolchain,
    base: Base,
    *,
    versions: Mapping[str, str],
    identities: Mapping[str, str],
    settings: Mapping[str, Mapping[str, str]] | None = None,
    sources: Mapping[str, Source] | None = None,
    patches: Path = PATCHES,
    folder: Path = COMPONENTS,
) -> tuple[ComponentBuild, ...]:
    """What has to be built, each after what it needs.

    Args:
        wanted: component to why it is rebuilt.
        toolchain: with which CUDA, and for which arch.
        base: what the builder containers start from.
        versions: distribution to version, of all that the lock holds for the toolchain.
        identities: component to what its source is held against: a commit, or the sha256 of the archive or wheel.
        settings: component to settings that a user changes.
        sources: component to other sources than its own: a local tree, a fork, a mirror.
        patches: folder with the patches.
        folder: folder with the components.

    Raises:
        InputError: a name or a setting is unknown, a version or an identity is missing, or it cannot be built with this
            CUDA.
    """
    known = read_components(folder)
    if unknown := [name for name in (*wanted, *(settings or {}), *(sources or {})) if name not in known]:
        raise InputError(
            f"there is no component {unknown[0]!r}", expected=f"some of {', '.join(known)}", todo="correct it"
        )
    names = [name for name in known if name in wanted]
    values = _values(toolchain, versions)
    return tuple(
        _build(
            known[name],
            why=wanted[name],
            toolchain=toolchain,
            base=base,
            values=values,
            needs=tuple(known[need] for need in known[name].needs if need in wanted),
            settings=(settings or {}).get(name, {}),
            source=(sources or {}).get(name),
            identity=identities.get(name, ""),
            patches=patches,
        )
        for name in names
    )


def _build(
    component: Component,
    *,
    why: str,
    toolchain: Toolchain,
    base: Base,
    values: Mapping[str, Any],
    needs: tuple[Component, ...],
    settings: Mapping[str, str],
    source: Source | None,
    identity: str,
    patches: Path,
) -> ComponentBuild:
    _check_cuda(component, toolchain, base)
    version_of = _filled(component, component.version_of, values)
    if version_of not in values["versions"]:
        raise _lacking(component, f"the version of {version_of}")
    if unknown := [name for name in settings if name not in component.settings]:
        raise InputError(
            f"{component.name} has no setting {unknown[0]!r}",
            expected=f"some of {', '.join(component.settings) or 'none'}",
            todo="correct it",
        )
    filled = {**values, "version": Version(values["versions"][version_of]).public}
    own = source or _source(component, identity, filled)
    cuda_from = "base" if base.cuda or not component.toolkit else "wheels"
    toolkit = () if cuda_from == "base" else tuple(f"{name}=={{versions[{name}]}}" for name in component.toolkit)
    rebuilt = {_filled(need, name, values) for need in needs for name in need.distributions}
    requires = [_filled(component, text, filled) for text in (*component.requires, *toolkit)]
    return ComponentBuild(
        name=component.name,
        distributions=tuple(_filled(component, name, filled) for name in component.distributions),
        version=filled["version"],
        source=own,
        patches={patch.name: patch.sha256 for patch in patches_for(component.name, filled["version"], patches)},
        packages=component.packages,
        requires=tuple(text for text in requires if text.partition("==")[0] not in rebuilt),
        needs=tuple(need.name for need in needs),
        environment={
            "LANEWISE_VERSION": filled["version"],
            "LANEWISE_CUDA": values["cuda"],
            "LANEWISE_CUDA_FROM": cuda_from if component.toolkit else "none",
            **{name: _filled(component, text, filled) for name, text in {**component.environment, **settings}.items()},
        },
        script=component.script,
        why=why,
        estimate=component.estimate,
        untried=component.untried,
    )


def _check_cuda(component: Component, toolchain: Toolchain, base: Base) -> None:
    if not component.cuda.contains(toolchain.cuda):
        raise InputError(
            f"{component.name} cannot be built with CUDA {toolchain.cuda}",
            expected=f"CUDA {component.cuda}",
            todo="leave it out of --rebuild, or take another toolchain",
        )
    if component.toolkit and not base.cuda and Version(toolchain.cuda).major < _FIRST_NVCC_WHEEL:
        raise InputError(
            f"{component.name} cannot be built on {base.name}: the Python index has no nvcc for CUDA {toolchain.cuda}",
            expected="a base that brings CUDA's toolkit (images/matrix.yaml, cuda: true)",
            todo=f"leave {component.name} out of --rebuild, or name such a base by --base",
        )


_FIRST_NVCC_WHEEL = 13
"""nvidia-cuda-nvcc-cu12 12.8.93 and 12.9.86 hold ptxas, libnvvm and headers, but no nvcc, which 13.0.88 has."""


def _source(component: Component, identity: str, values: Mapping[str, Any]) -> Source:
    if not identity:
        raise _lacking(component, f"what its {component.source} is held against (a commit or a sha256)")
    return Source(
        kind=component.source,
        location=_filled(component, component.location, values),
        identity=identity,
        ref=_filled(component, component.ref, values),
    )


def _values(toolchain: Toolchain, versions: Mapping[str, str]) -> dict[str, Any]:
    release = Version(toolchain.cuda)
    known = {**versions, **toolchain.together, **toolchain.pins}
    nccl = f"nvidia-nccl-cu{release.major}"
    return {
        "cuda": f"{release.major}.{release.minor}",
        "cuda_major": str(release.major),
        "cuda_tag": f"cu{release.major}{release.minor}",
        "arch": toolchain.arch,
        "versions": known,
        **({"nccl": known[nccl]} if nccl in known else {}),
    }


def _filled(component: Component, text: str, values: Mapping[str, Any]) -> str:
    try:
        return text.format_map(values)
    except KeyError as error:
        raise _lacking(component, f"{error} for {text!r}") from None


def _lacking(component: Component, what: str) -> InputError:
    return InputError(
        f"{component.name} cannot be planned: {what} is not known",
        expected="a lock that holds it",
        todo="run ./inv lock, where the index and the repositories can be reached",
    )


def _read(path: Path, prelude: str) -> Component:
    try:
        fields: dict[str, Any] = yaml.safe_load(read_text(path, what="component", limit=_MAX_FILE_BYTES))
        script = read_text(path.with_suffix(".sh"), what="build script", limit=_MAX_FILE_BYTES)
        fields |= {name: tuple(fields.pop(name, ())) for name in _LISTS}
        return Component(
            name=path.stem,
            source=SourceKind(fields.pop("source")),
            cuda=SpecifierSet(fields.pop("cuda", "")),
            estimate=Estimate(**fields.pop("estimate")),
            script=prelude + script,
            **fields,
        )
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(
            f"component {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="the fields of images.components.Component",
            todo="mend the file",
        ) from error


def _in_order(components: Mapping[str, Component]) -> Iterable[str]:
    """Each name after those that it needs."""
    placed: dict[str, None] = {}
    waiting = list(components)
    while waiting:
        ready = [name for name in waiting if all(need in placed for need in components[name].needs)]
        if not ready:
            raise InputError(
                f"components need one another, or what is not there: {', '.join(waiting)}",
                expected="needs that end somewhere",
                todo="mend `needs` in images/components/",
            )
        placed.update(dict.fromkeys(ready))
        waiting = [name for name in waiting if name not in placed]
    return placed
