"""Filters of the roles and plays: what is refused, what is read, what follows from a plan."""

from __future__ import annotations

from typing import Any

import pytest

from playbooks.filter_plugins.node_facts import nccl_conf, p2p_facts, record_differences, runtime_state
from playbooks.filter_plugins.node_outcome import plan_outcome
from playbooks.filter_plugins.unwritable import (
    unpinned_packages,
    unwritable_nccl,
    unwritable_options,
    unwritable_values,
    unwritable_words,
    unwritable_workloads,
)

DOTTED = "[a-z0-9_]+([.][a-z0-9_-]+)+"


@pytest.mark.parametrize("word", ["iommu=pt", "pci=disable_acs_redir=0000:40:01.1;0000:c0:01.1", "nvme_core.x=0"])
def test_plain_words_may_go_to_the_command_line(word: str) -> None:
    assert unwritable_words([word]) == []


@pytest.mark.parametrize("word", ["a b", "a'b", 'a"b', "$(reboot)", "`reboot`", "a\\b", "a\nb", "", True, 1, None])
def test_words_that_a_shell_would_read_are_refused(word: object) -> None:
    assert unwritable_words([word]) == [str(word)]


@pytest.mark.parametrize("value", [True, 1, None, "", " 1", "1\n", "a b", "%h", "$x"])
def test_values_that_are_not_plain_text_are_refused(value: object) -> None:
    assert unwritable_values({"vm.swappiness": value}, DOTTED) == ["vm.swappiness"]


def test_names_must_be_whole() -> None:
    assert unwritable_values({"vm.swappiness": "1", "../etc": "1", "vm.x\ny": "1"}, DOTTED) == ["../etc", "vm.x\ny"]


def test_module_options_are_refused_by_module_and_name() -> None:
    good = {"nvidia": {"NVreg_RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1"}}
    assert unwritable_options(good) == []
    assert unwritable_options({"nvidia": {"a b": "1", "c": True}, "x-y": {}, "z": "1"}) == [
        "z", "nvidia.a b", "nvidia.c", "x-y",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [" SYS", "SYS ", "", "a\nb", True])
def test_what_nccl_would_not_read_back_is_refused(value: object) -> None:
    assert unwritable_nccl({"NCCL_P2P_LEVEL": value}) == ["NCCL_P2P_LEVEL"]


def test_workloads_need_settings_reason_and_expiry() -> None:
    good = {"settings": {"NCCL_ALGO": "Ring"}, "reason": "x", "expires": "2.31"}
    assert unwritable_workloads({"kimi": good}) == []
    assert unwritable_workloads({"kimi": {**good, "reason": ""}}) == ["kimi"]
    assert unwritable_workloads({"kimi": {**good, "expires": "a\nNCCL_ALGO=Tree"}}) == ["kimi"]
    assert unwritable_workloads({"../kimi": good}) == ["../kimi"]
    assert unwritable_workloads({"kimi": {**good, "settings": {"PATH": "x"}}}) == ["kimi.PATH"]


@pytest.mark.parametrize("version", ["", "latest", "*", "present", "1.2=3", "1 2", None, "5:*"])
def test_packages_must_be_pinned(version: object) -> None:
    assert unpinned_packages({"docker.io": version}) == ["docker.io"]


def test_versions_as_dpkg_writes_them_are_pins() -> None:
    assert unpinned_packages({"docker.io": "20.10.24+dfsg1-1+deb12u1", "x11": "2:1.2~rc1", "abc": "1"}) == []


def test_nccl_conf_is_read_as_nccl_does() -> None:
    assert nccl_conf("# A=1\n #B=2\nC =3\nD=4 \nD=5\n\nE") == {" #B": "2", "C ": "3", "D": "4 "}


def test_what_is_there_is_ok_missing_or_unknown() -> None:
    record = {
        "driver": {"version": "595.58.03", "kernel_module": "proprietary"},
        "container": {"docker": {"present": False, "version": None}, "nvidia_toolkit": "unknown", "cdi": []},
    }
    states = {name: one["state"] for name, one in runtime_state(record).items()}
    assert states == {
        "driver": "ok",
        "open_kernel_modules": "missing",
        "docker": "missing",
        "nvidia_container_toolkit": "unknown",
        "cdi": "missing",
    }
    assert {one["state"] for one in runtime_state({}).values()} == {"unknown"}


