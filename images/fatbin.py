"""Reads fatbin containers: the headers of the device code that nvcc puts into host files; never the code itself.

NVIDIA documents no layout. This one was calibrated on what nvcc 13.0.88 writes for known -gencode options (the tests do
it again where there is an nvcc), and gives cuobjdump's counts on real libraries (bench/audit_speed.py). Little endian:

    container: u32 magic, u16 version 1, u16 header bytes 16, u64 body bytes; then entries back to back
    entry: u16 kind, u16, u32 header bytes, u64 payload bytes, ... at 28 u32 SM number, ... at 40 u64 flags; payload
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from images.capability import CodeKind, CodeTarget
from images.contents import Buffer, DamagedError, Stream

MAGIC = struct.pack("<I", 0xBA55ED50)
EXECUTABLE_SECTION = b".nv_fatbin"
LARGE_DATA_SECTIONS = (b".ldata", b".lrodata")
"""Data beyond 2 GB of reach (x86-64's large model). cuFFT keeps kernels there, and loads them itself."""
RELOCATABLE_SECTION = b"__nv_relfatbin"
"""Code for device linking (nvcc -rdc=true); it stays in the linked file, beside what was linked from it."""
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<H2xIQ12xI8xQ")
_MOST_ENTRY_HEADER = 1 << 20
"""An entry's header also holds compiler options as text."""
_KINDS = {1: CodeKind.PTX, 2: CodeKind.SASS}
"""Others, such as 8, link-time optimisation's code, are neither and run on no GPU as they are."""
_ARCHITECTURE, _FAMILY = 0x100000, 0x200000
_COMPRESSED = 0x2000 | 0x8000
"""LZ4 and Zstandard: nvcc's -Xfatbin -compress-mode=speed, and all others."""
_ALIGNMENT = 8
_CHUNK = 1 << 20
_MOST_ENTRIES = 200_000
"""Containers and entries of a file; real libraries have thousands, and each is kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Device code for one target.

    Attributes:
        target: what it was compiled for.
        size: bytes in the file.
        compressed: whether these are compressed.
    """

    target: CodeTarget
    size: int
    compressed: bool = False


@dataclass(frozen=True, kw_only=True)
class Container:
    """A fatbin container.

    Attributes:
        offset: where it begins.
        size: bytes with its header.
        entries: its SASS and PTX.
        fault: what is wrong with it, or "". Where no section says that a container has to be there, other bytes may
            look like the beginning of one.
    """

    offset: int
    size: int
    entries: tuple[Entry, ...]
    fault: str = ""


class Cursor(Protocol):
    """A place in a file that only moves on."""

    position: int

    def find(self) -> bool:
        """Move to the next aligned magic number; False if there is none."""

    def take(self, size: int) -> bytes:
        """The next bytes, moving behind them; DamagedError if there are fewer."""

    def skip(self, size: int) -> None:
        """Move on; DamagedError behind the end."""


class BufferCursor:
    """A cursor in a part of a buffer; positions count from the buffer's beginning, alignment from `origin`."""

    def __init__(self, buffer: Buffer, start: int, end: int, *, origin: int = 0) -> None:
        self._buffer = buffer
        self._end = end
        self._origin = origin
        self.position = start

    def find(self) -> bool:
        """See Cursor."""
        at = _find(self._buffer, self.position, self._end, self._origin)
        self.position = at if at >= 0 else self._end
        return at >= 0

    def take(self, size: int) -> bytes:
        """See Cursor."""
        self.skip(size)
        return self._buffer[self.position - size : self.position]

    def skip(self, size: int) -> None:
        """See Cursor."""
        if self.position + size > self._end:
            raise DamagedError(f"ends within device code, at byte {self._end:,}")
        self.position += size


class StreamCursor:
    """A cursor in a stream of known size, of which it holds about a megabyte."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream = stream
        self._size = size
        self._chunk = b""
        self._start = 0
        self.position = 0

    @property
    def _end(self) -> int:
        return self._start + len(self._chunk)

    def _more(self) -> None:
        """Read on; what lies before the position is dropped."""
        if not (data := self._stream.read(min(_CHUNK, self._size - self._end))):
            raise DamagedError(f"ends after {self._end:,} of {self._size:,} bytes")
        kept = self._chunk[self.position - self._start :]
        self._start = self._end - len(kept)
        self._chunk = kept + data

    def find(self) -> bool:
        """See Cursor."""
        while (at := _find(self._chunk, self.position - self._start, len(self._chunk), -self._start)) < 0:
            if self._end == self._size:
                self.position = self._size
                return False
            self.position = max(self.position, self._end - len(MAGIC) + 1)
            self._more()
        self.position = self._start + at
        return True

    def take(self, size: int) -> bytes:
        """See Cursor."""
        self._require(size)
        while self._end < self.position + size:
            self._more()
        start = self.position - self._start
        self.position += size
        return self._chunk[start : start + size]

    def skip(self, size: int) -> None:
        """See Cursor."""
        self._require(size)
        self.position += size
        while self._end < self.position:
            self._more()

    def _require(self, size: int) -> None:
        if self.position + size > self._size:
            raise DamagedError(f"ends within device code, at byte {self._size:,}")


def _find(buffer: Buffer, start: int, end: int, origin: int) -> int:
    """Where the next magic number lies that is aligned as seen from `origin`; -1 if there is none."""
    at = buffer.find(MAGIC, start, end)
    while at >= 0 and (at - origin) % _ALIGNMENT:
        at = buffer.find(MAGIC, at + 1, end)
    return at


def containers(cursor: Cursor) -> Iterator[Container]:
    """All containers from the cursor on, faulty ones with what of them could be read.

    Raises:
        DamagedError: the file ends within one.
    """
    left = _MOST_ENTRIES
    while cursor.find():
        offset = cursor.position
        _, version, header, body = _CONTAINER.unpack(cursor.take(_CONTAINER.size))
        entries: list[Entry] = []
        if (version, header) == (1, _CONTAINER.size):
            fault = _read_entries(cursor, body, entries, left)
        else:
            fault = f"has a fatbin container of version {version} with a header of {header} bytes"
        yield Container(offset=offset, size=cursor.position - offset, entries=tuple(entries), fault=fault)
        left -= 1 + len(entries)
        if left <= 0:
            raise DamagedError(f"holds more than {_MOST_ENTRIES:,} pieces of device code")


def _read_entries(cursor: Cursor, body: int, entries: list[Entry], most: int) -> str:
    """Collect a body's entries; what is wrong with it, or ""."""
    end = cursor.position + body
    while cursor.position < end and len(entries) < most:
        at = cursor.position
        if end - at < _ENTRY.size:
            return f"has {end - at} bytes behind the device code that ends at byte {at:,}"
        kind, header, payload, sm, flags = _ENTRY.unpack(cursor.take(_ENTRY.size))
        if not _ENTRY.size <= header <= _MOST_ENTRY_HEADER or at + header + payload > end:
            return f"has device code at byte {at:,} with a header of {header:,} and {payload:,} bytes"
        if kind in _KINDS:
            target = _target(_KINDS[kind], sm, flags & (_ARCHITECTURE | _FAMILY))
            entries.append(Entry(target=target, size=payload, compressed=bool(flags & _COMPRESSED)))
        cursor.skip(header - _ENTRY.size + payload)
    return ""


@lru_cache(maxsize=1000)
def _target(kind: CodeKind, sm: int, flags: int) -> CodeTarget:
    """One value for all entries of a target: files have thousands."""
    return CodeTarget(sm=sm, suffix="a" if flags & _ARCHITECTURE else "f" if flags else "", kind=kind)
