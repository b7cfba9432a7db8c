"""Runs one command under the supervisor and a watchdog, line by line; nothing of it survives the call."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import IO

from tuning.scratch import remove
from tuning.supervisor import kill_descendants

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_MAX_LINE_BYTES = 1 << 20
_END_SECONDS = 20
"""How long the supervisor may take to end what it started; it gives up by itself after half of that."""
_OVERSLEPT_SECONDS = 1.0


class Ending(Enum):
    """How a command ended."""

    EXITED = "exited"
    SILENT = "silent"  # no sign of life: ended by the watchdog


def run_supervised(
    command: list[str],
    *,
    environment: Mapping[str, str],
    scratch: list[Path],
    timeout: float,
    feed: Callable[[str], bool],
    grace: float = 0,
) -> tuple[Ending, int]:
    """Run a command to its end; how it ended, and its exit code (128 + signal, as shells have it).

    Args:
        command: argument vector.
        environment: all its environment variables, but TMPDIR.
        scratch: folders that do not exist yet: made for it, the first as its TMPDIR, and removed after it.
        timeout: seconds without a sign of life after which it is ended.
        feed: takes each line of its output and error output; whether the line was a sign of life.
        grace: seconds that a command has to let go of what it holds, once its standard input is closed; 0: none.
    """
    supervisor = start_supervised(command, environment=environment, scratch=scratch, grace=grace)
    assert supervisor.stdout
    assert supervisor.stderr
    code = 128 + signal.SIGTERM
    try:
        alive = _follow([supervisor.stdout, supervisor.stderr], timeout, feed)
    finally:
        code = end_supervised(supervisor)
        supervisor.stdout.close()
        supervisor.stderr.close()
        for folder in scratch:  # gone already, unless the supervisor itself was killed
            remove(folder)
    return Ending.EXITED if alive else Ending.SILENT, code if code >= 0 else 128 - code


def start_supervised(
    command: list[str],
    *,
    environment: Mapping[str, str],
    scratch: list[Path],
    grace: float = 0,
    one_stream: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor, which is returned; who starts it has to call `end_supervised`.

    Args:
        command, environment, scratch, grace: as `run_supervised` has them.
        one_stream: whether its error output comes on the same stream as its output, in the order of writing.
    """
    options = [part for folder in scratch for part in ("--scratch", str(folder))]
    options += ["--grace", str(grace)] if grace else []
    return subprocess.Popen(
        # -I -S: nothing of the user's Python environment decides whether everything is cleaned up.
        [sys.executable, "-I", "-S", str(_SUPERVISOR), *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if one_stream else subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C comes to this process, which then closes the lifeline
    )


def end_supervised(supervisor: subprocess.Popen[bytes]) -> int:
    """Close the lifeline and wait; where the supervisor does not end (it was stopped), end all of it from here."""
    assert supervisor.stdin
    supervisor.stdin.close()
    supervisor.send_signal(signal.SIGCONT)
    try:
        return supervisor.wait(_END_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
        kill_descendants(supervisor.pid)
        supervisor.kill()
        code = supervisor.wait()
        if isinstance(why, KeyboardInterrupt):
            raise
        return code


def _follow(streams: list[IO[bytes]], timeout: float, feed: Callable[[str], bool]) -> bool:
    """Feed lines until all streams end; False where there was no sign of life for `timeout` seconds."""
    pending: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            wait = max(deadline - time.monotonic(), 0)
            began = time.monotonic()
            ready = selector.select(wait)
            if time.monotonic() - began > wait + _OVERSLEPT_SECONDS:
                # This process was stopped, or the machine slept: the silence was ours.
                deadline = time.monotonic() + timeout
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                *lines, rest = (pending.get(key.fd, b"") + chunk).split(b"\n")
                if not chunk:
                    selector.unregister(key.fileobj)
                    lines, rest = [*lines, rest], b""
                pending[key.fd] = rest[:_MAX_LINE_BYTES]
                signs = [feed(line.decode("utf-8", errors="replace")) for line in lines]
                if any(signs):
                    deadline = time.monotonic() + timeout
            if time.monotonic() >= deadline:
                return False
    return True
