"""Members of zip and tar archives, one after the other, without unpacking; archives that lie are refused by name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from images.contents import Buffer, DamagedError, Member, Stream, unreadable
from lanewise.errors import InputError

Wanted = Callable[[str, int], bool]

_MOST_MEMBERS = 200_000
"""Ten times what the largest wheels hold; every member costs memory in zipfile."""
_MOST_DIRECTORY_BYTES = 64 << 20
_MOST_RATIO = 1032
"""Deflate's bound, 1032:1 (zlib's technical details, https://zlib.net/zlib_tech.html): more is a lie."""
_LOCAL_HEADER_BYTES = 30
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What the wheel format's tools write."""
_END_OF_DIRECTORY = b"PK\x05\x06"
_END_BYTES = 22
_MOST_COMMENT = 0xFFFF
_MOST_HEADER_BYTES = 4 << 20
"""Between two members of a tar archive: long names and pax records, which tarfile keeps in memory."""
_BLOCK = 512
_OPENERS: dict[bytes, Callable[[Path], object]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""By an archive's first bytes. tarfile would take a compressed archive's early end for the archive's."""
COMPRESSED = tuple(_OPENERS)
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, LookupError, RuntimeError)
"""What zipfile raises over bad data; RuntimeError also for encryption and, as NotImplementedError, unknown methods."""
_NO_TAR = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, RecursionError)


class _Guarded:
    """A stream whose read raises nothing but DamagedError."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int, /) -> bytes:
        """See Stream."""
        try:
            return self._file.read(size)
        except (*_UNREADABLE, tarfile.TarError, lzma.LZMAError) as error:
            raise DamagedError(f"cannot be decompressed ({_words(error)})") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _refused(name: str, what: str, why: str) -> InputError:
    return InputError(
        f"{what} {name[:300]!r} cannot be read: {why}",
        expected=f"a whole {what} as common tools write it",
        todo="fetch or build it again",
    )


# ---------------------------------------------------------------------------------------------------------------- zip


def zip_members(path: Path, wanted: Wanted) -> Iterator[Member]:
    """The files of a zip archive that are wanted, in the order of their data.

    Raises:
        InputError: it is no zip archive, or its directory lies: overlapping members, absurd sizes, names that lead out.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            _check_directory_size(file, name)
            with zipfile.ZipFile(file) as archive:
                entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
                _check_entries(entries, archive.start_dir, name)
                for entry in entries:
                    if not entry.is_dir() and wanted(entry.filename, entry.file_size):
                        yield _zip_member(archive, entry)
    except _UNREADABLE as error:
        raise _refused(name, "zip archive", _words(error)) from error


def _check_directory_size(file: IO[bytes], name: str) -> None:
    """Before zipfile reads the directory into memory as a whole."""
    size = file.seek(0, 2)
    start = file.seek(max(0, size - _END_BYTES - _MOST_COMMENT))
    tail = file.read()
    if (at := tail.rfind(_END_OF_DIRECTORY)) < 0 or len(tail) - at < _END_BYTES:
        raise _refused(name, "zip archive", "it has no end record; it is cut short, or no zip archive")
    members, directory_bytes = struct.unpack_from("<HI", tail, at + 10)
    if members == 0xFFFF or directory_bytes == 0xFFFFFFFF:  # zip64: the numbers stand elsewhere
        directory_bytes = start + at  # at most; checked by what it takes to hold that
        record = tail.rfind(b"PK\x06\x06")
        if record >= 0 and len(tail) - record >= 56:  # the zip64 end record's size
            members, directory_bytes = struct.unpack_from("<32xQQ", tail, record)
    if members > _MOST_MEMBERS or directory_bytes > _MOST_DIRECTORY_BYTES:
        raise _refused(name, "zip archive", f"it declares {members:,} members in {directory_bytes:,} bytes")


def _check_entries(entries: list[zipfile.ZipInfo], directory: int, name: str) -> None:
    ends = [entry.header_offset for entry in entries[1:]] + [directory]
    for entry, end in zip(entries, ends, strict=True):
        if entry.header_offset < 0 or entry.header_offset + _LOCAL_HEADER_BYTES + entry.compress_size > end:
            raise _refused(name, "zip archive", f"its member {entry.filename[:100]!r} overlaps the next one")
        if entry.file_size > entry.compress_size * _MOST_RATIO + _BLOCK:
            sizes = f"{entry.file_size:,} bytes from {entry.compress_size:,}"
            raise _refused(name, "zip archive", f"its member {entry.filename[:100]!r} promises {sizes}")
        if not entry.filename or entry.filename.startswith("/") or ".." in entry.filename.split("/"):
            raise _refused(name, "zip archive", f"its member {entry.filename[:100]!r} has no place in it")


