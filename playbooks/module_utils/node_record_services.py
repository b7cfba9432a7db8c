"""The node record's services, and the limits that systemd gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .node_record_command import printed
from .node_record_tree import form, line, word

if TYPE_CHECKING:
    from .node_record_tree import Tree

    Unit = dict[str, str] | None  # its properties; None where there is no such unit
    Units = dict[str, Unit] | str  # by name, or "unknown"

UNITS = {
    "nvidia-persistenced": "nvidia-persistenced.service",
    "docker": "docker.service",
    "irqbalance": "irqbalance.service",
    "lanewise-pci": "lanewise-pci.service",
    "nvidia-cdi-refresh.path": "nvidia-cdi-refresh.path",
}
PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "LimitMEMLOCK")
UNLIMITED = ("infinity", str(2**64 - 1))  # the second: of old releases of systemd


def units(tree: Tree) -> dict[str, Unit]:
    """What systemctl tells of the units: it answers in the order of asking, a block of lines each."""
    text = printed(tree, "systemctl", "show", f"--property={','.join(PROPERTIES)}", *UNITS.values())
    blocks = text.strip().split("\n\n")
    if len(blocks) != len(UNITS):
        raise ValueError(f"systemctl tells of {len(blocks)} units, {len(UNITS)} were asked for")
    return {name: _unit(block) for name, block in zip(UNITS, blocks)}  # noqa: B905 - Python 3.9 has no strict


def _unit(block: str) -> Unit:
    properties = dict(text.split("=", 1) for text in block.splitlines())
    for name in ("ActiveState", "LoadState"):
        word(properties[name])
    return None if properties["LoadState"] == "not-found" else {"UnitFileState": "", **properties}


def services(shown: Units) -> dict[str, dict[str, str | None] | None] | str:
    """The record's `services`: of each unit whether it runs and starts at boot; no `enabled` where it has no file."""
    if isinstance(shown, str):
        return shown
    return {name: None if unit is None else _service(unit) for name, unit in shown.items()}


def _service(unit: dict[str, str]) -> dict[str, str | None]:
    return {"active": unit["ActiveState"], "enabled": unit["UnitFileState"] or None}


_limit = form("([0-9]{1,20}|infinity)", lambda text: "unlimited" if text in UNLIMITED else int(text))


def service_memlock(tree: Tree) -> int | str:
    """How much memory a service may lock, in bytes, unless its unit says otherwise."""
    text = printed(tree, "systemctl", "show", "--property=DefaultLimitMEMLOCK")
    limit: int | str = line("DefaultLimitMEMLOCK", _limit, "=")(text)
    return limit


def unit_memlock(shown: Units, name: str) -> int | str | None:
    """How much memory that unit's processes may lock, in bytes; None where there is no such unit."""
    if isinstance(shown, str):
        raise ValueError("follows from services")
    unit = shown[name]
    limit: int | str | None = None if unit is None else _limit(unit["LimitMEMLOCK"])
    return limit
