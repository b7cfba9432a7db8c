"""Servers by number of requests: step time, speed, and acceptance against break-even; one self-contained SVG.

Lines differ by dash and mark, not by colour, and are named below, so that it reads in greyscale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_PANEL_WIDTH, _PANEL_HEIGHT, _GAP = 290, 250, 30
_LEFT, _TOP, _ROW = 58, 58, 20
MOST_LINES = 6
"""That can be told apart."""
_MOST_NAME = 60
_DASHES = ("none", "7 3", "2 3", "10 3 2 3", "4 2", "1 2")
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; } .head { font-size: 15px; font-weight: 600; }
  .strong { font-weight: 600; } .middle { text-anchor: middle; } .right { text-anchor: end; }
  .page { fill: #fbfbfa; stroke: #999; } .grid { stroke: #dededb; } .axis { stroke: #333; fill: none; }
  .line { fill: none; stroke: #111; stroke-width: 1.6; } .even { fill: none; stroke: #777; stroke-width: 1.2; }
  .mark { fill: #fbfbfa; stroke: #111; } .dot { fill: #111; } .spread { stroke: #111; } .cross { stroke: #777; }
"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of requests: a value, and the ends of its range."""

    concurrency: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm.

    Attributes:
        look: which dash and mark it has, the same in every panel.
        points: by rising number of requests.
        even: whether it is a break-even, drawn thin and with crosses.
    """

    look: int
    points: tuple[Point, ...]
    even: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity of all arms."""

    title: str
    lines: tuple[Line, ...]


def panels_svg(title: str, names: Sequence[str], panels: Sequence[Panel], foot: str = "") -> str:
    """Panels side by side.

    Args:
        title: what it is of.
        names: of the lines, by their look.
        panels: each with one point at least.
        foot: what the bars are, under the names.
    """
    numbers = sorted({p.concurrency for panel in panels for line in panel.lines for p in line.points})
    width = _LEFT + len(panels) * (_PANEL_WIDTH + _GAP)
    height = _TOP + _PANEL_HEIGHT + 52 + _ROW * (len(names) + bool(foot)) + 10
    parts = [_text(20, 26, title, "head")]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + number * (_PANEL_WIDTH + _GAP), numbers)
    for look, name in enumerate(names):
        y = _TOP + _PANEL_HEIGHT + 52 + _ROW * look
        parts += [
            f'<path class="line" stroke-dasharray="{_DASHES[look % len(_DASHES)]}" d="M{_LEFT} {y}h40"/>',
            _mark(_LEFT + 20, y, look),
            _text(_LEFT + 50, y + 4, name[:_MOST_NAME], "strong" if look == 0 else ""),
        ]
    if foot:
        parts.append(_text(_LEFT, height - 14, foot, ""))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>{"".join(parts)}</svg>\n'
    )


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where numbers of requests (log scale) and values (from 0) lie in a panel."""

    left: float
    numbers: Sequence[int]
    top_value: float

    def x(self, concurrency: int) -> float:
        """Pixels from the left; one number alone stands in the middle."""
        first, last = self.numbers[0], self.numbers[-1]
        share = math.log(concurrency / first) / math.log(last / first) if last > first else 0.5
        return self.left + 14 + share * (_PANEL_WIDTH - 42)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return _TOP + _PANEL_HEIGHT - min(value / self.top_value, 1.0) * (_PANEL_HEIGHT - 12)


def _panel(panel: Panel, left: float, numbers: Sequence[int]) -> Iterator[str]:
    most = max(point.high for line in panel.lines for point in line.points)
    step = _tick(most / 5)
    frame = _Frame(left=left, numbers=numbers, top_value=step * math.ceil(most / step + 1e-9))
    right, bottom = left + _PANEL_WIDTH - 14, _TOP + _PANEL_HEIGHT
    yield _text(left, _TOP - 10, panel.title, "strong")
    for number in range(round(frame.top_value / step) + 1):
        y = frame.y(number * step)
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _text(left - 6, y + 4, f"{number * step:,g}", "right")
    free = -math.inf
    for concurrency in numbers:
        if (x := frame.x(concurrency)) - free > 16:
            yield _text(x, bottom + 17, str(concurrency), "middle")
            free = x
    yield f'<path class="axis" d="M{left:.1f} {_TOP}V{bottom}H{right:.1f}"/>'
    yield _text((left + right) / 2, bottom + 34, "requests at once", "middle")
    for line in panel.lines:
        yield from _line(frame, line)


def _line(frame: _Frame, line: Line) -> Iterator[str]:
    drawn = " ".join(f"{frame.x(point.concurrency):.1f},{frame.y(point.value):.1f}" for point in line.points)
    dash = _DASHES[line.look % len(_DASHES)]
    yield f'<polyline class="{"even" if line.even else "line"}" stroke-dasharray="{dash}" points="{drawn}"/>'
    for point in line.points:
        x, y = frame.x(point.concurrency), frame.y(point.value)
        yield f'<path class="spread" d="M{x:.1f} {frame.y(point.low):.1f}V{frame.y(point.high):.1f}"/>'
        cross = f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'
        yield cross if line.even else _mark(x, y, line.look)


def _mark(x: float, y: float, look: int) -> str:
    """A mark of one of six forms, open but for the first."""
    form = (
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
        f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
        f"M{x - 4.5:.1f} {y:.1f}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
        f"M{x:.1f} {y + 5:.1f}l5 -9h-10z",
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
    )[look % 6]
    return f'<path class="{"dot" if look == 0 else "mark"}" d="{form}"/>'


def _tick(least: float) -> float:
    """The least of 1, 2, 5, 10, 20, ... that is not below it."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
