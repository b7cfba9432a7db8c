"""Shows an image that was built and checked: text for people, a document for programs. It computes nothing."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images import audit_view
from images.build_plan import BuildPlan
from images.image_checks import Checked
from lanewise.talk import printable


def show(plan: BuildPlan, checked: Checked) -> RenderableType:
    """Name, id and size; what the audit says; what leaving out saved; what its user should know."""
    parts: list[RenderableType] = [
        Text(printable(f"{plan.tag}  {checked.image}  {checked.size / 1e9:.2f} GB"), style="bold"),
        audit_view.headline(checked.audit),
    ]
    if checked.saved:
        parts += ["", _saved(checked)]
    return Group(*parts, *(Text(printable(f"remark: {remark}")) for remark in checked.remarks))


def _saved(checked: Checked) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("left out", overflow="fold")
    table.add_column("files", justify="right")
    table.add_column("MB", justify="right")
    table.add_column("why", overflow="fold")
    for row in checked.saved:
        files = f"{row.files:,}" if row.files else "none there"
        table.add_row(Text(printable(row.pattern)), files, f"{row.bytes / 1e6:,.1f}", Text(printable(row.why)))
    total = sum(row.bytes for row in checked.saved)
    table.add_row("together", f"{sum(row.files for row in checked.saved):,}", f"{total / 1e6:,.1f}", "", style="bold")
    return table


def document(plan: BuildPlan, checked: Checked) -> dict[str, Any]:
    """The same as JSON can hold; sizes in bytes."""
    return {
        "tag": plan.tag,
        "image": checked.image,
        "plan": plan.key,
        "bytes": checked.size,
        "left_out": [{"pattern": s.pattern, "why": s.why, "files": s.files, "bytes": s.bytes} for s in checked.saved],
        "remarks": list(checked.remarks),
        "audit": audit_view.document(checked.audit),
    }
