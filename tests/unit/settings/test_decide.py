from __future__ import annotations

import json

import pytest

from playbooks.settings.catalogue import load_catalogue
from playbooks.settings.plan import make_plan
from tests.unit.settings.makers_node import (
    REDIRECT_OFF,
    behind_switches,
    decided,
    decision,
    device,
    enabling,
    on_root_ports,
    record,
    with_device,
)

VERDICTS = {"apply", "in_force", "leave", "refuse", "advise", "fault", "skip", "ok", "unknown"}


def test_a_plan_has_every_setting_once_and_is_json() -> None:
    plan = json.loads(json.dumps(make_plan(record(), {})))
    found = [one["setting"] for one in plan["decisions"]]
    assert set(load_catalogue()) - set(found) == {"nccl_system_file", "nccl_workload_files"}
    assert len(found) == len(set(found))
    assert {one["verdict"] for one in plan["decisions"]} <= VERDICTS
    assert all(one["why"] for one in plan["decisions"])


def test_nothing_is_refused_on_an_ordinary_node() -> None:
    for pci in (behind_switches(), on_root_ports(), []):
        refused = [one for one in make_plan(record(pci), {})["decisions"] if one["verdict"] == "refuse"]
        assert not refused


@pytest.mark.parametrize(
    ("changes", "wishes", "want"),
    [
        ({"cpu__threads": 255}, {}, "iommu=off amd_iommu=off"),
        ({"cpu__threads": 256}, {}, "iommu=pt amd_iommu=on"),
        ({"cpu__threads": 255, "cpu__vendor": "GenuineIntel"}, {}, "iommu=off intel_iommu=off"),
        ({"cpu__threads": 384, "cpu__vendor": "GenuineIntel"}, {}, "iommu=pt intel_iommu=on"),
        ({"cpu__threads": 16, "cpu__vendor": "Other"}, {}, "iommu=pt"),
        ({"cpu__threads": 16}, {"node_settings": {"values": {"iommu_mode": "pt"}}}, "iommu=pt amd_iommu=on"),
    ],
)
def test_the_iommu_is_off_below_256_threads_and_passes_through_from_there_on(changes, wishes, want) -> None:
    found = decided("iommu_mode", record(**changes), **wishes)
    assert (found["verdict"], found["want"], found["takes_effect"]) == ("apply", want, "reboot")


def test_a_node_that_gives_devices_to_vms_keeps_its_iommu_and_acs() -> None:
    nic = device("0000:99:00.0", "pci0000:99", "endpoint", driver="vfio-pci", **{"class": "0x020000"})
    node = record([*behind_switches(), nic])
    assert decided("iommu_mode", node)["want"] == "iommu=pt amd_iommu=on"
    assert decided("acs_redirect", node)["verdict"] == "skip"
    refused = decided("iommu_mode", node, **enabling(iommu_mode="off"))
    assert refused["verdict"] == "refuse"
    assert "vfio-pci" in refused["why"]


def test_the_iommu_cannot_be_asked_off_where_that_loses_cpus() -> None:
    found = decided("iommu_mode", record(cpu__threads=256), **enabling(iommu_mode="off"))
    assert found["verdict"] == "refuse"
    assert "CPU threads: 256" in found["why"]


@pytest.mark.parametrize(
    ("field", "setting"),
    [("cpu__threads", "iommu_mode"), ("host__virtualised", "iommu_mode"), ("host__virtualised", "acs_redirect"),
     ("host__kernel_command_line", "pcie_aspm_off"), ("container__docker__present", "docker_shm_size"),
     ("cpu__governor", "cpu_governor"), ("numa", "numa_balancing")],
)  # fmt: skip
def test_a_default_is_refused_where_a_fact_that_decides_is_unknown(field, setting) -> None:
    path = field.replace("__", ".")
    node = record(**{field: "unknown"}, unread=[{"field": path, "reason": "permission denied"}])
    found = decided(setting, node)
    assert found["verdict"] == "refuse"
    assert "permission denied" in found["why"]


def test_words_on_the_command_line_count_and_what_the_kernel_made_of_them() -> None:
    line = "quiet iommu=pt amd_iommu=on"
    there = {"cpu__threads": 256, "host__kernel_command_line": line}
    assert decided("iommu_mode", record(**there, iommu__mode="passthrough"))["verdict"] == "in_force"
    # No IOMMU at all is as good for P2P.
    assert decided("iommu_mode", record(**there, iommu__mode="off"))["verdict"] == "in_force"
    fault = decided("iommu_mode", record(**there, iommu__mode="translated"))
    assert (fault["verdict"], fault["now"]) == ("fault", "iommu=pt amd_iommu=on (translated)")
    clash = decided("iommu_mode", record(**{**there, "host__kernel_command_line": f"iommu=off {line}"}))
    assert clash["verdict"] == "fault"
    assert "iommu=off" in clash["why"]


