"""One run a node at a time, and the record of before the first change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils import lease
from playbooks.module_utils.lease import record_before, release, take
from tests.unit.makers_modules import run_module

ME, OTHER = ("me@here", 10), ("other@there", 20)
RECORD = {"schema": "lanewise.node-record/1", "host": {"hostname": "node7"}}


def held(root: Path, who: tuple[str, int], over: tuple[int, ...] = (), *, write: bool = True) -> Any:
    return take(str(root), *who, 60, list(over), write=write)


def test_the_second_run_is_told_who_holds_the_node(tmp_path: Path) -> None:
    assert held(tmp_path, ME) is None
    holder = held(tmp_path, OTHER)
    assert (holder.controller, holder.pid) == ME
    assert held(tmp_path, ME) is None  # the same run again


def test_asking_takes_nothing(tmp_path: Path) -> None:
    assert held(tmp_path, ME, write=False) is None
    assert list(tmp_path.iterdir()) == []


def test_a_released_lease_leaves_nothing(tmp_path: Path) -> None:
    held(tmp_path, ME)
    release(str(tmp_path), *OTHER, forget=False)
    assert held(tmp_path, OTHER) is not None
    release(str(tmp_path), *ME, forget=False)
    assert not (tmp_path / "var/lib/lanewise").exists()


def test_a_lease_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(tmp_path, ME)
    now = lease.time.time()
    monkeypatch.setattr(lease.time, "time", lambda: now + 61)
    assert held(tmp_path, OTHER) is None


def test_only_a_dead_run_of_the_same_controller_gives_way(tmp_path: Path) -> None:
    held(tmp_path, ME)
    assert held(tmp_path, OTHER, over=(10,)) is not None
    assert held(tmp_path, ("me@here", 11), over=(12,)) is not None
    assert held(tmp_path, ("me@here", 11), over=(10,)) is None


def test_a_person_can_break_any_lease(tmp_path: Path) -> None:
    held(tmp_path, ME)
    assert held(tmp_path, OTHER, over=(0,)) is None


def lasting(until: str) -> str:
    return f'{{"schema": "lanewise.lease/1", "controller": "a@b", "pid": 1, "since": 0, "until": {until}}}'


@pytest.mark.parametrize(
    "text",
    [
        *('{"schema": "lanewise.lease/1"}', '{"schema": "lanewise.lease/1", "controller": 1}'),
        *("", '{"sche', "[]", "[" * 9999),
        *map(lasting, ("NaN", "Infinity", "1e308", "-1")),
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_lease_holds_nobody_back(tmp_path: Path, text: str) -> None:
    path = tmp_path / "var/lib/lanewise/lease.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert held(tmp_path, ME) is None


def test_an_end_that_no_run_could_have_set_holds_the_node_and_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run may be alive on a node whose clock was set back."""
    path = tmp_path / "var/lib/lanewise/lease.json"
    path.parent.mkdir(parents=True)
    options = {"controller": "me@here", "pid": 10, "root": str(tmp_path)}
    for ahead, beyond in ((lease.LONGEST - 60, False), (lease.LONGEST + 60, True)):
        path.write_text(lasting(str(lease.time.time() + ahead)))
        assert run_module("node_lease", capsys, **options)["holder"]["beyond"] is beyond
    assert held(tmp_path, ME, over=(0,)) is None


@pytest.mark.parametrize("seconds", [0, -1, lease.LONGEST + 1])
def test_no_run_takes_a_lease_without_or_beyond_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: int
) -> None:
    options = {"controller": "me@here", "pid": 10, "root": str(tmp_path), "seconds": seconds}
    assert "next: correct node_lease_seconds" in run_module("node_lease", capsys, **options)["msg"]
    assert list(tmp_path.iterdir()) == []


