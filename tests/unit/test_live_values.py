"""Live values in files made here; plain files do not behave as the kernel's do, so refusals are faked by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils import live
from playbooks.module_utils.before import DEFAULT
from playbooks.module_utils.live import Outcome, Value, present, reverted
from playbooks.module_utils.node_files import NodeFileError
from tests.unit.makers_modules import run_module

SWAPPINESS, HUGE, BOOL, POWER = (
    "/proc/sys/vm/swappiness",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    "/sys/bus/pci/devices/0000:00:01.0/power/control",
)
TEXTS = {SWAPPINESS: "60\n", HUGE: "always [madvise] never\n", BOOL: "Y\n", POWER: "auto\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in TEXTS.items():
        at(tmp_path, path).parent.mkdir(parents=True, exist_ok=True)
        at(tmp_path, path).write_text(text)
    (tmp_path / "var/lib").mkdir(parents=True)
    return tmp_path


def at(root: Path, path: str) -> Path:
    return root / path[1:]


def change(root: Path, **values: str) -> Outcome:
    names = {"swappiness": SWAPPINESS, "huge": HUGE, "bool": BOOL, "power": POWER}
    return present(str(root), DEFAULT, [Value(names[key], text) for key, text in values.items()], write=True)


def go_back(root: Path, *paths: str) -> Outcome:
    return reverted(str(root), DEFAULT, list(paths), write=True)


def record(root: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(at(root, DEFAULT).read_text())["values"]
    return values


def test_values_are_set_read_back_and_set_back(root: Path) -> None:
    assert len(change(root, swappiness="1", power="on").changed) == 2
    assert at(root, SWAPPINESS).read_text() == "1\n"
    assert {path: entry["value"] for path, entry in record(root).items()} == {SWAPPINESS: "60", POWER: "auto"}
    assert not change(root, swappiness="1", power="on").changed
    assert len(go_back(root).changed) == 2
    assert {path: at(root, path).read_text() for path in TEXTS} == TEXTS
    assert not (root / "var/lib/lanewise").exists()
    assert not go_back(root).readings


def test_of_a_choice_file_the_chosen_word_counts(root: Path) -> None:
    assert not change(root, huge="madvise").changed
    assert change(root, huge="never").changed
    assert record(root)[HUGE]["value"] == "madvise"
    go_back(root)
    assert at(root, HUGE).read_text() == "madvise\n"


def test_a_word_that_is_not_offered_is_refused_before_writing(root: Path) -> None:
    outcome = change(root, huge="sometimes", swappiness="1")
    assert [str(fault) for fault in outcome.faults] == [
        f"{HUGE}: 'sometimes' is none of its choices: always, madvise, never"
    ]
    assert at(root, HUGE).read_text() == TEXTS[HUGE]
    assert at(root, SWAPPINESS).read_text() == "1\n"


def test_yes_and_one_are_the_same_to_the_kernel_and_blanks_are_none(root: Path) -> None:
    at(root, SWAPPINESS).write_text("4096\t87380  6291456\n")
    assert not change(root, bool="1", swappiness="4096 87380 6291456").changed
    assert change(root, bool="0").changed


def test_the_first_value_is_kept(root: Path) -> None:
    change(root, swappiness="1")
    change(root, swappiness="10")
    go_back(root)
    assert at(root, SWAPPINESS).read_text() == "60\n"


@pytest.mark.parametrize("entries", [{"/etc/passwd": {"value": "x"}}, {SWAPPINESS: {}}, {SWAPPINESS: {"value": ["1"]}}])
def test_a_damaged_entry_is_named_and_nothing_is_written(root: Path, entries: dict[str, Any]) -> None:
    change(root, swappiness="1")
    path = root / "var/lib/lanewise/before.json"
    path.write_text(json.dumps({"schema": "lanewise.before/1", "values": entries}))
    with pytest.raises(NodeFileError, match=r"before\.json: the entry .* is damaged"):
        go_back(root)
    assert at(root, SWAPPINESS).read_text() == "1\n"


def test_only_some_can_be_restored(root: Path) -> None:
    change(root, swappiness="1", power="on")
    assert [one.value.path for one in go_back(root, POWER).changed] == [POWER]
    assert list(record(root)) == [SWAPPINESS]


def test_what_the_kernel_lacks_is_skipped(root: Path) -> None:
    at(root, POWER).unlink()
    outcome = change(root, power="on", swappiness="1")
    assert outcome.skipped == [POWER]
    assert not outcome.faults
    assert not at(root, POWER).exists()


def test_what_is_gone_since_is_reported_and_its_entry_kept(root: Path) -> None:
    change(root, power="on", swappiness="1")
    at(root, POWER).unlink()
    assert go_back(root).skipped == [POWER]
    assert list(record(root)) == [POWER]


def test_what_does_not_stick_is_named_when_all_else_was_tried(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def forgetful(handle: int, data: bytes) -> int:
        """A fake: a kernel that rounds 1 up."""
        return real(handle, data.replace(b"1", b"2"))

    monkeypatch.setattr(live.os, "write", forgetful)
    outcome = change(root, swappiness="1", power="on")
    assert [str(fault) for fault in outcome.faults] == [f"{SWAPPINESS}: did not stick: wanted '1', reads '2'"]
    assert [one.value.path for one in outcome.changed] == [POWER]
    monkeypatch.undo()
    go_back(root)
    assert at(root, SWAPPINESS).read_text() == "60\n"


def test_what_the_kernel_refuses_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(handle: int, data: bytes) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(live.os, "write", refusing)
    assert [str(fault) for fault in change(root, swappiness="1").faults] == [
        f"{SWAPPINESS}: cannot be set to '1': Invalid argument"
    ]


def test_nothing_is_written_before_the_record_is_on_disk(root: Path) -> None:
    (root / "var/lib/lanewise/lock").mkdir(parents=True)
    with pytest.raises(NodeFileError, match="lock"):
        change(root, swappiness="1")
    assert at(root, SWAPPINESS).read_text() == "60\n"


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/sys/../../etc/passwd", "proc/sys/vm/swappiness", "/system/x"])
def test_paths_elsewhere_are_refused(root: Path, path: str) -> None:
    with pytest.raises(NodeFileError, match="is not the"):
        present(str(root), DEFAULT, [Value(SWAPPINESS, "1"), Value(path, "1")], write=True)
    assert at(root, SWAPPINESS).read_text() == "60\n"


def test_a_recorded_path_elsewhere_is_refused(root: Path) -> None:
    change(root, swappiness="1")
    at(root, DEFAULT).write_text(at(root, DEFAULT).read_text().replace(SWAPPINESS, "/etc/passwd"))
    with pytest.raises(NodeFileError, match="/etc/passwd"):
        go_back(root)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_of_the_kernel_is_not_opened(root: Path, kind: str) -> None:
    at(root, POWER).unlink()
    if kind == "pipe":
        os.mkfifo(at(root, POWER))
    else:
        at(root, POWER).symlink_to(at(root, SWAPPINESS))
    assert [str(fault) for fault in change(root, power="on").faults] == [f"{POWER}: not a regular file"]


def test_the_module_says_what_check_mode_would_do_and_then_does_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [{"path": SWAPPINESS, "value": 1}, {"path": HUGE, "value": "never"}, {"path": "/sys/none", "value": "1"}]
    ahead = run_module("live_values", capsys, check=True, root=str(root), values=values)
    assert at(root, SWAPPINESS).read_text() == "60\n"
    assert not (root / "var/lib/lanewise").exists()
    done = run_module("live_values", capsys, root=str(root), values=values)
    assert ahead == done
    assert done["missing"] == ["/sys/none"]
    assert done["diff"] == {"before": f"{SWAPPINESS} 60\n{HUGE} madvise\n", "after": f"{SWAPPINESS} 1\n{HUGE} never\n"}
    assert done["changes"][0] == {"path": SWAPPINESS, "before": "60", "after": "1"}
    back = run_module("live_values", capsys, root=str(root), state="reverted", values=[{"path": SWAPPINESS}])
    assert back["changed"]
    assert at(root, SWAPPINESS).read_text() == "60\n"


def test_the_module_fails_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [{"path": HUGE, "value": "sometimes"}, {"path": SWAPPINESS, "value": "1"}]
    result = run_module("live_values", capsys, root=str(root), values=values)
    assert result["failed"]
    assert result["changed"]
    assert [one["path"] for one in result["refused"]] == [HUGE]
    empty = run_module("live_values", capsys, root=str(root), values=[{"path": SWAPPINESS}])
    assert "there is no value to set" in empty["msg"]
