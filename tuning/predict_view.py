"""Shows a prediction: a table for people, a document for programs. It computes nothing but passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.predict import Estimate, Predicted, Prediction
from tuning.workload import Message


def show(prediction: Prediction, messages: Sequence[Message] = ()) -> RenderableType:
    """The prediction as text and a table.

    Args:
        prediction: what is shown.
        messages: a workload's, to name the sizes and to put the calls of a pass together.
    """
    parts: list[RenderableType] = [Text(headline(prediction), style="bold"), "", _table(prediction, messages), ""]
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


def _table(prediction: Prediction, messages: Sequence[Message]) -> Table:
    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    view.add_column("family", no_wrap=True)
    named = {message.bytes: message for message in messages}
    for size in prediction.sizes:
        view.add_column(f"{size:,} B" + (f"\n{named[size].name}" if size in named else ""), justify="right")
    for message in messages:
        view.add_column(f"{message.calls} calls\n{message.name}, ms", justify="right")
    view.add_column("busiest link")
    view.add_column("evidence")
    floor = {size: prediction.floor.time_us(size) for size in prediction.sizes}
    passes = [f"{message.calls * floor[message.bytes] / 1e3:.2f}" for message in messages]
    view.add_row("physical floor", *(_us(us) for us in floor.values()), *passes, prediction.floor.link, "wires alone")
    for predicted in prediction.families:
        view.add_row(*_row(predicted, prediction.sizes, messages))
    return view


def _row(predicted: Predicted, sizes: Sequence[int], messages: Sequence[Message]) -> list[str]:
    estimates = {estimate.size: estimate for estimate in predicted.estimates}
    times = [_bounded(estimates[size]) if size in estimates else "cannot start" for size in sizes]
    passes = [
        f"{message.calls * estimates[message.bytes].us / 1e3:.2f}" if message.bytes in estimates else "-"
        for message in messages
    ]
    carried = f"; starts: {predicted.start.says}" if predicted.start.able else ""
    return [predicted.family.title, *times, *passes, predicted.shape.bottleneck or "-", predicted.evidence + carried]


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
