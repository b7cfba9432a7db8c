"""Shows what a build came to: image, audit, what was rebuilt, what leaving out saved. It computes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images import audit_view
from images.build import Built
from images.image_checks import Saved
from images.wheelhouse import BuiltComponent

_SHORT = 19
"""Characters of an image id: sha256: and twelve digits, as `docker image ls` shows them."""


def show(built: Built) -> RenderableType:
    """One line for an image that stood already; else everything that a person wants to see of a new one."""
    plan, checked = built.plan, built.checked
    if checked is None:
        return Text(f"{plan.tag} stands already: {built.image[:_SHORT]}, plan {plan.key[:12]}; nothing was done")
    head = f"{plan.tag} is built: {built.image[:_SHORT]}, {checked.size / 1e9:.2f} GB, {built.seconds:,.0f} s"
    lines: list[RenderableType] = [Text(head, style="bold"), audit_view.show(checked.audit)]
    if built.components:
        lines += [Text("\nrebuilt:"), _components(list(built.components.values()))]
    if checked.saved:
        lines += [Text("\nleft out, since nothing of it runs on SM120:"), _saved(checked.saved)]
    return Group(*lines, *(Text(f"remark: {remark}") for remark in checked.remarks))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("MB", "s") else "left")
    return table


def _components(components: list[BuiltComponent]) -> Table:
    table = _table("component", "version", "s", "MB", "device code before", "after")
    for one in components:
        size = sum(wheel.size for wheel in one.wheels) / 1e6
        took = "kept" if one.reused else f"{one.seconds:,.0f}"
        before, after = (_archs(summary) for summary in (one.before, one.after))
        table.add_row(one.name, one.version, took, f"{size:,.1f}", before, after)
    return table


def _archs(summary: Any) -> str:  # noqa: ANN401 - a mapping as builder.audit_summary makes it, or None
    if summary is None:
        return "-"
    return ", ".join(f"{target} x{count}" for target, count in summary["code"].items()) or "none"


def _saved(saved: tuple[Saved, ...]) -> Table:
    table = _table("what", "MB", "why")
    for row in sorted(saved, key=lambda row: -row.bytes):
        table.add_row(row.pattern, f"{row.bytes / 1e6:,.1f}", row.why)
    table.add_row("all", f"{sum(row.bytes for row in saved) / 1e6:,.1f}", "")
    return table


def document(built: Built) -> dict[str, Any]:
    """The same for a program."""
    checked = built.checked
    return {
        "tag": built.plan.tag,
        "image": built.image,
        "plan": built.plan.key,
        "seconds": round(built.seconds, 1),
        "built": checked is not None,
        "bytes": checked.size if checked else None,
        "audit": audit_view.document(checked.audit) if checked else None,
        "saved": [asdict(row) for row in checked.saved] if checked else [],
        "remarks": list(checked.remarks if checked else built.plan.remarks),
        "components": {
            name: {
                "version": one.version,
                "reused": one.reused,
                "seconds": round(one.seconds, 1),
                "before": one.before,
                "after": one.after,
            }
            for name, one in built.components.items()
        },
    }
