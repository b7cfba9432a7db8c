"""Scratch folders: whatever a launch left in one, it can be removed."""

from __future__ import annotations

from pathlib import Path

from tests.unit.makers import litter
from tuning.scratch import remove


def test_folders_that_lie_in_one_another_a_thousand_times_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "lanewise-left"
    litter(folder)
    remove(folder)
    assert not folder.exists()


def test_a_folder_that_is_gone_is_well(tmp_path: Path) -> None:
    remove(tmp_path / "none")
