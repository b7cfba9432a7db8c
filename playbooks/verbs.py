"""The verbs that change nodes: ansible-playbook with progress, and its results as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.table import Table

from lanewise import talk
from lanewise.errors import ExitCode
from lanewise.files import shown_path
from lanewise.verbs import verb
from playbooks.nodes import ROOT, UNTOUCHED, require_nodes
from playbooks.results import exit_code, reasons
from playbooks.running import INVENTORY, new_folder, play

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
    return {"node_reboot_ok": reboot_ok, "node_lease_break": break_lease}


def _play(name: str, limit: str, inventory: str, extra: dict[str, bool], *, check: bool, json: bool) -> ExitCode:
    require_nodes(inventory, limit, without=(UNTOUCHED,))
    log, results = play(
        name,
        inventory,
        limit,
        extra,
        "--diff",
        *(["--check"] if check else []),
        folder=new_folder(ROOT / "runs" / name),
        expected=f"nodes of the inventory that --limit names, outside the group {UNTOUCHED}",
    )
    if json:
        talk.put_json({"verb": name, "log": str(log), "results": results})
    else:
        _show(results, log)
    return exit_code(results)


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
