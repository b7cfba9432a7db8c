"""Private folders of a launch, and finding those that a killed one left behind.

A folder is known by name and by the marker in it, which its supervisor keeps locked for as long as it lives: a lock is
seen across containers and is gone with its owner, as a process number is not.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from lanewise.errors import InputError
from lanewise.files import writing
from tuning.supervisor import MARKER

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where shared memory lives on Linux; what is made there is private
_LEAST_ROOM = 1 << 16
"""Bytes that a launch's session files take at the least."""
_NAME = re.compile(r"lanewise-[0-9a-f]{32}", re.ASCII)


def scratch_parents() -> tuple[Path, Path]:
    """Where scratch folders are made: for temporary files, and for shared memory."""
    return Path(os.environ.get("TMPDIR") or "/tmp"), _SHARED_MEMORY  # noqa: S108 - as above


def new_scratch() -> list[Path]:
    """Paths for a launch's two folders, which its supervisor makes."""
    name = f"lanewise-{uuid.uuid4().hex}"
    return [parent / name for parent in scratch_parents()]


def require_scratch() -> None:
    """Make sure, before anything runs, that launches can have their folders.

    Raises:
        InputError: a parent is missing or cannot be written to.
        LanewiseError: there is no space.
    """
    for parent in scratch_parents():
        if not parent.is_dir():
            raise InputError(
                f"{parent} is not a folder",
                expected="a folder for temporary files",
                todo="set TMPDIR to one that exists",
            )
        with writing(parent / "lanewise-*"), tempfile.TemporaryFile(prefix="lanewise-", dir=parent) as file:
            file.write(bytes(_LEAST_ROOM))
            file.flush()


def sweep_stale_scratch() -> list[Path]:
    """Remove the folders of launches whose supervisor is gone (it was killed, or the machine was); those removed."""
    removed = []
    for parent in scratch_parents():
        for folder in parent.glob("lanewise-*"):
            if is_scratch(folder) and _is_stale(folder):
                remove(folder)
                if not folder.exists():
                    removed.append(folder)
    return removed


def remove(folder: Path) -> None:
    """Remove a folder, whatever a launch left in it: shutil.rmtree gives up where a thousand lie in one another."""
    subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def is_scratch(folder: Path) -> bool:
    """Whether a folder has the name of one that `new_scratch` names."""
    return bool(_NAME.fullmatch(folder.name))


def is_abandoned(folder: Path) -> bool:
    """Whether a scratch folder's supervisor is gone: the folder is, or its lock is free. False where unknown."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return _is_stale(folder)


def _is_stale(folder: Path) -> bool:
    with suppress(OSError):
        handle = os.open(folder / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the supervisor lives
            return True
        finally:
            os.close(handle)
    return False
