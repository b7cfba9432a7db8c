"""What goes wrong on one node is told by name, changes nothing more there, and stops no other node. One run for all."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.roles.conftest import ROOT, Done, Farm
from tests.roles.makers_tree import Tree, different, tree
from tests.unit.makers_node import write

SETTINGS = {"enable": ["max_read_request"], "disable": ["persistence"], "values": {}}
STUCK = "0000:43:00.0"
THIS = f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"


def other_user(folder: Path) -> str:
    """A Python that runs as somebody who may not write what root owns: file modes stop nobody else here."""
    if os.geteuid():
        return shutil.which("python3") or ""
    if not (setpriv := shutil.which("setpriv")):
        pytest.skip("no setpriv, without which root's writes cannot be refused")
    script = folder / "python-as-nobody"
    script.write_text(f'#!/bin/sh\nexec {setpriv} --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 "$@"\n')
    script.chmod(0o755)
    return str(script)


def give_away(root: Path) -> None:
    """Everything below `root` to that user."""
    if os.geteuid() == 0:
        for path in [root, *root.rglob("*")]:
            os.chown(path, 65534, 65534, follow_symlinks=False)


def lock_up(path: Path) -> None:
    """Nobody but root may write there."""
    path.chmod(0o555 if path.is_dir() else 0o444)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)


def hold(root: Path, controller: str, pid: int, seconds: float = 600) -> None:
    """A lease that another run has taken."""
    lease = root / "var/lib/lanewise/lease.json"
    lease.parent.mkdir()
    now = time.time()
    document = {"controller": controller, "pid": pid, "since": now, "until": now + seconds}
    lease.write_text(json.dumps({"schema": "lanewise.lease/1", **document}))


@pytest.fixture(scope="module")
def roots(farm: Farm) -> dict[str, Path]:
    stranger = other_user(farm.folder)

    def add(name: str, **variables: Any) -> Path:
        return farm.add(name, **{"node_settings": SETTINGS, **variables})

    found = {
        "healthy": add("healthy"),
        "foreign": add("foreign", nccl_system={"NCCL_SOCKET_IFNAME": "eth0"}),
        "readonly": add("readonly", ansible_python_interpreter=stranger),
        "stuck": add("stuck", ansible_python_interpreter=stranger),
        "busy": add("busy"),
        "dead": add("dead"),
        "overlong": add("overlong"),
        "damaged-before": add("damaged-before"),
        "damaged-refreshed": add("damaged-refreshed"),
        "maybe": add("maybe", reboot_ok="maybe"),
        "unpinned": add("unpinned", runtime_install={"docker.io": "latest"}),
        "misfit": add("misfit", pcie_exclude={"a": 1}),
        "misaddressed": add("misaddressed", pcie_exclude=["01:00.0"]),
        "refused": add("refused", node_settings={"enable": ["no_such_setting"], "disable": ["persistence"]}),
        "sudo": add(
            "sudo",
            ansible_become=True,
            ansible_become_user="nobody",
            ansible_become_exe=str(farm.folder / "no-such-sudo"),
        ),
        "away": add("away", ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1),
    }
    (found["foreign"] / "etc/nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    for name in ("readonly", "stuck"):
        give_away(found[name])
    for path in [found["readonly"] / "etc", *(found["readonly"] / "etc").rglob("*")]:
        lock_up(path)
    lock_up((found["stuck"] / f"sys/bus/pci/devices/{STUCK}/config").resolve())
    hold(found["busy"], THIS, os.getpid())
    hold(found["overlong"], "admin@elsewhere", 4242, seconds=1e9)
    for name in ("before", "refreshed"):
        write(found[f"damaged-{name}"], {f"var/lib/lanewise/{name}.json": "{not json"})
    hold(found["dead"], THIS, 2**22 + 1)  # above the largest pid that Linux gives
    return found


@pytest.fixture(scope="module")
def before(roots: dict[str, Path]) -> dict[str, Any]:
    return {name: tree(root) for name, root in roots.items()}


@pytest.fixture(scope="module")
def done(farm: Farm, before: dict[str, Any]) -> Done:
    return farm.play("playbooks/provision.yml")


def result(done: Done, name: str) -> tuple[str, str]:
    found = done.results[name]
    return found["status"], found["message"]


def beyond_our_folder(before: Tree, root: Path) -> list[str]:
    """What is not as it was, but for what Lanewise keeps for itself."""
    return [name for name in different(before, tree(root)) if not name.startswith("var/lib")]


def test_the_healthy_node_is_done_whatever_happens_to_the_others(done: Done, roots: dict[str, Path]) -> None:
    assert done.code != 0
    assert result(done, "healthy") == ("pending reboot", "")
    assert (roots["healthy"] / "etc/lanewise/pci.conf").exists()


def test_every_node_has_a_result(done: Done, roots: dict[str, Path]) -> None:
    assert set(done.results) == set(roots)


def test_a_foreign_file_is_refused_by_name_before_anything_is_changed(
    done: Done, roots: dict[str, Path], before: dict[str, Any]
) -> None:
    status, message = result(done, "foreign")
    assert status == "failed"
    assert "not ours, so nothing was written: /etc/nccl.conf" in message
    assert beyond_our_folder(before["foreign"], roots["foreign"]) == []


@pytest.mark.parametrize(("name", "lost"), [("before", "the way back"), ("refreshed", "a way back")])
def test_a_damaged_document_of_ours_is_found_before_anything_is_changed(
    done: Done, roots: dict[str, Path], before: dict[str, Any], name: str, lost: str
) -> None:
    status, message = result(done, f"damaged-{name}")
    assert status == "failed"
    assert f"/{name}.json is damaged" in message
    assert f"which loses {lost}" in message
    assert beyond_our_folder(before[f"damaged-{name}"], roots[f"damaged-{name}"]) == []


def test_a_read_only_etc_is_named_and_nothing_of_ours_is_half_there(
    done: Done, roots: dict[str, Path], before: dict[str, Any]
) -> None:
    status, message = result(done, "readonly")
    assert status == "failed"
    assert "cannot write /etc/" in message
    assert beyond_our_folder(before["readonly"], roots["readonly"]) == []


def test_a_register_that_cannot_be_written_is_named_and_all_others_are_set(done: Done, roots: dict[str, Path]) -> None:
    status, message = result(done, "stuck")
    assert status == "failed"
    assert f"1 registers are not as they shall be: {STUCK} max_read_request" in message
    entries = json.loads((roots["stuck"] / "var/lib/lanewise/before.json").read_text())["registers"]
    assert len(entries) == 10  # two ports, eight GPUs: that one, too, since it was written down before it was tried


def test_a_node_that_a_living_run_holds_is_refused_by_name(
    done: Done, roots: dict[str, Path], before: dict[str, Any]
) -> None:
    status, message = result(done, "busy")
    assert status == "failed"
    assert f"another run holds busy: {THIS}, process {os.getpid()}, until 20" in message
    assert set(different(before["busy"], tree(roots["busy"]))) <= {"var/lib/lanewise/lock"}


def test_a_lease_without_a_near_end_says_how_to_break_it(done: Done) -> None:
    status, message = result(done, "overlong")
    assert status == "failed"
    assert "lease.json of overlong gives the node to admin@elsewhere, process 4242, until 20" in message
    assert "-e node_lease_break=true" in message
    assert "wait for it" not in message


def test_the_lease_of_a_dead_run_is_taken_over(done: Done, roots: dict[str, Path]) -> None:
    assert result(done, "dead") == ("pending reboot", "")
    assert not (roots["dead"] / "var/lib/lanewise/lease.json").exists()


def test_what_the_plan_refuses_changes_nothing(done: Done, roots: dict[str, Path], before: dict[str, Any]) -> None:
    status, message = result(done, "refused")
    assert status == "refused"
    assert "no_such_setting" in message
    assert different(before["refused"], tree(roots["refused"])) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("maybe", '"reboot_ok": "maybe"'), ("unpinned", "runtime_install.docker.io is 'latest'; expected: a package")],
)
def test_what_the_inventory_says_wrongly_is_refused_and_changes_nothing(
    done: Done, roots: dict[str, Path], before: dict[str, Any], name: str, said: str
) -> None:
    status, message = result(done, name)
    assert status == "refused"
    assert said in message
    assert different(before[name], tree(roots[name])) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("misfit", "argument 'pcie_exclude'"), ("misaddressed", "pcie: pcie_exclude has 01:00.0; expected")],
)
def test_what_only_one_role_reads_is_checked_before_any_role_changes_anything(
    done: Done, roots: dict[str, Path], before: dict[str, Any], name: str, said: str
) -> None:
    status, message = result(done, name)
    assert status == "failed"
    assert said in message
    assert beyond_our_folder(before[name], roots[name]) == []


@pytest.mark.parametrize("playbook", ["provision", "revert"])
@pytest.mark.usefixtures("done")
def test_a_tag_that_nothing_has_is_refused_with_those_that_there_are(farm: Farm, playbook: str) -> None:
    again = farm.play(f"playbooks/{playbook}.yml", "--limit", "healthy", "--tags", "pcie,nosuch", "--check")
    assert again.code != 0
    assert again.results["healthy"]["status"] == "refused"
    told = again.results["healthy"]["message"]
    ours = "all, runtime, kernel, pcie, gpu, nccl, container, preflight, apply, verify"
    assert f"no tag nosuch; expected of {ours}, or Ansible's own always, never, tagged, untagged; next" in told


@pytest.mark.usefixtures("done")
def test_tags_of_ansible_are_taken_and_tagged_means_every_role(farm: Farm) -> None:
    tags = ("--tags", "always,never,tagged,untagged", "--skip-tags", "never,untagged")
    again = farm.play("playbooks/provision.yml", "--limit", "healthy", "--check", *tags)
    assert again.code == 0, again.out
    assert again.results["healthy"]["waiting"]["reboot"] != []


def test_a_node_without_sudo_says_so(done: Done) -> None:
    status, message = result(done, "sudo")
    assert status == "failed"
    assert "no-such-sudo" in message


def test_a_node_that_is_away_is_unreachable(done: Done) -> None:
    status, message = result(done, "away")
    assert status == "unreachable"
    assert "127.0.0.1" in message


def test_no_error_is_a_traceback(done: Done) -> None:
    assert "Traceback" not in done.out


def test_a_lease_can_be_broken_by_hand(done: Done, farm: Farm) -> None:
    again = farm.play("playbooks/provision.yml", "--limit", "busy", "-e", "node_lease_break=true", "--check")
    assert again.code == 0, again.out


def test_a_read_only_node_group_is_never_touched(farm: Farm) -> None:
    shown = farm.play("playbooks/provision.yml", "-i", str(ROOT / "inventory/hosts.yml"), "--limit", "this-machine")
    assert shown.results == {}
