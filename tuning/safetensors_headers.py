"""Reads what safetensors files hold, from their headers alone: names, types and sizes of tensors, never their data.

Format: https://huggingface.co/docs/safetensors (8 bytes with the header's length, little endian; the header as JSON;
the data). Such files come from strangers: every length, type and offset is checked before it is believed.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NoReturn, TypeGuard

from lanewise.errors import InputError
from tuning.workload import encodable, short

_LENGTH_BYTES = 8
_MOST_HEADER = 32 << 20
"""Bytes of one header. The format allows 100 MB; the largest known checkpoints have 1 MB a file."""
_MOST_HEADERS = 256 << 20
"""Bytes of all headers of a checkpoint: some seconds of reading."""
_MOST_FILES = 2_000
_MOST_TENSORS = 1_000_000
_MOST_DIMENSIONS = 16
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
"""Bits of an element of each type (safetensors, src/tensor.rs, Dtype)."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of a checkpoint: its name, and its bytes in the file."""

    name: str
    bytes: int


def read_tensors(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one safetensors file, or of all in a folder.

    Raises:
        InputError: there are none, or a file is damaged, no regular file, or beyond the limits above.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not 1 <= len(files) <= _MOST_FILES:
        raise InputError(
            f"{path} holds {len(files):,} safetensors files",
            expected=f"a safetensors file, or a folder with 1 to {_MOST_FILES:,} of them",
            todo="name the folder that the model was downloaded to",
        )
    found: dict[str, Tensor] = {}
    room = _MOST_HEADERS
    for file in files:
        header, data_bytes = _header(file)
        room -= len(header)
        if room < 0:
            _refuse(file, f"with it there are more than {_MOST_HEADERS:,} bytes of headers")
        for tensor in _tensors(file, header, data_bytes):
            if tensor.name in found:
                _refuse(file, f"tensor {short(tensor.name)} stands in another file too")
            found[tensor.name] = tensor
        if len(found) > _MOST_TENSORS:
            _refuse(file, f"with it there are more than {_MOST_TENSORS:,} tensors")
    return tuple(found.values())


def _tensors(path: Path, header: bytes, data_bytes: int) -> list[Tensor]:
    """What a header lists, once it agrees with itself and with the data that follow it."""
    try:
        document = json.loads(header, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"its header is not JSON: {str(error)[:100]}")
    if not isinstance(document, dict):
        _refuse(path, f"its header is {short(document)}")
    entries = [(name, entry) for name, entry in document.items() if name != "__metadata__"]
    tensors = [(_offsets(path, name, entry, data_bytes), name) for name, entry in entries]
    end = 0
    for (first, last), name in sorted(tensors):
        if first < end:
            _refuse(path, f"tensor {short(name)} overlaps another")
        end = last
    return [Tensor(name=name, bytes=last - first) for (first, last), name in tensors]


def _header(path: Path) -> tuple[bytes, int]:
    """The header, and how many bytes of data follow it."""
    try:
        # Not to wait for a writer where somebody named a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                _refuse(path, "it is not a regular file")
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            room = about.st_size - _LENGTH_BYTES
            if not 2 <= length <= min(room, _MOST_HEADER):
                _refuse(path, f"it says that its header has {length:,} bytes, and {max(room, 0):,} follow")
            return file.read(length), room - length
    except OSError as error:
        raise InputError(
            f"cannot read safetensors file {path} ({error.strerror})", expected="a readable file", todo="check the path"
        ) from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a key stands twice")
    return document


def _offsets(path: Path, name: str, entry: object, data_bytes: int) -> tuple[int, int]:
    """Where a tensor's data begins and ends, once everything about it agrees."""
    if not encodable(name) or not isinstance(entry, dict):
        _refuse(path, f"tensor {short(name)} is {short(entry)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        _refuse(path, f"tensor {short(name)} has dtype {short(dtype)}")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        _refuse(path, f"tensor {short(name)} has shape {short(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        _refuse(path, f"tensor {short(name)} has data_offsets {short(offsets)}, and there are {data_bytes:,} bytes")
    if prod(shape) * _BITS[dtype] != 8 * (offsets[1] - offsets[0]):
        _refuse(
            path,
            f"tensor {short(name)} of {dtype} and shape {short(shape)} cannot have {offsets[1] - offsets[0]:,} bytes",
        )
    return offsets[0], offsets[1]


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 48 for size in value)


def _refuse(path: Path, why: str) -> NoReturn:
    raise InputError(
        f"{path} is no safetensors file that can be read: {why}",
        expected="a whole file as https://huggingface.co/docs/safetensors describes it",
        todo="fetch it again, or name the model's config.json instead",
    )
