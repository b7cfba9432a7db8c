"""What a Dockerfile is given: files as a tar stream made on the fly, since the wheels of an image are gigabytes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lanewise.errors import LanewiseError
from lanewise.files import writing

_BLOCK = 512
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """One file of a build's context.

    Attributes:
        path: relative, as the Dockerfile names it.
        content: its bytes, or the file on disk that has them.
    """

    path: str
    content: bytes | Path


def tar_stream(files: Iterable[ContextFile]) -> Iterator[bytes]:
    """The files as a tar archive; owner, mode and time are the same everywhere, so that the engine's cache holds.

    Raises:
        LanewiseError: a file cannot be read, or changes while it is.
    """
    for file in files:
        yield from _text(file, file.content) if isinstance(file.content, bytes) else _from_disk(file, file.content)
    yield bytes(2 * _BLOCK)


def _text(file: ContextFile, content: bytes) -> Iterator[bytes]:
    yield _header(file.path, len(content)) + content + _padding(len(content))


def _from_disk(file: ContextFile, path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as source:
            size = left = path.stat().st_size
            yield _header(file.path, size)
            while left:
                if not (chunk := source.read(min(left, _CHUNK))):
                    raise _unreadable(path, f"it ended {left:,} bytes early")
                left -= len(chunk)
                yield chunk
            yield _padding(size)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    return info.tobuf(format=tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _unreadable(path: Path, why: str) -> LanewiseError:
    return LanewiseError(
        f"cannot read {path} for the image: {why}",
        expected="a file that stays as it is while the image is built",
        todo="call again; a wheel that is gone is fetched or built anew",
    )


def save(files: Iterable[ContextFile], folder: Path) -> None:
    """Write those files that are texts to a folder, for a person who runs the Dockerfile by hand.

    Raises:
        InputError, LanewiseError: the folder cannot be written to.
    """
    for file in files:
        if isinstance(file.content, bytes):
            target = folder / file.path
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.content)
