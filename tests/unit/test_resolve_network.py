"""Real resolutions, against the Python index: what is locked is what the index still has."""

from __future__ import annotations

import os

import pytest

from images.lock import LockedToolchain, read_lock
from images.matrix import Toolchain, find_toolchain
from images.resolve import resolve
from lanewise.errors import LanewiseError

pytestmark = pytest.mark.network


def resolved(toolchain: Toolchain, python: str, keep: dict[str, str]) -> LockedToolchain:
    """Without an index, the test is skipped; under CI that would hide that nothing was tested."""
    try:
        return resolve(toolchain, python, keep)
    except LanewiseError as error:
        if os.environ.get("CI") or "No solution found" in error.what:
            raise
        pytest.skip(f"the Python index does not answer: {error.what[:200]}")


def test_the_matched_pair_locks_again_to_the_same_and_its_core_is_whole() -> None:
    toolchain = find_toolchain("cu130-m")
    locked = read_lock().find("cu130-m", "3.11")
    assert locked is not None
    found = resolved(toolchain, "3.11", {wheel.name: wheel.version for wheel in locked.wheels})
    assert set(found.unresolved) == {"torch==2.9.1+cu130", "sglang-kernel==0.4.1+cu130"}
    # What needs no other index comes with all that it needs: cuda-bindings brings cuda-pathfinder.
    assert "cuda-pathfinder" in found.core
    assert {wheel.name: wheel for wheel in found.wheels} == {wheel.name: wheel for wheel in locked.wheels}
    assert sorted(found.core) == sorted(locked.core)


def test_what_comes_along_goes_with_the_pins() -> None:
    """Were all pins overrides, torch 2.9.1 would be locked beside a torchvision that needs torch 2.14."""
    toolchain = find_toolchain("cu128")
    locked = read_lock().find("cu128", "3.11")
    assert locked is not None
    versions = {wheel.name: wheel.version for wheel in locked.wheels}
    found = resolved(toolchain, "3.11", versions)
    assert {wheel.name: wheel.version for wheel in found.wheels} == versions
    with pytest.raises(LanewiseError, match=r"torchvision"):
        resolved(toolchain, "3.11", {**versions, "torchvision": "0.29.2"})


def test_each_python_gets_its_own_wheels() -> None:
    toolchain = find_toolchain("cu128")
    small = Toolchain(
        name="small", cuda=toolchain.cuda, python="3.12", meaning="for tests", arch={}, pins=toolchain.everywhere
    )
    files = {
        python: {w.name: w.file for w in resolved(small, python, {}).wheels}["numpy"] for python in ("3.11", "3.12")
    }
    assert ["cp311" in files["3.11"], "cp312" in files["3.12"]] == [True, True]


def test_python_3_13_does_not_resolve_and_the_reason_is_told() -> None:
    """What images/unsupported.yaml says of it; when this fails, Python 3.13 can be had."""
    with pytest.raises(LanewiseError, match="outlines-core") as caught:
        resolved(find_toolchain("cu130"), "3.13", {})
    assert "cannot be resolved" in caught.value.what
