"""Measured latency against size, and beside what was predicted: self-contained SVGs without a script.

Lines differ by dash and mark, not by colour, and are named where they end, so both read in greyscale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 960, 470
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 236, 34, 56
_PANEL_WIDTH, _PANEL_HEIGHT, _GAP, _COLUMNS = 306, 236, 14, 3
_MOST_NAME = 24
_ROW = 18
"""Pixels between names."""
_LABEL = 39
"""Pixels that a size's label needs."""
_ROOMY = 60
"""Pixels of a factor of ten from which 2 and 5 are labelled, too."""
_DASHES = ("none", "7 3", "2 3", "10 3 2 3")
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; } .strong { font-weight: 600; }
  .right { text-anchor: end; } .middle { text-anchor: middle; } .page { fill: #fbfbfa; stroke: #999; }
  .grid { stroke: #dededb; } .axis { stroke: #333; fill: none; } .bound { fill: url(#hatch); stroke: #999; }
  .floor { fill: #c9c9c5; } .edge { fill: none; stroke: #555; stroke-width: 2.5; }
  .line { fill: none; stroke: #111; stroke-width: 1.6; } .faint { fill: none; stroke: #b4b4b0; stroke-width: 1; }
  .likely { fill: none; stroke: #555; stroke-width: 1.4; stroke-dasharray: 5 3; } .mark { fill: #fbfbfa; stroke: #111; }
  .dot { fill: #111; } .spread { stroke: #111; } .lead { stroke: #999; stroke-width: 0.7; }
"""
_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#f1f1ee"/><path d="M0 0V6" stroke="#c4c4c0" stroke-width="2"/></pattern></defs>'
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size: bytes; median over launches and the launches' range, us."""

    size: int
    us: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm; `named` ones are drawn boldly, the others faintly."""

    name: str
    points: tuple[Point, ...]
    named: bool


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One arm beside its prediction.

    Attributes:
        title: whose.
        measured: what it took.
        predicted: likely time and bounds, over sizes around those measured.
    """

    title: str
    measured: tuple[Point, ...]
    predicted: tuple[Point, ...]


Floor = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where bytes and us lie, both on log scales, in a rectangle of pixels."""

    sizes: tuple[float, float]
    times: tuple[float, float]
    left: float
    top: float
    right: float
    bottom: float

    def x(self, size: float) -> float:
        """Pixels from the left."""
        return self.left + (self.right - self.left) * _share(size, self.sizes)

    def y(self, us: float) -> float:
        """Pixels from the top; never below the frame."""
        return min(self.bottom - (self.bottom - self.top) * _share(us, self.times), self.bottom)


def _share(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def measured_svg(lines: Sequence[Line], floor: Floor) -> str:
    """Every arm's latency against size.

    Args:
        lines: with a point each at least; the first is the baseline.
        floor: bytes and us below which no allreduce can come on that node; none where it is not known.
    """
    points = [point for line in lines for point in line.points]
    measured = sorted({point.size for point in points})
    sizes = _wide(measured[0], measured[-1])
    least = [us for size, us in floor if sizes[0] <= size <= sizes[1]]
    frame = _Frame(
        sizes=sizes,
        times=_rounded([*least, *(point.low for point in points)], [point.high for point in points]),
        left=_LEFT,
        top=_TOP,
        right=_WIDTH - _RIGHT,
        bottom=_HEIGHT - _BOTTOM,
    )
    named = [line for line in lines if line.named]
    key = "microseconds a call; bars: range over launches"
    if faint := len(lines) - len(named):
        key += f"; faint: {faint} more, in the table"
    parts = [
        *_floor(frame, floor),
        *_axes(frame, measured),
        *([_text(frame.right - 6, frame.bottom - 6, "physical floor", "right")] if floor else ()),
        *(_polyline(frame, line.points, "faint") for line in lines if not line.named),
        *(part for number, line in enumerate(named) for part in _line(frame, line, number)),
        *_names(frame, named),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "message size", "middle"),
        _text(_LEFT, _TOP - 12, key, ""),
    ]
    return _page("Measured latency of an allreduce against message size", _WIDTH, _HEIGHT, parts)


def panels_svg(panels: Sequence[Panel], floor: Floor) -> str:
    """Each arm in a panel of its own: measured, the predicted time with its bounds, the physical floor.

    Args:
        panels: at least one, with predictions at the same sizes.
        floor: at those sizes.
    """
    sizes = [point.size for point in panels[0].predicted]
    highs = [point.high for panel in panels for point in (*panel.measured, *panel.predicted)]
    lows = [point.low for panel in panels for point in (*panel.measured, *panel.predicted)]
    times = _rounded([*lows, *(us for _, us in floor)], highs)
    rows = math.ceil(len(panels) / _COLUMNS)
    parts: list[str] = []
    for number, panel in enumerate(panels):
        left, top = 16 + number % _COLUMNS * (_PANEL_WIDTH + _GAP), 16 + number // _COLUMNS * (_PANEL_HEIGHT + _GAP)
        frame = _Frame(
            sizes=(sizes[0], sizes[-1]),
            times=times,
            left=left + 48,
            top=top + 24,
            right=left + _PANEL_WIDTH,
            bottom=top + _PANEL_HEIGHT - 24,
        )
        parts += _panel(frame, panel, floor)
    height = 16 + rows * (_PANEL_HEIGHT + _GAP) + 16
    key = "us a call; dots: measured; dashed in hatched: predicted, with its bounds; grey: below the physical floor"
    parts.append(_text(16, height - 10, key, ""))
    return _page("Measured and predicted latency of an allreduce", _WIDTH + 24, height, parts)


def _page(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>{_HATCH}'
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>{"".join(parts)}</svg>\n'
    )


def _panel(frame: _Frame, panel: Panel, floor: Floor) -> Iterator[str]:
    over = [f"{frame.x(p.size):.1f} {frame.y(p.high):.1f}" for p in panel.predicted]
    under = [f"{frame.x(p.size):.1f} {frame.y(p.low):.1f}" for p in reversed(panel.predicted)]
    yield f'<path class="bound" d="M{"L".join([*over, *under])}Z"/>'
    yield from _floor(frame, floor)
    yield from _axes(frame, [point.size for point in panel.measured])
    yield _polyline(frame, panel.predicted, "likely")
    yield _polyline(frame, panel.measured, "line")
    for point in panel.measured:
        yield f'<circle class="dot" cx="{frame.x(point.size):.1f}" cy="{frame.y(point.us):.1f}" r="3.2"/>'
    yield _text(frame.left, frame.top - 8, panel.title[: _MOST_NAME + 14], "strong")


def _wide(least: float, most: float) -> tuple[float, float]:
    """A range with some room at both ends, and not empty."""
    room = max((most / least) ** 0.06, 1.15)
    return least / room, most * room


def _rounded(lows: Sequence[float], highs: Sequence[float]) -> tuple[float, float]:
    """The ticks around all values."""
    ticks = [_tick(number) for number in range(-20, 40)]
    least = max(tick for tick in ticks if tick <= max(min(lows), ticks[0]))
    most = min((tick for tick in ticks if tick >= max(highs)), default=max(highs))
    return least, max(most, 2 * least)


def _tick(number: int) -> float:
    """1, 2, 5, 10, 20, ... us, and below 1 alike."""
    return float((1, 2, 5)[number % 3] * 10.0 ** (number // 3))


def _axes(frame: _Frame, sizes: Sequence[int]) -> Iterator[str]:
    decade = (frame.bottom - frame.top) / math.log10(frame.times[1] / frame.times[0])
    roomy = decade > _ROOMY or frame.times[1] < 10 * frame.times[0]
    for tick in map(_tick, range(-20, 40)):
        if frame.times[0] * 0.999 <= tick <= frame.times[1] * 1.001:
            y = frame.y(tick)
            yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{frame.right:.1f}"/>'
            if roomy or math.log10(tick).is_integer():
                yield _text(frame.left - 6, y + 4, f"{tick:,g}", "right")
    free = -math.inf
    for size in sizes:
        x = frame.x(size)
        yield f'<path class="grid" d="M{x:.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>'
        if x - free > _LABEL:
            yield _text(x, frame.bottom + 17, _bytes(size), "middle")
            free = x
    yield f'<path class="axis" d="M{frame.left:.1f} {frame.top:.1f}V{frame.bottom:.1f}H{frame.right:.1f}"/>'


def _bytes(size: int) -> str:
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size % (1 << shift) == 0:
            return f"{size >> shift:,} {unit}"
    return f"{size:,} B"


def _floor(frame: _Frame, floor: Floor) -> Iterator[str]:
    inside = [(size, us) for size, us in floor if frame.sizes[0] <= size <= frame.sizes[1]]
    if len(inside) < 2:
        return
    points = " ".join(f"{frame.x(size):.1f},{frame.y(us):.1f}" for size, us in inside)
    first, last = frame.x(inside[0][0]), frame.x(inside[-1][0])
    yield f'<polygon class="floor" points="{first:.1f},{frame.bottom:.1f} {points} {last:.1f},{frame.bottom:.1f}"/>'
    yield f'<polyline class="edge" points="{points}"/>'


def _polyline(frame: _Frame, points: Sequence[Point], look: str, dash: str = "") -> str:
    drawn = " ".join(f"{frame.x(point.size):.1f},{frame.y(point.us):.1f}" for point in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline class="{look}"{dashed} points="{drawn}"/>'


def _line(frame: _Frame, line: Line, number: int) -> Iterator[str]:
    yield _polyline(frame, line.points, "line", _DASHES[number % len(_DASHES)])
    for point in line.points:
        x, y = frame.x(point.size), frame.y(point.us)
        yield f'<path class="spread" d="M{x:.1f} {frame.y(point.low):.1f}V{frame.y(point.high):.1f}"/>'
        yield _mark(x, y, number)


def _mark(x: float, y: float, number: int) -> str:
    """A mark of one of three forms, open or filled."""
    form = (
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
        f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
    )[number % 3]
    return f'<path class="{"dot" if number == 0 else "mark"}" d="{form}"/>'


def _names(frame: _Frame, named: Sequence[Line]) -> Iterator[str]:
    """Each line's name and look at its right end, moved apart where they would overlap, and kept in the frame."""
    ordered = sorted((frame.y(line.points[-1].us), number, line) for number, line in enumerate(named))
    free = -math.inf
    places = [free := max(at, free + _ROW) for at, _, _ in ordered]
    free = frame.bottom + _ROW
    places = [free := min(place, free - _ROW) for place in reversed(places)][::-1]
    for (at, number, line), y in zip(ordered, places, strict=True):
        yield f'<path class="lead" d="M{frame.right:.1f} {at:.1f}L{frame.right + 16:.1f} {y:.1f}"/>'
        dash = _DASHES[number % len(_DASHES)]
        yield f'<path class="line" stroke-dasharray="{dash}" d="M{frame.right + 18:.1f} {y:.1f}h34"/>'
        yield _mark(frame.right + 35, y, number)
        yield _text(frame.right + 58, y + 4, line.name[:_MOST_NAME], "strong" if number == 0 else "")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
