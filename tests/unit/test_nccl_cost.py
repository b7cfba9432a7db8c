from __future__ import annotations

import pytest

from lanewise.errors import InputError
from tuning.nccl_constants import RELEASES
from tuning.nccl_cost import CostModel, cost_model
from tuning.nccl_graph import Graph
from tuning.nccl_search import KNOWN
from tuning.nccl_values import ALGORITHMS, PROTOCOLS, as_integer, level_of, parse_choice

LL128_TOO = {"NCCL_PROTO": "LL,LL128,Simple"}


def graph(channels: int, gb_s: float, kind: str = "PHB", *, ranks: int = 8, pattern: int = 4) -> Graph:
    order = tuple(range(ranks))
    return Graph(
        id=0 if pattern == 4 else 1,
        pattern=pattern,
        gb_s=gb_s,
        gb_s_net=gb_s,
        type=kind,
        type_net="PIX",
        same_channels=True,
        channels=(order,) * channels,
    )


def model(
    ring: Graph, tree: Graph, *, release: str = "2.30.7", ranks: int = 8, sm: int = 120, **settings: str
) -> CostModel:
    return cost_model(ring, tree, release=release, ranks=ranks, sm=sm, settings=settings)


def prices(of: CostModel, size: int) -> dict[str, float]:
    return {str(cell): round(cell.time_us(size), 1) for cell in of.cells}


def h200(release: str = "2.28.9", **settings: str) -> CostModel:
    """Two H200 on a topology file without NVLink, as NCCL 2.28.9 searched it there."""
    return model(graph(2, 20, ranks=2), graph(2, 40, ranks=2, pattern=1), release=release, ranks=2, sm=90, **settings)


def test_every_release_that_can_be_searched_has_prices() -> None:
    assert set(RELEASES) == set(KNOWN)


def test_latencies_and_bandwidths_are_those_of_nccls_own_table() -> None:
    """NCCL 2.28.9's TUNING log of two H200: on a PCIe topology with LL128 allowed, then over NVLink."""
    pcie = [(round(cell.latency_us, 1), round(cell.gb_s, 1)) for cell in h200().cells]
    assert pcie == [(8.8, 9.7), (17.8, 28.6), (16.4, 36.8), (8.6, 20.0), (19.0, 36.8), (19.8, 40.0)]
    nvlink = model(
        graph(12, 30, "NVL", ranks=2), graph(12, 60, "NVL", ranks=2, pattern=1), release="2.28.9", ranks=2, sm=90
    )  # fmt: skip
    table = [(round(cell.latency_us, 1), round(cell.gb_s, 1)) for cell in nvlink.cells]
    assert table == [(8.0, 61.1), (16.5, 180.6), (16.4, 232.2), (7.8, 141.0), (17.8, 331.2), (15.2, 360.0)]
    assert not any(cell.barred for cell in nvlink.cells)


@pytest.mark.parametrize(
    ("settings", "size", "choice"),
    [
        ({}, 1024, ("Ring LL", 1)),
        ({}, 14_336, ("Ring LL", 1)),
        ({}, 43_008, ("Ring LL", 4)),
        ({}, 262_144, ("Ring LL", 4)),
        ({}, 1 << 20, ("Ring Simple", 4)),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 64 10 8 64", "NCCL_MIN_NCHANNELS": "16"}, 43_008, ("Ring LL", 7)),
        ({"NCCL_ALGO": "allreduce:tree"}, 43_008, ("Tree LL", 4)),
        ({"NCCL_MAX_NCHANNELS": "1"}, 1 << 20, ("Ring Simple", 1)),
    ],
)
def test_choices_are_those_of_nccls_log(settings: dict[str, str], size: int, choice: tuple[str, int]) -> None:
    """NCCL 2.28.9's TUNING log, "N Bytes -> Algo .. proto .. channel{Lo..Hi}": two H200 on a PCIe topology."""
    taken = h200(**settings).choose(size)
    assert taken
    assert (str(taken.cell), taken.channels) == choice


@pytest.mark.parametrize(("threshold", "channels"), [("16", 5), ("10", 7), ("6", 11)])
def test_channels_follow_both_rules_as_measured(threshold: str, channels: int) -> None:
    """docs/findings.md, "NCCL_THREAD_THRESHOLDS helps at 43,008 B": two H200 over NVLink, 24 channels."""
    ring, tree = graph(12, 30, "NVL", ranks=2), graph(12, 60, "NVL", ranks=2, pattern=1)
    settings = {"NCCL_THREAD_THRESHOLDS": f"8 8 64 {threshold} 8 64"}
    choice = model(ring, tree, release="2.28.9", ranks=2, sm=90, **settings).choose(43_008)
    assert choice
    assert choice.channels == channels


def test_prices_of_a_healthy_node_of_eight() -> None:
    healthy = model(graph(2, 24), graph(2, 24, pattern=1), **LL128_TOO)
    assert list(prices(healthy, 43_008).values()) == [31.4, 44.2, 67.6, 23.7, 50.7, 89.8]
    choice = healthy.choose(43_008)
    assert choice
    assert choice.channels == 1, "8 ranks x 8 B x 512 threads a channel leave one"


def test_a_failed_search_turns_ll_into_simple_from_4_kb_on() -> None:
    failed = model(graph(1, 0.1, "SYS"), graph(1, 0.1, "SYS", pattern=1))
    assert prices(failed, 43_008)["Ring Simple"] == 840.8
    assert [(size, str(cell)) for size, cell in failed.crossovers()] == [(256, "Ring LL"), (3863, "Ring Simple")]


