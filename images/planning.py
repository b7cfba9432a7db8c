"""Decides what an image is made of before anything is built: which wheels, what is rebuilt, what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from images.build_plan import Base, BaseKind, BuildPlan, ComponentBuild, Profile, Source, SourceKind
from images.capability import SM120
from images.components import components_for, read_components
from images.lock import Lock, LockedToolchain, LockedWheel
from images.matrix import BaseChoice, Toolchain
from images.origins import without_local_versions
from images.rebuilding import Rebuild, distributions, has_nvcc, wanted
from images.stock import Stock
from images.unsupported import Subject, check
from images.unused import read_unused
from lanewise.errors import InputError

UNKNOWN = "unresolved"
"""Stands for a commit that could not be had, in a plan that can be shown but not built."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user chose.

    Attributes:
        profile: how much goes in.
        base: name of the base; "": the toolchain's first.
        rebuild: auto, always, never, or a comma list of components.
        settings: component to settings of its build that are changed.
        sources: component to other sources than its own.
    """

    profile: Profile = Profile.FULL
    base: str = ""
    rebuild: str = Rebuild.AUTO
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


def make_plan(toolchain: Toolchain, lock: Lock, choices: Choices, stock: Mapping[str, Stock]) -> BuildPlan:
    """The plan. It is pure: the same lock, choices and components give the same plan.

    Args:
        toolchain: what is built.
        lock: what it resolves to.
        choices: what the user chose.
        stock: what the wheels hold that components could replace, by distribution, as far as it is known
            (images/stock.py); needed by --rebuild auto alone.

    Raises:
        InputError: the lock does not hold the toolchain, the combination is unsupported, or a component is unknown, is
            not in the profile, or cannot be built for this toolchain and base.
    """
    choice = toolchain.base(choices.base)
    base = choice.of(choices.profile, _digest(choice, lock))
    pins = toolchain.pins_of(choices.profile)
    rebuilt = wanted(choices.rebuild, toolchain, base, pins, stock)
    _check_named((*choices.settings, *choices.sources), rebuilt.reasons)
    warnings = check(
        Subject(versions=pins, cuda=toolchain.cuda, python=base.python, arch=toolchain.arch, rebuilt=rebuilt.reasons)
    )
    locked = _locked(toolchain, choice, lock)
    wheels = _chosen(locked, choices.profile)
    versions = {wheel.name: wheel.version for wheel in wheels}
    builds = _builds(rebuilt.reasons, toolchain, base, locked, lock, choices)
    left_out, not_fetched = _left_out(versions)
    replaced = {name for build in builds for name in build.distributions}
    return BuildPlan(
        toolchain=toolchain.name,
        cuda=toolchain.cuda,
        arch=toolchain.arch,
        profile=choices.profile,
        base=base,
        wheels=tuple(wheel for wheel in wheels if wheel.name not in replaced | not_fetched),
        components=builds,
        overrides=toolchain.overrides,
        left_out=left_out,
        remarks=(
            *(f"{one.id}: {one.why}; {one.todo}" for one in warnings),
            *rebuilt.remarks,
            *_changed_patches(builds, lock),
            *_limits(toolchain, base, versions),
        ),
        unresolved=dict(_unresolved(toolchain, base, choices.profile, lock, locked, builds)),
    )


def replaceable(toolchain: Toolchain, lock: Lock, choices: Choices) -> list[LockedWheel]:
    """The wheels that components could replace: what --rebuild auto has to know of before it plans."""
    locked = _locked(toolchain, toolchain.base(choices.base), lock)
    names = {name for component in read_components().values() for name in distributions(component, toolchain)}
    return [wheel for wheel in _chosen(locked, choices.profile) if wheel.name in names]


def require_buildable(plan: BuildPlan) -> None:
    """Refuse a plan that lacks something.

    Raises:
        InputError: it does.
    """
    if plan.unresolved:
        raise InputError(
            f"{plan.tag} cannot be built: "
            + "; ".join(f"{what} is unresolved ({why})" for what, why in plan.unresolved.items()),
            expected="a plan that holds all that it needs",
            todo="run ./inv lock where these can be reached, or choose another --base, --profile or --rebuild",
        )


def _check_named(named: Iterable[str], rebuilt: Collection[str]) -> None:
    if lost := [name for name in named if name not in rebuilt]:
        raise InputError(
            f"settings or sources are given for {', '.join(lost)}, which is not rebuilt",
            expected=f"components that are: {', '.join(rebuilt) or 'none'}",
            todo=f"--rebuild {','.join((*rebuilt, *lost))}",
        )


def _locked(toolchain: Toolchain, choice: BaseChoice, lock: Lock) -> LockedToolchain:
    locked = lock.find(toolchain.name, choice.python)
    pins = toolchain.pins_of(Profile.FULL)
    lacking = [
        f"{n} {v}" for n, v in pins.items() if not (locked and (locked.wheel(n, v) or f"{n}=={v}" in locked.unresolved))
    ]
    if locked is None or lacking:
        what = f"{', '.join(lacking)} of {toolchain.name}" if locked else f"toolchain {toolchain.name}"
        raise InputError(
            f"{what} is not locked for Python {choice.python}",
            expected="a lock of what the matrix says (images/lock.yaml)",
            todo=f"./inv lock --toolchain {toolchain.name}",
        )
    return locked


def _digest(choice: BaseChoice, lock: Lock) -> str:
    found = lock.bases.get(choice.reference)
    return found.value if found and choice.kind is BaseKind.REGISTRY else ""


def _chosen(locked: LockedToolchain, profile: Profile) -> tuple[LockedWheel, ...]:
    core = set(locked.core)
    return tuple(wheel for wheel in locked.wheels if profile is Profile.FULL or wheel.name in core)


# ------------------------------------------------------------------------------------------------------- what is built


def _builds(
    reasons: Mapping[str, str], toolchain: Toolchain, base: Base, locked: LockedToolchain, lock: Lock, choices: Choices
) -> tuple[ComponentBuild, ...]:
    versions = {**{w.name: w.version for w in locked.wheels}, **toolchain.from_source}
    public = without_local_versions(toolchain)

    def build(identities: Mapping[str, str]) -> tuple[ComponentBuild, ...]:
        return components_for(
            reasons,
            public,
            base,
            versions=versions,
            identities=identities,
            settings=choices.settings,
            sources=choices.sources,
        )

    # Where a component's sources are is filled in by components_for; only then is it known what they are held against.
    where = {one.name: one.source for one in build(dict.fromkeys(reasons, UNKNOWN))}
    return build({name: _identity(source, locked, lock) for name, source in where.items()})


def _identity(source: Source, locked: LockedToolchain, lock: Lock) -> str:
    if source.kind is SourceKind.GIT:
        found = lock.commit(source.location, source.ref)
        return found.value if found and found.value else UNKNOWN
    wheel = locked.wheel(*source.location.split("==", 1)) if "==" in source.location else None
    return wheel.sha256 if wheel else UNKNOWN


# -------------------------------------------------------------------------------------------- left out, and its limits


def _left_out(versions: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """Patterns of what is removed to why; distributions that are not even fetched."""
    rows = [
        (row, row.leave_out)
        for row in read_unused()
        if row.leave_out and row.leave_out.applies(versions) and not {str(SM120), str(SM120.major)} & set(row.only_on)
    ]
    left_out = {path: row.why for row, _ in rows for path in row.paths}
    return left_out, {leave.of for _, leave in rows if leave.whole}


def _changed_patches(builds: Iterable[ComponentBuild], lock: Lock) -> Iterable[str]:
    for build in builds:
        for name, sha256 in build.patches.items():
            if lock.patches.get(f"{build.name}/{name}") != sha256:
                yield f"patch {build.name}/{name} is not what the lock has: ./inv lock takes it over"


def _limits(toolchain: Toolchain, base: Base, versions: Mapping[str, str]) -> Iterable[str]:
    """What an image without nvcc cannot do."""
    if has_nvcc(toolchain, base):
        return
    yield (
        f"no nvcc: the Python index has ptxas and headers of CUDA {toolchain.cuda}, but no compiler; nothing can be "
        "compiled in this image, and no component that holds device code can be rebuilt on this base"
    )
    if "flashinfer-python" in versions:
        yield (
            "FlashInfer and SGLang compile kernels when they are first used, and cannot here: serve from an image on a "
            f"base that brings the toolkit ({', '.join(b.name for b in toolchain.bases if b.cuda)})"
        )


def _unresolved(
    toolchain: Toolchain,
    base: Base,
    profile: Profile,
    lock: Lock,
    locked: LockedToolchain,
    builds: Iterable[ComponentBuild],
) -> Iterable[tuple[str, str]]:
    if base.kind is BaseKind.REGISTRY and not base.digest:
        known = lock.bases.get(base.reference)
        yield f"the digest of {base.reference}", known.unresolved if known else "not locked yet"
    for build in builds:
        if build.source.identity == UNKNOWN:
            found = lock.commit(build.source.location, build.source.ref)
            what = f"the sources of {build.name} ({build.source.location} {build.source.ref})"
            yield what, found.unresolved if found else "not locked yet"
    pins = toolchain.pins_of(profile)
    missing = {pin: why for pin, why in locked.unresolved.items() if pin.partition("==")[0] in pins}
    yield from missing.items()
    if missing:
        yield "what the other wheels need", "it is resolved once all of them are"
