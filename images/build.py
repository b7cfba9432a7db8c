"""Strings together what builds an image: plan, base, wheels, components, image, checks; each is in its own module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from images.bases import ensure_base
from images.build_plan import BuildPlan
from images.builder import Resources, build_components
from images.image_build import find_built, make_image
from images.image_checks import Checked
from images.lock import Lock, LockedWheel
from images.matrix import Toolchain
from images.planning import Choices, make_plan, replaceable, require_buildable
from images.rebuilding import Rebuild
from images.stock import read_stock
from images.wheelhouse import BuiltComponent, Wheelhouse
from images.wheels import cache_folder, check, fetch, kept, missing
from lanewise.engine import connected
from lanewise.errors import InputError

Progress = Callable[[str], None]
_ENGINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that stands.

    Attributes:
        plan: what it was built by.
        image: its id.
        checked: what the checks found; None where it was built and checked before.
        components: what was rebuilt, by name.
        seconds: how long all of it took.
    """

    plan: BuildPlan
    image: str
    checked: Checked | None
    components: Mapping[str, BuiltComponent] = field(default_factory=dict)
    seconds: float


def plan_build(
    toolchain: Toolchain, lock: Lock, choices: Choices, mirrors: Mapping[str, str], progress: Progress
) -> BuildPlan:
    """The plan. For --rebuild auto, wheels that components could replace and that are kept here are audited first.

    Args:
        toolchain: what is built.
        lock: what it resolves to.
        choices: what the user chose.
        mirrors: component to where its sources are fetched from instead; what is fetched is verified all the same.
        progress: is told what happens.

    Raises:
        InputError, LanewiseError: as `make_plan`; a kept wheel cannot be read; a mirror is for what is not rebuilt.
    """
    wheels = replaceable(toolchain, lock, choices) if choices.rebuild == Rebuild.AUTO else []
    plan = make_plan(toolchain, lock, choices, read_stock(wheels, progress))
    rebuilt = [component.name for component in plan.components]
    if unknown := [name for name in mirrors if name not in rebuilt]:
        raise InputError(
            f"--mirror names {', '.join(unknown)}",
            expected=f"a component that is rebuilt: {', '.join(rebuilt) or 'none is'}",
            todo="correct it, or name it in --rebuild",
        )
    mirrored = tuple(
        replace(one, source=replace(one.source, mirror=mirrors.get(one.name, ""))) for one in plan.components
    )
    return replace(plan, components=mirrored)


def build(
    toolchain: Toolchain,
    lock: Lock,
    choices: Choices,
    mirrors: Mapping[str, str],
    resources: Resources,
    workers: Path,
    progress: Progress,
) -> Built:
    """Build an image, or find that it stands already; whatever ends this early loses only the step under way.

    Args:
        toolchain: what is built.
        lock: what it resolves to.
        choices: what the user chose.
        mirrors: as for `plan_build`.
        resources: what builds may take of this machine.
        workers: folder of the benchmark's workers, which go into the image.
        progress: is told what happens.

    Raises:
        UnreachableError: the engine does not answer, or no longer.
        InputError, LanewiseError: the plan cannot be built, or a step of it fails; the tag stays where it was.
    """
    began, cache = time.monotonic(), cache_folder().parent
    if choices.rebuild == Rebuild.AUTO:
        _fetch(replaceable(toolchain, lock, choices), toolchain.base(choices.base).python, progress)
    plan = plan_build(toolchain, lock, choices, mirrors, progress)
    require_buildable(plan)
    with connected(f"build {plan.tag}", seconds=_ENGINE_SECONDS) as client:
        if standing := find_built(plan, client, workers):
            return Built(plan=plan, image=standing, checked=None, seconds=time.monotonic() - began)
        _fetch(plan.wheels, plan.base.python, progress)
        _require_intact(plan.wheels)
        base = ensure_base(plan.base, client, cache, progress)
        components = build_components(
            plan,
            client,
            base.id,
            Wheelhouse(cache / "wheelhouse"),
            resources,
            progress,
            cache=cache,
            stock=_kept_stock(plan, toolchain, lock, choices),
        )
        made = [wheel.path for built in components.values() for wheel in built.wheels]
        files = [*(kept(wheel) for wheel in plan.wheels), *made]
        checked = make_image(plan, client, base, files, workers, cache, progress)
    seconds = time.monotonic() - began
    return Built(plan=plan, image=checked.image, checked=checked, components=components, seconds=seconds)


def _fetch(wheels: Iterable[LockedWheel], python: str, progress: Progress) -> None:
    wanted = missing(wheels)
    for number, wheel in enumerate(wanted, 1):
        progress(f"[{number}/{len(wanted)}] fetching {wheel.name} {wheel.version} ({wheel.size / 1e6:,.0f} MB)")
        fetch(wheel, python)


def _require_intact(wheels: Iterable[LockedWheel]) -> None:
    for fault in check(list(wheels)).values():
        raise fault


def _kept_stock(plan: BuildPlan, toolchain: Toolchain, lock: Lock, choices: Choices) -> dict[str, Path]:
    """The index's wheels of what is rebuilt, as far as they are kept: to be audited before and after."""
    rebuilt = {name for component in plan.components for name in component.distributions}
    wheels = replaceable(toolchain, lock, choices) if rebuilt else []
    return {wheel.name: kept(wheel) for wheel in wheels if wheel.name in rebuilt and kept(wheel).exists()}
