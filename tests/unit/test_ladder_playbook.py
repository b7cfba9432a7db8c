"""verify.yml and its verb against this machine, and a node that does not answer; nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from lanewise.errors import ExitCode
from playbooks import verify_verbs

INVENTORY = """\
all:
  hosts:
    here: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
    wrong:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
      node_settings: {enable: nonsense}
    away: {ansible_host: 127.0.0.1, ansible_port: 1}
"""


def test_each_node_has_a_result_whatever_becomes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    monkeypatch.setattr(verify_verbs, "RESULTS", tmp_path)
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "ansible"))
    with pytest.raises(Exit) as ended:
        verify_verbs.verify_node(Context(), inventory=str(tmp_path / "hosts.yml"), to="config", json=True)
    assert ended.value.code == ExitCode.FAILED
    results = {result["node"]: result for result in json.loads(capsys.readouterr().out)["results"]}
    assert [step["name"] for step in results["here"]["steps"]] == list(verify_verbs.STEPS)
    assert results["here"]["steps"][1]["status"] == "not run"
    assert (results["away"]["status"], results["away"]["steps"]) == ("unreachable", [])
    assert results["wrong"]["status"] == "failed"
    assert "nonsense" in results["wrong"]["message"]


@pytest.mark.parametrize("wrong", [{"to": "copies"}, {"inventory": "/nowhere/hosts.yml"}])
def test_wrong_options_are_refused(wrong: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as ended:
        verify_verbs.verify_node(Context(), **wrong)
    assert ended.value.code == ExitCode.INPUT
    assert "expected:" in capsys.readouterr().err
