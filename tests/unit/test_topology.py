from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import FAKE_YAML, fake_xml
from tuning.topology import MAX_DEPTH, MAX_GPUS, MAX_NODES, SocketLink, Topology
from tuning.topology_complete import Assumptions, completed
from tuning.topology_links import Link, link_of
from tuning.topology_nodes import Cpu, FabricLink, Gpu, HostBridge, Node, Switch, bus_id
from tuning.topology_paths import PathType, islands, path, path_type, possible_paths
from tuning.topology_read import parse_topology, read_topology, reference_names


def made(*nodes: Node, **fields: object) -> Topology:
    return Topology(name="made", source="here", nodes=nodes, **fields)  # type: ignore[arg-type]


def gpu(name: str, parent: str, number: int = 0, **fields: object) -> Gpu:
    return Gpu(id=name, parent=parent, index=number, rank=number, **fields)  # type: ignore[arg-type]


CPU = Cpu(id="cpu0", numa=0)
ONE = gpu("0000:01:00.0", "cpu0")


# what a topology may be


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ((CPU,), "holds no GPU"),
        ((CPU, gpu("0000:01:00.0", "cpu7")), "orphan 0000:01:00.0 below 'cpu7'"),
        ((CPU, gpu("0000:01:00.0", "")), "orphan 0000:01:00.0 below nothing"),
        ((CPU, ONE, Switch(id="a", parent="b"), Switch(id="b", parent="a")), "ring through"),
        ((CPU, ONE, Switch(id="a", parent="a")), "ring through a"),
        ((CPU, ONE, gpu("0000:01:00.0", "cpu0", 1)), "names 0000:01:00.0 twice"),
        ((CPU, ONE, gpu("0000:02:00.0", "cpu0", 0)), "numbers two GPUs alike"),
        ((CPU, ONE, gpu("0000:02:00.0", "0000:01:00.0", 1)), "below 0000:01:00.0, a Gpu"),
        ((CPU, ONE, Cpu(id="cpu1", parent="cpu0")), "has cpu1 below cpu0"),
        ((CPU, ONE, HostBridge(id="b", parent="b2"), Switch(id="b2", parent="cpu0")), "has b below b2"),
        ((CPU, gpu("0000:01:00.0", "cpu0", -1)), "has GPU -1"),
        ((CPU, gpu("x\x1b[31m", "cpu0")), "printable"),
        ((CPU, gpu("x" * 300, "cpu0")), "printable"),
        ((CPU, replace(ONE, fabric=(FabricLink(kind="nvlink", target="x", count=0),))), "0 nvlink links"),
        ((CPU, *(gpu(str(n), "cpu0", n) for n in range(MAX_NODES))), f"has {MAX_NODES + 1:,} nodes"),
        ((CPU, *(gpu(str(n), "cpu0", n) for n in range(MAX_GPUS + 1))), f"has {MAX_GPUS + 1} GPUs"),
    ],
)
def test_nodes_that_are_no_tree_of_cpus_are_refused_by_name(nodes: tuple[Node, ...], said: str) -> None:
    with pytest.raises(InputError) as caught:
        made(*nodes)
    assert said in f"{caught.value.what} {caught.value.expected}"


def test_a_tree_deeper_than_any_node_is_refused_wherever_its_deepest_node_stands() -> None:
    names = ["cpu0", *(f"s{n}" for n in range(MAX_DEPTH + 1))]
    chain = [Switch(id=name, parent=above) for above, name in pairwise(names)]
    assert made(CPU, ONE, *chain[:MAX_DEPTH])
    for nodes in (chain, chain[::-1]):
        with pytest.raises(InputError, match="deeper than"):
            made(CPU, ONE, *nodes)


@pytest.mark.parametrize(
    "fields",
    [
        {"socket_links": (SocketLink(cpus=("cpu0", "cpu9")),)},
        {"socket_links": (SocketLink(cpus=("cpu0", "cpu0")),)},
        {"socket_links": (SocketLink(cpus=("cpu0", "cpu1"), gb_per_s=float("nan")),)},
        {"p2p": {(0, 5): "OK"}},
        {"p2p": {(0, 0): "FINE"}},
    ],
)
def test_relations_between_what_is_not_there_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InputError):
        made(CPU, Cpu(id="cpu1"), ONE, **fields)


# links


@pytest.mark.parametrize(
    ("generation", "width", "gb_per_s"), [(1, 16, 4.0), (3, 16, 15.75), (5, 16, 63.0), (5, 8, 31.5)]
)
def test_a_link_carries_what_its_lanes_and_encoding_let_through(generation: int, width: int, gb_per_s: float) -> None:
    assert Link(generation=generation, width=width).bandwidth == pytest.approx(gb_per_s, abs=0.02)


