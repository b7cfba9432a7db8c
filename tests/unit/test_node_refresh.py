"""What commands make of what we wrote: due by its facts, not by what this run happened to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils.derived import Item, Outcome, refresh
from tests.unit.makers_modules import run_module

GRUB = Item(name="grub", facts="iommu=pt", command=("update-grub",), undo=("update-grub", "-u"))


class Node:
    """A made-up node; commands are only written down, and those in `failing` fail."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran, self.failing = root, list[tuple[str, ...]](), set[str]()

    def run(self, command: Sequence[str]) -> str:
        self.ran.append(tuple(command))
        return f"{command[0]} ended with 1" if command[0] in self.failing else ""

    def refresh(self, *items: Item, write: bool = True) -> Outcome:
        return refresh(str(self.root), items, self.run, write=write)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_command_runs_once_for_the_same_facts_and_again_for_others(node: Node) -> None:
    assert node.refresh(GRUB).refreshed == ["grub"]
    assert node.refresh(GRUB).refreshed == []
    assert node.refresh(replace(GRUB, facts="iommu=off")).refreshed == ["grub"]
    assert node.ran == [("update-grub",), ("update-grub",)]


def test_what_was_never_made_is_not_undone(node: Node) -> None:
    assert node.refresh(replace(GRUB, facts="")).refreshed == []
    assert node.ran == []


def test_facts_that_are_gone_run_the_undoing_once_and_leave_no_record(node: Node) -> None:
    node.refresh(GRUB)
    assert node.refresh(replace(GRUB, facts="")).refreshed == ["grub"]
    assert node.refresh(replace(GRUB, facts="")).refreshed == []
    assert node.ran == [("update-grub",), ("update-grub", "-u")]
    assert not (node.root / "var/lib/lanewise").exists()


def test_a_failure_is_told_stays_due_and_stops_no_other(node: Node) -> None:
    node.failing = {"update-grub"}
    other = Item(name="other", facts="x", command=("other",))
    outcome = node.refresh(GRUB, other)
    assert outcome.faults == ["grub: update-grub ended with 1"]
    assert outcome.refreshed == ["other"]
    node.failing = set()
    assert node.refresh(GRUB, other).refreshed == ["grub"]


def test_check_says_the_same_and_runs_nothing(node: Node) -> None:
    assert node.refresh(GRUB, write=False).refreshed == ["grub"]
    assert node.ran == []
    assert list(node.root.iterdir()) == []


def test_what_another_owner_has_enabled_is_not_ours_to_switch_off(node: Node) -> None:
    unit = Item(name="unit", facts="on", command=("enable",), undo=("disable",), unless=("is-enabled",))
    assert node.refresh(unit).passed_over == {"unit": "another owner's: is-enabled succeeds"}
    assert node.refresh(replace(unit, facts="")).refreshed == []
    node.failing = {"is-enabled"}
    assert node.refresh(unit).refreshed == ["unit"]
    node.failing = set()  # it is enabled now, by us
    assert node.refresh(replace(unit, facts="")).refreshed == ["unit"]
    assert node.ran[-1] == ("disable",)


def test_what_a_node_does_not_have_is_passed_over_with_the_reason(node: Node) -> None:
    item = replace(GRUB, requires=("/usr/sbin/update-grub",))
    assert node.refresh(item).passed_over == {"grub": "this node has no /usr/sbin/update-grub"}


def test_a_product_of_another_owner_is_left_and_ours_goes_with_us(node: Node) -> None:
    cdi = Item(name="cdi", facts="driver 595", command=("nvidia-ctk",), produces="/etc/cdi/nvidia.yaml")
    product = node.root / "etc/cdi/nvidia.yaml"
    product.parent.mkdir(parents=True)
    product.write_text("theirs")
    assert node.refresh(cdi).passed_over == {"cdi": "/etc/cdi/nvidia.yaml is another owner's"}
    product.unlink()
    node.refresh(cdi)
    product.write_text("ours")
    assert node.refresh(replace(cdi, facts="driver 610")).refreshed == ["cdi"]
    assert node.refresh(replace(cdi, facts="")).removed == ["/etc/cdi/nvidia.yaml"]
    assert not product.exists()


def module(root: Path, capsys: pytest.CaptureFixture[str], *, check: bool = False, **more: object) -> dict[str, Any]:
    caches = {"name": "caches", "facts": "acs off", "remove": ["/root/.cache/*/gpu_p2p_*.json"], **more}
    return run_module("node_refresh", capsys, check=check, items=[caches], root=str(root))


def test_stale_files_are_removed_once_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "root/.cache/vllm"
    folder.mkdir(parents=True)
    for name in ("gpu_p2p_0.json", "other.json"):
        (folder / name).write_text("{}")
    (tmp_path / "outside.json").write_text("{}")
    (folder / "gpu_p2p_link.json").symlink_to(tmp_path / "outside.json")
    checked = module(tmp_path, capsys, check=True)
    assert checked["removed"] == ["/root/.cache/vllm/gpu_p2p_0.json"]
    assert (folder / "gpu_p2p_0.json").exists()
    done = module(tmp_path, capsys)
    assert done["diff"] == checked["diff"]
    assert sorted(path.name for path in folder.iterdir()) == ["gpu_p2p_link.json", "other.json"]
    (folder / "gpu_p2p_0.json").write_text("{}")  # of an engine that has looked again
    assert module(tmp_path, capsys)["changed"] is False


def test_below_another_root_no_command_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = module(tmp_path, capsys, command=["/bin/false"])
    assert found["passed_over"] == {"caches": "/bin/false is not run for another root"}
    assert found["changed"] is False


def test_a_damaged_record_is_an_error_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "var/lib/lanewise/refreshed.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"schema": "lanewise.refreshed/1", "done": []}')
    assert "refreshed.json is damaged" in module(tmp_path, capsys)["msg"]
