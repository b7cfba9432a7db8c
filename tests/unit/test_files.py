"""Files are written whole, and nothing but files is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lanewise.errors import InputError
from lanewise.files import write_atomic


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    """A rename over /dev/null would leave the machine with a file of that name."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="something else than a regular file"):
        write_atomic(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_link_that_leads_nowhere_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    write_atomic(tmp_path / "loop", "text")
    assert (tmp_path / "loop").read_text() == "text"