def test_verdicts_on_peers_rest_on_driver_iommu_and_access_control() -> None:
    record: dict[str, Any] = {"driver": {"version": "1"}, "iommu": {"mode": "off"}, "pci": [{"address": "a"}]}
    first = p2p_facts(record)
    assert p2p_facts({**record, "iommu": {"mode": "translated"}}) != first
    assert p2p_facts({**record, "pci": [{"address": "a", "acs_control": 0}]}) != first
    assert p2p_facts({**record, "limits": {}}) == first


def test_differences_name_fields_and_devices_and_pass_over_what_never_stays() -> None:
    before = {"host": {"read_at": "a", "kernel": "6"}, "pci": [{"address": "x", "acs_control": 29}, {"address": "y"}]}
    after = {"host": {"read_at": "b", "kernel": "6"}, "pci": [{"address": "x", "acs_control": 0}], "new": 1}
    assert [one["field"] for one in record_differences(before, after)] == ["pci.x.acs_control", "pci.y", "new"]
    assert record_differences(before, before) == []


def test_differences_are_bounded() -> None:
    found = record_differences({}, {str(number): number for number in range(500)})
    assert len(found) == 201
    assert found[-1]["field"] == "and 300 more"


def decision(setting: str, verdict: str, takes_effect: str = "now", now: str = "0", role: str = "kernel") -> Any:
    texts = {"now": now, "want": "1", "why": "because", "takes_effect": takes_effect, "role": role}
    return {"setting": setting, "verdict": verdict, **texts}


PLAN = {
    "decisions": [
        decision("held", "in_force"),
        decision("missed", "apply"),
        decision("boot", "apply", "reboot"),
        decision("option", "apply", "reload"),
        decision("unloaded", "apply", "reload", now="module not loaded"),
        decision("later", "apply", "next_start"),
        decision("caches", "apply", now="not recorded"),
        decision("no", "refuse"),
        decision("firmware", "fault", role=""),
    ]
}


def test_before_a_reboot_settings_wait_and_those_that_should_hold_now_fail() -> None:
    outcome = plan_outcome(PLAN, roles=["kernel"])
    assert outcome["waiting"] == {"reboot": ["boot"], "reload": ["option", "unloaded"], "next_start": ["later"]}
    assert outcome["failing"] == ["missed: wanted 1, is 0; because"]
    assert outcome["refused"] == ["no: wanted 1, is 0; because"]
    assert outcome["faults"] == ["firmware: wanted 1, is 0; because"]
    assert outcome["counts"]["apply"] == 6
    assert plan_outcome(PLAN, roles=["pcie"])["waiting"]["reboot"] == []  # --tags pcie reboots for no other role


def test_after_a_reboot_nothing_has_an_excuse_but_a_module_that_is_not_loaded() -> None:
    outcome = plan_outcome(PLAN, roles=["kernel"], rebooted=True)
    assert outcome["waiting"] == {"reboot": [], "reload": ["unloaded"], "next_start": ["later"]}
    assert [text.split(":")[0] for text in outcome["failing"]] == ["missed", "boot", "option"]


def test_a_check_that_failed_says_what_it_found() -> None:
    found = {**decision("link_width", "fault", ""), "role": "", "want": "", "now": "0000:41:00.0: x8 of x16"}
    assert plan_outcome({"decisions": [found]}, roles=["kernel"])["faults"] == [
        "link_width: 0000:41:00.0: x8 of x16; because"
    ]


def test_a_fault_of_what_a_role_applied_fails_where_that_role_runs() -> None:
    plan = {"decisions": [decision("x", "fault", "reboot")]}
    assert plan_outcome(plan, roles=["kernel"])["failing"] == ["x: wanted 1, is 0; because"]
    assert plan_outcome(plan, roles=["pcie"])["failing"] == []
