"""Shows what a build came to: the image, and what was rebuilt for it. It computes nothing."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images import image_view
from images.build import Built
from images.wheelhouse import BuiltComponent

_SHORT = 19
"""Characters of an image id: sha256: and twelve digits, as `docker image ls` shows them."""


def show(built: Built) -> RenderableType:
    """One line for an image that stood already; else everything that a person wants to see of a new one."""
    plan = built.plan
    if built.checked is None:
        return Text(f"{plan.tag} stands already: {built.image[:_SHORT]}, plan {plan.key[:12]}; nothing was done")
    lines: list[RenderableType] = [image_view.show(plan, built.checked)]
    if built.components:
        lines += ["\nrebuilt", _components(list(built.components.values()))]
    return Group(*lines, Text(f"built and checked in {built.seconds:,.0f} s"))


def _components(components: list[BuiltComponent]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("component", "version", "s", "MB", "device code before", "after"):
        table.add_column(heading, justify="right" if heading in ("MB", "s") else "left")
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


def document(built: Built) -> dict[str, Any]:
    """The same for a program; sizes in bytes."""
    plan = built.plan
    image = image_view.document(plan, built.checked) if built.checked else {"tag": plan.tag, "image": built.image}
    components = {
        name: {
            "version": one.version,
            "reused": one.reused,
            "seconds": round(one.seconds, 1),
            "before": one.before,
            "after": one.after,
        }
        for name, one in built.components.items()
    }
    return {
        **image,
        "plan": plan.key,
        "built": built.checked is not None,
        "seconds": round(built.seconds, 1),
        "components": components,
    }
