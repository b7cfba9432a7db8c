"""provision.yml and revert.yml whole: what check announces, what apply does, and that revert takes all of it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass

import pytest

from tests.roles.conftest import ROOT, Done, Farm
from tests.roles.makers_tree import CACHE, Tree, different, tree

SETTINGS = {"enable": ["swappiness", "port_power"], "disable": ["persistence"], "values": {"swappiness": "1"}}
WORKLOADS = {"kimi": {"settings": {"NCCL_P2P_LEVEL": "SYS"}, "reason": "across sockets", "expires": "2.31"}}
FOREIGN = '{"log-driver": "journald"}\n'


@dataclass(frozen=True, kw_only=True)
class Story:
    """Runs by name, and the tree before all and after each."""

    runs: dict[str, Done]
    trees: dict[str, Tree]


@pytest.fixture(scope="module")
def story(farm: Farm) -> Story:
    root = farm.add("node", node_settings=SETTINGS, nccl_workloads=WORKLOADS)
    (root / "usr/bin/dockerd").write_text("")
    (root / "etc/docker").mkdir()
    (root / "etc/docker/daemon.json").write_text(FOREIGN)
    runs, trees = {}, {"before": tree(root)}
    for name, playbook, arguments in (
        ("check", "provision", ["--check"]),
        ("apply", "provision", []),
        ("again", "provision", []),
        ("revert check", "revert", ["--check"]),
        ("revert", "revert", []),
    ):
        runs[name] = farm.play(f"playbooks/{playbook}.yml", *arguments)
        assert runs[name].code == 0, runs[name].out
        trees[name] = tree(root)
    return Story(runs=runs, trees=trees)


def changes(done: Done) -> dict[str, str]:
    return {one["task"]: one["difference"] for one in done.results["node"]["changes"]}


def test_check_writes_nothing_and_its_differences_are_those_of_apply_to_the_letter(story: Story) -> None:
    assert different(story.trees["before"], story.trees["check"]) == []
    announced, done = changes(story.runs["check"]), changes(story.runs["apply"])
    # That engines' verdicts are stale follows from what the node is after the other changes.
    assert announced == {task: text for task, text in done.items() if "stale caches" not in task or task in announced}
    assert "kernel.numa_balancing = 0" in "".join(announced.values())
    assert story.runs["check"].results["node"]["status"] == "would change"


def test_check_ends_with_what_would_change_and_why(story: Story) -> None:
    assert "would set acs_redirect: on at 2 ports -> clear (redirect sends" in story.runs["check"].out


def test_files_hold_what_the_differences_showed(story: Story) -> None:
    """Every added line of every difference is in a file of the tree afterwards."""
    before, after = story.trees["before"], story.trees["apply"]
    written = "".join(
        held.decode(errors="replace")
        for name in different(before, after)
        if isinstance(held := after.get(name, (0, None))[1], bytes)
    )
    added = [
        line[1:] for text in changes(story.runs["apply"]).values() for line in text.splitlines() if line[:1] == "+"
    ]
    files = [
        line for line in added if line.startswith(("options ", "GRUB_", "NCCL_", "w /sys", "-kernel", "ExecStart"))
    ]
    assert len(files) >= 5
    assert [line for line in files if line not in written] == []


def test_again_changes_nothing(story: Story) -> None:
    assert story.runs["again"].changed["node"] == 0
    assert different(story.trees["apply"], story.trees["again"]) == []


def test_what_waits_for_a_reboot_is_said_and_nothing_claims_to_be_in_force(story: Story) -> None:
    result = story.runs["apply"].results["node"]
    assert result["status"] == "pending reboot"
    assert set(result["waiting"]["reboot"]) == {"pcie_aspm_off", "pcie_port_pm_off"}
    by_id = {one["setting"]: one for one in result["decisions"]}
    assert by_id["acs_redirect"]["verdict"] == "in_force"
    assert by_id["swappiness"]["now"] == "1"
    assert not result["rebooted"]


def test_a_daemon_json_of_another_owner_stays_and_what_it_lacks_is_advised(story: Story) -> None:
    assert story.trees["apply"]["etc/docker/daemon.json"][1] == FOREIGN.encode()
    assert any('lacks "default-shm-size"' in line for line in story.runs["apply"].results["node"]["advice"])


def test_stale_verdicts_of_engines_are_cleared_once(story: Story) -> None:
    assert CACHE in story.trees["before"]
    assert CACHE not in story.trees["apply"]


def test_revert_leaves_the_tree_as_it_was_but_for_what_was_only_a_cache(story: Story) -> None:
    assert different(story.trees["again"], story.trees["revert check"]) == []
    assert different(story.trees["before"], story.trees["revert"]) == [CACHE]
    assert story.runs["revert"].results["node"]["differences"] == []


def test_revert_in_check_mode_says_what_it_would_bring_back(story: Story) -> None:
    result = story.runs["revert check"].results["node"]
    assert result["status"] == "would change"
    fields = {one["field"] for one in result["differences"]}
    assert "kernel.sysctl.vm.swappiness" in fields


def test_a_run_that_is_killed_between_two_tasks_is_taken_up_by_the_next(farm: Farm) -> None:
    root = farm.add("killed", node_settings=SETTINGS)
    before = tree(root)
    environment = farm.environment(farm.folder / "killed-results")
    command = farm.command("playbooks/provision.yml", "--limit", "killed")
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (root / "var/lib/lanewise/owned.json").exists():
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert (root / "var/lib/lanewise/lease.json").exists()
    done = farm.play("playbooks/provision.yml", "--limit", "killed")
    assert done.code == 0, done.out
    assert done.results["killed"]["status"] == "pending reboot"
    assert not (root / "var/lib/lanewise/lease.json").exists()
    # What revert goes back to is what was there before the first run, not what that run left.
    kept = json.loads((root / "var/lib/lanewise/record-before.json").read_text())
    assert kept["kernel"]["sysctl"]["vm.swappiness"] == "60"
    farm.play("playbooks/revert.yml", "--limit", "killed")
    assert different(before, tree(root)) == [CACHE]
