"""Live values of the kernel, in files of one value below /proc/sys and /sys: set, read back, and set back.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from . import before
from .node_files import NodeFileError, below, locked

SECTION = "values"
PLACES = ("/proc/sys/", "/sys/")
LIMIT = 4096  # bytes of such a file: the kernel gives at most one page
CHOSEN = re.compile(r"(?:^|\s)\[([^\[\]\s]+)\](?=\s|$)")  # always [madvise] never
TRUTH = {"Y": "1", "N": "0"}  # how the kernel shows a bool module parameter that was set to 1 or 0


@dataclass(frozen=True)
class Value:
    """A file and what it shall hold: the one value, or, of a choice file, the chosen word."""

    path: str
    text: str


@dataclass(frozen=True)
class Reading:
    """What a file held before this run, and what it shall hold."""

    value: Value
    now: str

    @property
    def holds(self) -> bool:
        """Whether both are the same to the kernel: blanks do not count, nor how it writes yes and no."""
        return _same(self.now, self.value.text)


@dataclass(frozen=True)
class Fault:
    """A file that does not hold what it shall, and why."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run: what was read, what went wrong, and files that this kernel does not have."""

    readings: list[Reading]
    faults: list[Fault]
    skipped: list[str]

    @property
    def changed(self) -> list[Reading]:
        """The values that were changed, or would be in check mode."""
        failed = {fault.path for fault in self.faults}
        return [reading for reading in self.readings if not reading.holds and reading.value.path not in failed]


def present(root: str, record: str, values: list[Value], *, write: bool) -> Outcome:
    """Have each file hold its value; with `write` false, say what that would change.

    Raises:
        NodeFileError: a path is not one of such a file, or the record cannot be used: nothing was changed.
    """
    path = below(root, record)
    found = _survey(root, values)
    if not write or all(reading.holds for reading in found.readings):
        return found
    with locked(path.parent):
        found = _survey(root, values)
        entries = {one.value.path: {"value": one.now} for one in found.readings if not one.holds}
        before.keep(path, SECTION, entries, root)
        return Outcome(found.readings, found.faults + _apply(root, found), found.skipped)


def reverted(root: str, record: str, paths: list[str], *, write: bool) -> Outcome:
    """Have the files hold what they held before our first change.

    Args:
        root: the node's file system.
        record: the record of first values, below `root`.
        paths: which of the recorded files; none means all of them.
        write: false only says what that would change.

    Raises:
        NodeFileError: the record cannot be used: nothing was changed.
    """
    path = below(root, record)
    if not write or not path.exists():
        return _survey(root, _recorded(path, paths))
    with locked(path.parent):
        found = _survey(root, _recorded(path, paths))
        faults = found.faults + _apply(root, found)
        kept = {fault.path for fault in faults}
        before.drop(path, SECTION, {one.value.path for one in found.readings} - kept)
        return Outcome(found.readings, faults, found.skipped)


def require_sound(root: str, record: str) -> None:
    """Refuse a record with an entry that `reverted` could not use.

    Raises:
        NodeFileError: the record cannot be used.
    """
    _recorded(below(root, record), [])


def lines(readings: list[Reading], *, after: bool) -> str:
    """One line a file, before or after the change: for diffs."""
    return "".join(f"{one.value.path} {one.value.text if after else one.now}\n" for one in readings)


def _recorded(path: Path, paths: list[str]) -> list[Value]:
    entries = before.load(path, SECTION)
    chosen = {name: entry for name, entry in entries.items() if not paths or name in paths}
    for name, entry in chosen.items():
        if not name.startswith(PLACES) or ".." in name.split("/") or not isinstance(entry.get("value"), str):
            raise before.damaged_entry(path, name)
    return [Value(name, entry["value"]) for name, entry in reversed(chosen.items())]


def _survey(root: str, values: list[Value]) -> Outcome:
    readings, faults, skipped = [], [], []
    for value in values:
        place = _place(root, value.path)
        try:
            reading = Reading(value, _read(place))
            if not reading.holds:
                _allow(place, value.text)
            readings.append(reading)
        except FileNotFoundError:
            skipped.append(value.path)
        except (OSError, ValueError) as error:
            faults.append(Fault(value.path, _reason(error)))
    return Outcome(readings, faults, skipped)


def _place(root: str, name: str) -> Path:
    if not name.startswith(PLACES):
        raise NodeFileError(f"{name!r} is not the path of a live value; expected one below {' or '.join(PLACES)}")
    return below(root, name)


def _read(place: Path) -> str:
    """The value, or the chosen word; a file that cannot be a live value is not opened."""
    text = _text(place)
    found = CHOSEN.search(text)
    return found[1] if found else text


def _allow(place: Path, wanted: str) -> None:
    """Refuse a word that a choice file does not offer, before anything is written."""
    text = _text(place)
    words = [word.strip("[]") for word in text.split()]
    if CHOSEN.search(text) and wanted not in words:
        raise ValueError(f"{wanted!r} is none of its choices: {', '.join(words)}")


def _text(place: Path) -> str:
    if not stat.S_ISREG(place.lstat().st_mode):
        raise ValueError("not a regular file")
    with place.open("rb") as file:
        return file.read(LIMIT).decode(errors="replace").strip()


def _apply(root: str, found: Outcome) -> list[Fault]:
    """Write what does not hold, and read it back; all of it is tried, whatever goes wrong on the way."""
    faults = []
    for reading in found.readings:
        if not reading.holds:
            why = _write(_place(root, reading.value.path), reading.value.text)
            faults += [Fault(reading.value.path, why)] if why else []
    return faults


def _write(place: Path, text: str) -> str:
    """Write one value; why the file does not hold it afterwards, or ""."""
    try:
        handle = os.open(place, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)
        now = _read(place)
    except (OSError, ValueError) as error:
        return f"cannot be set to {text!r}: {_reason(error)}"
    return "" if _same(now, text) else f"did not stick: wanted {text!r}, reads {now!r}"


def _same(one: str, other: str) -> bool:
    first, second = ([TRUTH.get(word, word) for word in text.split()] for text in (one, other))
    return first == second


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
