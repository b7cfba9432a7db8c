"""Real ansible-playbook runs against this machine; nothing on it is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.makers_node import fake_rig

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def ansible(program: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    # Ansible refuses to start under a locale that is not UTF-8.
    environment = {**os.environ, "ANSIBLE_HOME": str(home), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    command = [str(BIN / program), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, env=environment)


@pytest.mark.parametrize("more", [(), ("--check", "--diff")], ids=["apply", "check"])
def test_record_writes_what_the_reader_says(tmp_path: Path, more: tuple[str, ...]) -> None:
    folder = tmp_path / "records"
    done = ansible("ansible-playbook", "playbooks/record.yml", "-e", f"record_folder={folder}", *more, home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if more:
        assert not folder.exists()
        return
    record = json.loads((folder / "this-machine.json").read_text())
    script = [sys.executable, "playbooks/module_utils/node_record.py"]
    direct = json.loads(subprocess.run(script, cwd=ROOT, capture_output=True, check=True).stdout)
    for part in ("schema", "cpu", "pci", "gpus"):
        assert record[part] == direct[part]


def test_the_module_reads_another_root_and_refuses_what_is_none(tmp_path: Path) -> None:
    fake_rig(tmp_path / "node")
    place = ("this-machine", "-m", "gpu_node_info", "-o", "-a")
    done = ansible("ansible", *place, f"root={tmp_path}/node", home=tmp_path)
    node = json.loads(done.stdout.partition("=>")[2])["node"]
    assert (node["host"]["hostname"], len(node["gpus"])) == ("node7", 8)
    assert {device["acs_control"] for device in node["pci"] if device["port_type"] == "root_port"} == {0x1D}
    wrong = ansible("ansible", *place, f"root={tmp_path}/no", home=tmp_path)
    assert wrong.returncode != 0
    assert "which is no directory; expected one that holds sys, proc and etc" in wrong.stdout


def test_the_module_is_documented(tmp_path: Path) -> None:
    done = ansible("ansible-doc", "-M", "playbooks/library", "-t", "module", "gpu_node_info", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "node record" in done.stdout.lower()
