"""Gathers a report of runs: the verdict first, then what it rests on, what differs, and how to do it again. Pure.

`report_html` and `report_markdown` write it. What is predicted is called so wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from tuning import compare_view, ledger_view, predict_view, speculation_svg, speculation_view
from tuning.arms import Side, failures
from tuning.compare import Comparison, compare, overview
from tuning.identify import identify
from tuning.ledger import Standing
from tuning.predict_inputs import Preflight
from tuning.report_document import (
    Block,
    Bullets,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    Weight,
    cells,
    line,
)
from tuning.report_ledger import ledger, on_best, on_measured, toolchains_of
from tuning.report_measured import Measured, best, endings, lines, points_of, results, verdict
from tuning.report_predicted import Expected, expected
from tuning.report_reproduce import commands, reproduce
from tuning.report_svg import Panel, Point, measured_svg, panels_svg
from tuning.runfile import Kind, Run
from tuning.speculation_table import slices
from tuning.speculation_view import Prediction as Speculation
from tuning.speculation_view import span_text
from tuning.topology import Topology

MOST_RUNS = 8
"""More would be no page that anybody reads."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a report takes from elsewhere than the runs.

    Attributes:
        topology: of the runs' node, where the user named it.
        toolchain: whose verdicts and preflight count; "" for those that the runs name.
        preflight: what it says of that toolchain.
        standings: the ledger.
        speculation: what `predict-speculation` says; None where no rate was given.
    """

    topology: Topology | None = None
    toolchain: str = ""
    preflight: Preflight | None = None
    standings: tuple[Standing, ...] = ()
    speculation: Speculation | None = None


def make_report(runs: Sequence[Run], beside: Beside) -> Report:
    """The report of some runs; the first is what others are described beside."""
    measured = [
        Measured(run=run, overview=overview(run), expected=expected(run, beside.topology, beside.preflight))
        for run in runs
        if run.header.kind is Kind.MEASURED
    ]
    between = _between(measured)
    toolchains = toolchains_of(runs, beside.standings, beside.toolchain)
    verdicts = on_measured(runs, beside.standings, toolchains)
    several = len(runs) > 1
    sections = [
        *(_section(_titled("Verdict", run, several=several), _verdict(run, measured, verdicts)) for run in runs),
        *_worth(beside.speculation),
        *(_latency(one, number, several=several) for number, one in enumerate(measured, 1)),
        _section("Tokens per second against acceptance", _tokens(beside.speculation)),
        *(_section(_titled("Every result", one.run, several=several), results(one)) for one in measured),
        _section("What is already concluded (ledger)", ledger(verdicts, beside.standings, toolchains)),
        _section("What differs", _differs(measured, between)),
        _section("How to reproduce", (block for run in runs for block in reproduce(run))),
    ]
    names = ", ".join(line(run.path.name) for run in runs)
    return Report(
        title=f"Allreduce: {line(runs[0].header.plan.workload.name)} on {_node(runs[0])}",
        about=f"{names}; measured {', '.join(line(run.header.created) for run in runs)}; Lanewise report",
        sections=tuple(sections),
        document=_document(runs, measured, between, beside.speculation, verdicts),
    )


def _section(title: str, blocks: Iterable[Block]) -> Section:
    return Section(title=title, blocks=tuple(blocks))


def _node(run: Run) -> str:
    """The run's machine in a few words."""
    host, stated = run.header.node.get("host", {}), run.header.node.get("gpus")
    names = [line(gpu.get("name")) for gpu in stated if isinstance(gpu, dict)] if isinstance(stated, list) else []
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no NVIDIA GPU"
    ranks = f"{run.header.plan.ranks} ranks, engine {run.header.plan.engine}"
    return line(f"{host.get('hostname', 'an unnamed node')} ({gpus}; {ranks})")


def _titled(title: str, run: Run, *, several: bool) -> str:
    return f"{title}: {line(run.path.name)}" if several else title


def _verdict(run: Run, measured: Sequence[Measured], verdicts: Sequence[Standing]) -> Iterator[Block]:
    found = next((one for one in measured if one.run is run), None)
    if found:
        yield from verdict(found)
        yield from on_best(run, best(found), verdicts)
    else:
        text = f"The times of this run are {run.header.kind}: it shows only how trials ended."
        yield Paragraph(text=text, weight=Weight.LEAD)
        yield endings(run)


def _worth(speculation: Speculation | None) -> Iterator[Section]:
    """What speculation gives by the rates that were named, in a sentence."""
    if speculation is not None:
        k = speculation.known.k
        cell = next(cell for cell in speculation.cells if (cell.k, cell.requests) == (k, 1))
        faster = {"+": "faster", "-": "slower", "?": "open: faster or slower"}[speculation_view.verdict(cell)]
        rates = f"{span_text(cell.rate, 0)} tokens per second against {span_text(cell.baseline, 0)}"
        even = f"it pays from an accept length of {span_text(cell.break_even, 2)} on"
        text = f"PREDICTED from the rates that were given: speculation with {k} drafts is {faster}, {rates}; {even}."
        yield _section("Verdict on speculation", [Paragraph(text=text, weight=Weight.LEAD)])


def _latency(one: Measured, number: int, *, several: bool) -> Section:
    title = _titled(f"Latency against size ({one.kind})", one.run, several=several)
    drawn, beside = lines(one), one.expected
    if not drawn:
        return _section(title, [Paragraph(text="Nothing has numbers.", weight=Weight.NOTE)])
    curve = beside.curve if isinstance(beside, Expected) else None
    floor = [(size, curve.floor.time_us(size)) for size in curve.sizes] if curve else []
    says = f"Measured microseconds a call of {', '.join(x.name for x in drawn if x.named)} against message size"
    blocks: list[Block] = [Picture(name=f"latency-{number}.svg", svg=measured_svg(drawn, floor), says=says)]
    if isinstance(beside, Expected):
        blocks += _predicted(one, beside, floor, number)
    else:
        text = f"Measured only, without physical floor and predicted bounds: {beside}."
        blocks.append(Paragraph(text=text, weight=Weight.NOTE))
    return _section(title, blocks)


