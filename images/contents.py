"""What can be read: a member of a target, its content as a buffer or as a stream, and the one error of damaged data."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

Buffer = mmap.mmap | bytes
"""Content with random access: pages of a mapped file are read when they are looked at."""


class DamagedError(Exception):
    """A file does not hold what its kind promises, or cannot be read; the text says what, without the file's name."""


class Stream(Protocol):
    """Content that comes once, from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, fewer than asked for only before the end, none at the end.

        Raises:
            DamagedError: the data cannot be had.
        """


@dataclass(frozen=True, kw_only=True)
class Member:
    """A regular file of a target.

    Attributes:
        path: posix path relative to the target's root.
        size: bytes, as declared.
        open: gives the content for the length of a `with` block, a Buffer for files on disk, else a Stream; raises
            DamagedError. A stream's member must be opened before the walk goes on, and once.
    """

    path: str
    size: int
    open: Callable[[], AbstractContextManager[Buffer | Stream]]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def read(self, limit: int) -> bytes:
        """The whole content.

        Raises:
            DamagedError: it is larger than `limit` bytes, or cannot be read.
        """
        if self.size > limit:
            raise DamagedError(f"{self.size:,} bytes are more than the {limit:,} that are read of such a file")
        with self.open() as content:
            return content[:] if isinstance(content, Buffer) else read_exactly(content, self.size)


def read_exactly(stream: Stream, size: int) -> bytes:
    """The next `size` bytes.

    Raises:
        DamagedError: there are fewer.
    """
    parts, left = [], size
    while left:
        if not (part := stream.read(min(left, 1 << 20))):
            raise DamagedError(f"ends {left:,} bytes early")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def file_member(path: str, real: str, size: int) -> Member:
    """A file on disk, mapped when it is opened."""
    return Member(path=path, size=size, open=lambda: _mapped(real))


@contextmanager
def _mapped(real: str) -> Iterator[Buffer]:
    try:
        # Between the walk and now the name may have become a pipe or a link: neither is waited for or followed.
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedError(f"cannot be read ({error.strerror})") from error
    try:
        size = os.fstat(handle).st_size
        content: Buffer = mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        raise DamagedError(f"cannot be mapped ({error})") from error
    finally:
        os.close(handle)
    if isinstance(content, bytes):
        yield content
        return
    with content:
        content.madvise(mmap.MADV_RANDOM)  # headers lie far apart: what the kernel would read ahead is not looked at
        yield content


def unreadable(path: str, why: str, size: int = 0) -> Member:
    """A member of which only the error can be had."""

    @contextmanager
    def refuse() -> Iterator[Buffer | Stream]:
        raise DamagedError(why)
        yield b""

    return Member(path=path, size=size, open=refuse)
