"""What the run files of every benchmark have in common: JSON Lines, a header first, one reader of both.

Format history (docs/run-format.md describes the current one):
    1  2026-11-29  first version
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from lanewise.errors import InputError, LanewiseError
from tuning.plan import Environment
from tuning.trial import is_plain, mapping
from tuning.workload import short

FORMAT = "lanewise-run"
VERSION = 1
_MAX_FILE_BYTES = 1 << 30
_BREAKAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, InputError, RecursionError)


class Kind(StrEnum):
    """What the numbers of a run are; kinds are never mixed."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    MEANINGLESS = "meaningless"  # right results, but times that say nothing, e.g. ranks that share one GPU


class AnyPlan(Protocol):
    """What a run file needs of a plan, of whatever benchmark."""

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Toolchains, each in launches of its own."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        ...


@dataclass(frozen=True, kw_only=True)
class AnyHeader:
    """First line of a run file.

    Attributes:
        created: ISO 8601 UTC.
        kind: what the numbers are.
        plan: what is measured.
        toolkit: version, revision and whether the tree was changed.
        node: the node record (docs/node-record.md).
        environments: per environment its Python, library versions and effective NCCL settings.
        worker: name and sha256 of the code that measured: the ranks' worker, or the load client of servers.
        variables: environment variables that may matter, redacted.
        command: the argument vector that started the run, redacted.
    """

    created: str
    kind: Kind
    plan: AnyPlan
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


AnyRecord = TypeVar("AnyRecord")
SomeHeader = TypeVar("SomeHeader", bound=AnyHeader)


@dataclass(frozen=True, kw_only=True)
class RunFile(Generic[AnyRecord]):
    """A run file as read, of whatever benchmark.

    Attributes:
        path: the file.
        header: its first line.
        torn: bytes of a last line that was never finished; 0 where there is none.
    """

    path: Path
    header: AnyHeader
    torn: int = 0

    def with_records(self, records: Iterable[AnyRecord]) -> Self:
        """The run with more records."""
        raise NotImplementedError

    def records(self) -> Iterator[AnyRecord]:
        """All of them, in an order in which they can be read."""
        raise NotImplementedError

    @staticmethod
    def to_line(record: AnyRecord) -> dict[str, Any]:
        """A record as it stands in the file."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The whole lines of a run file, of which only the first is understood yet.

    Attributes:
        path: the file.
        first: the header's fields as they stand in the file, without format and version.
        others: all other lines.
        torn: as in `RunFile`.
    """

    path: Path
    first: dict[str, Any]
    others: tuple[bytes, ...]
    torn: int

    def header(self, benchmark: str, make: Callable[[dict[str, Any]], SomeHeader]) -> SomeHeader:
        """The header; `make` gets its fields, with `kind` understood, and may fail in any way.

        Raises:
            InputError: it is none, or of another benchmark.
        """
        try:
            found = mapping(self.first["plan"])["benchmark"]
            header = _typed(make({**self.first, "kind": Kind(self.first["kind"])})) if found == benchmark else None
        except _BREAKAGE as error:
            raise _damaged(self.path, 1, _in_words(error)) from error
        if header is None:
            raise InputError(
                f"run file {self.path} is of benchmark {short(found)}",
                expected=f"one of benchmark {benchmark}",
                todo=f"name a file that bench-{benchmark} wrote",
            )
        return header

    def records(self, parse: Callable[[object], AnyRecord]) -> list[AnyRecord]:
        """All lines but the header; InputError with the number of the first that `parse` does not take."""
        records = []
        for number, line in enumerate(self.others, 2):
            try:
                records.append(parse(json.loads(line)))
            except _BREAKAGE as error:
                raise _damaged(self.path, number, _in_words(error)) from error
        return records


def read_lines(path: Path) -> Lines:
    """Read a run file of any benchmark.

    Raises:
        InputError: it cannot be read, is not a run file, or has a version from the future.
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
            expected="a run file (*.jsonl) as ./inv campaign, bench-allreduce and bench-speculative write them",
            todo="check the path; ./inv compare without --run takes the newest in runs/",
        ) from error
    whole, newline, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if not lines:
        raise _damaged(path, 1, "there is no whole line")
    return Lines(path=path, first=_first(path, lines[0]), others=tuple(lines[1:]), torn=len(torn))


def _first(path: Path, line: bytes) -> dict[str, Any]:
    try:
        document = mapping(json.loads(line))
        if document.pop("format") != FORMAT:
            raise ValueError("its format is another")
        version = document.pop("version")
    except _BREAKAGE as error:
        raise InputError(
            f"{path} is not a run file: line 1 is not a header ({_in_words(error)})",
            expected=f'a first line with "format": "{FORMAT}"',
            todo="name a file that ./inv campaign, bench-allreduce or bench-speculative wrote",
        ) from error
    if version != VERSION or isinstance(version, bool):
        raise InputError(
            f"run file {path} has version {version!r}",
            expected=f"version {VERSION}",
            todo="use a newer Lanewise to read it",
        )
    return document


def _typed(header: SomeHeader) -> SomeHeader:
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
