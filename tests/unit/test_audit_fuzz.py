"""What a target holds is somebody else's: 10,000 damaged files, and each is audited or refused in words, in no time."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from images.audit import audit
from images.audit_view import document, show
from images.capability import Capability
from lanewise.errors import InputError
from tests.unit.makers_elf import (
    PTX,
    fake_cubin,
    fake_elf,
    fake_entry,
    fake_fatbin,
    fake_library,
    fake_static_library,
    fake_tar,
    fake_zip,
)

BLACKWELL = Capability.parse("12.0")
SECONDS = 2.0
"""The most that one mutation may take; the slowest take a hundredth."""
LIBRARY = fake_library(
    fake_entry(120, "a", payload=b"code" * 40), fake_entry(90, kind=PTX, payload=b"text" * 9),
    relocatable=[fake_entry(120, payload=b"r" * 24)], text=b"\0NCCL version 2.27.5 compiled with CUDA 12.9\n",
)  # fmt: skip
FILES = {
    "p/lib.so": LIBRARY, "p/bin/ptxas": LIBRARY * 4, "p/k.cubin": fake_cubin(120), "p/k.ptx": b".target sm_120a\n",
    "p/l.a": fake_static_library(LIBRARY, LIBRARY), "p/libnccl.so.2": LIBRARY, "p/a.cu": b"x", "p/empty.so": b"",
}  # fmt: skip
WHOLE: dict[str, bytes] = {
    "lib.so": LIBRARY,
    "many.o": fake_elf([(f".s{n}", b"x") for n in range(20)], many=True),
    "k.cubin": fake_cubin(120),
    "k.fatbin": fake_fatbin(*(fake_entry(sm) for sm in (80, 90, 120))),
    "lib.a": fake_static_library(LIBRARY, fake_cubin(90), LIBRARY + b"x"),
    "k.ptx": b".version 9.0\n.target sm_120a\n",
    "a.whl": fake_zip(FILES),
    "stored.whl": fake_zip(FILES, method=0),
    "pax.tar": fake_tar({**FILES, "n" * 200: b"x"}),
    "gnu.tar": fake_tar({**FILES, "n" * 200: b"x"}, form=tarfile.GNU_FORMAT),
    "r.tgz": fake_tar(FILES, mode="w:gz"),
    "r.txz": fake_tar(FILES, mode="w:xz"),
}
EXTREMES = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1,
            1 << 63, (1 << 64) - 1)  # fmt: skip
NUMBERS = (b"00000000000", b"77777777777", b"99999999999", b"\xff" * 12, b"\x80" + b"\0" * 3 + b"\x7f" * 8)


def flipped(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 1, 3, 30))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    del data[start : draw.choice((len(data), start + draw.randrange(1, 600)))]


def spliced(data: bytearray, draw: random.Random) -> None:
    """A piece of another file, or of the same, in the place of a piece."""
    other = draw.choice((bytes(data), *WHOLE.values()))
    start, at = draw.randrange(len(other)), draw.randrange(len(data))
    piece = other[start : start + draw.randrange(1, 2000)]
    data[at : at + draw.choice((0, len(piece), 100))] = piece


def stretched(data: bytearray, draw: random.Random) -> None:
    """A field set to an extreme: at any even place, most often near a structure's beginning."""
    marks = [
        at for mark in (b"\x7fELF", b"\x50\xed\x55\xba", b"PK", b"ustar", b"!<arch>") if (at := data.find(mark)) >= 0
    ]
    at = draw.choice((*marks, draw.randrange(len(data)))) + 2 * draw.randrange(60)
    layout = draw.choice(("<H", "<I", "<Q"))
    size = struct.calcsize(layout)
    if at + size <= len(data):
        struct.pack_into(layout, data, at, draw.choice(EXTREMES) & ((1 << 8 * size) - 1))


def numbered(data: bytearray, draw: random.Random) -> None:
    """A number in text, as ar and tar have them, set to an extreme; a tar header's checksum made right again."""
    at = draw.randrange(0, max(1, len(data) - 512), 512)
    text = draw.choice(
        (b"00000000000", b"77777777777", b"99999999999", b"\xff" * 12, b"\x80" + b"\0" * 3 + b"\x7f" * 8)
    )
    data[at + 124 : at + 124 + len(text)] = text
    data[at + 156 : at + 157] = draw.choice((b"0", b"L", b"K", b"S", b"x", b"g", b"5", b"\0"))
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 155] = b"%06o\0" % sum(data[at : at + 512])


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (flipped, flipped, cut, spliced, stretched, stretched)


def damaged(name: str, draw: random.Random) -> bytes:
    data = bytearray(WHOLE[name])
    for _ in range(draw.choice((1, 1, 2))):
        draw.choice((*DAMAGES, numbered) if name.endswith(".tar") else DAMAGES)(data, draw)
        data = data or bytearray(b"x")
    return bytes(data)


def look_at(path: Path) -> str:
    """All that the verb does with a target, as far as a terminal's or a pipe's bytes; how it ended."""
    try:
        found = audit(str(path), capability=BLACKWELL, toolchain_cuda="12.8.1")
    except InputError as error:
        return "refused" if len(str(error)) < 2_000 else f"refused with too many words: {str(error)[:200]}"
    screen = Console(file=io.StringIO(), width=80)
    screen.print(show(found))
    json.dumps(document(found), allow_nan=False).encode()
    return "told" if found.faults else "read"


def ending(path: Path) -> str:
    start = time.perf_counter()
    try:
        how = look_at(path)
    except Exception as error:  # noqa: BLE001 - none may come, and all that come are to be told
        frames = traceback.extract_tb(error.__traceback__)
        return f"{type(error).__name__}: {error} at {[f'{Path(f.filename).name}:{f.lineno}' for f in frames[-4:]]}"
    return how if time.perf_counter() - start < SECONDS else f"{how}, but too slowly"


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    for name, data in WHOLE.items():
        (tmp_path / name).write_bytes(data)
        assert look_at(tmp_path / name) == "read", name


@pytest.mark.timeout(110)
def test_ten_thousand_damaged_targets_are_audited_or_refused(tmp_path: Path) -> None:
    endings: dict[str, list[int]] = {}
    names = list(WHOLE)
    for number in range(10_000):
        name = names[number % len(names)]
        path = tmp_path / name
        path.write_bytes(damaged(name, random.Random(number)))
        endings.setdefault(ending(path), []).append(number)
    known = {how: endings.pop(how, []) for how in ("read", "refused", "told")}
    assert not endings, f"endings, and the mutations that had them: { {how: n[:5] for how, n in endings.items()} }"
    assert min(map(len, known.values())) >= 500, "mutations too wild or too tame"
