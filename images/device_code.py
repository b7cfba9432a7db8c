"""What device code a file holds: host libraries and programs, objects, static libraries, cubins, fatbins, PTX text.

Files on disk are mapped: section headers say where device code lies, and only its headers are read. Members of archives
come as streams, in which the section headers are last: there every container is noted, and those are kept that turn out
to lie in a section of device code.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from images.capability import CodeKind, CodeTarget
from images.contents import Buffer, DamagedError, Stream, read_exactly
from images.elf import CUDA, HEADER_BYTES, Header, Section, find_sections, is_elf, read_header
from images.fatbin import (
    EXECUTABLE_SECTION,
    LARGE_DATA_SECTIONS,
    MAGIC,
    RELOCATABLE_SECTION,
    BufferCursor,
    Container,
    Entry,
    StreamCursor,
    containers,
)

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES = 60
_AR_END = b"`\n"
_PTX_TARGET = re.compile(rb"^[ \t]*\.target[ \t]+sm_(\d{2,3})([af]?)\b", re.MULTILINE)
_PTX_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 64 << 20
"""How much of a stream's end is kept. Linkers write names and headers of sections last; LLVM's puts the symbols' names,
megabytes in a library that was not stripped, between the two; cuSPARSELt 0.7.1 has 27 MB of symbols behind them."""
_NEW_CUBIN_ABI = 8
_STRINGS_SECTION = b".rodata"
_SECTIONS = frozenset({EXECUTABLE_SECTION, RELOCATABLE_SECTION, _STRINGS_SECTION, *LARGE_DATA_SECTIONS})
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """The device code of a file.

    Attributes:
        executable: what runs as it is.
        embedded: what a library keeps among its data, and loads itself.
        relocatable: what still has to be linked on the device's side; a linked file keeps it beside the result.
    """

    executable: tuple[Entry, ...] = ()
    embedded: tuple[Entry, ...] = ()
    relocatable: tuple[Entry, ...] = ()

    @property
    def relevant(self) -> tuple[Entry, ...]:
        """What decides where it runs: executable code (all that cuobjdump lists) and embedded, or relocatable alone."""
        return (*self.executable, *self.embedded) or self.relocatable


class Listener(Protocol):
    """Hears the parts of a file in which strings can stand."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""


def read_device_code(
    content: Buffer | Stream, size: int, *, name: str, listener: Listener | None = None
) -> DeviceCode | None:
    """The device code of a file, or None where it is of no kind that can hold any.

    Args:
        content: the file's content.
        size: its bytes.
        name: its name: PTX is text, and known by nothing else.
        listener: is told the read-only data of a mapped ELF file, or all of a stream.

    Raises:
        DamagedError: the file does not hold what its headers promise.
    """
    if name.endswith(".ptx"):
        length = min(size, _PTX_HEAD_BYTES)
        return _ptx(content[:length] if isinstance(content, Buffer) else read_exactly(content, length), size)
    if isinstance(content, Buffer):
        return _in_buffer(content, listener)
    return _in_stream(content, size, listener)


def _ptx(head: bytes, size: int) -> DeviceCode | None:
    if not (found := _PTX_TARGET.search(head)):
        return None
    target = CodeTarget(sm=int(found[1]), suffix=found[2].decode(), kind=CodeKind.PTX)
    return DeviceCode(executable=(Entry(target=target, size=size),))


def _cubin(header: Header, size: int) -> DeviceCode:
    """A file of machine code alone; it does not tell a suffix.

    Where the SM number stands was seen in what ptxas 12.8 writes for sm_90 (ABI 7), and 12.8 and 13.0 for sm_120a (8).
    """
    sm = (header.flags >> 8 if header.abi_version >= _NEW_CUBIN_ABI else header.flags) & 0xFF
    return DeviceCode(executable=(Entry(target=CodeTarget(sm=sm), size=size),))


def _sorted(found: Iterable[Container], sections: Sequence[Section]) -> DeviceCode:
    """Containers by what their section means; those elsewhere are bytes that look like one."""
    places = {
        name: [range(section.offset, section.offset + section.size) for section in sections if section.name == name]
        for name in (EXECUTABLE_SECTION, RELOCATABLE_SECTION, *LARGE_DATA_SECTIONS)
    }
    entries: dict[bytes, list[Entry]] = {name: [] for name in places}
    for container in found:
        for name, ranges in places.items():
            if any(container.offset in place for place in ranges):
                if not container.fault:
                    entries[name] += container.entries
                elif name not in LARGE_DATA_SECTIONS:  # among data, other bytes may look like the beginning of one
                    raise DamagedError(container.fault)
    return DeviceCode(
        executable=tuple(entries[EXECUTABLE_SECTION]),
        embedded=tuple(entry for name in LARGE_DATA_SECTIONS for entry in entries[name]),
        relocatable=tuple(entries[RELOCATABLE_SECTION]),
    )


def _whole(found: Iterable[Container]) -> DeviceCode:
    """All containers of a file that has no sections."""
    kept = list(found)
    if fault := next((container.fault for container in kept if container.fault), ""):
        raise DamagedError(fault)
    return DeviceCode(executable=tuple(entry for container in kept for entry in container.entries))


def _joined(parts: Iterable[DeviceCode]) -> DeviceCode:
    kept = list(parts)
    return DeviceCode(
        executable=tuple(entry for part in kept for entry in part.executable),
        embedded=tuple(entry for part in kept for entry in part.embedded),
        relocatable=tuple(entry for part in kept for entry in part.relocatable),
    )


# ------------------------------------------------------------------------------------------------------------- mapped


