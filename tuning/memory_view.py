"""Shows what a model needs on each GPU: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuning.memory_model import GIB, Budget, Verdict
from tuning.model_parts import Gpu


def show(budget: Budget, gpu: Gpu, where: str) -> RenderableType:
    """The budget for people. `where`: what the sizes were read from."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("GiB on each GPU, predicted", no_wrap=True)
    for heading in ("least", "reserved"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how")
    for line in budget.lines:
        table.add_row(line.name, _gib(line.least), _gib(line.reserved), line.why)
    table.add_row("sum", _gib(budget.least), _gib(budget.reserved), "", style="bold")
    table.add_row("GPU", _gib(budget.capacity), _gib(budget.capacity), gpu.name)
    styles = {Verdict.FITS: "bold green", Verdict.BELOW_RESERVE: "bold red", Verdict.DOES_NOT_FIT: "bold red"}
    return Group(
        Text.assemble("predicted: ", (str(budget.verdict), styles[budget.verdict]), f"; {_because(budget)}"),
        Text(""),
        table,
        Text(f"\nsizes from {where}\n\nAssumed", style=""),
        Text("\n".join(f"- {told}" for told in budget.assumptions)),
    )


def _because(budget: Budget) -> str:
    match budget.verdict:
        case Verdict.FITS:
            return f"room for {budget.more_tokens:,} more tokens in the KV cache of each GPU"
        case Verdict.BELOW_RESERVE:
            missing, room = _gib(budget.reserved - budget.capacity), _gib(budget.capacity - budget.least)
            return (
                f"{missing} GiB are missing. Beyond the least there are {room} GiB for CUDA graphs, larger prefill "
                "chunks and more requests: with less reserved it starts, and dies when they need more"
            )
        case Verdict.DOES_NOT_FIT:
            return f"even the least is {_gib(budget.least - budget.capacity)} GiB too much"


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"


def document(budget: Budget, gpu: Gpu, where: str) -> dict[str, Any]:
    """The budget for programs; sizes in bytes on each GPU."""
    return {
        "kind": "predicted",
        "verdict": str(budget.verdict),
        "fits": budget.verdict is Verdict.FITS,
        "gpu": gpu.name,
        "capacity": round(budget.capacity),
        "least": round(budget.least),
        "reserved": round(budget.reserved),
        "kv_bytes_a_token": round(budget.token_bytes),
        "more_tokens": budget.more_tokens,
        "lines": [
            {"name": line.name, "least": round(line.least), "reserved": round(line.reserved), "why": line.why}
            for line in budget.lines
        ],
        "sizes_from": where,
        "assumptions": list(budget.assumptions),
    }
