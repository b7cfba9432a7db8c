"""Run files: JSON Lines, a header, then launches and their trials; appended and synced, so that a crash loses little.

Format history (docs/run-format.md describes the current one):
    1  2026-11-29  first version
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanewise.errors import InputError, LanewiseError
from tuning.plan import Plan, parse_plan
from tuning.trial import LaunchRecord, Trial, is_plain, parse_line

if TYPE_CHECKING:
    pass

FORMAT = "lanewise-run"
VERSION = 1
_MAX_FILE_BYTES = 1 << 30
_BREAKAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, InputError, RecursionError)


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
    return with_records(Run(path=path, header=header, trials=(), torn=len(torn)), records)


def with_records(run: Run, records: Iterable[Trial | LaunchRecord]) -> Run:
    """The run with more launches and trials."""
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
