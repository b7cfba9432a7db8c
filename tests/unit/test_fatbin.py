"""Fatbin containers and the files that hold them: the same answer from a mapped file and from a stream."""

from __future__ import annotations

import io
import struct
from collections import Counter

import pytest

from images.contents import DamagedError
from images.device_code import DeviceCode, read_device_code
from images.fatbin import MAGIC, BufferCursor, Container, StreamCursor, containers
from tests.unit.makers_elf import (
    LTO,
    PTX,
    fake_cubin,
    fake_elf,
    fake_entry,
    fake_fatbin,
    fake_library,
    fake_static_library,
)


class FakeStream:
    """Hands out a few bytes at a time, as decompressors may."""

    def __init__(self, data: bytes, most: int = 1000) -> None:
        self._file = io.BytesIO(data)
        self._most = most

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, self._most))


def both(data: bytes, name: str = "lib.so") -> DeviceCode | None:
    """What is read of a mapped file, having made sure that a stream gives the same."""
    mapped = read_device_code(data, len(data), name=name)
    assert read_device_code(FakeStream(data), len(data), name=name) == mapped
    return mapped


def names(entries: object) -> dict[str, int]:
    assert isinstance(entries, tuple)
    return dict(Counter(str(entry.target) for entry in entries))


def executable(data: bytes, name: str = "lib.so") -> dict[str, int]:
    found = both(data, name)
    assert found
    return names(found.executable)


def test_targets_keep_their_suffix_and_kind() -> None:
    data = fake_library(
        fake_entry(120), fake_entry(120, "a"), fake_entry(120, "f"), fake_entry(90, "a"), fake_entry(90, kind=PTX),
        fake_entry(120, "f", PTX), fake_entry(120, "f"),
    )  # fmt: skip
    assert executable(data) == {
        "sm_120": 1, "sm_120a": 1, "sm_120f": 2, "sm_90a": 1, "compute_90": 1, "compute_120f": 1,
    }  # fmt: skip


def test_sizes_and_compression_are_told() -> None:
    found = both(fake_library(fake_entry(120, payload=b"x" * 40), fake_entry(90, payload=b"y" * 8, flags=0x8000)))
    assert found
    assert [(entry.size, entry.compressed) for entry in found.executable] == [(40, False), (8, True)]


def test_relocatable_copies_are_told_apart() -> None:
    found = both(fake_library(fake_entry(120), relocatable=[fake_entry(90), fake_entry(120)]))
    assert found
    assert (names(found.executable), names(found.relocatable)) == ({"sm_120": 1}, {"sm_90": 1, "sm_120": 1})
    assert found.relevant == found.executable


def test_code_among_large_data_counts_beside_what_the_toolkit_registers() -> None:
    """As cuFFT has it: an empty piece where tools look, and its kernels in .ldata."""
    among = b"text" * 4 + fake_fatbin(fake_entry(120)) + MAGIC + bytes(60) + fake_fatbin(fake_entry(90))
    found = both(fake_elf([(".nv_fatbin", fake_fatbin(fake_entry(75))), (".ldata", among)]))
    assert found
    assert (names(found.executable), names(found.embedded)) == ({"sm_75": 1}, {"sm_120": 1, "sm_90": 1})
    assert names(found.relevant) == {"sm_75": 1, "sm_120": 1, "sm_90": 1}


def test_relocatable_code_counts_where_there_is_no_other() -> None:
    found = both(fake_library(relocatable=[fake_entry(90)]))
    assert found
    assert names(found.relevant) == {"sm_90": 1}


def test_code_for_link_time_optimisation_is_none_that_runs() -> None:
    assert executable(fake_library(fake_entry(120, kind=LTO), fake_entry(90))) == {"sm_90": 1}


def test_several_containers_with_padding_between_are_read() -> None:
    parts = [fake_fatbin(fake_entry(sm, payload=b"x" * 8)) + bytes(24) for sm in (80, 90, 120)]
    assert executable(fake_elf([(".nv_fatbin", b"".join(parts))])) == {"sm_80": 1, "sm_90": 1, "sm_120": 1}


def test_a_magic_number_within_code_is_not_taken_for_a_container() -> None:
    inner = fake_fatbin(fake_entry(75))
    assert executable(fake_library(fake_entry(120, payload=inner))) == {"sm_120": 1}


def test_a_container_outside_of_the_sections_for_device_code_does_not_count() -> None:
    data = fake_elf([(".rodata", fake_fatbin(fake_entry(75))), (".nv_fatbin", fake_fatbin(fake_entry(120)))])
    assert executable(data) == {"sm_120": 1}


