"""What a server prints: to files of bounded size, and the lines of its beginning and end in bounded memory."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from lanewise.files import writing
from lanewise.redact import KeyHider, Redactor

_MOST_BYTES = 64 << 20
"""Of all files of one log together: hours of a talkative server; NCCL_DEBUG=TRACE would fill any disk."""
_MOST_LINE = 1 << 14
"""Bytes of a line that are kept; SGLang prints its arguments as one line of about 10 KiB."""
_MOST_HEAD, _MOST_TAIL = 4 << 20, 16 << 20
"""Characters of lines kept in memory, of the beginning and of the end: the one says what the server made of its
arguments, the other how it decoded and ended."""
_LINE_COST = 64
"""What a short line costs beside its characters: a flood of empty ones is bounded too."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
"""A bare carriage return ends a line too: progress bars of weights and graph capture print nothing else."""


class ServerLog:
    """Takes output as it comes, without blank lines; safe to be read while another thread feeds it.

    The files: `path` holds the first half of the limit; what follows goes to NAME.tail, begun anew each time it
    has reached a quarter, and the one before it kept as NAME.tail.old.

    Args:
        path: of the log file; its folder is made.
        redact: applied to every line before it is kept anywhere.
        limit: most bytes of all files together.

    Raises:
        InputError: the file cannot be written to.
        LanewiseError: there is no space.
    """

    def __init__(self, path: Path, redact: Redactor, *, limit: int = _MOST_BYTES) -> None:
        self._path, self._redact, self._hide_key, self._limit = path, redact, KeyHider(), limit
        self._tail_path = path.with_name(path.name + ".tail")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in (self._tail_path, self._old_path):
                old.unlink(missing_ok=True)
            self._file: BinaryIO | None = path.open("wb", buffering=0)
        self._room = limit // 2
        self._lock = threading.Lock()
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._held_head = self._held_tail = self._count = 0
        self._pending, self._dropping = b"", False
        self._problem = ""

    @property
    def _old_path(self) -> Path:
        return self._tail_path.with_name(self._tail_path.name + ".old")

    @property
    def problem(self) -> str:
        """Why the files hold less than was printed, e.g. a full disk; "" where they do not. Memory goes on."""
        return self._problem

    @property
    def count(self) -> int:
        """Lines so far: where `lines` begins for those that are still to come."""
        return self._count

    def lines(self, since: int = 0) -> list[str]:
        """Lines from number `since` on, without those of the middle that were too many."""
        with self._lock:
            new = islice(reversed(self._tail), max(self._count - since, 0))  # no walk through what is older
            return [*self._head[since:], *reversed(list(new))]

    def feed(self, chunk: bytes) -> None:
        """Take some output; lines may be cut anywhere."""
        *whole, rest = _LINE_END.split(self._pending + chunk)
        for line in whole:
            if not self._dropping:
                self._keep(line[:_MOST_LINE])
            self._dropping = False
        if len(rest) > _MOST_LINE and not self._dropping:  # its beginning is all that is kept
            self._keep(rest[:_MOST_LINE])
            self._dropping = True
        self._pending = b"" if self._dropping else rest

    def close(self) -> None:
        """Keep what has no line end, and close the file."""
        if self._pending:
            self._keep(self._pending)
            self._pending = b""
        self._close()

    def _keep(self, raw: bytes) -> None:
        line = self._redact(self._hide_key(raw.decode("utf-8", errors="replace")))
        if not line.strip():
            return
        with self._lock:
            self._count += 1
            if self._held_head < _MOST_HEAD and not self._tail:
                self._head.append(line)
                self._held_head += len(line) + _LINE_COST
            else:
                self._tail.append(line)
                self._held_tail += len(line) + _LINE_COST
            while self._held_tail > _MOST_TAIL:
                self._held_tail -= len(self._tail.popleft()) + _LINE_COST
        self._write(line.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            if len(data) > self._room:
                self._next_file()
            self._room -= len(data)
            while data:  # unbuffered: a write may be short, and the next one says why
                data = data[self._file.write(data) or 0 :]
        except OSError as error:
            self._problem = f"cannot write {self._path}: {error.strerror or error}"
            self._close()

    def _next_file(self) -> None:
        assert self._file
        self._file.close()
        if self._tail_path.exists():
            os.replace(self._tail_path, self._old_path)  # noqa: PTH105 - over the one before, in one step
        self._file, self._room = self._tail_path.open("wb", buffering=0), self._limit // 4

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
