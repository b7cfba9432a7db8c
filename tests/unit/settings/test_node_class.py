from __future__ import annotations

import pytest

from playbooks.settings.plan import make_plan
from tests.unit.settings.makers_node import (
    REDIRECT_OFF,
    behind_switches,
    decided,
    device,
    on_root_ports,
    record,
    with_device,
)


def class_of(node, **wishes):
    return make_plan(node, wishes)["node_class"]


@pytest.mark.parametrize(
    ("pci", "path", "switches", "roots"),
    [
        (behind_switches(2, 4), "switch", 2, 2),
        (behind_switches(1, 4), "switch", 1, 1),
        (on_root_ports(4), "host_bridge", 0, 4),
        ([*behind_switches(1, 2), *on_root_ports(4)[6:]], "mixed", 1, 2),
        (on_root_ports(1), "single", 0, 1),
        ([], "none", 0, 0),
        ([device("0000:00:05.0", "pci0000:00", "endpoint"), device("0000:00:06.0", "pci0000:00", "endpoint")],
         "host_bridge", 0, 1),
        ([device("0000:05:00.0", "0000:04:00.0", "endpoint")], "unknown", "unknown", "unknown"),
    ],
    ids=["two switches", "one switch", "root ports", "mixed", "one GPU", "no GPU", "on the root bus", "cut off"],
)  # fmt: skip
def test_the_path_follows_from_the_tree(pci, path, switches, roots) -> None:
    found = class_of(record(pci))
    assert (found["path"], found["switches"], found["root_complexes"]) == (path, switches, roots)


def test_switches_in_a_row_are_one_and_virtual_ones_are_several() -> None:
    cascade = [
        device("0000:00:01.1", "pci0000:00", "root_port"),
        device("0000:01:00.0", "0000:00:01.1", "upstream"),
        *(device(f"0000:02:0{n}.0", "0000:01:00.0", "downstream") for n in range(2)),
        *(device(f"0000:1{n}:00.0", f"0000:02:0{n}.0", "upstream") for n in range(2)),
        *(device(f"0000:2{n}:00.0", f"0000:1{n}:00.0", "downstream") for n in range(2)),
        *(device(f"0000:3{n}:00.0", f"0000:2{n}:00.0", "endpoint") for n in range(2)),
    ]
    assert class_of(record(cascade))["switches"] == 1
    assert class_of(record(behind_switches(4, 2)))["switches"] == 4


def test_a_switch_is_known_by_its_ports_and_without_them_by_the_tree() -> None:
    unread = [{**one, "port_type": "unknown"} for one in behind_switches(2, 2) + on_root_ports(5)[8:]]
    assert class_of(record(unread, gpus=[]))["path"] == "mixed"
    assert class_of(record(unread, gpus=[]))["switches"] == 2
    without_root_port = [
        device("0000:01:00.0", "pci0000:00", "upstream"),
        *(device(f"0000:02:0{n}.0", "0000:01:00.0", "downstream") for n in range(2)),
        *(device(f"0000:1{n}:00.0", f"0000:02:0{n}.0", "endpoint") for n in range(2)),
    ]
    assert class_of(record(without_root_port))["switches"] == 1
    old_bridge = [
        device("0000:00:01.0", "pci0000:00", "root_port"),
        device("0000:01:00.0", "0000:00:01.0", "bridge"),
        *(device(f"0000:02:0{n}.0", "0000:01:00.0", "endpoint") for n in range(2)),
    ]
    assert class_of(record(old_bridge))["path"] == "host_bridge"


def test_a_tree_that_loops_ends() -> None:
    looped = [
        device("0000:01:00.0", "0000:02:00.0", "downstream"),
        device("0000:02:00.0", "0000:01:00.0", "upstream"),
        device("0000:03:00.0", "0000:01:00.0", "endpoint"),
    ]
    assert class_of(record(looped))["path"] == "unknown"


def test_gpus_are_what_the_inventory_says() -> None:
    node = record([*behind_switches(), device("0000:90:00.0", "pci0000:90", "endpoint", **{"class": "0x068000"})])
    assert class_of(node)["gpus"] == 8
    assert class_of(node, gpu_match=["10de:0680"])["gpus"] == 1


@pytest.mark.parametrize(
    ("control", "state"),
    [(0x1D, "on"), (0x04, "on"), (0x20, "on"), (REDIRECT_OFF, "off"), (0, "off"), (None, "absent"),
     ("unknown", "unknown")],
)  # fmt: skip
def test_acs_redirect_is_three_bits_of_the_control_register(control, state) -> None:
    assert class_of(record(behind_switches(acs_control=control)))["acs_redirect"] == state


def test_one_port_that_redirects_is_enough_and_one_that_cannot_be_read_is_too_many() -> None:
    clear = behind_switches(acs_control=REDIRECT_OFF)
    assert class_of(record(with_device(clear, "0000:40:01.1", acs_control=0x1D)))["acs_redirect"] == "on"
    assert class_of(record(with_device(clear, "0000:40:01.1", acs_control="unknown")))["acs_redirect"] == "unknown"
    assert class_of(record([*clear, device("0000:99:00.0", "pci0000:99", "bridge", acs_control=None)])) == class_of(
        record(clear)
    )


def test_the_inventory_overrides_whether_a_node_is_virtualised_and_the_plan_shows_it() -> None:
    guest = record(host__virtualised=True)
    assert class_of(guest)["virtualised"] is True
    overridden = class_of(guest, node_virtualised=False)
    assert (overridden["virtualised"], overridden["overridden"]) == (False, ["virtualised"])
    assert class_of(record(), node_virtualised=False)["overridden"] == []
    for setting in ("iommu_mode", "acs_redirect"):
        assert decided(setting, guest)["verdict"] == "skip"
        with_override = decided(setting, guest, node_virtualised=False)
        assert with_override["verdict"] == "apply"
        assert "virtualised: as the inventory says" in with_override["why"]
        assert "inventory" not in decided(setting)["why"]


def test_what_is_not_known_is_called_so() -> None:
    node = {**record(cpu__threads="unknown", cpu__sockets="unknown", host__virtualised="unknown"), "pci": "unknown"}
    found = class_of(node)
    assert found == dict.fromkeys(
        ("path", "switches", "root_complexes", "sockets", "gpus", "acs_redirect", "virtualised", "threads"), "unknown"
    ) | {"iommu": "translated", "overridden": []}
