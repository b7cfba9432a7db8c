"""The test bed, started once for all tests that need it, and ended with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.bed import Bed, missing, open_bed
from tests.vm.machine import BedError

_SECONDS = 1800
"""For one test, fixtures included: a playbook takes a minute or two, a reboot up to one; more on a busy machine."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vm: runs in a virtual machine with a simulated PCI tree (minutes)")
    config.addinivalue_line("markers", "vm_full: the rest of the whole cycle in it, for running by hand (20 minutes)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_hand = pytest.mark.skip(reason="takes 15 minutes: run it by hand with -m 'vm or vm_full'")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("vm")
            item.add_marker(pytest.mark.timeout(_SECONDS))
            if item.get_closest_marker("vm_full") and "vm_full" not in config.option.markexpr:
                item.add_marker(by_hand)


@pytest.fixture(scope="session")
def running_bed() -> Iterator[Bed]:
    if why := missing():
        pytest.skip(why)
    try:
        with open_bed() as bed:
            bed.ready()
            yield bed
    except BedError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def bed(running_bed: Bed) -> Bed:
    """The bed as after its first boot, for the tests of a module."""
    running_bed.ready()
    return running_bed
