"""Shows comparisons: text for people, documents for programs. It computes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.compare import Comparison, Overview, Row
from tuning.metrics import METRICS
from tuning.runfile import Run
from tuning.stats import Judgement, Outcome
from tuning.trial import LaunchRecord, Trial

_METRIC = METRICS["time_us"]
_STYLES = {
    Outcome.BETTER: "bold green",
    Outcome.WORSE: "bold red",
    Outcome.SAME: "bold",
    Outcome.UNDECIDED: "yellow",
    Outcome.NOT_COMPARABLE: "dim",
}
_MOST_MESSAGE_COLUMNS = 4


def headline(comparison: Comparison) -> Text:
    """The verdict in one line."""
    overall = comparison.overall
    text = Text(f"{comparison.b.label} against {comparison.a.label}: ")
    text.append(str(overall.outcome), style=_STYLES[overall.outcome])
    if overall.ratio is not None:
        text.append(f", {_change(overall.ratio)}{_range(overall)}")
    return text.append(_because(overall))


def _change(ratio: float) -> str:
    percent = (ratio - 1) * 100
    return f"{abs(percent):.1f} % {'more' if percent >= 0 else 'less'} time a call"


def _range(judgement: Judgement) -> str:
    if judgement.ci_low is None or judgement.ci_high is None:
        return ""
    return f" (95 %: {(judgement.ci_low - 1) * 100:+.1f} to {(judgement.ci_high - 1) * 100:+.1f} %)"


def _because(judgement: Judgement) -> str:
    if judgement.outcome in (Outcome.BETTER, Outcome.WORSE):
        return ""
    if judgement.outcome is not Outcome.UNDECIDED or judgement.n < 2:
        return f"; {judgement.reason}"
    return f"; {judgement.reason}; {_what_would_settle(judgement)}"


def _what_would_settle(judgement: Judgement) -> str:
    if judgement.more_launches is not None:
        return f"a run with --launches {judgement.n + judgement.more_launches} should settle it"
    if judgement.more_launches_if_same is not None:
        launches = judgement.n + judgement.more_launches_if_same
        return f"a run with --launches {launches} should settle it, if the two are the same"
    return "no run of up to 1,000 launches would settle it: launches differ too much among themselves"


def table(comparison: Comparison) -> Table:
    """A line a message size, and one for their geometric mean."""
    view = Table(box=None, pad_edge=False, header_style="bold")
    view.add_column("message")
    for heading in (
        "bytes",
        f"A {_METRIC.unit}",
        f"B {_METRIC.unit}",
        "B/A",
        "95 % interval",
        "floor",
        "detectable",
        "n",
    ):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("outcome", no_wrap=True)
    for row in comparison.rows:
        view.add_row(row.label, f"{row.case.message.bytes:,}", _value(row.a), _value(row.b), *_cells(row.judgement))
    view.add_row("geometric mean", "", "", "", *_cells(comparison.overall), end_section=True)
    return view


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{_METRIC.digits}f}"


def _cells(judgement: Judgement) -> list[RenderableType]:
    interval = "-"
    if judgement.ci_low is not None and judgement.ci_high is not None:
        interval = f"{judgement.ci_low:.3f} to {judgement.ci_high:.3f}"
    return [
        "-" if judgement.ratio is None else f"{judgement.ratio:.3f}",
        interval,
        *("-" if fraction is None else f"{fraction:.1%}" for fraction in (judgement.floor, judgement.mde)),
        str(judgement.n),
        Text(str(judgement.outcome), style=_STYLES[judgement.outcome]),
    ]


def candidates_table(environment: str, comparisons: Sequence[Comparison]) -> RenderableType:
    """One line a candidate of an environment, held against the baseline."""
    baseline, rows = comparisons[0].a, comparisons[0].rows
    floor = comparisons[0].overall.floor
    view = Table(box=None, pad_edge=False, header_style="bold")
    view.add_column("candidate")
    per_message = len(rows) <= _MOST_MESSAGE_COLUMNS
    for row in rows if per_message else ():
        view.add_column(f"{row.label}, {row.case.message.bytes:,} B", justify="right", no_wrap=True)
        view.add_column("")
    for heading in ("all B/A", "95 % interval", "floor", "detectable", "n"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("outcome", no_wrap=True)
    blank = [cell for row in rows for cell in (_with_unit(row.a), "")] if per_message else []
    view.add_row(f"{baseline.candidate} (A)", *blank, "1.000", "", "" if floor is None else f"{floor:.1%}", "", "", "")
    for comparison in comparisons:
        cells = [
            cell
            for row in comparison.rows
            for cell in (_with_unit(row.b), Text(str(row.judgement.outcome), style=_STYLES[row.judgement.outcome]))
        ]
        view.add_row(comparison.b.candidate, *(cells if per_message else []), *_cells(comparison.overall))
    warnings = dict.fromkeys(line for comparison in comparisons for line in comparison.warnings)
    title = Text(f"{environment}: candidates against {baseline.candidate}", style="bold")
    return Group(title, view, *(_warning(line) for line in warnings))


def show_comparisons(comparisons: Sequence[Comparison], warnings: Sequence[str]) -> RenderableType:
    """Comparisons in full, then what weakens all of them."""
    parts = [part for comparison in comparisons for part in (show(comparison), "")]
    return Group(*parts, *(_warning(line) for line in warnings))


def _warning(line: str) -> Text:
    return Text(f"warning: {line}", style="yellow")


def _with_unit(value: float | None) -> str:
    return "-" if value is None else _METRIC.format(value)


def show_overview(overview: Overview) -> RenderableType:
    """Environments first, then the candidates of each."""
    parts: list[RenderableType] = []
    for comparison in overview.environments:
        parts += [show(comparison), ""]
    for environment, comparisons in overview.candidates.items():
        if comparisons:
            parts += [candidates_table(environment, comparisons), ""]
    parts += [_warning(line) for line in overview.warnings]
    return Group(*parts)


def show(comparison: Comparison) -> RenderableType:
    """Headline, table, what else differs, warnings, notes."""
    if comparison.pairing == "none":
        how = "two run files, described side by side"
    else:
        how = f"paired by {comparison.pairing}; same within {comparison.margin:.0%}"
    lines: list[RenderableType] = [headline(comparison), table(comparison), Text(how, style="dim")]
    if comparison.differs:
        lines += [Text("also differs (A / B):"), *(Text(f"  {line}") for line in comparison.differs)]
    lines += [_warning(line) for line in comparison.warnings]
    lines += [Text(f"note: {line}") for line in comparison.notes]
    return Group(*lines)


def show_failures(trials: Sequence[Trial], launches: Mapping[str, LaunchRecord]) -> RenderableType:
    """Failed and skipped trials with their reasons."""
    lines = [Text("without numbers:")]
    for trial in trials:
        lines.append(Text(f"  {trial.environment}:{trial.candidate}: {trial.status}: {trial.reason}"))
        lines += [Text(f"    | {line}", style="dim") for line in _output(trial, launches)[-3:]]
    return Group(*lines)


def _output(trial: Trial, launches: Mapping[str, LaunchRecord]) -> tuple[str, ...]:
    launch = launches.get(trial.launch)
    return launch.output if launch else ()


def show_statuses(run: Run) -> RenderableType:
    """For runs whose times say nothing: how each candidate ended and what the library ran, a line a candidate."""
    view = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("environment", "candidate", "trials", "how they ended", "what ran"):
        view.add_column(heading)
    names = dict.fromkeys((trial.environment, trial.candidate) for trial in run.trials)
    for name in names:
        trials = [trial for trial in run.trials if (trial.environment, trial.candidate) == name]
        endings = Counter(str(trial.status) for trial in trials)
        ran = dict.fromkeys(
            f"{trial.message} {' '.join(map(str, trial.choice.values()))}" for trial in trials if trial.choice
        )
        view.add_row(
            *name, str(len(trials)), ", ".join(f"{n} {status}" for status, n in endings.items()), ", ".join(ran)
        )
    return Group(Text(f"times of {run.path.name} are {run.header.kind}: shown is only how trials ended"), view)


def legend() -> Text:
    """What the columns mean."""
    return Text(
        "A, B: medians over launches. floor: how far two copies of the same thing differ. detectable: the smallest "
        "difference that this many launches would find 4 times in 5.",
        style="dim",
    )


def to_document(comparison: Comparison) -> dict[str, Any]:
    """For --json."""
    return {
        "a": {
            "environment": comparison.a.environment,
            "candidate": comparison.a.candidate,
            "run": str(comparison.a.run.path),
        },
        "b": {
            "environment": comparison.b.environment,
            "candidate": comparison.b.candidate,
            "run": str(comparison.b.run.path),
        },
        "metric": _METRIC.name,
        "unit": _METRIC.unit,
        "direction": _METRIC.direction.value,
        "pairing": comparison.pairing,
        "margin": comparison.margin,
        "overall": _judgement_document(comparison.overall),
        "messages": [_row_document(row) for row in comparison.rows],
        "differs": list(comparison.differs),
        "warnings": list(comparison.warnings),
        "notes": list(comparison.notes),
    }


def _row_document(row: Row) -> dict[str, Any]:
    case, message = row.case, row.case.message
    return {
        "message": message.name,
        "bytes": message.bytes,
        "calls": message.calls,
        "mode": case.mode,
        "working_set": case.working_set,
        "a": row.a,
        "b": row.b,
        **_judgement_document(row.judgement),
    }


def _judgement_document(judgement: Judgement) -> dict[str, Any]:
    fields = {name: getattr(judgement, name) for name in judgement.__dataclass_fields__}
    return {**fields, "outcome": str(judgement.outcome)}


def failures_document(trials: Iterable[Trial], launches: Mapping[str, LaunchRecord]) -> list[dict[str, Any]]:
    """For --json: the failed and skipped trials with the last lines that their launches said."""
    keys = ("environment", "candidate", "message", "mode", "working_set", "repetition", "status", "reason")
    return [{key: getattr(t, key) for key in keys} | {"output": _output(t, launches)} for t in trials]


def outcomes(comparisons: Iterable[Comparison]) -> set[Outcome]:
    """Every outcome that stands in the tables, for --fail-on."""
    return {j.outcome for c in comparisons for j in (c.overall, *(row.judgement for row in c.rows))}
