"""A topology as a picture: one self-contained SVG, no script, readable in greyscale and on dark and light pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from xml.sax.saxutils import escape

from tuning.topology import Topology
from tuning.topology_nodes import Cpu, Device, Gpu, HostBridge, Nic, Node, Switch
from tuning.topology_text import between, details, facts, headline, island_names, link_label, marks, title

_COLUMN, _ROW = 152, 124
_BOX_WIDTH, _BOX_HEIGHT = 132, 58
_MARGIN, _TOP = 32, 112
_LINE = 17
_BEND = 54
"""Pixels above a box where its link turns off: room for its labels below that."""
_LETTER = 6.5
"""Width of a letter, roughly, in pixels."""
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a; text-anchor: middle; }
  .left { text-anchor: start; } .head { font-size: 15px; font-weight: 600; } .name { font-weight: 600; }
  .small { font: 10.5px ui-monospace, monospace; }
  .label { font-size: 11px; paint-order: stroke; stroke: #fbfbfa; stroke-width: 4px; stroke-linejoin: round; }
  .alarm { font-weight: 700; }
  rect { stroke: #333; stroke-width: 1.4; fill: #fbfbfa; }
  .page { stroke: #999; } .cpu { fill: #dcdcda; stroke-width: 2.4; } .bridge { stroke-dasharray: 1 2; }
  .switch { fill: url(#hatch); } .gpu { fill: #fff; stroke-width: 2.4; } .nic { fill: url(#dots); }
  .island { fill: none; stroke: #555; stroke-dasharray: 7 4; }
  path, line { fill: none; stroke: #333; stroke-width: 2; } .inside { stroke-width: 1; }
  .unknown { stroke-dasharray: 2 3; }
  .degraded { stroke-width: 4.5; stroke-dasharray: 9 5; } .sockets { stroke-width: 5; stroke: #777; }
"""
_PATTERNS = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" style="fill:#f2f2f0;stroke:none"/><path d="M0 0V7" style="stroke:#c9c9c5"/>'
    '</pattern><pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" style="fill:#f7f7f5;stroke:none"/><circle cx="3" cy="3" r="1" fill="#cfcfca"/>'
    "</pattern></defs>"
)
_LEGEND = (
    "thick box: GPU · hatched: switch · dots: NIC · grey: CPU · thin line: inside a CPU · dotted line: link not known",
    "thick dashed line: link below what both ends can do · dashed frame: island, GPUs that need no CPU between them",
)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a node stands: the middle of its box, and the half of its width, in pixels."""

    x: float
    y: float
    half: float = _BOX_WIDTH / 2


def svg(topology: Topology) -> str:
    """The picture: the tree with link rates, islands, what is degraded, what is known beside it, and what is not."""
    places = _places(topology)
    rows = max(place.y for place in places.values()) + _BOX_HEIGHT
    width = max(max(place.x + place.half for place in places.values()) + _MARGIN, 760)
    columns = int((width - _MARGIN) / _LETTER)
    below = [line for text in _remarks(topology) for line in wrap(text, columns)]
    height = rows + 2 * _MARGIN + _LINE * len(below)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
        f"<title>{escape(headline(topology))}</title>",
        f"<style>{_STYLE}</style>{_PATTERNS}",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="6"/>',
        _text(_MARGIN, 30, _shortened(headline(topology), width - 3 * _MARGIN), "left head"),
        _text(_MARGIN, 50, _shortened(f"from {topology.source}", width - 2 * _MARGIN), "left"),
        *_islands(topology, places),
        *_edges(topology, places),
        *_sockets(topology, places),
        *(_box(node, places[node.id]) for node in topology.nodes),
        *(_text(_MARGIN, rows + _MARGIN + _LINE * number, line, "left") for number, line in enumerate(below)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _remarks(topology: Topology) -> Iterator[str]:
    yield from _LEGEND
    yield from facts(topology)
    yield from (f"not known: {text}" for text in topology.unknown)


def _places(topology: Topology) -> Mapping[str, _Place]:
    """Leaves side by side in columns, what is above them in their middle; a CPU as wide as all that is below it."""
    places: dict[str, _Place] = {}
    column = 0

    def put(node: Node, level: int) -> tuple[float, float]:
        """Place a node and all below it; the first and last column that they take."""
        nonlocal column
        spans = [put(child, level + 1) for child in topology.children(node)]
        if not spans:
            spans = [(column, column)]
            column += 1
        first, last = spans[0][0], spans[-1][1]
        half = (last - first) * _COLUMN / 2 + _BOX_WIDTH / 2 if isinstance(node, Cpu) else _BOX_WIDTH / 2
        x = _MARGIN + _BOX_WIDTH / 2 + (first + last) / 2 * _COLUMN
        places[node.id] = _Place(x=x, y=_TOP + level * _ROW, half=half)
        return first, last

    for cpu in topology.cpus:
        put(cpu, 0)
    return places


def _box(node: Node, place: _Place) -> str:
    kinds = ((Cpu, "cpu"), (HostBridge, "bridge"), (Switch, "switch"), (Gpu, "gpu"), (Nic, "nic"))
    kind = next((name for type_, name in kinds if isinstance(node, type_)), "device")
    x, y = place.x - place.half, place.y - _BOX_HEIGHT / 2
    words = [" ".join(details(node))] if isinstance(node, Cpu) else details(node)
    lines = [title(node), *(_shortened(text, 2 * place.half) for text in words)]
    first = place.y + 4 - 7.5 * (len(lines) - 1)
    texts = (
        _text(place.x, first + 15 * number, text, "small" if number else "name") for number, text in enumerate(lines)
    )
    return (
        f"<g><title>{escape(' '.join((title(node), *details(node))))}</title>"
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{2 * place.half:g}" height="{_BOX_HEIGHT}" rx="4"/>'
        f"{''.join(texts)}</g>"
    )


def _shortened(text: str, width: float) -> str:
    """As much of a text as fits into so many pixels."""
    most = int(width / _LETTER)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _edges(topology: Topology, places: Mapping[str, _Place]) -> Iterator[str]:
    for node in topology.nodes:
        if not node.parent:
            continue
        low, high = places[node.id], places[node.parent]
        top, bend, bottom = high.y + _BOX_HEIGHT / 2, low.y - _BOX_HEIGHT / 2 - _BEND, low.y - _BOX_HEIGHT / 2
        start = low.x if abs(low.x - high.x) < high.half and isinstance(topology.by_id[node.parent], Cpu) else high.x
        yield f'<path class="{_edge_kind(node)}" d="M{start:g} {top:g}V{bend:g}H{low.x:g}V{bottom:g}"/>'
        if isinstance(node, Device):
            yield from _link_labels(node, low)


def _edge_kind(node: Node) -> str:
    if not isinstance(node, Device):
        return "inside"
    if node.degraded:
        return "degraded"
    return "unknown" if node.link.generation is None and node.link.width is None else "link"


def _link_labels(device: Device, low: _Place) -> Iterator[str]:
    """The link's rate close above the device, and over it what deserves attention."""
    above = low.y - _BOX_HEIGHT / 2
    yield _text(low.x, above - 10, link_label(device), "label")
    for number, mark in enumerate(marks(device), start=1):
        yield _text(low.x, above - 10 - 14 * number, mark, "label alarm")


