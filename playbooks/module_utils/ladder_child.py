"""Runs work in a child process under a watchdog: what hangs in the driver, or dies of it, takes nothing else along.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules. The child is forked, because an
Ansible module has no file that a new process could start; nothing of CUDA may have been called in this process before.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_DEATH_SECONDS = 5.0
"""How long a process that was killed, or has answered, may take to go: the driver frees its memory meanwhile."""


class ToolError(Exception):
    """What was to be asked cannot be asked here, such as a library that is missing: that says nothing of the node."""


class DeviceError(Exception):
    """The driver refused a call; the text names both."""


@dataclass(frozen=True)
class Ended:
    """How work ended; exactly one of the fields is set.

    Attributes:
        value: what it returned, as JSON holds it.
        hang: how it did not end in time.
        failed: what the driver refused, or the signal that the child died of.
        unable: why it could not be done here.
    """

    value: Any = None
    hang: str = ""
    failed: str = ""
    unable: str = ""


def in_child(work: Callable[[], Any], seconds: float) -> Ended:
    """Do the work in a child process.

    Args:
        work: returns what JSON can hold; may raise ToolError and DeviceError.
        seconds: after which the child is killed.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be(work, writing, parent)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            answer = _answer(pipe.fileno(), time.monotonic() + seconds)
        except BaseException:
            _gone(child, signal.SIGKILL)
            raise
    status = _gone(child, signal.SIGKILL if answer is None else 0)
    if status is None:
        return Ended(hang=f"no end within {seconds:g} s, and not even SIGKILL ends it: the driver holds it")
    if answer is None:
        return Ended(hang=f"no end within {seconds:g} s; killed")
    if not answer:
        return Ended(failed=_death(status))
    return Ended(**json.loads(answer))


def _be(work: Callable[[], Any], writing: int, parent: int) -> NoReturn:
    """The child's whole life; what libraries print goes nowhere, since standard output is the module's answer."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nowhere, number)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(_done(work)).encode())
    finally:
        os._exit(0)  # no handler of the parent's, and none of a library's, runs here


def _done(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": work()}
    except DeviceError as error:
        return {"failed": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to reach the parent
        return {"unable": str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"}


def _answer(pipe: int, deadline: float) -> bytes | None:
    """All that the child writes until it closes the pipe; None where it does not in time."""
    received = bytearray()
    while select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            return bytes(received)
        received += chunk
    return None


def _gone(child: int, signal_first: int) -> int | None:
    """The child's wait status; None where it does not go."""
    if signal_first:
        os.kill(child, signal_first)
    deadline = time.monotonic() + _DEATH_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return None


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the process died of {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the process ended with status {os.WEXITSTATUS(status)} and no answer"
