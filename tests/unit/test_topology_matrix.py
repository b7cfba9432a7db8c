from __future__ import annotations

from pathlib import Path

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import FAKE_LSPCI_TREE, block_cells, fake_lspci, fake_xml, lspci_link, matrix
from tuning.topology import Topology
from tuning.topology_paths import islands, path_type, possible_paths
from tuning.topology_read import parse_topology, read_topology


def read(text: str) -> Topology:
    return parse_topology(text, name="fake", source="topo.txt")


def shape(topology: Topology) -> list[list[int]]:
    return [[gpu.index for gpu in island] for island in islands(topology)]


def cells_of(topology: Topology) -> list[list[str]]:
    order = [gpu.index for gpu in topology.gpus]
    return [["X" if a == b else path_type(topology, a, b).value for b in order] for a in order]


MIXED = [
    ["X", "PIX", "PXB", "PHB", "NODE", "SYS"],
    ["PIX", "X", "PXB", "PHB", "NODE", "SYS"],
    ["PXB", "PXB", "X", "PHB", "NODE", "SYS"],
    ["PHB", "PHB", "PHB", "X", "NODE", "SYS"],
    ["NODE", "NODE", "NODE", "NODE", "X", "SYS"],
    ["SYS", "SYS", "SYS", "SYS", "SYS", "X"],
]


@pytest.mark.parametrize("tabs", [True, False])
@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("numa", [None, [0, 0, 0, 0, 0, 1]])
def test_the_tree_has_the_matrix_that_it_was_made_of(numa: list[int] | None, ansi: bool, tabs: bool) -> None:
    topology = read(matrix(MIXED, numa, ansi=ansi, tabs=tabs))
    assert cells_of(topology) == MIXED
    assert shape(topology) == [[0, 1, 2], [3], [4], [5]]


def test_gpus_that_are_pxb_have_switches_of_their_own_below_a_common_one() -> None:
    topology = read(matrix(block_cells([1, 1], "PIX", "PXB")))
    assert cells_of(topology) == [["X", "PXB"], ["PXB", "X"]]
    assert any("PXB" in text for text in topology.unknown)


def test_sixteen_gpus_have_labels_of_two_digits() -> None:
    topology = read(matrix(block_cells([2] * 8, "PIX", "NODE"), [0] * 16, ansi=True))
    assert shape(topology) == [[n, n + 1] for n in range(0, 16, 2)]
    assert [cpu.numa for cpu in topology.cpus] == [0]


def test_prompts_legends_and_old_names_are_no_obstacle() -> None:
    text = "$ nvidia-smi topo -m\r\n" + matrix(block_cells([1, 1], "PIX", "SOC")).replace("\n", "\r\n")
    assert cells_of(read(text)) == [["X", "SYS"], ["SYS", "X"]]


def test_numa_nodes_come_from_either_way_of_writing_them() -> None:
    text = "GPU0 GPU1\nGPU0 X SYS NUMA 0\nGPU1 SYS X NUMA 3\n"
    assert [cpu.id for cpu in read(text).cpus] == ["cpu0", "cpu3"]


def test_network_cards_are_placed_too() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\tX\tSYS\tPIX\t0-7\t0\nGPU1\tSYS\tX\tSYS\t8-15\t1\nmlx5_0\tPIX\tSYS\tX\t\t\n"
    )
    topology = read(text)
    assert topology.by_id["mlx5_0"].parent == topology.gpu(0).parent
    assert shape(topology) == [[0], [1]]


