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
from playbooks.settings.plan import make_plan
from playbooks.verify_verbs import STEPS, exit_code
from tests.unit.makers_ladder import LIMITS, decision
from tests.unit.makers_modules import run_module
from tests.unit.settings.makers_node import behind_switches, record

ROOT = Path(__file__).resolve().parents[2]
KINDS = yaml.safe_load((ROOT / "playbooks/settings/faults.yaml").read_text())


def test_every_code_that_a_step_reports_is_explained_and_no_other() -> None:
    sources = [*(ROOT / "playbooks/module_utils").glob("ladder*.py"), ROOT / "playbooks/settings/faults.py"]
    pattern = re.compile(r'"((?:DRIVER|P2P|COPY|HOST|BANDWIDTH|WRITE|ALLREDUCE|CONFIG)_[A-Z_0-9]*[A-Z])"')
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


def config_of(decisions: list[dict[str, Any]], **of_record: Any) -> dict[str, Any]:
    roles = {"pcie": {"gpu_match": ["10de:0302"]}}
    return config_step({"decisions": decisions, "roles": roles}, record(**of_record))


def config(*decisions: dict[str, Any], **of_record: Any) -> dict[str, Any]:
    return config_of([decision("swappiness", "in_force"), *decisions], **of_record)


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
    assert config_of([decision("mig", "skip")])["status"] == "unknown"


NO_DRIVER = {"present": False, "version": None, "kernel_module": None}


def test_gpus_without_a_driver_are_a_fault_and_what_only_a_driver_tells_is_skipped_and_named() -> None:
    driverless = {**record(driver=NO_DRIVER), "gpus": "unknown"}
    step = config_step(make_plan(driverless, {}), driverless)
    found = [fault for fault in step["faults"] if fault["code"] == "DRIVER_MISSING"]
    assert [fault["where"].split(",")[0] for fault in found] == ["0000:03:00.0"]
    skipped = next(line for line in step["evidence"] if line.startswith("not checked, no NVIDIA driver: "))
    assert {"mig_off", "compute_mode", "throttle", "bar1_size"} <= set(skipped.partition(": ")[2].split(", "))
    assert not [line for line in step["evidence"] if line.startswith("not known: ") and "mig" in line]


@pytest.mark.parametrize(
    "of_record",
    [
        {"driver": NO_DRIVER, "pci": []},
        {"driver": NO_DRIVER, "pci": [{**one, "driver": "vfio-pci"} for one in behind_switches()]},
        {"driver": {"present": "unknown"}},
        {},
    ],
    ids=["no GPU", "given to guests", "it cannot be told", "there is one"],
)
def test_no_driver_is_no_fault_where_none_is_needed_or_it_cannot_be_told(of_record: dict[str, Any]) -> None:
    assert config(**of_record)["status"] == "ok"


def step(name: str, status: str, *codes: str) -> dict[str, Any]:
    faults = [{"code": code, "where": "GPU0-GPU1", "found": "it"} for code in codes]
    return {"name": name, "status": status, "reason": "", "faults": faults, "evidence": [], "measured": []}


def test_a_result_explains_its_faults() -> None:
    steps = [step("config", "ok"), step("copy", "fault", "COPY_HANG")]
    result = verify_result("n1", {"node": {}}, {"steps": steps}, "", untouched=False)
    assert result["status"] == "fault"
    assert result["steps"][1]["faults"][0]["cause"] == "hang"
    lines = told(result)
    assert lines[:2] == ["verified: config; not verified: copy", "copy: COPY_HANG GPU0-GPU1: it"]
    assert lines[2].startswith("remedy: COPY_HANG: ACS redirect off")
    assert "docs/settings.md: acs_redirect" in lines[2]


def test_a_node_that_is_only_read_is_not_told_to_be_provisioned() -> None:
    codes = ("CONFIG_NOT_IN_FORCE", "CONFIG_PENDING", "DRIVER_MISSING")
    steps = {"steps": [step("config", "fault", *codes, "CONFIG_FAULT")]}
    others, read_only = (verify_result("n1", {}, steps, "", untouched=untouched) for untouched in (False, True))
    assert "./inv provision" in " ".join(told(others))
    assert not {"provision", "runtime_install"} & set(re.findall(r"\w+", " ".join(told(read_only))))
    assert "record_only" in " ".join(told(read_only))
    assert [fault["remedy"] for fault in read_only["steps"][0]["faults"] if "provision" in fault["remedy"]] == []


def test_every_remedy_that_provisions_has_another_for_nodes_that_are_only_read() -> None:
    advising = {kind.code for kind in fault_kinds().values() if re.search("provision|runtime_install", kind.remedy)}
    assert advising == {kind.code for kind in fault_kinds().values() if kind.by_hand}


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
    result = verify_result("n1", read, climbed, "", untouched=False)
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
    steps = run_module("node_ladder", capsys, config=step("config", "fault", "CONFIG_FAULT"), to="config")["steps"]
    assert [one["status"] for one in steps] == ["fault", *["not run"] * 5]
    assert steps[0]["faults"][0]["code"] == "CONFIG_FAULT"
