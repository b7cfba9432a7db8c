"""Module parameters, sysctls and the kernel's choices, against trees built here."""

from __future__ import annotations

import shutil

import pytest

from playbooks.module_utils.node_record import read_node
from playbooks.module_utils.node_record_tree import UNKNOWN
from tests.unit.makers_node import fake_node, reason, write

PARAMS = 'ResmanDebugLevel: 4294967295\nEnableResizableBar: 0\nRegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"\n'


@pytest.fixture
def root(tmp_path):
    return fake_node(tmp_path / "node")


def kernel(root):
    return read_node(str(root))["kernel"]


def test_modules_have_the_parameters_in_force_and_absent_ones_are_null(root):
    write(
        root,
        {
            "proc/driver/nvidia/params": PARAMS,
            "sys/module/nvidia/parameters/NVreg_RegistryDwords": "\n",
            "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n",
            "sys/module/processor/uevent": "",
        },
    )
    modules = kernel(root)["modules"]
    assert modules["nvidia"] == {
        "version": "590.44.01",
        "parameters": {
            "NVreg_RegistryDwords": "",
            "ResmanDebugLevel": "4294967295",
            "EnableResizableBar": "0",
            "RegistryDwords": "ForceP2P=0x11;RMForceP2PType=1",
        },
    }
    assert modules["nvidia_uvm"] == {"version": None, "parameters": {"uvm_disable_hmm": "Y"}}
    assert modules["processor"] == {"version": None, "parameters": {}}
    assert modules["nvidia_peermem"] is None


def test_a_kernel_that_hides_its_modules_says_nothing_of_them(root):
    shutil.rmtree(root / "sys/module")
    assert kernel(root)["modules"] == UNKNOWN


def test_an_odd_list_of_parameters_is_not_taken_for_a_part_of_it(root):
    write(root, {"proc/driver/nvidia/params": "no list\n", "sys/module/nvidia/parameters/NVreg_x": "1\n"})
    record = read_node(str(root))
    assert record["kernel"]["modules"]["nvidia"]["parameters"] == UNKNOWN
    assert reason(record, "kernel.modules.nvidia.parameters")


def test_sysctls_are_text_and_null_where_this_kernel_lacks_them(root):
    write(root, {"proc/sys/vm/swappiness": "60\n", "proc/sys/kernel/numa_balancing": "1\n"})
    sysctl = kernel(root)["sysctl"]
    assert (sysctl["vm.swappiness"], sysctl["kernel.numa_balancing"]) == ("60", "1")
    assert (sysctl["kernel.sched_migration_cost_ns"], sysctl["vm.zone_reclaim_mode"]) == (None, None)
    shutil.rmtree(root / "proc/sys/vm")
    assert kernel(root)["sysctl"]["vm.swappiness"] == UNKNOWN


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("always [madvise] never\n", "madvise"),
        ("[always] madvise never\n", "always"),
        ("always defer defer+madvise madvise [never]\n", "never"),
        ("always madvise never\n", UNKNOWN),
        ("[a] [b]\n", UNKNOWN),
        (" ".join(["always"] * 9000), UNKNOWN),
    ],
)
def test_of_a_choice_the_chosen_word_is_told(root, text, chosen):
    write(root, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert kernel(root)["transparent_hugepage"] == chosen


def test_choices_that_this_kernel_does_not_offer_are_null(root):
    (root / "sys/kernel/mm").mkdir(parents=True)
    write(root, {"sys/module/pcie_aspm/parameters/policy": "default [performance] powersave powersupersave\n"})
    found = kernel(root)
    assert (found["transparent_hugepage"], found["transparent_hugepage_defrag"]) == (None, None)
    assert found["aspm_policy"] == "performance"


def test_preferences_of_policies_are_one_word(root):
    policy = "sys/devices/system/cpu/cpufreq/policy{}/energy_performance_preference"
    write(root, {policy.format(0): "performance\n"})
    assert read_node(str(root))["cpu"]["energy_performance_preference"] == "performance"
    write(root, {"sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance\n"})
    write(root, {policy.format(1): "balance_power\n"})
    assert read_node(str(root))["cpu"]["energy_performance_preference"] == "mixed"
    shutil.rmtree(root / "sys/devices/system/cpu/cpufreq")
    assert read_node(str(root))["cpu"]["energy_performance_preference"] == UNKNOWN


def test_x2apic_is_the_cpus_flag(root):
    write(root, {"proc/cpuinfo": "flags\t\t: fpu apic sse2\n"})
    assert read_node(str(root))["host"]["x2apic"] is False
    write(root, {"proc/cpuinfo": "Features\t: fp asimd\n"})
    assert read_node(str(root))["host"]["x2apic"] == UNKNOWN


def test_links_that_lead_out_of_the_root_are_not_taken_for_absence(root):
    shutil.rmtree(root / "sys/module")
    (root / "sys/module").symlink_to("/proc/self")
    (root / "proc/sys/vm").symlink_to("/proc/sys/vm")
    record = read_node(str(root))
    assert record["kernel"]["sysctl"]["vm.swappiness"] == UNKNOWN
    assert record["kernel"]["aspm_policy"] == record["kernel"]["modules"] == UNKNOWN
