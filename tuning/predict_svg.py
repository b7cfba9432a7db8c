"""A prediction as a picture: latency against size, both on log scales; one self-contained SVG, no script.

Families differ by dash and mark, not by colour, and are named where their lines end, so it reads in greyscale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from xml.sax.saxutils import escape

from tuning.predict import Predicted, Prediction
from tuning.predict_view import about, headline

_WIDTH, _HEIGHT = 1040, 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 275, 90, 60
_LINE = 15
_LETTERS = 130
"""What fits into a line."""
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; } .head { font-size: 15px; font-weight: 600; }
  .right { text-anchor: end; } .middle { text-anchor: middle; } rect { fill: #fbfbfa; stroke: #999; }
  .grid { stroke: #d8d8d5; } .asked { stroke: #888; stroke-dasharray: 1 4; } .floor { fill: #d4d4d0; stroke: none; }
  polyline { fill: none; stroke: #222; stroke-width: 1.5; } .edge { stroke: #555; stroke-width: 2.5; }
  .bound, .mark { stroke: #222; fill: none; } .mark { fill: #fbfbfa; } .lead { stroke: #999; stroke-width: 0.7; }
"""
_DASHES = ("none", "7 3", "2 3", "10 3 2 3")
_MARKS: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
    lambda x, y: f"M{x:.1f} {y - 5:.1f}l5 9h-10z",
    lambda x, y: f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
)


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """From bytes and us to pixels."""

    sizes: tuple[int, int]
    times: tuple[float, float]

    def x(self, size: float) -> float:
        """Pixels from the left."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(size, *self.sizes)

    def y(self, us: float) -> float:
        """Pixels from the top."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _share(us, *self.times)


def _share(value: float, least: float, most: float) -> float:
    return math.log(value / least) / math.log(most / least)


def svg(prediction: Prediction, marked: Sequence[int]) -> str:
    """The picture: a line a family that can start, the floor below, and bounds at some sizes.

    Args:
        prediction: of at least two sizes.
        marked: sizes that get bounds and marks; those that the prediction lacks are left out.
    """
    shown = [predicted for predicted in prediction.families if predicted.estimates]
    floor = [(size, prediction.floor.time_us(size)) for size in prediction.sizes]
    times = [us for _, us in floor]
    times += [e.high if e.size in marked else e.us for p in shown for e in p.estimates]
    scale = _Scale(
        sizes=(prediction.sizes[0], prediction.sizes[-1]),
        times=(10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times)))),
    )
    below = [line for text in _remarks(prediction) for line in wrap(text, _LETTERS)]
    height = _HEIGHT + _LINE * (len(below) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        f"<title>{escape(headline(prediction))}</title><style>{_STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(_LEFT, 28, f"Predicted allreduce on {prediction.topology[: _LETTERS // 2]}", "head"),
        _text(_LEFT, 48, f"{about(prediction)}; whiskers: bounds; grey: below what the wires allow", ""),
        *_grid(scale, marked),
        *_floor(scale, floor),
        *(part for number, predicted in enumerate(shown) for part in _family(scale, predicted, number, marked)),
        *_labels(scale, shown),
        *(_text(_LEFT, _HEIGHT + _LINE * number, line, "") for number, line in enumerate(below)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _remarks(prediction: Prediction) -> Iterator[str]:
    yield from (f"cannot start: {p.family.title}: {p.start.says}" for p in prediction.families if p.start.able is False)
    yield from prediction.notes


def _grid(scale: _Scale, marked: Sequence[int]) -> Iterator[str]:
    (least, most), bottom = scale.times, _HEIGHT - _BOTTOM
    for power in range(round(math.log10(least)), round(math.log10(most)) + 1):
        y = scale.y(10.0**power)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 6, y + 4, f"{10.0**power:g} us", "right")
    first, last = (math.log2(size) for size in scale.sizes)
    step = max(1, math.ceil((last - first) / 9))
    for size in (size for size in marked if scale.sizes[0] <= size <= scale.sizes[1]):
        yield f'<line class="asked" x1="{scale.x(size):.1f}" y1="{_TOP}" x2="{scale.x(size):.1f}" y2="{bottom}"/>'
        yield _text(scale.x(size), _TOP - 6, f"{size:,} B", "middle")
    for power in range(math.ceil(first), math.floor(last) + 1, step):
        x = scale.x(1 << power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"/>'
        yield _text(x, _HEIGHT - _BOTTOM + 18, _binary(1 << power), "middle")


def _binary(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _floor(scale: _Scale, floor: Sequence[tuple[int, float]]) -> Iterator[str]:
    points = " ".join(f"{scale.x(size):.1f},{scale.y(us):.1f}" for size, us in floor)
    bottom = _HEIGHT - _BOTTOM
    yield f'<polygon class="floor" points="{_LEFT},{bottom} {points} {scale.x(floor[-1][0]):.1f},{bottom}"/>'
    yield f'<polyline class="edge" points="{points}"/>'
    yield _text(_WIDTH - _RIGHT - 8, bottom - 8, "physical floor", "right")


def _family(scale: _Scale, predicted: Predicted, number: int, marked: Sequence[int]) -> Iterator[str]:
    points = " ".join(f"{scale.x(e.size):.1f},{scale.y(e.us):.1f}" for e in predicted.estimates)
    dash = _DASHES[number % len(_DASHES)]
    title = f"<title>{escape(predicted.family.title)}</title>"
    yield f'<polyline stroke-dasharray="{dash}" points="{points}">{title}</polyline>'
    for estimate in predicted.estimates:
        if estimate.size in marked:
            x = scale.x(estimate.size) + 3 * (number - 5.5)  # beside each other, not over each other
            yield f'<path class="bound" d="M{x:.1f} {scale.y(estimate.low):.1f}V{scale.y(estimate.high):.1f}"/>'
            yield f'<path class="mark" d="{_mark(number)(x, scale.y(estimate.us))}"/>'


def _mark(number: int) -> Callable[[float, float], str]:
    return _MARKS[number // len(_DASHES) % len(_MARKS)]


def _labels(scale: _Scale, shown: Sequence[Predicted]) -> Iterator[str]:
    """Each line's name beside its end, pushed down where another stands there; marks as in the picture."""
    end = _WIDTH - _RIGHT
    number_of = {predicted.family.name: number for number, predicted in enumerate(shown)}
    free = 0.0
    for predicted in sorted(shown, key=lambda p: -p.estimates[-1].us):
        number = number_of[predicted.family.name]
        at = scale.y(predicted.estimates[-1].us)
        y = free = max(at, free + _LINE)
        yield f'<path class="lead" d="M{end} {at:.1f}L{end + 18} {y:.1f}"/>'
        points, dash = f"{end + 20},{y:.1f} {end + 54},{y:.1f}", _DASHES[number % len(_DASHES)]
        yield f'<polyline stroke-dasharray="{dash}" points="{points}"/>'
        yield f'<path class="mark" d="{_mark(number)(end + 37, y)}"/>'
        yield _text(end + 60, y + 4, predicted.family.title + ("" if predicted.validated else " *"), "")
    yield _text(end + 20, _HEIGHT - _BOTTOM + 18, "* unvalidated", "")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
