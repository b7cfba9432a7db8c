"""Shows a prediction: a table for people, a document for programs. It computes nothing but passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tuning.predict import Estimate, Predicted, Prediction
from tuning.workload import Message

_ENDLESS = 100_000
"""Columns of a console that nothing is too wide for."""
_EVIDENCE = 36
_DETAILS = 53
"""Columns of running text: evidence beside all numbers, and what is told of a family below them (80 with its name)."""


@dataclass(frozen=True, kw_only=True)
class FirstFit:
    """The first of several layouts that the console is wide enough for, the last where none is: at its own width.

    rich shortens cells of a table that is too wide, and a number without its last digits is another number.

    Attributes:
        layouts: tables, or groups of them, widest first.
    """

    layouts: tuple[RenderableType, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich."""
        endless = options.update(width=_ENDLESS)
        widths = [console.measure(layout, options=endless).maximum for layout in self.layouts]
        fitting = (number for number, width in enumerate(widths) if width <= options.max_width)
        chosen = next(fitting, len(widths) - 1)
        yield from console.render(self.layouts[chosen], options.update(width=max(options.max_width, widths[chosen])))


def show(prediction: Prediction, messages: Sequence[Message] = ()) -> RenderableType:
    """The prediction as text and a table.

    Args:
        prediction: what is shown.
        messages: a workload's, to name the sizes and to put the calls of a pass together.
    """
    parts: list[RenderableType] = [Text(headline(prediction), style="bold"), "", _numbers(prediction, messages), ""]
    parts += [
        Text(f"cannot start: {predicted.family.title}: {predicted.start.says}")
        for predicted in prediction.families
        if predicted.start.able is False
    ]
    parts += [Text(f"- {note}", style="dim") for note in prediction.notes]
    return Group(*parts)


def headline(prediction: Prediction) -> str:
    """What it is of, in a line."""
    return f"PREDICTED allreduce on {prediction.topology}: {about(prediction)} (bounds)"


def about(prediction: Prediction) -> str:
    """How many GPUs of which kind of host, and what the numbers are."""
    return f"{len(prediction.gpus)} GPUs, {prediction.host_class}; us a call in a CUDA graph"


def _numbers(prediction: Prediction, messages: Sequence[Message]) -> FirstFit:
    """All in one table; or what is told of the families below it; or also a table for each size."""
    sizes, details = prediction.sizes, _details(prediction)
    apart = [
        _table(prediction, [size], [message for message in messages if message.bytes == size], messages)
        for size in sizes
    ]
    spaced = [part for table in apart for part in (table, "")]
    return FirstFit(
        layouts=(
            _table(prediction, sizes, messages, messages, detailed=True),
            Group(_table(prediction, sizes, messages, messages), "", details),
            Group(*spaced, details),
        )
    )


def _plain() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def _table(
    prediction: Prediction,
    sizes: Sequence[int],
    passes: Sequence[Message],
    messages: Sequence[Message],
    *,
    detailed: bool = False,
) -> Table:
    """Latencies of `sizes` and what `passes` take; `messages` name the sizes."""
    view = _plain()
    view.add_column("family", no_wrap=True)
    named = {message.bytes: message for message in messages}
    for size in sizes:
        view.add_column(f"{size:,} B" + (f"\n{named[size].name}" if size in named else ""), justify="right")
    for message in passes:
        view.add_column(f"{message.calls} calls\n{message.name}, ms", justify="right")
    if detailed:
        view.add_column("busiest link")
        view.add_column("evidence", max_width=_EVIDENCE)
    floor = {size: prediction.floor.time_us(size) for size in prediction.sizes}
    times = [*(_us(floor[size]) for size in sizes), *(f"{m.calls * floor[m.bytes] / 1e3:.2f}" for m in passes)]
    view.add_row("physical floor", *times, *([prediction.floor.link, "wires alone"] if detailed else []))
    for predicted in prediction.families:
        told = [predicted.shape.bottleneck or "-", _evidence(predicted)] if detailed else []
        view.add_row(predicted.family.title, *_times(predicted, sizes, passes), *told)
    return view


def _details(prediction: Prediction) -> Table:
    view = _plain()
    view.add_column("family", no_wrap=True)
    view.add_column("busiest link; evidence", max_width=_DETAILS)
    view.add_row("physical floor", f"{prediction.floor.link}; wires alone")
    for predicted in prediction.families:
        link = predicted.shape.bottleneck
        view.add_row(predicted.family.title, f"{link}; {_evidence(predicted)}" if link else _evidence(predicted))
    return view


def _times(predicted: Predicted, sizes: Sequence[int], passes: Sequence[Message]) -> list[str]:
    estimates = {estimate.size: estimate for estimate in predicted.estimates}
    return [
        *(_bounded(estimates[size]) if size in estimates else "cannot start" for size in sizes),
        *(f"{m.calls * estimates[m.bytes].us / 1e3:.2f}" if m.bytes in estimates else "-" for m in passes),
    ]


def _evidence(predicted: Predicted) -> str:
    """What the numbers rest on, and what starts it or, where that is not known, what would use it."""
    family = predicted.family
    if predicted.start.able:
        return f"{predicted.evidence}; starts: {predicted.start.says}"
    if predicted.start.able is None and not family.title.startswith("NCCL"):  # which names its user itself
        return f"{predicted.evidence}; used by: {', '.join(family.approaches)}"
    return predicted.evidence


def _bounded(estimate: Estimate) -> str:
    return f"{_us(estimate.us)} ({_us(estimate.low)}-{_us(estimate.high)})"


def _us(us: float) -> str:
    return f"{us:,.1f}" if us < 100 else f"{us:,.0f}"


def document(prediction: Prediction, messages: Sequence[Message] = ()) -> dict[str, Any]:
    """The prediction as JSON values."""
    return {
        "predicted": True,
        "topology": prediction.topology,
        "gpus": list(prediction.gpus),
        "host_class": prediction.host_class,
        "floor": [
            {"bytes": size, "us": _rounded(prediction.floor.time_us(size)), "busiest_link": prediction.floor.link}
            for size in prediction.sizes
        ],
        "families": [_family(predicted, messages) for predicted in prediction.families],
        "notes": list(prediction.notes),
    }


def _family(predicted: Predicted, messages: Sequence[Message]) -> dict[str, Any]:
    by_size = {estimate.size: estimate.us for estimate in predicted.estimates}
    return {
        "family": predicted.family.name,
        "title": predicted.family.title,
        "starts": predicted.start.able,
        "says": predicted.start.says,
        "busiest_link": predicted.shape.bottleneck,
        "evidence": predicted.evidence,
        "validated": predicted.validated,
        "estimates": [
            {"bytes": e.size, "us": _rounded(e.us), "low_us": _rounded(e.low), "high_us": _rounded(e.high)}
            for e in predicted.estimates
        ],
        "passes": [
            {"message": m.name, "calls": m.calls, "us": _rounded(m.calls * by_size[m.bytes])}
            for m in messages
            if m.bytes in by_size
        ],
    }


def _rounded(us: float) -> float:
    return round(us, 3)
