"""Writes run files: whole lines, on disk before anything goes on, one writer at a time, nothing ever lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from lanewise.errors import InputError, LanewiseError
from lanewise.files import write_atomic, writing
from tuning.runfile import Header, Run, read_run
from tuning.runlines import AnyRecord, RunFile
from tuning.trial import LaunchRecord, Trial

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _lines(documents: Iterable[dict[str, Any]]) -> bytes:
    text = "".join(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n" for document in documents)
    # A lone surrogate (bytes that are no UTF-8 in some program's output) would not encode.
    return _SURROGATE.sub("\ufffd", text).encode()


AnyRun = TypeVar("AnyRun", bound=RunFile[Any])


class Writer(Generic[AnyRun, AnyRecord]):
    """Appends records to a run file of any benchmark; one writer at a time. A context manager."""

    def __init__(self, path: Path, descriptor: int, run: AnyRun) -> None:
        self.path = path
        self.run = run
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @classmethod
    def begin(cls, run: AnyRun) -> Self:
        """Start a new run file, of a run without records.

        Raises:
            InputError: the file exists, or its folder cannot be written to.
            LanewiseError: there is no space; nothing is left behind.
        """
        path = run.path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        writer = cls(path, descriptor, run)
        try:
            writer._lock()
            # The file gets its name once the header is whole and on disk: no reader ever sees half of it.
            writer._write(run.header.to_dict())
            writer._name()
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def go_on(cls, path: Path, read: Callable[[Path], AnyRun]) -> Self:
        """Open an existing run file, as `read` reads it, to go on with it; a torn last line moves to `<path>.torn`.

        Raises:
            InputError: it cannot be opened or read, is damaged, or another writer holds it.
        """
        run = read(path)
        if path.stat().st_uid not in (os.geteuid(), 0):
            raise InputError(
                f"run file {path} belongs to another user",
                expected="a file of your own",
                todo="copy it, if you trust it",
            )
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        writer = cls(path, descriptor, run)
        try:
            writer._lock()
            writer.run = read(path)  # again, now that nobody else writes
            writer._set_torn_line_aside()
        except BaseException:
            writer.close()
            raise
        return writer

    def append(self, *records: AnyRecord) -> None:
        """Add records, on disk when this returns.

        Raises:
            LanewiseError: there is no space (the file ends where it did before), or the file was removed or changed by
                somebody else (all that was measured is then in `<file>.rescued`).
        """
        self.run = self.run.with_records(records)
        if not self._is_ours():
            self._rescue()
        self._write(*map(self.run.to_line, records))

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lock(self) -> None:
        # The lock belongs to this process and ends with it, however it ends; children do not inherit the descriptor.
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"run file {self.path} is being written by another process",
                expected="one writer at a time",
                todo="wait for it to end, or start a run of your own with another path",
            ) from error

    def _write(self, *documents: dict[str, Any]) -> None:
        data = _lines(documents)
        with writing(self.path):
            before = os.fstat(self._descriptor).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, before)
                raise
        self._size = before + len(data)

    def _name(self) -> None:
        try:
            # Naming a directory makes Python follow the link (linkat(2), AT_SYMLINK_FOLLOW); the path is absolute.
            os.link(f"/proc/self/fd/{self._descriptor}", self.path, src_dir_fd=self._descriptor)
        except FileExistsError as error:
            raise InputError(
                f"run file {self.path} exists",
                expected="a new path",
                todo=f"go on with --resume {self.path}, or name another",
            ) from error
        except OSError as error:
            raise InputError(
                f"cannot write {self.path} ({error.strerror})",
                expected="a path on a file system that has hard links",
                todo="name a path elsewhere",
            ) from error

    def _is_ours(self) -> bool:
        """Whether the path still leads to the open file, and nobody else wrote to it."""
        try:
            named, held = self.path.stat(), os.fstat(self._descriptor)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) and held.st_size == self._size

    def _rescue(self) -> NoReturn:
        rescued = self.path.with_name(self.path.name + ".rescued")
        documents = [self.run.header.to_dict(), *map(self.run.to_line, self.run.records())]
        write_atomic(rescued, _lines(documents).decode())
        raise LanewiseError(
            f"run file {self.path} was removed or changed while it was written",
            expected="one writer, and nobody else's hands on the file",
            todo=f"go on with --resume {rescued}, which holds all that was measured",
        )

    def _set_torn_line_aside(self) -> None:
        if not self.run.torn:
            return
        whole = os.fstat(self._descriptor).st_size - self.run.torn
        with writing(self.path):
            torn = os.pread(self._descriptor, self.run.torn, whole)
            with self.path.with_name(self.path.name + ".torn").open("ab") as aside:
                aside.write(torn + b"\n")
                aside.flush()
                os.fsync(aside.fileno())
            os.ftruncate(self._descriptor, whole)
        self.run, self._size = replace(self.run, torn=0), whole


class RunWriter(Writer[Run, Trial | LaunchRecord]):
    """Writes the run of an allreduce benchmark."""

    @classmethod
    def create(cls, path: Path, header: Header) -> Self:
        """Start a new run file; errors as `begin`."""
        return cls.begin(Run(path=path, header=header, trials=()))

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open an existing one to go on with it; errors as `go_on`."""
        return cls.go_on(path, read_run)
