"""verify.yml on trees of files, where only step config can be told: what it says of drivers, and of whom it advises."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.roles.conftest import Farm
from tests.roles.makers_tree import different, tree

DRIVER = ("proc/driver/nvidia/version", "sys/module/nvidia/version")


@pytest.fixture(scope="module")
def results(farm: Farm) -> dict[str, dict[str, Any]]:
    """Results of three nodes by their names, of a run that changed none of them."""
    farm.add("with-driver")
    farm.add("read-only", group="record_only")
    driverless = farm.add("driverless")
    for name in DRIVER:
        (driverless / name).unlink()
    before = tree(driverless)
    folder = farm.folder / "verified"
    farm.play("playbooks/verify.yml", "-e", f"ladder_folder={folder}")
    assert different(before, tree(driverless)) == []
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def codes(result: dict[str, Any]) -> set[str]:
    return {fault["code"] for fault in result["steps"][0]["faults"]}


def test_gpus_on_the_bus_without_a_driver_are_a_fault(results: dict[str, dict[str, Any]]) -> None:
    assert results["driverless"]["status"] == "fault"
    assert "DRIVER_MISSING" in codes(results["driverless"])
    assert "DRIVER_MISSING" not in codes(results["with-driver"])


def test_what_needs_the_driver_is_not_applicable_and_named_as_not_verified(results: dict[str, dict[str, Any]]) -> None:
    config, *others = results["driverless"]["steps"]
    assert {(step["status"], step["reason"]) for step in others} == {("not applicable", "no NVIDIA driver is loaded")}
    assert any("mig_off" in line for line in config["evidence"] if line.startswith("not checked, no NVIDIA driver"))
    assert results["driverless"]["verified"] == []


def test_only_a_node_that_may_be_provisioned_is_told_to_be(results: dict[str, dict[str, Any]]) -> None:
    remedies = {name: " ".join(fault["remedy"] for fault in one["steps"][0]["faults"]) for name, one in results.items()}
    assert "./inv provision" in remedies["with-driver"]
    assert codes(results["read-only"]) == codes(results["with-driver"])
    assert "provision" not in remedies["read-only"]
