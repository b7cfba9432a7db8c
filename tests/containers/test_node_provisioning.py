"""The playbooks on a node with systemd: units, limits, what survives a restart, and that revert leaves nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lanewise.errors import LanewiseError
from playbooks.module_utils.pci_config import ConfigSpace
from tests.containers.node_bed import Node, node_image, nodes
from tests.vm.plays import Played, Plays

pytestmark = pytest.mark.timeout(600)
WISHES: Mapping[str, Any] = {
    "node_virtualised": False,  # it is a container; its PCI tree is a bare server's
    "node_settings": {"enable": ["max_read_request"]},
    "nccl_system": {"NCCL_SOCKET_IFNAME": "eth0"},
}
FILES = "find /etc /usr/local /boot /var/lib/lanewise -type f -exec sha256sum {} + 2>/dev/null"
"""Hash and path of everything that provisioning may write."""
LINKS = "find /etc/systemd -type l -printf '%p -> %l\\n'"


@pytest.fixture(scope="module")
def node(engine: Any, python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    for program in ("docker", "ssh", "ssh-keygen"):
        if not shutil.which(program):
            pytest.skip(f"nodes in containers are reached by {program}, which is not installed")
    try:
        image = node_image(engine, python_base)
    except LanewiseError as error:
        pytest.skip(f"no image of nodes can be made here: {error.what}")
    with nodes(engine, image, tmp_path_factory.mktemp("bed")) as made:
        yield made[0]


@pytest.fixture(scope="module")
def plays(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Plays:
    hosts = {node.name: {**node.host(), **WISHES}}
    return Plays(folder=tmp_path_factory.mktemp("plays"), group="virtual_machine", hosts=hosts)


@pytest.fixture(scope="module")
def before(node: Node) -> Mapping[str, str]:
    return state(node)


@pytest.fixture(scope="module")
def provisioned(plays: Plays, before: Mapping[str, str]) -> Played:
    return succeeded(plays.play("provision", "--diff"))


@pytest.fixture(scope="module")
def restarted(node: Node, provisioned: Played) -> Node:
    node.power_cycle()
    return node


def test_units_run_and_registers_hold(node: Node, provisioned: Played) -> None:
    assert node.run("systemctl is-active lanewise-pci.service") == "active"
    assert len(registers(node)["acs"]) == 20
    assert not any(value & 0x2C for value in registers(node)["acs"])
    assert registers(node)["requests"] == [4096] * 8
    assert "NCCL_SOCKET_IFNAME=eth0" in node.run("cat /etc/nccl.conf")
    assert "iommu=" in node.run("cat /boot/grub/grub.cfg")  # the fake says what update-grub was given


def test_the_engine_gets_its_limits_and_settings_and_is_not_restarted(node: Node, provisioned: Played) -> None:
    assert node.run("systemctl show -p LimitMEMLOCK docker.service") == "LimitMEMLOCK=infinity"
    assert json.loads(node.run("cat /etc/docker/daemon.json"))["default-shm-size"]
    started = node.run("systemctl show --value -p ExecMainStartTimestampMonotonic docker.service")
    owned = node.run("systemctl show --value -p ActiveEnterTimestampMonotonic lanewise-pci.service")
    assert int(started) < int(owned)


def test_what_was_set_is_set_again_at_a_restart(restarted: Node) -> None:
    assert restarted.run("systemctl is-active lanewise-pci.service") == "active"
    assert not any(value & 0x2C for value in registers(restarted)["acs"])
    assert registers(restarted)["requests"] == [4096] * 8
    assert restarted.run("cat /proc/sys/kernel/numa_balancing") == "0"  # systemd-sysctl read our file


def test_a_second_run_changes_nothing(plays: Plays, restarted: Node) -> None:
    again = succeeded(plays.play("provision", "--diff"))
    assert again.changed[restarted.name] == 0, again.output


def test_revert_leaves_files_units_and_registers_as_they_were(
    plays: Plays, restarted: Node, before: Mapping[str, str]
) -> None:
    succeeded(plays.play("revert", "--diff"))
    assert state(restarted) == before
    assert restarted.run("systemctl is-active lanewise-pci.service") == "inactive"


def succeeded(played: Played) -> Played:
    assert played.code == 0, played.output
    return played


def registers(node: Node) -> dict[str, list[int]]:
    """ACS control of every port that has it, MaxReadReq of every GPU."""
    spaces = [ConfigSpace((one / "config").read_bytes()) for one in sorted((node.tree / "bus/pci/devices").iterdir())]
    ports = [space for space in spaces if space.data[9:12] == b"\x00\x04\x06"]
    gpus = [space for space in spaces if space.data[9:12] == b"\x00\x02\x03"]
    return {
        "acs": [acs[1] for acs in map(ConfigSpace.acs, ports) if acs],
        "requests": [control.max_read_request for control in map(ConfigSpace.device_control, gpus) if control],
    }


def state(node: Node) -> dict[str, str]:
    """Files and links with what they hold, live values, and registers."""
    listed = dict(line.split(maxsplit=1)[::-1] for line in node.run(FILES).splitlines())
    return {
        **listed,
        "links": node.run(LINKS),
        "numa_balancing": node.run("cat /proc/sys/kernel/numa_balancing"),
        "registers": json.dumps(registers(node)),
    }
