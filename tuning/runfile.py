"""Run files: JSON Lines, a header, then launches and their trials; appended and synced, so that a crash loses little.

Format history (docs/run-format.md describes the current one):
    1  2026-11-29  first version
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from lanewise.errors import InputError, LanewiseError
from lanewise.files import write_atomic, writing
from tuning.plan import Plan, parse_plan
from tuning.trial import LaunchRecord, Trial, is_plain, parse_line, to_line

if TYPE_CHECKING:
    from types import TracebackType

FORMAT = "lanewise-run"
VERSION = 1
_MAX_FILE_BYTES = 1 << 30
_BREAKAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, InputError, RecursionError)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Kind(StrEnum):
    """What the numbers of a run are; kinds are never mixed."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    MEANINGLESS = "meaningless"  # right results, but times that say nothing, e.g. ranks that share one GPU


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of a run file.

    Attributes:
        created: ISO 8601 UTC.
        kind: what the numbers are.
        plan: what is measured.
        toolkit: version, revision and whether the tree was changed.
        node: the node record (docs/node-record.md).
        environments: per environment its Python, library versions and effective NCCL settings.
        worker: file name and sha256 of the worker that measured.
        variables: environment variables that may matter, redacted.
        command: the argument vector that started the run, redacted.
    """

    created: str
    kind: Kind
    plan: Plan
    toolkit: dict[str, Any]
    node: dict[str, Any]
    environments: dict[str, Any]
    worker: dict[str, str]
    variables: dict[str, str]
    command: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"format": FORMAT, "version": VERSION, **fields, "plan": self.plan.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run file as read.

    Attributes:
        path: the file.
        header: its first line.
        trials: its trials in order.
        launches: its launches by identifier.
        torn: bytes of a last line that was never finished; 0 where there is none.
    """

    path: Path
    header: Header
    trials: tuple[Trial, ...]
    launches: Mapping[str, LaunchRecord] = field(default_factory=dict)
    torn: int = 0


def read_run(path: Path) -> Run:
    """Read a run file; a torn last line is counted in `torn` and otherwise ignored.

    Raises:
        InputError: it cannot be read, is not a run file, has a version from the future, or a line is damaged.
    """
    try:
        # Not to wait for a writer where somebody named a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_FILE_BYTES:
                raise OSError(0, f"not a file of at most {_MAX_FILE_BYTES:,} bytes")
            data = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(
            f"cannot read run file {path} ({error.strerror})",
            expected="a run file (*.jsonl) as ./inv campaign and ./inv bench-allreduce write them",
            todo="check the path; ./inv compare without --run takes the newest in runs/",
        ) from error
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> Run:
    whole, newline, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if not lines:
        raise _damaged(path, 1, "there is no whole line")
    header = _parse_header(path, lines[0])
    records: list[Trial | LaunchRecord] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            records.append(parse_line(json.loads(line)))
        except _BREAKAGE as error:
            raise _damaged(path, number, _in_words(error)) from error
    return _with(Run(path=path, header=header, trials=(), torn=len(torn)), records)


def _with(run: Run, records: Iterable[Trial | LaunchRecord]) -> Run:
    """The run with more records."""
    records = list(records)
    trials = [record for record in records if isinstance(record, Trial)]
    launches = {record.launch: record for record in records if isinstance(record, LaunchRecord)}
    return replace(run, trials=(*run.trials, *trials), launches={**run.launches, **launches})


def _parse_header(path: Path, line: bytes) -> Header:
    try:
        document = json.loads(line)
        if document.pop("format") != FORMAT:
            raise ValueError("its format is another")
        version = document.pop("version")
    except _BREAKAGE as error:
        raise InputError(
            f"{path} is not a run file: line 1 is not a header ({_in_words(error)})",
            expected=f'a first line with "format": "{FORMAT}"',
            todo="name a file that ./inv campaign or ./inv bench-allreduce wrote",
        ) from error
    if version != VERSION or isinstance(version, bool):
        raise InputError(
            f"run file {path} has version {version!r}",
            expected=f"version {VERSION}",
            todo="use a newer Lanewise to read it",
        )
    try:
        fields = {**document, "kind": Kind(document["kind"]), "plan": parse_plan(document["plan"])}
        return _typed(Header(**fields))
    except _BREAKAGE as error:
        raise _damaged(path, 1, _in_words(error)) from error


def _typed(header: Header) -> Header:
    """The header, once it has the shape that its readers rely on; TypeError or KeyError where it has not."""
    mappings = [header.toolkit, header.node, header.environments, header.worker, header.variables]
    mappings += [header.node.get("cpu", {}), header.node.get("host", {})]
    for environment in header.plan.environments:
        described = header.environments[environment.name]
        mappings += [described, described.get("libraries", {})]
    if not all(isinstance(mapping, dict) for mapping in mappings) or not isinstance(header.created, str):
        raise TypeError("a part of the header is not a mapping")
    if not all(map(is_plain, (*mappings, header.command))):
        raise ValueError("a part of the header holds what is no plain JSON")
    return header


def _in_words(error: Exception) -> str:
    text = error.what if isinstance(error, LanewiseError) else str(error)
    return f"{type(error).__name__}: {text}"[:200]


def _damaged(path: Path, line: int, why: str) -> InputError:
    return InputError(
        f"run file {path} is damaged at line {line}: {why}",
        expected="JSON Lines as docs/run-format.md describes; only the last line may be unfinished",
        todo="restore it from a copy, or cut the lines from there on and go on with --resume",
    )


def _lines(documents: Iterable[dict[str, Any]]) -> bytes:
    text = "".join(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n" for document in documents)
    # A lone surrogate (bytes that are no UTF-8 in some program's output) would not encode.
    return _SURROGATE.sub("\ufffd", text).encode()


class RunWriter:
    """Appends trials to a run file; one writer at a time. A context manager."""

    def __init__(self, path: Path, descriptor: int, run: Run) -> None:
        self.path = path
        self.run = run
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path, header: Header) -> Self:
        """Start a new run file.

        Raises:
            InputError: the file exists, or its folder cannot be written to.
            LanewiseError: there is no space; nothing is left behind.
        """
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
        writer = cls(path, descriptor, Run(path=path, header=header, trials=()))
        try:
            writer._lock()
            # The file gets its name once the header is whole and on disk: no reader ever sees half of it.
            writer._write(header.to_dict())
            writer._name()
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open an existing run file to go on with it; a torn last line moves to `<path>.torn`.

        Raises:
            InputError: it cannot be opened or read, is damaged, or another writer holds it.
        """
        run = read_run(path)
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
            writer.run = read_run(path)  # again, now that nobody else writes
            writer._set_torn_line_aside()
        except BaseException:
            writer.close()
            raise
        return writer

    def append(self, *records: Trial | LaunchRecord) -> None:
        """Add launches and trials, on disk when this returns.

        Raises:
            LanewiseError: there is no space (the file ends where it did before), or the file was removed or changed by
                somebody else (all that was measured is then in `<file>.rescued`).
        """
        self.run = _with(self.run, records)
        if not self._is_ours():
            self._rescue()
        self._write(*map(to_line, records))

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
        records: list[Trial | LaunchRecord] = [*self.run.launches.values(), *self.run.trials]
        write_atomic(rescued, _lines([self.run.header.to_dict(), *map(to_line, records)]).decode())
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
