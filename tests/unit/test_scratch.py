"""Scratch folders: whatever a launch left in one, it can be removed."""

from __future__ import annotations

import os
from pathlib import Path

from tuning.scratch import remove


def test_folders_that_lie_in_one_another_a_thousand_times_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "lanewise-left"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=handle)
        deeper = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.close(handle)
    remove(folder)
    assert not folder.exists()


def test_a_folder_that_is_gone_is_well(tmp_path: Path) -> None:
    remove(tmp_path / "none")
