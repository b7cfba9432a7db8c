"""Shows comparisons: text for people, documents for programs. It computes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lanewise.talk import printable
from tuning.arms import Side, medians, middle
from tuning.compare import CandidatesView, Comparison, Overview, Row
from tuning.metrics import METRICS, busbw
from tuning.plan import Case
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
_MARKS = {
    Outcome.BETTER: "+",
    Outcome.WORSE: "-",
    Outcome.SAME: "=",
    Outcome.UNDECIDED: "?",
    Outcome.NOT_COMPARABLE: "x",
}
_MOST_CASE_COLUMNS = 6
_ENOUGH_TO_PLAN = 5
"""Launches from which their spread is known well enough to say how many more it takes."""
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception)\b|\berror\b", re.ASCII)


def headline(comparison: Comparison) -> Text:
    """The verdict in one line."""
    overall = comparison.overall
    kind = _in_kind(comparison.a.run, [row.case for row in comparison.rows])
    text = Text("A/A, both are the same thing here: " if comparison.is_a_a else "")
    text.append(f"{comparison.b.label} against {comparison.a.label}{kind}: ")
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
    if judgement.n < _ENOUGH_TO_PLAN:
        return f"{judgement.n} launches are too few to say how many it takes: try --launches {_ENOUGH_TO_PLAN}"
    if judgement.more_launches is not None:
        return f"a run with --launches {judgement.n + judgement.more_launches} should settle it"
    if judgement.more_launches_if_same is not None:
        launches = judgement.n + judgement.more_launches_if_same
        return f"a run with --launches {launches} should settle it, if the two are the same"
    return "no run of up to 1,000 launches would settle it: launches differ too much among themselves"


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))


def table(comparison: Comparison) -> Table:
    """A line a case, and one for their geometric mean."""
    view = _table()
    view.add_column("message", min_width=9)
    for heading in ("bytes", f"A, {_METRIC.unit}", f"B, {_METRIC.unit}", "B/A", "95 % interval", "MDE"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("outcome", no_wrap=True)
    for row in comparison.rows:
        view.add_row(
            row.case.message.name, f"{row.case.message.bytes:,}", _value(row.a), _value(row.b), *_cells(row.judgement)
        )
    if len(comparison.rows) > 1:
        view.add_row("geometric mean", "", "", "", *_cells(comparison.overall))
    return view


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,.{_METRIC.digits}f}"


def _cells(judgement: Judgement) -> list[RenderableType]:
    """Ratio, interval, minimum detectable effect, outcome."""
    interval = "-"
    if judgement.ci_low is not None and judgement.ci_high is not None:
        interval = f"{judgement.ci_low:.3f}-{judgement.ci_high:.3f}"
    return [
        "-" if judgement.ratio is None else f"{judgement.ratio:.3f}",
        interval,
        _percent(judgement.mde),
        Text(str(judgement.outcome), style=_STYLES[judgement.outcome]),
    ]


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def show(comparison: Comparison) -> RenderableType:
    """Headline, table, what else differs, warnings, notes."""
    lines: list[RenderableType] = [headline(comparison), table(comparison), Text(_how(comparison), style="dim")]
    if comparison.differs:
        lines += [Text("also differs (A / B):"), *(Text(f"  {line}") for line in comparison.differs)]
    lines += [_warning(line) for line in comparison.warnings]
    lines += [Text(f"note: {line}") for line in comparison.notes]
    return Group(*lines)


def _how(comparison: Comparison) -> str:
    if comparison.pairing == "none":
        return "two run files, described side by side"
    overall = comparison.overall
    pairs = f"{overall.n} pairs of launches" if comparison.pairing == "neighbours" else f"{overall.n} shared launches"
    return f"{pairs}; same within {comparison.margin:.0%}; noise floor {_percent(overall.floor)}"


def candidates_table(run: Run, shown: CandidatesView) -> RenderableType:
    """One line a candidate of an environment, held against the baseline (A)."""
    plan = run.header.plan
    cases = shown.cases if len(shown.cases) <= _MOST_CASE_COLUMNS else ()
    baseline = Side(environment=shown.environment, candidate=plan.baseline, run=run)
    view = _table()
    view.add_column("candidate", no_wrap=True)
    for case in cases:
        view.add_column(f"{case.message.name}\n{case.message.bytes:,} B\n{_METRIC.unit}", justify="right", no_wrap=True)
    for heading in ("all\nB/A", "\n95 % interval", "\nMDE"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("\noutcome", no_wrap=True)
    values = [[trial.median for trial in medians(baseline, case.key).values()] for case in cases]
    view.add_row(f"{plan.baseline} (A)", *(f"{_value(middle(v))}  " for v in values))
    for comparison in shown.comparisons:
        marked = map(_marked, comparison.rows if cases else ())
        view.add_row(comparison.b.candidate, *marked, *_cells(comparison.overall))
    hows = dict.fromkeys(_how(comparison) for comparison in shown.comparisons)
    warnings = dict.fromkeys(line for comparison in shown.comparisons for line in comparison.warnings)
    title = f"{shown.environment}: candidates against {plan.baseline}{_in_kind(run, shown.cases)}"
    return Group(Text(title, style="bold"), view, *(Text(how, style="dim") for how in hows), *map(_warning, warnings))


def _in_kind(run: Run, cases: Sequence[Case]) -> str:
    kind = run.header.plan.kind(tuple(cases))
    return f" ({kind})" if kind else ""


def _marked(row: Row) -> Text:
    """A candidate's time with a mark for its outcome, readable without colour."""
    outcome = row.judgement.outcome
    return Text(f"{_value(row.b)} {_MARKS[outcome]}", style=_STYLES[outcome])


