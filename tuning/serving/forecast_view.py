"""Shows what is predicted of servers: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lanewise.talk import printable
from tuning.predict_view import FirstFit
from tuning.serving.estimates import Estimate
from tuning.serving.forecast_values import Cell, Errors, Forecast, Untold

_LEGEND = (
    "step: pass + drafting, and its 95 % interval over starts, or what published\n"
    "drafting allows; break-even: step over baseline, the accept length from which\n"
    "speculation is faster; baseline, measured: means over starts"
)


def show(forecast: Forecast) -> RenderableType:
    """The prediction for people."""
    parts: list[RenderableType] = [Text("Predicted from baselines:", style="bold")]
    parts += [Text(line, style="bold") for line in headlines(forecast.cells)]
    for name, found in groupby(forecast.cells, _servers):
        cells = list(found)
        parts += [Text(f"\n{name}, predicted; ms", style="bold"), _predicted(cells), "", _made_of(cells)]
    if forecast.cells:
        parts += ["", Text(_LEGEND, style="dim")]
    if forecast.errors:
        parts += ["", Text(errors_text(forecast.errors), style="bold")]
    for heading, lines in (("Not told", _untold(forecast.untold)), ("Assumed", forecast.assumptions)):
        said = [Text(f"- {printable(line)}") for line in lines]
        parts += [Text(f"\n{heading}", style="bold"), *said] if said else []
    return Group(*parts)


def headlines(cells: Sequence[Cell]) -> Iterator[str]:
    """From which accept length each speculation pays on each backend, at the fewest requests: a line each."""
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        first.setdefault((_servers(cell), cell.wanted.kind), cell)
    for cell in first.values():
        most, needed = cell.wanted.speculation.steps + 1, cell.break_even
        length = f"an accept length of {needed.value:.2f}" + (f" ({_range(needed)})" if needed.low is not None else "")
        if needed.value > most:
            yield f"{cell.label} does not pay: it takes {length}, and {most} is the most"
        else:
            yield f"{cell.label} pays from {length}"


def errors_text(errors: Errors) -> str:
    """How far predictions are off, in a line."""
    cells = "1 prediction" if errors.count == 1 else f"{errors.count} predictions"
    return f"error of {cells}: median {errors.median:.1%}, largest {errors.largest:+.1%} ({errors.largest_of})"


def _servers(cell: Cell | Untold) -> str:
    return f"{cell.environment}:{cell.backend}"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def _untold(untold: Sequence[Untold]) -> Iterator[str]:
    for one in untold:
        where = f"/{one.wanted.kind} at {_requests(one.requests)}" if one.wanted and one.requests else ""
        yield f"{_servers(one)}{where}: {one.reason}"


def _predicted(cells: Sequence[Cell]) -> RenderableType:
    """Columns that would be empty throughout are left out."""
    rated, judged = any(cell.accept_length for cell in cells), any(cell.measured_ms for cell in cells)
    headings = ["step", "range", "break-even"]
    headings += ["tok/s", "speed-up"] if rated else []
    headings += ["measured", "error"] if judged else []
    made = _table("at once", "drafts", *headings)
    for cell in cells:
        row = [f"{cell.step_ms.value:.2f}", _range(cell.step_ms), f"{cell.break_even.value:.2f}"]
        row += [_number(cell.tokens_per_second, ",.0f"), _number(cell.speed_up, ".2f")] if rated else []
        measured = cell.measured_ms.value if cell.measured_ms else None
        row += [_number(measured, ".2f"), _number(cell.error, "+.1%")] if judged else []
        made.add_row(str(cell.requests), cell.wanted.kind, *row)
    return FirstFit(layouts=(made,))


def _made_of(cells: Sequence[Cell]) -> RenderableType:
    made = _table("at once", "drafts", "baseline", "rows", "pass", "told by", "drafting", "told by")
    for cell in cells:
        made.add_row(
            str(cell.requests),
            cell.wanted.kind,
            f"{cell.baseline_ms.value:.2f}",
            str(cell.rows),
            f"{cell.target.ms.value:.2f}",
            cell.target.source,
            f"{cell.drafting.ms.value:.2f}",
            _drafting_source(cell),
        )
    return FirstFit(layouts=(made,))


def _drafting_source(cell: Cell) -> str:
    return cell.drafting.source + (", extrapolated" if cell.drafting.extrapolated else "")


def _table(*headings: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in headings:
        words = heading in ("drafts", "told by")
        made.add_column(heading, justify="left" if words else "right", no_wrap=True)
    return made


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _range(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:.2f} to {estimate.high:.2f}"


def document(forecast: Forecast) -> dict[str, Any]:
    """For --json."""
    return {
        "kind": "predicted",
        "run": forecast.run,
        "drafting_run": forecast.drafting,
        "allreduce_run": forecast.allreduce_run,
        "headlines": list(headlines(forecast.cells)),
        "cells": [_cell(cell) for cell in forecast.cells],
        "not_told": [
            {
                "environment": one.environment,
                "backend": one.backend,
                "speculation": one.wanted.kind if one.wanted else None,
                "requests": one.requests,
                "reason": one.reason,
            }
            for one in forecast.untold
        ],
        "errors": asdict(forecast.errors) if forecast.errors else None,
        "assumptions": list(forecast.assumptions),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "environment": cell.environment,
        "backend": cell.backend,
        "speculation": cell.wanted.kind,
        "requests": cell.requests,
        "rows": cell.rows,
        "baseline_ms": asdict(cell.baseline_ms),
        "pass_ms": asdict(cell.target.ms),
        "pass_told_by": cell.target.source,
        "drafting_ms": asdict(cell.drafting.ms),
        "drafting_told_by": cell.drafting.source,
        "extrapolated": cell.drafting.extrapolated,
        "step_ms": asdict(cell.step_ms),
        "break_even": asdict(cell.break_even),
        "accept_length": cell.accept_length,
        "tokens_per_second": cell.tokens_per_second,
        "speed_up": cell.speed_up,
        "measured_step_ms": asdict(cell.measured_ms) if cell.measured_ms else None,
        "error": cell.error,
    }
