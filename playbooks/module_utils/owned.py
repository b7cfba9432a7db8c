"""Files that are ours as a whole: which those are, what writing them would change, and writing them.

A file is ours where /var/lib/lanewise/owned.json has the hash of what it holds, or where it says itself whose it is.
owned.json: {"schema": "lanewise.owned/1", "files": {PATH: [SHA-256, ...]}, "folders": [PATH, ...]}: what may lie there
by our doing (between the two writes of a change, the old content or the new), and the folders that we made for it.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import hashlib
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from .node_files import (
    LIMIT,
    NodeFileError,
    below,
    damaged,
    locked,
    read_document,
    remove_document,
    sync_folder,
    write_atomic,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

SCHEMA = "lanewise.owned/1"
RECORD = "/var/lib/lanewise/owned.json"
OWNER_TEXT = "Managed by Lanewise"
LOST = (
    "which files are ours: those that do not say so themselves, such as /etc/docker/daemon.json, are then taken for "
    "another owner's, and revert leaves them"
)


@dataclass(frozen=True)
class Want:
    """A file that shall be there, or, with empty text, shall not.

    Args:
        path: absolute, as on the node.
        text: all that it holds.
        mode: permission bits.
        leave: whether a file of another owner is left alone; otherwise it is refused.
    """

    path: str
    text: str
    mode: int = 0o644
    leave: bool = False


@dataclass(frozen=True)
class Change:
    """A file before and after; None for text and mode where there is no file."""

    path: str
    before: str | None
    after: str | None
    mode_before: int | None
    mode_after: int | None


@dataclass(frozen=True)
class Outcome:
    """What was changed (or would be), and which files of other owners were left alone."""

    changes: list[Change]
    foreign: list[str]


@dataclass(frozen=True)
class _Found:
    """What lies where a file of ours belongs; data and mode are None where there is no regular file."""

    want: Want
    place: Path
    data: bytes | None = None
    mode: int | None = None
    foreign: bool = False

    @property
    def differs(self) -> bool:
        want = (self.want.text.encode(), self.want.mode) if self.want.text else (None, None)
        return not self.foreign and (self.data, self.mode) != want

    def change(self) -> Change:
        before = None if self.data is None else self.data.decode(errors="replace")
        return Change(
            self.want.path, before, self.want.text or None, self.mode, self.want.mode if self.want.text else None
        )


@dataclass(frozen=True)
class _Record:
    """owned.json."""

    files: dict[str, list[str]]
    folders: list[str]


def settle(root: str, wants: list[Want], owner_text: str, *, only_in: Collection[str] = (), write: bool) -> Outcome:
    """Have each file hold its text, or be gone; with `write` false, say what that would change.

    Args:
        root: the node's file system.
        wants: the files.
        owner_text: by which a file of ours is known without the record.
        only_in: folders in which recorded files of ours that are not wanted any more shall be gone.
        write: whether to act.

    Raises:
        NodeFileError: a file of another owner lies where one of ours belongs, or one cannot be read: nothing was
            written. Or one cannot be written: those before it are, and the next run goes on.
    """
    path = below(root, RECORD)
    if not write:
        record = _load(path)
        return _outcome(_look(root, [*wants, *_left_over(record, wants, only_in)], owner_text, record))
    with locked(path.parent):
        record = _load(path)
        found = _look(root, [*wants, *_left_over(record, wants, only_in)], owner_text, record)
        claimed = _claimed(root, record, found)
        _store(path, record, claimed)
        for one in found:
            if one.differs:
                _write(one)
        _store(path, claimed, _settled(root, claimed, found))
        return _outcome(found)


def _left_over(record: _Record, wants: list[Want], only_in: Collection[str]) -> list[Want]:
    named = {want.path for want in wants}
    folders = set(only_in)
    return [Want(path, "") for path in record.files if path not in named and str(PurePosixPath(path).parent) in folders]


def _outcome(found: list[_Found]) -> Outcome:
    foreign = [one.want.path for one in found if one.foreign and one.want.text]
    return Outcome([one.change() for one in found if one.differs], foreign)


def _look(root: str, wants: list[Want], owner_text: str, record: _Record) -> list[_Found]:
    found = [_find(root, want, owner_text, record.files.get(want.path, [])) for want in wants]
    refused = [one.want.path for one in found if one.foreign and one.want.text and not one.want.leave]
    if refused:
        raise NodeFileError(
            f"not ours, so nothing was written: {', '.join(refused)}; expected no file there, or one that Lanewise "
            "wrote; move it away, or take what it is for out of the settings"
        )
    return found


def _find(root: str, want: Want, owner_text: str, hashes: list[str]) -> _Found:
    place = below(root, want.path)
    try:
        status = place.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT:
            return _Found(want, place, foreign=True)
        data = place.read_bytes()
    except FileNotFoundError:
        return _Found(want, place)
    except OSError as error:
        raise NodeFileError(f"cannot read {want.path}, so nothing was written: {error.strerror}") from error
    ours = _hash(data) in hashes or owner_text.encode() in data
    return _Found(want, place, data, stat.S_IMODE(status.st_mode), foreign=not ours)


def _claimed(root: str, record: _Record, found: list[_Found]) -> _Record:
    """The record before writing: of a file that changes, the old content and the new are ours."""
    files, folders = dict(record.files), set(record.folders)
    for one in found:
        if one.differs and one.want.text:
            files[one.want.path] = [*record.files.get(one.want.path, []), _hash(one.want.text.encode())]
            folders |= {name for name in _folders(one.want.path) if not below(root, name).exists()}
    return _Record(files, sorted(folders))


def _settled(root: str, claimed: _Record, found: list[_Found]) -> _Record:
    """The record after writing. Folders that we made are removed when they are empty, forgotten with the last file."""
    files = {path: hashes for path, hashes in claimed.files.items() if path not in {one.want.path for one in found}}
    files |= {one.want.path: [_hash(one.want.text.encode())] for one in found if one.want.text and not one.foreign}
    folders = []
    for name in sorted(claimed.folders, key=len, reverse=True):
        place = below(root, name)
        with suppress(OSError):  # there is something in it
            place.rmdir()
        folders += [name] if place.exists() else []
    return _Record(files, sorted(folders) if files else [])


def _write(one: _Found) -> None:
    try:
        if one.want.text:
            write_atomic(one.place, one.want.text, one.want.mode)
        else:
            one.place.unlink()
            sync_folder(one.place.parent)
    except OSError as error:
        raise NodeFileError(f"cannot write {one.want.path}: {error.strerror}") from error


def require_sound(root: str) -> None:
    """Refuse a record that cannot be used.

    Raises:
        NodeFileError: the file is not such a record.
    """
    _load(below(root, RECORD))


def _load(path: Path) -> _Record:
    document = read_document(path, SCHEMA, LOST)
    files, folders = document.get("files", {}), document.get("folders", [])
    sound = isinstance(files, dict) and all(isinstance(hashes, list) for hashes in files.values())
    if not sound or not isinstance(folders, list) or not all(map(_is_path, [*files, *folders])):
        raise damaged(path, "is damaged in 'files' or 'folders'", LOST)
    return _Record(files, folders)


def _is_path(name: object) -> bool:
    """Whether `below` takes it: what is not one is found before anything is written, not after."""
    return isinstance(name, str) and name.startswith("/") and ".." not in name.split("/") and len(name.strip("/")) > 0


def _store(path: Path, old: _Record, new: _Record) -> None:
    if not new.files:
        remove_document(path)
    elif new != old:
        write_document(path, {"schema": SCHEMA, "files": new.files, "folders": new.folders})


def _folders(path: str) -> list[str]:
    """The folders above a path, without the root."""
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
