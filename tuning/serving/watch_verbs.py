"""The verb `watch`: parses, scrapes, prints, until the server or the user ends it."""

from __future__ import annotations

import json as to_json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lanewise import talk
from lanewise.errors import InputError, LanewiseError, UnreachableError
from lanewise.verbs import verb
from tuning.arms import middle
from tuning.serving.counters import Metrics
from tuning.serving.runfile import read_serving_run
from tuning.serving.scrape import Address, parse_address, scrape, server_info
from tuning.serving.sides import ServingSide, step_ms
from tuning.serving.spec import ServerSpec
from tuning.serving.watch import Baseline, Glance, doubt, glance
from tuning.workload import short

PATIENCE = 3
"""Readings in a row without counters after which the watch ends: a busy server may miss one."""
_TIMEOUT_SECONDS = 5.0
_MOST_INTERVAL = 3_600
_COLUMNS = ("running", "queue", "tok/s", "step ms", "accept", "break-even", "graph")


@verb(
    "url",
    url="the running server, http(s)://HOST:PORT; nothing else is contacted",
    interval="seconds between readings",
    count="windows to show; 0: until Ctrl-C or the server's end",
    baseline_ms="time of a step without speculation, ms, at the load that runs",
    baseline_run="run file of bench-speculative whose baseline tells it, by number of requests",
    json="print a JSON document a line for each window",
)
def watch(
    _context: Context,
    url: str = "",
    interval: int = 2,
    count: int = 0,
    baseline_ms: str = "",
    baseline_run: str = "",
    json: bool = False,
) -> None:
    """Watch a running SGLang server, `./inv watch URL`: step time, accept length, break-even, and what to do."""
    address = parse_address(url)
    if not 1 <= interval <= _MOST_INTERVAL or count < 0:
        raise InputError(
            f"--interval is {interval}, --count {count}",
            expected=f"seconds from 1 to {_MOST_INTERVAL:,}, and 0 or more windows",
            todo="correct it",
        )
    baseline = _baseline(address, baseline_ms, baseline_run)
    with ExitStack() as stack:
        show = _shower(stack, address, json=json)
        for seen in glances(lambda: scrape(address, _TIMEOUT_SECONDS), float(interval), count, baseline):
            show(seen)


def glances(read: Callable[[], Metrics], interval: float, count: int, baseline: Baseline | None) -> Iterator[Glance]:
    """Windows of a server, one after the other.

    Args:
        read: reads its counters once.
        interval: seconds between readings.
        count: how many windows; 0: without end.
        baseline: step time without speculation, where it is known.

    Raises:
        UnreachableError: it did not answer the first time, or gave no counters `PATIENCE` times in a row.
        LanewiseError: it answered the first time without counters.
    """
    before, at = read(), time.monotonic()
    shown = missed = 0
    while not count or shown < count:
        time.sleep(interval)
        try:
            after, now = read(), time.monotonic()
        except LanewiseError as error:
            if (missed := missed + 1) >= PATIENCE:
                raise _gone(error, missed) from error
            continue
        missed = 0
        yield glance(before, after, now - at, baseline)
        before, at, shown = after, now, shown + 1


def _gone(error: LanewiseError, missed: int) -> UnreachableError:
    gone = "is gone" if isinstance(error, UnreachableError) else "gives no counters any more"
    return UnreachableError(
        f"the server {gone}: {error.what}, {missed} times in a row",
        expected="a server that goes on answering",
        todo="see what its log says last: ./inv diagnose its log, or start it again and watch anew",
    )


def _baseline(address: Address, milliseconds: str, run_file: str) -> Baseline | None:
    if milliseconds and run_file:
        raise InputError(
            "--baseline-ms and --baseline-run are both given", expected="one of them", todo="leave one out"
        )
    if milliseconds:
        return Baseline(source="--baseline-ms", any_concurrency=_number(milliseconds))
    if not run_file:
        return None
    run = read_serving_run(Path(run_file))
    plan = run.header.plan
    side = ServingSide(environment=plan.environments[0].name, arm=plan.baseline, run=run)
    steps = {number: middle([*map(step_ms, side.trials(number).values())]) for number in side.concurrencies}
    known = {number: ms for number, ms in steps.items() if ms is not None}
    if side.spec.speculation or not known:
        raise InputError(
            f"{run_file} holds no step time without speculation ({side.label})",
            expected="a run whose first arm is a baseline with numbers",
            todo="name another, or say --baseline-ms",
        )
    return _compared(Baseline(source=run.path.name, by_concurrency=known), side.spec, address)


def _compared(baseline: Baseline, spec: ServerSpec, address: Address) -> Baseline:
    """The baseline with what speaks against it, said once; advice repeats it."""
    info: dict[str, Any] = {}
    with suppress(UnreachableError):  # the first reading says so, where it is gone altogether
        info = server_info(address, _TIMEOUT_SECONDS)
    if not {"model_path", "tp_size"} & info.keys():
        talk.say("note: the server does not tell its model: whether the baseline is of the same one is not known")
    if found := doubt(spec, info):
        talk.say(f"warning: {found}: break-even may mean nothing")
    return replace(baseline, doubt=found)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 1e6:
        raise InputError(f"--baseline-ms is {short(text)}", expected="milliseconds, e.g. 8.5", todo="correct it")
    return value


def _shower(stack: ExitStack, address: Address, *, json: bool) -> Callable[[Glance], None]:
    """How windows are shown: as JSON lines, live on a terminal, or as plain lines."""
    if json:
        return _put_line
    if sys.stdout.isatty():
        live = stack.enter_context(Live(Text(f"{address.url}: first reading"), refresh_per_second=4))
        return lambda seen: live.update(_view(address, seen))
    return lambda seen: talk.put(_plain(seen))


def _put_line(seen: Glance) -> None:
    sys.stdout.write(to_json.dumps(asdict(seen), allow_nan=False) + "\n")
    sys.stdout.flush()


def _view(address: Address, seen: Glance) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(*_values(seen))
    unknown = [Text(f"not known: {line}", style="dim") for line in seen.unknown]
    title = Text(f"{address.url}, last {seen.seconds:.1f} s; Ctrl-C ends", style="dim")
    return Group(title, table, Text(seen.advice, style="bold"), *unknown)


def _plain(seen: Glance) -> str:
    told = [f"{name} {value}" for name, value in zip(_COLUMNS, _values(seen), strict=True) if value != "-"]
    return f"{', '.join(told)}{': ' if told else ''}{seen.advice}"


def _values(seen: Glance) -> tuple[str, ...]:
    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        text(seen.running, "g"),
        text(seen.queued, "g"),
        text(seen.tokens_per_second, ",.1f"),
        text(seen.step_ms, ".3f"),
        text(seen.accept_length, ".2f"),
        text(seen.break_even, ".2f"),
        text(seen.graph_share, ".0%"),
    )
