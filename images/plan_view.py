"""Shows a build plan: every command, environment and estimate, without running any. It computes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from images.build_plan import BaseKind, BuildPlan, ComponentBuild
from images.lock import LockedWheel
from images.rebuilding import NVCC

_SHORT = 12


def show_plan(plan: BuildPlan, *, dockerfile: str, missing: Collection[LockedWheel], jobs: Mapping[str, int]) -> str:
    """The plan as text; the same plan gives the same text.

    Args:
        plan: what is built.
        dockerfile: text of the final image's Dockerfile.
        missing: the plan's wheels that were not fetched yet.
        jobs: component to compiler jobs that this machine has room for.
    """
    return "\n".join(
        [
            f"{plan.tag}  plan {plan.key[:_SHORT]}",
            f"CUDA {plan.cuda}, Python {plan.base.python}; SM120 targets: {_pairs(plan.arch)}",
            *_section("cannot be built yet: unresolved", [f"{what}: {why}" for what, why in plan.unresolved.items()]),
            *_section("know", plan.remarks),
            *_section("starts from", _base(plan)),
            *_section("from the index", _wheels(plan, missing)),
            *_section("left out", [f"{pattern}: {why}" for pattern, why in sorted(plan.left_out.items())]),
            *_section("rebuilt", [_summary(one, jobs) for one in plan.components] or ["nothing"]),
            *(line for one in plan.components for line in _component(plan, one, jobs)),
            *_section("Dockerfile", dockerfile.splitlines()),
        ]
    )


def plan_document(
    plan: BuildPlan, *, dockerfile: str, missing: Collection[LockedWheel], jobs: Mapping[str, int]
) -> dict[str, Any]:
    """The plan as a program wants it."""
    return {
        **asdict(plan),
        "tag": plan.tag,
        "key": plan.key,
        "component_keys": {one.name: plan.component_key(one.name) for one in plan.components},
        "jobs": {one.name: jobs[one.name] for one in plan.components},
        "bytes": sum(wheel.size for wheel in plan.wheels),
        "bytes_to_fetch": sum(wheel.size for wheel in missing),
        "dockerfile": dockerfile,
    }


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return ["", f"{title}:", *(f"  {line}".rstrip() for line in found)] if found else []


def _base(plan: BuildPlan) -> Iterable[str]:
    base = plan.base
    if base.kind is BaseKind.REGISTRY:
        yield f"{base.name}: {base.reference}@{base.digest or 'unresolved'}"
    else:
        yield f"{base.name}: Debian {base.reference}, made here by debootstrap of the machine's own package sources"
    from_wheels = any(wheel.name == NVCC for wheel in plan.wheels)
    yield f"nvcc: {'the base brings it' if base.cuda else 'from wheels' if from_wheels else 'none'}"
    if base.packages:
        yield f"packages: {', '.join(base.packages)}"


def _wheels(plan: BuildPlan, missing: Collection[LockedWheel]) -> Iterable[str]:
    yield f"{len(plan.wheels)} wheels, {_megabytes(plan.wheels)}; to fetch: {len(missing)}, {_megabytes(missing)}"
    for wheel in sorted(plan.wheels, key=lambda wheel: (-wheel.size, wheel.name)):
        yield f"{wheel.size / 1e6:9,.1f} MB  {wheel.name} {wheel.version}"


def _megabytes(wheels: Collection[LockedWheel]) -> str:
    return f"{sum(wheel.size for wheel in wheels) / 1e6:,.1f} MB"


def _summary(component: ComponentBuild, jobs: Mapping[str, int]) -> str:
    estimate, count = component.estimate, jobs[component.name]
    took = f"about {_time(max(1, round(estimate.cpu_minutes / count)))} with {count} jobs of {estimate.gb_per_job:g} GB"
    untried = "; untried" if component.untried else ""
    return f"{component.name} {component.version}: {component.why}; {took} ({estimate.source}){untried}"


def _time(minutes: int) -> str:
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _component(plan: BuildPlan, component: ComponentBuild, jobs: Mapping[str, int]) -> list[str]:
    source = component.source
    return _section(
        f"component {component.name} {component.version}, key {plan.component_key(component.name)[:_SHORT]}",
        [
            f"source: {source.kind} {source.location} {source.ref}".rstrip() + f", held against {source.identity}",
            *([f"mirror: {source.mirror}"] if source.mirror else []),
            *(f"patch: {name} {sha256[:_SHORT]}" for name, sha256 in component.patches.items()),
            f"packages: {', '.join(component.packages) or 'none'}",
            f"needs: {', '.join(component.needs) or 'none of the others'}",
            f"in the builder: pip install {' '.join(component.requires)}".rstrip(),
            *(f"{name}={value}" for name, value in sorted(component.environment.items())),
            f"jobs: {jobs[component.name]}",
            "script:",
            *(f"  {line}" for line in component.script.splitlines()),
        ],
    )


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
