"""Runs of the real playbooks on nodes of a test, and what came of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
Hosts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Played:
    """A run that has ended.

    Attributes:
        code: exit code of ansible-playbook.
        output: what it printed.
        results: result documents by node.
        changed: Ansible's own count of changed tasks by node.
        seconds: how long it took.
    """

    code: int
    output: str
    results: Mapping[str, Mapping[str, Any]]
    changed: Mapping[str, int]
    seconds: float

    def verdicts(self, node: str, *, before: bool = False) -> dict[str, str]:
        """Settings to their verdicts, at the end of the run or before it."""
        return {
            one["setting"]: one["verdict"] for one in self.results[node]["decisions_before" if before else "decisions"]
        }


@dataclass(frozen=True, kw_only=True)
class Plays:
    """Runs on some nodes.

    Attributes:
        folder: for inventory and results; empty.
        group: the node type whose settings apply, a folder of inventory/group_vars.
        hosts: the nodes with their variables.
    """

    folder: Path
    group: str
    hosts: Hosts

    def play(self, playbook: str, *arguments: str, seconds: float = 900) -> Played:
        """Run a playbook to its end."""
        with self.start(playbook, *arguments) as (process, results):
            began = time.monotonic()
            output, _ = process.communicate(timeout=seconds)
            return Played(
                code=process.returncode,
                output=output,
                results={path.stem: json.loads(path.read_text()) for path in results.glob("*.json")},
                changed={
                    name: int(count)
                    for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", output, re.MULTILINE)
                },
                seconds=time.monotonic() - began,
            )

    @contextmanager
    def start(self, playbook: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        """A run under way, and the folder of its results; it is killed if it has not ended with the block."""
        number = len(list(self.folder.glob("results*"))) + 1
        results = self.folder / f"results{number}"
        results.mkdir()
        program = str(Path(sys.executable).parent / "ansible-playbook")
        command = [program, "-i", str(self._inventory()), str(ROOT / f"playbooks/{playbook}.yml"), *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **self._environment(results)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process, results
        finally:
            process.kill()
            process.communicate()

    def record(self, node: str) -> dict[str, Any]:
        """A node's record, by record.yml."""
        played = self.play("record", "-e", f"record_folder={self.folder / 'records'}")
        assert played.code == 0, played.output
        record: dict[str, Any] = json.loads((self.folder / f"records/{node}.json").read_text())
        return record

    def _inventory(self) -> Path:
        folder = self.folder / "inventory"
        folder.mkdir(exist_ok=True)
        if not (folder / "group_vars").exists():
            (folder / "group_vars").symlink_to(ROOT / "inventory/group_vars")
        document = {"all": {"children": {self.group: {"hosts": {name: dict(one) for name, one in self.hosts.items()}}}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(document))
        return folder / "hosts.yml"

    def _environment(self, results: Path) -> dict[str, str]:
        return {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "home"),  # no connection of another run is shared
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "LANEWISE_RESULTS": str(results),
        }