def _in_buffer(buffer: Buffer, listener: Listener | None) -> DeviceCode | None:
    if buffer[: len(_AR_MAGIC)] == _AR_MAGIC:
        return _joined(_ar_in_buffer(buffer))
    return _object_in_buffer(buffer, 0, len(buffer), listener)


def _object_in_buffer(buffer: Buffer, origin: int, size: int, listener: Listener | None) -> DeviceCode | None:
    head = buffer[origin : origin + min(size, HEADER_BYTES)]
    whole = BufferCursor(buffer, origin, origin + size, origin=origin)
    if head.startswith(MAGIC):
        return _whole(containers(whole))
    if not is_elf(head):
        return None
    header = read_header(head)
    if header.machine == CUDA:
        return _cubin(header, size)
    if not header.table:
        return _whole(containers(whole))

    def at(offset: int, length: int) -> bytes:
        return buffer[origin + offset : origin + offset + length]

    sections = find_sections(header, _SECTIONS, at, size)
    if listener:
        _tell(listener, buffer, sections)
    return _sorted(_in_sections(buffer, origin, sections), sections)


def _in_sections(buffer: Buffer, origin: int, sections: Sequence[Section]) -> Iterator[Container]:
    for section in sections:
        if section.name == _STRINGS_SECTION:
            continue
        start = origin + section.offset
        try:
            for container in containers(BufferCursor(buffer, start, start + section.size, origin=origin)):
                yield replace(container, offset=container.offset - origin)
        except DamagedError:
            if section.name not in LARGE_DATA_SECTIONS:
                raise


def _tell(listener: Listener, buffer: Buffer, sections: Sequence[Section]) -> None:
    for section in sections:
        if section.name == _STRINGS_SECTION:
            end = section.offset + section.size
            for start in range(section.offset, end, _CHUNK):
                listener.feed(buffer[start : min(start + _CHUNK, end)])


def _ar_in_buffer(buffer: Buffer) -> Iterator[DeviceCode]:
    position, size = len(_AR_MAGIC), len(buffer)
    while position < size:
        length = _ar_member(buffer[position : position + _AR_HEADER_BYTES], size - position)
        position += _AR_HEADER_BYTES
        if (code := _object_in_buffer(buffer, position, length, None)) and code.relevant:
            yield code
        position += length + length % 2


def _ar_member(header: bytes, left: int) -> int:
    """The size of a static library's member (the common format of ar(5)), of which no more than `left` bytes can be."""
    digits = header[48:58].strip()
    if len(header) < _AR_HEADER_BYTES or not header.endswith(_AR_END) or not digits.isdigit():
        raise DamagedError("has a damaged member header, as a static library")
    if (length := int(digits)) + _AR_HEADER_BYTES > left:
        raise DamagedError(
            f"is cut short: {length:,} bytes of a member, of which {left - _AR_HEADER_BYTES:,} are there"
        )
    return length


# ----------------------------------------------------------------------------------------------------------- streamed


class _Tapped:
    """A stream of which the beginning and the end stay known."""

    def __init__(self, stream: Stream, size: int, listener: Listener | None) -> None:
        self._stream = stream
        self._listener = listener
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._position = 0
        self.head = read_exactly(stream, min(size, HEADER_BYTES))
        self._pending = self.head

    def read(self, size: int, /) -> bytes:
        """See Stream."""
        data = self._pending or self._stream.read(size)
        self._pending = b""
        self._position += len(data)
        self._kept.append(data)
        self._kept_bytes += len(data)
        while self._kept_bytes - len(self._kept[0]) >= _TAIL_BYTES:
            self._kept_bytes -= len(self._kept.popleft())
        if self._listener:
            self._listener.feed(data)
        return data

    def at(self, offset: int, length: int) -> bytes:
        """Bytes of the end, once all was read."""
        tail = b"".join(self._kept)
        self._kept = deque([tail])
        start = offset - (self._position - len(tail))
        if start < 0:
            raise DamagedError("has its section headers or names too far from its end to be read within an archive")
        return tail[start : start + length]


def _in_stream(stream: Stream, size: int, listener: Listener | None) -> DeviceCode | None:
    tapped = _Tapped(stream, size, listener)
    if tapped.head.startswith(_AR_MAGIC):
        return _joined(_ar_in_stream(tapped, size))
    return _object_in_stream(tapped, size)


def _object_in_stream(tapped: _Tapped, size: int) -> DeviceCode | None:
    if tapped.head.startswith(MAGIC):
        return _whole(containers(StreamCursor(tapped, size)))
    if not is_elf(tapped.head):
        return None
    header = read_header(tapped.head)
    if header.machine == CUDA:
        return _cubin(header, size)
    if not (found := list(containers(StreamCursor(tapped, size)))):
        return DeviceCode()
    return _sorted(found, find_sections(header, _SECTIONS, tapped.at, size)) if header.table else _whole(found)


class _Part:
    """The next bytes of a cursor as a stream of their own."""

    def __init__(self, cursor: StreamCursor, size: int) -> None:
        self._cursor = cursor
        self.left = size

    def read(self, size: int, /) -> bytes:
        """See Stream."""
        length = min(size, self.left)
        self.left -= length
        return self._cursor.take(length)


def _ar_in_stream(stream: Stream, size: int) -> Iterator[DeviceCode]:
    cursor = StreamCursor(stream, size)
    cursor.skip(len(_AR_MAGIC))
    while (left := size - cursor.position) > 0:
        length = _ar_member(cursor.take(min(_AR_HEADER_BYTES, left)), left)
        member = _Part(cursor, length)
        if (code := _object_in_stream(_Tapped(member, length, None), length)) and code.relevant:
            yield code
        cursor.skip(min(member.left + length % 2, size - cursor.position))
