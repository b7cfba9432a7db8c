"""Runs a playbook for a verb: progress while it runs, its log and each node's result in a folder of the run's own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from lanewise import talk
from lanewise.errors import LanewiseError
from lanewise.files import shown_path, writing
from playbooks.nodes import ROOT, ansible_environment

INVENTORY = "inventory/hosts.yml"
_END_SECONDS = 15
"""How long ansible-playbook may take to end its own processes when it is told to stop."""
_TAIL = 12
"""Lines of a log that say why there are no results."""


def play(
    name: str, inventory: str, limit: str, extra: Mapping[str, Any], *options: str, folder: Path, expected: str
) -> tuple[Path, list[dict[str, Any]]]:
    """Run a playbook to its end, whatever that is: its log, and the results of its nodes.

    Args:
        name: of the playbook.
        inventory, limit: whom it is about.
        extra: variables.
        options: further options of ansible-playbook.
        folder: log and results lie here.
        expected: nodes that it works on, in words.

    Raises:
        LanewiseError: it ended without a result for any node.
    """
    log = folder / "ansible.log"
    with writing(log):
        folder.mkdir(parents=True)
        log.touch()
    command = [
        *(sys.executable, "-m", "ansible", "playbook", str(ROOT / f"playbooks/{name}.yml")),
        *("--inventory", str(Path(inventory).resolve()), "--extra-vars", json.dumps(extra), *options),
        *(["--limit", limit] if limit else []),
    ]
    talk.say(f"log: {shown_path(log)}")
    _run(command, folder, log)
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise LanewiseError(
            f"ansible-playbook ended without a result for any node: {_last_lines(log)}",
            expected=expected,
            todo=f"see {shown_path(log)}, and ansible-inventory --graph",
        )
    return log, results


def new_folder(below: Path) -> Path:
    """A folder for a run, named by the time; it is not made yet."""
    return below / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def _run(command: list[str], folder: Path, log: Path) -> None:
    """Run ansible-playbook to its end, whatever that is; its results say how it went."""
    reading, telling = os.pipe()
    environment = {**ansible_environment(), "LANEWISE_EVENTS": str(telling), "LANEWISE_RESULTS": str(folder)}
    with log.open("wb") as output, os.fdopen(reading, "rb") as events:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[telling],
            )
        finally:
            os.close(telling)
        with _ending(process):
            _follow(events)
            process.wait()


@contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """However the block ends, the process does, and its workers with it, which it ends when it is interrupted."""
    try:
        yield
    except BaseException:
        talk.say("stopping; what a node's lease still holds ends when the next run from here begins")
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _follow(events: BinaryIO) -> None:
    """Tell what nodes are at: a remark for the preflight, for each role that a node enters, and for each failure."""
    at: dict[str, str] = {}
    looked: set[str] = set()  # each role's preflight runs twice: before all roles, and with its own
    with talk.track("starting") as progress:
        for line in events:
            event = json.loads(line)
            node = event["node"]
            if "failed" in event:
                progress.remark(f"{node}: failed")
            elif event["phase"]:
                if node not in looked:
                    progress.remark(f"{node}: {event['phase']}")
                looked.add(node)
            elif event["role"] and at.get(node) != event["role"]:
                at[node] = event["role"]
                progress.remark(f"{node}: {event['role']}")


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-_TAIL:])[-600:]
