"""Why a server does not answer: its status, the cause in one line, what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from tuning.serving.endings import ending
from tuning.trial import Status

_KEPT_LINES = 40
_CONTAINED = "@lanewise "
"""How `contained.py` tells that there is no container."""
_TAKEN = re.compile(r"address already in use|EADDRINUSE|Errno 98\b|port is already (?:allocated|in use)", re.IGNORECASE)


class ServerEnded(Exception):  # noqa: N818 - an ending, which a run records as a result
    """A server that ended, or was given up.

    Attributes:
        status: how it ended.
        reason: the cause in one line.
        output: its last lines.
        advice: what to do, "" where nobody knows.
        port_taken: whether another program had one of its ports: with other ports it would start.
    """

    def __init__(
        self, status: Status, reason: str, output: tuple[str, ...] = (), advice: str = "", *, port_taken: bool = False
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.output, self.advice = status, reason, output, advice
        self.port_taken = port_taken


def ended(lines: Sequence[str], code: int | None, *, ready: bool, log_problem: str, reason: str) -> ServerEnded:
    """Why a server ended.

    Args:
        lines: what it printed.
        code: its exit code (128 + signal, as shells have it); None where it lived on and was given up.
        ready: whether it had ever answered.
        log_problem: why its log could not be kept, or "".
        reason: why it was given up, where its log tells nothing better.
    """
    output = tuple(lines[-_KEPT_LINES:])
    broken = Status.CRASHED if ready else Status.LAUNCH_FAILED
    if log_problem:
        return ServerEnded(broken, log_problem, output, "free some space there, or keep runs on another file system")
    if refused := _refused(output):
        taken = bool(_TAKEN.search(refused))
        return ServerEnded(Status.LAUNCH_FAILED, refused, output, "see `docker version`", port_taken=taken)
    taken = not ready and code is not None and any(map(_TAKEN.search, output))
    if told := ending(lines, code, code is None, ready):
        status, cause, advice = told
        return ServerEnded(status, cause, output, advice, port_taken=taken)
    if code is None:
        return ServerEnded(Status.TIMED_OUT, reason, output)
    return ServerEnded(broken, f"it ended with exit code {code}", output, port_taken=taken)


def _refused(lines: Sequence[str]) -> str:
    """What `contained.py` says where the engine gives no container."""
    for line in lines:
        if line.startswith(_CONTAINED):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                return str(json.loads(line.removeprefix(_CONTAINED))["reason"])
    return ""
