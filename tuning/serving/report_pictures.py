"""Pictures of a report of servers: of each allreduce backend, and one of all baselines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tuning.report_document import Block, Paragraph, Picture, Weight, line
from tuning.serving.compare import Number
from tuning.serving.comparison import Comparison
from tuning.serving.estimates import Estimate
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide, step_ms, tokens_per_second
from tuning.serving.svg import MOST_LINES, Line, Panel, Point, panels_svg

_HOW = (
    "Medians over server starts, the unit of repetition. Step time and acceptance are told apart: tokens per second "
    "are accept length over step time. Accept lengths have 95 % intervals over prompts, step times over starts; "
    "speculation pays where the accept length exceeds the break-even, the ratio of step times."
)


def pictures(run: ServingRun, comparisons: Sequence[Comparison], number: int) -> Iterator[Block]:
    """A picture for each allreduce backend of each environment, and before them one of all its baselines.

    Args:
        run: what is drawn.
        comparisons: of its arms.
        number: of the run in its report, for the names of the pictures.
    """
    yield Paragraph(text=_HOW, weight=Weight.NOTE)
    count = 0
    for environment in run.header.plan.environments:
        groups = list(_groups(run, environment.name))
        for group, sides in groups:
            count += 1
            title = f"{environment.name}, {group}: servers by requests at once"
            yield _picture(title, sides[:MOST_LINES], comparisons, f"servers-{number}-{count}.svg")
            if len(sides) > MOST_LINES:
                yield Paragraph(text=f"{len(sides) - MOST_LINES} more arms are in the table only.", weight=Weight.NOTE)
        if not groups:
            yield Paragraph(text=f"{line(environment.name)}: nothing has numbers.", weight=Weight.NOTE)


def _groups(run: ServingRun, environment: str) -> Iterator[tuple[str, list[ServingSide]]]:
    """Arms that belong in one picture, those with numbers, and what they have in common."""
    every = [ServingSide(environment=environment, arm=arm.name, run=run) for arm in run.header.plan.arms]
    sides = [side for side in every if _points(side, step_ms)]
    baselines = [side for side in sides if side == side.baseline]
    if len(baselines) > 1:
        yield "baselines", baselines
    for backend in dict.fromkeys(side.backend for side in sides):
        yield backend, [side for side in sides if side.backend == backend]


def _picture(title: str, sides: Sequence[ServingSide], comparisons: Sequence[Comparison], name: str) -> Picture:
    panels = [
        Panel(title="Step time, ms", lines=_lines(sides, step_ms)),
        Panel(title="Tokens per second", lines=_lines(sides, tokens_per_second)),
    ]
    found = [c for c in comparisons if c.a.environment == c.b.environment == sides[0].environment]
    if even := _even(found, [side.arm for side in sides]):
        panels.append(Panel(title="Accept length; crosses: break-even", lines=even))
    foot = "bars: range over starts" + (
        "; of accept length and break-even 95 % intervals, cut at twice the value" if even else ""
    )
    return Picture(
        name=name,
        svg=panels_svg(line(title), [line(side.arm) for side in sides], panels, foot),
        says="Step time, tokens per second, and accept length beside its break-even, by requests at once",
    )


def _points(side: ServingSide, number: Number) -> tuple[Point, ...]:
    values = {n: sorted(number(trial) for trial in side.trials(n).values()) for n in side.concurrencies}
    return tuple(
        Point(concurrency=n, value=statistics.median(found), low=found[0], high=found[-1])
        for n, found in values.items()
        if found
    )


def _lines(sides: Sequence[ServingSide], number: Number) -> tuple[Line, ...]:
    return tuple(Line(look=look, points=_points(side, number)) for look, side in enumerate(sides))


def _even(found: Sequence[Comparison], arms: Sequence[str]) -> tuple[Line, ...]:
    """Of each speculation its accept lengths, and the break-even that they have to exceed."""
    lines = []
    for comparison in found:
        rows = [(row.concurrency, row.pays) for row in comparison.rows if row.pays]
        if rows and comparison.b.arm in arms:
            look = arms.index(comparison.b.arm)
            lines.append(Line(look=look, points=tuple(_point(n, pays.accept) for n, pays in rows)))
            lines.append(Line(look=look, points=tuple(_point(n, pays.break_even) for n, pays in rows), even=True))
    return tuple(lines)


def _point(concurrency: int, estimate: Estimate) -> Point:
    """With its interval, cut at twice the value: else two starts would leave no room for anything else."""
    value = estimate.value
    low, high = (value if end is None else end for end in (estimate.low, estimate.high))
    return Point(concurrency=concurrency, value=value, low=max(low, 0.0), high=min(high, 2 * value))