def test_nvlink_hides_pcie_and_the_tree_says_so() -> None:
    pairs = [["X", "NV12", "SYS"], ["NV12", "X", "SYS"], ["SYS", "SYS", "X"]]
    topology = read(matrix(pairs, [0, 0, 1]))
    assert cells_of(topology) == [["X", "NVL", "SYS"], ["NVL", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert [(link.target, link.count) for link in topology.gpu(0).fabric] == [("GPU1", 12)]
    assert any("NVLink" in text for text in topology.unknown)


def test_more_nvlinks_than_a_gpu_has_are_those_of_an_nvswitch() -> None:
    topology = read(matrix(block_cells([8], "NV12", ""), [0] * 4 + [1] * 4))
    assert {link.target_class for gpu in topology.gpus for link in gpu.fabric} == {"0x068000"}
    assert cells_of(topology)[0][1:] == ["NVL"] * 7
    assert [cpu.numa for cpu in topology.cpus] == [0, 1]


def test_gpus_that_only_nvlink_joins_may_be_on_any_cpu() -> None:
    topology = read("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV2 0-23 N/A\nGPU1 NV2 X 0-23 N/A\n")
    assert [cpu.several for cpu in topology.cpus] == [True]


def test_a_matrix_says_what_it_cannot_know() -> None:
    said = " ".join(read(matrix(block_cells([4, 4], "PIX", "NODE"))).unknown)
    for word in ("bus ids", "link rates", "ACS", "share a root port", "P2P", "NUMA"):
        assert word in said


def test_p2p_state_is_taken_from_the_same_text() -> None:
    states = matrix([["X", "OK"], ["CNS", "X"]])
    topology = read(matrix([["X", "PHB"], ["PHB", "X"]]) + states)
    assert topology.p2p == {(0, 1): "OK", (1, 0): "CNS"}
    assert not any("P2P" in text for text in topology.unknown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (matrix([["X", "OK"], ["OK", "X"]]), "only the P2P state"),
        ("GPU0\nGPU0 X\n\nLegend:\n  OK = Status Ok\n", "only the P2P state"),
        (matrix(MIXED) + matrix(MIXED), "2 matrices"),
        ("\n".join(matrix(MIXED).splitlines()[:4]), "row GPU3 is missing"),
        (matrix(MIXED)[:60], "is cut"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n", "row GPU0 has 1 of 2 cells"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 NODE X\n", "GPU0 to GPU1 is PIX, GPU1 to GPU0 is NODE"),
        ("GPU0 GPU1\nGPU0 X PIG\nGPU1 PIX X\n", "'PIG' between GPU0 and GPU1"),
        ("GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X\n", "'PIX' between GPU0 and GPU0"),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", "'X' between GPU0 and GPU1"),
        ("GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n", "'NV0'"),
        ("GPU0 GPU1\nGPU0 X OK\nGPU1 PIX X\n", "contradicts itself"),
        ("GPU0 GPU0\nGPU0 X PIX\nGPU0 PIX X\n", "header of 2 labels"),
        (matrix([["X", "PIX", "SYS"], ["PIX", "X", "PIX"], ["SYS", "PIX", "X"]]), "GPU0 and GPU2 are SYS"),
        (
            matrix([["X", "PIX", "PHB"], ["PIX", "X", "PIX"], ["PHB", "PIX", "X"]]),
            "are PHB, but others join them by PIX",
        ),
        (matrix([["X", "PIX"], ["PIX", "X"]], [0, 1]), "devices of NUMA nodes [0, 1]"),
        (matrix([["X", "SYS"], ["SYS", "X"]], [0, 0]), "SYS, but on the same NUMA node"),
    ],
)
def test_what_is_cut_or_contradicts_itself_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert said in caught.value.what


# with lspci


def both(tmp_path: Path, topo: str, lspci: str) -> Topology:
    (tmp_path / "topo").write_text(topo)
    (tmp_path / "lspci").write_text(lspci)
    return read_topology(str(tmp_path / "topo"), lspci=str(tmp_path / "lspci"))


PAIRS = [["X", "PIX", "SYS", "SYS"], ["PIX", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "PIX"], ["SYS", "SYS", "PIX", "X"]]


def test_lspci_adds_links_and_ports_to_a_matrix(tmp_path: Path) -> None:
    topology = both(tmp_path, matrix(PAIRS, [0, 0, 1, 1]) + matrix(block_cells([4], "OK", "")), fake_lspci())
    assert str(topology.gpu(0).link) == "Gen5 x16"
    assert topology.gpu(0).port == "0000:02:00.0"
    assert set(topology.p2p.values()) == {"OK"}
    assert topology.unknown == ("the CPUs' models and compute capability, which lspci does not show",)
    assert cells_of(topology) == PAIRS


def test_the_matrix_tells_numa_nodes_that_lspci_does_not(tmp_path: Path) -> None:
    without = parse_topology(fake_lspci(numa=False), name="x", source="x")
    assert [path.value for path in possible_paths(without, 0, 2)] == ["NODE", "SYS"]
    topology = both(tmp_path, matrix(PAIRS, [0, 0, 1, 1]), fake_lspci(numa=False))
    assert [(cpu.id, cpu.several) for cpu in topology.cpus] == [("cpu0", False), ("cpu1", False)]
    assert any("which CPU" in text for text in without.unknown)
    assert not any("which CPU" in text for text in topology.unknown)
    assert cells_of(topology) == PAIRS


def test_nvlinks_of_the_matrix_are_put_between_the_gpus_of_lspci(tmp_path: Path) -> None:
    cells = [[cell.replace("PIX", "NV4") for cell in row] for row in PAIRS]
    topology = both(tmp_path, matrix(cells, [0, 0, 1, 1]), fake_lspci())
    assert [(link.target, link.count) for link in topology.gpu(0).fabric] == [(topology.gpu(1).id, 4)]


@pytest.mark.parametrize(
    ("topo", "lspci", "said"),
    [
        (matrix(block_cells([1, 1], "PIX", "SYS")), fake_lspci(), "shows 2 GPUs, [0, 1], the other 4"),
        (matrix(block_cells([4], "PIX", "")), fake_lspci(), "are PIX in the one and SYS in the other"),
        (matrix(PAIRS).replace("GPU3", "GPU7"), fake_lspci(), "[0, 1, 2, 7]"),
        (fake_xml(), fake_lspci(), "needs no lspci"),
        (matrix(PAIRS), FAKE_LSPCI_TREE, "shows 4 GPUs, [0, 1, 2, 3], the other 3"),
    ],
)
def test_files_of_different_nodes_are_refused(tmp_path: Path, topo: str, lspci: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        both(tmp_path, topo, lspci)
    assert said in caught.value.what


def test_idle_and_narrow_links_of_lspci_are_told_apart(tmp_path: Path) -> None:
    links = (lspci_link("2.5GT/s (downgraded)"), lspci_link(width=8), lspci_link(), lspci_link("unknown", 0))
    topology = both(tmp_path, matrix(PAIRS, [0, 0, 1, 1]), fake_lspci(gpu_links=links))
    assert [gpu.degraded for gpu in topology.gpus] == [False, True, False, False]
    assert topology.gpu(0).link.slowed
    assert topology.gpu(3).link.generation is None
