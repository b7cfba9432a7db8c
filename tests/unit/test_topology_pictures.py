from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.unit.makers_topology import FAKE_YAML, block_cells, fake_lspci, fake_xml, matrix
from tuning.topology import Topology
from tuning.topology_read import parse_topology, read_topology, reference_names
from tuning.topology_svg import svg
from tuning.topology_text import text_tree


def read(text: str) -> Topology:
    return parse_topology(text, name="fake", source="here")


TOPOLOGIES = [
    *map(read_topology, reference_names()),
    *map(read, (FAKE_YAML, fake_xml(), fake_lspci(redirect="+"), matrix(block_cells([8], "NV12", "")))),
    read('<system><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>'),
]


def words(picture: str) -> str:
    return " ".join(
        text for element in ET.fromstring(picture).iter() for text in (element.text or "", element.tail or "")
    )


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_text_and_picture_name_every_gpu_and_all_that_is_not_known(topology: Topology) -> None:
    text, picture = text_tree(topology), svg(topology)
    shown = " ".join(words(picture).split())
    for gpu in topology.gpus:
        assert gpu.id in text
        assert gpu.id in shown
        assert f"GPU {gpu.index}" in shown
    for missing in topology.unknown:
        assert missing in text
        assert missing in shown


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_a_picture_stands_alone_and_holds_no_script(topology: Topology) -> None:
    root = ET.fromstring(svg(topology))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg", "style", "defs", "pattern", "rect", "path", "circle", "title", "text", "line", "g",
    }  # fmt: skip
    for element in root.iter():
        assert not [key for key in element.attrib if key.startswith("on") or "href" in key]
    assert "url(http" not in svg(topology)
    assert "@import" not in svg(topology)


def test_boxes_lie_inside_the_picture_and_not_on_each_other() -> None:
    for topology in TOPOLOGIES:
        root = ET.fromstring(svg(topology))
        width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
        boxes = [
            tuple(float(element.attrib[key]) for key in ("x", "y", "width", "height"))
            for element in root.iter("{http://www.w3.org/2000/svg}rect")
            if element.get("class") in ("cpu", "bridge", "switch", "gpu", "nic", "device")
        ]
        assert len(boxes) == len(topology.nodes)
        for number, (x, y, w, h) in enumerate(boxes):
            assert x >= 0
            assert x + w <= width
            assert y + h <= height
            for x2, y2, w2, h2 in boxes[:number]:
                assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_links_carry_their_rate_and_degraded_ones_a_word_and_a_line_of_their_own() -> None:
    topology = read(FAKE_YAML)
    picture, text = svg(topology), text_tree(topology)
    assert picture.count('class="degraded"') == 1
    for shown in (words(picture), text):
        assert shown.count("DEGRADED") == 1
        assert shown.count("ACS REDIRECT") == 1
        assert "Gen5 x8 of Gen5 x16" in shown
        assert "xGMI, 36 GB/s one way" in shown
        assert "P2P: OK between all GPUs" in shown
    assert "[Gen5 x16, 63.0 GB/s, NCCL counts 48]" in text


def test_an_idle_link_is_no_degraded_one() -> None:
    topology = read(fake_lspci().replace("LnkSta:\tSpeed 32GT/s", "LnkSta:\tSpeed 2.5GT/s"))
    assert text_tree(topology).count("idle rate?") == 4
    assert "ACS REDIRECT" not in text_tree(topology)
    assert text_tree(topology).count("DEGRADED") == 2  # the switches' uplinks, which no idle GPU lowers


def test_the_text_holds_the_matrix_that_nvidia_smi_would_print() -> None:
    lines = text_tree(read_topology("8gpu-4virtual-switch-broadcom")).splitlines()
    rows = [line.split()[1:] for line in lines if line.startswith("GPU")]
    assert rows == block_with_sockets()
    assert "PHB/NODE" in text_tree(read(fake_xml().replace("</cpu></system>", two_more())))


def block_with_sockets() -> list[list[str]]:
    near = block_cells([2, 2, 2, 2], "PIX", "SYS")
    return [
        ["NODE" if cell == "SYS" and a // 4 == b // 4 else cell for b, cell in enumerate(row)]
        for a, row in enumerate(near)
    ]


def two_more() -> str:
    return '<pci busid="0000:91:00.0" class="0x030200" link_speed="" link_width="0"/></cpu></system>'


def test_names_from_files_are_escaped() -> None:
    topology = read(FAKE_YAML.replace("name: fake", 'name: "<script>alert(1)</script> & co"'))
    assert "<script" not in svg(topology)
    assert "<script>alert(1)</script> & co" in words(svg(topology))