def show_comparisons(comparisons: Sequence[Comparison], warnings: Sequence[str]) -> RenderableType:
    """Comparisons in full, then what weakens all of them."""
    parts = [part for comparison in comparisons for part in (show(comparison), "")]
    return Group(*parts, *(_warning(line) for line in warnings))


def _warning(line: str) -> Text:
    return Text(f"warning: {line}", style="yellow")


def show_overview(run: Run, overview: Overview) -> RenderableType:
    """Environments first, then the candidates of each."""
    parts: list[RenderableType] = []
    for comparison in overview.environments:
        parts += [show(comparison), ""]
    for candidates in overview.candidates:
        parts += [candidates_table(run, candidates), ""]
    parts += [_warning(line) for line in overview.warnings]
    return Group(*parts)


def show_failures(trials: Sequence[Trial], launches: Mapping[str, LaunchRecord]) -> RenderableType:
    """Failed and skipped trials with their reasons; the same reason once."""
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.environment, trial.status, trial.reason), []).append(trial)
    lines = [Text("without numbers:")]
    for (environment, status, reason), group in groups.items():
        names = ", ".join(dict.fromkeys(trial.candidate for trial in group))
        lines.append(Text(f"  {environment}:{names}: {status}: {printable(reason)}"))
        lines += [Text(f"    | {printable(line)}", style="dim") for line in _telling(_output(group[0], launches))]
    return Group(*lines)


def _telling(output: Sequence[str]) -> Sequence[str]:
    """The lines of an output's end that most likely say what went wrong."""
    named = [line for line in output if _ERROR.search(line)]
    return list(dict.fromkeys(named))[:3] or output[-3:]


def _output(trial: Trial, launches: Mapping[str, LaunchRecord]) -> tuple[str, ...]:
    launch = launches.get(trial.launch)
    return launch.output if launch else ()


def show_statuses(run: Run) -> RenderableType:
    """For runs whose times say nothing: how each candidate ended and what the library ran, a line a candidate."""
    view = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("environment", "candidate", "trials", "how they ended", "what ran"):
        view.add_column(heading)
    for name in dict.fromkeys((trial.environment, trial.candidate) for trial in run.trials):
        trials = [trial for trial in run.trials if (trial.environment, trial.candidate) == name]
        endings = Counter(str(trial.status) for trial in trials)
        ended = ", ".join(f"{count} {status}" for status, count in endings.items())
        ran = dict.fromkeys(f"{t.message} {_choice(t.choice)}" for t in trials if t.choice)
        view.add_row(*map(Text, (*name, str(len(trials)), ended, ", ".join(ran))))
    return Group(Text(f"times of {run.path.name} are {run.header.kind}: shown is only how trials ended"), view)


def _choice(choice: Mapping[str, object]) -> str:
    return " ".join(str(choice.get(name)) for name in ("algorithm", "protocol", "channels"))


def legend() -> Text:
    """What columns and marks mean."""
    marks = ", ".join(f"{mark} {outcome}" for outcome, mark in _MARKS.items() if mark != "x")
    return Text(
        "A, B: medians over launches. MDE: minimum detectable effect, the smallest difference that so many\n"
        f"launches would find 4 times in 5. Marks: {marks}.",
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
        "a_a": comparison.is_a_a,
        "margin": comparison.margin,
        "overall": _judgement_document(comparison.overall),
        "messages": [_row_document(row, comparison.a.run.header.plan.ranks) for row in comparison.rows],
        "differs": list(comparison.differs),
        "warnings": list(comparison.warnings),
        "notes": list(comparison.notes),
    }


def _row_document(row: Row, ranks: int) -> dict[str, Any]:
    case, message = row.case, row.case.message
    return {
        "message": message.name,
        "bytes": message.bytes,
        "calls": message.calls,
        "mode": case.mode,
        "working_set": case.working_set,
        "a": row.a,
        "b": row.b,
        "busbw": [None if us is None else busbw(message.bytes, us, ranks) for us in (row.a, row.b)],
        **_judgement_document(row.judgement),
    }


def _judgement_document(judgement: Judgement) -> dict[str, Any]:
    fields = {name: getattr(judgement, name) for name in judgement.__dataclass_fields__}
    return {**fields, "outcome": str(judgement.outcome)}


def failures_document(trials: Iterable[Trial], launches: Mapping[str, LaunchRecord]) -> list[dict[str, Any]]:
    """For --json: the failed and skipped trials with the last lines that their launches said."""
    keys = ("environment", "candidate", "message", "mode", "working_set", "repetition", "status", "reason")
    return [{key: getattr(t, key) for key in keys} | {"output": _output(t, launches)} for t in trials]


def outcomes(comparisons: Iterable[Comparison], *, any_size: bool) -> set[Outcome]:
    """The overall outcomes, and those of every size where `any_size`, for --fail-on."""
    found = {comparison.overall.outcome for comparison in comparisons}
    sizes = {row.judgement.outcome for comparison in comparisons for row in comparison.rows}
    return found | sizes if any_size else found
