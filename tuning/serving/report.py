"""Gathers a report of runs of servers: the verdicts first, then pictures, every number, what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuning.report_document import Block, Bullets, Cell, Paragraph, Report, Section, Table, Weight, cells, line
from tuning.report_reproduce import commands, reproduce
from tuning.serving import summary, view
from tuning.serving.attribution import Attribution, attribute
from tuning.serving.compare import serving_overview
from tuning.serving.comparison import Comparison
from tuning.serving.estimates import Estimate
from tuning.serving.headline import headline, verdict_text
from tuning.serving.report_pictures import pictures
from tuning.serving.runfile import ServingRun
from tuning.stats import Outcome

_WEIGHTS = {Outcome.BETTER: Weight.GOOD, Outcome.WORSE: Weight.BAD}


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """A run with all that it answers."""

    run: ServingRun
    comparisons: tuple[Comparison, ...]

    def titled(self, title: str, *, several: bool) -> str:
        """The title, with the run's name where the page holds several."""
        return f"{title}: {line(self.run.path.name)}" if several else title


def serving_report(runs: Sequence[ServingRun]) -> Report:
    """The report of some runs of servers, at least one; each is judged by itself."""
    made = [_Compared(run=run, comparisons=serving_overview(run)) for run in runs]
    several = len(runs) > 1
    sections = [
        *(_section(one.titled("Verdict", several=several), _verdict(one)) for one in made),
        *(
            _section(one.titled("By requests at once", several=several), pictures(one.run, one.comparisons, n))
            for n, one in enumerate(made, 1)
        ),
        *(_section(one.titled("Every arm", several=several), _numbers(one)) for one in made),
        *(_section(one.titled("Acceptance", several=several), _acceptance(one)) for one in made),
        *(_section(one.titled("Where step time comes from", several=several), _origins(one)) for one in made),
        _section("What differs", (block for one in made for block in _differs(one))),
        _section("How to reproduce", (block for run in runs for block in reproduce(run))),
    ]
    host = runs[0].header.node.get("host", {})
    return Report(
        title=f"Speculation: {line(runs[0].header.plan.arms[0].spec.model)} on {line(host.get('hostname', 'a node'))}",
        about=f"{', '.join(line(run.path.name) for run in runs)}; measured "
        f"{', '.join(line(run.header.created) for run in runs)}; Lanewise report",
        sections=tuple(sections),
        document={
            "runs": [
                {"run": str(one.run.path), "commands": list(commands(one.run)), "failures": view.failures(one.run)}
                for one in made
            ],
            "comparisons": [
                view.to_document(found, [attribution for _, attribution in _attributions(found)])
                for one in made
                for found in one.comparisons
            ],
        },
    )


def _section(title: str, blocks: Iterator[Block]) -> Section:
    return Section(title=title, blocks=tuple(blocks))


def _verdict(one: _Compared) -> Iterator[Block]:
    for found in one.comparisons:
        yield Paragraph(text=line(headline(found)), weight=Weight.LEAD)
    if not one.comparisons:
        yield Paragraph(text="One arm in one environment: nothing is compared.", weight=Weight.LEAD)
    warnings = dict.fromkeys(warning for found in one.comparisons for warning in found.warnings)
    yield from (Paragraph(text=line(warning), weight=Weight.WARNING) for warning in warnings)
    notes = dict.fromkeys(note for found in one.comparisons for note in found.notes)
    yield from (Paragraph(text=line(note), weight=Weight.NOTE) for note in notes)


def _numbers(one: _Compared) -> Iterator[Block]:
    """Every arm, then every comparison at every number of requests, then what has no numbers."""
    found = summary.rows(one.run)
    head = (
        "environment",
        "arm",
        "at once",
        "starts",
        "step, ms",
        "accept",
        "tok/s",
        "TTFT, ms",
        "TPOT, ms",
        "ITL p50, ms",
        "ITL p99, ms",
        "source",
    )
    rows = [
        cells(
            *(row.environment, row.arm, row.concurrency, row.starts),
            *(_number(value, form) for value, form in ((row.step_ms, ".3f"), (row.accept_length, ".3f"))),
            *(_number(row.tokens_per_second, ",.1f"), _number(row.ttft_ms, ".1f"), _number(row.tpot_ms, ".2f")),
            *(_number(row.itl_p50_ms, ".2f"), _number(row.itl_p99_ms, ".2f")),
            row.source,
        )
        for row in found
    ]
    yield Table(head=head, rows=tuple(rows), words=(0, 1, 11)) if rows else Paragraph(text="Nothing has numbers.")
    for comparison in one.comparisons:
        yield Paragraph(text=f"{line(comparison.b.label)} against {line(comparison.a.label)}:")
        yield _compared(comparison)
        if any(row.latencies for row in comparison.rows):
            yield _latencies(comparison)
    if failed := view.failures(one.run):
        yield Paragraph(text="Without numbers:")
        yield Bullets(items=tuple(map(line, failed)))


