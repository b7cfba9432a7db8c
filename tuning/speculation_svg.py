"""Tokens per second against accept length as a picture: one self-contained SVG, no script, readable in greyscale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from tuning.identify import Known
from tuning.speculation_model import Span
from tuning.speculation_table import Slice, rates_at
from tuning.speculation_view import span_text

STEPS = 49
"""Accept lengths at which the picture wants the feasible set."""
HEALTHY_US = 20.0
"""Allreduce latency of the second band: 8-GPU hosts in order have 17 to 31 us at 42 KiB over NCCL."""
_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 104, 56
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; }
  .head { font-size: 15px; font-weight: 600; } .middle { text-anchor: middle; } .end { text-anchor: end; }
  .name { font-weight: 600; } .page { fill: #fbfbfa; stroke: #999; }
  .axis { stroke: #333; stroke-width: 1.2; fill: none; } .grid { stroke: #ddd; }
  .here { fill: #8a8a86; fill-opacity: 0.6; stroke: #222; stroke-width: 2; }
  .healthy { fill: none; stroke: #222; stroke-width: 1.8; stroke-dasharray: 8 4; }
  .base { fill: url(#hatch); stroke: #333; } .even { stroke: #222; stroke-dasharray: 2 3; }
"""
_HATCH = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="#f4f4f2"/><path d="M0 0V7" stroke="#b5b5b0" stroke-width="2"/></pattern></defs>'
)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where accept lengths up to `k` + 1 and rates up to `top` lie in the picture."""

    k: int
    top: float

    def x(self, tau: float) -> float:
        """Pixels from the left."""
        return _LEFT + (tau - 1) / self.k * (_WIDTH - _LEFT - _RIGHT)

    def y(self, rate: float) -> float:
        """Pixels from the top."""
        return _HEIGHT - _BOTTOM - rate / self.top * (_HEIGHT - _TOP - _BOTTOM)


def svg(known: Known, cut: Sequence[Slice]) -> str:
    """The picture: what may be reached as it is, and with healthy allreduces; the baseline; the break-even.

    Args:
        known: what was given.
        cut: the feasible set at several accept lengths; the bands reach over those.
    """
    here, healthy = ([rates_at(known, one, us) for one in cut] for us in (None, HEALTHY_US))
    frame = _Frame(k=known.k, top=1.08 * max(known.baseline.high, *(span.high for span in (*here, *healthy))))
    head = f"Speculation with {known.k} drafts: tokens per second against accept length (predicted)"
    rows = f"allreduce of {known.k + 1} rows"
    hatched = f"hatched: without speculation, {span_text(known.baseline, 1)} tokens per second"
    notes = (
        f"areas: all values that agree with what was measured; {hatched}",
        f"dashed: if each {rows} took {HEALTHY_US:g} us; {_in_words(known, cut, here)}",
    )
    ends = ((here[-1], "as it is"), (healthy[-1], f"at {HEALTHY_US:g} us"))
    parts = [
        *_axes(frame),
        _baseline(frame, known.baseline),
        _band(frame, cut, here, "here"),
        _band(frame, cut, healthy, "healthy"),
        *_even(frame, known, break_even(known, cut, here)),
        *_names(frame, ends),
        *(f'<text x="{_LEFT}" y="{48 + 17 * row}">{escape(note)}</text>' for row, note in enumerate(notes)),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f"<title>{escape(head)}</title><style>{_STYLE}</style>{_HATCH}"
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>'
        f'<text class="head" x="{_LEFT}" y="28">{escape(head)}</text>{"".join(parts)}</svg>\n'
    )


def break_even(known: Known, cut: Sequence[Slice], band: Sequence[Span]) -> Span | None:
    """Accept lengths at which a band may first, and must at last, reach the baseline; None where it never does both."""
    first = _crossing([(one.tau, span.high - known.baseline.low) for one, span in zip(cut, band, strict=True)])
    last = _crossing([(one.tau, span.low - known.baseline.high) for one, span in zip(cut, band, strict=True)])
    return None if first is None or last is None else Span(low=first, high=last)


def _crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Where a line through points rises through 0."""
    for (x1, y1), (x2, y2) in pairwise(points):
        if y1 < 0 <= y2:
            return x1 + (x2 - x1) * -y1 / (y2 - y1)
    return None


def _in_words(known: Known, cut: Sequence[Slice], here: Sequence[Span]) -> str:
    """The break-even: as an accept length, or where the step was measured, as a multiple of the unknown true one."""
    if known.speculating is not None:
        ratio = Span(low=known.baseline.low / known.speculating.high, high=known.baseline.high / known.speculating.low)
        return f"as it is, the break-even accept length is {span_text(ratio, 2)} times the true one"
    even = break_even(known, cut, here)
    return "as it is, it does not break even for certain" if even is None else f"break-even {span_text(even, 2)}"


def _axes(frame: _Frame) -> list[str]:
    step = next(size for size in (5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 10**6, 10**9) if frame.top / size <= 10)
    made = []
    for rate in range(0, int(frame.top) + 1, step):
        y = frame.y(rate)
        made.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        made.append(f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{rate}</text>')
    made += [
        f'<text class="middle" x="{frame.x(tau):.1f}" y="{_HEIGHT - _BOTTOM + 20}">{tau}</text>'
        for tau in range(1, frame.k + 2)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    return [
        *made,
        f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>',
        f'<text class="middle" x="{middle:g}" y="{_HEIGHT - 14}">accept length, tokens a step</text>',
        f'<text x="12" y="{_TOP - 14}">tokens per second</text>',
    ]


def _baseline(frame: _Frame, baseline: Span) -> str:
    y = frame.y(baseline.high)
    height = max(frame.y(baseline.low) - y, 4.0)
    return f'<rect class="base" x="{_LEFT}" y="{y:.1f}" width="{_WIDTH - _LEFT - _RIGHT}" height="{height:.1f}"/>'


def _band(frame: _Frame, cut: Sequence[Slice], band: Sequence[Span], look: str) -> str:
    over = [f"{frame.x(one.tau):.1f} {frame.y(span.high):.1f}" for one, span in zip(cut, band, strict=True)]
    under = [f"{frame.x(one.tau):.1f} {frame.y(span.low):.1f}" for one, span in zip(cut, band, strict=True)]
    return f'<path class="{look}" d="M{"L".join([*over, *reversed(under)])}Z"/>'


def _even(frame: _Frame, known: Known, even: Span | None) -> list[str]:
    """Two lines down to the axis where the host as it is may, and must, break even."""
    if even is None:
        return []
    y, foot = frame.y(known.baseline.low), _HEIGHT - _BOTTOM
    lines = [f'<path class="even" d="M{frame.x(tau):.1f} {y:.1f}V{foot}"/>' for tau in (even.low, even.high)]
    middle = frame.x((even.low + even.high) / 2)
    return [*lines, f'<text class="middle" x="{middle:.1f}" y="{foot - 8}">break-even {span_text(even, 2)}</text>']


def _names(frame: _Frame, ends: Sequence[tuple[Span, str]]) -> list[str]:
    """The bands' names at their right ends, moved apart where they would overlap."""
    made, least = [], 0.0
    for wanted, name in sorted((frame.y((span.low + span.high) / 2), name) for span, name in ends):
        y = max(wanted, least)
        least = y + 16
        made.append(f'<text class="name" x="{_WIDTH - _RIGHT + 8}" y="{y + 4:.1f}">{escape(name)}</text>')
    return made
