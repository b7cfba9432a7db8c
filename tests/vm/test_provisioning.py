"""The whole way on a machine that boots: plan, provision, reboot, again, revert, reboot, and all is as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from playbooks.module_utils.pci_config import ACS, ACS_REDIRECT, PCI_EXPRESS, ConfigSpace
from tests.vm.bed import NAME, USER_WRITES, Bed
from tests.vm.plays import Played, Plays
from tests.vm.test_bed import GPUS

WISHES: Mapping[str, Any] = {
    "node_virtualised": False,  # it is a guest; its PCI tree is a bare server's
    "node_settings": {"enable": ["max_read_request", "pcie_port_pm_off"]},
    "nccl_system": {"NCCL_SOCKET_IFNAME": "ens3"},
    "nccl_workloads": {
        "kimi": {"settings": {"NCCL_P2P_LEVEL": "SYS"}, "reason": "crosses switches", "expires": "2099-01-01"}
    },
}
WORDS = {"iommu=off", "amd_iommu=off", "pcie_aspm=off", "pcie_port_pm=off"}
"""What the plan puts on the command line: two threads, a CPU of AMD, GPUs behind switches, and what is enabled."""
GRUB, INITRD = "/boot/grub/grub.cfg", "initramfs"
_LISTED = f"""
find /etc /usr/local /var/lib/lanewise {GRUB} -type f -exec sha256sum {{}} + 2>/dev/null
find /etc /usr/local -type l -printf '%l  %p\\n'
find /etc /usr/local -type d -printf 'folder  %p\\n'
rm -rf /run/unpacked && unmkinitramfs /boot/initrd.img-* /run/unpacked && cd /run/unpacked &&
printf '%s  {INITRD}\\n' "$(find . -type f -exec sha256sum {{}} + | sort | sha256sum | cut -d' ' -f1)"
"""
_SPACES = """
import json, pathlib
devices = pathlib.Path("/sys/bus/pci/devices").iterdir()
print(json.dumps({one.name: (one / "config").read_bytes().hex() for one in devices}))
"""


@dataclass(frozen=True, kw_only=True)
class State:
    """What the node is: its record, its configuration spaces by address, its files (hash or link target) by path."""

    record: Mapping[str, Any]
    spaces: Mapping[str, ConfigSpace]
    files: Mapping[str, str]
    command_line: frozenset[str]

    def word(self, address: str, offset: int) -> int:
        """A register of the PCI Express capability."""
        at = self.spaces[address].capability(PCI_EXPRESS)
        assert at is not None
        return self.spaces[address].word(at + offset)

    @property
    def redirecting(self) -> list[str]:
        """Root ports and switch ports that redirect."""
        found = {address: self.spaces[address].extended(ACS) for address in self.bridges}
        return [one for one, at in found.items() if at is not None and self.spaces[one].word(at + 6) & ACS_REDIRECT]

    @property
    def bridges(self) -> list[str]:
        """Bridges with a PCI Express capability."""
        return [
            address
            for address, space in sorted(self.spaces.items())
            if space.data[9:12] == b"\x00\x04\x06" and space.capability(PCI_EXPRESS) is not None
        ]


def state(bed: Bed, plays: Plays) -> State:
    spaces = json.loads(bed.ssh(f"python3 -c '{_SPACES}'"))
    listed = [line.partition("  ")[::2] for line in bed.ssh(_LISTED).split("\n")]
    return State(
        record=plays.record(NAME),
        spaces={address: ConfigSpace(bytes.fromhex(text)) for address, text in spaces.items()},
        files={path: held for held, path in listed},
        command_line=frozenset(bed.ssh("cat /proc/cmdline").split()),
    )


def writes(bed: Bed) -> int:
    return int(bed.ssh(f"cat {USER_WRITES}"))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A run and what the node was after it.

    Attributes:
        writes: to configuration spaces, by processes, since the node's last boot.
    """

    played: Played
    state: State
    writes: int

    @property
    def result(self) -> Mapping[str, Any]:
        return self.played.results[NAME]


