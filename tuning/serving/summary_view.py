"""A run of servers as a table and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from lanewise.talk import printable
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import without_numbers
from tuning.serving.summary import Row, findings, rows
from tuning.serving.view import share_text

_MOST_FINDINGS = 20


def show(run: ServingRun) -> RenderableType:
    """The table, then what has no numbers, then what weakens those that there are."""
    found = rows(run)
    parts: list[RenderableType] = [_table(found) if found else "nothing has numbers"]
    for heading, lines in (("without numbers", list(_failures(run))), ("findings", list(findings(run)))):
        if lines:
            more = [f"  ... and {len(lines) - _MOST_FINDINGS} more"] if len(lines) > _MOST_FINDINGS else []
            parts += [f"\n{heading}:", *(f"  {printable(line)}" for line in lines[:_MOST_FINDINGS]), *more]
    return Group(*parts)


def _table(found: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    several = len({row.environment for row in found}) > 1
    names = [*(["environment"] if several else []), "arm"]
    numbers = [
        "at once",
        "starts",
        "step ms",
        "accept",
        "tok/s",
        "+-",
        "speed-up",
        "step detectable",
        "TTFT ms",
        "TPOT ms",
        "ITL p50/p99",
    ]
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for row in found:
        table.add_row(
            *([row.environment] if several else []),
            row.arm,
            str(row.concurrency),
            str(row.starts),
            f"{row.step_ms:.3f}",
            f"{row.accept_length:.3f}",
            f"{row.tokens_per_second:.1f}",
            _text(row.spread, "{:.1%}"),
            _text(row.speed_up, "{:.2f}"),
            share_text(row.detectable),
            _text(row.ttft_ms, "{:.1f}"),
            _text(row.tpot_ms, "{:.2f}"),
            "-" if row.itl_p50_ms is None else f"{row.itl_p50_ms:.2f}/{_text(row.itl_p99_ms, '{:.2f}')}",
            printable(row.source),
        )
    return table


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _failures(run: ServingRun) -> Iterator[str]:
    for trial in without_numbers(run):
        where = f"{trial.environment} {trial.arm} at {trial.concurrency}, start {trial.repetition + 1}"
        yield f"{where}: {trial.status}: {trial.reason}"


def document(run: ServingRun) -> dict[str, Any]:
    """For --json."""
    return {
        "run": str(run.path),
        "rows": [asdict(row) for row in rows(run)],
        "failures": [
            {
                "environment": trial.environment,
                "arm": trial.arm,
                "concurrency": trial.concurrency,
                "repetition": trial.repetition,
                "status": trial.status,
                "reason": trial.reason,
            }
            for trial in without_numbers(run)
        ],
        "findings": list(findings(run)),
    }
