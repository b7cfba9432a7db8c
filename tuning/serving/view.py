"""Shows comparisons of servers: text for people, documents for programs. It computes nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lanewise.talk import printable
from tuning.serving.attribution import Attribution
from tuning.serving.comparison import Comparison, Row
from tuning.serving.estimates import Estimate
from tuning.serving.headline import WOULD, headline, listed
from tuning.serving.pays import verdict
from tuning.serving.records import ServingTrial
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide, without_numbers
from tuning.stats import Judgement, Outcome

_STYLES: Mapping[Outcome, str] = {
    Outcome.BETTER: "bold green",
    Outcome.WORSE: "bold red",
    Outcome.SAME: "bold",
    Outcome.UNDECIDED: "yellow",
    Outcome.NOT_COMPARABLE: "dim",
}
_MOST_WARNINGS = 12


def show(comparison: Comparison, attributions: Sequence[Attribution] = ()) -> RenderableType:
    """Headline, tables, where the difference comes from, what else differs, warnings, notes."""
    lines: list[RenderableType] = [Text(headline(comparison), style=_STYLES[comparison.overall.outcome])]
    if any(ms is not None for row in comparison.rows for ms in row.step_ms):
        lines += [_steps(comparison), Text(_how(comparison), style="dim")]
    else:
        lines += [Text("neither has numbers")]
    if any(row.acceptance.b for row in comparison.rows):
        lines += ["", _paying(comparison) if comparison.against_baseline else _speeds(comparison)]
    lines += _latencies(comparison.rows)
    lines += _categories(comparison.rows)
    lines += _attributed(attributions)
    lines += _said("meant to differ (A / B):", comparison.asked)
    lines += _said("follows from that (A / B):", comparison.follows)
    lines += _said("also differs (A / B):", comparison.differs)
    shown, left = comparison.warnings[:_MOST_WARNINGS], comparison.warnings[_MOST_WARNINGS:]
    lines += [Text(f"warning: {printable(line)}", style="yellow") for line in shown]
    lines += [Text(f"warning: and {len(left)} more; --json has all", style="yellow")] if left else []
    lines += [Text(f"note: {printable(line)}") for line in (*comparison.notes, *outputs_notes(comparison))]
    return Group(*lines)


def _said(title: str, lines: Sequence[str]) -> list[RenderableType]:
    return [Text(title), *(Text(f"  {printable(line)}") for line in lines)] if lines else []


def _how(comparison: Comparison) -> str:
    if comparison.a.run.path != comparison.b.run.path:
        return "two run files, described side by side"
    floor = "-" if comparison.overall.floor is None else f"{comparison.overall.floor:.2%}"
    pairs = "1 pair" if comparison.overall.n == 1 else f"{comparison.overall.n} pairs"
    return f"{pairs} of starts; same within {comparison.margin:.1%}; noise floor {floor}"


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in headings:
        words = heading in ("outcome", "verdict", "category", "cause", "source", "latency")
        table.add_column(heading, justify="left" if words else "right", no_wrap=heading != "cause")
    return table


def _steps(comparison: Comparison) -> Table:
    """With outcomes where step time decides: with drafts to verify a step is longer, and that is no fault."""
    decides = comparison.metric == "step_ms"
    outcome = ("outcome",) if decides else ()
    table = _table("at once", "step A, ms", "step B, ms", "B/A", "95 % interval", "MDE", *outcome)
    for row in comparison.rows:
        judged = _judged(row.step) if decides else _judged(row.step)[:-1]
        table.add_row(str(row.concurrency), *(_number(ms, ".3f") for ms in row.step_ms), *judged)
    if len(comparison.rows) > 1 and decides:
        table.add_row("all", "", "", *_judged(comparison.overall))
    return table


def _judged(judgement: Judgement) -> list[RenderableType]:
    interval = Estimate(value=judgement.ratio or 0.0, low=judgement.ci_low, high=judgement.ci_high)
    return [
        _number(judgement.ratio, ".3f"),
        _interval(interval),
        share_text(judgement.mde),
        Text(str(judgement.outcome), style=_STYLES[judgement.outcome]),
    ]


def _paying(comparison: Comparison) -> Table:
    headings = ("accept", "95 %", "MDE", "break-even", "95 %", "tok/s A", "tok/s B", "speed-up", "95 %")
    table = _table("at once", *headings, "verdict")
    for row in comparison.rows:
        found = row.pays
        table.add_row(
            str(row.concurrency),
            *_accepted(comparison.b, row.acceptance.b),
            share_text(row.acceptance.mde),
            *_with_interval(found.break_even if found else None),
            *(_number(speed, ",.1f") for speed in row.tokens_per_second),
            *_with_interval(found.speed_up if found else None),
            _verdict(comparison, row.speed.outcome),
        )
    if len(comparison.rows) > 1:
        over_all = _judged(comparison.overall)[:2]
        table.add_row("all", *[""] * 7, *over_all, _verdict(comparison, comparison.overall.outcome))
    return table


def _verdict(comparison: Comparison, outcome: Outcome) -> Text:
    words = WOULD.get(outcome) if comparison.b.spec.accept_length else None
    return Text(words or verdict(outcome), style=_STYLES[outcome])


def _with_interval(estimate: Estimate | None) -> tuple[str, str]:
    return _number(estimate.value if estimate else None, ".3f"), _interval(estimate)


def _accepted(side: ServingSide, accept: Estimate | None) -> tuple[str, str]:
    value, interval = _with_interval(accept)
    return value, "simulated" if side.spec.accept_length else interval


def _speeds(comparison: Comparison) -> Table:
    headings = ("accept A", "accept B", "B/A", "95 %", "MDE", "outcome", "tok/s A", "tok/s B", "B with A's acceptance")
    decides = comparison.metric == "tokens_per_second"
    table = _table("at once", *headings, *(("tok/s B/A", "95 %", "verdict") if decides else ()))
    sides = (comparison.a, comparison.b)
    for row in comparison.rows:
        accepted, judged = row.acceptance, _judged(row.speed)
        table.add_row(
            str(row.concurrency),
            *(_number(one.value if one else None, ".3f") for one in (accepted.a, accepted.b, accepted.ratio)),
            "simulated" if all(side.spec.accept_length for side in sides) else _interval(accepted.ratio),
            share_text(accepted.mde),
            Text(str(accepted.outcome), style=_STYLES[accepted.outcome]) if accepted.outcome else "-",
            *(_number(speed, ",.1f") for speed in row.tokens_per_second),
            _number(row.at_acceptance_of_a, ",.1f"),
            *([*judged[:2], judged[-1]] if decides else []),
        )
    return table


def _latencies(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Described, over starts and on these prompts: where acceptance goes in, starts alone conclude nothing."""
    table = _table("latency", "at once", "A, ms", "B, ms", "B/A", "95 % interval", "MDE")
    for row in rows:
        for one in row.latencies:
            numbers = [_number(ms, ".2f") for ms in one.ms]
            table.add_row(one.name, str(row.concurrency), *numbers, *_judged(one.judged)[:-1])
    if table.row_count:
        yield ""
        yield table


