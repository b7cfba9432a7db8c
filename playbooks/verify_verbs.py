"""The verb that verifies nodes: playbooks/verify.yml, and its results as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.table import Table

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from lanewise.verbs import verb
from playbooks.nodes import ROOT, require_nodes
from playbooks.running import INVENTORY, new_folder, play
from playbooks.settings.faults import FAILED, FAULT, OK, UNKNOWN, UNREACHABLE, told

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
    folder = new_folder(RESULTS)
    extra = {"ladder_to": to, "ladder_folder": str(folder), **({"ladder_python": python} if python else {})}
    expected = "nodes that the inventory and --limit name"
    log, results = play("verify", inventory, limit, extra, folder=folder, expected=expected)
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
