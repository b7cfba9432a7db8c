from __future__ import annotations

import time

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import FAKE_YAML, fake_xml, xml, xml_cpu, xml_gpu, xml_switch
from tuning.topology import MAX_NODES, Topology
from tuning.topology_complete import Assumptions, completed
from tuning.topology_links import Link
from tuning.topology_nodes import Gpu, Nic, OtherDevice, Switch
from tuning.topology_paths import PathType, path_type
from tuning.topology_read import parse_topology, read_topology, reference_names
from tuning.topology_xml import to_nccl_xml


def read(text: str) -> Topology:
    return parse_topology(text, name="fake", source="fake.xml")


def test_a_dump_is_read_with_all_that_nccl_wrote() -> None:
    topology = read(fake_xml())
    switch, nic = topology.by_id["0000:01:00.0"], topology.by_id["0000:05:00.0"]
    assert isinstance(switch, Switch)
    assert switch.link == Link(generation=5, width=16)
    assert (switch.peers, switch.ids.subsystem_device) == (("0000:81:00.0",), "0x100b")
    assert isinstance(nic, Nic)
    assert dict(nic.nets[0][1])["speed"] == "100000"
    assert [(gpu.index, gpu.rank, gpu.sm) for gpu in topology.gpus] == [(0, 0, 120), (1, 1, 120), (2, 2, 120)]
    assert (topology.cpus[1].numa, topology.cpus[1].family, topology.cpus[1].affinity) == (1, 26, "ffff")


@pytest.mark.parametrize(
    "text",
    [
        fake_xml(),
        xml(xml_cpu(-1, xml_gpu("0000:01:00.0", 0))),
        xml(xml_cpu(0, '<pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>')),
        xml(xml_cpu(0, '<pci busid="0000:00:16.0"/><pci busid="0000:00:17.0"/>')),
        xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_speed="", link_width="0"))),
        xml(
            xml_cpu(
                0,
                xml_gpu(
                    "0000:01:00.0",
                    3,
                    '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/><c2c bw="50000" count="2"/>',
                ),
                xml_gpu("0000:02:00.0", 5),
            )
        ),
        xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, '<xgmi target="0000:02:00.0" count="1" tclass="0x038000"/>'))),
        xml('<cpu numaid="0" host_hash="0x1f" arch="arm64">' + xml_gpu("0000:01:00.0", 0) + "</cpu>"),
        xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0)), "<nothing/>"),
    ],
)
def test_what_is_written_reads_as_what_was_read(text: str) -> None:
    topology = read(text)
    again = read(to_nccl_xml(topology))
    assert again.nodes == topology.nodes
    assert to_nccl_xml(again) == to_nccl_xml(topology)


def test_reference_nodes_written_keep_gpus_links_and_the_paths_that_nccl_tells_apart() -> None:
    for name in reference_names():
        topology = read_topology(name)
        again = read(to_nccl_xml(topology))
        assert [(g.id, g.index, g.sm, g.link) for g in again.gpus] == [
            (g.id, g.index, g.sm, g.link) for g in topology.gpus
        ]
        for gpu in topology.gpus[1:]:
            assert path_type(again, 0, gpu.index).nccl == path_type(topology, 0, gpu.index).nccl


def test_the_writer_writes_what_nccl_writes() -> None:
    written = to_nccl_xml(read(xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0)))))
    assert written == (
        '<system version="1">\n'
        '  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="26" modelid="2">\n'
        '    <pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" device="0x2bb5" link_speed="32.0 GT/s PCIe" '
        'link_width="16">\n'
        '      <gpu dev="0" sm="120" rank="0" gdr="0"/>\n'
        "    </pci>\n"
        "  </cpu>\n"
        "</system>\n"
    )


def test_attributes_that_the_model_does_not_know_stay_where_they_stood() -> None:
    text = xml(
        xml_cpu(0, xml_gpu("0000:01:00.0", 0).replace('gdr="0"', 'gdr="0" gcn="906"').replace("<pci", '<pci keep="1"'))
    )
    written = to_nccl_xml(read(text))
    assert 'link_width="16" keep="1">' in written
    assert 'gdr="0" gcn="906"/>' in written
    assert "gpu." not in written


def test_links_are_written_as_both_ends_can_do() -> None:
    topology = parse_topology(FAKE_YAML.replace("Gen5 x8 of Gen5 x16", "Gen1 x8 of Gen5 x16"), name="x", source="x")
    assert {str(gpu.link) for gpu in read(to_nccl_xml(topology)).gpus} == {"Gen5 x16"}