def _categories(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Acceptance by category at the first number of requests, which has the least else in it; and by position."""
    first = rows[0]
    if found := first.acceptance.categories:
        table = _table("category", "prompts", "accept A", "accept B", "95 %", "B/A", "95 %")
        for one in found:
            table.add_row(
                printable(one.name), str(one.prompts), f"{one.a.value:.3f}", f"{one.b.value:.3f}", _interval(one.b),
                f"{one.ratio.value:.3f}", _interval(one.ratio),
            )  # fmt: skip
        yield ""
        yield table
    for name, shares in zip("AB", first.acceptance.positions, strict=True):
        if shares:
            listed = ", ".join(f"{share:.3f}" for share in shares)
            yield Text(f"accepted up to position 1, 2, ... of {name}: {listed} of verify passes", style="dim")


def outputs_notes(comparison: Comparison) -> Iterator[str]:
    """Where the two answered differently, at the first number of requests."""
    found = comparison.rows[0].outputs
    if found and found.differing:
        unsteady = f"; one and the same arm varies on {found.unsteady}" if found.unsteady else ""
        yield f"{found.differing} of {found.prompts} prompts have other answers (by hash){unsteady}"


def _attributed(attributions: Sequence[Attribution]) -> Iterator[RenderableType]:
    """A table for each number of requests of which something is told, then what is not, once."""
    for found in attributions:
        if found.splits:
            yield ""
            yield Text(f"{_where(found)}:")
            yield _splits(found)
    if any(one.missing for one in attributions) and not any(one.splits for one in attributions):
        yield ""
        yield Text(f"{_where(attributions[0])}: no source tells")
    for text in dict.fromkeys(line for one in attributions for line in one.missing):
        at = [one.concurrency for one in attributions if text in one.missing]
        where = "" if len(at) == len(attributions) else f" (at {listed(at)})"
        yield Text(f"not told: {printable(text)}{where}")


def _where(found: Attribution) -> str:
    requests = listed([found.concurrency])
    return f"where {found.difference.value:+.3f} ms a step come from, B less A, at {requests}"


def _splits(found: Attribution) -> Table:
    table = _table("source", "cause", "ms", "95 % or range", "share")
    whole = found.difference.value
    for split in found.splits:
        for number, part in enumerate(split.parts):
            table.add_row(
                split.source if number == 0 else "",
                part.cause,
                f"{part.ms.value:+.3f}",
                _interval(part.ms, "+.3f"),
                f"{part.ms.value / whole:.0%}" if whole else "-",
            )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def share_text(share: float | None) -> str:
    """A share, such as the smallest difference that would be found; how far it lies above all there is says nothing."""
    return ">100%" if share is not None and share > 1 else _number(share, ".1%")


def _interval(estimate: Estimate | None, form: str = ".3f") -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{format(estimate.low, form)} to {format(estimate.high, form)}"


def legend() -> Text:
    """What columns mean."""
    return Text(
        "A, B: medians over server starts, which pair by their turn. Accept: tokens a step, 95 % over prompts,\n"
        "none where it is simulated or nothing tells it by prompt.\n"
        "Break-even: step time B over A; speculation pays where accept exceeds it. MDE: minimum detectable effect,\n"
        "the smallest difference that so many starts, of accept so many prompts, would find 4 times in 5.\n"
        "TTFT: to the first token; TPOT: a token after it; ITL p99: time between chunks, the longest of a hundred;\n"
        "all over starts, on these prompts.",
        style="dim",
    )


def failures(run: ServingRun) -> list[str]:
    """What has no numbers, the same reason once, with the starts that it was."""
    groups: dict[tuple[str, str, str], list[ServingTrial]] = {}
    for trial in without_numbers(run):
        groups.setdefault((f"{trial.environment}:{trial.arm}", trial.status, trial.reason), []).append(trial)
    return [
        f"{label} at {_each({trial.concurrency for trial in trials})}, "
        f"{_starts({trial.repetition + 1 for trial in trials})}: {status}: {reason}"
        for (label, status, reason), trials in groups.items()
    ]


def _starts(numbers: Collection[int]) -> str:
    return f"start{'s' if len(numbers) > 1 else ''} {_each(numbers)}"


def _each(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def show_failures(lines: Iterable[str]) -> RenderableType:
    """These under a heading."""
    return Group(Text("without numbers:"), *(Text(f"  {printable(line)}") for line in lines))


def to_document(comparison: Comparison, attributions: Sequence[Attribution] = ()) -> dict[str, Any]:
    """For --json."""
    rows = [asdict(row) for row in comparison.rows]
    for row, made in zip(rows, comparison.rows, strict=True):
        row["pays"] = {**row["pays"], "verdict": made.pays.verdict} if made.pays else None
    document = {
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "headline": headline(comparison),
        "metric": comparison.metric,
        "a_a": comparison.is_a_a,
        "margin": comparison.margin,
        "overall": asdict(comparison.overall),
        "rows": rows,
        "crossings": [asdict(crossing) for crossing in comparison.crossings],
        "attribution": [asdict(one) for one in attributions],
        "asked": list(comparison.asked),
        "follows": list(comparison.follows),
        "differs": list(comparison.differs),
        "warnings": list(comparison.warnings),
        "notes": [*comparison.notes, *outputs_notes(comparison)],
    }
    return {name: _plain(value) for name, value in document.items()}


def _side(side: ServingSide) -> dict[str, str]:
    return {"environment": side.environment, "arm": side.arm, "run": str(side.run.path)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a document holds
    """The same as JSON has it: no tuples, outcomes as words, None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Outcome) else value
