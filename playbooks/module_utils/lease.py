"""One run a node at a time, by a lease on the node that ends by itself; and the node's record before we owned anything.

/var/lib/lanewise/lease.json says who works on the node, and until when by the node's own clock. The lock of node_files
guards single writes; a run is many of them.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .node_files import DamagedError, below, locked, read_document, remove_document, write_document

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "lanewise.lease/1"
STATE = "/var/lib/lanewise"
LEASE = "lease.json"
RECORD = "record-before.json"
RECORD_SCHEMA = "lanewise.node-record/1"
_LOST = "what the node was before the first change: revert then compares with nothing"
LONGEST = 86400
"""Seconds of the longest lease that a run may take: a day, where it asks for an hour (node_lease_seconds)."""
_NEVER = 253402300800.0
"""The year 10000."""
OURS = ("before.json", "owned.json", "power-before.json", "refreshed.json")
"""Where there is none of these, nothing on the node is of our doing."""


@dataclass(frozen=True)
class Holder:
    """Who holds a node: the controller as user@host, the process there (0: not known), and times in Unix seconds."""

    controller: str
    pid: int
    since: float
    until: float

    def is_run(self, controller: str, pid: int) -> bool:
        """Whether this is that run itself."""
        return (self.controller, self.pid) == (controller, pid)

    def beyond(self, now: float) -> bool:
        """Whether it ends later than any run could have said, so that waiting for its end is no advice.

        The document was made by something else, or the node's clock was set back; its run may be alive.
        """
        return self.until > now + LONGEST


def take(root: str, controller: str, pid: int, seconds: float, over: list[int], *, write: bool) -> Holder | None:
    """Take the lease for a run; who holds it, where that is another run.

    Args:
        root: the node's file system.
        controller: user@host of the run.
        pid: its process there.
        seconds: how long the lease lasts, unless it is released before; at most LONGEST.
        over: processes on that controller that are known to be dead: their lease ends here. 0 stands for any holder.
        write: false asks only.

    Raises:
        ValueError: no lease lasts so long.
        NodeFileError: the node's folder cannot be used.
    """
    if not 0 < seconds <= LONGEST:
        raise ValueError(
            f"a lease of {seconds:g} s; expected 1 to {LONGEST} s; next: correct node_lease_seconds in the inventory"
        )
    path = below(root, f"{STATE}/{LEASE}")
    if not write:
        return _other(path, controller, pid, over)
    with locked(path.parent):
        holder = _other(path, controller, pid, over)
        if holder is None:
            now = time.time()
            write_document(path, {"schema": SCHEMA, **asdict(Holder(controller, pid, now, now + seconds))})
        return holder


def release(root: str, controller: str, pid: int, *, forget: bool) -> None:
    """Give the lease back, if this run holds it; with `forget`, drop the record of before as well, if nothing is ours.

    Raises:
        NodeFileError: the node's folder cannot be used.
    """
    path = below(root, f"{STATE}/{LEASE}")
    if not path.exists():
        return
    with locked(path.parent):
        holder = _holder(path)
        if holder and holder.is_run(controller, pid):
            remove_document(path)
            if forget and not _anything_ours(path.parent):
                remove_document(path.parent / RECORD)


def record_before(root: str, record: dict[str, Any], *, write: bool) -> dict[str, Any]:
    """The node's record as it was before anything here was of our doing; kept now, if nothing is.

    Raises:
        NodeFileError: the node's folder cannot be used.
    """
    path = below(root, f"{STATE}/{RECORD}")
    if _anything_ours(path.parent):
        return read_document(path, RECORD_SCHEMA, _LOST)
    if write and record:
        with locked(path.parent):
            write_document(path, record)
    return record


def _anything_ours(folder: Path) -> bool:
    return any((folder / name).exists() for name in OURS)


def _other(path: Path, controller: str, pid: int, over: list[int]) -> Holder | None:
    holder = _holder(path)
    if holder is None or holder.is_run(controller, pid) or holder.until < time.time():
        return None
    dead = 0 in over or (holder.controller == controller and holder.pid in over)
    return None if dead else holder


def _holder(path: Path) -> Holder | None:
    try:
        document = read_document(path, SCHEMA, "nothing")
        holder = Holder(
            str(document["controller"]), int(document["pid"]), float(document["since"]), float(document["until"])
        )
    except (DamagedError, LookupError, TypeError, ValueError, OverflowError):
        return None  # no lease, or a damaged one, which holds nobody back
    return holder if 0 <= holder.until < _NEVER else None  # nor does one without an end, or with none that is a time
