"""Goes through the regular files of whatever can be audited, once: a file, a wheel, a folder, an archive, an image."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from images.archives import COMPRESSED, tar_file_members, tar_members, zip_members
from images.container import exported
from images.contents import Member, file_member, unreadable
from lanewise.errors import InputError

Wanted = Callable[[str, int], bool]
"""Decides from a member's path and size whether it is handed out."""

_NOT_FILES = frozenset({"proc", "sys", "dev"})
"""Kernel interfaces at the top of a running system: no part of what was installed, and reading some never ends."""
_TAR_MAGIC = b"ustar"


class TargetKind(StrEnum):
    """What a target is."""

    FILE = "file"
    WHEEL = "wheel"
    ENVIRONMENT = "environment"
    ROOT = "root file system"
    FOLDER = "folder"
    ARCHIVE = "archive of a root file system"
    IMAGE = "container image"

    @property
    def whole_system(self) -> bool:
        """Whether everything that will be there at run time is in it."""
        return self in (TargetKind.ROOT, TargetKind.ARCHIVE, TargetKind.IMAGE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Something to go through.

    Attributes:
        name: as the user wrote it: a path or an image.
        kind: what it is.
    """

    name: str
    kind: TargetKind


def find_target(name: str) -> Target:
    """Tell what a path is; what is no path is taken for a container image.

    Raises:
        InputError: it looks like a path and is none, or is neither a file nor a folder, or cannot be read.
    """
    path = Path(name)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - Path("") is the current folder
        if stat.S_ISDIR(mode):
            return Target(name=name, kind=_folder_kind(path))
        if stat.S_ISREG(mode):
            return Target(name=name, kind=_file_kind(path))
    except FileNotFoundError:
        if name and not name.startswith((".", "/", "~")) and not name.endswith((".whl", ".so", ".tar", ".zip")):
            return Target(name=name, kind=TargetKind.IMAGE)
        raise _unusable(name, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise _unusable(name, getattr(error, "strerror", None) or str(error)) from error
    raise _unusable(name, "it is neither a regular file nor a folder")


def _unusable(name: str, why: str) -> InputError:
    return InputError(
        f"cannot read {name[:300]!r}: {why}",
        expected="a library, a wheel, a folder, a tar archive of a root file system, or the name of a container image",
        todo="check the path or the name",
    )


def _folder_kind(path: Path) -> TargetKind:
    if (path / "etc").is_dir() and (path / "usr").is_dir():
        return TargetKind.ROOT
    inside = (path / "pyvenv.cfg").exists() or any(path.glob("lib/python3*/site-packages"))
    if inside or path.name in ("site-packages", "dist-packages") or any(path.glob("*.dist-info")):
        return TargetKind.ENVIRONMENT
    return TargetKind.FOLDER


def _file_kind(path: Path) -> TargetKind:
    with path.open("rb") as file:
        head = file.read(512)
    if head[257:262] == _TAR_MAGIC or (head.startswith(COMPRESSED) and not path.name.endswith(".whl")):
        return TargetKind.ARCHIVE
    return TargetKind.WHEEL if path.suffix in (".whl", ".zip") or zipfile.is_zipfile(path) else TargetKind.FILE


def walk(target: Target, wanted: Wanted) -> Generator[Member, None, None]:
    """The target's regular files that are wanted, each once; a single file is always wanted.

    Members of wheels, archives and images must be opened, if at all, before the next one is asked for. A folder's links
    are not followed: what they point to within it is met under its own name. Nothing is unpacked. Close the generator
    where it may be left early (contextlib.closing): an image's container is removed then.

    Raises:
        InputError: the target as a whole cannot be understood.
        UnreachableError: no container engine answers.
    """
    match target.kind:
        case TargetKind.FILE:
            path = Path(target.name).resolve()
            yield file_member(path.name, str(path), path.stat().st_size)
        case TargetKind.WHEEL:
            yield from zip_members(Path(target.name), wanted)
        case TargetKind.ARCHIVE:
            yield from tar_file_members(Path(target.name), wanted)
        case TargetKind.IMAGE:
            with exported(target.name) as stream:
                yield from tar_members(stream, target.name, wanted)
        case _:
            yield from _folder_members(target, wanted)


def _folder_members(target: Target, wanted: Wanted) -> Iterator[Member]:
    skipped = _NOT_FILES if target.kind is TargetKind.ROOT else frozenset[str]()
    met: set[tuple[int, int]] = set()
    waiting = [("", os.path.realpath(target.name))]
    while waiting:
        prefix, folder = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield unreadable(prefix.rstrip("/") or ".", f"cannot be listed ({error.strerror})")
            continue
        below = []
        for entry in entries:
            path = _text(prefix + entry.name)
            if entry.is_dir(follow_symlinks=False):
                if prefix or entry.name not in skipped:
                    below.append((path + "/", entry.path))
            elif entry.is_file(follow_symlinks=False) and (member := _entry_member(entry, path, wanted, met)):
                yield member
        waiting += reversed(below)


def _entry_member(entry: os.DirEntry[str], path: str, wanted: Wanted, met: set[tuple[int, int]]) -> Member | None:
    try:
        state = entry.stat(follow_symlinks=False)
    except OSError as error:
        return unreadable(path, f"cannot be read ({error.strerror})")
    identity = (state.st_dev, state.st_ino)
    if identity in met or not wanted(path, state.st_size):
        return None
    if state.st_nlink > 1:  # another name of it may come
        met.add(identity)
    return file_member(path, entry.path, state.st_size)


def _text(name: str) -> str:
    """A file name that can be printed, whatever its bytes are."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
