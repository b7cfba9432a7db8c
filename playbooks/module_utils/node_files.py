"""Files on a node: below a root, written as a whole or not at all, under one lock.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 4 * 1024 * 1024  # bytes of a file of ours
LOCK_SECONDS = 10.0
LOCK = "lock"


class NodeFileError(Exception):
    """A file of a node cannot be used as it is; the message names the file."""


class DamagedError(NodeFileError):
    """A document of ours does not hold what we write there."""


def below(root: str, name: str) -> Path:
    """Where the absolute path `name` lies below `root`. Its folder's links are followed, its last part is not.

    Raises:
        NodeFileError: the path is not absolute, has a part "..", or leads out of `root`.
    """
    top, parts = Path(os.path.realpath(root)), Path(name).parts
    if not name.startswith("/") or ".." in parts or len(parts) < 2:
        raise NodeFileError(f"{name!r} is not the absolute path of a file")
    folder = Path(os.path.realpath(top.joinpath(*parts[1:-1])))
    if not folder.is_relative_to(top):
        raise NodeFileError(f"{name} leads to {folder}, out of {top}")
    return folder / parts[-1]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which is made where it is missing, and removed when nothing but the lock is in it.

    Raises:
        NodeFileError: another run holds it for longer than LOCK_SECONDS, or the file cannot be opened.
    """
    path = folder / LOCK
    handle = _lock(path)
    try:
        yield
    finally:
        if os.listdir(folder) == [LOCK]:  # noqa: PTH208 - names are all that is asked
            path.unlink()
            with suppress(OSError):  # another run has just made its lock
                folder.rmdir()
        os.close(handle)


def _lock(path: Path) -> int:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        handle = _try_lock(path)
        if handle is not None:
            return handle
        if time.monotonic() > deadline:
            raise NodeFileError(f"another run has held {path} for {LOCK_SECONDS:g} s; try again when it has ended")
        time.sleep(0.1)


def _try_lock(path: Path) -> int | None:
    """The locked file; None where another run holds it, or has just removed it or its folder."""
    handle = -1
    try:
        _make(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        raise NodeFileError(f"cannot take the lock {path}: {error.strerror}") from error
    if handle >= 0:
        os.close(handle)
    return None


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text`, so that after a crash the old file or the new one is there; on disk when this returns.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    _make(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, mode)  # mkstemp gives 0600
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)  # noqa: PTH105 - mkstemp's name is a str
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
    sync_folder(path.parent)


def _make(folder: Path) -> None:
    """Make a folder and those above it readable by all, whatever the umask is."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def sync_folder(folder: Path) -> None:
    """Have the disk know which names are in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def damaged(path: Path, why: str, lost: str) -> DamagedError:
    """The error for a document that is not as we write it: `why` follows its name, `lost` is what goes with it."""
    return DamagedError(f"{path} {why}; restore it, or move it away to start anew, which loses {lost}")


def read_document(path: Path, schema: str, lost: str) -> dict[str, Any]:
    """A JSON document of ours, {} where there is none.

    Args:
        path: its place.
        schema: what its "schema" has to be.
        lost: what is lost without it, for the error.

    Raises:
        DamagedError: it is not such a document. It is never overwritten then: it may be all that knows the way back.
        NodeFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        document = json.loads(data) if len(data) <= LIMIT else None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NodeFileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"is damaged: {error}", lost) from error
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise damaged(path, f"is not a {schema} document", lost)
    return document


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document as a whole.

    Raises:
        NodeFileError: it cannot be written.
    """
    try:
        write_atomic(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise NodeFileError(f"cannot write {path}: {error.strerror}; nothing else was changed") from error


def remove_document(path: Path) -> None:
    """Remove a document that holds nothing any more.

    Raises:
        NodeFileError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NodeFileError(f"cannot remove {path}: {error.strerror}") from error
