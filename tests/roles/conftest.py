"""Real ansible-playbook runs on made-up nodes: trees of files, over a local connection."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.roles.makers_tree import node_tree

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "roles: runs ansible-playbook on trees of files (about 10 s a run)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("roles")
            item.add_marker(pytest.mark.timeout(300))


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has ended: its exit code, output, results by node, and Ansible's own count of changes by node."""

    code: int
    out: str
    results: dict[str, dict[str, Any]]
    changed: dict[str, int]


class Farm:
    """Made-up nodes below one folder that other users may look into, and ansible-playbook runs on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hosts: dict[str, dict[str, Any]] = {}
        self._groups: dict[str, list[str]] = {}
        self._runs = 0

    def add(self, name: str, *, group: str = "ungrouped", **variables: Any) -> Path:
        """A node of a group, with variables of the inventory; its tree."""
        root = node_tree(self.folder / name)
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "node_root": str(root)}
        self._hosts[name] = {**local, **variables}
        self._groups.setdefault(group, []).append(name)
        return root

    def inventory(self) -> Path:
        """The inventory file."""
        path = self.folder / "hosts.yml"
        groups = {group: {"hosts": dict.fromkeys(names)} for group, names in self._groups.items()}
        path.write_text(yaml.safe_dump({"all": {"hosts": self._hosts, "children": groups}}))
        return path

    def environment(self, results: Path) -> dict[str, str]:
        """Of ansible-playbook."""
        own = {
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(ROOT / "playbooks/roles"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_TIMEOUT": "5",
            "LC_ALL": "C.UTF-8",
            "LANEWISE_RESULTS": str(results),
        }
        return {**os.environ, **own}

    def command(self, playbook: str, *arguments: str) -> list[str]:
        """The command of a run."""
        program = str(Path(sys.executable).parent / "ansible-playbook")
        return [program, "-i", str(self.inventory()), str(ROOT / playbook), "--diff", *arguments]

    def play(self, playbook: str, *arguments: str) -> Done:
        """Run to the end."""
        self._runs += 1
        results = self.folder / f"results{self._runs}"
        command = self.command(playbook, *arguments)
        environment = self.environment(results)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
        found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
        recap = dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", done.stdout, re.MULTILINE))
        counts = {name: int(changed) for name, changed in recap.items()}
        return Done(code=done.returncode, out=done.stdout + done.stderr, results=found, changed=counts)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    """A folder for nodes: not pytest's own, which no other user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="lanewise-roles-"))
    folder.chmod(0o755)
    yield Farm(folder)
    shutil.rmtree(folder)


def verdicts(result: Mapping[str, Any]) -> dict[str, str]:
    """Settings to the verdicts of a result, as of its end."""
    return {one["setting"]: one["verdict"] for one in result["decisions"]}
