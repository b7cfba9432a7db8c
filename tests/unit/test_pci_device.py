"""PCI registers set, read back and set back in trees of plain files; registers that do not behave are faked by name."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils import node_files, pci_changes
from playbooks.module_utils.before import DEFAULT
from playbooks.module_utils.node_files import NodeFileError
from playbooks.module_utils.pci_changes import present, reverted
from playbooks.module_utils.pci_config import ConfigError
from playbooks.module_utils.pci_settings import Device, Settings, devices, survey, wishes
from tests.unit.makers_modules import run_module
from tests.unit.makers_pci import (
    ACS_CONTROL_AT,
    BIOS_ACS,
    BIOS_DEVICE_CONTROL,
    DEVICE_CONTROL_AT,
    DISK,
    DOWN_A,
    DOWN_B,
    GPU,
    GPU_A,
    GPU_B,
    L1,
    LINK_CONTROL_AT,
    OLD,
    PORT,
    ROOT_A,
    ROOT_B,
    UP,
    add,
    folder,
    put,
    small_tree,
    space,
    spaces,
    word,
)

ALL = Settings(clear_redirect=True, max_read_request=4096, disable_aspm=True, match=("10de:0302",))
OPTIONS: dict[str, Any] = {
    "acs_redirect": "clear",
    "max_read_request": 4096,
    "aspm": "disabled",
    "match": ["10de:0302"],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_tree(tmp_path)


def change(root: Path, settings: Settings = ALL) -> pci_changes.Outcome:
    return present(str(root), DEFAULT, settings, write=True)


def go_back(root: Path) -> pci_changes.Outcome:
    return reverted(str(root), DEFAULT, write=True)


def record(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((root / DEFAULT[1:]).read_text())
    return document


class Stuck(Device):
    """A fake: its config space forgets what is written to one register."""

    at = DEVICE_CONTROL_AT

    def write(self, offset: int, word: int) -> None:
        if offset != self.at:
            super().write(offset, word)


class Recorder(Device):
    """A fake that only notes the order of writing."""

    order: list[tuple[str, int]]

    def write(self, offset: int, word: int) -> None:
        self.order.append((self.address, offset))
        super().write(offset, word)


def become(monkeypatch: pytest.MonkeyPatch, fake: type[Device], *addresses: str) -> None:
    """Have these functions (none named: all) be fakes."""

    def faked(root: Path) -> list[Device]:
        return [fake(one.folder) if one.address in addresses or not addresses else one for one in devices(root)]

    monkeypatch.setattr(pci_changes, "devices", faked)


def test_the_settings_reach_the_right_functions_and_bits(root: Path) -> None:
    outcome = change(root)
    assert not outcome.faults
    assert [one.wish.name for one in outcome.changed] == [
        *(f"{port} acs_control" for port in (ROOT_A, DOWN_A, ROOT_B)),
        *(f"{gpu} max_read_request" for gpu in (GPU_A, GPU_B)),
        *(f"{one} aspm" for one in (GPU_A, GPU_B, DOWN_A, DOWN_B, UP, ROOT_A)),
    ]
    assert [word(root, port, ACS_CONTROL_AT) for port in (ROOT_A, DOWN_A, DOWN_B, ROOT_B)] == [0x11] * 4
    assert [word(root, gpu, DEVICE_CONTROL_AT) for gpu in (GPU_A, GPU_B)] == [0x5936] * 2
    assert [word(root, one, LINK_CONTROL_AT) for one in (GPU_A, DOWN_B, UP, ROOT_A)] == [0x40] * 4
    assert word(root, GPU_B, ACS_CONTROL_AT) == BIOS_ACS  # a port's setting, not an endpoint's
    assert word(root, DISK, DEVICE_CONTROL_AT) == BIOS_DEVICE_CONTROL
    assert [word(root, one, LINK_CONTROL_AT) for one in (DISK, ROOT_B)] == [L1] * 2


def test_only_redirect_and_egress_control_are_cleared(root: Path) -> None:
    put(root, ROOT_B, ACS_CONTROL_AT, 0x007F)
    change(root, Settings(clear_redirect=True))
    assert word(root, ROOT_B, ACS_CONTROL_AT) == 0x0053


def test_nothing_wished_for_is_nothing_done(root: Path) -> None:
    before = spaces(root)
    assert not change(root, Settings()).readings
    assert spaces(root) == before
    assert not (root / "var/lib/lanewise").exists()


def test_excluded_functions_are_left_alone(root: Path) -> None:
    change(root, replace(ALL, exclude=(ROOT_B, GPU_A, DOWN_A)))
    assert word(root, ROOT_B, ACS_CONTROL_AT) == BIOS_ACS
    assert word(root, DOWN_A, ACS_CONTROL_AT) == BIOS_ACS
    assert word(root, GPU_A, DEVICE_CONTROL_AT) == BIOS_DEVICE_CONTROL
    assert word(root, GPU_B, DEVICE_CONTROL_AT) == 0x5936


def test_again_changes_nothing_and_writes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(root)
    kept = record(root)
    Recorder.order = []
    become(monkeypatch, Recorder)
    outcome = change(root)
    assert not outcome.changed
    assert not Recorder.order
    assert record(root) == kept


def test_revert_brings_back_every_byte_and_leaves_nothing(root: Path) -> None:
    before = spaces(root)
    change(root)
    assert len(go_back(root).changed) == 11
    assert spaces(root) == before
    assert not (root / "var/lib/lanewise").exists()
    assert not go_back(root).readings


def test_revert_goes_back_to_the_first_value_of_several(root: Path) -> None:
    before = spaces(root)
    change(root, Settings(max_read_request=4096, match=("10de:0302",)))
    first = record(root)
    change(root, Settings(max_read_request=128, match=("10de:0302",)))
    assert record(root) == first
    go_back(root)
    assert spaces(root) == before


def test_revert_touches_only_the_bits_of_ours(root: Path) -> None:
    change(root)
    put(root, GPU_A, DEVICE_CONTROL_AT, 0x5910)  # error reporting bits, by someone else
    go_back(root)
    assert word(root, GPU_A, DEVICE_CONTROL_AT) == 0x2910


def test_the_record_says_of_what_and_when(root: Path) -> None:
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.18.1\n")
    change(root)
    entry = record(root)["registers"][f"{GPU_A} max_read_request"]
    assert {key: entry[key] for key in ("device", "word", "kernel", "driver")} == {
        "device": "10de:2bb1",
        "word": "0x2936",
        "kernel": "6.18.1",
        "driver": None,
    }
    assert entry["time"].endswith("Z")


def test_l1_goes_off_below_first_and_comes_back_above_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder.order = []
    become(monkeypatch, Recorder)
    change(root, Settings(disable_aspm=True, match=("10de:0302",)))
    down = [address for address, _ in Recorder.order]
    Recorder.order = []
    go_back(root)
    up = [address for address, _ in Recorder.order]
    for path in ([GPU_A, DOWN_A, UP, ROOT_A], [GPU_B, DOWN_B, UP, ROOT_A]):
        assert [address for address in down if address in path] == path
        assert [address for address in up if address in path] == path[::-1]


def test_what_does_not_stick_is_named_when_all_else_was_tried(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, Stuck, GPU_A)
    outcome = change(root)
    assert [str(fault) for fault in outcome.faults] == [
        f"{GPU_A} max_read_request: did not stick: wanted 0x5936, reads 0x2936"
    ]
    assert len(outcome.changed) == 10
    assert word(root, GPU_B, DEVICE_CONTROL_AT) == 0x5936
    assert word(root, ROOT_A, LINK_CONTROL_AT) == 0x40


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(30, "Read-only file system"), "Read-only"), (PermissionError(1, "Operation not permitted"), "lockdown")],
)
def test_what_cannot_be_written_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    class Refusing(Device):
        """A fake: as under a read-only /sys, or a kernel in lockdown."""

        def write(self, offset: int, word: int) -> None:
            raise error

    become(monkeypatch, Refusing, ROOT_B)
    assert said in str(change(root).faults[0])


def test_a_device_that_dies_between_survey_and_write_is_not_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Device):
        """A fake: it answers once."""

        def read(self, offset: int) -> int:
            return 0xFFFF

        def write(self, offset: int, word: int) -> None:
            raise AssertionError("written")

    become(monkeypatch, Dying, GPU_A)
    faults = change(root).faults
    assert {fault.address for fault in faults} == {GPU_A}
    assert "does not answer any more" in faults[0].why


@pytest.mark.parametrize("size", [64, 256])
def test_acs_that_cannot_be_read_is_a_fault(root: Path, size: int) -> None:
    config = folder(root, DOWN_A) / "config"
    config.write_bytes(config.read_bytes()[:size])
    faults = change(root, Settings(clear_redirect=True)).faults
    assert [fault.name for fault in faults] == [f"{DOWN_A} acs_control"]
    assert f"so nothing is assumed: only {size} bytes" in faults[0].why
    assert word(root, ROOT_B, ACS_CONTROL_AT) == 0x11


def test_a_device_of_all_ones_is_a_fault_and_never_written(root: Path) -> None:
    config = folder(root, GPU_B) / "config"
    config.write_bytes(b"\xff" * 4096)
    faults = change(root).faults
    assert {fault.name for fault in faults} == {f"{GPU_B} max_read_request", f"{GPU_B} aspm"}
    assert config.read_bytes() == b"\xff" * 4096


def test_a_bridge_without_pci_express_or_acs_is_passed_over(root: Path) -> None:
    add(root, "pci0000:00/0000:00:1e.0", space((0x8086, 0x244E), PORT))
    names = {reading.wish.name for reading in survey(wishes(devices(root), Settings(clear_redirect=True)))[0]}
    assert names == {f"{port} acs_control" for port in (ROOT_A, DOWN_A, DOWN_B, ROOT_B)}
    assert not {one for one in names if one.startswith((UP, OLD))}


def test_nothing_is_written_before_the_record_is_on_disk(root: Path) -> None:
    before = spaces(root)
    (root / "var/lib/lanewise/lock").mkdir(parents=True)
    with pytest.raises(NodeFileError, match=r"lanewise/lock: Is a directory"):
        change(root)
    assert spaces(root) == before


def test_a_full_disk_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    before = spaces(root)
    monkeypatch.setattr(node_files.os, "fsync", full)
    with pytest.raises(NodeFileError, match=r"before\.json: No space left"):
        change(root)
    assert spaces(root) == before


def test_a_run_that_dies_after_its_first_write_is_finished_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Device):
        """A fake: the node dies here."""

        def write(self, offset: int, word: int) -> None:
            raise KeyboardInterrupt

    before = spaces(root)
    with monkeypatch.context() as patch:
        become(patch, Killed, DOWN_A)
        with pytest.raises(KeyboardInterrupt):
            change(root)
    assert word(root, ROOT_A, ACS_CONTROL_AT) == 0x11
    assert not change(root).faults
    go_back(root)
    assert spaces(root) == before


def test_another_card_than_recorded_is_refused_by_name(root: Path) -> None:
    change(root)
    for name, text in {"vendor": "0x10de", "device": "0x2330"}.items():
        (folder(root, GPU_A) / name).write_text(f"{text}\n")
    put(root, GPU_A, DEVICE_CONTROL_AT, BIOS_DEVICE_CONTROL)
    faults = change(root).faults
    assert {fault.address for fault in faults} == {GPU_A}
    assert "recorded of 10de:2bb1, and 10de:2330 is there" in faults[0].why
    assert word(root, GPU_A, DEVICE_CONTROL_AT) == BIOS_DEVICE_CONTROL
    assert {fault.address for fault in go_back(root).faults} == {GPU_A}
    assert set(record(root)["registers"]) == {f"{GPU_A} max_read_request", f"{GPU_A} aspm"}
    assert word(root, GPU_B, DEVICE_CONTROL_AT) == BIOS_DEVICE_CONTROL


def test_a_card_that_is_gone_is_reported_and_its_entries_kept(root: Path) -> None:
    change(root)
    (root / "sys/bus/pci/devices" / GPU_B).unlink()
    outcome = go_back(root)
    assert {one.address for one in outcome.gone} == {GPU_B}
    assert not outcome.faults
    assert set(record(root)["registers"]) == {f"{GPU_B} max_read_request", f"{GPU_B} aspm"}
    assert not go_back(root).changed


def test_a_recorded_register_that_is_not_there_any_more_is_a_fault(root: Path) -> None:
    change(root)
    (folder(root, ROOT_B) / "config").write_bytes(space((0x1022, 0x14AB), PORT, 4))
    assert [str(fault) for fault in go_back(root).faults] == [
        f"{ROOT_B} acs_control: the function lacks this register now"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "other"}', "[" * 99999])
def test_a_damaged_record_is_refused_and_kept(root: Path, text: str) -> None:
    path = root / DEFAULT[1:]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    before = spaces(root)
    for call in (change, go_back):
        with pytest.raises(NodeFileError, match=r"before\.json"):
            call(root)
    assert path.read_text() == text
    assert spaces(root) == before


@pytest.mark.parametrize("entry", [{"word": "0x99999"}, {"word": "soon"}, {}, {"word": None}, {"word": 64}])
def test_a_damaged_entry_is_a_fault(root: Path, entry: dict[str, object]) -> None:
    path = root / DEFAULT[1:]
    path.parent.mkdir(parents=True)
    registers = {f"{GPU_A} aspm": {"device": "10de:2bb1", **entry}, f"{GPU_A} boot": {"device": "10de:2bb1"}}
    path.write_text(json.dumps({"schema": "lanewise.before/1", "registers": registers}))
    before = spaces(root)
    assert len(go_back(root).faults) == 2
    assert spaces(root) == before


@pytest.fixture
def held(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = root / "var/lib/lanewise/lock"
    path.parent.mkdir(parents=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    monkeypatch.setattr(node_files, "LOCK_SECONDS", 0.2)
    yield path
    os.close(handle)


def test_two_runs_at_once_are_refused_by_the_name_of_the_lock(root: Path, held: Path) -> None:
    with pytest.raises(NodeFileError, match=f"another run has held {held} for 0.2 s"):
        change(root)


def test_this_machines_devices_are_out_of_reach_of_another_root(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:99:00.0").symlink_to("/sys/devices/pci0000:00/0000:99:00.0")
    with pytest.raises(ConfigError, match="lies outside"):
        change(root)


def test_a_node_that_shows_no_devices_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot list the PCI devices"):
        change(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_read_request": 300},
        {"match": ("10DE:0302",)},
        {"match": ("nvidia",)},
        {"exclude": ("1:0.0",)},
        {"max_read_request": 512},
        {"disable_aspm": True},
    ],
)
def test_settings_of_another_form_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|is not|nothing says"):
        Settings(**wrong)


def test_the_module_says_what_check_mode_would_do_and_then_does_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = spaces(root)
    ahead = run_module("pci_device", capsys, check=True, root=str(root), **OPTIONS)
    assert spaces(root) == before
    assert not (root / "var").exists()
    done = run_module("pci_device", capsys, root=str(root), **OPTIONS)
    assert {key: ahead[key] for key in ("changed", "changes", "diff", "devices")} == {
        key: done[key] for key in ("changed", "changes", "diff", "devices")
    }
    assert done["changed"]
    assert done["devices"] == 7
    assert done["changes"][3] == {"address": GPU_A, "register": "max_read_request", "before": "512", "after": "4096"}
    assert f"{ROOT_A} acs_control 0x0011\n" in done["diff"]["after"]
    assert not run_module("pci_device", capsys, root=str(root), **OPTIONS)["changed"]
    back = run_module("pci_device", capsys, root=str(root), state="reverted")
    assert back["changed"]
    assert spaces(root) == before


def test_the_module_reads(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module("pci_device", capsys, root=str(root), state="read", **OPTIONS)
    assert not result["changed"]
    assert not result["changes"]
    assert {"address": GPU_A, "register": "aspm", "value": "l1"} in result["registers"]
    assert word(root, GPU_A, LINK_CONTROL_AT) == L1


def test_the_module_fails_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder(root, GPU_B) / "config").write_bytes(b"\xff" * 4096)
    result = run_module("pci_device", capsys, root=str(root), **OPTIONS)
    assert result["failed"]
    assert result["changed"]
    assert f"{GPU_B} max_read_request: cannot be read" in result["msg"]
    assert {one["address"] for one in result["refused"]} == {GPU_B}


def test_the_module_tells_what_is_gone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(root)
    (root / "sys/bus/pci/devices" / GPU_B).unlink()
    result = run_module("pci_device", capsys, root=str(root), state="reverted")
    assert result["changed"]
    assert [one["why"] for one in result["refused"] if one["address"] == GPU_B]


def test_the_module_refuses_a_wrong_match(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module("pci_device", capsys, root=str(root), max_read_request=4096)
    assert result["failed"]
    assert "nothing says of which functions" in result["msg"]


def test_gpus_of_other_classes_can_be_matched(root: Path) -> None:
    add(root, "pci0000:20/0000:20:00.0", space((0x10DE, 0x2BB1), 0x030000, 0))
    add(root, "pci0000:20/0000:20:01.0", space((0x10DE, 0x22A3), 0x068000, 0))  # an NVSwitch
    assert GPU >> 8 == 0x0302
    wanted = wishes(devices(root), Settings(max_read_request=4096, match=("10de:0300",)))
    assert [wish.device.address for wish in wanted] == ["0000:20:00.0"]