GARBAGE = "{not json"
DOCUMENTS = {
    "before.json": ("before", '"registers": []', "the way back"),
    "refreshed.json": ("refreshed", '"done": []', "a way back"),
    "owned.json": ("owned", '"files": []', "which files are ours"),
    "power-before.json": ("none", '"0000:01:00.0": "x"', "the way back"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_damaged_document_of_ours_is_found_with_the_lease_and_what_goes_with_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    kind, inside, lost = DOCUMENTS[name]
    folder = tmp_path / "var/lib/lanewise"
    folder.mkdir(parents=True)
    for text in (GARBAGE, f'{{"schema": "lanewise.{kind}/1", {inside}}}'):
        (folder / name).write_text(text)
        options = {"controller": "me@here", "pid": 10, "root": str(tmp_path)}
        said = run_module("node_lease", capsys, **options)["msg"]
        assert f"/{name} " in said
        assert f"restore it, or move it away to start anew, which loses {lost}" in said
        assert "ansible_become" not in said
        assert (folder / name).read_text() == text


@pytest.mark.parametrize(
    ("section", "key", "entry"),
    [
        ("values", "/sys/x", {}),
        ("values", "/sys/x", {"value": 1}),
        ("values", "/etc/passwd", {"value": "1"}),
        ("values", "/sys/../etc/passwd", {"value": "1"}),
        ("registers", "0000:01:00.0 aspm", {"device": "10de:2bb1"}),
        ("registers", "0000:01:00.0 aspm", {"device": "10de:2bb1", "word": 64}),
        ("registers", "0000:01:00.0 boot", {"device": "10de:2bb1", "word": "0x0040"}),
    ],
)
def test_a_damaged_entry_is_found_with_the_lease_before_any_role_reverts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, key: str, entry: dict[str, Any]
) -> None:
    path = tmp_path / "var/lib/lanewise/before.json"
    path.parent.mkdir(parents=True)
    sound = {"values": {"/sys/y": {"value": "1"}}, "registers": {"0000:02:00.0 aspm": {"word": "0x0040"}}}
    options: dict[str, Any] = {"controller": "me@here", "pid": 10, "root": str(tmp_path)}
    path.write_text(json.dumps({"schema": "lanewise.before/1", **sound}))
    assert "msg" not in run_module("node_lease", capsys, **options)
    path.write_text(json.dumps({"schema": "lanewise.before/1", **sound, section: {**sound[section], key: entry}}))
    said = run_module("node_lease", capsys, **options)["msg"]
    assert said.startswith(f"{path}: the entry {key!r} is damaged; restore the file, or remove the entry")
    assert "ansible_become" not in said


def test_the_record_of_before_is_kept_while_anything_is_ours(tmp_path: Path) -> None:
    later = {**RECORD, "host": {"hostname": "changed"}}
    assert record_before(str(tmp_path), RECORD, write=True) == RECORD
    folder = tmp_path / "var/lib/lanewise"
    (folder / "owned.json").write_text("{}")
    assert record_before(str(tmp_path), later, write=True) == RECORD
    (folder / "owned.json").unlink()
    assert record_before(str(tmp_path), later, write=True) == later
    assert json.loads((folder / "record-before.json").read_text()) == later


def test_forgetting_waits_until_nothing_is_ours(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/lanewise"
    record_before(str(tmp_path), RECORD, write=True)
    (folder / "before.json").write_text("{}")
    held(tmp_path, ME)
    release(str(tmp_path), *ME, forget=True)
    assert (folder / "record-before.json").exists()
    (folder / "before.json").unlink()
    held(tmp_path, ME)
    release(str(tmp_path), *ME, forget=True)
    assert not folder.exists()


def test_the_module_never_counts_as_a_change_and_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"controller": "me@here", "pid": 10, "root": str(tmp_path), "node_record": RECORD}
    done = run_module("node_lease", capsys, **options)
    assert (done["changed"], done["holder"], done["record_before"]) == (False, {}, RECORD)
    assert run_module("node_lease", capsys, **{**options, "pid": 11})["holder"]["pid"] == 10
    folder = tmp_path / "var/lib/lanewise"
    (folder / "owned.json").write_text('{"schema": "lanewise.owned/1"}')
    (folder / "record-before.json").write_text("damaged")
    said = run_module("node_lease", capsys, **options)["msg"]
    assert "is damaged" in said
    assert "ansible_become" not in said
    options["root"] = str(tmp_path / "other")
    (tmp_path / "other/var/lib").mkdir(parents=True)
    (tmp_path / "other/var/lib/lanewise").write_text("a file")
    assert "ansible_become" in run_module("node_lease", capsys, **options)["msg"]
