"""Keeps what was built under the hash of all that decides it: a folder appears whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.errors import LanewiseError
from lanewise.files import read_text, writing

_RECORD = "built.json"
_MAX_RECORD_BYTES = 4 << 20
_KEY = re.compile(r"[0-9a-f]{64}")
_POLL_SECONDS = 0.2
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """One wheel of a component.

    Attributes:
        path: the file.
        sha256: its hash.
        size: bytes.
    """

    path: Path
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class BuiltComponent:
    """What a component was built to.

    Attributes:
        name: of the component.
        version: its version.
        key: hash of all that decided it.
        wheels: what was made.
        seconds: that the build took.
        jobs: compiler jobs that it ran with.
        log: what the build said.
        before: summary of the audit of the wheels that these take the place of; None where there are none.
        after: summary of the audit of these.
        reused: whether it was there already.
    """

    name: str
    version: str
    key: str
    wheels: tuple[BuiltWheel, ...]
    seconds: float
    jobs: int
    log: Path
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    reused: bool


class Wheelhouse:
    """A folder of built components, each in a folder named after its key.

    Args:
        folder: where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, key: str) -> Path:
        """Where a build's log lies; that of a failed one, too, until the next."""
        return self.folder / f"{key}.log"

    def find(self, key: str, told: Callable[[str], None] = lambda _line: None) -> BuiltComponent | None:
        """What was built under the key; None where there is nothing, or it is damaged and so has to be built again.

        Args:
            key: of the component.
            told: is told what is damaged.
        """
        folder = self._place(key)
        if not folder.is_dir():
            return None
        try:
            record = json.loads(read_text(folder / _RECORD, what="build record", limit=_MAX_RECORD_BYTES))
            built = _from_record(record, folder, self.log(key))
        except (LanewiseError, ValueError, KeyError, TypeError, AttributeError) as error:
            told(f"{folder} is damaged ({' '.join(str(error).split())[:120]}): it is built again")
            return None
        for wheel in built.wheels:
            if (found := _sha256(wheel.path)) != wheel.sha256:
                told(f"{wheel.path} is damaged (sha256 {found or 'unreadable'}): {built.name} is built again")
                return None
        return built

    @contextmanager
    def building(self, key: str, told: Callable[[str], None] = lambda _line: None) -> Iterator[Path]:
        """Hold the key and give an empty folder for the wheels; waits for another run that builds the same.

        Whatever is in the folder is gone when the block ends: see keep.

        Args:
            key: of the component.
            told: is told that it waits.

        Raises:
            InputError, LanewiseError: the wheelhouse cannot be written to, or there is no space.
        """
        with ExitStack() as stack:
            with writing(self.folder):
                stack.enter_context(_locked(self.folder, self._place(key).with_suffix(".lock"), told))
                for left in self.folder.glob(f".{key}-*"):  # whoever made it held the lock, and does no more
                    shutil.rmtree(left, ignore_errors=True)
                folder = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=self.folder))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield folder

    def keep(self, folder: Path, built: Mapping[str, Any], key: str) -> BuiltComponent:
        """Keep the wheels in `folder`, which building gave, under the key.

        Args:
            folder: holds the wheels; what else it holds is dropped.
            built: the fields of BuiltComponent that are not about files: name, version, seconds, jobs, before, after.
            key: of the component.

        Raises:
            LanewiseError: there is no wheel, or no space.
        """
        wheels = sorted(path for path in folder.iterdir() if _WHEEL.fullmatch(path.name) and path.is_file())
        if not wheels:
            raise LanewiseError(
                f"the build of {built['name']} {built['version']} left no wheel",
                expected="a build script that puts wheels into /lanewise/out",
                todo=f"see {self.log(key)}",
            )
        record = {**built, "key": key, "wheels": [_wheel_record(path) for path in wheels]}
        with writing(folder):
            for path in set(folder.iterdir()) - set(wheels):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for path in wheels:
                _synced(path)
            (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            _synced(folder / _RECORD)
            folder.chmod(0o755)
            shutil.rmtree(self._place(key), ignore_errors=True)  # what find called damaged
            folder.replace(self._place(key))
        return _from_record(record, self._place(key), self.log(key), reused=False)

    def _place(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key")
        return self.folder / key


@contextmanager
def _locked(folder: Path, path: Path, told: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock that ends with the process, however that ends. The file stays: removing it would be a race."""
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    told("another run builds it already: waiting for that")
                said = True
                time.sleep(_POLL_SECONDS)
        yield


def _wheel_record(path: Path) -> dict[str, Any]:
    return {"file": path.name, "sha256": _sha256(path), "size": path.stat().st_size}


def _from_record(record: Mapping[str, Any], folder: Path, log: Path, *, reused: bool = True) -> BuiltComponent:
    wheels = []
    for wheel in record["wheels"]:
        if not _WHEEL.fullmatch(wheel["file"]):
            raise ValueError(f"{wheel['file']!r} is no wheel")
        wheels.append(BuiltWheel(path=folder / wheel["file"], sha256=wheel["sha256"], size=wheel["size"]))
    if not wheels or record["key"] != folder.name:
        raise ValueError("it names no wheel, or is of another key")
    return BuiltComponent(
        name=str(record["name"]),
        version=str(record["version"]),
        key=str(record["key"]),
        wheels=tuple(wheels),
        seconds=float(record["seconds"]),
        jobs=int(record["jobs"]),
        log=log,
        before=record["before"],
        after=dict(record["after"]),
        reused=reused,
    )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
