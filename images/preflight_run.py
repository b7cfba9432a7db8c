"""Between the verb `preflight` and the machinery: fetches wheels, reads packages, judges, writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from images.conditions import Box
from images.lock import LOCK, LockedToolchain, LockedWheel, read_lock
from images.matrix import Toolchain
from images.packages import packages_wanted, read_packages
from images.preflight import Report, judge
from images.preflight_view import document
from images.resolve import resolve_pins
from images.rules import Approach
from images.snapshot import Snapshot, top_level
from images.targets import Target, TargetKind, find_target
from images.wheels import WheelError, check, fetch, kept, missing
from lanewise import talk
from lanewise.errors import InputError
from lanewise.files import write_atomic


def preflight_wheels(toolchain: Toolchain, approaches: Iterable[Approach], gpus: int, lock: Path = LOCK) -> Report:
    """Judge the wheels that a toolchain pins, and those that come along, fetching what is read and not kept yet.

    A wheel that cannot be had, or is not what the lock says, leaves the verdicts that need it unknown, and no others.

    Raises:
        LanewiseError: versions that are not in the lock cannot be asked for, since the index does not answer.
    """
    locked = read_lock(lock).find(toolchain.name, toolchain.python)
    wheels, faults = _pinned(toolchain, locked)
    along = [wheel for wheel in (locked.wheels if locked else ()) if wheel.name not in toolchain.pins]
    read = packages_wanted(approaches)
    wheels += [wheel for wheel in along if top_level(wheel.name) in read]
    faults |= _fetch(wheels, toolchain.python)
    faults |= {name: str(error.what) for name, error in check([w for w in wheels if w.name not in faults]).items()}
    good = [wheel for wheel in wheels if wheel.name not in faults]
    targets = {wheel.name: Target(name=str(kept(wheel)), kind=TargetKind.WHEEL) for wheel in good}
    snapshot = _read(targets, approaches, "wheels")
    snapshot = replace(
        snapshot,
        versions={**{wheel.name: wheel.version for wheel in along}, **snapshot.versions},
        unreadable={**snapshot.unreadable, **faults},
    )
    return _report(toolchain, approaches, snapshot, gpus, "wheels of the Python index")


def preflight_installed(name: str, toolchain: Toolchain, approaches: Iterable[Approach], gpus: int) -> Report:
    """Judge what is installed in an environment, a root file system or a container image.

    Raises:
        InputError, UnreachableError: it cannot be read as a whole, or is none of these.
    """
    target = find_target(name)
    if target.kind in (TargetKind.FILE, TargetKind.WHEEL):
        raise InputError(
            f"{name!r} is a {target.kind}",
            expected="an environment, a root file system, an archive of one, or a container image",
            todo="name one of these; the wheels that a toolchain pins are read without --env and --image",
        )
    snapshot = _read({name: target}, approaches, name)
    if not (snapshot.paths or snapshot.unreadable or snapshot.versions.keys() & toolchain.pins.keys()):
        raise InputError(
            f"{target.kind} {name!r} holds no package that could be judged",
            expected=f"some of {', '.join(toolchain.pins)}",
            todo="check the path; an environment's folder is the one that pyvenv.cfg lies in",
        )
    return _report(toolchain, approaches, snapshot, gpus, f"{target.kind} {name}")


def write_report(report: Report, path: Path) -> None:
    """Write preflight.json.

    Raises:
        InputError, LanewiseError: it cannot be written.
    """
    write_atomic(path, json.dumps(document(report), indent=2, ensure_ascii=False) + "\n")


def _pinned(toolchain: Toolchain, locked: LockedToolchain | None) -> tuple[list[LockedWheel], dict[str, str]]:
    """The toolchain's pinned wheels, and for the others why they cannot be had."""
    found = {name: locked.wheel(name, version) if locked else None for name, version in toolchain.pins.items()}
    unlocked = {name: toolchain.pins[name] for name, wheel in found.items() if wheel is None}
    reasons = dict(locked.unresolved) if locked else {}
    asked = {name: version for name, version in unlocked.items() if f"{name}=={version}" not in reasons}
    if asked:
        resolved = resolve_pins(toolchain, asked)
        found |= {wheel.name: wheel for wheel in resolved.wheels}
        reasons |= resolved.unresolved
    faults = {name: reasons[f"{name}=={version}"] for name, version in unlocked.items() if found[name] is None}
    return [wheel for wheel in found.values() if wheel], faults


def _fetch(wheels: Iterable[LockedWheel], python: str) -> dict[str, str]:
    """Fetch what is not kept yet; the faults, by distribution."""
    wanted = missing(wheels)
    faults = {}
    with talk.track("fetching") as progress:
        for done, wheel in enumerate(wanted):
            remark = f"fetching {wheel.name} {wheel.version} ({wheel.size / 1e6:,.0f} MB)"
            progress.step(done, len(wanted), remark, lasting=True)
            try:
                fetch(wheel, python)
            except WheelError as error:
                faults[wheel.name] = error.what
    return faults


def _read(targets: Mapping[str, Target], approaches: Iterable[Approach], what: str) -> Snapshot:
    with talk.track(f"reading {what}"):
        return read_packages(targets, approaches)


def _report(toolchain: Toolchain, approaches: Iterable[Approach], snapshot: Snapshot, gpus: int, where: str) -> Report:
    box = Box(cuda=toolchain.cuda, arch=toolchain.arch, gpus=gpus)
    return Report(
        toolchain=toolchain.name,
        where=where,
        box=box,
        versions={name: snapshot.versions[name] for name in toolchain.pins if name in snapshot.versions},
        findings=judge(approaches, snapshot, box),
        remarks=tuple(_remarks(toolchain, snapshot)),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _remarks(toolchain: Toolchain, snapshot: Snapshot) -> Iterable[str]:
    for what, reason in snapshot.unreadable.items():
        yield f"{what} cannot be read: {reason}"
    for name, version in toolchain.pins.items():
        found = snapshot.versions.get(name)
        if found is None and name not in snapshot.unreadable:
            yield f"{name} is missing; {toolchain.name} pins {version}"
        elif found not in (None, version):
            yield f"{name} is {found}; {toolchain.name} pins {version}"