def _zip_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    if entry.compress_type not in _METHODS:
        return unreadable(entry.filename, f"is compressed by method {entry.compress_type}", entry.file_size)

    @contextmanager
    def opened() -> Iterator[Buffer | Stream]:
        try:
            file = archive.open(entry)
        except _UNREADABLE as error:
            raise DamagedError(f"cannot be opened ({_words(error)})") from error
        with file:
            yield _Guarded(file)

    return Member(path=entry.filename, size=entry.file_size, open=opened)


# ---------------------------------------------------------------------------------------------------------------- tar


class _Headers:
    """What tarfile reads from: bounds what it may read in search of the next member, and in all.

    tarfile keeps extended headers in memory whatever size they declare, and over some damaged ones it asks for more for
    ever after the end.
    """

    def __init__(self, stream: Stream | IO[bytes], most: int | None) -> None:
        self._stream = stream
        self._left = most
        self._budget = _MOST_HEADER_BYTES
        self._end = b""
        self._ended = 0

    def allow(self, size: int) -> None:
        """Let a member's data pass, and the headers of the next."""
        self._budget = size + _MOST_HEADER_BYTES

    @property
    def cut_short(self) -> bool:
        """Whether the stream ended without the zeros that end an archive."""
        return self._ended > 0 and self._end != bytes(_BLOCK)

    def read(self, size: int, /) -> bytes:
        """See Stream."""
        data = self._stream.read(size)
        self._end = (self._end + data)[-_BLOCK:]
        self._budget -= len(data)
        self._ended += not data
        if self._left is not None and (left := self._left - len(data)) >= 0:
            self._left = left
        elif self._left is not None:
            raise DamagedError(f"it unpacks to more than {_MOST_RATIO:,} times its size")
        if self._budget < 0:
            raise DamagedError("a header declares megabytes of names")
        if self._ended > 3:  # tarfile asks a few times
            raise DamagedError("it ends in the middle of a member")
        return data


def tar_file_members(path: Path, wanted: Wanted) -> Iterator[Member]:
    """The files of a tar archive on disk, compressed or not; as `tar_members`."""
    with path.open("rb") as file:
        magic = file.read(max(map(len, COMPRESSED)))
        file.seek(0)
        opener = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), None)
        if opener is None:
            yield from tar_members(file, str(path), wanted)
            return
    with cast("IO[bytes]", opener(path)) as unpacked:
        yield from tar_members(unpacked, str(path), wanted, most=path.stat().st_size * _MOST_RATIO + _BLOCK)


def tar_members(stream: Stream | IO[bytes], name: str, wanted: Wanted, *, most: int | None = None) -> Iterator[Member]:
    """The regular files of a tar archive of a root file system that are wanted, in its order.

    Args:
        stream: the archive, uncompressed.
        name: of the archive, for errors.
        wanted: which files to hand out.
        most: how many bytes it may have.

    Raises:
        InputError: it is no tar archive, is cut short, or holds a saved image's layers instead of its files.
    """
    try:
        yield from _tar_files(_Headers(stream, most), name, wanted)
    except (DamagedError, *_NO_TAR) as error:
        raise _refused(name, "tar archive", _words(error)) from error


def _tar_files(headers: _Headers, name: str, wanted: Wanted) -> Iterator[Member]:
    with tarfile.open(fileobj=cast("IO[bytes]", headers), mode="r|", errorlevel=2) as archive:
        while (entry := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
            if entry.size < 0:
                raise DamagedError(f"a member declares {entry.size} bytes")
            headers.allow(entry.size)
            path = entry.name.removeprefix("./").lstrip("/")
            if path == "oci-layout" or path.endswith("/layer.tar"):
                raise InputError(
                    f"{name[:300]!r} is a saved image: its files lie in layers",
                    expected="one file system",
                    todo="load it and name the image, or audit what docker export writes",
                )
            if entry.isreg() and wanted(path, entry.size):
                yield _tar_member(archive, entry, path)
    if headers.cut_short:
        raise DamagedError("it ends without an end mark")


def _tar_member(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> Member:
    if entry.issparse():
        return unreadable(path, "is stored sparsely", entry.size)

    @contextmanager
    def opened() -> Iterator[Buffer | Stream]:
        file = archive.extractfile(entry)
        if file is None:
            raise DamagedError("is no regular file")
        with file:
            yield _Guarded(file)

    return Member(path=path, size=entry.size, open=opened)
