"""The lock: what the matrix resolves to, with hashes; images/lock.yaml, written by `./inv lock`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from lanewise.errors import InputError
from lanewise.files import read_text, write_atomic

LOCK = Path(__file__).parent / "lock.yaml"
_MAX_FILE_BYTES = 8 << 20
_MOST_BYTES = 1 << 40
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_HEADER = """\
# Written by `./inv lock`: what images/matrix.yaml resolves to, with sha256 and size in bytes. Do not edit.
# No addresses of wheels: every one is on the Python index that the user's pip knows. What could not be had where this
# was written says why; `./inv lock` asks for it again.
"""


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """One file of the index.

    Attributes:
        name: distribution, normalised.
        version: its version.
        file: file name.
        sha256: hash of the file.
        size: bytes; 0 where the index does not tell: only JSON indexes of PEP 700 do.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        if canonicalize_name(self.name, validate=True) != self.name:
            raise ValueError(f"{self.name!r} is {canonicalize_name(self.name)!r} on the Python index")
        Version(self.version)
        if not _SHA256.fullmatch(self.sha256) or not _FILE.fullmatch(self.file):
            raise ValueError(f"{self.name}: file {self.file!r} or sha256 {self.sha256!r} is wrong")
        if type(self.size) is not int or not 0 <= self.size <= _MOST_BYTES:
            raise ValueError(f"{self.name}: size is {self.size!r}")


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What a name that can move stands for: a tag of a registry, a ref of a git repository.

    Attributes:
        value: digest or commit; "" where it could not be had.
        unresolved: why it could not.
    """

    value: str = ""
    unresolved: str = ""

    def __post_init__(self) -> None:
        if bool(self.value) == bool(self.unresolved):
            raise ValueError(f"value {self.value!r} and unresolved {self.unresolved!r}: one of them has to be there")


@dataclass(frozen=True, kw_only=True)
class LockedToolchain:
    """What one toolchain resolves to for one Python.

    Attributes:
        python: the Python for which it was resolved.
        wheels: by name.
        unresolved: "distribution==version" to why no index here has it; then the others are locked without what
            they need, but for the profile `core`.
        core: names of the wheels that the profile `core` takes, what they need included.
    """

    python: str
    wheels: tuple[LockedWheel, ...]
    unresolved: Mapping[str, str]
    core: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if missing := set(self.core) - {wheel.name for wheel in self.wheels}:
            raise ValueError(f"core names {missing.pop()!r}, which is not among the wheels")

    def wheel(self, name: str, version: str) -> LockedWheel | None:
        """The wheel of that name and version; None where the lock does not hold it."""
        return next((wheel for wheel in self.wheels if (wheel.name, wheel.version) == (name, version)), None)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The whole lock.

    Attributes:
        toolchains: name to Python to what it resolves to.
        bases: a registry's reference to its digest.
        commits: address of a git repository to ref to commit.
        patches: "component/file" to sha256.
    """

    toolchains: Mapping[str, Mapping[str, LockedToolchain]] = field(default_factory=dict)
    bases: Mapping[str, Resolved] = field(default_factory=dict)
    commits: Mapping[str, Mapping[str, Resolved]] = field(default_factory=dict)
    patches: Mapping[str, str] = field(default_factory=dict)

    def find(self, toolchain: str, python: str) -> LockedToolchain | None:
        """What a toolchain resolves to for a Python; None where that is not locked."""
        return self.toolchains.get(toolchain, {}).get(python)

    def commit(self, location: str, ref: str) -> Resolved | None:
        """The commit of a ref; None where it is not locked."""
        return self.commits.get(location, {}).get(ref)


def read_lock(path: Path = LOCK) -> Lock:
    """Read the lock. One that was written before toolchains were locked for several Pythons holds what it holds.

    Raises:
        InputError: the file is not a lock.
    """
    try:
        document = yaml.load(read_text(path, what="lock", limit=_MAX_FILE_BYTES), Loader=_loader())  # noqa: S506 - safe
        return Lock(
            toolchains={str(name): _pythons(entry) for name, entry in document["toolchains"].items()},
            bases={str(name): _resolved(entry, "digest") for name, entry in document.get("bases", {}).items()},
            commits={
                str(location): {str(ref): _resolved(entry, "commit") for ref, entry in refs.items()}
                for location, refs in document.get("commits", {}).items()
            },
            patches={str(name): str(sha256) for name, sha256 in document.get("patches", {}).items()},
        )
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(
            f"lock {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="what ./inv lock writes",
            todo="run ./inv lock again",
        ) from error


def write_lock(lock: Lock, path: Path = LOCK) -> None:
    """Write the lock; the same lock gives the same bytes."""
    write_atomic(path, lock_text(lock))


def lock_text(lock: Lock) -> str:
    """The lock's text."""
    document = {
        "bases": {name: _entry(lock.bases[name], "digest") for name in sorted(lock.bases)},
        "commits": {
            location: {ref: _entry(refs[ref], "commit") for ref in sorted(refs)}
            for location, refs in sorted(lock.commits.items())
        },
        "patches": {name: lock.patches[name] for name in sorted(lock.patches)},
        "toolchains": {
            name: {
                python: {
                    "core": sorted(locked.core),
                    "unresolved": dict(locked.unresolved),
                    "wheels": _files(locked.wheels),
                }
                for python, locked in sorted(pythons.items())
            }
            for name, pythons in lock.toolchains.items()
        },
    }
    return _HEADER + yaml.safe_dump(document, sort_keys=False, width=400, default_flow_style=None)


def _files(files: tuple[LockedWheel, ...]) -> list[dict[str, Any]]:
    return [asdict(file) for file in sorted(files, key=lambda file: file.name)]


def _entry(resolved: Resolved, what: str) -> dict[str, str]:
    return {what: resolved.value} if resolved.value else {"unresolved": resolved.unresolved}


def _resolved(entry: Mapping[str, str], what: str) -> Resolved:
    return Resolved(value=str(entry.get(what, "")), unresolved=str(entry.get("unresolved", "")))


def _loader() -> type[yaml.SafeLoader]:
    """Safe loading; ten times faster where PyYAML was built with libyaml."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _pythons(entry: Mapping[str, Any]) -> dict[str, LockedToolchain]:
    entries = {entry["python"]: entry} if "wheels" in entry else entry
    return {str(python): _toolchain(str(python), one) for python, one in entries.items()}


def _toolchain(python: str, entry: Mapping[str, Any]) -> LockedToolchain:
    return LockedToolchain(
        python=python,
        wheels=tuple(LockedWheel(**wheel) for wheel in entry["wheels"]),
        unresolved={str(name): str(why) for name, why in entry["unresolved"].items()},
        core=tuple(entry.get("core", ())),
    )
