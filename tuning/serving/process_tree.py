"""The processes of a server: stopped and continued as a whole, and the shared memory that they would leave behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tuning.supervisor import descendants

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where shared memory lives on Linux
_STOP_SECONDS = 5.0
"""How long to wait for stopped processes to stand still; one in a system call of a driver does so at its end."""
_KILL_SECONDS = 10.0
"""How long to go on killing; only a process stuck in the kernel, or another user's, outlasts it."""
_GONE = ("Z", "X", "")
_STILL = ("T", "t", *_GONE)
"""States in which a process does nothing: stopped, dead, gone."""


class HostTree:
    """What runs below a supervisor of this machine.

    Args:
        root: the supervisor, which itself is never stopped: it is the one that cleans up.
    """

    def __init__(self, root: int) -> None:
        self._root = root

    def pids(self) -> set[int]:
        """Its processes at the moment."""
        return set(descendants(self._root))

    def freeze(self) -> None:
        """Stop every process (SIGSTOP), also those that are started meanwhile; wait until they stand still."""
        stopped: set[int] = set()
        while new := self.pids() - stopped:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        deadline = time.monotonic() + _STOP_SECONDS
        while not all(_state(pid) in _STILL for pid in stopped) and time.monotonic() < deadline:
            time.sleep(0.002)

    def thaw(self) -> None:
        """Let every process go on (SIGCONT)."""
        _signal(self.pids(), signal.SIGCONT)

    def ask_to_end(self) -> None:
        """SIGTERM to the command itself, as a service manager would."""
        if child := _first_child(self._root):
            _signal([child], signal.SIGTERM)


def began(pids: Iterable[int]) -> dict[int, int]:
    """When each of these processes started, in clock ticks since boot: with that, a number tells one from a later one.

    Those that are gone are left out.
    """
    found = {}
    for pid in pids:
        with suppress(OSError, IndexError, ValueError):
            found[pid] = _started(pid)[0]
    return found


def end_survivors(noted: Mapping[int, int]) -> list[str]:
    """Kill those of a tree that are still alive, with all below them; in words, those that would not end.

    This is for a supervisor that was itself killed: whatever the command had started then belongs to init.

    Args:
        noted: by number, when a process started, as `began` told; a number that another one has by now is left alone.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while (alive := _alive(noted)) and time.monotonic() < deadline:
        below = began(child for pid in alive for child in descendants(pid))
        noted = {**noted, **below}
        for pid in {*alive, *below}:
            _kill(pid, noted[pid])
        time.sleep(0.01)
    return [f"process {pid} ({_name(pid)}) could not be ended" for pid in alive]


def _alive(noted: Mapping[int, int]) -> list[int]:
    return [pid for pid, start in began(noted).items() if start == noted[pid] and _state(pid) not in _GONE]


def _kill(pid: int, start: int) -> None:
    """SIGKILL to the process of that number and start; through a descriptor, so that no later one can be hit.

    Not every Python has descriptors of processes, nor every kernel: then a moment is left between look and kill.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        if began([pid]).get(pid) == start:
            _signal([pid], signal.SIGKILL)
        return
    with suppress(OSError):
        try:
            if began([pid]).get(pid) == start:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "gone meanwhile"


def _first_child(root: int) -> int | None:
    """The process that `root`, a supervisor, was asked to run; None where it is gone.

    Orphans become the supervisor's children as well, but are younger than the command.
    """
    with suppress(OSError, ValueError):
        children = [int(pid) for pid in Path(f"/proc/{root}/task/{root}/children").read_text().split()]
        return min(children, key=_started, default=None)
    return None


def _started(pid: int) -> tuple[int, int]:
    """Start time in clock ticks since boot (field 22), and the number where two are equal."""
    return int(_fields(pid)[19]), pid


def _state(pid: int) -> str:
    """One letter (field 3); "" of a process that is gone."""
    with suppress(OSError, IndexError):
        return _fields(pid)[0]
    return ""


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (proc_pid_stat(5)); the second, a name, may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def segments_mapped(pids: Iterable[int]) -> set[Path]:
    """Files in /dev/shm that some of these processes have mapped: of Python's, torch's and NCCL's shared memory."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                path = line.split(maxsplit=5)[-1]
                if path.startswith(f"{SHARED_MEMORY}/") and not path.endswith(" (deleted)"):
                    found.add(Path(path))
    return found


def remove_segments(segments: Collection[Path]) -> None:
    """Remove those that no process has mapped any more: a process that was killed could not do it itself."""
    if not segments:
        return
    used = segments_mapped(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for path in set(segments) - used:
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
                path.unlink()
