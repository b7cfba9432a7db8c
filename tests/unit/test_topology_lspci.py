from __future__ import annotations

import re

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import (
    FAKE_LSPCI_TREE,
    fake_lspci,
    lspci_bridge,
    lspci_function,
    lspci_link,
)
from tuning.topology import Topology
from tuning.topology_nodes import Nic, Switch
from tuning.topology_paths import islands, path_type, possible_paths
from tuning.topology_read import parse_topology


def read(text: str) -> Topology:
    return parse_topology(text, name="fake", source="lspci.txt")


def test_the_tree_is_that_of_the_bridges_buses() -> None:
    topology = read(fake_lspci())
    assert [[gpu.id for gpu in island] for island in islands(topology)] == [
        ["0000:03:00.0", "0000:04:00.0"],
        ["0000:83:00.0", "0000:84:00.0"],
    ]
    assert [path_type(topology, 0, n).value for n in (1, 2, 3)] == ["PIX", "SYS", "SYS"]
    assert [(cpu.numa, cpu.vendor) for cpu in topology.cpus] == [(0, "AuthenticAMD"), (1, "AuthenticAMD")]
    switch = topology.by_id["0000:01:00.0"]
    assert isinstance(switch, Switch)
    assert (switch.port, switch.parent, str(switch.link)) == ("0000:00:01.1", "pci0000:00", "Gen5 x16")
    assert (topology.gpu(0).ids.vendor, topology.gpu(0).ids.device) == ("0x10de", "0x2bb5")


@pytest.mark.parametrize(("sign", "redirect"), [("+", True), ("-", False)])
def test_acs_redirect_is_that_of_the_port_above(sign: str, redirect: bool) -> None:
    topology = read(fake_lspci(redirect=sign))
    assert {gpu.acs_redirect for gpu in topology.gpus} == {redirect}


def test_acs_state_that_lspci_does_not_show_is_not_known() -> None:
    topology = read("\n".join(line for line in fake_lspci().splitlines() if "ACSCtl" not in line))
    assert {gpu.acs_redirect for gpu in topology.gpus} == {None}
    assert any("ACS" in text for text in topology.unknown)


def test_what_the_device_can_do_alone_does_not_count_as_what_the_link_can() -> None:
    text = fake_lspci().replace("Width x16, ASPM", "Width x8, ASPM", 3)  # of the bridges above the first GPU
    text = text.replace("Width x16\n", "Width x8\n", 4)
    gpu = read(text).gpu(0)
    assert (gpu.link.width, gpu.link.max_width, gpu.degraded) == (8, 8, False)


def test_numbers_serve_where_lspci_prints_no_names() -> None:
    text = fake_lspci().replace("3D controller: NVIDIA Corporation Device 2bb5", "0302: 10de:2bb5")
    text = text.replace("PCI bridge: Broadcom / LSI PEX890xx", "Class 0604: 1000:c030")
    topology = read(text)
    assert topology.gpu(0).ids.device == "0x2bb5"
    switch = topology.by_id["0000:01:00.0"]
    assert isinstance(switch, Switch)
    assert (switch.ids.vendor, switch.ids.device, switch.ids.pci_class) == ("0x1000", "0xc030", "0x060400")


def test_a_part_of_a_listing_says_what_is_missing_above_it() -> None:
    topology = read(lspci_function("01:00.0", "VGA compatible controller", *lspci_link()))
    assert len(topology.gpus) == 1
    said = " ".join(topology.unknown)
    assert "host bridge and ports above 0000:01:00.0" in said
    assert "which CPU" in said


def test_domains_keep_buses_of_the_same_number_apart() -> None:
    parts = [
        re.sub(r"(?m)^([0-9a-f]{2}:)", rf"{domain}:\1", fake_lspci(numa=False).split("80:00.0")[0])
        for domain in ("0000", "0001")
    ]
    topology = read("\n".join(parts))
    assert [len(island) for island in islands(topology)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("06:00.0 3D controller: NVIDIA Corporation GA102GL [A10] (rev a1)\n", "without their details"),
        (lspci_bridge("00:01.1", "01"), "shows no GPU of NVIDIA"),
        (lspci_function("00:02.0", "VGA compatible controller", "x", name="ASPEED"), "shows no GPU of NVIDIA"),
        (
            lspci_bridge("01:00.0", "02")
            + lspci_bridge("02:00.0", "01")
            + lspci_function("02:01.0", "3D controller", *lspci_link()),
            "ring of bridges",
        ),
        (fake_lspci() + fake_lspci(), "names 0000:00:00.0 twice"),
        (fake_lspci(gpu_links=(lspci_link("32GT/s", 0),)), "0000:03:00.0 has a PCIe link of 0 lanes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what


# lspci -tv


def test_a_drawing_is_read_with_its_switches_and_cards() -> None:
    topology = read(FAKE_LSPCI_TREE)
    assert [gpu.id for gpu in topology.gpus] == ["0000:01:00.0", "0000:44:00.0", "0000:45:00.0"]
    assert isinstance(topology.by_id["0000:43:00.0"], Nic)
    assert topology.gpu(1).port == "0000:42:01.0"
    assert [path.value for path in possible_paths(topology, 1, 2)] == ["PIX"]
    assert [path.value for path in possible_paths(topology, 0, 1)] == ["NODE", "SYS"]


def test_a_drawing_of_one_root_bus_is_read() -> None:
    text = (
        "-[0000:00]-+-00.0  Intel Corporation Device\n           \\-01.0-[01]----00.0  NVIDIA Corporation Device 2bb5\n"
    )
    assert [gpu.id for gpu in read(text).gpus] == ["0000:01:00.0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FAKE_LSPCI_TREE.replace(" |           +-01.1-[41-46]", "+-01.1-[41-46]"), "line 2, is not drawn"),
        (FAKE_LSPCI_TREE * 2, "names 0000:40:00.0 twice"),
        (FAKE_LSPCI_TREE.replace("NVIDIA", "ATI"), "names no GPU of NVIDIA"),
        (FAKE_LSPCI_TREE.replace("+-01.1-[41-46]", "*-01.1-[41-46]"), "line 2, is not drawn"),
        (FAKE_LSPCI_TREE[:230], "names no GPU of NVIDIA"),
    ],
)
def test_a_drawing_that_lost_its_shape_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what
