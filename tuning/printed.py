"""What a command prints, within limits of time and size; nothing of it survives the call."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuning.supervised import Ending, run_supervised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SECONDS = 60
_MOST_OUTPUT = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What came of a command.

    Attributes:
        ok: it ended by itself with exit code 0.
        lines: its output and error output, all that came of them within the limits.
    """

    ok: bool
    lines: tuple[str, ...]

    def json(self) -> dict[str, Any] | None:
        """The JSON object that was printed, or None where something else was, or the command failed."""
        try:
            document = json.loads("\n".join(self.lines), parse_constant=_no_constant) if self.ok else None
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None


def printed(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    scratch: Sequence[Path] = (),
    grace: float = 0,
) -> Printed:
    """Run a command and read all that it prints.

    Args:
        command, scratch, grace: as `run_supervised` has them.
        environment: all its environment variables; this process's own where None.
    """
    lines: list[str] = []
    held = 0

    def feed(line: str) -> bool:
        nonlocal held
        held += len(line)
        if held > _MOST_OUTPUT:
            raise OverflowError
        lines.append(line)
        return False  # so that the time limit is one for the whole

    try:
        ending, code = run_supervised(
            list(command),
            environment=os.environ if environment is None else environment,
            scratch=list(scratch),
            timeout=_SECONDS,
            feed=feed,
            grace=grace,
        )
    except OverflowError:
        return Printed(ok=False, lines=tuple(lines))
    return Printed(ok=ending is Ending.EXITED and code == 0, lines=tuple(lines))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