def test_what_is_at_fault_stays_the_roles_to_hold() -> None:
    node = record(cpu__threads=256, host__kernel_command_line="iommu=pt amd_iommu=on")
    words = make_plan(node, {})["roles"]["kernel"]["kernel_command_line"]
    assert words[:2] == ["iommu=pt", "amd_iommu=on"]


def test_acs_redirect_is_cleared_and_looked_at_again_after_an_iommu_change() -> None:
    found = decided("acs_redirect")
    assert (found["verdict"], found["now"], found["want"]) == ("apply", "on at 10 ports", "clear")
    assert "iommu_mode changes: re-check after the reboot" in found["why"]
    clear = record(behind_switches(acs_control=REDIRECT_OFF), host__kernel_command_line="iommu=off amd_iommu=off",
                   iommu__mode="off")  # fmt: skip
    found = decided("acs_redirect", clear)
    assert found["verdict"] == "in_force"
    assert "re-check" not in found["why"]


@pytest.mark.parametrize(("control", "verdict"), [(None, "skip"), ("unknown", "refuse")])
def test_acs_that_is_not_there_is_skipped_and_unread_acs_refused(control, verdict) -> None:
    assert decided("acs_redirect", record(behind_switches(acs_control=control)))["verdict"] == verdict


def test_links_and_ports_are_kept_awake_unasked_behind_switches_only() -> None:
    for setting in ("pcie_aspm_off", "pcie_port_pm_off", "aspm_links"):
        assert decided(setting)["verdict"] in ("apply", "in_force")
        direct = record(on_root_ports())
        assert decided(setting, direct)["verdict"] == "leave"
        assert decided(setting, direct, **enabling(setting))["verdict"] in ("apply", "in_force")
    pci = with_device(behind_switches(), "0000:01:00.0", aspm_control="l1")
    assert decided("aspm_links", record(pci))["verdict"] == "apply"


@pytest.mark.parametrize("word", ["pci=pcie_bus_perf", "pci=realloc=on,pcie_bus_perf"])
def test_pcie_bus_perf_and_a_max_read_request_fight(word) -> None:
    node = record(host__kernel_command_line=f"quiet {word}")
    found = decided("max_read_request", node, **enabling("max_read_request", max_read_request="4096"))
    assert found["verdict"] == "refuse"
    assert "pci=pcie_bus_perf" in found["why"]
    assert decided("max_read_request", node)["verdict"] == "leave"
    both = enabling("max_read_request", "pcie_bus_policy")
    assert "max_read_request" in decided("pcie_bus_policy", **both)["why"]
    assert decided("pcie_bus_policy", **both)["verdict"] == "refuse"


def test_a_max_read_request_reaches_its_role_as_a_number() -> None:
    wished = enabling("max_read_request", max_read_request="1024")
    assert make_plan(record(), wished)["roles"]["pcie"]["pcie_max_read_request"] == 1024
    assert decided("max_read_request", **enabling("max_read_request", max_read_request="4095"))["verdict"] == "refuse"
    assert make_plan(record(), {})["roles"]["pcie"]["pcie_max_read_request"] == 0


def test_a_sysctl_that_the_kernel_lacks_is_skipped_and_one_that_cannot_be_read_refused() -> None:
    wished = enabling("sched_migration_cost")
    assert decided("sched_migration_cost", **wished)["verdict"] == "skip"
    assert make_plan(record(), wished)["roles"]["kernel"]["kernel_sysctl"] == {"kernel.numa_balancing": "0"}
    unread = {"kernel.sched_migration_cost_ns": "unknown"}
    found = decided("sched_migration_cost", record(kernel__sysctl=unread), **wished)
    assert found["verdict"] == "refuse"


