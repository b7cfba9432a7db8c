"""NCCL's wheel is fetched with pip, and pip may do anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanewise.errors import InputError, LanewiseError
from tuning import nccl_library
from tuning.nccl_library import find_nccl


def test_a_fetch_that_does_not_end_is_an_error_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_library, "_SECONDS", 0.01)
    with pytest.raises(LanewiseError, match=r"nvidia-nccl-cu13==2\.28\.9: no end within 0\.01 s"):
        find_nccl("2.28.9", tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["cu13-2.28.9"], "nothing of it is left"


@pytest.mark.parametrize("spec", ["~no-such-user/libnccl.so.2", "{}/loop", "{}/loop/libnccl.so.2", "/dev/zero"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, spec: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="there is no libnccl at"):
        find_nccl(spec.format(tmp_path), tmp_path)
