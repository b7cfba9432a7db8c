"""Reads the little of ELF files that the audit needs: what they are, and where their sections lie.

Layout: Tool Interface Standard ELF 1.2 and the System V gABI, "ELF Header" and "Sections"
(https://gabi.xinuos.com/). Only 64-bit little-endian files are read: CUDA makes no others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from images.contents import DamagedError

At = Callable[[int, int], bytes]
"""Gives the bytes at an offset, as many as asked for or an error: DamagedError."""

HEADER_BYTES = 64
CUDA = 190
"""Machine (e_machine) of GPU code, EM_CUDA in LLVM's llvm/BinaryFormat/ELF.h."""
_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_MOST_SECTIONS = 1 << 18
_MOST_NAMES_BYTES = 16 << 20
_WITHOUT_BYTES = (0, 8)
"""Types (sh_type) of sections that have none in the file: SHT_NULL, SHT_NOBITS."""
_NAMES_ELSEWHERE = 0xFFFF
"""SHN_XINDEX: the index does not fit into the header, and stands in the first section's."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a file: its name, e.g. b".nv_fatbin", where its bytes begin, and how many they are."""

    name: bytes
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """An ELF file's first 64 bytes.

    Attributes:
        machine: e_machine.
        abi_version: EI_ABIVERSION.
        flags: e_flags.
        table: where the section headers begin; 0 if there are none.
        sections: their number, 0 where the first of them tells it.
        names: index of the section that holds the sections' names, 0xFFFF where the first header tells it.
    """

    machine: int
    abi_version: int
    flags: int
    table: int
    sections: int
    names: int


def is_elf(head: bytes) -> bool:
    """Whether a file that begins so is a 64-bit little-endian ELF file."""
    return head.startswith(_MAGIC_64_LITTLE)


def read_header(head: bytes) -> Header:
    """The header of a file that `is_elf`.

    Raises:
        DamagedError: it is shorter, or its section headers are of another size.
    """
    if len(head) < HEADER_BYTES:
        raise DamagedError(f"ends within the ELF header, after {len(head)} bytes")
    (machine,) = struct.unpack_from("<H", head, 18)
    table, flags, _, _, _, entry, sections, names = struct.unpack_from("<QIHHHHHH", head, 40)
    if table and entry != _SECTION.size:
        raise DamagedError(f"has section headers of {entry} bytes instead of {_SECTION.size}")
    return Header(machine=machine, abi_version=head[8], flags=flags, table=table, sections=sections, names=names)


def find_sections(header: Header, wanted: frozenset[bytes], at: At, size: int) -> list[Section]:
    """The sections of these names in a file of `size` bytes, in the file's order; none if it has no section headers.

    Raises:
        DamagedError: the headers or any section lie outside the file, or there are absurdly many.
    """
    if not header.table:
        return []
    if header.table + _SECTION.size > size:
        raise DamagedError(f"has its section headers at byte {header.table:,} of {size:,}")
    first = _SECTION.unpack(at(header.table, _SECTION.size))
    count = header.sections or first[5]
    names_index = first[6] if header.names == _NAMES_ELSEWHERE else header.names
    if count > _MOST_SECTIONS or header.table + count * _SECTION.size > size:
        raise DamagedError(f"declares {count:,} section headers at byte {header.table:,} of {size:,}")
    rows = list(_SECTION.iter_unpack(at(header.table, count * _SECTION.size)))
    names = _names(rows, names_index, at, size)
    found = []
    for index, (name_at, kind, _, _, offset, length, *_) in enumerate(rows):
        if kind in _WITHOUT_BYTES:
            continue
        if offset + length > size:
            raise DamagedError(f"is cut short: its section {index} ends at byte {offset + length:,} of {size:,}")
        if (name := names[name_at : names.find(b"\0", name_at)]) in wanted:
            found.append(Section(name=name, offset=offset, size=length))
    return found


def _names(rows: list[tuple[int, ...]], index: int, at: At, size: int) -> bytes:
    if index >= len(rows):
        raise DamagedError(f"has its sections' names in section {index} of {len(rows)}")
    offset, length = rows[index][4:6]
    if length > _MOST_NAMES_BYTES or offset + length > size:
        raise DamagedError(f"declares {length:,} bytes of section names at byte {offset:,} of {size:,}")
    return at(offset, length)
