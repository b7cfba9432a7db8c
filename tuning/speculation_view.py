"""Shows predictions of speculation: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.identify import Experiment, Identified, Known, Reading
from tuning.predict_view import FirstFit
from tuning.speculation_model import Span
from tuning.speculation_table import KS, REQUESTS, Cell, Repair

_MARKS = {
    "+": "faster than without speculation",
    "-": "slower than without speculation",
    "?": "open",
    "~": "allreduces larger than any measured",
}
_TOGETHER = (len(KS), 4, 2)
"""Numbers of drafts beside each other in a table: as many as the console is wide enough for."""
_WAYS = (100, 40, 20)
"""Columns of the cheapest ways to know something, likewise; with the last the table has 80."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Everything that is shown.

    Attributes:
        known: what was given.
        others: rates with speculation over other allreduces, by name.
        identified: ranges of the parts.
        cells: the table over drafts and requests.
        repairs: what other allreduces would give.
        break_even_us: allreduce latency of a verify pass below which speculation is faster.
        assumptions: each a sentence.
    """

    known: Known
    others: Mapping[str, Span]
    identified: Identified
    cells: tuple[Cell, ...]
    repairs: tuple[Repair, ...]
    break_even_us: Span
    assumptions: tuple[str, ...]

    @property
    def relations(self) -> tuple[Reading, ...]:
        """What the given rates identify by themselves, without the accept length.

        A ratio of rates at one accept length is the inverse ratio of step times; baseline over speculating rate is the
        break-even accept length over the true one.
        """
        speculating = self.known.speculating
        if speculating is None:
            return ()
        pairs = [
            (f"step time with {name} over step time measured", speculating, other)
            for name, other in self.others.items()
        ]
        pairs.append(("break-even accept length over accept length", self.known.baseline, speculating))
        return tuple(
            Reading(name=name, unit="x", span=Span(low=above.low / below.high, high=above.high / below.low))
            for name, above, below in pairs
        )

    @property
    def penalties(self) -> tuple[Reading, ...]:
        """What each allreduce of another kind takes more, us: known up to the accept length only."""
        speculating = self.known.speculating
        if speculating is None:
            return ()
        tau = next(reading.span for reading in self.identified.readings if reading.name == "accept length")
        us = 1e6 / self.known.calls
        return tuple(
            Reading(
                name=f"what each allreduce takes more with {name}",
                unit="us",
                span=Span(
                    low=min(end * us * (1 / other.high - 1 / speculating.low) for end in (tau.low, tau.high)),
                    high=max(end * us * (1 / other.low - 1 / speculating.high) for end in (tau.low, tau.high)),
                ),
            )
            for name, other in self.others.items()
        )


def show(prediction: Prediction) -> RenderableType:
    """The prediction for people."""
    known = prediction.known
    parts: list[RenderableType] = [
        Text(answer(prediction), style="bold"),
        Text(
            f"Predicted, not measured: {known.calls} allreduces a pass, {known.row_bytes:,} bytes a row, "
            f"{known.k} drafts a step"
        ),
    ]
    if prediction.relations:
        parts += [
            Text("\nWhat these rates identify, whatever the accept length is", style="bold"),
            FirstFit(layouts=(_relations(prediction),)),
        ]
    parts += [Text("\nParts of a step, one request", style="bold"), _parts(prediction.identified)]
    parts += [Text(f"  to {one.name}: {one.how}") for one in _wanted(prediction.identified)]
    parts += [Text("\nTokens per second of all requests, predicted", style="bold"), _cells(prediction.cells)]
    parts.append(Text(_legend(prediction.cells)))
    parts += [
        Text("\nAccept length from which speculation is faster, predicted", style="bold"),
        _even(prediction.cells),
    ]
    if any(map(_unreachable, prediction.cells)):
        parts.append(Text("! above k + 1: no draft model can reach it"))
    title = f"\nOne request, {known.k} drafts, if each allreduce of {known.k + 1} rows took"
    parts += [Text(title, style="bold"), FirstFit(layouts=(_repairs(prediction),))]
    parts += [Text("\nAssumed", style="bold"), Text("\n".join(f"- {told}" for told in prediction.assumptions))]
    return Group(*parts)


def answer(prediction: Prediction) -> str:
    """Whether speculation pays for one request, and from where on it does: a sentence or two."""
    k = prediction.known.k
    cell = next(cell for cell in prediction.cells if (cell.k, cell.requests) == (k, 1))
    word = {"+": "Yes", "-": "No", "?": "Open"}[verdict(cell)]
    drafts = "1 draft" if k == 1 else f"{k} drafts"
    return (
        f"{word} (predicted): with {drafts} a step one request runs at {span_text(cell.gain, 2)} of the rate without "
        f"speculation. {_pays_from(cell, prediction)}."
    )


def _pays_from(cell: Cell, prediction: Prediction) -> str:
    size = f"{prediction.known.row_bytes * (cell.k + 1):,} bytes"
    if _unreachable(cell):
        length = f"It would take an accept length above {span_text(cell.break_even, 2)}, and {cell.k + 1} is the most"
    else:
        length = f"It pays from an accept length of {span_text(cell.break_even, 2)} on ({cell.k + 1} is the most)"
    if prediction.break_even_us.high <= 0:
        return f"{length}; no allreduce of {size} is fast enough for it as it is"
    return f"{length}, or with an allreduce of {size} below {span_text(_reachable(prediction.break_even_us), 0)} us"


def _unreachable(cell: Cell) -> bool:
    """Whether no draft model reaches the accept length from which speculation is faster."""
    return cell.break_even.low > cell.k + 1


def _reachable(latency: Span) -> Span:
    """A break-even latency without its part below 0."""
    return Span(low=max(latency.low, 0.0), high=latency.high)


def _table(*headings: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _relations(prediction: Prediction) -> Table:
    made = _table("quantity", "value")
    for reading in prediction.relations:
        made.add_row(reading.name, span_text(reading.span, 2))
    for reading in prediction.penalties:
        made.add_row(f"{reading.name}, up to the accept length", f"{span_text(reading.span, 0)} {reading.unit}")
    return made


def _parts(identified: Identified) -> FirstFit:
    return FirstFit(layouts=tuple(_parts_in(identified, columns) for columns in _WAYS))


def _parts_in(identified: Identified, columns: int) -> Table:
    made = _table("part", "range", "known?")
    made.add_column("cheapest way to know it", max_width=columns)
    for reading in identified.readings:
        value = f"{span_text(reading.span, _digits(reading))} {reading.unit}".strip()
        free = not reading.is_known
        made.add_row(reading.name, value, "no" if free else "yes", _settling(identified, reading) if free else "")
    return made


def _settling(identified: Identified, reading: Reading) -> str:
    chosen = identified.settling.get(reading.name, ())
    return _in_words(chosen) if chosen else "none of the experiments here"


def _wanted(identified: Identified) -> list[Experiment]:
    """The experiments that settle something, each once."""
    chosen = [one for settling in identified.settling.values() for one in settling]
    return list({one.name: one for one in chosen}.values())


def _in_words(chosen: Sequence[Experiment]) -> str:
    minutes = sum(one.minutes for one in chosen)
    return f"{'; '.join(one.name for one in chosen)} (about {minutes} min)"


def _digits(reading: Reading) -> int:
    return 2 if reading.unit != "us" else 1


def _cells(cells: Sequence[Cell]) -> FirstFit:
    def some(ks: Sequence[int]) -> Table:
        made = _table("requests; k =", "0", *map(str, ks))
        for requests in REQUESTS:
            row = _row(cells, requests, ks)
            made.add_row(str(requests), span_text(row[0].baseline, 0), *map(_rate, row))
        return made

    return _together(some)


def _row(cells: Sequence[Cell], requests: int, ks: Sequence[int]) -> list[Cell]:
    return [cell for cell in cells if cell.requests == requests and cell.k in ks]


def _together(some: Callable[[Sequence[int]], Table]) -> FirstFit:
    """Tables of some numbers of drafts, below each other where all do not fit."""
    return FirstFit(
        layouts=tuple(
            Group(*(some(KS[first : first + together]) for first in range(0, len(KS), together)))
            for together in _TOGETHER
        )
    )


def _legend(cells: Sequence[Cell]) -> str:
    seen = {mark for cell in cells for mark in _marks(cell)}
    marks = [f"{mark} {meaning}" for mark, meaning in _MARKS.items() if mark in seen]
    return "\n".join([", ".join(marks), "k = 0: without speculation"])


def _rate(cell: Cell) -> str:
    return f"{span_text(cell.rate, 0)} {_marks(cell)}"


def _marks(cell: Cell) -> str:
    return verdict(cell) + ("~" if cell.extrapolated else " ")


def verdict(cell: Cell) -> str:
    """Whether speculation is faster there: "+", "-", or "?" where that is open."""
    if cell.gain.low > 1:
        return "+"
    return "-" if cell.gain.high < 1 else "?"


def _even(cells: Sequence[Cell]) -> FirstFit:
    def some(ks: Sequence[int]) -> Table:
        made = _table("requests; k =", *map(str, ks))
        for requests in REQUESTS:
            row = _row(cells, requests, ks)
            made.add_row(
                str(requests), *(span_text(cell.break_even, 2) + ("!" if _unreachable(cell) else "") for cell in row)
            )
        return made

    return _together(some)


def _repairs(prediction: Prediction) -> Table:
    made = _table("allreduce, us", "tokens per second")
    for repair in prediction.repairs:
        made.add_row(f"{repair.us:g}", span_text(repair.rate, 0))
    if prediction.break_even_us.high <= 0:
        made.add_row("none", "is fast enough for speculation to pay")
    else:
        made.add_row(span_text(_reachable(prediction.break_even_us), 0), "as without speculation (break-even)")
    return made


def span_text(span: Span, digits: int) -> str:
    """A span as people read it; one number only where both ends print alike."""
    low, high = f"{span.low:,.{digits}f}", f"{span.high:,.{digits}f}"
    return low if low == high else f"{low}-{high}"


def document(prediction: Prediction) -> dict[str, Any]:
    """The prediction for programs."""
    known, identified = prediction.known, prediction.identified
    return {
        "kind": "predicted",
        "calls": known.calls,
        "row_bytes": known.row_bytes,
        "k": known.k,
        "identified": [_reading(reading) for reading in prediction.relations],
        "parts": [
            _reading(reading)
            | {
                "known": reading.is_known,
                "settled_by": [
                    {"name": one.name, "how": one.how, "minutes": one.minutes}
                    for one in identified.settling.get(reading.name, ())
                ],
            }
            for reading in identified.readings
        ],
        "penalties": [_reading(reading) for reading in prediction.penalties],
        "table": [_cell(cell) for cell in prediction.cells],
        "break_even_allreduce_us": _span(prediction.break_even_us),
        "if_allreduce_us": [
            {"us": repair.us, "tokens_per_second": _span(repair.rate)} for repair in prediction.repairs
        ],
        "assumptions": list(prediction.assumptions),
    }


def _reading(reading: Reading) -> dict[str, Any]:
    return {"name": reading.name, "unit": reading.unit, **_span(reading.span)}


def _span(span: Span) -> dict[str, float]:
    return {"low": round(span.low, 6), "high": round(span.high, 6)}


def _cell(cell: Cell) -> dict[str, Any]:
    spans = ("tau", "step_ms", "rate", "baseline", "break_even", "gain")
    return {
        "k": cell.k,
        "requests": cell.requests,
        **{name: _span(getattr(cell, name)) for name in spans},
        "faster": {"+": True, "-": False}.get(verdict(cell)),
        "extrapolated": cell.extrapolated,
    }