def test_bytes_that_look_like_a_container_elsewhere_do_not_hide_the_real_one() -> None:
    lie = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10_000) + b"\xff" * 64
    data = fake_elf([(".data", lie), (".more", MAGIC * 3), (".nv_fatbin", fake_fatbin(fake_entry(120)))])
    assert executable(data) == {"sm_120": 1}


def test_a_library_without_device_code_has_none() -> None:
    assert executable(fake_library()) == {}


def test_a_file_without_section_headers_is_searched() -> None:
    data = bytearray(fake_library(fake_entry(120)))
    struct.pack_into("<Q", data, 40, 0)
    assert executable(bytes(data)) == {"sm_120": 1}


@pytest.mark.parametrize(("abi_version", "sm"), [(8, 120), (8, 90), (7, 90)])
def test_a_cubin_tells_its_sm(abi_version: int, sm: int) -> None:
    assert executable(fake_cubin(sm, abi_version=abi_version), "k.cubin") == {f"sm_{sm}": 1}


def test_a_fatbin_file_is_read() -> None:
    assert executable(fake_fatbin(fake_entry(120, "f"), fake_entry(120, kind=PTX))) == {"sm_120f": 1, "compute_120": 1}


def test_a_static_librarys_objects_are_read() -> None:
    objects = [fake_library(relocatable=[fake_entry(sm)]) + b"odd"[:extra] for sm, extra in ((80, 1), (120, 2))]
    found = both(fake_static_library(objects[0], b"no object", *objects[1:]), "lib.a")
    assert found
    assert names(found.relocatable) == {"sm_80": 1, "sm_120": 1}


def test_a_static_library_within_a_static_library_is_not_entered() -> None:
    inner = fake_static_library(fake_library(fake_entry(120)))
    assert executable(fake_static_library(inner), "lib.a") == {}


def test_ptx_text_tells_its_target() -> None:
    text = b"//\n// .target sm_50\n.version 9.0\n.target sm_120a\n.address_size 64\n" + b"x" * 100_000
    found = both(text, "k.ptx")
    assert found
    assert (names(found.executable), found.executable[0].size) == ({"compute_120a": 1}, len(text))


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"INPUT(libfoo.so)", b"\x7fELF\x01" + bytes(60), b"!<thin>\n"])
def test_files_of_other_kinds_hold_nothing(data: bytes) -> None:
    assert both(data) is None
    assert both(b"no directive", "k.ptx") is None


WHOLE = fake_library(fake_entry(120), fake_entry(90))
AT = WHOLE.index(MAGIC)


def overwritten(at: int, layout: str, value: int) -> bytes:
    data = bytearray(WHOLE)
    struct.pack_into(layout, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (overwritten(AT + 4, "<H", 9), "version 9"),
        (overwritten(AT + 8, "<Q", 1 << 50), "device code"),
        (overwritten(AT + 16 + 4, "<I", 0), "header of 0"),
        (overwritten(AT + 16 + 8, "<Q", 1 << 63), "bytes"),
        (overwritten(AT + 8, "<Q", 270), "14 bytes behind"),
    ],
)
def test_damaged_device_code_is_named(data: bytes, says: str) -> None:
    for content in (data, FakeStream(data)):
        with pytest.raises(DamagedError, match=says):
            read_device_code(content, len(data), name="lib.so")


def test_a_stream_that_ends_early_is_named() -> None:
    with pytest.raises(DamagedError, match=r"ends (after )?\d+"):
        read_device_code(FakeStream(WHOLE[:-100]), len(WHOLE), name="lib.so")


@pytest.mark.parametrize("body", [fake_fatbin() * 200_001, fake_fatbin(fake_entry(120, payload=b"") * 200_001)])
def test_more_pieces_than_memory_should_hold_are_refused(body: bytes) -> None:
    with pytest.raises(DamagedError, match="more than 200,000 pieces"):
        read_device_code(body, len(body), name="k.fatbin")


def test_white_space_without_end_costs_no_time() -> None:
    assert both(b"\n" * (64 << 10), "k.ptx") is None


def test_a_container_is_aligned() -> None:
    data = b"1234" + fake_fatbin(fake_entry(120))
    assert list(containers(BufferCursor(data, 0, len(data)))) == []
    assert len(list(containers(BufferCursor(data, 4, len(data), origin=4)))) == 1


def test_cursors_agree_whatever_the_pieces() -> None:
    data = b"pad" * 5 + MAGIC + b"1" + b"x" * 8 + fake_fatbin(fake_entry(80)) + bytes(5) + MAGIC + fake_fatbin()
    data = bytes(8 - len(data) % 8) + data + fake_fatbin(fake_entry(120, payload=b"z" * 5000))
    expected: list[Container] = list(containers(BufferCursor(data, 0, len(data))))
    for most in (1, 3, 7, 64, 10_000):
        assert list(containers(StreamCursor(FakeStream(data, most), len(data)))) == expected