def test_nccl_counts_links_by_a_table_of_its_own() -> None:
    counted = {g: Link(generation=g, width=16).nccl_bandwidth for g in (1, 2, 3, 4, 5, 6, 7)}
    assert counted == {1: 3, 2: 6, 3: 12, 4: 24, 5: 48, 6: 96, 7: 12}  # 7.0 is not in the table: as 3.0
    assert Link().nccl_bandwidth == 12
    assert Link(generation=1, width=8, max_generation=5, max_width=16).nccl_bandwidth == 48  # what both ends can do


@pytest.mark.parametrize(
    "fields", [{"width": 0}, {"width": 33}, {"generation": 0}, {"generation": 8}, {"max_width": -1}]
)
def test_links_that_cannot_be_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Link(**fields)


def test_a_width_without_a_rate_means_nothing_but_a_rate_without_lanes_is_a_fault() -> None:
    assert link_of("gpu", generation=None, width=0) == Link()
    with pytest.raises(InputError, match="gpu has a PCIe link of 0 lanes"):
        link_of("gpu", generation=5, width=0)


def test_fewer_lanes_are_a_fault_but_an_idle_gpu_may_be_slow() -> None:
    slow = Link(generation=1, width=16, max_generation=5, max_width=16)
    assert not gpu("a", "cpu0", link=slow).degraded
    assert Switch(id="a", link=slow).degraded
    assert gpu("a", "cpu0", link=Link(generation=5, width=8, max_generation=5, max_width=16)).degraded
    assert str(slow) == "Gen1 x16 of Gen5 x16"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3B:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("GPU0", None),
    ],
)
def test_bus_ids_have_one_form(text: str, told: str | None) -> None:
    assert bus_id(text) == told


# paths


def test_path_types_are_nvidias() -> None:
    topology = made(
        CPU,
        Cpu(id="cpu1", numa=1),
        HostBridge(id="h0", parent="cpu0"),
        HostBridge(id="h1", parent="cpu0"),
        Switch(id="s0", parent="h0"),
        Switch(id="s1", parent="s0"),
        gpu("g0", "s0", 0),
        gpu("g1", "s0", 1),
        gpu("g2", "s1", 2),
        gpu("g3", "h0", 3),
        gpu("g4", "h1", 4),
        gpu("g5", "cpu1", 5),
    )
    found = {number: path_type(topology, 0, number).value for number in range(1, 6)}
    assert found == {1: "PIX", 2: "PXB", 3: "PHB", 4: "NODE", 5: "SYS"}
    assert [[g.index for g in island] for island in islands(topology)] == [[0, 1, 2], [3], [4], [5]]
    assert [kind.nccl for kind in PathType] == ["NVL", "PIX", "PXB", "PHB", "PHB", "SYS"]


def test_without_host_bridges_a_path_is_not_claimed_to_be_known() -> None:
    topology = made(CPU, ONE, gpu("0000:02:00.0", "cpu0", 1))
    assert possible_paths(topology, 0, 1) == (PathType.PHB, PathType.NODE)
    half = made(CPU, HostBridge(id="h", parent="cpu0"), gpu("0000:01:00.0", "h"), gpu("0000:02:00.0", "cpu0", 1))
    assert possible_paths(half, 0, 1) == (PathType.PHB, PathType.NODE)
    lost = made(replace(CPU, several=True), ONE, gpu("0000:02:00.0", "cpu0", 1))
    assert possible_paths(lost, 0, 1) == (PathType.PHB, PathType.NODE, PathType.SYS)
    assert path_type(lost, 0, 1) is PathType.SYS


def test_nvlink_comes_before_pcie_directly_and_over_switches() -> None:
    direct = FabricLink(kind="nvlink", target="0000:02:00.0", count=4)
    switched = FabricLink(kind="nvlink", target="elsewhere", count=12, target_class="0x068000")
    other = gpu("0000:02:00.0", "cpu0", 1)
    assert path_type(made(CPU, replace(ONE, fabric=(direct,)), other), 0, 1) is PathType.NVL
    assert path_type(made(CPU, replace(ONE, fabric=(direct,)), other), 1, 0) is PathType.NVL
    both = made(CPU, replace(ONE, fabric=(switched,)), replace(other, fabric=(switched,)))
    assert path_type(both, 0, 1) is PathType.NVL
    assert [hop.kind for hop in path(both, 0, 1)] == ["fabric"]
    assert path_type(made(CPU, replace(ONE, fabric=(switched,)), other), 0, 1) is PathType.NODE