@pytest.mark.parametrize(
    ("setting", "changes", "now"),
    [
        ("numa_balancing", {"kernel__sysctl": {"kernel.numa_balancing": "0"}}, "0"),
        ("uvm_disable_hmm", {"kernel__modules": {"nvidia_uvm": {"parameters": {"uvm_disable_hmm": "Y"}}}}, "1"),
        ("cpu_governor", {"cpu__governor": "performance"}, "performance"),
        ("transparent_hugepage", {"kernel__transparent_hugepage": "madvise"}, "madvise"),
        ("limit_memlock", {"limits__service_memlock": "unlimited"}, "unlimited"),
        ("docker_memlock", {"limits__docker_memlock": "unlimited"}, "unlimited"),
        ("docker_shm_size", {"container__docker__daemon": {"default-shm-size": "16g"}}, "16g"),
        ("persistence", {"services": {"nvidia-persistenced": {"active": "active", "enabled": "enabled"}}},
         "active: active, enabled: enabled"),
        ("max_map_count", {}, "1048576"),
        ("cdi", {"container__cdi": [{"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": 9}]},
         "/etc/cdi/nvidia.yaml"),
    ],
)  # fmt: skip
def test_what_is_in_force_is_read_and_stays_ours_to_hold(setting, changes, now) -> None:
    wished = enabling(*({setting} & {"transparent_hugepage", "max_map_count"}))
    before = decided(setting, **wished)
    assert before["verdict"] == ("in_force" if setting == "max_map_count" else "apply")
    found = decided(setting, record(**changes), **wished)
    assert (found["verdict"], found["now"]) == ("in_force", now)
    assert make_plan(record(**changes), wished)["roles"] == make_plan(record(), wished)["roles"]


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("cpu_governor", {"cpu__governor": None}),
        ("persistence", {"services": {"nvidia-persistenced": None}}),
        ("persistence", {"driver__present": False}),
        ("docker_shm_size", {"container__docker__present": False}),
        ("docker_memlock", {"limits__docker_memlock": None}),
        ("cdi", {"container__nvidia_toolkit": None}),
        ("uvm_disable_hmm", {"kernel__modules": {"nvidia_uvm": {"parameters": {}}}}),
    ],
)
def test_what_a_node_does_not_have_is_skipped(setting, changes) -> None:
    assert decided(setting, record(**changes))["verdict"] == "skip"


def test_a_module_that_is_not_loaded_gets_its_option_and_waits() -> None:
    found = decided("uvm_disable_hmm", record(kernel__modules={"nvidia": None, "nvidia_uvm": None}))
    assert (found["verdict"], found["takes_effect"], found["now"]) == ("apply", "reload", "module not loaded")


@pytest.mark.parametrize("setting", ["limit_memlock", "docker_memlock"])
def test_a_file_for_the_next_start_needs_no_old_value(setting) -> None:
    found = decided(setting, record(limits={"shm_bytes": 1 << 40}))
    assert (found["verdict"], found["now"], found["takes_effect"]) == ("apply", "unknown", "next_start")


def test_candidates_and_opt_ins_wait_for_the_inventory() -> None:
    for setting in (one for one in load_catalogue().values() if one.policy in ("candidate", "opt-in")):
        if setting.target != "file":
            assert decided(setting.id)["verdict"] == "leave"
    assert decided("swappiness", **enabling("swappiness"))["want"] == "10"
    assert decided("swappiness", **enabling("swappiness", swappiness="1"))["want"] == "1"
    assert decided("swappiness", **enabling(swappiness="1"))["verdict"] == "refuse"
    assert decided("swappiness", **enabling("swappiness", swappiness="-1"))["verdict"] == "refuse"
    assert decided("swappiness", **enabling("swappiness", swappiness="010"))["verdict"] == "refuse"


@pytest.mark.parametrize("policy", ["never", "advisory", "check"])
def test_what_no_playbook_may_set_cannot_be_enabled_nor_given_a_value(policy) -> None:
    for setting in (one for one in load_catalogue().values() if one.policy == policy):
        assert decided(setting.id)["verdict"] != "refuse"
        assert decided(setting.id, **enabling(setting.id))["verdict"] == "refuse"
        assert decided(setting.id, **enabling(**{setting.id: "1"}))["verdict"] == "refuse"


def test_a_default_can_be_disabled_and_is_then_nobodys() -> None:
    wished = {"node_settings": {"disable": ["acs_redirect", "cpu_governor"]}}
    plan = make_plan(record(), wished)
    for setting in wished["node_settings"]["disable"]:
        found = decision(plan, setting)
        assert (found["verdict"], found["why"]) == ("leave", "disabled in the inventory")
    assert plan["roles"]["pcie"]["pcie_acs_redirect"] == ""
    assert plan["roles"]["kernel"]["kernel_values"] == []
    both = {"node_settings": {"disable": ["swappiness"], "enable": ["swappiness"]}}
    assert decided("swappiness", **both)["verdict"] == "refuse"


@pytest.mark.parametrize("where", ["enable", "disable", "values"])
def test_an_unknown_id_is_refused_with_near_names(where) -> None:
    names = {"acs_redirekt": "x"} if where == "values" else ["acs_redirekt"]
    found = decision(make_plan(record(), {"node_settings": {where: names}}), "acs_redirekt")
    assert found["verdict"] == "refuse"
    assert f"node_settings.{where} names acs_redirekt" in found["why"]
    assert "did you mean acs_redirect" in found["why"]


