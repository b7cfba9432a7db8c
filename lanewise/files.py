"""Writes files so that a reader never sees half of one; turns the system's refusals into errors that help."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise.errors import InputError, LanewiseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError raised while `path` is written into a LanewiseError that names the path and the cause."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise LanewiseError(
                f"no space left while writing {path} ({error.strerror})",
                expected="room on the file system, or within the quota, of that path",
                todo="free some space there and go on with --resume, or name a path on another file system",
            ) from error
        raise InputError(
            f"cannot write {path} ({error.strerror or error})",
            expected="a path in a folder that this user may write to",
            todo="name another path, or change the folder's permissions",
        ) from error


def write_atomic(path: Path, text: str) -> None:
    """Write `text` to `path` as a whole or not at all: a temporary file beside it, fsync, then rename.

    Raises:
        InputError: the folder cannot be written to, or there is something else than a file.
        LanewiseError: there is no space.
    """
    with writing(path):
        path = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
        if path.exists() and not path.is_file():  # a rename would put a file in place of /dev/null
            raise OSError(errno.EINVAL, "there is something else than a regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                os.fchmod(handle, path.stat().st_mode & 0o777 if path.exists() else 0o644)  # mkstemp gives 0600
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)  # noqa: PTH105 - a rename over the target, as text, in one step
        except BaseException:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108
            raise


def read_text(path: Path, *, what: str, limit: int) -> str:
    """Read a text file that a user named.

    Args:
        path: the file.
        what: what the file is, for the error, e.g. "workload".
        limit: the most bytes such a file may have.

    Raises:
        InputError: it is missing, not a regular file, unreadable, larger than `limit`, or not UTF-8.
    """
    try:
        if not path.is_file():
            problem = "it is not a file" if path.exists() else "there is no such file"
            raise InputError(f"cannot read {what} {path}: {problem}", expected="a regular file", todo="check the path")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(
            f"cannot read {what} {path} ({error.strerror})", expected="a readable file", todo="check its permissions"
        ) from error
    if len(data) > limit:
        raise InputError(
            f"{what} {path} is larger than {limit:,} bytes", expected=f"a {what} file", todo="check the path"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what} {path} is not UTF-8 text (byte {error.start})", expected="a text file", todo="check the path"
        ) from error


def shown_path(path: Path) -> str:
    """A path for people: relative where it lies below the current folder."""
    try:
        return str(path.resolve().relative_to(path.cwd()))
    except ValueError:
        return str(path)
