"""NCCL settings in the node record; a fake home and a fake /etc stand in for this machine's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from playbooks.module_utils import node_record_nccl
from playbooks.module_utils.node_record_nccl import nccl
from playbooks.module_utils.node_record_tree import UNKNOWN, Tree


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """This machine, without its NCCL variables, with a home and a system file of its own."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(node_record_nccl, "SYSTEM_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setattr(node_record_nccl.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    return Tree(None)


def values(found):
    return {setting["name"]: setting["value"] for setting in found["settings"]}


def test_the_first_place_that_sets_a_variable_wins_and_the_others_are_told(tree, tmp_path, monkeypatch):
    home, system = tmp_path / ".nccl.conf", tmp_path / "nccl.conf"
    home.write_text("NCCL_ALGO=Ring\nNCCL_ALGO=Tree\nCUDA_X=1\n")
    system.write_text("NCCL_ALGO=Tree\nNCCL_DEBUG=WARN\n")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    found = nccl(tree)
    assert found["files"] == [str(home), str(system)]
    assert found["settings"] == [
        {"name": "NCCL_ALGO", "value": "Ring", "source": str(home), "hidden": [f"{system}: Tree"]},
        {"name": "NCCL_DEBUG", "value": "INFO", "source": "environment", "hidden": [f"{system}: WARN"]},
    ]


def test_nccl_conf_file_replaces_the_file_at_home(tree, tmp_path, monkeypatch):
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Tree\n")
    (tmp_path / "own").write_text("NCCL_ALGO=Ring\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "own"))
    assert nccl(tree)["files"] == [str(tmp_path / "own")]
    assert values(nccl(tree))["NCCL_ALGO"] == "Ring"
    monkeypatch.setenv("NCCL_CONF_FILE", "")
    assert nccl(tree)["files"] == [str(tmp_path / ".nccl.conf")]


def test_lines_are_read_as_nccl_reads_them(tree, tmp_path):
    (tmp_path / "nccl.conf").write_text("#NCCL_A=1\n #NCCL_B=1\nNCCL_C = 1 \nNCCL_D\nNCCL_E=a=b\nNCCL_F=" + "x" * 2000)
    assert values(nccl(tree)) == {"NCCL_C ": " 1 ", "NCCL_E": "a=b", "NCCL_F": "x" * 1023}


def test_secrets_and_identifiers_are_not_told_and_any_bytes_can_be_written(tree, monkeypatch):
    monkeypatch.setenv("NCCL_X_TOKEN", "geheim")
    monkeypatch.setenv("NCCL_Y", "52:54:00:12:34:56")
    monkeypatch.setenv("NCCL_Z", os.fsdecode(b"\xff"))
    assert values(nccl(tree)) == {"NCCL_X_TOKEN": "<redacted>", "NCCL_Y": "<redacted>", "NCCL_Z": "?"}


def spoil_pipe(path):
    os.mkfifo(path)


def spoil_directory(path):
    path.mkdir()


def spoil_huge(path):
    path.write_text("NCCL_ALGO=Ring\n" * 10_000)


@pytest.mark.parametrize("spoil", [spoil_pipe, spoil_directory, spoil_huge])
def test_settings_are_unknown_where_a_file_that_might_win_cannot_be_read(tree, tmp_path, spoil):
    spoil(tmp_path / ".nccl.conf")
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=Tree\n")
    assert nccl(tree)["settings"] == UNKNOWN
    assert [entry["field"] for entry in tree.unread] == ["nccl.settings"]


def test_a_file_of_any_name_can_be_told(tree, tmp_path, monkeypatch):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(name).write_text("NCCL_ALGO=Ring\n")
    monkeypatch.setenv("NCCL_CONF_FILE", name)
    found = nccl(tree)
    assert found["files"] == [found["settings"][0]["source"]] == [f"{tmp_path}/?"]


def test_a_user_without_an_entry_has_no_file_at_home(tree, tmp_path, monkeypatch):
    def nobody(_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(node_record_nccl.pwd, "getpwuid", nobody)
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=Tree\n")
    assert nccl(tree)["files"] == [str(tmp_path / "nccl.conf")]


def test_below_another_root_its_system_file_is_read_and_nothing_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_CONF_FILE", "/etc/own")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/own").write_text("NCCL_ALGO=Ring\n")
    (tmp_path / "etc/nccl.conf").write_text("NCCL_ALGO=Tree\n")
    found = nccl(Tree(str(tmp_path)))
    assert found["files"] == ["/etc/nccl.conf"]
    assert values(found) == {"NCCL_ALGO": "Tree"}
    assert json.dumps(found)
