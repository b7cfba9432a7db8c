from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lanewise.errors import InputError
from playbooks.module_utils.node_record import read_node
from tests.unit.makers_node import add_switch, cpu_files, write
from tests.unit.makers_topology import fake_record, fake_record_text, record_device
from tuning.topology import Topology
from tuning.topology_paths import islands, path_type
from tuning.topology_read import parse_topology


def read(text: str) -> Topology:
    return parse_topology(text, name="fake", source="node.json")


def changed(address: str, **fields: Any) -> str:
    """The record with fields of one PCI device changed."""
    record = fake_record()
    for device in record["pci"]:
        if device["address"] == address:
            device.update(fields)
    return json.dumps(record)


def test_a_record_gives_tree_links_numbers_and_distances() -> None:
    topology = read(fake_record_text())
    assert [[gpu.index for gpu in island] for island in islands(topology)] == [[0, 1], [2]]
    assert [path_type(topology, 0, n).value for n in (1, 2)] == ["PIX", "SYS"]
    assert [(gpu.sm, gpu.name) for gpu in topology.gpus] == [(120, "Fake GPU"), (120, "Fake GPU"), (None, "")]
    assert {str(gpu.link) for gpu in topology.gpus} == {"Gen5 x16"}
    assert [(cpu.numa, cpu.vendor, cpu.family) for cpu in topology.cpus] == [
        (0, "AuthenticAMD", 26),
        (1, "AuthenticAMD", 26),
    ]
    assert [(link.cpus, link.distance) for link in topology.socket_links] == [(("cpu0", "cpu1"), 32)]
    assert any("compute capability" in text for text in topology.unknown)


def test_the_reader_of_a_machine_and_this_reader_agree(tmp_path: Path) -> None:
    write(tmp_path, cpu_files())
    add_switch(tmp_path, 0x00, 0)
    add_switch(tmp_path, 0x40, 1)
    topology = read(json.dumps(read_node(str(tmp_path))))
    assert [len(island) for island in islands(topology)] == [4, 4]
    assert path_type(topology, 0, 7).value == "SYS"
    assert {str(gpu.link) for gpu in topology.gpus} == {"Gen5 x16"}


def test_nvidia_smis_numbers_are_kept() -> None:
    record = fake_record()
    for entry, index in zip(record["gpus"], (5, 3, 4), strict=True):
        entry["index"] = index
    topology = read(json.dumps(record))
    assert [(gpu.index, gpu.rank, gpu.id) for gpu in topology.gpus] == [
        (3, 0, "0000:04:00.0"),
        (4, 1, "0000:81:00.0"),
        (5, 2, "0000:03:00.0"),
    ]


def test_a_narrow_link_is_degraded_and_a_slow_one_perhaps_idle() -> None:
    narrow = read(changed("0000:03:00.0", current_link_width=8)).gpu(0)
    slow = read(changed("0000:03:00.0", current_link_speed_gts=2.5))
    assert (str(narrow.link), narrow.degraded) == ("Gen5 x8 of Gen5 x16", True)
    assert (slow.gpu(0).degraded, any("GPU 0 under load" in text for text in slow.unknown)) == (False, True)


def test_a_gpu_that_sysfs_hides_still_counts() -> None:
    topology = read(fake_record_text(pci=[], numa=[{"id": 0, "distances": [10]}]))
    assert [gpu.index for gpu in topology.gpus] == [0, 1, 2]
    assert {gpu.parent for gpu in topology.gpus} == {"cpu0"}
    assert any("host bridge and ports" in text for text in topology.unknown)


def test_devices_that_no_numa_node_is_told_of_are_on_the_only_one_or_on_an_unknown_one() -> None:
    only = [{"id": 0, "distances": [10]}]
    bare = [{**device, "numa_node": None} for device in fake_record()["pci"]]
    assert [cpu.several for cpu in read(fake_record_text(pci=bare, numa=only)).cpus] == [False]
    assert [cpu.several for cpu in read(fake_record_text(pci=bare)).cpus] == [True]


@pytest.mark.parametrize(
    ("control", "redirect"),
    [
        (0x1D, True),
        (0x04, True),
        (0x08, True),
        (0x11, False),  # source validation and forwarding alone send nothing up
        (0, False),
        (None, False),
        ("unknown", None),
        (-1, None),
        (True, None),
    ],
)
def test_acs_redirect_is_that_of_the_port_above(control: object, redirect: bool | None) -> None:
    topology = read(changed("0000:02:00.0", acs_control=control))
    assert [gpu.acs_redirect for gpu in topology.gpus] == [redirect, None, None]


def test_only_a_record_that_tells_every_ports_acs_leaves_it_not_unknown(tmp_path: Path) -> None:
    write(tmp_path, cpu_files())
    add_switch(tmp_path, 0x00, 0)
    topology = read(json.dumps(read_node(str(tmp_path))))
    assert {gpu.acs_redirect for gpu in topology.gpus} == {False}
    assert not any("ACS" in text for text in topology.unknown)
    assert any("ACS" in text for text in read(fake_record_text()).unknown)


@pytest.mark.parametrize("value", ["unknown", None, -1, 1e300, 10**30, [], {}, True, float("nan")])
@pytest.mark.parametrize(
    "field", ["current_link_speed_gts", "max_link_width", "numa_node", "class", "parent", "acs_control"]
)
def test_odd_values_of_one_field_are_not_known_or_refused(field: str, value: object) -> None:
    text = changed("0000:03:00.0", **{field: value})
    try:
        topology = read(text)
    except InputError:
        return
    assert topology.gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (fake_record_text(pci="unknown", unread=[{"field": "pci", "reason": "hidden"}]), "no list pci (hidden)"),
        (fake_record_text(gpus="unknown", pci=[]), "holds no GPU"),
        (fake_record_text(schema="other/1"), "schema 'other/1'"),
        (fake_record_text(gpus=[1]), "no list gpus"),
        (fake_record_text(pci=fake_record()["pci"] * 2), "names 0000:00:01.1 twice"),
        ("{" * 100_000, "not JSON"),
        ('{"a":' * 100_000, "not JSON"),
        (changed("0000:01:00.0", parent="0000:01:00.0"), "ring of bridges"),
        (changed("0000:01:00.0", parent="0000:02:00.0"), "ring of bridges"),
        (changed("0000:03:00.0", current_link_width=0), "0000:03:00.0 has a PCIe link of 0 lanes"),
        (
            fake_record_text(
                pci=[record_device(f"{n:04x}:01:00.0", "pci0000:00", "0x030200") for n in range(3000)], gpus=[]
            ),
            "more than 1,024 devices",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what