def _compared(comparison: Comparison) -> Table:
    head = ("at once", "step time B/A (95 %)", "step time", "tok/s B/A (95 %)", "break-even (95 %)", "speculation")
    rows = []
    for row in comparison.rows:
        step, speed = row.step, row.speed
        rows.append(
            cells(
                row.concurrency,
                _estimate(_ratio(step.ratio, step.ci_low, step.ci_high)),
                Cell(text=str(step.outcome), weight=_WEIGHTS.get(step.outcome, Weight.PLAIN)),
                _estimate(row.pays.speed_up if row.pays else _ratio(speed.ratio, speed.ci_low, speed.ci_high)),
                _estimate(row.pays.break_even if row.pays else None),
                _verdict_cell(comparison, row.speed.outcome) if comparison.against_baseline else "-",
            )
        )
    return Table(head=head, rows=tuple(rows), words=(2, 5))


def _latencies(comparison: Comparison) -> Table:
    """Described, over starts and on these prompts."""
    head = ("latency", "at once", "A, ms", "B, ms", "B/A (95 %)", "detectable")
    rows = [
        cells(
            *(one.name, row.concurrency, *(_number(ms, ".2f") for ms in one.ms)),
            _estimate(_ratio(one.judged.ratio, one.judged.ci_low, one.judged.ci_high)),
            view.share_text(one.judged.mde),
        )
        for row in comparison.rows
        for one in row.latencies
    ]
    return Table(head=head, rows=tuple(rows), words=(0,))


def _verdict_cell(comparison: Comparison, outcome: Outcome) -> Cell:
    text = verdict_text(comparison, outcome)
    return Cell(text=text, weight=_WEIGHTS.get(outcome, Weight.PLAIN))


def _ratio(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    return None if value is None else Estimate(value=value, low=low, high=high)


def _estimate(estimate: Estimate | None, form: str = ".3f") -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return format(estimate.value, form)
    return f"{format(estimate.value, form)} ({format(estimate.low, form)} to {format(estimate.high, form)})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _acceptance(one: _Compared) -> Iterator[Block]:
    """By category, at the first number of requests of each speculation."""
    rows = []
    for comparison in one.comparisons:
        accepted = comparison.rows[0].acceptance
        if comparison.rows[0].pays:
            rows += [
                cells(comparison.b.label, found.name, found.prompts, _estimate(found.b))
                for found in accepted.categories
            ]
            rows.append(cells(comparison.b.label, "all", accepted.prompts or "-", _estimate(accepted.b)))
    if rows:
        yield Table(head=("arm", "category", "prompts", "accept length (95 %)"), rows=tuple(rows), words=(0, 1))
    else:
        yield Paragraph(text="Nothing speculates, or nothing has numbers.", weight=Weight.NOTE)


def _attributions(comparison: Comparison) -> Iterator[tuple[int, Attribution]]:
    for row in comparison.rows:
        if found := attribute(comparison.a, comparison.b, row.concurrency):
            yield row.concurrency, found


def _origins(one: _Compared) -> Iterator[Block]:
    rows: list[tuple[Cell, ...]] = []
    missing: list[str] = []
    for comparison in one.comparisons:
        for concurrency, found in _attributions(comparison):
            missing += found.missing
            rows += [
                cells(comparison.b.label, concurrency, split.source, part.cause, _estimate(part.ms, "+.3f"))
                for split in found.splits
                for part in split.parts
            ]
    if rows:
        yield Paragraph(
            text="What each cause adds to a step, in ms, B less A; the parts of a source add up to the whole."
        )
        head = ("arm", "at once", "source", "cause", "ms (95 % or range)")
        yield Table(head=head, rows=tuple(rows), words=(0, 2, 3))
    if missing:
        yield Bullets(items=tuple(line(text) for text in dict.fromkeys(missing)))
    elif not rows:
        yield Paragraph(text="Nothing to part: no two arms have numbers that a source splits.", weight=Weight.NOTE)


def _differs(one: _Compared) -> Iterator[Block]:
    for comparison in one.comparisons:
        told = [
            *(f"meant to: {text}" for text in comparison.asked),
            *(f"follows from that: {text}" for text in comparison.follows),
            *comparison.differs,
        ]
        yield Paragraph(text=f"{line(comparison.a.label)} / {line(comparison.b.label)}:")
        yield Bullets(items=tuple(map(line, told or ["nothing"])))
    if not one.comparisons:
        yield Paragraph(text=f"{line(one.run.path.name)}: nothing is compared.", weight=Weight.NOTE)