def _sockets(topology: Topology, places: Mapping[str, _Place]) -> Iterator[str]:
    """What joins the CPUs, drawn between neighbours; what is known of it as a label over it."""
    for left, right in pairwise(topology.cpus):
        x1, x2 = places[left.id].x + places[left.id].half, places[right.id].x - places[right.id].half
        yield f'<line class="sockets" x1="{x1:g}" y1="{_TOP}" x2="{x2:g}" y2="{_TOP}"/>'
        for link in topology.socket_links:
            if set(link.cpus) == {left.id, right.id}:
                yield _text((x1 + x2) / 2, _TOP - _BOX_HEIGHT / 2 - 4, between(link), "label")


def _islands(topology: Topology, places: Mapping[str, _Place]) -> Iterator[str]:
    """A frame around each island that has a switch, with its name."""
    for name, gpus in island_names(topology).items():
        switches = [node for node in topology.chain(gpus[0]) if isinstance(node, Switch)]
        if not switches:
            continue
        inside = [places[node.id] for node in topology.nodes if switches[-1] in topology.chain(node)]
        left, right = min(p.x - p.half for p in inside) - 7, max(p.x + p.half for p in inside) + 7
        top, bottom = min(p.y for p in inside) - _BOX_HEIGHT / 2 - 6, max(p.y for p in inside) + _BOX_HEIGHT / 2 + 7
        yield (
            f'<rect class="island" x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" rx="9"/>'
        )
        yield _text(left + 8, top + 15, f"island {name}", "left label")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
