"""Talk to the person: progress and remarks on stderr, tables on stdout; plain where it is not a terminal.

rich obeys NO_COLOR and writes no control sequences into pipes and files.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_WIDE = 160
"""Columns where output is not a terminal: a table read by a program or a log should not be folded."""


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(_WIDE, shutil.get_terminal_size().columns)
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One remark on stderr."""
    _console(stderr=True).print(text, markup=False)


def put(renderable: RenderableType) -> None:
    """Data for people on stdout."""
    _console(stderr=False).print(renderable, markup=False)


def put_json(document: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Data for programs on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class Track:
    """Progress of one long job: a bar on a terminal, a line a step elsewhere."""

    def __init__(self, progress: Progress | None, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None) if progress else None

    def step(self, done: int, total: int, remark: str, *, lasting: bool) -> None:
        """Tell how far the job is.

        Args:
            done: steps that are over.
            total: steps in all.
            remark: what just happened, or is happening.
            lasting: whether it deserves a line where there is no bar.
        """
        if self._progress and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, description=remark)
        elif lasting:
            say(f"[{done}/{total}] {remark}")


@contextmanager
def track(what: str) -> Iterator[Track]:
    """Show the progress of a job while the block runs."""
    if not sys.stderr.isatty():
        yield Track(None, what)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=_console(stderr=True), transient=True) as progress:
        yield Track(progress, what)
