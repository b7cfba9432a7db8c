"""Shows an NCCL plan: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.nccl_cost import Cell, CostModel
from tuning.nccl_graph import Graph
from tuning.nccl_lint import Remark
from tuning.nccl_plan import NcclOutcome, NcclPlan, changes
from tuning.nccl_reading import reading
from tuning.nccl_transport import PairTransport
from tuning.predict_view import FirstFit
from tuning.workload import short

_MOST_CHANGES = 4
_TOGETHER = 3
"""Cells beside each other where all do not fit: with 80 columns these do."""
_CHANGES = (100, 60, 30)
"""Columns of what changes: as many as the console is wide enough for."""
_PRICES = "What NCCL takes, and its prices in us (in brackets: what it may not take)"


def show(plan: NcclPlan) -> RenderableType:
    """The whole plan as text and tables."""
    parts: list[RenderableType] = [_headline(plan), "", *map(Text, reading(plan)), ""]
    if plan.base.model:
        parts += [Text(_PRICES, style="bold"), _prices(plan, plan.base.model), _crossovers(plan.base.model), ""]
        parts += [*_transports(plan), ""]
    if plan.alternatives:
        parts += [_alternatives(plan), ""]
    if plan.repair:
        parts.append(Text("A graph file repairs the search: --graph-file PATH writes it, for NCCL_GRAPH_FILE."))
    if plan.remarks:
        parts.append(Text(show_remarks(plan.remarks)))
    parts += [Text(f"- {note}", style="dim") for note in plan.notes]
    return Group(*parts)


def show_remarks(remarks: Sequence[Remark]) -> str:
    """A line for each remark; "" for none."""
    return "\n".join(f"{r.name} is {short(r.value)}: {r.gravity}: {r.says}" for r in remarks)


def remarks_document(remarks: Sequence[Remark]) -> list[dict[str, Any]]:
    """Remarks as JSON values."""
    return [{**vars(remark), "gravity": str(remark.gravity)} for remark in remarks]


def _headline(plan: NcclPlan) -> Text:
    base = plan.base
    text = Text(f"NCCL {plan.nccl} on {plan.topology.name}, {len(plan.topology.gpus)} GPUs: ")
    text.append(f"search {base.search.status}", style="bold red" if base.failed else "bold green")
    if base.search.reason:
        text.append(f", {base.search.reason}")
    if base.search.ring and base.search.tree:
        text.append(f"; ring {base.search.ring}, tree {base.search.tree} (channels x GB/s, farthest path)")
    return text


def _table(*headings: str) -> Table:
    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        view.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return view


def _prices(plan: NcclPlan, model: CostModel) -> FirstFit:
    """A line a size: what NCCL takes, and its price in us of every cell; what it may not take in brackets."""
    cells = model.cells
    apart = [_prices_of(plan, cells[first : first + _TOGETHER]) for first in range(0, len(cells), _TOGETHER)]
    return FirstFit(layouts=(_prices_of(plan, cells), Group(*apart)))


def _prices_of(plan: NcclPlan, cells: Sequence[Cell]) -> Table:
    view = _table("bytes", "NCCL takes", "channels", *map(str, cells))
    for size, choice in zip(plan.sizes, plan.base.choices, strict=True):
        prices = [_price(cell.time_us(size), barred=bool(cell.barred)) for cell in cells]
        view.add_row(f"{size:,}", str(choice.cell) if choice else "-", str(choice.channels) if choice else "-", *prices)
    return view


def _price(time_us: float, *, barred: bool) -> str:
    shown = f"{time_us:,.1f}" if time_us < 10_000 else f"{time_us:,.0f}"
    return f"({shown})" if barred else shown


def _crossovers(model: CostModel) -> Text:
    (first, *rest) = model.crossovers() or ((0, "nothing: every cell is barred"),)
    return Text("; ".join([f"small messages: {first[1]}", *(f"from {size:,} B: {cell}" for size, cell in rest)]))


def _transports(plan: NcclPlan) -> list[RenderableType]:
    def reason(pair: PairTransport) -> tuple[bool, str]:
        return pair.p2p, pair.why

    lines: list[RenderableType] = []
    for (p2p, why), pairs in groupby(sorted(plan.base.transports, key=reason), key=reason):
        how = "P2P" if p2p else "through host memory (SHM)"
        number = len(list(pairs))
        lines.append(Text(f"{number} {'pair' if number == 1 else 'pairs'} {how}: {why}"))
    return lines


def _alternatives(plan: NcclPlan) -> FirstFit:
    return FirstFit(layouts=tuple(_alternatives_in(plan, columns) for columns in _CHANGES))


def _alternatives_in(plan: NcclPlan, columns: int) -> Table:
    view = _table("instead", "ring", "tree")
    view.add_column("what changes", max_width=columns)
    for outcome in plan.alternatives:
        said = list(changes(plan.base, outcome)) or ["nothing"]
        if outcome.search.reason:
            said.insert(0, outcome.search.reason)
        more = [f"and {len(said) - _MOST_CHANGES} more"] if len(said) > _MOST_CHANGES else []
        ring, tree = (str(graph or "-") for graph in (outcome.search.ring, outcome.search.tree))
        view.add_row(outcome.label, ring, tree, "; ".join([*said[:_MOST_CHANGES], *more]))
    return view


def document(plan: NcclPlan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "predicted": True,
        "topology": plan.topology.name,
        "gpus": len(plan.topology.gpus),
        "nccl": plan.nccl,
        "base": _outcome(plan.base),
        "alternatives": [
            {**_outcome(outcome), "changes": list(changes(plan.base, outcome))} for outcome in plan.alternatives
        ],
        "repair": plan.repair,
        "reading": list(reading(plan)),
        "remarks": remarks_document(plan.remarks),
        "notes": list(plan.notes),
    }


def _outcome(outcome: NcclOutcome) -> dict[str, Any]:
    search = outcome.search
    crossovers = outcome.model.crossovers() if outcome.model else ()
    return {
        "label": outcome.label,
        "settings": dict(outcome.settings),
        "release": search.release,
        "search": str(search.status),
        "reason": search.reason,
        "failed": outcome.failed,
        "ring": _graph(search.ring),
        "tree": _graph(search.tree),
        "warnings": list(search.warnings),
        "sizes": [
            {
                "bytes": choice.size,
                "algorithm": choice.cell.algorithm,
                "protocol": choice.cell.protocol,
                "channels": choice.channels,
                "price_us": round(choice.time_us, 3),
            }
            for choice in outcome.choices
            if choice
        ],
        "crossovers": [{"from_bytes": size, "takes": str(cell)} for size, cell in crossovers],
        "transports": [
            {"gpus": list(pair.gpus), "path": pair.path, "transport": "P2P" if pair.p2p else "SHM", "why": pair.why}
            for pair in outcome.transports
        ],
    }


def _graph(graph: Graph | None) -> dict[str, Any] | None:
    if graph is None:
        return None
    return {
        "channels": len(graph.channels),
        "gb_per_s": graph.gb_s,
        "type": graph.type,
        "failed": graph.failed,
        "orders": [list(channel) for channel in graph.channels],
    }
