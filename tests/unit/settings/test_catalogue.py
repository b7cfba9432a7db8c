from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lanewise.errors import InputError
from playbooks.settings import settings_page
from playbooks.settings.catalogue import load_catalogue, parse_catalogue
from playbooks.settings.nccl_wishes import is_system, known_names

ROOT = Path(__file__).resolve().parents[3]
GOOD = {
    "id": "a_setting", "title": "A", "layer": "os", "policy": "opt-in", "value": "1", "apply": {"sysctl": "vm.a"},
    "why": "w", "read": "r", "source": ["https://example.org/"],
}  # fmt: skip


def test_every_setting_can_be_used_and_says_where_it_is_known_from() -> None:
    catalogue = load_catalogue()
    assert len(catalogue) > 100
    for setting in catalogue.values():
        assert re.fullmatch(r"[a-z0-9_]{3,40}", setting.id)
        assert all(url.startswith("https://") for url in setting.source)
        assert set(setting.recheck) <= set(catalogue)
        assert all(case.value and not isinstance(case.value, bool | int) for case in setting.cases)
        assert setting.check or setting.policy != "check" or setting.read
        assert "  " not in setting.why + setting.risk + setting.read


def test_defaults_have_a_value_and_a_way_to_be_applied() -> None:
    for setting in load_catalogue().values():
        if setting.policy == "default":
            assert setting.cases
            assert setting.mechanism not in ("", "by_hand", "nccl_system", "nccl_workload")


def test_nccl_settings_name_what_nccl_reads_and_go_where_its_guide_says() -> None:
    for setting in load_catalogue().values():
        if setting.mechanism in ("nccl_system", "nccl_workload") and setting.target != "file":
            assert setting.target in known_names()
            assert is_system(setting.target) == (setting.mechanism == "nccl_system")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": "red"}, "colour"),
        ({"why": ""}, "lacks why"),
        ({"layer": "kernal"}, "kernal"),
        ({"policy": "always"}, "always"),
        ({"apply": {"magic": "x"}}, "magic"),
        ({"apply": {}}, "no apply"),
        ({"check": "nothing"}, "nothing"),
        ({"when": {"fact": "moon"}}, "moon"),
    ],
)
def test_a_damaged_entry_is_refused_by_its_id(changes, says) -> None:
    assert parse_catalogue({"settings": [GOOD]})["a_setting"].target == "vm.a"
    with pytest.raises(InputError, match=rf"a_setting.*{says}"):
        parse_catalogue({"settings": [{**GOOD, **changes}]})


def test_an_id_is_there_once() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_catalogue({"settings": [GOOD, GOOD]})


def test_the_page_is_fresh() -> None:
    assert settings_page.main(["--check"]) == 0, "run: python -m playbooks.settings.settings_page"


def test_a_stale_page_is_told_and_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(settings_page, "PAGE", tmp_path / "settings.md")
    assert settings_page.main(["--check"]) == 1
    assert settings_page.main([]) == 0
    assert settings_page.main(["--check"]) == 0


def test_links_of_the_page_lead_somewhere() -> None:
    page = settings_page.page()
    headings = set(re.findall(r"^### (\S+)$", page, re.MULTILINE))
    assert set(re.findall(r"\]\(#(\S+?)\)", page)) == headings == set(load_catalogue())


def test_the_filter_works_in_ansible(tmp_path: Path) -> None:
    """Also with the types that Ansible makes of an inventory's text."""
    from tests.unit.settings.makers_node import record  # noqa: PLC0415

    (tmp_path / "record.json").write_text(json.dumps(record()), encoding="utf-8")
    play = tmp_path / "play.yml"
    play.write_text(
        """
- hosts: localhost
  gather_facts: false
  vars:
    wishes: {node_settings: {enable: [swappiness], values: {swappiness: "1"}}, node_virtualised: false,
             nccl_workloads: {a: {settings: {NCCL_ALGO: Ring}, reason: r, expires: 2027-01-01}}}
  tasks:
    - ansible.builtin.copy:
        content: "{{ lookup('file', 'record.json') | from_json | node_plan(wishes) | to_json }}"
        dest: plan.json
        mode: "0644"
""",
        encoding="utf-8",
    )
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local",
               "-e", f"ansible_python_interpreter={sys.executable}", str(play)]  # fmt: skip
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_FILTER_PLUGINS": str(ROOT / "playbooks" / "filter_plugins"),
    }  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["roles"]["kernel"]["kernel_sysctl"]["vm.swappiness"] == "1"
    assert plan["roles"]["nccl"]["nccl_workloads"]["a"]["expires"] == "2027-01-01"