@pytest.fixture(scope="module")
def plays(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Plays:
    hosts = {NAME: {**bed.host(), **WISHES}}
    return Plays(folder=tmp_path_factory.mktemp("plays"), group="virtual_machine", hosts=hosts)


def step(bed: Bed, plays: Plays, playbook: str, *arguments: str) -> Step:
    played = plays.play(playbook, *arguments)
    assert played.code == 0, played.output
    return Step(played=played, state=state(bed, plays), writes=writes(bed))


def verify(plays: Plays) -> Mapping[str, Any]:
    """What verify.yml says of the node."""
    folder = plays.folder / "verified"
    plays.play("verify", "-e", f"ladder_folder={folder}")
    result: Mapping[str, Any] = json.loads((folder / f"{NAME}.json").read_text())
    return result


@pytest.fixture(scope="module")
def before(bed: Bed, plays: Plays) -> State:
    return state(bed, plays)


@pytest.fixture(scope="module")
def planned(bed: Bed, plays: Plays, before: State) -> Step:
    return step(bed, plays, "provision", "--check", "--diff")


@pytest.fixture(scope="module")
def provisioned(bed: Bed, plays: Plays, planned: Step) -> Step:
    return step(bed, plays, "provision", "--diff", "-e", "reboot_ok=true")


@pytest.fixture(scope="module")
def verified(plays: Plays, provisioned: Step) -> Mapping[str, Any]:
    return verify(plays)


@pytest.fixture(scope="module")
def again(bed: Bed, plays: Plays, provisioned: Step) -> Step:
    bed.ssh(f"echo 0 > {USER_WRITES}")
    return step(bed, plays, "provision", "--diff", "-e", "reboot_ok=true")


@pytest.fixture(scope="module")
def reverted(bed: Bed, plays: Plays, provisioned: Step) -> Step:
    return step(bed, plays, "revert", "--diff", "-e", "reboot_ok=true")


def test_a_plan_says_what_would_change_and_changes_nothing(before: State, planned: Step) -> None:
    verdicts = planned.played.verdicts(NAME)
    assert planned.result["status"] == "would change"
    applied = {"iommu_mode", "pcie_aspm_off", "acs_redirect", "aspm_links", "max_read_request"}
    assert applied <= {setting for setting, verdict in verdicts.items() if verdict == "apply"}
    assert planned.writes == 0
    assert planned.state.files == before.files
    assert planned.state.spaces.keys() == before.spaces.keys()
    assert registers(planned.state) == registers(before)


def test_the_plan_shows_that_the_inventory_overrides_what_was_read(planned: Step) -> None:
    node_class = planned.result["node_class"]
    assert node_class["virtualised"] is False
    assert node_class["overridden"] == ["virtualised"]
    assert (node_class["path"], node_class["switches"], node_class["gpus"]) == ("switch", 4, len(GPUS))
    assert "virtualised: as the inventory says" in planned.played.output


def test_the_kernel_got_its_command_line_and_obeyed(before: State, provisioned: Step) -> None:
    assert not WORDS & before.command_line
    assert provisioned.state.command_line - before.command_line == WORDS
    assert (before.record["iommu"]["mode"], provisioned.state.record["iommu"]["mode"]) == ("translated", "off")


def test_registers_hold_after_the_reboot(before: State, provisioned: Step) -> None:
    now = provisioned.state
    assert len(before.redirecting) == 20
    assert now.redirecting == []
    for gpu in GPUS:
        assert now.word(gpu, 0x08) & 0x7000 == 0x5000
    for address in [*GPUS, *above_gpus(now)]:
        assert before.word(address, 0x10) & 3
        assert not now.word(address, 0x10) & 3


def test_registers_of_others_are_left(before: State, provisioned: Step) -> None:
    """Network cards, disks and an NVSwitch keep MaxReadReq and ASPM; a network card keeps its own access control."""
    now = provisioned.state
    others = [one for one in now.spaces if one not in [*GPUS, *now.bridges] and now.spaces[one].capability(PCI_EXPRESS)]
    assert len(others) >= 8
    for address in others:
        assert [now.word(address, at) for at in (0x08, 0x10)] == [before.word(address, at) for at in (0x08, 0x10)]


def test_the_boot_unit_ran_and_wrote_what_was_needed(bed: Bed, provisioned: Step) -> None:
    assert provisioned.result["rebooted"]
    assert provisioned.writes > 0  # by the unit: the count starts with the boot
    assert provisioned.result["status"] == "changed"
    assert not provisioned.result["waiting"]["reboot"]


def test_every_applied_decision_is_in_force_or_waits(planned: Step, provisioned: Step) -> None:
    verdicts = provisioned.played.verdicts(NAME)
    wanted = {setting for setting, verdict in planned.played.verdicts(NAME).items() if verdict == "apply"}
    waiting = {setting for ids in provisioned.result["waiting"].values() for setting in ids}
    assert {setting for setting in wanted if verdicts[setting] != "in_force"} <= waiting
    assert verdicts["acs_redirect"] == verdicts["iommu_mode"] == verdicts["aspm_links"] == "in_force"


def test_the_node_verifies_as_far_as_it_can_without_a_driver(verified: Mapping[str, Any]) -> None:
    config, *others = verified["steps"]
    assert [fault["code"] for fault in config["faults"]] == ["DRIVER_MISSING"]
    assert any("mig_off" in line for line in config["evidence"] if line.startswith("not checked, no NVIDIA driver"))
    assert {step["status"] for step in others} == {"not applicable"}


@pytest.mark.vm_full
def test_a_second_run_changes_nothing(provisioned: Step, again: Step) -> None:
    assert again.played.changed[NAME] == 0, again.played.output
    assert again.result["status"] == "unchanged"
    assert again.writes == 0
    assert again.state.files == provisioned.state.files


def test_revert_brings_back_registers_files_and_command_line(before: State, reverted: Step) -> None:
    assert reverted.result["differences"] == []
    assert registers(reverted.state) == registers(before)
    assert reverted.state.command_line == before.command_line
    differing = {
        path
        for path in {**before.files, **reverted.state.files}
        if before.files.get(path) != reverted.state.files.get(path)
    }
    assert not differing
    assert GRUB in reverted.state.files
    assert INITRD in reverted.state.files


def test_a_reverted_node_no_longer_verifies(plays: Plays, reverted: Step) -> None:
    config = verify(plays)["steps"][0]
    assert config["status"] == "fault"
    assert {one["code"] for one in config["faults"]} >= {"CONFIG_NOT_IN_FORCE", "CONFIG_FAULT"}


def test_nothing_of_ours_is_left(bed: Bed, reverted: Step) -> None:
    assert bed.ssh("find / -xdev -iname '*lanewise*' -not -path '/var/log/*'") == ""
    assert bed.ssh("systemctl is-enabled lanewise-pci.service", check=False) in ("", "not-found")


def registers(of: State) -> dict[str, dict[str, int | None]]:
    """Device control, link control and ACS control of every function that has them."""
    found: dict[str, dict[str, int | None]] = {}
    for address, space in of.spaces.items():
        at, acs = space.capability(PCI_EXPRESS), space.extended(ACS)
        if at is not None:
            found[address] = {
                "device": space.word(at + 0x08),
                "link": space.word(at + 0x10),
                "acs": None if acs is None else space.word(acs + 6),
            }
    return found


def above_gpus(of: State) -> list[str]:
    """Both ends of every link above a GPU: the port that leads to it, the switch's upper port, the root port."""
    buses = {int(gpu[5:7], 16) for gpu in GPUS}
    return [one for one in of.bridges if buses & set(range(of.spaces[one].data[0x19], of.spaces[one].data[0x1A] + 1))]
