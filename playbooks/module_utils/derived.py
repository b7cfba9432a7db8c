"""What commands make of what we wrote, such as grub.cfg: due when that differs from what it was last made of.

A handler that Ansible was to run is lost when the run dies before it. Here the last success is remembered on the node
instead, in /var/lib/lanewise/refreshed.json: {"schema": "lanewise.refreshed/1", "done": {NAME: SHA-256 of the facts}}.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .node_files import below, damaged, locked, read_document, remove_document, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Run = Callable[[Sequence[str]], str]  # a command to what went wrong, "" if nothing

SCHEMA = "lanewise.refreshed/1"
RECORD = "/var/lib/lanewise/refreshed.json"
LOST = "a way back: revert then leaves what commands made of our files (grub.cfg, initramfs, services, CDI)"


@dataclass(frozen=True)
class Item:
    """One thing that is made of others.

    Args:
        name: its name in the record.
        facts: the text that decides it, e.g. the content of a file of ours; empty: there shall be no such thing.
        command: what makes it anew; empty where only files are removed.
        undo: what takes it back when its facts are gone; empty where nothing has to be run.
        unless: a command that changes nothing; where it succeeds and we did not make the thing, it is another's.
        remove: patterns of absolute paths: regular files to remove, caches of what is not so any more.
        requires: absolute paths without which the node has no such thing.
        produces: absolute path that the command writes. One that we did not make is left alone; ours goes with us.
    """

    name: str
    facts: str = ""
    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    produces: str = ""


@dataclass
class Outcome:
    """What came of a run: names made anew or taken back, names passed over with the reason, files removed, faults."""

    refreshed: list[str] = field(default_factory=list)
    passed_over: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def refresh(root: str, items: Sequence[Item], run: Run | None, *, write: bool) -> Outcome:
    """Make anew what is due, in order; with `write` false, say what that would be.

    One that fails does not keep the others from being tried; it stays due.

    Args:
        root: the node's file system.
        items: what there is to make.
        run: runs a command; None where there is none to run, below another root than /: such items are passed over.
        write: whether to act.

    Raises:
        NodeFileError: the record, or a path, cannot be used.
    """
    path = below(root, RECORD)
    if not write or not _due(items, load(path)):
        return _refresh(root, path, items, run, write=False)
    with locked(path.parent):
        return _refresh(root, path, items, run, write=True)


def _due(items: Sequence[Item], known: dict[str, str]) -> list[Item]:
    return [item for item in items if _fingerprint(item) != known.get(item.name)]


def _refresh(root: str, path: Path, items: Sequence[Item], run: Run | None, *, write: bool) -> Outcome:
    known, outcome = load(path), Outcome()
    for item in _due(items, known):
        command = item.command if item.facts else item.undo
        if reason := _unable(root, item, command, run, ours=item.name in known):
            outcome.passed_over[item.name] = reason
            continue
        stale = _matching(root, item.remove if item.facts else (item.produces,))
        if write and (trouble := _make(root, stale, command, run)):
            outcome.faults.append(f"{item.name}: {trouble}")
            continue
        if write:
            known = {name: done for name, done in known.items() if name != item.name}
            known |= {item.name: made} if (made := _fingerprint(item)) else {}
            _store(path, known)
        outcome.refreshed += [item.name] if command or stale else []
        outcome.removed += stale
    return outcome


def _fingerprint(item: Item) -> str | None:
    return hashlib.sha256(item.facts.encode()).hexdigest() if item.facts else None


def _unable(root: str, item: Item, command: tuple[str, ...], run: Run | None, *, ours: bool) -> str:
    """Why an item that is due is passed over, or ""."""
    for name in item.requires:
        if not below(root, name).exists():
            return f"this node has no {name}"
    if command and run is None:
        return f"{command[0]} is not run for another root"
    if not ours and item.produces and below(root, item.produces).exists():
        return f"{item.produces} is another owner's"
    if not ours and item.unless and run and not run(item.unless):
        return f"another owner's: {' '.join(item.unless)} succeeds"
    return ""


def _matching(root: str, patterns: tuple[str, ...]) -> list[str]:
    """The regular files that match, as paths on the node."""
    top = os.path.realpath(root).rstrip("/")
    names = [name[len(top) :] for pattern in patterns if pattern for name in glob.glob(top + pattern)]  # noqa: PTH207
    return sorted(name for name in names if stat.S_ISREG(below(root, name).lstat().st_mode))


def _make(root: str, stale: list[str], command: tuple[str, ...], run: Run | None) -> str:
    """Remove and run; what went wrong, or ""."""
    for name in stale:
        try:
            below(root, name).unlink()
        except OSError as error:
            return f"cannot remove {name}: {error.strerror}"
    return run(command) if run and command else ""


def load(path: Path) -> dict[str, str]:
    """What was made on this node, name to the hash of its facts.

    Raises:
        NodeFileError: the file is not such a record.
    """
    done = read_document(path, SCHEMA, LOST).get("done", {})
    if not isinstance(done, dict):
        raise damaged(path, "is damaged in 'done'", LOST)
    return done


def _store(path: Path, known: dict[str, str]) -> None:
    if known:
        write_document(path, {"schema": SCHEMA, "done": known})
    else:
        remove_document(path)
