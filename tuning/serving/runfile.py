"""The run of bench-speculative: its file read with every check, and written like every run file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tuning.runlines import AnyHeader, RunFile, read_lines
from tuning.runwriter import Writer
from tuning.serving.plan import BENCHMARK, ServingPlan, parse_serving_plan
from tuning.serving.records import Pass, Request, ServerStart, ServingTrial
from tuning.trial import Status, items, mapping, typed
from tuning.workload import short

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ServingRecord = ServerStart | ServingTrial
_MOST = 1e12
"""No time in ms, count or rate of a server is as large."""
Declared = TypeVar("Declared", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class ServingHeader(AnyHeader):
    """First line of a run of servers."""

    plan: ServingPlan


@dataclass(frozen=True, kw_only=True)
class ServingRun(RunFile[ServingRecord]):
    """A run of servers as read.

    Attributes:
        path, header, torn: as in `RunFile`.
        trials: what was measured, in order.
        starts: server starts by identifier.
    """

    header: ServingHeader
    trials: tuple[ServingTrial, ...] = ()
    starts: Mapping[str, ServerStart] = field(default_factory=dict)

    def with_records(self, records: Iterable[ServingRecord]) -> Self:
        """The run with more starts and trials."""
        records = list(records)
        trials = [record for record in records if isinstance(record, ServingTrial)]
        starts = {record.launch: record for record in records if isinstance(record, ServerStart)}
        return replace(self, trials=(*self.trials, *trials), starts={**self.starts, **starts})

    def records(self) -> Iterator[ServingRecord]:
        """Its starts, then its trials."""
        yield from self.starts.values()
        yield from self.trials

    @staticmethod
    def to_line(record: ServingRecord) -> dict[str, Any]:
        """A start or trial as it stands in the file."""
        return {"kind": "start" if isinstance(record, ServerStart) else "serving_trial", **asdict(record)}


class ServingWriter(Writer[ServingRun, ServingRecord]):
    """Writes the run of servers."""


def read_serving_run(path: Path) -> ServingRun:
    """Read a run file; a torn last line is counted in `torn` and otherwise ignored.

    Raises:
        InputError: it cannot be read, is not a run file, has a version from the future, is of another benchmark, or a
            line is damaged or lost.
    """
    lines = read_lines(path)
    header = lines.header(BENCHMARK, _header)
    return ServingRun(path=path, header=header, torn=lines.torn).with_records(lines.records(_in_order()))


def _header(given: dict[str, Any]) -> ServingHeader:
    return ServingHeader(**{**given, "plan": parse_serving_plan(given["plan"])})


def _in_order() -> Callable[[object], ServingRecord]:
    """Parses the lines of one file, each trial after its start: without that, a line was lost."""
    launches: set[str] = set()

    def parse(document: object) -> ServingRecord:
        record = parse_line(document)
        if isinstance(record, ServerStart):
            launches.add(record.launch)
        elif record.launch and record.launch not in launches:
            raise ValueError(f"a trial of start {short(record.launch)}, of which no line stands before it")
        return record

    return parse


def parse_line(document: object) -> ServingRecord:
    """A start or trial from its line in a run file, whatever JSON value that line holds.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: the line is neither; the message says what is wrong.
    """
    given = dict(mapping(document))
    kind = given.pop("kind")
    if kind not in ("start", "serving_trial"):
        raise ValueError(f"a line of kind {short(kind)}")
    given["status"] = Status(given["status"])
    record = _start(given) if kind == "start" else _trial(given)
    if record.repetition < 0:
        raise ValueError(f"repetition is {record.repetition}")
    return record


def _start(given: dict[str, Any]) -> ServerStart:
    for name in ("command", "findings", "gpus", "output"):
        given[name] = items(given[name])
    return _counted(typed(ServerStart(**given)))


def _trial(given: dict[str, Any]) -> ServingTrial:
    given["passes"] = tuple(_pass(entry) for entry in items(given["passes"]))
    given["warm_up"] = items(given["warm_up"])
    trial = _counted(typed(ServingTrial(**given)))
    if trial.ok != bool(trial.passes):
        raise ValueError(f"status {trial.status} with {len(trial.passes)} passes")
    if trial.concurrency < 1:
        raise ValueError(f"concurrency is {trial.concurrency}")
    return trial


def _pass(entry: object) -> Pass:
    given = dict(mapping(entry))
    given["requests"] = tuple(_request(request) for request in items(given["requests"]))
    found = _counted(typed(Pass(**given)))
    if not (found.step_ms > 0 and found.accept_length > 0 and found.tokens_per_second > 0):
        raise ValueError(f"step {found.step_ms} ms, accept length {found.accept_length}")
    return found


def _request(entry: object) -> Request:
    given = dict(mapping(entry))
    given["accepted"], given["gaps_ms"] = items(given["accepted"]), items(given["gaps_ms"])
    return _counted(typed(Request(**given)))


def _counted(record: Declared) -> Declared:
    """The record, once none of its numbers is negative or absurdly large."""
    for declared in fields(record):
        value = getattr(record, declared.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not 0 <= number <= _MOST:
                raise ValueError(f"{declared.name} is {short(number)}")
    return record
