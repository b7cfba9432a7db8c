"""A report's first words, from one run: what is best, at which size, by how much, and what weakens that. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuning import compare_view
from tuning.arms import Side, failures, medians, middle
from tuning.compare import Comparison, Overview, Row
from tuning.plan import Case
from tuning.report_document import Block, Bullets, Cell, Paragraph, Table, Weight, cells, line
from tuning.report_predicted import Expected, below_floor, checked
from tuning.report_svg import Line, Point
from tuning.runfile import Run
from tuning.stats import Judgement, Outcome
from tuning.trial import Status

MOST_NAMED = 6
"""Lines of a picture that can be told apart."""
_HOW = (
    "Medians over launches, the unit of repetition; ratios to the baseline with 95 % intervals. Each cell is one "
    "comparison: of twenty between equal arms one may err (docs/statistics.md)."
)
_WEIGHTS = {Outcome.BETTER: Weight.GOOD, Outcome.WORSE: Weight.BAD}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run whose times mean something, with what was made of it.

    Attributes:
        run: the run.
        overview: its comparisons.
        expected: what was predicted of its node, or why nothing was.
    """

    run: Run
    overview: Overview
    expected: Expected | str

    @property
    def environment(self) -> str:
        """The first environment, which the pictures are of."""
        return self.run.header.plan.environments[0].name

    @property
    def main(self) -> tuple[Case, ...]:
        """The cases that matter most to inference: in a CUDA graph on warm buffers, where the run has those."""
        slices = self.run.header.plan.slices
        return max(slices, key=lambda cases: (cases[0].mode == "graph", cases[0].working_set == "warm"))

    @property
    def kind(self) -> str:
        """How those were called, for people."""
        return f"{self.main[0].mode}, {self.main[0].working_set}"

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every candidate against the baseline, in the first environment, on the main cases."""
        found = (g for g in self.overview.candidates if (g.environment, g.cases) == (self.environment, self.main))
        return next(found).comparisons


def microseconds(value: float | None) -> str:
    """A time of a call."""
    return "-" if value is None else f"{value:,.1f}"


def ratio(judgement: Judgement) -> str:
    """B over A with its interval."""
    if judgement.ratio is None:
        return "-"
    if judgement.ci_low is None or judgement.ci_high is None:
        return f"{judgement.ratio:.3f}"
    return f"{judgement.ratio:.3f} ({judgement.ci_low:.3f}-{judgement.ci_high:.3f})"


def outcome_cell(judgement: Judgement) -> Cell:
    """The outcome, in a word."""
    return Cell(text=str(judgement.outcome), weight=_WEIGHTS.get(judgement.outcome, Weight.PLAIN))


def verdict(measured: Measured) -> Iterator[Block]:
    """The answer, size by size, then what weakens it."""
    yield Paragraph(text=_answer(measured), weight=Weight.LEAD)
    yield from (
        Paragraph(text=compare_view.headline(comparison).plain) for comparison in measured.overview.environments
    )
    yield _by_size(measured)
    if isinstance(measured.expected, Expected):
        values = _values(measured)
        if judged := tuple(checked(measured.expected, values)):
            yield Paragraph(text="Against the prediction for this node:")
            yield Bullets(items=judged)
        yield from (Paragraph(text=text, weight=Weight.WARNING) for text in below_floor(measured.expected, values))
    yield from (Paragraph(text=text, weight=Weight.WARNING) for text in _warnings(measured))


def _answer(measured: Measured) -> str:
    plan = measured.run.header.plan
    sizes = f"{len(measured.main)} sizes together" if len(measured.main) > 1 else "one size"
    where = f"{measured.environment} ({measured.kind}, {sizes})"
    if all(value_of(measured, plan.baseline, case) is None for case in measured.main):
        return f"Not answered: {plan.baseline} has no numbers on {where}, so nothing can be compared with it."
    comparable = [c for c in measured.comparisons if c.overall.ratio is not None]
    better = [c for c in comparable if c.overall.outcome is Outcome.BETTER]
    if better:
        least = min(better, key=_ratio)
        return f"{least.b.candidate} is the best of {len(plan.candidates)} on {where}: it takes {_against(least)}."
    nearest = min(comparable, key=_ratio, default=None)
    found = f"; {nearest.b.candidate} takes {_against(nearest)}: {nearest.overall.outcome}" if nearest else ""
    somewhere = sum(best_at(measured, case) is not None for case in measured.main)
    more = f" At {somewhere} of these sizes something is." if somewhere else ""
    return f"Nothing measured is better than {plan.baseline} on {where}{found}.{more}"


def _ratio(comparison: Comparison) -> float:
    return comparison.overall.ratio or 1.0


def _against(comparison: Comparison) -> str:
    judgement = comparison.overall
    interval = ""
    if judgement.ci_low is not None and judgement.ci_high is not None:
        interval = f" (95 %: {100 * judgement.ci_low:.1f} to {100 * judgement.ci_high:.1f})"
    return f"{100 * _ratio(comparison):.1f} %{interval} of the time of {comparison.a.candidate}"


def best_at(measured: Measured, case: Case) -> tuple[Comparison, Row] | None:
    """Of what is better than the baseline on a case, the one with the least ratio; None where nothing is."""
    better = [
        (comparison, row)
        for comparison in measured.comparisons
        for row in comparison.rows
        if row.case == case and row.judgement.outcome is Outcome.BETTER
    ]
    return min(better, key=lambda pair: pair[1].judgement.ratio or 1.0, default=None)


def best(measured: Measured) -> list[str]:
    """The candidates that are the best somewhere, each once."""
    found = (best_at(measured, case) for case in measured.main)
    return list(dict.fromkeys(pair[0].b.candidate for pair in found if pair))


def _by_size(measured: Measured) -> Table:
    plan = measured.run.header.plan
    bounds = isinstance(measured.expected, Expected)
    head = ("message", "bytes", "calls", f"{plan.baseline}, us", "use", "us", "ratio (95 %)")
    rows = []
    for case in measured.main:
        base = value_of(measured, plan.baseline, case)
        found = best_at(measured, case)
        used = found[0].b.candidate if found else plan.baseline
        none = "no numbers" if base is None else "nothing is better"
        us, told = (found[1].b, ratio(found[1].judgement)) if found else (base, none)
        row = [case.message.name, f"{case.message.bytes:,}", case.message.calls, microseconds(base)]
        row += [used, microseconds(us), told, *(_bounds(measured.expected, used, case) if bounds else ())]
        rows.append(cells(*row))
    more = ("floor, us (predicted)", "bounds, us (predicted)") if bounds else ()
    return Table(head=(*head, *more), rows=tuple(rows), words=(0, 4))


def _bounds(expected: Expected | str, candidate: str, case: Case) -> tuple[str, str]:
    assert isinstance(expected, Expected)
    estimate = expected.estimate(candidate, case.message.bytes)
    floor = expected.at.floor.time_us(case.message.bytes)
    return f"{floor:,.1f}", f"{estimate.low:,.1f}-{estimate.high:,.1f}" if estimate else "-"


def value_of(measured: Measured, candidate: str, case: Case, environment: str = "") -> float | None:
    """The median over launches, us; None where there is none."""
    side = Side(environment=environment or measured.environment, candidate=candidate, run=measured.run)
    return middle([trial.median for trial in medians(side, case.key).values()])


def _values(measured: Measured) -> dict[tuple[str, Case], float]:
    found = {
        (candidate.name, case): value_of(measured, candidate.name, case)
        for candidate in measured.run.header.plan.candidates
        for case in measured.main
    }
    return {key: us for key, us in found.items() if us is not None}


def _warnings(measured: Measured) -> Iterator[str]:
    plan = measured.run.header.plan
    if plan.engine == "mpi":
        yield "engine mpi runs ranks on the CPU: whatever the outcome, it says nothing about GPUs"
    yield from measured.overview.warnings
    compared = (*measured.overview.environments, *measured.comparisons)
    yield from dict.fromkeys(text for comparison in compared for text in comparison.warnings)
    winners = best(measured)
    for candidate in plan.candidates:
        if candidate.name in winners and candidate.parameters.get("proto") == "LL128":
            yield f"{candidate.name}: LL128 may corrupt data where its way crosses a CPU; right sums here are no proof"


def results(measured: Measured) -> Iterator[Block]:
    """Every candidate on every case, a table for each environment and way of calling; then what has no numbers."""
    plan = measured.run.header.plan
    yield Paragraph(text=_HOW, weight=Weight.NOTE)
    for group in measured.overview.candidates:
        kind = plan.kind(group.cases)
        yield Paragraph(
            text=f"{group.environment}{f', {kind}' if kind else ''}: us a call, and outcome against {plan.baseline}"
        )
        sizes = tuple(f"{case.message.bytes:,} B" for case in group.cases)
        base = [microseconds(value_of(measured, plan.baseline, case, group.environment)) for case in group.cases]
        rows = [cells(plan.baseline, *base, "1", "baseline")]
        rows += [_result(comparison) for comparison in group.comparisons]
        head = ("candidate", *sizes, "all, ratio (95 %)", "outcome")
        yield Table(head=head, rows=tuple(rows), words=(0, len(head) - 1))
    if failed := failures(measured.run):
        yield Paragraph(text="Without numbers:")
        yield Bullets(items=tuple(line(f"{t.environment}:{t.candidate}: {t.status}: {t.reason}") for t in failed))


def _result(comparison: Comparison) -> tuple[Cell, ...]:
    values = [
        Cell(
            text=f"{microseconds(row.b)} {row.judgement.outcome}",
            weight=_WEIGHTS.get(row.judgement.outcome, Weight.PLAIN),
        )
        for row in comparison.rows
    ]
    return cells(comparison.b.candidate, *values, ratio(comparison.overall), outcome_cell(comparison.overall))


def endings(run: Run) -> Table:
    """How trials ended, for runs whose times mean nothing."""
    found: dict[tuple[str, str], list[Status]] = {}
    for trial in run.trials:
        found.setdefault((trial.environment, trial.candidate), []).append(trial.status)
    rows = [
        cells(*name, len(ended), ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended)))
        for name, ended in found.items()
    ]
    return Table(head=("environment", "candidate", "trials", "how they ended"), rows=tuple(rows), words=(0, 1, 3))


def lines(measured: Measured) -> tuple[Line, ...]:
    """What a picture shows of the main cases: the baseline first, bold; so the fastest; the rest faint."""
    plan = measured.run.header.plan
    ranked = sorted((c for c in measured.comparisons if c.overall.ratio is not None), key=_ratio)
    sides = [(measured.environment, plan.baseline)]
    sides += [(env.name, plan.baseline) for env in plan.environments[1:]]
    sides += [(measured.environment, comparison.b.candidate) for comparison in ranked]
    several = len(plan.environments) > 1
    found = []
    for number, (environment, candidate) in enumerate(sides):
        points = points_of(measured, Side(environment=environment, candidate=candidate, run=measured.run))
        name = f"{environment}:{candidate}" if several else candidate
        if points:
            found.append(Line(name=name, points=points, named=number < MOST_NAMED))
    return tuple(found)


def points_of(measured: Measured, side: Side) -> tuple[Point, ...]:
    """A side's times over the main cases' sizes, in order of size."""
    launches: Mapping[int, Sequence[float]] = {
        case.message.bytes: [trial.median for trial in medians(side, case.key).values()] for case in measured.main
    }
    return tuple(
        Point(size=size, us=us, low=min(values), high=max(values))
        for size, values in sorted(launches.items())
        if (us := middle(values)) is not None
    )
