"""The verb that verifies nodes: playbooks/verify.yml, and its results as a table."""

from __future__ import annotations

import json as json_module
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.table import Table

from lanewise import talk
from lanewise.errors import ExitCode, InputError, LanewiseError
from lanewise.files import shown_path, writing
from lanewise.verbs import verb
from playbooks.nodes import require_nodes
from playbooks.settings.faults import FAILED, FAULT, OK, UNKNOWN, UNREACHABLE, told
from playbooks.verbs import INVENTORY, ROOT, last_lines, run_playbook

RESULTS = ROOT / "runs/verify"
STEPS = ("config", "p2p", "copy", "rates", "allreduce", "engine")
"""As playbooks/module_utils/ladder_steps.py has them, which runs on nodes."""


@verb(
    limit="hosts or groups of the inventory, as ansible's --limit takes them",
    inventory="the inventory",
    to=f"the last step to do: {', '.join(STEPS)}",
    python="for step allreduce: an interpreter on the nodes that has cuda-bindings, numpy and NCCL",
    json="print the results as JSON",
)
def verify_node(
    _context: Context,
    limit: str = "",
    inventory: str = INVENTORY,
    to: str = STEPS[-1],
    python: str = "",
    json: bool = False,
) -> ExitCode:
    """Check nodes from cheap to expensive, up to the first failure: settings, P2P, data, bandwidth, sums."""
    if to not in STEPS:
        raise InputError(f"--to is {to!r}", expected=f"one of {', '.join(STEPS)}", todo="name one of these")
    require_nodes(inventory, limit)
    folder = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    log = folder / "ansible.log"
    with writing(log):
        folder.mkdir(parents=True)
        log.touch()
    talk.say(f"log: {shown_path(log)}")
    extra = {"ladder_to": to, "ladder_folder": str(folder), **({"ladder_python": python} if python else {})}
    command = [
        *(sys.executable, "-m", "ansible", "playbook", str(ROOT / "playbooks/verify.yml")),
        *("--inventory", str(Path(inventory).resolve()), "--extra-vars", json_module.dumps(extra)),
        *(["--limit", limit] if limit else []),
    ]
    run_playbook(command, folder, log)
    results = [json_module.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise LanewiseError(
            f"ansible-playbook ended without a result for any node: {last_lines(log)}",
            expected="nodes that the inventory and --limit name",
            todo=f"see {shown_path(log)}, and ansible-inventory --graph",
        )
    if json:
        talk.put_json({"verb": "verify-node", "log": str(log), "results": results})
    else:
        _show(results, folder)
    return exit_code([str(result["status"]) for result in results])


def exit_code(statuses: Sequence[str]) -> ExitCode:
    """The worst of the nodes: failed, unreachable, a fault, a step that could not be told, ok."""
    for status, code in (
        (FAILED, ExitCode.FAILED),
        (UNREACHABLE, ExitCode.UNREACHABLE),
        (FAULT, ExitCode.ANSWER_IS_NO),
        (UNKNOWN, ExitCode.FAILED),
    ):
        if status in statuses:
            return code
    assert set(statuses) <= {OK}
    return ExitCode.DONE


def _show(results: Sequence[Mapping[str, Any]], folder: Path) -> None:
    table = Table("node", "status", *STEPS, "result", box=None, pad_edge=False)
    for result in results:
        steps = {step["name"]: step["status"] for step in result["steps"]}
        found = shown_path(folder / f"{result['node'].replace('/', '_')}.json")
        table.add_row(result["node"], result["status"], *(steps.get(name, "") for name in STEPS), found)
    talk.put(table)
    for result in results:
        for line in told(result):
            talk.put(f"{result['node']}: {talk.printable(line)}")
