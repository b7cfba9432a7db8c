"""Gets the sources of a component and verifies them; they are never run or built outside a builder container."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from images.build_plan import Source, SourceKind
from images.git_source import checkout
from images.index import fetch_file
from lanewise.errors import InputError
from lanewise.files import writing

_MAX_TREE_FILES = 1_000_000


def fetch_source(source: Source, cache: Path, told: Callable[[str], None] = lambda _line: None) -> Path:
    """The sources as a folder of the cache: a checkout, a copy of a tree, or the folder that holds one archive.

    Args:
        source: what to get; what is fetched is held against its identity, wherever it comes from.
        cache: folder that sources, and wheels of the index, are kept below.
        told: is told what happens.

    Raises:
        InputError: the place does not have what is asked for.
        LanewiseError: it does not answer, sends something else, or there is no space.
    """
    own = cache / "sources"
    name = source.location.partition("==")[0]
    match source.kind:
        case SourceKind.SDIST:
            return fetch_file(name, source.identity, own / "files", index=source.mirror, told=told).parent
        case SourceKind.WHEEL:  # where images/wheels.py keeps them, too, and in the same way
            return fetch_file(name, source.identity, cache / "wheels", index=source.mirror, told=told).parent
        case SourceKind.GIT:
            return checkout(source.location, source.identity, source.ref, own, told, mirror=source.mirror)
        case SourceKind.TREE:
            return _copied(Path(source.mirror or source.location), source.identity, own)


def tree_hash(folder: Path) -> str:
    """Hash of a folder's files, their names, and which are programs; times, owners and git's own are left out.

    Raises:
        InputError: there is no such folder, it cannot be read, or it holds something that is no file, folder or link.
    """
    digest = hashlib.sha256()
    try:
        for path in _entries(folder):
            state = path.lstat()
            if stat.S_ISLNK(state.st_mode):
                kind, content = "link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
            else:
                kind = "program" if state.st_mode & stat.S_IXUSR else "file"
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{kind} {content} ".encode() + os.fsencode(path.relative_to(folder)) + b"\0")
    except OSError as error:
        raise _unusable(folder, f"{error.filename} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise _unusable(folder, "there is no such folder")
    found: list[Path] = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = sorted(set(folders) - set(links) - {".git"})
        found += (Path(parent, name) for name in (*files, *links) if name != ".git")
        if len(found) > _MAX_TREE_FILES:
            raise _unusable(folder, f"it has more than {_MAX_TREE_FILES:,} files")
    for path in found:
        if not (path.is_symlink() or path.is_file()):
            raise _unusable(folder, f"{path} is neither a file nor a link")
    return sorted(found)


def _copied(folder: Path, identity: str, cache: Path) -> Path:
    """A copy that stays as it is while the tree is worked on; only what has the right hash is kept."""
    kept = cache / "trees" / identity
    if kept.is_dir():
        return kept
    _entries(folder)  # a copy of a pipe would never end
    with writing(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".copy-", dir=kept.parent) as temporary:
            copy = Path(temporary, "tree")
            try:
                shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
            except shutil.Error as error:  # a list of what could not be copied
                raise _unusable(folder, str(error)[:200]) from error
            if (found := tree_hash(copy)) != identity:
                raise InputError(
                    f"the files in {folder} have the hash {found}",
                    expected=f"{identity}, as planned",
                    todo="plan again: the files changed since",
                )
            copy.replace(kept)
    return kept


def _unusable(folder: Path, why: str) -> InputError:
    return InputError(
        f"cannot build from {folder}: {why}", expected="a folder of files and links", todo="check the path"
    )
