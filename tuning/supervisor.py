"""Runs one command and leaves nothing of it behind, whatever happens to the harness that asked for it.

    python supervisor.py [--scratch DIR ...] [--grace SECONDS] -- COMMAND [ARGUMENT ...]

It makes each DIR (private; it must not exist), runs COMMAND with the first as TMPDIR, and ends with COMMAND's exit code
(128 + signal, as shells do). Standard input is its lifeline: when the other end closes it, by intent or because the
harness was killed, everything that COMMAND started is killed. In every case no descendant survives and no DIR stays.

With --grace, COMMAND holds things that are not below it, such as a container: its standard input is a lifeline of the
same kind, which is closed first, and it has SECONDS to let go of them before it is killed.

A process group would not be enough: Open MPI gives every rank a session of its own. So this process makes itself the
reaper of its orphans (prctl(2), PR_SET_CHILD_SUBREAPER): whatever COMMAND starts stays below it in the process tree.
It is a program of its own, of the standard library only, because it has to outlive the harness.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIFELINE = 0
MARKER = ".lanewise-scratch"
"""File in each scratch folder, locked as long as this process lives: others can tell whether it is in use."""
_KILL_SECONDS = 10.0
"""How long to go on killing; only a process stuck in the kernel outlasts it."""


def main(arguments: list[str]) -> int:
    """Do what the module says; the exit code."""
    scratch, grace, command = _parse(arguments)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Ctrl-C and a terminal's hang-up are for the harness, which then closes the lifeline.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    made: list[Path] = []
    try:
        for folder in scratch:
            folder.mkdir(mode=0o700)
            made.append(folder)
            fcntl.flock(os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), fcntl.LOCK_EX)
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if grace else subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(scratch[0])} if scratch else None,
            # Where this process itself is killed, the command goes with it.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - no threads here
        )
        code = _wait(child, asked)
        if child.stdin:
            child.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace)
    except OSError as error:
        print(f"supervisor: cannot run {command[0]}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        code = 127
    finally:
        survivors = kill_descendants(os.getpid())
        if made:  # not shutil.rmtree, which gives up where a thousand folders lie in one another
            subprocess.run(["rm", "-rf", "--", *made], check=False, stderr=subprocess.DEVNULL)
    if survivors:
        print(f"supervisor: could not kill {survivors}", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _parse(arguments: list[str]) -> tuple[list[Path], float, list[str]]:
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    if not command or set(options[::2]) - {"--scratch", "--grace"}:
        raise SystemExit(__doc__)
    given = list(zip(options[::2], options[1::2], strict=True))
    grace = sum(float(value) for name, value in given if name == "--grace")
    return [Path(value) for name, value in given if name == "--scratch"], grace, command


def _wait(child: subprocess.Popen[bytes], asked: int) -> int:
    """Until the command ends, the lifeline closes or SIGTERM comes; the command's exit code, or 128 + SIGTERM."""
    watched = [_LIFELINE, asked]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if asked in ready and signal.SIGTERM in os.read(asked, 4096):
            return 128 + signal.SIGTERM
        if (code := child.poll()) is not None:
            return code if code >= 0 else 128 - code
        if _LIFELINE in ready and not os.read(_LIFELINE, 4096):
            return 128 + signal.SIGTERM


def kill_descendants(root: int) -> list[int]:
    """Kill every process below `root`, again until none is left; those that would not go."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (alive := descendants(root)) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)
    return alive


def descendants(root: int) -> list[int]:
    """Every process below `root`, as the process tree is at the moment."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # The command name may hold blanks and brackets; what follows the last bracket does not.
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    below = {root}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
    return sorted(below - {root})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
