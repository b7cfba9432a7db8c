"""The ladder on the controller: its first step, what faults mean, results and exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lanewise.errors import ExitCode
from playbooks.module_utils.ladder_steps import NAMES
from playbooks.settings.catalogue import load_catalogue
from playbooks.settings.faults import config_step, fault_kinds, told, verify_result
from playbooks.verify_verbs import STEPS, exit_code
from tests.unit.makers_ladder import LIMITS, decision
from tests.unit.makers_modules import run_module

ROOT = Path(__file__).resolve().parents[2]
KINDS = yaml.safe_load((ROOT / "playbooks/settings/faults.yaml").read_text())


def test_every_code_that_a_step_reports_is_explained_and_no_other() -> None:
    sources = [*(ROOT / "playbooks/module_utils").glob("ladder*.py"), ROOT / "playbooks/settings/faults.py"]
    pattern = re.compile(r'"((?:P2P|COPY|HOST|BANDWIDTH|WRITE|ALLREDUCE|CONFIG)_[A-Z_0-9]*[A-Z])"')
    assert {code for source in sources for code in pattern.findall(source.read_text())} == set(fault_kinds())


def test_remedies_name_settings_and_causes_that_there_are() -> None:
    causes = {entry["id"] for entry in yaml.safe_load((ROOT / "tuning/causes.yaml").read_text())["causes"]}
    assert {kind.cause for kind in fault_kinds().values()} - {""} <= causes
    assert {name for kind in fault_kinds().values() for name in kind.settings} <= set(load_catalogue())
    assert set(KINDS["decisive"]) <= set(load_catalogue())
    sourced = [kind for kind in fault_kinds().values() if not kind.code.startswith("CONFIG_")]
    assert all(url.startswith("https://") for kind in sourced for url in kind.source or ["none"])


def test_a_cause_of_the_same_name_is_the_same_fault() -> None:
    causes = {entry["id"] for entry in yaml.safe_load((ROOT / "tuning/causes.yaml").read_text())["causes"]}
    same = {kind.code: kind.cause for kind in fault_kinds().values() if kind.code.lower().replace("_", "-") in causes}
    assert same == {"WRITE_COLLAPSE": "write-collapse"}


def test_the_limits_are_those_that_the_steps_are_tested_with() -> None:
    assert {key: KINDS["limits"][key] for key in LIMITS} == LIMITS


def config(*decisions: dict[str, Any]) -> dict[str, Any]:
    return config_step({"decisions": [decision("swappiness", "in_force"), *decisions]})


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (decision("link_width", "fault"), "CONFIG_FAULT"),
        (decision("numa_balancing", "apply"), "CONFIG_NOT_IN_FORCE"),
        (decision("docker_shm_size", "apply", takes_effect="next_start"), "CONFIG_NOT_IN_FORCE"),
        (decision("iommu_mode", "apply", takes_effect="reboot"), "CONFIG_PENDING"),
        (decision("uvm_disable_hmm", "apply", takes_effect="reload"), "CONFIG_PENDING"),
    ],
)
def test_what_is_not_in_force_is_a_fault_with_its_code(found: dict[str, Any], code: str) -> None:
    step = config(found)
    assert (step["status"], [fault["code"] for fault in step["faults"]]) == ("fault", [code])


@pytest.mark.parametrize(
    "found",
    [
        decision("acs_redirect", "refuse"),
        decision("link_width", "unknown"),
    ],
)
def test_what_decides_and_cannot_be_read_is_unknown_and_never_ok(found: dict[str, Any]) -> None:
    assert (config(found)["status"], config(found)["reason"]) == ("unknown", f"{found['setting']}: because")


@pytest.mark.parametrize(
    ("found", "remark"),
    [
        (decision("aer_counters", "unknown"), "not known: aer_counters: because"),
        (
            decision("uvm_disable_hmm", "apply", now="module not loaded"),
            "cannot be read back: uvm_disable_hmm: module not loaded",
        ),
    ],
)
def test_what_else_cannot_be_read_is_told_beside(found: dict[str, Any], remark: str) -> None:
    step = config(found)
    assert (step["status"], step["evidence"]) == ("ok", ["1 settings in force, 0 checks ok", remark])


def test_nothing_checked_is_no_pass() -> None:
    assert config_step({"decisions": [decision("mig", "skip")]})["status"] == "unknown"


def step(name: str, status: str, *codes: str) -> dict[str, Any]:
    faults = [{"code": code, "where": "GPU0-GPU1", "found": "it"} for code in codes]
    return {"name": name, "status": status, "reason": "", "faults": faults, "evidence": [], "measured": []}


def test_a_result_explains_its_faults() -> None:
    result = verify_result(
        "n1", {"node": {}}, {"steps": [step("config", "ok"), step("copy", "fault", "COPY_HANG")]}, ""
    )
    assert result["status"] == "fault"
    assert result["steps"][1]["faults"][0]["cause"] == "hang"
    lines = told(result)
    assert lines[0] == "copy: COPY_HANG GPU0-GPU1: it"
    assert lines[1].startswith("remedy: COPY_HANG: ACS redirect off")
    assert "docs/settings.md: acs_redirect" in lines[1]


@pytest.mark.parametrize(
    ("read", "climbed", "status"),
    [
        ({"unreachable": True, "msg": "no route"}, {}, "unreachable"),
        ({"node": {}}, {"unreachable": True, "msg": "no route"}, "unreachable"),
        ({"failed": True, "msg": "no python"}, {}, "failed"),
        ({"node": {}}, {"failed": True, "msg": "the inventory is wrong"}, "failed"),
    ],
)
def test_a_node_that_could_not_be_verified_says_why(read: dict[str, Any], climbed: dict[str, Any], status: str) -> None:
    result = verify_result("n1", read, climbed, "")
    assert (result["status"], told(result)) == (status, [f"{status}: {(climbed or read)['msg']}"])


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["ok", "ok"], ExitCode.DONE),
        (["ok", "fault"], ExitCode.ANSWER_IS_NO),
        (["fault", "unreachable"], ExitCode.UNREACHABLE),
        (["unreachable", "failed"], ExitCode.FAILED),
        (["ok", "unknown"], ExitCode.FAILED),
    ],
)
def test_the_worst_node_decides_the_exit_code(statuses: list[str], code: ExitCode) -> None:
    assert exit_code(statuses) == code


def test_the_verb_knows_the_steps() -> None:
    assert STEPS == NAMES


def test_the_module_goes_on_from_the_step_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    steps = run_module("node_ladder", capsys, config=step("config", "fault", "CONFIG_FAULT"))["steps"]
    assert [one["status"] for one in steps] == ["fault", *["not run"] * 5]
    assert steps[0]["faults"][0]["code"] == "CONFIG_FAULT"
