"""Every role by itself: check, apply, again, revert, on a tree of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.roles.conftest import ROOT, Done, Farm
from tests.roles.makers_tree import Tree, different, tree

ROLES: dict[str, dict[str, Any]] = {
    "runtime": {},
    "kernel": {
        "kernel_command_line": ["iommu=pt", "pci=disable_acs_redir=0000:40:01.1;0000:c0:01.1"],
        "kernel_sysctl": {"kernel.numa_balancing": "0", "kernel.no_such_thing": "1"},
        "kernel_module_options": {"nvme_core": {"default_ps_max_latency_us": "0"}},
        "kernel_values": [{"path": "/sys/bus/pci/devices/0000:40:01.1/power/control", "value": "on"}],
        "kernel_limits": {"memlock": "unlimited", "nofile": "1048576", "stack": "65536"},
    },
    "pcie": {"pcie_acs_redirect": "clear", "pcie_max_read_request": 4096, "pcie_aspm": "disabled"},
    "gpu": {"gpu_module_options": {"nvidia_uvm": {"uvm_disable_hmm": "1"}}, "gpu_power_limit_watts": 450},
    "nccl": {
        "nccl_system": {"NCCL_SOCKET_IFNAME": "eth0"},
        "nccl_workloads": {
            "kimi": {"settings": {"NCCL_P2P_LEVEL": "SYS"}, "reason": "P2P across sockets", "expires": "2.31"}
        },
    },
    "container": {
        "container_memlock": True,
        "container_docker": {"default-shm-size": "16g"},
        "container_nccl_system": True,
        "container_nccl_workloads": ["kimi"],
    },
}


@dataclass(frozen=True, kw_only=True)
class Story:
    """The four runs, and every node's tree around them."""

    trees: dict[str, list[Tree]]
    runs: dict[str, Done]


@pytest.fixture(scope="module")
def story(farm: Farm) -> Story:
    roots = {role: farm.add(role, role=role, **variables) for role, variables in ROLES.items()}
    trees: dict[str, list[Tree]] = {role: [tree(root)] for role, root in roots.items()}
    runs = {}
    for name, arguments in {
        "check": ["--check"],
        "apply": [],
        "again": [],
        "revert": ["-e", "entry=revert"],
    }.items():
        runs[name] = farm.play("tests/roles/alone.yml", *arguments)
        assert runs[name].code == 0, runs[name].out
        for role, root in roots.items():
            trees[role].append(tree(root))
    return Story(trees=trees, runs=runs)


@pytest.mark.parametrize("role", ROLES)
def test_check_writes_nothing_and_says_what_apply_then_does(story: Story, role: str) -> None:
    before, checked, applied = story.trees[role][:3]
    assert different(before, checked) == []
    assert story.runs["check"].changed[role] == story.runs["apply"].changed[role]
    assert bool(different(before, applied)) == (role != "runtime")


@pytest.mark.parametrize("role", ROLES)
def test_again_changes_nothing(story: Story, role: str) -> None:
    assert different(story.trees[role][2], story.trees[role][3]) == []
    assert story.runs["again"].changed[role] == 0


@pytest.mark.parametrize("role", ROLES)
def test_revert_leaves_the_tree_as_it_was(story: Story, role: str) -> None:
    assert different(story.trees[role][0], story.trees[role][4]) == []


def content(story: Story, role: str, name: str) -> str:
    held = story.trees[role][2][name][1]
    assert isinstance(held, bytes)
    return held.decode()


