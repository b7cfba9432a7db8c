"""Which nodes a verb is about, known before anything runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lanewise.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
UNTOUCHED = "record_only"
"""The group of nodes that are read and never changed."""
_MOST_WORDS = 400


def ansible_environment() -> dict[str, str]:
    """This process's environment, with what has Ansible run as this clone configures it."""
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",  # Ansible does not start under another encoding
    }


def require_nodes(inventory: str, limit: str, *, without: Iterable[str] = ()) -> tuple[str, ...]:
    """The nodes that an inventory and --limit name, outside the groups `without`; takes about a second.

    Raises:
        InputError: there is no such inventory, it cannot be read, or it names none.
    """
    if not Path(inventory).exists():
        raise InputError(f"there is no inventory {inventory}", expected="a file of hosts", todo="check --inventory")
    command = [sys.executable, "-m", "ansible", "inventory", "--list", "--inventory", str(Path(inventory).resolve())]
    told = subprocess.run(
        [*command, *(["--limit", limit] if limit else [])],
        cwd=ROOT,
        env={**ansible_environment(), "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    nodes = _nodes(json.loads(told.stdout), set(without)) if not told.returncode else []
    if told.returncode and "--limit leaves us with no hosts" not in told.stderr:
        raise InputError(
            f"inventory {inventory} cannot be read: {' '.join(told.stderr.split())[:_MOST_WORDS]}",
            expected="an inventory as Ansible reads it",
            todo=f"ansible-inventory --inventory {inventory} --graph says more",
        )
    if not nodes:
        outside = f", outside the group {', '.join(without)}" if without else ""
        raise InputError(
            f"no node is named by {inventory}" + (f" and --limit {limit!r}" if limit else ""),
            expected=f"nodes{outside}",
            todo=f"add them to {inventory}; ansible-inventory --graph shows what it names",
        )
    return tuple(nodes)


def _nodes(groups: dict[str, Any], without: set[str]) -> list[str]:
    named = {name: set(group.get("hosts", ())) for name, group in groups.items() if name != "_meta"}
    return sorted(set().union(*named.values()) - set().union(*(named.get(name, set()) for name in without)))
