"""The verbs that change nodes: ansible-playbook with progress, and its results as a table."""

from __future__ import annotations

import json as json_module
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from invoke.context import Context
from rich.table import Table

from lanewise import talk
from lanewise.errors import ExitCode, LanewiseError
from lanewise.files import shown_path, writing
from lanewise.verbs import verb
from playbooks.nodes import UNTOUCHED, require_nodes
from playbooks.results import exit_code, reasons

ROOT = Path(__file__).resolve().parents[1]
INVENTORY = "inventory/hosts.yml"
_END_SECONDS = 15
"""How long ansible-playbook may take to end its own processes when it is told to stop."""
_TAIL = 12
"""Lines of a log that say why there are no results."""

_OPTIONS = {
    "limit": "hosts or groups of the inventory, as ansible's --limit takes them",
    "check": "change nothing; say what would change, and why",
    "reboot_ok": "reboot nodes where a setting needs it",
    "inventory": "the inventory",
    "break_lease": "take nodes over from another run that you know to be dead",
    "json": "print the results as JSON",
}


@verb(**_OPTIONS)
def provision(
    _context: Context,
    limit: str = "",
    check: bool = False,
    reboot_ok: bool = False,
    inventory: str = INVENTORY,
    break_lease: bool = False,
    json: bool = False,
) -> ExitCode:
    """Bring nodes to the settings that follow from what they are, verify them, and say what waits for a reboot."""
    return _play("provision", limit, inventory, _extra(reboot_ok, break_lease), check=check, json=json)


@verb(**_OPTIONS)
def revert(
    _context: Context,
    limit: str = "",
    check: bool = False,
    reboot_ok: bool = False,
    inventory: str = INVENTORY,
    break_lease: bool = False,
    json: bool = False,
) -> ExitCode:
    """Take back what provision did: files, registers and live values as they were before the first change."""
    return _play("revert", limit, inventory, _extra(reboot_ok, break_lease), check=check, json=json)


def _extra(reboot_ok: bool, break_lease: bool) -> dict[str, bool]:
    return {"reboot_ok": reboot_ok, "node_lease_break": break_lease}


def _play(name: str, limit: str, inventory: str, extra: dict[str, bool], *, check: bool, json: bool) -> ExitCode:
    require_nodes(inventory, limit, without=(UNTOUCHED,))
    folder = ROOT / "runs" / name / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    log = folder / "ansible.log"
    with writing(log):
        folder.mkdir(parents=True)
        log.touch()
    command = [
        *(sys.executable, "-m", "ansible", "playbook", str(ROOT / f"playbooks/{name}.yml")),
        *("--inventory", str(Path(inventory).resolve()), "--extra-vars", json_module.dumps(extra), "--diff"),
        *(["--limit", limit] if limit else []),
        *(["--check"] if check else []),
    ]
    talk.say(f"log: {shown_path(log)}")
    run_playbook(command, folder, log)
    results = [json_module.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise LanewiseError(
            f"ansible-playbook ended without a result for any node: {last_lines(log)}",
            expected="nodes of the inventory that --limit names, outside the group record_only",
            todo=f"see {shown_path(log)}, and ansible-inventory --graph",
        )
    if json:
        talk.put_json({"verb": name, "log": str(log), "results": results})
    else:
        _show(results, log)
    return exit_code(results)


def run_playbook(command: list[str], folder: Path, log: Path) -> None:
    """Run ansible-playbook to its end, whatever that is; its results say how it went."""
    reading, telling = os.pipe()
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",  # Ansible does not start under another encoding
        "LANEWISE_EVENTS": str(telling),
        "LANEWISE_RESULTS": str(folder),
    }
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
    """Tell what nodes are at: a remark for each role that a node enters, and for each failure."""
    at: dict[str, str] = {}
    with talk.track("starting") as progress:
        for line in events:
            event = json_module.loads(line)
            node = event["node"]
            if "failed" in event:
                progress.remark(f"{node}: failed")
            elif event["role"] and at.get(node) != event["role"]:
                at[node] = event["role"]
                progress.remark(f"{node}: {event['role']}")


def _show(results: list[dict[str, Any]], log: Path) -> None:
    table = Table("node", "status", "changes", "in force", "waiting", "faults", "result", box=None, pad_edge=False)
    for result in results:
        verdicts = [one["verdict"] for one in result["decisions"]]
        table.add_row(
            result["node"],
            result["status"],
            str(len(result["changes"])),
            str(verdicts.count("in_force")),
            str(sum(map(len, result["waiting"].values()))),
            str(len(result["faults"])),
            shown_path(log.parent / f"{result['node']}.json"),
        )
    talk.put(table)
    for result in results:
        for line in reasons(result):
            talk.put(f"{result['node']}: {talk.printable(line)}")


def last_lines(log: Path) -> str:
    """The end of a log, as one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-_TAIL:])[-600:]
