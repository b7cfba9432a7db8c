"""The parts join through files, not imports: images, tuning and playbooks never import one another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("images", "tuning", "playbooks")
FORBIDDEN = {part: {other for other in PARTS if other != part} for part in PARTS} | {"lanewise": set(PARTS)}


def imported(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("part", FORBIDDEN)
def test_part_imports_no_other(part: str) -> None:
    files = sorted((ROOT / part).rglob("*.py"))
    assert files
    wrong = {str(file): found for file in files if (found := imported(file.read_text()) & FORBIDDEN[part])}
    assert not wrong


def test_the_check_sees_every_way_to_import() -> None:
    assert imported("import images.matrix\nfrom tuning import stats\ndef f():\n    import playbooks") == set(PARTS)


def test_workers_and_supervisor_stand_alone() -> None:
    """They run under another Python, in images, or after the harness is dead: nothing of the project is there."""
    alone = [
        *(ROOT / "tuning/workers").glob("*.py"),
        *(ROOT / "tuning" / f"{n}.py" for n in ("supervisor", "contained")),
    ]
    own = {"lanewise", "tuning", "images", "playbooks", "tasks"}
    assert len(alone) >= 3
    assert not {str(file) for file in alone if imported(file.read_text()) & own}


def test_no_module_is_a_drawer() -> None:
    assert not [
        p for part in FORBIDDEN for p in (ROOT / part).rglob("*.py") if p.stem in ("utils", "util", "core", "helpers")
    ]
