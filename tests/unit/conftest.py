"""Real packages for tests marked `network`: fetched from the Python index, kept by hash between runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest

from images.matrix import find_toolchain
from images.packages import read_packages
from images.resolve import resolve_pins
from images.rules import read_approaches
from images.snapshot import Snapshot
from images.targets import Target, TargetKind
from images.wheels import fetch, kept
from lanewise.errors import LanewiseError

Packages = Callable[[Mapping[str, str]], Snapshot]


@pytest.fixture(scope="session")
def packages() -> Packages:
    """Reads released packages, distribution to version, as preflight does; without an index, the test is skipped.

    Under CI an index that does not answer is a failure: a skip there would hide that nothing was tested.
    """
    approaches = read_approaches()
    toolchain = find_toolchain("cu130")
    read: dict[tuple[tuple[str, str], ...], Snapshot] = {}

    def reader(versions: Mapping[str, str]) -> Snapshot:
        key = tuple(sorted(versions.items()))
        if key not in read:
            try:
                wheels = resolve_pins(toolchain, versions).wheels
                for wheel in wheels:
                    fetch(wheel, toolchain.python)
            except LanewiseError as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"the Python index does not answer: {error.what[:200]}")
            targets = {wheel.name: Target(name=str(kept(wheel)), kind=TargetKind.WHEEL) for wheel in wheels}
            read[key] = read_packages(targets, approaches)
        return read[key]

    return reader
