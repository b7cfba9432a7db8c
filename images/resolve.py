"""Resolves a toolchain's pins to wheels with hashes, for its Python and not for the one that runs here: through uv."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from images.build_plan import Profile
from images.lock import LockedToolchain, LockedWheel
from images.matrix import Toolchain
from lanewise.errors import LanewiseError

_GLIBC = (2, 36)
"""Debian 12's, the older of the bases that images are made from; Ubuntu 24.04 has 2.39."""
_OLDEST_GLIBC = 5
_SECONDS = 600
_NO_SUCH_VERSION = re.compile(r"no version of ([A-Za-z0-9.-]+)==")
_NOT_THERE = "the Python index has no such version"
_ELSEWHERE = "not on the Python index: it is published on an index of its own, which was not reached"
"""A local version, such as +cu130, is what indexes of their own are for."""


def resolve(toolchain: Toolchain, python: str, keep: Mapping[str, str]) -> LockedToolchain:
    """Resolve all pins and everything that they need, and which of it the profile `core` takes.

    A pin that the index does not have is left unresolved. Then the other pins themselves are locked, since what they
    need would be resolved against the wrong thing, and `core` with what it needs.

    Args:
        toolchain: whose pins.
        python: for which Python.
        keep: distribution to the version that it is to keep, of what comes along.

    Raises:
        LanewiseError: the index does not answer, or the pins contradict one another.
    """
    full = _resolve(toolchain, python, toolchain.pins_of(Profile.FULL), keep)
    held = keep if full.unresolved else {wheel.name: wheel.version for wheel in full.wheels}
    core_pins = toolchain.pins_of(Profile.CORE)
    missing = {pin.partition("==")[0] for pin in full.unresolved}
    core = _wheels(toolchain, python, {n: v for n, v in core_pins.items() if n not in missing}, held)
    return LockedToolchain(
        python=python,
        wheels=tuple({wheel.name: wheel for wheel in (*full.wheels, *core)}.values()),
        unresolved=full.unresolved,
        core=tuple(wheel.name for wheel in core),
    )


def resolve_pins(toolchain: Toolchain, pins: Mapping[str, str]) -> LockedToolchain:
    """Resolve these pins alone, for the toolchain's Python.

    Raises:
        LanewiseError: the index does not answer.
    """
    return _resolve(toolchain, toolchain.python, pins, None)


def _resolve(
    toolchain: Toolchain, python: str, pins: Mapping[str, str], keep: Mapping[str, str] | None
) -> LockedToolchain:
    """`keep` is None where the pins are wanted without what they need."""
    left, unresolved = dict(pins), dict[str, str]()
    while True:
        try:
            wheels = _wheels(toolchain, python, left, None if unresolved else keep)
        except _MissingError as error:
            name = str(error)
            version = left.pop(name)
            unresolved[f"{name}=={version}"] = _ELSEWHERE if "+" in version else _NOT_THERE
            continue
        return LockedToolchain(python=python, wheels=wheels, unresolved=unresolved)


class _MissingError(Exception):
    """The index has no such version of the named distribution."""


def _wheels(
    toolchain: Toolchain, python: str, pins: Mapping[str, str], keep: Mapping[str, str] | None
) -> tuple[LockedWheel, ...]:
    """What uv locks. `keep` is as for _resolve."""
    if not pins:
        return ()
    with tempfile.TemporaryDirectory(prefix="lanewise-lock-") as folder:
        pinned = _requirements(Path(folder, "pins.txt"), pins)
        kept = _requirements(Path(folder, "keep.txt"), {n: v for n, v in (keep or {}).items() if n not in pins})
        locked = Path(folder, "pylock.toml")
        overrides = {name: pins[name] for name in toolchain.overrides if name in pins}
        overriding = _requirements(Path(folder, "overrides.txt"), overrides)
        command = [find_uv_bin(), "pip", "compile", str(pinned), "--override", str(overriding),
                   "--constraint", str(kept), "--only-binary", ":all:", "--python-version", python,
                   "--python-platform", f"x86_64-manylinux_2_{_GLIBC[1]}", "--format", "pylock.toml",
                   "--output-file", str(locked), "--no-header", "--quiet", "--no-config",
                   *(["--no-deps"] if keep is None else [])]  # fmt: skip
        try:
            done = subprocess.run(
                command, env=_environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise _failed(toolchain, f"no answer within {_SECONDS} s") from None
        if done.returncode:
            message = " ".join(done.stderr.split())
            missing = {found[1] for found in _NO_SUCH_VERSION.finditer(message)} & set(pins)
            if missing:
                raise _MissingError(min(missing))
            raise _failed(toolchain, message[-600:])
        packages = tomllib.loads(locked.read_text(encoding="utf-8"))["packages"]
    tags = _tags(python)
    return tuple(_wheel(package, tags) for package in packages)


def _requirements(path: Path, versions: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")
    return path


def _environment() -> dict[str, str]:
    """The user's, and the index that the user gave pip: uv reads none of pip's settings."""
    index = os.environ.get("PIP_INDEX_URL")
    return {**({"UV_DEFAULT_INDEX": index} if index else {}), **os.environ}


def _failed(toolchain: Toolchain, why: str) -> LanewiseError:
    return LanewiseError(
        f"the pins of {toolchain.name} cannot be resolved: {why}",
        expected="an index that answers, and versions that go together",
        todo="check the network, or the pins in images/matrix.yaml; --upgrade all lets what comes along move, too",
    )


def _tags(python: str) -> dict[Tag, int]:
    """What the toolchain's Python can install, the best first."""
    major, minor = map(int, python.split("."))
    platforms = platform_tags()
    found = [*cpython_tags((major, minor), platforms=platforms), *compatible_tags((major, minor), platforms=platforms)]
    return {tag: rank for rank, tag in reversed(list(enumerate(found)))}


def platform_tags() -> list[str]:
    """Platforms whose wheels run on the images' bases, the newest first."""
    glibc = [f"manylinux_{_GLIBC[0]}_{minor}_x86_64" for minor in range(_GLIBC[1], _OLDEST_GLIBC - 1, -1)]
    return [*glibc, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def _wheel(package: Mapping[str, Any], tags: Mapping[Tag, int]) -> LockedWheel:
    """The best of a package's files; uv computes hashes that the index does not tell, but no sizes."""
    ranked = [(rank, file) for file in package["wheels"] if (rank := _rank(_file_name(file), tags)) is not None]
    best = min(ranked, key=lambda pair: (pair[0], _file_name(pair[1])))[1]
    return LockedWheel(
        name=canonicalize_name(package["name"]),
        version=package["version"],
        file=_file_name(best),
        sha256=best["hashes"]["sha256"],
        size=best.get("size", 0),
    )


def _file_name(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or unquote(urlsplit(file["url"]).path).rpartition("/")[2])


def _rank(file: str, tags: Mapping[Tag, int]) -> int | None:
    ranks: Iterable[int] = (tags[tag] for tag in parse_wheel_filename(file)[3] if tag in tags)
    return min(ranks, default=None)
