"""Reads packages, packed or installed, into a Snapshot: in one pass over each target, only what the rules ask for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from fnmatch import translate

from packaging.utils import canonicalize_name
from packaging.version import Version

from images.capability import SM120
from images.contents import DamagedError, Member
from images.examine import Library, NcclBuild, examine
from images.rules import Approach, libraries_wanted, paths_wanted, sources_wanted
from images.snapshot import Snapshot
from images.targets import Target, TargetKind, walk
from images.unused import read_unused
from lanewise.errors import InputError

_MOST_TEXT_BYTES = 8 << 20
_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages/|[^/]+\.data/(?:pure|plat)lib/")
_METADATA = re.compile(r"([^/-]+)(?:-[^/]*)?\.dist-info/METADATA")
_NCCL = re.compile(r"nvidia/nccl/lib/libnccl\.so\.2")


def read_packages(targets: Mapping[str, Target], approaches: Iterable[Approach]) -> Snapshot:
    """What the rules need to know of these packages; targets are read side by side.

    Args:
        targets: by name: wheels under their distribution's, or an environment, a root file system, an image.
        approaches: whose rules say what is to be read.

    Raises:
        InputError: a target cannot be read as a whole, and is no wheel: a wheel's fault is one of many.
    """
    wanted = _Wanted.of(approaches)
    with ThreadPoolExecutor() as pool:
        read = list(pool.map(lambda name: _read_guarded(name, targets[name], wanted), targets))
    return Snapshot(
        texts={path: text for part in read for path, text in part.texts.items()},
        libraries={path: library for part in read for path, library in part.libraries.items()},
        versions={name: version for part in read for name, version in part.versions.items()},
        nccl=next((part.nccl for part in read if part.nccl), None),
        unreadable={what: why for part in read for what, why in part.unreadable.items()},
        paths=frozenset(path for part in read for path in part.paths),
    )


def packages_wanted(approaches: Iterable[Approach]) -> frozenset[str]:
    """Folders of site-packages that the rules look into."""
    return _Wanted.of(approaches).packages | {"nvidia/nccl"}


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Which files of site-packages the rules ask for."""

    texts: re.Pattern[str]
    libraries: re.Pattern[str]
    packages: frozenset[str]

    @classmethod
    def of(cls, approaches: Iterable[Approach]) -> _Wanted:
        approaches = tuple(approaches)
        texts, libraries = sources_wanted(approaches), libraries_wanted(approaches)
        return cls(
            texts=_any_of(texts),
            libraries=_any_of(libraries),
            packages=frozenset(p.partition("/")[0] for p in texts | libraries | paths_wanted(approaches)),
        )

    def file(self, path: str) -> bool:
        found = (self.texts, self.libraries, _METADATA, _NCCL)
        return any(expression.fullmatch(path) for expression in found)


def _any_of(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(sorted(translate(pattern) for pattern in globs)) or r"(?!)")


@dataclass(kw_only=True)
class _Part:
    """What was read below one root."""

    texts: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    distributions_at_fault: dict[str, str] = field(default_factory=dict)
    nccl: NcclBuild | None = None
    unreadable: dict[str, str] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def add(self, path: str, member: Member, wanted: _Wanted) -> None:
        try:
            if metadata := _METADATA.fullmatch(path):
                self._add_distribution(str(canonicalize_name(metadata[1])), member)
            elif wanted.texts.fullmatch(path):
                self.texts[path] = _text(member)
            else:
                self._add_library(path, member)
        except DamagedError as error:
            self.unreadable[path] = str(error)

    def _add_distribution(self, folders_name: str, member: Member) -> None:
        """A version, or the fault under the name that the folder gives: the package is there, nobody knows which."""
        try:
            name, version = _distribution(_text(member))
            self.versions[name] = version
        except DamagedError as error:
            self.distributions_at_fault[folders_name] = f"{member.path}: {error}"

    def _add_library(self, path: str, member: Member) -> None:
        found = examine(replace(member, path=path), capability=SM120, table=read_unused())
        self.nccl = found.nccl or self.nccl
        if found.library:
            self.libraries[path] = found.library

    def take(self, other: _Part, package: str) -> None:
        """Take over what another part knows of one package."""
        inside = f"{package}/"
        self.texts |= {path: text for path, text in other.texts.items() if path.startswith(inside)}
        self.libraries |= {path: found for path, found in other.libraries.items() if path.startswith(inside)}
        self.unreadable |= {path: why for path, why in other.unreadable.items() if path.startswith(inside)}
        self.paths |= {path for path in other.paths if path.startswith(inside)}


def _read_guarded(name: str, target: Target, wanted: _Wanted) -> _Part:
    try:
        return _read(target, wanted)
    except InputError as error:
        if target.kind is not TargetKind.WHEEL:
            raise
        return _Part(unreadable={name: error.what})


def _read(target: Target, wanted: _Wanted) -> _Part:
    """Files by the site-packages folder that they lie in, or, for editable installs, the folder of their package."""
    sites: dict[str, _Part] = defaultdict(_Part)
    loose: dict[str, _Part] = defaultdict(_Part)

    def place(path: str) -> tuple[dict[str, _Part], str, str] | None:
        site = _SITE.match(path)
        if site or target.kind is TargetKind.WHEEL:
            inside = path[site.end() :] if site else path
            return sites, site.group() if site and target.kind is not TargetKind.WHEEL else "", inside
        found = max(((path.rfind(f"/{package}/"), package) for package in wanted.packages), default=(-1, ""))
        return (loose, path[: found[0] + 1], path[found[0] + 1 :]) if found[0] >= 0 else None

    def noted(path: str, _size: int) -> bool:
        if (placed := place(path)) is None:
            return False
        parts, root, rest = placed
        if rest.partition("/")[0] in wanted.packages:
            parts[root].paths.add(rest)
        return wanted.file(rest)

    with closing(walk(target, noted)) as members:  # an image's container is removed, whatever happens
        for member in members:
            if placed := place(member.path):
                parts, root, rest = placed
                parts[root].add(rest, member, wanted)
    return _joined(sites, loose, wanted)


def _joined(sites: dict[str, _Part], loose: dict[str, _Part], wanted: _Wanted) -> _Part:
    """One part of many; a package that is installed more than once cannot be told apart, and is called unreadable."""
    whole = _Part()
    for part in sites.values():
        whole.versions |= part.versions
        whole.unreadable |= part.distributions_at_fault
        whole.nccl = whole.nccl or part.nccl
    for package in wanted.packages:
        for parts, sign in ((sites, f"{package}/"), (loose, f"{package}/__init__.py")):
            holders = [root for root, part in parts.items() if any(path.startswith(sign) for path in part.paths)]
            if len(holders) > 1:
                whole.unreadable[package] = f"installed more than once: {', '.join(sorted(holders))}"
            elif holders:
                whole.take(parts[holders[0]], package)
            if holders:
                break
    return whole


def _text(member: Member) -> str:
    try:
        return member.read(_MOST_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedError(f"not UTF-8 text (byte {error.start})") from error


def _distribution(metadata: str) -> tuple[str, str]:
    headers = HeaderParser().parsestr(metadata)
    if not headers["Name"] or not headers["Version"]:
        raise DamagedError("no Name and Version")
    try:
        return str(canonicalize_name(headers["Name"])), str(Version(headers["Version"]))
    except ValueError:  # InvalidVersion is one; so is that of a number with thousands of digits
        raise DamagedError(f"its version is {headers['Version'][:80]!r}") from None
