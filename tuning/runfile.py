"""The run of bench-allreduce: its file read with every check. Of other benchmarks see tuning/serving/runfile.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tuning.plan import Plan, parse_plan
from tuning.runlines import AnyHeader, Kind, RunFile, read_lines
from tuning.trial import LaunchRecord, Trial, parse_line, to_line

__all__ = ["Header", "Kind", "Run", "read_run"]


@dataclass(frozen=True, kw_only=True)
class Header(AnyHeader):
    """First line of an allreduce run."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Run(RunFile[Trial | LaunchRecord]):
    """An allreduce run as read.

    Attributes:
        path, header, torn: as in `RunFile`.
        trials: its trials in order.
        launches: its launches by identifier.
    """

    header: Header
    trials: tuple[Trial, ...]
    launches: Mapping[str, LaunchRecord] = field(default_factory=dict)

    def with_records(self, records: Iterable[Trial | LaunchRecord]) -> Self:
        """The run with more launches and trials."""
        records = list(records)
        trials = [record for record in records if isinstance(record, Trial)]
        launches = {record.launch: record for record in records if isinstance(record, LaunchRecord)}
        return replace(self, trials=(*self.trials, *trials), launches={**self.launches, **launches})

    def records(self) -> Iterator[Trial | LaunchRecord]:
        """Its launches, then its trials."""
        yield from self.launches.values()
        yield from self.trials

    @staticmethod
    def to_line(record: Trial | LaunchRecord) -> dict[str, Any]:
        """A launch or trial as it stands in the file."""
        return to_line(record)


def read_run(path: Path) -> Run:
    """Read a run file; a torn last line is counted in `torn` and otherwise ignored.

    Raises:
        InputError: it cannot be read, is not a run file, has a version from the future, is of another benchmark, or a
            line is damaged.
    """
    lines = read_lines(path)
    header = lines.header("allreduce", lambda fields: Header(**{**fields, "plan": parse_plan(fields["plan"])}))
    return Run(path=path, header=header, trials=(), torn=lines.torn).with_records(lines.records(parse_line))
