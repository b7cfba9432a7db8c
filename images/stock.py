"""What a wheel of the index holds for SM120: audited once, and kept by the wheel's hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from images import wheels
from images.audit import audit
from images.capability import SM120, Verdict
from images.lock import LockedWheel
from images.unused import UNUSED_ON
from lanewise.files import write_atomic

_WRONG = (Verdict.NONE, Verdict.DRIVER_JIT)


@dataclass(frozen=True, kw_only=True)
class Stock:
    """A wheel, as far as it decides whether to rebuild.

    Attributes:
        wrong: libraries that are used and hold no code for SM120, or code that the driver has to translate: path to
            verdict.
        sources: whether it brings CUDA sources that it compiles where it runs.
    """

    wrong: tuple[tuple[str, str], ...] = ()
    sources: bool = False


def read_stock(
    wanted: Iterable[LockedWheel], progress: Callable[[str], None], folder: Path | None = None
) -> dict[str, Stock]:
    """What these wheels hold, by distribution; one that was not fetched yet is left out.

    Args:
        wanted: which.
        progress: is told which wheel is audited.
        folder: where results are kept; beside the fetched wheels where none is given.

    Raises:
        InputError, LanewiseError: a wheel cannot be read.
    """
    folder = folder or wheels.cache_folder().parent / "audits"
    # What the table of unused files says is part of the verdict.
    table = hashlib.sha256(UNUSED_ON.read_bytes()).hexdigest()[:16]
    found = {}
    for wheel in wanted:
        result = folder / f"{wheel.sha256}-{table}.json"
        if known := _read(result):
            found[wheel.name] = known
        elif wheels.kept(wheel).exists():
            progress(f"auditing {wheel.name} {wheel.version}")
            found[wheel.name] = _audited(wheels.kept(wheel))
            write_atomic(result, json.dumps(asdict(found[wheel.name])) + "\n")
    return found


def _audited(path: Path) -> Stock:
    found = audit(str(path), capability=SM120)
    return Stock(
        wrong=tuple(
            (lib.path, str(lib.verdict)) for lib in found.libraries if lib.verdict in _WRONG and not lib.unused
        ),
        sources=any(package.unused is None for package in found.compiled_at_run_time),
    )


def _read(path: Path) -> Stock | None:
    """What was found before; None where there is nothing, or nothing that can be used."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        wrong = tuple((str(library), str(verdict)) for library, verdict in document["wrong"])
        return Stock(wrong=wrong, sources=bool(document["sources"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
