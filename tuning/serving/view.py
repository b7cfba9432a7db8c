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
from tuning.serving.pays import Crossing
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
_UNSETTLED = (str(Outcome.UNDECIDED), str(Outcome.NOT_COMPARABLE))
_MOST_WARNINGS = 12
_ENOUGH_TO_PLAN = 5
"""Starts from which their spread is known well enough to say how many more it takes."""


def headline(comparison: Comparison) -> str:
    """The verdict in one line."""
    kind = "A/A, both are the same thing here: " if comparison.is_a_a else ""
    pair = f"{kind}{comparison.b.label} against {comparison.a.label}: "
    if comparison.against_baseline:
        return pair + "; ".join([*_verdicts(comparison), *map(crossing_text, comparison.crossings)])
    overall = comparison.overall
    metric = "step time" if comparison.metric == "step_ms" else "tokens per second"
    change = "" if overall.ratio is None else f", {(overall.ratio - 1):+.1%}{_range(overall)}"
    return f"{pair}{metric} {overall.outcome}{change}{_because(overall)}{_acceptance_text(comparison)}"


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """Whether speculation pays, at which numbers of requests; and why where that is not known."""
    verdicts: dict[str, list[Row]] = {}
    for row in comparison.rows:
        verdicts.setdefault(verdict_of(row), []).append(row)
    for verdict, rows in verdicts.items():
        reasons = dict.fromkeys(row.step.reason for row in rows) if verdict in _UNSETTLED else {}
        why = f" ({'; '.join(reasons)})" if reasons else ""
        yield f"{verdict} at {_listed([row.concurrency for row in rows])}{why}"


def verdict_of(row: Row) -> str:
    """Whether speculation pays at this number of requests."""
    return row.pays.verdict if row.pays else str(Outcome.UNDECIDED)


def crossing_text(crossing: Crossing) -> str:
    """Where speculation stops, or begins, paying."""
    verb = "stops" if crossing.stops else "begins"
    return f"{verb} paying between {crossing.low} and {crossing.high} requests (at about {crossing.at:.1f})"


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers))} request{'' if list(numbers) == [1] else 's'}"


def _range(judgement: Judgement) -> str:
    if judgement.ci_low is None or judgement.ci_high is None:
        return ""
    return f" (95 %: {judgement.ci_low - 1:+.1%} to {judgement.ci_high - 1:+.1%})"


def _because(judgement: Judgement) -> str:
    if judgement.outcome in (Outcome.BETTER, Outcome.WORSE):
        return ""
    if judgement.outcome is not Outcome.UNDECIDED or judgement.n < 2:
        return f"; {judgement.reason}"
    more = judgement.more_launches or judgement.more_launches_if_same
    if judgement.n < _ENOUGH_TO_PLAN or more is None:
        return f"; {judgement.reason}; try --starts {max(_ENOUGH_TO_PLAN, 2 * judgement.n)}"
    return f"; {judgement.reason}; a run with --starts {judgement.n + more} should settle it"


def _acceptance_text(comparison: Comparison) -> str:
    """What acceptance does beside step time, where both speculate."""
    if comparison.metric != "step_ms" or not comparison.b.spec.speculation:
        return ""
    found = dict.fromkeys(str(row.acceptance.outcome) for row in comparison.rows)
    return f"; acceptance {' or '.join(found)}"


def show(comparison: Comparison, attributions: Sequence[Attribution] = ()) -> RenderableType:
    """Headline, tables, where the difference comes from, what else differs, warnings, notes."""
    lines: list[RenderableType] = [Text(headline(comparison), style=_STYLES[comparison.overall.outcome])]
    if any(ms is not None for row in comparison.rows for ms in row.step_ms):
        lines += [_steps(comparison), Text(_how(comparison), style="dim")]
    else:
        lines += [Text("neither has numbers")]
    if any(row.acceptance.b for row in comparison.rows):
        lines += ["", _paying(comparison.rows) if comparison.against_baseline else _speeds(comparison)]
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
        words = heading in ("outcome", "verdict", "category", "cause", "source")
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
        _number(judgement.mde, ".1%"),
        Text(str(judgement.outcome), style=_STYLES[judgement.outcome]),
    ]


def _paying(rows: Sequence[Row]) -> Table:
    headings = ("accept", "95 %", "break-even", "95 %", "tok/s A", "tok/s B", "speed-up", "95 %")
    table = _table("at once", *headings, "verdict")
    for row in rows:
        found = row.pays
        table.add_row(
            str(row.concurrency),
            *_with_interval(row.acceptance.b),
            *_with_interval(found.break_even if found else None),
            *(_number(speed, ",.1f") for speed in row.tokens_per_second),
            *_with_interval(found.speed_up if found else None),
            Text(verdict_of(row), style=_STYLES[found.outcome if found else Outcome.UNDECIDED]),
        )
    return table


def _with_interval(estimate: Estimate | None) -> tuple[str, str]:
    return _number(estimate.value if estimate else None, ".3f"), _interval(estimate)


def _speeds(comparison: Comparison) -> Table:
    headings = ("accept A", "accept B", "B/A", "95 %", "outcome", "tok/s A", "tok/s B", "B with A's acceptance")
    table = _table("at once", *headings)
    for row in comparison.rows:
        accepted = row.acceptance
        table.add_row(
            str(row.concurrency),
            *(_number(one.value if one else None, ".3f") for one in (accepted.a, accepted.b, accepted.ratio)),
            _interval(accepted.ratio),
            Text(str(accepted.outcome), style=_STYLES[accepted.outcome]) if accepted.outcome else "-",
            *(_number(speed, ",.1f") for speed in row.tokens_per_second),
            _number(row.at_acceptance_of_a, ",.1f"),
        )
    return table


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
    for found in [one for one in attributions if one.splits] or attributions[:1]:
        requests = _listed([found.concurrency])
        yield ""
        yield Text(f"where {found.difference.value:+.3f} ms a step come from, B less A, at {requests}:")
        if found.splits:
            yield _splits(found)
    for text in dict.fromkeys(line for one in attributions for line in one.missing):
        at = [one.concurrency for one in attributions if text in one.missing]
        where = "" if len(at) == len(attributions) else f" (at {_listed(at)})"
        yield Text(f"not told: {printable(text)}{where}")


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


def _interval(estimate: Estimate | None, form: str = ".3f") -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{format(estimate.low, form)} to {format(estimate.high, form)}"


def legend() -> Text:
    """What columns mean."""
    return Text(
        "A, B: medians over server starts, which pair by their turn. Accept: tokens a step, 95 % over prompts.\n"
        "Break-even: step time B over A; speculation pays where accept exceeds it. MDE: minimum detectable effect,\n"
        "the smallest difference that so many starts would find 4 times in 5.",
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