def test_a_crossover_is_the_first_byte_of_the_new_choice() -> None:
    healthy = model(graph(2, 24), graph(2, 24, pattern=1))
    ((_, small), (size, large)) = healthy.crossovers()
    before, after = healthy.choose(size - 1), healthy.choose(size)
    assert before
    assert after
    assert (before.cell, after.cell) == (small, large)
    assert 1_850_000 < size < 1_860_000


def test_channels_are_what_ring_and_tree_have_in_common_doubled_and_bounded() -> None:
    def channels(ring: int, tree: int, **settings: str) -> int:
        return model(graph(ring, 15, "SYS"), graph(tree, 15, pattern=1), **settings).channels

    assert channels(2, 1) == 2
    assert channels(2, 2, NCCL_MAX_NCHANNELS="3") == 3
    assert channels(2, 2, NCCL_MIN_NCHANNELS="8") == 8
    assert channels(2, 2, NCCL_MAX_CTAS="2", NCCL_MIN_CTAS="3") == 3, "bounded from above, then from below"
    assert channels(2, 2, NCCL_MIN_NCHANNELS="1000") == 64


def test_ll128_needs_nvlink_unless_named() -> None:
    def barred(kind: str, **settings: str) -> list[str]:
        return [str(c) for c in model(graph(2, 24, kind), graph(2, 24, kind, pattern=1), **settings).cells if c.barred]

    assert barred("PIX") == ["Tree LL128", "Ring LL128"]
    assert barred("NVB") == []
    assert barred("PIX", NCCL_PROTO="^LL") == ["Tree LL", "Ring LL"], "excluding one names the others"
    assert barred("PIX", NCCL_ALGO="Ring") == ["Tree LL", "Tree LL128", "Tree Simple", "Ring LL128"]


def test_where_everything_is_barred_nothing_is_chosen() -> None:
    barred = model(graph(2, 24), graph(2, 24, pattern=1), NCCL_ALGO="NVLS")
    assert barred.choose(1024) is None
    assert barred.crossovers() == ()


def test_a_plain_tree_costs_more_than_a_balanced_one() -> None:
    plain, balanced = (model(graph(2, 24), graph(2, 24, pattern=pattern)) for pattern in (3, 1))
    ratio = plain.cells[0].gb_s / balanced.cells[0].gb_s
    assert ratio == pytest.approx(0.85)


def test_releases_differ_in_their_caps() -> None:
    wide = graph(1, 90, "NVL"), graph(1, 90, "NVL", pattern=1)
    assert [round(model(*wide, release=r).cells[2].gb_s, 1) for r in ("2.26.2", "2.30.7")] == [38.7, 35.0]
    assert [round(model(*wide, release=r).cells[4].gb_s, 1) for r in ("2.28.9", "2.30.7")] == [41.9, 22.9]


def test_sizes_below_64_bytes_and_above_the_table_are_priced_without_correction() -> None:
    tree = model(graph(2, 24), graph(2, 24, pattern=1)).cells[2]
    for size in (1, 63, 1 << 29, 1 << 40):
        assert tree.time_us(size) == pytest.approx(tree.latency_us + size / (1000 * tree.gb_s))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"NCCL_ALGO": "Rings"}, "NCCL_ALGO='Rings'"),
        ({"NCCL_PROTO": "LL;Simple"}, "NCCL_PROTO='LL;Simple'"),
        ({"NCCL_MIN_NCHANNELS": "many"}, "NCCL_MIN_NCHANNELS is 'many'"),
        ({"NCCL_THREAD_THRESHOLDS": "8 8 x"}, "'x'"),
    ],
)
def test_settings_that_nccl_refuses_are_errors(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as refused:
        model(graph(2, 24), graph(2, 24, pattern=1), **settings)
    assert says in refused.value.what


def test_an_unknown_release_has_no_prices() -> None:
    with pytest.raises(InputError, match=r"2\.99\.1"):
        model(graph(2, 24), graph(2, 24, pattern=1), release="2.99.1")


@pytest.mark.parametrize(
    ("value", "allreduce", "broadcast"),
    [
        ("Tree", {"Tree"}, {"Tree"}),
        ("ring,TREE", {"Ring", "Tree"}, {"Ring", "Tree"}),
        ("ring;allreduce:tree", {"Tree"}, {"Ring"}),
        ("allreduce:^tree", set(ALGORITHMS) - {"Tree"}, None),
        (";;broadcast:ring", None, {"Ring"}),
        ("", None, None),
    ],
)
def test_lists_are_read_as_nccl_reads_them(value: str, allreduce: set[str] | None, broadcast: set[str] | None) -> None:
    chosen = parse_choice("NCCL_ALGO", value, ALGORITHMS)
    assert (chosen.get("AllReduce"), chosen.get("Broadcast")) == (allreduce, broadcast)


@pytest.mark.parametrize("value", ["LL3", "allreduce:LL3", "gather:LL", "LL;LL128", "LL, Simple"])
def test_lists_that_nccl_refuses_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="NCCL refuses"):
        parse_choice("NCCL_PROTO", value, PROTOCOLS)


@pytest.mark.parametrize(
    ("value", "number"),
    [("8", 8), (" -2", -2), ("0x10", 16), ("010", 8), ("4M", 4), ("true", None), ("", None), ("09", 0), ("0", 0)],
)
def test_numbers_are_read_as_strtoll_reads_them(value: str, number: int | None) -> None:
    assert as_integer(value) == number


@pytest.mark.parametrize(
    ("value", "level"),
    [("SYS", "SYS"), ("sys", None), ("", None), ("0", "LOC"), ("2", "PXB"), ("3", "PHB"), ("5", "SYS"), ("0x2", "PXB")],
)
def test_levels_are_names_in_capitals_or_old_numbers(value: str, level: str | None) -> None:
    assert level_of(value) == level
