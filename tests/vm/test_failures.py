"""What goes wrong on a machine that boots: a register sticks, power fails in the middle, a node is away."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import IO

import pytest

from tests.vm.bed import NAME, Bed
from tests.vm.plays import Plays
from tests.vm.server import make_server
from tests.vm.test_bed import STUCK
from tests.vm.test_provisioning import WISHES, registers, state

pytestmark = pytest.mark.vm_full


@pytest.fixture
def plays(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Plays:
    bed.reset()
    hosts = {NAME: {**bed.host(), **WISHES}}
    return Plays(folder=tmp_path_factory.mktemp("plays"), group="virtual_machine", hosts=hosts)


def test_a_register_that_sticks_fails_by_name_now_and_at_every_boot(bed: Bed, plays: Plays) -> None:
    bed.load(make_server(stuck=STUCK))
    played = plays.play("provision", "-e", "reboot_ok=true")
    assert played.code
    assert played.results[NAME]["status"] == "failed"
    told = played.results[NAME]["message"]
    assert f"{STUCK} max_read_request: did not stick: wanted 0x5" in told
    assert "reads 0x2" in told
    assert told.startswith("1 registers")
    # All others were set all the same.
    now = state(bed, plays)
    assert now.redirecting == []
    assert now.word("0000:a4:00.0", 0x08) & 0x7000 == 0x5000
    # Somebody installs the boot unit on a sound node, whose card is then replaced by such a one.
    bed.reset()
    assert plays.play("provision").code == 0
    bed.load(make_server(stuck=STUCK))
    bed.reboot()
    assert bed.ssh("systemctl is-failed lanewise-pci.service") == "failed"
    assert STUCK in bed.ssh("journalctl -b -u lanewise-pci.service")


def test_power_that_fails_between_two_tasks_is_made_up_for_by_the_next_run(bed: Bed, plays: Plays) -> None:
    before = state(bed, plays)
    with plays.start("provision", "-e", "reboot_ok=true") as (process, results):
        assert process.stdout is not None
        read_until(process.stdout, "Own the boot unit's files")
        bed.machine.stop()
        process.communicate(timeout=600)
        assert process.returncode
    assert json.loads((results / f"{NAME}.json").read_text())["status"] == "unreachable"
    bed.boot()
    plays = replace(plays, hosts={NAME: {**bed.host(), **WISHES}})
    assert plays.play("provision", "-e", "reboot_ok=true").code == 0
    assert state(bed, plays).redirecting == []
    again = plays.play("provision")
    assert again.changed[NAME] == 0, again.output
    assert plays.play("revert", "-e", "reboot_ok=true").code == 0
    after = state(bed, plays)
    assert registers(after) == registers(before)
    assert after.files == before.files
    assert after.command_line == before.command_line


def test_a_node_that_is_away_stops_no_other(bed: Bed, plays: Plays) -> None:
    hosts = {"away": {**bed.host(), "ansible_port": 1}, **plays.hosts}
    played = replace(plays, hosts=hosts).play("provision", "--check")
    assert {name: result["status"] for name, result in played.results.items()} == {
        "away": "unreachable",
        NAME: "would change",
    }


def read_until(output: IO[str], text: str) -> None:
    """Read lines until one has the text: a task begins."""
    for line in output:
        if text in line:
            return
    pytest.fail(f"the run ended before {text!r}")
