"""Wheels of the lock, fetched once and kept by their hash; every use checks the hash again."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from images.lock import LockedWheel
from images.resolve import platform_tags
from lanewise.errors import LanewiseError
from lanewise.files import writing

_SECONDS = 1800
_UNFINISHED = ".fetch-"
_HASH_WORDS = "DO NOT MATCH THE HASHES"


class WheelError(LanewiseError):
    """One wheel cannot be had; others may be."""


def cache_folder() -> Path:
    """Where fetched wheels are kept: `.cache/wheels` of the clone, or below LANEWISE_CACHE, which clones can share."""
    return Path(os.environ.get("LANEWISE_CACHE") or Path(__file__).parents[1] / ".cache") / "wheels"


def kept(wheel: LockedWheel) -> Path:
    """Where a wheel lies once it was fetched."""
    return cache_folder() / wheel.sha256 / wheel.file


def missing(wheels: Iterable[LockedWheel]) -> list[LockedWheel]:
    """Those that are not kept here yet."""
    return [wheel for wheel in wheels if not kept(wheel).exists()]


def check(wheels: Sequence[LockedWheel]) -> dict[str, WheelError]:
    """Which kept wheels are not what the lock says, by distribution; hashes are computed in parallel."""
    with ThreadPoolExecutor() as pool:
        found = zip(wheels, pool.map(_fault, wheels), strict=True)
        return {wheel.name: fault for wheel, fault in found if fault}


def _fault(wheel: LockedWheel) -> WheelError | None:
    path = kept(wheel)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return WheelError(
            f"wheel {path} cannot be read ({error.strerror})",
            expected="a readable file",
            todo="remove it and call again",
        )
    if found == wheel.sha256:
        return None
    return WheelError(
        f"wheel {path} has sha256 {found}",
        expected=f"{wheel.sha256}, as the lock says",
        todo="remove it and call again: it is fetched anew; if that does not help, the index has another file",
    )


def fetch(wheel: LockedWheel, python: str) -> None:
    """Fetch a wheel with pip, which checks its hash; where it is kept already, nothing happens.

    Args:
        wheel: what to fetch.
        python: the Python that it is for, e.g. "3.12".

    Raises:
        WheelError: the index does not have it, has another file under its name, or does not answer.
        LanewiseError: there is no room, or the cache cannot be written to.
    """
    target = kept(wheel)
    if target.exists():
        return
    with writing(target), _place_for(wheel) as folder:
        if target.exists():  # another run has fetched it meanwhile
            return
        wanted = folder / "wanted.txt"
        wanted.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        _download(["--require-hashes", "-r", str(wanted)], folder, python, wheel)
        (folder / wheel.file).replace(target)


@contextmanager
def _place_for(wheel: LockedWheel) -> Iterator[Path]:
    """An empty folder to fetch a wheel into, beside where it is kept; waits for another run that fetches the same."""
    home = kept(wheel).parent
    home.mkdir(parents=True, exist_ok=True)
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel gives it up with the process, however that ends
        for left in home.glob(f"{_UNFINISHED}*"):  # whoever made it held the lock, and does no more
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=home) as folder:
            yield Path(folder)
    finally:
        os.close(handle)


def _download(what: list[str], folder: Path, python: str, wheel: LockedWheel) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(folder),
               "--only-binary", ":all:", "--implementation", "cp", "--python-version", python,
               *(word for tag in platform_tags() for word in ("--platform", tag)), *what]  # fmt: skip
    try:
        done = subprocess.run(
            command, env=_environment(folder), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unfetched(wheel, f"no end within {_SECONDS} s") from None
    if done.returncode:
        message = " ".join(done.stderr.split())
        for code in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(code) in message:
                raise OSError(code, os.strerror(code))
        if _HASH_WORDS in message:
            raise WheelError(
                f"the index has a {wheel.file} with another hash than the lock",
                expected=f"sha256 {wheel.sha256}",
                todo="if the index is trusted, run ./inv lock again; if not, find out who changed the file",
            )
        raise _unfetched(wheel, message[max(message.find("ERROR:"), 0) :][-400:])
    if not Path(folder, wheel.file).exists():
        raise _unfetched(wheel, f"pip chose another file of {wheel.name} {wheel.version}")


def _environment(folder: Path) -> Mapping[str, str]:
    """The user's, without constraints: they are for what is installed on this machine.

    pip's own temporary files lie in `folder`, too: there they are cleared, even if pip is killed.
    """
    return {**os.environ, "PIP_CONSTRAINT": os.devnull, "TMPDIR": str(folder)}


def _unfetched(wheel: LockedWheel, why: str) -> WheelError:
    return WheelError(
        f"cannot fetch {wheel.name} {wheel.version}: {why}",
        expected=f"{wheel.file} on the Python index that pip knows",
        todo="check the network and pip's index settings; ./inv lock --check tells whether the index still has it",
    )
