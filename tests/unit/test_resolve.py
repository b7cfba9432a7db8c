"""What uv's lock says of files, as far as it does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from images.lock import LockedWheel
from images.matrix import find_toolchain
from images.resolve import resolve_pins

PYLOCK = f"""\
lock-version = "1.0"
[[packages]]
name = "sglang"
version = "0.5.20"
wheels = [{{ url = "http://mirror/sglang-0.5.20-py3-none-any.whl", hashes = {{ sha256 = "{"a" * 64}" }} }}]
"""


def test_an_index_without_sizes_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are only in JSON (PEP 700); mirrors often have HTML alone."""

    def fake_uv(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--output-file") + 1]).write_text(PYLOCK)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake_uv)
    wheel = LockedWheel(name="sglang", version="0.5.20", file="sglang-0.5.20-py3-none-any.whl", sha256="a" * 64, size=0)
    assert resolve_pins(find_toolchain("cu128"), {"sglang": "0.5.20"}).wheels == (wheel,)