def test_on_an_unknown_cpu_gpus_may_be_on_two() -> None:
    topology = read(xml(xml_cpu(-1, xml_gpu("0000:01:00.0", 0), xml_gpu("0000:02:00.0", 1))))
    assert path_type(topology, 0, 1) is PathType.SYS


def test_gpus_of_a_matrix_get_bus_ids_that_no_device_has_and_keep_their_nvlinks() -> None:
    topology = parse_topology("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n", name="two", source="here")
    again = read(to_nccl_xml(completed(topology, Assumptions())))
    assert [gpu.id[:5] for gpu in again.gpus] == ["ffff:", "ffff:"]
    assert path_type(again, 0, 1) is PathType.NVL


def test_gpus_that_a_file_leaves_unnumbered_get_the_numbers_left() -> None:
    bare = '<pci busid="0000:09:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
    topology = read(xml(xml_cpu(0, bare, xml_gpu("0000:01:00.0", 0))))
    assert [(gpu.index, gpu.id) for gpu in topology.gpus] == [(0, "0000:01:00.0"), (1, "0000:09:00.0")]
    assert any("numbers and compute capability" in text for text in topology.unknown)


def test_devices_without_a_class_may_be_gpus_and_are_not_taken_for_any() -> None:
    topology = read(xml(xml_cpu(0, '<pci busid="0000:00:16.0"/>')))
    assert isinstance(topology.by_id["0000:00:16.0"], OtherDevice)
    assert topology.gpus == ()
    assert any("GPUs may be among them" in text for text in topology.unknown)


def test_a_virtual_machine_tells_no_link() -> None:
    gpu = read(xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_speed="Unknown", link_width="255")))).gpu(0)
    assert gpu.link == Link()


MANY = " ".join(f"a{number}='1'" for number in range(99))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system/>", "holds no GPU"),
        ("<system><cpu", "not XML"),
        ('<graphs version="1"/>', "graph file"),
        ("<html/>", "begins with <html>"),
        (xml("<cpu/>"), "without numaid"),
        (xml(xml_cpu(0), xml_cpu(0)), "two <cpu> of numaid 0"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0), xml_gpu("0000:01:00.0", 1))), "names 0000:01:00.0 twice"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0), xml_gpu("0000:02:00.0", 0))), "numbers two GPUs alike"),
        (xml(xml_cpu(0, xml_gpu("here", 0))), "busid='here'"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_width="0"))), "0000:01:00.0 has a PCIe link of 0 lanes"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_width="-4"))), "-4 lanes"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_width="many"))), "link_width='many'"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, link_speed="33.0 GT/s"))), "link_speed='33.0 GT/s'"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0).replace("</pci>", '<gpu dev="1"/></pci>'))), "into 2"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0, '<nvlink count="1"/>'))), "without target"),
        (xml(xml_cpu(0, xml_gpu("0000:01:00.0", 0)).replace("ffff", "f" * 300)), "affinity of 300 characters"),
        (xml(*(xml_cpu(0, *('<pci busid="0000:01:00.0"/>' for _ in range(MAX_NODES)))),), "more than"),
        (xml(xml_cpu(0, "<x>" * 60 + "</x>" * 60)), "levels"),
        (xml("<x/>" * 5000), "elements"),
        (xml(f"<cpu numaid='0' {MANY}/>"), "99 attributes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what


def test_an_entity_bomb_is_refused_before_it_goes_off() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)
    )
    began = time.monotonic()
    for text in (f"{bomb}]><system>&j;</system>", f"<system/>{bomb}", '<?xml version="1.0"?>' + bomb):
        with pytest.raises(InputError, match=r"document type|entities"):
            read(text)
    assert time.monotonic() - began < 5


def test_every_vendor_is_read() -> None:
    text = fake_xml().replace("0x10de", "0xbeef").replace("AuthenticAMD", "NobodyKnows")
    topology = read(text)
    assert {gpu.ids.vendor for gpu in topology.gpus} == {"0xbeef"}
    assert isinstance(topology.gpu(0), Gpu)


def test_nested_switches_stay_nested() -> None:
    inner = xml_switch("0000:05:00.0", xml_gpu("0000:07:00.0", 1))
    topology = read(xml(xml_cpu(0, xml_switch("0000:01:00.0", xml_gpu("0000:03:00.0", 0), inner))))
    assert path_type(topology, 0, 1) is PathType.PXB