def _predicted(one: Measured, beside: Expected, floor: Sequence[tuple[int, float]], number: int) -> Iterator[Block]:
    node = f"{beside.at.topology}: {predict_view.about(beside.at)}"
    text = f"PREDICTED for {node}. How often bounds hold, family by family, is in docs/prediction.md."
    yield Paragraph(text=text, weight=Weight.NOTE)
    panels = []
    for candidate in beside.families:
        known = beside.of(beside.curve, candidate)
        points = points_of(one, Side(environment=one.environment, candidate=candidate, run=one.run))
        if known and points:
            curve = tuple(Point(size=e.size, us=e.us, low=e.low, high=e.high) for e in known.estimates)
            title = f"{candidate}{'' if known.validated else ' (unvalidated)'}"
            panels.append(Panel(title=title, measured=points, predicted=curve))
    if panels:
        says = "Measured times in the predicted bounds, a panel for each candidate that has a predicted family"
        yield Picture(name=f"predicted-{number}.svg", svg=panels_svg(panels, floor), says=says)
    yield Bullets(items=beside.at.notes)


def _tokens(speculation: Speculation | None) -> Iterator[Block]:
    if speculation is None:
        yield Paragraph(
            text="Not computed: no rate without speculation was given. With one (--baseline 82-89), and the accept "
            "length or the rate with speculation, this shows what these allreduces make of it.",
            weight=Weight.NOTE,
        )
        return
    known = changed(speculation.known, tau=None)
    cut = slices(identify(known), steps=speculation_svg.STEPS)
    yield Paragraph(
        text=f"PREDICTED from the rates given: {known.calls} allreduces a pass, {known.row_bytes:,} bytes a row, "
        f"{known.k} drafts a step.",
        weight=Weight.NOTE,
    )
    yield Picture(
        name="speculation.svg",
        svg=speculation_svg.svg(known, cut),
        says="Predicted tokens per second against accept length, with the baseline and the break-even",
    )
    head = ("drafts", "accept length", "tokens/s with", "without", "break-even accept length", "faster")
    yield Table(
        head=head,
        rows=tuple(
            cells(
                cell.k,
                *(span_text(span, digits) for span, digits in ((cell.tau, 2), (cell.rate, 0), (cell.baseline, 0))),
                span_text(cell.break_even, 2),
                {"+": "yes", "-": "no", "?": "open"}[speculation_view.verdict(cell)],
            )
            for cell in speculation.cells
            if cell.requests == 1
        ),
        words=(5,),
    )
    yield Paragraph(text=f"One request. Break-even allreduce of a verify pass: {_even(speculation)}.")
    yield Bullets(items=tuple(f"assumed: {text}" for text in speculation.assumptions))


def _even(speculation: Speculation) -> str:
    span = speculation.break_even_us
    return f"{span_text(span, 0)} us" if span.low > 0 else "not known; none may be fast enough"


def _between(measured: Sequence[Measured]) -> tuple[Comparison, ...]:
    """Each further run's baseline beside that of the first, on the first's main cases."""
    sides = [Side(environment=m.environment, candidate=m.run.header.plan.baseline, run=m.run) for m in measured]
    return tuple(compare(sides[0], other, measured[0].main) for other in sides[1:])


def _differs(measured: Sequence[Measured], between: Sequence[Comparison]) -> Iterator[Block]:
    within = [comparison for one in measured for comparison in (*one.overview.environments, *one.comparisons)]
    differing = [comparison for comparison in (*within, *between) if comparison.differs]
    for comparison in differing:
        yield Paragraph(text=_pair(comparison))
        yield Bullets(items=tuple(map(line, comparison.differs)))
    if between:
        text = "Several run files were not interleaved: they are described side by side, and never judged."
        yield Paragraph(text=text, weight=Weight.WARNING)
    if not differing:
        yield Paragraph(text="Nothing but what was asked to differ: the candidates of an environment share all else.")


def _pair(comparison: Comparison) -> str:
    labels = [
        side.label if comparison.pairing != "none" else f"{line(side.run.path.name)} {side.label}"
        for side in (comparison.a, comparison.b)
    ]
    return f"{labels[0]} / {labels[1]}:"


def _document(
    runs: Sequence[Run],
    measured: Sequence[Measured],
    between: Sequence[Comparison],
    speculation: Speculation | None,
    verdicts: Sequence[Standing],
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "runs": [
            {
                "run": str(run.path),
                "kind": str(run.header.kind),
                "seed": run.header.plan.seed,
                "commands": list(commands(run)),
                "failures": compare_view.failures_document(failures(run), run.launches),
            }
            for run in runs
        ],
        "comparisons": [compare_view.to_document(c) for one in measured for c in one.overview.all],
        "between_runs": [compare_view.to_document(comparison) for comparison in between],
        "predicted": [
            {"run": str(one.run.path), **predict_view.document(one.expected.at, one.run.header.plan.workload.messages)}
            if isinstance(one.expected, Expected)
            else {"run": str(one.run.path), "none": one.expected}
            for one in measured
        ],
        "speculation": speculation_view.document(speculation) if speculation else None,
        "ledger": ledger_view.document(verdicts),
    }
