"""What an index tells of its files, as far as it does: an index on disk, as small as one can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.lock import LockedWheel
from images.resolve import resolve_pins
from tests.unit.makers_wheels import make_toolchain, make_wheel


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockedWheel:
    """A wheel of an index that tells neither sizes nor hashes, as plain listings of folders do."""
    folder = tmp_path / "simple/small"
    folder.mkdir(parents=True)
    made = make_wheel(folder, "small", "1.0", {"small/__init__.py": ""})
    (folder / "index.html").write_text(f'<html><body><a href="{made.file}">{made.file}</a></body></html>')
    for name in ("UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "simple").as_uri())
    return made


def test_an_index_without_sizes_and_hashes_will_do(wheel: LockedWheel) -> None:
    """Sizes are only in JSON (PEP 700); mirrors often have HTML alone."""
    (found,) = resolve_pins(make_toolchain([wheel])[0], {"small": "1.0"}).wheels
    assert (found.file, found.sha256) == (wheel.file, wheel.sha256)
    assert found.size in (0, wheel.size)  # uv may look at files on disk itself