def test_a_path_is_the_links_on_the_way() -> None:
    topology = read_topology("8gpu-2switch-2socket-turin")
    hops = path(topology, 0, 7)
    assert [hop.kind for hop in hops] == ["pcie", "pcie", "inside", "sockets", "inside", "pcie", "pcie"]
    assert [hop.end for hop in hops[:-1]] == [hop.start for hop in hops[1:]]
    assert (hops[0].start, hops[-1].end) == (topology.gpu(0).id, topology.gpu(7).id)
    assert [round(hop.gb_per_s, 1) if hop.gb_per_s else None for hop in hops] == [63, 63, None, 36, None, 63, 63]
    assert [hop.kind for hop in path(topology, 0, 1)] == ["pcie", "pcie"]
    assert path(topology, 0, 0) == ()
    with pytest.raises(InputError, match="has no GPU 8"):
        path(topology, 0, 8)


# assumptions


def test_assumptions_fill_only_what_is_not_known_and_are_named() -> None:
    topology = parse_topology("GPU0 GPU1\nGPU0 X NODE\nGPU1 NODE X\n", name="two", source="here")
    filled = completed(topology, Assumptions(sm=90, generation=4, width=8))
    assert {str(gpu.link) for gpu in filled.gpus} == {"Gen4 x8"}
    assert [(cpu.numa, cpu.vendor, cpu.family) for cpu in filled.cpus] == [(0, "AuthenticAMD", 26)]
    assert [text for text in filled.unknown if text.startswith("assumed")] == [
        "assumed where not known: CPUs are AuthenticAMD of family 26, model 2",
        "assumed where not known: links are Gen4 x8",
        "assumed where not known: GPUs are sm_90",
    ]


def test_what_is_known_is_left_alone() -> None:
    known = parse_topology(fake_xml(), name="known", source="here")
    known = replace(known, nodes=tuple(n for n in known.nodes if not n.id.startswith("cpu1-nic")))
    assert completed(known, Assumptions()) == known


def test_an_intel_cpu_of_unknown_model_stays_one() -> None:
    filled = completed(made(replace(CPU, vendor="GenuineIntel"), ONE), Assumptions())
    assert (filled.cpus[0].vendor, filled.cpus[0].family, filled.cpus[0].model) == ("GenuineIntel", 6, 207)


# any kind


def test_the_reference_nodes_are_what_their_names_say() -> None:
    shapes = {name: [len(island) for island in islands(read_topology(name))] for name in reference_names()}
    assert shapes == {
        "2gpu": [1, 1],
        "4gpu-1switch": [4],
        "8gpu-2switch-1socket": [4, 4],
        "8gpu-2switch-2socket-turin": [4, 4],
        "8gpu-4virtual-switch-broadcom": [2, 2, 2, 2],
        "8gpu-direct-2socket": [1] * 8,
    }
    assert {name: len(read_topology(name).cpus) for name in shapes if "2socket" in name or "broadcom" in name} == {
        "8gpu-2switch-2socket-turin": 2, "8gpu-4virtual-switch-broadcom": 2, "8gpu-direct-2socket": 2,
    }  # fmt: skip


def test_reference_nodes_leave_nothing_open_that_the_search_needs() -> None:
    for name in reference_names():
        topology = read_topology(name)
        assert completed(topology, Assumptions()) == topology
        assert {gpu.sm for gpu in topology.gpus} == {120}


@pytest.mark.parametrize("name", ["9gpu", "", "x" * 10_000, "\x00"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_topology(name)
    assert "8gpu-direct-2socket" in caught.value.expected


@pytest.mark.parametrize(
    "text", ["", "hello", "[1, 2]", "{}", "<html></html>", "<", "{", "cpus: 1", "a: [b", "\x00\x01"]
)
def test_foreign_texts_are_refused_in_words(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_topology(text, name="odd", source="odd.txt")
    assert "odd.txt" in caught.value.what


def test_a_file_of_megabytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge.xml"
    file.write_text("<system>" + " " * (5 << 20))
    with pytest.raises(InputError, match="larger than"):
        read_topology(str(file))


def test_any_path_that_a_file_may_have_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "a\n\x1b[31m" / ("x" * 200) / ("y" * 200 + ".xml")
    file.parent.mkdir(parents=True)
    file.write_text(fake_xml())
    topology = read_topology(str(file))
    assert topology.name == "y" * 200
    assert topology.source.isprintable()


def test_a_path_is_read_by_its_content(tmp_path: Path) -> None:
    for number, text in enumerate((FAKE_YAML, fake_xml())):
        file = tmp_path / f"{number}.odd"
        file.write_text(text)
        assert len(read_topology(str(file)).gpus) == 3
