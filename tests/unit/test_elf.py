"""ELF headers and sections: what is whole is read, what is not is refused by name."""

from __future__ import annotations

import struct

import pytest

from images.contents import DamagedError
from images.elf import Section, find_sections, is_elf, read_header
from tests.unit.makers_elf import fake_cubin, fake_elf

FILE = fake_elf([(".text", b"host code"), (".nv_fatbin", b"12345678")])
TABLE_AT, COUNT_AT, NAMES_AT = 40, 60, 62


def sections_of(data: bytes, *names: bytes) -> list[Section]:
    wanted = frozenset(names or (b".text", b".nv_fatbin", b".shstrtab"))
    return find_sections(read_header(data[:64]), wanted, lambda at, length: data[at : at + length], len(data))


def changed(at: int, layout: str, *values: int) -> bytes:
    data = bytearray(FILE)
    struct.pack_into(layout, data, at, *values)
    return bytes(data)


def test_sections_are_found_by_name() -> None:
    text, code, names = sections_of(FILE)
    assert (text.name, code.name, names.name) == (b".text", b".nv_fatbin", b".shstrtab")
    assert FILE[code.offset : code.offset + code.size] == b"12345678"
    assert sections_of(FILE, b".nv_fatbin") == [code]
    assert sections_of(FILE, b".nv_fat", b"nv_fatbin", b"") == []


def test_more_sections_than_the_header_can_count_are_read() -> None:
    data = fake_elf([(f".s{number}", b"x") for number in range(70_000)], many=True)
    assert [section.name for section in sections_of(data, b".s69999")] == [b".s69999"]


def test_a_file_without_section_headers_has_no_sections() -> None:
    assert sections_of(changed(TABLE_AT, "<Q", 0)) == []


def test_a_section_without_bytes_may_lie_anywhere() -> None:
    data = bytearray(FILE)
    (table,) = struct.unpack_from("<Q", data, TABLE_AT)
    struct.pack_into("<IQQQQ", data, table + 64 + 4, 8, 0, 0, 1 << 60, 1 << 60)
    assert [section.name for section in sections_of(bytes(data))] == [b".nv_fatbin", b".shstrtab"]


def test_a_cubin_says_so() -> None:
    header = read_header(fake_cubin(120))
    assert (header.machine, header.flags, header.abi_version) == (190, 120 << 8, 8)


@pytest.mark.parametrize("head", [b"", b"\x7fELF", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02", b"INPUT(libc.so.6)", b"MZ"])
def test_other_files_are_none(head: bytes) -> None:
    assert not is_elf(head)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (FILE[:40], "within the ELF header, after 40 bytes"),
        (changed(58, "<H", 40), "section headers of 40 bytes instead of 64"),
        (changed(TABLE_AT, "<Q", 1 << 62), f"section headers at byte {1 << 62:,}"),
        (FILE[:-1], "declares 4 section headers"),
        (changed(COUNT_AT, "<H", 0xFFFF), "declares 65,535 section headers"),
        (changed(NAMES_AT, "<H", 77), "names in section 77 of 4"),
        (changed(struct.unpack_from("<Q", FILE, TABLE_AT)[0] + 64 + 32, "<Q", 1 << 62), "its section 1 ends at byte"),
    ],
)
def test_damage_is_named(data: bytes, says: str) -> None:
    with pytest.raises(DamagedError, match=says):
        sections_of(data)


def test_an_absurd_number_of_sections_is_refused_before_it_is_read() -> None:
    data = bytearray(fake_elf([(".text", b"x")], many=True))
    (table,) = struct.unpack_from("<Q", data, TABLE_AT)
    struct.pack_into("<Q", data, table + 32, 1 << 40)
    with pytest.raises(DamagedError, match="section headers at byte"):
        sections_of(bytes(data))
