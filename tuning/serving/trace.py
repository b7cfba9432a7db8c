"""Reads the kernels of a profile: a Chrome trace (JSON, gzipped) as torch.profiler writes it, one event at a time.

Memory stays bounded whatever the file holds, since of an event only a kernel's name, begin and duration are kept; and
time by a deadline, since what the bounds on size let through may still take minutes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lanewise.errors import InputError
from tuning.trial import is_number, is_text

MOST_BYTES = 1 << 30
"""Of a trace's text: a hundred steps of a thousand kernels are 50 MB."""
MOST_FILE_BYTES = 1 << 27
"""Of the file as it is: gzip goes through members without any text, and zeros between them, as well."""
MOST_EVENTS = 10_000_000
"""An event of torch's takes a hundred bytes and more, so MOST_BYTES hold no more."""
MOST_KERNELS = 2_000_000
_MOST_EVENT, _MOST_HEAD, _CHUNK = 1 << 20, 1 << 20, 1 << 16
_MOST_NAME = 140
_BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_KERNEL = "kernel"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel on the GPU: its name (the first 140 characters), when it began and how long it took, us."""

    name: str
    begin: float
    us: float


def read_kernels(path: Path, *, deadline: float) -> list[Kernel]:
    """The kernels of a trace, by their begin.

    Args:
        path: of the file.
        deadline: when reading is given up, as time.monotonic() counts.

    Raises:
        InputError: it cannot be read, is a link or another special file, no such trace, or larger than one can be, or
            the deadline came first.
    """
    try:
        source = _Source(_packed(path), deadline)
        with gzip.open(source, "rt", encoding="utf-8", errors="replace") as file:
            names: dict[str, str] = {}
            kernels = []
            for event in _events(file, deadline):
                if kernel := _kernel(event, names):
                    kernels.append(kernel)
                if len(kernels) > MOST_KERNELS:
                    raise ValueError(f"more than {MOST_KERNELS:,} kernels")
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot read the profile {path} ({str(error)[:200] or type(error).__name__})",
            expected="a Chrome trace of torch.profiler, gzipped, of some tens of steps",
            todo="take it again, of fewer steps",
        ) from error
    return sorted(kernels, key=lambda kernel: kernel.begin)


def _check_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise TimeoutError("the time for it was over before its end")


class _Source(io.BytesIO):
    """The packed file. gzip may go through all of it in search of the next text, so the time is looked at here, too."""

    def __init__(self, packed: bytes, deadline: float) -> None:
        super().__init__(packed)
        self._deadline = deadline

    def read(self, size: int | None = -1, /) -> bytes:
        """As any file's, up to the deadline."""
        _check_time(self._deadline)
        return super().read(size)


def _packed(path: Path) -> bytes:
    """The file as it is now: a server that nobody vouches for may have made it, and may go on writing to it."""
    # Without O_NONBLOCK a pipe would be waited for until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_FILE_BYTES:
            raise ValueError(f"no regular file of at most {MOST_FILE_BYTES:,} bytes")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(about.st_size)
    finally:
        os.close(handle)


def _kernel(event: object, names: dict[str, str]) -> Kernel | None:
    """The kernel that an event is; None of another."""
    if not isinstance(event, dict) or event.get("cat") != _KERNEL:
        return None
    name, begin, us = (event.get(key) for key in ("name", "ts", "dur"))
    if not is_text(name) or not is_number(begin) or not is_number(us) or us < 0:
        return None
    short = name[:_MOST_NAME]
    return Kernel(name=names.setdefault(short, short), begin=float(begin), us=float(us))


def _events(file: IO[str], deadline: float) -> Iterator[Any]:
    """The entries of traceEvents, as they come."""
    reader = _Reader(file, deadline)
    reader.to_events()
    for _ in range(MOST_EVENTS):
        if not reader.next_is_event():
            return
        yield reader.event()
    raise ValueError(f"more than {MOST_EVENTS:,} events")


class _Reader:
    """A window on the text that moves on."""

    def __init__(self, file: IO[str], deadline: float) -> None:
        self._file, self._deadline = file, deadline
        self._text, self._at, self._read = "", 0, 0
        self._decoder = json.JSONDecoder()

    def _more(self) -> bool:
        """Read on, and forget what lies behind; whether there was more."""
        _check_time(self._deadline)
        chunk = self._file.read(_CHUNK)
        self._read += len(chunk)
        if self._read > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} characters")
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)

    def to_events(self) -> None:
        """Go to the first entry."""
        while not (found := _BEGIN.search(self._text)):
            if len(self._text) > _MOST_HEAD or not self._more():
                raise ValueError("it has no traceEvents")
        self._at = found.end()

    def next_is_event(self) -> bool:
        """Go over what stands between entries; whether one more follows."""
        while (found := _BETWEEN.match(self._text, self._at)) and found.end() == len(self._text):
            self._at = found.end()
            if not self._more():
                raise ValueError("it ends in the midst")
        self._at = found.end() if found else self._at
        return self._text[self._at] != "]"

    def event(self) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The entry that begins here."""
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._text, self._at)
            except ValueError:
                if len(self._text) - self._at > _MOST_EVENT or not self._more():
                    raise
            else:
                return value
