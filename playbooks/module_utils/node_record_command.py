"""Runs the few commands that the node record asks: a time limit each, and nothing of them stays behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from .node_record_tree import LIMIT

if TYPE_CHECKING:
    from .node_record_tree import Tree

SECONDS = 5.0  # the commands answer in well under one; all of them together stay within a minute


def printed(tree: Tree, *command: str) -> str:
    """What a command prints, of this machine only.

    Raises:
        FileNotFoundError: there is no such program.
        OSError, ValueError: it fails or does not end, or the tree is another root.
    """
    if not tree.live:
        raise ValueError(f"{command[0]} is not run for another root")
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "not found", command[0])
    status, output = run([program, *command[1:]], SECONDS)
    if status:
        raise ValueError(f"{command[0]}: status {status}, {first_line(output)}")
    return output


def first_line(output: str) -> str:
    """What to quote of a command that failed."""
    return output.strip().partition("\n")[0][:200]


def run(command: list[str], seconds: float) -> tuple[int, str]:
    """Exit status and output of a command; goes on without one that hangs in the driver and that no signal ends.

    Raises:
        OSError: it cannot be started, or has not ended in time.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(1)
            raise TimeoutError(f"no end within {seconds:g} s") from None
        output.seek(0)
        return status, output.read(LIMIT).decode(errors="replace")
