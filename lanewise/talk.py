"""Talk to the person: progress and remarks on stderr, tables on stdout; plain where it is not a terminal.

rich obeys NO_COLOR and writes no control sequences into pipes and files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_WIDE = 160
"""Columns where output is not a terminal: a table read by a program or a log should not be folded."""


class _Console(Console):
    """rich's console, but a reader that leaves is an exception like any other, not the end of the program."""

    def on_broken_pipe(self) -> None:
        """See rich."""
        raise BrokenPipeError


def open_standard_streams() -> None:
    """Make standard output and error safe to write to: open, and able to print every character somehow.

    A stream that the caller closed would otherwise be None, and its number be given to the next file opened.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the program's life
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(_WIDE, shutil.get_terminal_size().columns)
    return _Console(stderr=stderr, width=width, highlight=False, soft_wrap=True, emoji=False, markup=False)


def say(text: str) -> None:
    """One remark on stderr; where nobody can read it, nothing happens: talk is never worth a run."""
    with suppress(OSError):
        _console(stderr=True).print(printable(text))


def put(renderable: RenderableType) -> None:
    """Data for people on stdout."""
    _console(stderr=False).print(renderable)


def put_json(document: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Data for programs on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def printable(text: str) -> str:
    """The text without control characters, which in another program's output could drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


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

    def remark(self, text: str) -> None:
        """Tell what is done, where nobody knows how much there is to do."""
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=printable(text))
        else:
            say(text)


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
