"""The record of what registers and live values were before their first change: what revert goes back to.

/var/lib/lanewise/before.json: {"schema": "lanewise.before/1", "registers": {"ADDRESS REGISTER": entry},
"values": {"PATH": entry}}. An entry has what its section needs (`device` and `word`, or `value`) and `kernel`, `driver`
and `time` of the first change. A first entry is never replaced: later ones would be our own values.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .node_files import DamagedError, damaged, read_document, remove_document, write_document

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

SCHEMA = "lanewise.before/1"
DEFAULT = "/var/lib/lanewise/before.json"
LOST = "the way back: what registers and live values were before, so that revert leaves them as they are now"

Entries = dict[str, dict[str, Any]]


def load(path: Path, section: str) -> Entries:
    """One section of the record, in the order of its writing.

    Raises:
        NodeFileError: the file is not such a record.
    """
    entries = _read(path).get(section, {})
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise damaged(path, f"is damaged in {section!r}", LOST)
    return entries


def keep(path: Path, section: str, entries: Entries, root: str) -> None:
    """Add those entries that are new. When this returns they are on disk, so that the change may be made.

    Raises:
        NodeFileError: the record cannot be read or written.
    """
    known = load(path, section)
    new = {key: {**entry, **_origin(root)} for key, entry in entries.items() if key not in known}
    if new:
        document = _read(path) or {"schema": SCHEMA}
        write_document(path, {**document, section: {**known, **new}})


def drop(path: Path, section: str, keys: Collection[str]) -> None:
    """Forget what was restored; a record that holds nothing any more is removed.

    Raises:
        NodeFileError: the record cannot be read or written.
    """
    known = load(path, section)
    left = {key: entry for key, entry in known.items() if key not in keys}
    if left == known:
        return
    document = {**_read(path), section: left}
    if any(value for key, value in document.items() if key != "schema"):
        write_document(path, document)
    else:
        remove_document(path)


def damaged_entry(path: Path, key: str) -> DamagedError:
    """The error for an entry that does not have what its section needs."""
    return DamagedError(
        f"{path}: the entry {key!r} is damaged; restore the file, or remove the entry and with it its way back"
    )


def _read(path: Path) -> dict[str, Any]:
    return read_document(path, SCHEMA, LOST)


def _origin(root: str) -> dict[str, str | None]:
    """When and under which kernel and driver (None: not loaded) something was first changed."""
    return {
        "kernel": _line(root, "proc/sys/kernel/osrelease"),
        "driver": _line(root, "sys/module/nvidia/version"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _line(root: str, name: str) -> str | None:
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:  # noqa: PTH118, PTH123
            return file.readline(256).strip()
    except OSError:
        return None
