"""Errors that a user sees, and the exit codes they end in.

Every such error has three parts: what failed (with the value), what was expected (with the known choices), and what to
do next. `lanewise.verbs.guarded` is the one place that turns them into text on stderr and an exit code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """How a verb ends; the table in docs/exit-codes.md is this one."""

    DONE = 0
    FAILED = 1
    INPUT = 2
    ANSWER_IS_NO = 3
    UNREACHABLE = 4


class LanewiseError(Exception):
    """Something failed that is not the input's fault.

    Args:
        what: what failed, with the value, without a full stop.
        expected: what was expected, with the known choices.
        todo: what to do next.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, what: str, *, expected: str, todo: str) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n  expected: {self.expected}\n  next:     {self.todo}"


class InputError(LanewiseError):
    """The configuration, a file or an option is wrong."""

    exit_code = ExitCode.INPUT


class UnreachableError(LanewiseError):
    """A node cannot be reached."""

    exit_code = ExitCode.UNREACHABLE
