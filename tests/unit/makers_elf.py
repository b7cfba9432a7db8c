"""Small ELF files, fatbins, static libraries and archives for tests, byte by byte; their payloads are made up."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping, Sequence

SASS, PTX, LTO = 2, 1, 8
FLAGS = {"": 0x11, "a": 0x100011, "f": 0x200011}


def fake_entry(sm: int, suffix: str = "", kind: int = SASS, payload: bytes = b"code" * 16, flags: int = 0) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 257, len(header), len(payload))
    struct.pack_into("<I", header, 28, sm)
    struct.pack_into("<Q", header, 40, FLAGS[suffix] | flags)
    return bytes(header) + payload


def fake_fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def fake_elf(
    sections: Sequence[tuple[str, bytes]] = (),
    *,
    kind: int = 3,
    machine: int = 62,
    flags: int = 0,
    abi_version: int = 0,
    many: bool = False,
) -> bytes:
    """An ELF file of these sections; `many`: with the counts where files of 65,280 sections and more have them."""
    names, data, rows = b"\0", bytearray(64), [bytes(64)]
    for name, given in (*sections, (".shstrtab", b"")):
        at, names = len(names), names + name.encode() + b"\0"
        content = given or names
        data += bytes(-len(data) % 8)
        rows.append(struct.pack("<IIQQQQIIQQ", at, 1, 2, 0, len(data), len(content), 0, 0, 8, 0))
        data += content
    data += bytes(-len(data) % 8)
    count, index = len(rows), len(rows) - 1
    if many:
        rows[0] = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, count, index, 0, 0, 0)
        count, index = 0, 0xFFFF
    struct.pack_into("<16sHHIQQQIHHHHHH", data, 0, b"\x7fELF\x02\x01\x01\0" + bytes([abi_version]), kind, machine, 1,
                     0, 0, len(data), flags, 64, 0, 0, 64, count, index)  # fmt: skip
    return bytes(data) + b"".join(rows)


def fake_library(*entries: bytes, relocatable: Sequence[bytes] = (), text: bytes = b"") -> bytes:
    """A shared library with these entries, each group in a container."""
    sections = [(".rodata", text)] if text else []
    sections += [(".nv_fatbin", fake_fatbin(*entries))] if entries else []
    sections += [("__nv_relfatbin", fake_fatbin(*relocatable))] if relocatable else []
    return fake_elf(sections or [(".text", b"host")])


def fake_cubin(sm: int, *, abi_version: int = 8, code: bytes = b"code") -> bytes:
    flags = sm << 8 if abi_version >= 8 else sm
    return fake_elf([(".text.kernel", code)], kind=2, machine=190, flags=flags, abi_version=abi_version)


def fake_static_library(*objects: bytes) -> bytes:
    data = b"!<arch>\n"
    for number, content in enumerate(objects):
        data += f"{number}.o/".ljust(48).encode() + f"{len(content)}".ljust(10).encode() + b"`\n" + content
        data += b"\n" * (len(content) % 2)
    return data


def fake_zip(files: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def fake_tar(files: Mapping[str, bytes], *, mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()
