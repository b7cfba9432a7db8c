from __future__ import annotations

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import FAKE_YAML
from tuning import topology_yaml
from tuning.topology import Topology
from tuning.topology_nodes import Nic
from tuning.topology_paths import islands
from tuning.topology_read import parse_topology


def read(text: str) -> Topology:
    return parse_topology(text, name="file", source="mine.yaml")


def test_a_hand_written_node_is_read_with_its_defaults() -> None:
    topology = read(FAKE_YAML)
    assert topology.name == "fake"
    assert [(gpu.id, gpu.sm, str(gpu.link), gpu.acs_redirect) for gpu in topology.gpus] == [
        ("0000:43:00.0", 120, "Gen5 x16", None),
        ("0000:44:00.0", 120, "Gen5 x16", None),
        ("0000:45:00.0", 120, "Gen5 x8 of Gen5 x16", True),
    ]
    assert isinstance(topology.by_id["0000:81:00.0"], Nic)
    assert [(link.kind, link.gb_per_s) for link in topology.socket_links] == [("xGMI", 36.0)]
    assert topology.p2p[0, 1] == topology.p2p[2, 0] == "OK"
    assert [len(island) for island in islands(topology)] == [3]


def test_the_form_that_is_documented_is_read() -> None:
    lines = [line[4:] for line in (topology_yaml.__doc__ or "").splitlines() if line.startswith("    ")]
    topology = read("\n".join(lines))
    assert (topology.name, len(topology.gpus)) == ("my-node", 2)
    assert [node.degraded for node in topology.nodes if isinstance(node, Nic)] == [True]
    assert topology.unknown == ("what nobody could tell",)


def test_bus_ids_of_digits_only_are_no_numbers_of_base_sixty() -> None:
    assert read("cpus: [{numa: 0, below: [{gpu: 0000:43:00.0}]}]").gpu(0).id == "0000:43:00.0"


def test_a_file_without_a_name_takes_its_own() -> None:
    assert read(FAKE_YAML.replace("name: fake", "")).name == "file"


GPU = "{gpu: 0000:01:00.0}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpus: 3", "as cpus"),
        ("cpus: []", "holds no GPU"),
        ("cpus: [{below: []}]", "no numa in cpus[0]"),
        ("cpus: [{numa: 0, speed: 1}]", "'speed' in cpus[0]"),
        ("cpus: [{numa: 0, below: [{disk: a}]}]", "cpus[0].below[0]"),
        (f"cpus: [{{numa: 0, below: [{GPU}, {GPU}]}}]", "names 0000:01:00.0 twice"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}, {{numa: 0}}]", "names cpu0 twice"),
        ("cpus: [{numa: 0, below: [{gpu: here}]}]", "'here' as cpus[0].below[0].gpu"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, below: []}]}]", "'below'"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, nic: 02:00.0}]}]", "as cpus[0].below[0]"),
        ("cpus: [{numa: 0, below: [{bridge: x}]}]", "'x' as cpus[0].below[0].bridge"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, link: fast}]}]", "'fast' as link of 0000:01:00.0"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, link: Gen5 x0}]}]", "0 lanes"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, link: Gen5 x8 of Gen5 x0}]}]", "0 lanes"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, link: Gen9 x16}]}]", "generation 9"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, acs_redirect: 1}]}]", "acs_redirect"),
        ("cpus: [{numa: 0, below: [{gpu: 01:00.0, vendor: NVIDIA}]}]", "'NVIDIA' as vendor"),
        ("cpus: [{numa: true}]", "as numa"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}]\np2p: YES", "as p2p"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}]\np2p: FINE", "'FINE' as p2p"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}]\nbetween_cpus: [{{cpus: [0, 7]}}]", "links the CPUs cpu0 and cpu7"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}]\nbetween_cpus: [{{cpus: [0]}}]", "between_cpus.cpus"),
        (f"cpus: [{{numa: 0, below: [{GPU}]}}]\nbetween_cpus: [{{cpus: [0, 1], gb_per_s: -1}}]", "gb_per_s"),
        (
            f"cpus: [{{numa: 0, below: [{{gpus: [{', '.join(f'{n:02x}:00.0' for n in range(200))}]}}]}}]",
            "more than 128 GPUs",
        ),
        ("cpus: &a [{numa: 0, below: *a}]", "anchor or alias"),
        ("cpus: []\ncpus: []", "stands twice"),
        ("cpus: [{numa: 0, below: [" + "{bridge: pci0000:00, below: [" * 400, "not YAML"),
        ("cpus: !!python/object/apply:os.system [x]", "not YAML"),
        ("cpus: 2026-13-45", "as cpus"),
        ("cpus: !!int x", "not YAML"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what
