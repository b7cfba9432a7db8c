"""Results of other load generators, shown side by side: described, and never judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from lanewise import talk
from lanewise.errors import InputError
from lanewise.files import shown_path
from tuning.runfile import Run
from tuning.serving.any_run import read_any_run
from tuning.serving.imported import Imported
from tuning.serving.imports import read_foreign
from tuning.serving.runfile import ServingRun

_COLUMNS = ("file", "of", "at once", "running", "tok/s", "TTFT ms", "TPOT ms", "step ms", "accept", "from")


def read_measured(path: Path) -> Run | ServingRun | Imported:
    """A run file, or a result of another load generator.

    Raises:
        InputError: it is neither; of the two, what `read_any_run` says.
    """
    try:
        return read_any_run(path)
    except InputError as error:
        try:
            return read_foreign(path)
        except InputError:
            raise error from None


def put(files: Mapping[str, Imported]) -> None:
    """Print a table with a row a pass, and what the numbers are and are not."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("file", "of", "from") else "right")
    for path, imported in files.items():
        for one in imported.passes:
            numbers = (one.concurrency, one.running, one.tokens_per_second, one.ttft_ms, one.tpot_ms, one.step_ms)
            words = (shown_path(Path(path)), one.label, *map(_number, (*numbers, one.accept_length)), one.accept_source)
            table.add_row(*(Text(talk.printable(word)) for word in words))
    talk.put(table)
    for path, imported in files.items():
        for note in imported.notes:
            talk.put(Text(talk.printable(f"{shown_path(Path(path))}, {imported.tool}: {note}")))
    talk.put(
        "described, not judged: a server start is the unit of repetition, and other tools do not interleave starts"
    )


def to_document(files: Mapping[str, Imported]) -> dict[str, Any]:
    """As JSON; single requests stay in the files."""
    documents = []
    for path, imported in files.items():
        passes = [{key: value for key, value in asdict(one).items() if key != "requests"} for one in imported.passes]
        documents.append({**asdict(imported), "file": path, "passes": passes})
    return {"described": documents}


def only_foreign(paths: Sequence[str], read: Sequence[Run | ServingRun | Imported]) -> dict[str, Imported]:
    """The results of other tools by their paths; {} where there are none.

    Raises:
        InputError: they stand beside run files.
    """
    found = {path: one for path, one in zip(paths, read, strict=False) if isinstance(one, Imported)}
    if found and len(found) < len(read):
        raise InputError(
            f"{next(iter(found))} is a result of {next(iter(found.values())).tool}, and another is a run file",
            expected="files of one kind",
            todo="name them apart",
        )
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
