"""Where results of preflight lie: a user's own below runs/, and those that ship in images/preflight/."""

from __future__ import annotations

from pathlib import Path


def result_paths(runs: Path) -> dict[str, Path]:
    """Toolchain to its result: `runs`/TOOLCHAIN/preflight.json, else what ships in images/preflight/ beside `runs`."""
    shipped = {path.stem: path for path in sorted((runs.parent / "images/preflight").glob("*.json"))}
    return shipped | {path.parent.name: path for path in sorted(runs.glob("*/preflight.json"))}