def settings(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_kernel_files_say_what_was_wanted(story: Story) -> None:
    grub = settings(content(story, "kernel", "etc/default/grub.d/60-lanewise.cfg"))
    acs = "'pci=disable_acs_redir=0000:40:01.1;0000:c0:01.1'"
    assert grub == [f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt {acs}"']
    assert settings(content(story, "kernel", "etc/sysctl.d/60-lanewise.conf")) == [
        "-kernel.no_such_thing = 1",
        "-kernel.numa_balancing = 0",
    ]
    assert settings(content(story, "kernel", "etc/modprobe.d/60-lanewise.conf")) == [
        "options nvme_core default_ps_max_latency_us=0"
    ]
    assert settings(content(story, "kernel", "etc/tmpfiles.d/60-lanewise.conf")) == [
        "w /sys/bus/pci/devices/0000:40:01.1/power/control - - - - on"
    ]
    limits = settings(content(story, "kernel", "etc/security/limits.d/60-lanewise.conf"))
    assert "* - memlock unlimited" in limits
    assert "root - stack 65536" in limits
    assert settings(content(story, "kernel", "etc/systemd/system.conf.d/60-lanewise.conf")) == [
        "[Manager]",
        "DefaultLimitMEMLOCK=infinity",
        "DefaultLimitNOFILE=1048576",
        "DefaultLimitSTACK=65536K",
    ]


def test_live_values_are_set_and_what_the_kernel_lacks_is_passed_over(story: Story) -> None:
    assert content(story, "kernel", "proc/sys/kernel/numa_balancing").strip() == "0"
    assert "proc/sys/kernel/no_such_thing" not in story.trees["kernel"][2]


def test_a_reboot_is_asked_for_only_by_words_that_are_not_in_force(story: Story) -> None:
    for name, out in ((name, run.out) for name, run in story.runs.items() if name != "revert"):
        assert "kernel reboot=True" in out, name
        assert "pcie reboot=False" in out, name
    assert "kernel reload=True" not in story.runs["again"].out


def test_registers_are_set_on_every_port_and_gpu(story: Story) -> None:
    changed = [name for name in different(*story.trees["pcie"][1:3]) if name.endswith("/config")]
    assert len(changed) == 10  # two root ports with redirect on, eight GPUs; switch ports have it off already
    config = settings(content(story, "pcie", "etc/lanewise/pci.conf"))
    assert config[:3] == ["ACS_REDIRECT=clear", "MAX_READ_REQUEST=4096", "ASPM=disabled"]


def test_nccl_reads_its_files_as_they_are_meant(story: Story) -> None:
    assert settings(content(story, "nccl", "etc/nccl.conf")) == ["NCCL_SOCKET_IFNAME=eth0"]
    workload = content(story, "nccl", "etc/lanewise/nccl/kimi.conf")
    assert settings(workload) == ["NCCL_P2P_LEVEL=SYS"]
    assert "# Why: P2P across sockets\n# Until: 2.31\n" in workload


def test_containers_see_the_host_nccl_files(story: Story) -> None:
    common = settings(content(story, "container", "etc/lanewise/container.args"))
    assert common == [
        "--ipc=host",
        "--ulimit=memlock=-1",
        "--mount=type=bind,source=/etc/nccl.conf,target=/etc/nccl.conf,readonly",
    ]
    own = settings(content(story, "container", "etc/lanewise/container/kimi.args"))
    assert own[-1] == "--env=NCCL_CONF_FILE=/etc/lanewise/nccl/kimi.conf"
    assert json.loads(content(story, "container", "etc/docker/daemon.json")) == {"default-shm-size": "16g"}


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_and_defaults_agree(role: str) -> None:
    folder = ROOT / f"playbooks/roles/{role}"
    entries = yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]
    assert entries["preflight"]["options"] == entries["main"]["options"]
    defaults = yaml.safe_load((folder / "defaults/main.yml").read_text())
    options = {name: option for entry in entries.values() for name, option in entry["options"].items()}
    assert set(options) == set(defaults)
    for name, option in options.items():
        assert option["description"]
        if name != f"{role}_root":  # follows node_root
            assert option["default"] == defaults[name], name


@pytest.mark.parametrize("role", ROLES)
def test_tasks_read_as_a_table_of_contents(role: str) -> None:
    tasks = yaml.safe_load((ROOT / f"playbooks/roles/{role}/tasks/main.yml").read_text())
    assert [task["tags"] for task in tasks] == [[role, "preflight"], [role, "apply"], [role, "verify"]]
    assert Path(ROOT / f"playbooks/roles/{role}/tasks/revert.yml").exists()
