"""Files of ours beside files of others, in trees made here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils import owned
from playbooks.module_utils.node_files import LIMIT, NodeFileError
from playbooks.module_utils.owned import OWNER_TEXT, RECORD, Outcome, Want, settle
from tests.unit.makers_modules import run_module

OURS = f"# {OWNER_TEXT}\nA=1\n"
SYSCTL, DAEMON, DOCKER = (
    "/etc/sysctl.d/60-lanewise.conf",
    "/etc/docker/daemon.json",
    "/etc/systemd/system/docker.d/a.conf",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "var/lib").mkdir(parents=True)
    return tmp_path


def tree(root: Path) -> dict[str, str | None]:
    """Every folder (None) and file, as it is."""
    return {str(path.relative_to(root)): path.read_text() if path.is_file() else None for path in root.rglob("*")}


def write(root: Path, *wants: Want) -> Outcome:
    return settle(str(root), list(wants), OWNER_TEXT, write=True)


def at(root: Path, path: str) -> Path:
    return root / path[1:]


def put(root: Path, path: str, text: str) -> None:
    at(root, path).parent.mkdir(parents=True, exist_ok=True)
    at(root, path).write_text(text)


def test_written_then_nothing_then_removed_leaves_the_tree_as_it_was(root: Path) -> None:
    before = tree(root)
    wants = [Want(SYSCTL, OURS), Want(DAEMON, "{}\n", 0o600), Want(DOCKER, OURS)]
    assert [change.path for change in write(root, *wants).changes] == [SYSCTL, DAEMON, DOCKER]
    assert at(root, DAEMON).read_text() == "{}\n"
    assert at(root, DAEMON).stat().st_mode & 0o777 == 0o600
    after = tree(root)
    assert not write(root, *wants).changes
    assert tree(root) == after
    assert len(write(root, *(Want(want.path, "") for want in wants)).changes) == 3
    assert tree(root) == before


def test_check_mode_says_the_same_and_writes_nothing(root: Path) -> None:
    before = tree(root)
    wants = [Want(SYSCTL, OURS), Want(DOCKER, OURS)]
    ahead = settle(str(root), wants, OWNER_TEXT, write=False)
    assert tree(root) == before
    assert write(root, *wants) == ahead


def test_one_foreign_file_stops_all_before_any_is_written(root: Path) -> None:
    put(root, DAEMON, '{"mine": true}\n')
    before = tree(root)
    with pytest.raises(NodeFileError, match=f"not ours, so nothing was written: {DAEMON}; expected"):
        write(root, Want(SYSCTL, OURS), Want(DAEMON, "{}\n"))
    assert tree(root) == before


def test_a_foreign_file_may_be_left_and_is_named(root: Path) -> None:
    put(root, DAEMON, '{"mine": true}\n')
    outcome = write(root, Want(SYSCTL, OURS), Want(DAEMON, "{}\n", leave=True))
    assert outcome.foreign == [DAEMON]
    assert [change.path for change in outcome.changes] == [SYSCTL]
    assert at(root, DAEMON).read_text() == '{"mine": true}\n'
    write(root, Want(SYSCTL, ""), Want(DAEMON, ""))
    assert at(root, DAEMON).read_text() == '{"mine": true}\n'


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large"])
def test_what_is_no_file_of_ours_is_foreign_whatever_it_is(root: Path, kind: str) -> None:
    path = at(root, SYSCTL)
    if kind == "link":
        at(root, "/etc/other").write_text(OURS)
        path.symlink_to("../other")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(OURS + " " * LIMIT)
    with pytest.raises(NodeFileError, match="not ours"):
        write(root, Want(SYSCTL, OURS))


def test_a_file_that_says_that_it_is_ours_is_ours_without_the_record(root: Path) -> None:
    write(root, Want(SYSCTL, OURS))
    at(root, RECORD).unlink()
    assert write(root, Want(SYSCTL, OURS + "B=2\n")).changes[0].before == OURS
    write(root, Want(SYSCTL, ""))
    assert not at(root, SYSCTL).exists()


def test_a_file_that_replaced_ours_is_foreign(root: Path) -> None:
    write(root, Want(DAEMON, "{}\n"))
    put(root, DAEMON, '{"mine": true}\n')
    with pytest.raises(NodeFileError, match="not ours"):
        write(root, Want(DAEMON, "{}\n"))
    assert not write(root, Want(DAEMON, "")).changes
    assert at(root, DAEMON).read_text() == '{"mine": true}\n'
    assert not at(root, RECORD).exists()


@pytest.mark.parametrize("deaths", range(1, 6))
def test_a_run_that_dies_anywhere_is_finished_by_the_next_and_reverted(
    root: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    before = tree(root)
    write(root, Want(DAEMON, "{}\n"))
    calls = 0

    def mortal(call: Any) -> Any:
        def counted(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == deaths:
                raise KeyboardInterrupt
            call(*arguments)

        return counted

    wants = [Want(DAEMON, '{"a": 1}\n'), Want(DOCKER, OURS), Want("/etc/nccl.conf", "A=1\n")]
    with monkeypatch.context() as patch:
        for name in ("write_atomic", "write_document"):
            patch.setattr(owned, name, mortal(getattr(owned, name)))
        with pytest.raises(KeyboardInterrupt):
            write(root, *wants)
    write(root, *wants)
    assert [at(root, want.path).read_text() for want in wants] == [want.text for want in wants]
    write(root, *(Want(want.path, "") for want in wants))
    assert tree(root) == before


def test_a_wrong_mode_is_a_change(root: Path) -> None:
    write(root, Want(SYSCTL, OURS))
    at(root, SYSCTL).chmod(0o666)
    [change] = write(root, Want(SYSCTL, OURS)).changes
    assert (change.before, change.mode_before, change.mode_after) == (change.after, 0o666, 0o644)
    assert at(root, SYSCTL).stat().st_mode & 0o777 == 0o644


def test_a_strict_umask_hides_nothing_from_users(root: Path) -> None:
    old = os.umask(0o077)
    try:
        write(root, Want("/etc/lanewise/nccl/a.conf", OURS))
    finally:
        os.umask(old)
    made = [at(root, path) for path in ("/etc/lanewise", "/etc/lanewise/nccl", "/etc/lanewise/nccl/a.conf")]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o755, 0o755, 0o644]


def test_a_folder_that_others_use_as_well_stays(root: Path) -> None:
    write(root, Want(DOCKER, OURS))
    put(root, str(Path(DOCKER).with_name("theirs.conf")), "x\n")
    write(root, Want(DOCKER, ""))
    assert at(root, DOCKER).parent.exists()
    assert not at(root, RECORD).exists()


@pytest.mark.parametrize("path", ["etc/a", "/etc/../root/a", "/", ""])
def test_paths_that_are_none_are_refused(root: Path, path: str) -> None:
    with pytest.raises(NodeFileError, match="is not the absolute path"):
        write(root, Want(path, OURS))


def test_a_path_that_leads_out_of_the_root_is_refused(root: Path) -> None:
    (root / "etc/outside").symlink_to("/tmp")
    with pytest.raises(NodeFileError, match="out of"):
        write(root, Want("/etc/outside/lanewise-test", OURS))


def test_a_folder_that_cannot_be_made_is_named(root: Path) -> None:
    put(root, "/etc/docker", "a file")
    with pytest.raises(NodeFileError, match=DAEMON):
        write(root, Want(DAEMON, OURS))


@pytest.mark.parametrize(
    "document",
    [
        *([], {"files": [1]}, {"files": {"/a": "x"}}, {"files": {}, "folders": [1]}, {"files": {"a": ["x"]}}),
        *({"files": {"/a": ["x"]}, "folders": [name]} for name in ("/", "a", "/etc/..", "")),
    ],
)
def test_a_damaged_record_is_refused(root: Path, document: Any) -> None:
    text = json.dumps({"schema": owned.SCHEMA, **document} if isinstance(document, dict) else document)
    put(root, RECORD, text)
    with pytest.raises(NodeFileError, match=r"owned\.json"):
        write(root, Want(SYSCTL, OURS))
    assert not at(root, SYSCTL).exists()


def test_the_module_shows_a_diff_that_is_true_to_the_letter(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, DAEMON, "{}")
    options: dict[str, Any] = {
        "files": [{"path": SYSCTL, "content": OURS}, {"path": DAEMON, "content": "{ }", "foreign": "leave"}],
        "root": str(root),
    }
    ahead = run_module("owned_files", capsys, check=True, **options)
    assert not at(root, SYSCTL).exists()
    done = run_module("owned_files", capsys, **options)
    assert ahead == done
    assert (done["written"], done["removed"], done["foreign"]) == ([SYSCTL], [], [DAEMON])
    assert done["diff"] == [
        {
            "before": "",
            "before_header": f"{SYSCTL} (absent)",
            "after": at(root, SYSCTL).read_text(),
            "after_header": f"{SYSCTL} (mode 0644)",
        }
    ]
    assert not run_module("owned_files", capsys, **options)["changed"]
    gone = run_module("owned_files", capsys, state="absent", **options)
    assert (gone["removed"], gone["foreign"]) == ([SYSCTL], [])
    assert at(root, DAEMON).read_text() == "{}"


def test_the_module_refuses_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root, SYSCTL, "theirs\n")
    result = run_module("owned_files", capsys, root=str(root), files=[{"path": SYSCTL, "content": OURS}])
    assert result["failed"]
    assert SYSCTL in result["msg"]
    for mode in ("rw", "77777"):
        wrong = [{"path": SYSCTL, "content": OURS, "mode": mode}]
        assert run_module("owned_files", capsys, root=str(root), files=wrong)["failed"]


def test_a_file_of_ours_with_bytes_that_are_no_text_can_be_shown(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at(root, SYSCTL).write_bytes(OURS.encode() + b"\xff\xfe")
    result = run_module("owned_files", capsys, root=str(root), files=[{"path": SYSCTL, "content": OURS}])
    assert result["changed"]
    assert at(root, SYSCTL).read_text() == OURS


def test_what_is_not_wanted_any_more_goes_from_a_folder_of_ours_and_from_no_other(root: Path) -> None:
    one, two, other = "/etc/lanewise/nccl/one.conf", "/etc/lanewise/nccl/two.conf", "/etc/lanewise/power.conf"
    write(root, Want(one, OURS), Want(two, OURS), Want(other, OURS))
    put(root, "/etc/lanewise/nccl/theirs.conf", "A=1\n")
    checked = settle(str(root), [Want(two, OURS)], OWNER_TEXT, only_in=["/etc/lanewise/nccl"], write=False)
    assert [(change.path, change.after) for change in checked.changes] == [(one, None)]
    assert settle(str(root), [Want(two, OURS)], OWNER_TEXT, only_in=["/etc/lanewise/nccl"], write=True) == checked
    assert sorted(path.name for path in at(root, "/etc/lanewise").rglob("*.conf")) == [
        "power.conf",
        "theirs.conf",
        "two.conf",
    ]
