"""Shows predictions of speculation: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.identify import Experiment, Identified, Known, Reading
from tuning.speculation_model import Span
from tuning.speculation_table import KS, REQUESTS, Cell, Repair


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
        Text(
            f"Predicted, not measured: {known.calls} allreduces a pass, {known.row_bytes:,} bytes a row, "
            f"{known.k} drafts a step"
        )
    ]
    if prediction.relations:
        parts += [
            Text("\nWhat these rates identify, whatever the accept length is", style="bold"),
            _relations(prediction),
        ]
    parts += [Text("\nParts of a step, one request", style="bold"), _parts(prediction.identified)]
    parts += [Text(f"  to {one.name}: {one.how}") for one in _wanted(prediction.identified)]
    parts += [Text("\nTokens per second of all requests, predicted", style="bold"), _cells(prediction.cells)]
    parts.append(
        Text(
            "+ faster than without speculation, - slower, ? open; ~ allreduces larger than any measured\n"
            "k = 0: without speculation"
        )
    )
    parts += [
        Text("\nAccept length from which speculation is faster, predicted", style="bold"),
        _even(prediction.cells),
    ]
    parts.append(Text("! above k + 1: no draft model can reach it"))
    title = f"\nOne request, {known.k} drafts, if each allreduce of {known.k + 1} rows took"
    parts += [Text(title, style="bold"), _repairs(prediction)]
    parts += [Text("\nAssumed", style="bold"), Text("\n".join(f"- {told}" for told in prediction.assumptions))]
    return Group(*parts)


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


def _parts(identified: Identified) -> Table:
    made = _table("part", "range", "")
    made.add_column("cheapest way to know it")
    for reading in identified.readings:
        value = f"{span_text(reading.span, _digits(reading))} {reading.unit}".strip()
        free = not reading.is_known
        made.add_row(reading.name, value, "free" if free else "known", _settling(identified, reading) if free else "")
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


def _cells(cells: Sequence[Cell]) -> Table:
    made = _table("requests; k =", *(str(k) for k in (0, *KS)))
    for requests in REQUESTS:
        row = [cell for cell in cells if cell.requests == requests]
        made.add_row(str(requests), span_text(row[0].baseline, 0), *(_rate(cell) for cell in row))
    return made


def _rate(cell: Cell) -> str:
    return f"{span_text(cell.rate, 0)} {verdict(cell)}{'~' if cell.extrapolated else ' '}"


def verdict(cell: Cell) -> str:
    """Whether speculation is faster there: "+", "-", or "?" where that is open."""
    if cell.gain.low > 1:
        return "+"
    return "-" if cell.gain.high < 1 else "?"


def _even(cells: Sequence[Cell]) -> Table:
    made = _table("requests; k =", *(str(k) for k in KS))
    for requests in REQUESTS:
        row = [cell for cell in cells if cell.requests == requests]
        made.add_row(
            str(requests),
            *(f"{span_text(cell.break_even, 2)}{'!' if cell.break_even.low > cell.k + 1 else ''}" for cell in row),
        )
    return made


def _repairs(prediction: Prediction) -> Table:
    made = _table("allreduce, us", "tokens per second")
    for repair in prediction.repairs:
        made.add_row(f"{repair.us:g}", span_text(repair.rate, 0))
    if prediction.break_even_us.high < 0:
        made.add_row("none", "is fast enough for speculation to pay")
    else:
        low = Span(low=max(prediction.break_even_us.low, 0.0), high=prediction.break_even_us.high)
        made.add_row(span_text(low, 0), "as without speculation (break-even)")
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
