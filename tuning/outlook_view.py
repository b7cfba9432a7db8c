"""Shows an outlook: tables for people, a document for programs. It computes nothing."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning import predict_view
from tuning.outlook import Choice, Outlook, Speculation, pass_ms
from tuning.predict import Estimate, Predicted, Prediction
from tuning.speculation_model import Span
from tuning.speculation_view import span_text


def show(outlook: Outlook) -> RenderableType:
    """The outlook for people."""
    first = next(iter(outlook.predictions.values()))
    parts: list[RenderableType] = [
        Text(f"PREDICTED, not measured: {first.topology}, {predict_view.about(first)} (bounds)", style="bold"),
        _costs(outlook, first),
    ]
    parts += [
        Text(f"what {name} can start is not known yet: ./inv preflight --toolchain {name}") for name in outlook.unread
    ]
    if outlook.choices:
        parts += ["", Text("PREDICTED: allreduces of a pass, and speculation", style="bold"), _choices(outlook)]
        parts += [Text(line, style="dim") for line in assumptions(outlook)]
    if len(outlook.predictions) - len(outlook.unread) > 1:
        parts += ["", Text(between(outlook), style="bold"), _differences(outlook)]
    parts += [Text(f"- {note}", style="dim") for note in first.notes]
    return Group(*parts)


def between(outlook: Outlook) -> str:
    """In what the toolchains differ, as far as it can be predicted, in a line."""
    names = [name for name in outlook.predictions if name not in outlook.unread]
    families = zip(*(outlook.predictions[name].families for name in names), strict=True)
    apart = [each[0].family.title for each in families if len({predicted.start.able for predicted in each}) > 1]
    costs = f"only some start: {'; '.join(apart)}" if apart else "all start the same families"
    return (
        f"{' against '.join(names)}, PREDICTED: {costs}. What starts costs the same: no cost here depends on CUDA. "
        f"Preflight tells {len(outlook.differences)} approaches apart:"
    )


def assumptions(outlook: Outlook) -> list[str]:
    """What the numbers on speculation rest on, a sentence each."""
    if not outlook.server:
        return ["speculation: no published server is like it; ./inv predict-speculation takes your own rate"]
    tau = next(choice.speculation.tau for choice in outlook.choices if choice.speculation)
    return [
        f"tokens per second of one request, accept length {span_text(tau, 2)} assumed",
        f"everything but allreduce as in: {outlook.server}",
        "./inv predict-speculation answers for your own rates, other drafts and more requests",
    ]


def _table(*headings: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        made.add_column(heading, no_wrap=number == 0)
    return made


def _costs(outlook: Outlook, first: Prediction) -> Table:
    names = list(outlook.predictions)
    sizes = [f"{message.bytes:,} B\n{message.name}" for message in outlook.workload.messages]
    made = _table("family", *sizes, *(f"starts on\n{name}" for name in names), "evidence")
    floor = [f"{first.floor.time_us(message.bytes):,.1f}" for message in outlook.workload.messages]
    made.add_row("physical floor", *floor, *("" for _ in names), f"wires alone, {first.floor.link}")
    for number, family in enumerate(first.families):
        each = [prediction.families[number] for prediction in outlook.predictions.values()]
        priced = next((predicted for predicted in each if predicted.estimates), family)
        by_size = {estimate.size: estimate for estimate in priced.estimates}
        costs = [_bounded(by_size.get(message.bytes)) for message in outlook.workload.messages]
        made.add_row(family.family.title, *costs, *(starts(predicted) for predicted in each), family.evidence)
    return made


def _bounded(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.us:,.1f} ({estimate.low:,.1f}-{estimate.high:,.1f})"


def starts(predicted: Predicted) -> str:
    """Whether a family starts, in a word."""
    return {True: "yes", False: "no", None: "not known"}[predicted.start.able]


def _choices(outlook: Outlook) -> Table:
    passes = [f"{message.name}\nms a pass" for message in outlook.workload.messages]
    rates = ("tokens/s\nwithout", "tokens/s\nwith", "break-even\naccept length")
    made = _table("toolchain", "family", *passes, *rates, "")
    for choice in outlook.choices:
        ms = pass_ms(choice.predicted, outlook.workload)
        title = choice.predicted.family.title + ("" if choice.predicted.validated else " (unvalidated)")
        spans = [span_text(ms[message.name], 1) for message in outlook.workload.messages]
        made.add_row(choice.toolchain, title, *spans, *_speculation(choice.speculation), choice.why)
    return made


def _speculation(found: Speculation | None) -> list[str]:
    if found is None:
        return ["-", "-", "-"]
    rates = [span_text(span, 0) for span in (found.without, found.speculating)]
    return [*rates, f"{span_text(found.break_even, 2)}: {found.verdict}"]


def _differences(outlook: Outlook) -> Table:
    names = [name for name in outlook.predictions if name not in outlook.unread]
    made = _table("approach", *names, "why")
    for difference in outlook.differences:
        ends = [name for name in names if difference.verdicts.get(name, "starts") != "starts"]
        why = "; ".join(f"{name}: {difference.why[name]}" for name in ends)
        made.add_row(difference.name, *(difference.verdicts.get(name, "-") for name in names), why)
    return made


def document(outlook: Outlook) -> dict[str, Any]:
    """The outlook for programs."""
    return {
        "predicted": True,
        "workload": outlook.workload.name,
        "toolchains": {
            name: {
                "preflight": name not in outlook.unread,
                **predict_view.document(prediction, outlook.workload.messages),
            }
            for name, prediction in outlook.predictions.items()
        },
        "choices": [_choice(choice, outlook) for choice in outlook.choices],
        "differences": [
            {"approach": difference.name, "verdicts": dict(difference.verdicts), "why": dict(difference.why)}
            for difference in outlook.differences
        ],
        "assumptions": assumptions(outlook),
    }


def _choice(choice: Choice, outlook: Outlook) -> dict[str, Any]:
    ms = pass_ms(choice.predicted, outlook.workload)
    found = choice.speculation
    return {
        "toolchain": choice.toolchain,
        "family": choice.predicted.family.name,
        "validated": choice.predicted.validated,
        "why": choice.why,
        "pass_ms": {name: _span(span) for name, span in ms.items()},
        "speculation": found
        and {
            "k": found.k,
            "accept_length": _span(found.tau),
            "tokens_per_second_without": _span(found.without),
            "tokens_per_second_with": _span(found.speculating),
            "break_even_accept_length": _span(found.break_even),
            "verdict": found.verdict,
        },
    }


def _span(span: Span) -> dict[str, float]:
    return {"low": round(span.low, 3), "high": round(span.high, 3)}