def test_what_is_asked_for_and_impossible_is_refused_not_skipped() -> None:
    guest = record(host__virtualised=True)
    assert decided("acs_redirect", guest)["verdict"] == "skip"
    assert decided("acs_redirect", guest, **enabling("acs_redirect"))["verdict"] == "refuse"


def test_a_power_limit_needs_a_value_that_every_gpu_takes() -> None:
    assert decided("power_limit", **enabling("power_limit"))["verdict"] == "refuse"
    assert decided("power_limit", **enabling("power_limit", power_limit="601"))["verdict"] == "refuse"
    assert decided("power_limit", **enabling("power_limit", power_limit="600"))["verdict"] == "in_force"
    plan = make_plan(record(), enabling("power_limit", power_limit="450"))
    assert decision(plan, "power_limit")["now"] == "600 W"
    assert plan["roles"]["gpu"]["gpu_power_limit_watts"] == 450


def test_roles_get_all_their_variables_and_nothing_that_nobody_wants() -> None:
    roles = make_plan(record([], cpu__governor=None, container__docker__present=False), {})["roles"]
    assert roles == {
        "runtime": {"runtime_install": {}, "runtime_checks": True},
        "kernel": {
            "kernel_command_line": [], "kernel_sysctl": {"kernel.numa_balancing": "0"}, "kernel_module_options": {},
            "kernel_values": [], "kernel_limits": {},
        },
        "pcie": {
            "pcie_acs_redirect": "", "pcie_max_read_request": 0, "pcie_aspm": "",
            "gpu_match": ["10de:0302", "10de:0300"],
        },
        "gpu": {"gpu_persistence": False, "gpu_power_limit_watts": 0, "gpu_module_options": {}},
        "nccl": {"nccl_system": {}, "nccl_workloads": {}},
        "container": {
            "container_memlock": False, "container_docker": {}, "container_cdi": False, "container_p2p_caches": [],
        },
    }  # fmt: skip


def test_roles_get_what_is_wanted_under_their_names() -> None:
    roles = make_plan(record(cpu__threads=2, cpu__threads_present=2), enabling("port_power"))["roles"]
    assert roles["kernel"]["kernel_command_line"] == [
        "iommu=off", "amd_iommu=off", "pcie_aspm=off", "pcie_port_pm=off",
    ]  # fmt: skip
    values = {one["path"]: one["value"] for one in roles["kernel"]["kernel_values"]}
    assert values["/sys/devices/system/cpu/cpufreq/policy1/scaling_governor"] == "performance"
    assert values["/sys/bus/pci/devices/0000:40:01.1/power/control"] == "on"
    assert len(values) == 2 + 2 * (1 + 1 + 4)
    assert roles["kernel"]["kernel_limits"] == {"memlock": "unlimited"}
    assert roles["gpu"]["gpu_module_options"] == {"nvidia_uvm": {"uvm_disable_hmm": "1"}}
    assert roles["pcie"]["pcie_acs_redirect"] == "clear"
    assert roles["container"]["container_docker"]["default-ulimits"]["memlock"] == {
        "Name": "memlock", "Hard": -1, "Soft": -1,
    }  # fmt: skip


def test_caches_of_p2p_tests_are_cleared_where_something_changes_that_they_rest_on() -> None:
    assert "iommu_mode, acs_redirect" in decided("p2p_caches")["why"]
    settled = record(
        behind_switches(acs_control=REDIRECT_OFF),
        host__kernel_command_line="iommu=off amd_iommu=off",
        iommu__mode="off",
        kernel__modules={"nvidia_uvm": {"parameters": {"uvm_disable_hmm": "Y"}}},
    )
    assert decided("p2p_caches", settled)["verdict"] == "in_force"


def test_the_plan_after_all_was_applied_has_nothing_left_to_apply_but_what_waits() -> None:
    """As a node reads after provisioning and before its reboot."""
    pci = behind_switches(acs_control=REDIRECT_OFF)
    applied = record(
        pci, cpu__governor="performance", kernel__sysctl={"kernel.numa_balancing": "0"},
        services={"nvidia-persistenced": {"active": "active", "enabled": "enabled"}},
        container__docker__daemon=make_plan(record(), {})["roles"]["container"]["container_docker"],
        container__cdi=[{"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "devices": 9}],
    )  # fmt: skip
    left = {
        one["setting"]: one["takes_effect"] for one in make_plan(applied, {})["decisions"] if one["verdict"] == "apply"
    }
    assert "now" not in left.values()
    assert {name for name, when in left.items() if when == "reboot"} == {
        "iommu_mode", "pcie_aspm_off", "pcie_port_pm_off",
    }  # fmt: skip
