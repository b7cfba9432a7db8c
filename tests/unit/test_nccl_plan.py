from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lanewise.errors import InputError, LanewiseError
from tuning import nccl_plan
from tuning.nccl_graph import Graph, read_graphs
from tuning.nccl_library import find_nccl
from tuning.nccl_plan import NcclPlan, changes, make_plan, repair_graph
from tuning.nccl_plan_view import document, show
from tuning.nccl_repair import repaired
from tuning.nccl_search import SearchResult, SearchStatus
from tuning.nccl_transport import p2p_level, transports
from tuning.topology import Topology
from tuning.topology_links import Link
from tuning.topology_nodes import Gpu
from tuning.topology_read import read_topology, reference_names

TURIN = "8gpu-2switch-2socket-turin"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "nccl"
ORDER = tuple(range(8))


def graph(number: int, gb_s: float, channels: int, kind: str = "SYS") -> Graph:
    return Graph(
        id=number,
        pattern=(4, 1)[number],
        gb_s=gb_s,
        gb_s_net=gb_s,
        type=kind,
        type_net="PIX",
        same_channels=True,
        channels=(ORDER,) * channels,
    )


def found(ring: Graph, tree: Graph, p2p: set[tuple[int, int]] = frozenset(), release: str = "2.30.7") -> SearchResult:
    status = SearchStatus.FELL_BACK if ring.failed or tree.failed else SearchStatus.FOUND
    return SearchResult(release=release, status=status, graphs=(ring, tree), p2p=frozenset(p2p))


FAILED = found(graph(0, 0.1, 1), graph(1, 0.1, 1))
HEALTHY = found(graph(0, 24, 2, "PHB"), graph(1, 24, 2, "PHB"))
ISLANDS = {(a, b) for half in (range(4), range(4, 8)) for a in half for b in half if b < a}
ALL = {(a, b) for a in range(8) for b in range(a)}


@pytest.fixture
def fake_search(tmp_path: Path, monkeypatch):
    """A search that answers as NCCL up to 2.30 does on dual Turin; the library's name may ask for something else."""

    def run(library: Path, topology_xml: str, *, settings) -> SearchResult:
        assert topology_xml.count("<gpu ") == 8
        if "crashes" in library.name:
            return SearchResult(
                release="2.29.7", status=SearchStatus.CRASHED, reason="ended by SIGSEGV, in step 'compute'"
            )
        pairs = ALL if settings.get("NCCL_P2P_LEVEL") in ("SYS", "5") else ISLANDS
        if settings.get("NCCL_P2P_DISABLE") == "1":
            pairs = set()
        if file := settings.get("NCCL_GRAPH_FILE"):
            ring, tree = read_graphs(Path(file).read_text(), where="given")
            return found(ring, tree, pairs)
        if "healthy" in library.name:
            return replace(HEALTHY, release="2.32.3", p2p=frozenset(pairs))
        return replace(FAILED, p2p=frozenset(pairs))

    monkeypatch.setattr(nccl_plan, "run_search", run)
    for name in ("turin.so", "healthy.so", "crashes.so"):
        (tmp_path / name).touch()
    return lambda name="turin.so", **options: make_plan(
        read_topology(TURIN), nccl=str(tmp_path / name), cache=tmp_path, **options
    )


def text(plan: NcclPlan, width: int = 250) -> str:
    out = io.StringIO()
    Console(file=out, width=width, soft_wrap=True).print(show(plan))
    return out.getvalue()


def numbers(text: str) -> Counter[str]:
    return Counter(word for word in text.split() if re.fullmatch(r"[(\d.,)!-]{2,}", word))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_no_price_is_shortened_on_a_narrow_console(fake_search, width: int) -> None:
    plan = fake_search()
    shown = text(plan, width)
    assert "\u2026" not in shown
    assert numbers(shown) >= numbers(text(plan))
    tables = [line for line in shown.splitlines() if line.startswith(("bytes", "instead", "repaired", "1,024"))]
    assert all(len(line) <= max(width, 80) for line in tables)


def test_a_failed_search_is_planned_with_what_would_repair_it(fake_search, tmp_path: Path) -> None:
    plan = fake_search(others=[str(tmp_path / "healthy.so"), str(tmp_path / "crashes.so")])
    assert plan.base.failed
    assert [outcome.label for outcome in plan.alternatives] == [
        "NCCL_P2P_LEVEL=SYS", "repaired graph file", "healthy", "crashes",
    ]  # fmt: skip
    assert [outcome.failed for outcome in plan.alternatives] == [True, False, False, True]
    base, repaired_file = plan.base, plan.alternatives[1]
    at = plan.sizes.index(43_008)
    assert str(base.choices[at].cell) == "Ring Simple"
    assert str(repaired_file.choices[at].cell) == "Ring LL"
    assert "43,008 B: Ring Simple, 2 ch -> Ring LL, 1 ch" in changes(base, repaired_file)
    assert "/tmp" not in json.dumps(document(plan)), "the graph file's passing place is nobody's business"


def test_levels_that_change_nothing_are_left_out(fake_search) -> None:
    labels = [outcome.label for outcome in fake_search("healthy.so").alternatives]
    assert labels == ["NCCL_P2P_LEVEL=SYS"]
    assert fake_search("healthy.so", settings={"NCCL_P2P_LEVEL": "SYS"}).alternatives[0].label == "NCCL_P2P_LEVEL=PXB"


def test_without_p2p_both_levels_are_alternatives(fake_search) -> None:
    plan = fake_search("healthy.so", settings={"NCCL_P2P_DISABLE": "1"})
    assert [outcome.label for outcome in plan.alternatives] == ["NCCL_P2P_LEVEL=PXB", "NCCL_P2P_LEVEL=SYS"]
    assert changes(plan.base, plan.alternatives[1]) == ("P2P pairs 0 -> 28 of 28",)


def test_another_order_of_the_same_ring_is_a_change(fake_search) -> None:
    base = fake_search("healthy.so").base
    ring, tree = base.search.graphs
    turned = replace(base.search, graphs=(replace(ring, channels=(ORDER[::-1],) * 2), tree))
    assert changes(base, replace(base, search=turned)) == ("ring in another order",)
    assert changes(base, base) == ()


def test_a_crash_of_the_planned_library_is_shown_not_raised(fake_search) -> None:
    plan = fake_search("crashes.so")
    assert plan.base.failed
    assert plan.base.choices == (None,) * len(plan.sizes)
    assert "ended by SIGSEGV" in text(plan)
    assert document(plan)["base"]["ring"] is None


def test_both_views_tell_the_same_and_say_that_it_is_predicted(fake_search) -> None:
    plan = fake_search(settings={"NCCL_LL_THRESHOLD": "1", "NCCL_NET": "x"})
    shown, told = text(plan), document(plan)
    assert told["predicted"] is True
    assert "predicted" in shown
    assert "search fell back; ring 1 x 0.1 SYS, tree 1 x 0.1 SYS" in shown
    assert "16 pairs through host memory (SHM): SYS is beyond PXB (default)" in shown
    assert "NCCL_LL_THRESHOLD is '1': no effect" in shown
    assert "not looked at: NCCL_LL_THRESHOLD, NCCL_NET" in told["notes"]
    assert told["base"]["crossovers"] == [
        {"from_bytes": 256, "takes": "Ring LL"}, {"from_bytes": 3863, "takes": "Ring Simple"},
    ]  # fmt: skip
    assert json.loads(json.dumps(told)) == told


def test_the_repair_is_a_graph_file_around_the_islands(fake_search) -> None:
    ring, tree = read_graphs(repair_graph(fake_search()), where="x")
    assert (str(ring), str(tree)) == ("2 x 24 PHB", "2 x 24 PHB")
    assert ring.channels == (ORDER, ORDER)
    assert (ring.id, ring.pattern, tree.id, tree.pattern) == (0, 4, 1, 1)


def test_a_ring_visits_an_island_once_however_gpus_are_numbered() -> None:
    node = read_topology(TURIN)
    mixed = {gpu.id: number for gpu, number in zip(node.gpus, (0, 2, 4, 6, 1, 3, 5, 7), strict=True)}
    nodes = tuple(
        replace(n, index=mixed[n.id], rank=mixed[n.id]) if isinstance(n, Gpu) else n for n in node.nodes
    )  # fmt: skip
    ring, _ = read_graphs(repaired(replace(node, nodes=nodes), FAILED), where="x")
    assert ring.channels[0] == (0, 2, 4, 6, 1, 3, 5, 7)


def with_links(node: Topology, link: Link) -> Topology:
    return replace(node, nodes=tuple(replace(n, link=link) if isinstance(n, Gpu) else n for n in node.nodes))


def test_narrow_links_bound_the_repaired_speed() -> None:
    narrow = with_links(read_topology(TURIN), Link(generation=4, width=16))
    assert str(read_graphs(repaired(narrow, FAILED), where="x")[0]) == "2 x 12 PHB"


def test_a_graph_file_does_not_hide_links_that_idle() -> None:
    with pytest.raises(InputError, match="Gen1 x16") as refused:
        repaired(with_links(read_topology(TURIN), Link(generation=1, width=16)), FAILED)
    assert "wake the GPUs" in refused.value.todo


def test_a_sound_search_has_nothing_to_repair(fake_search) -> None:
    plan = fake_search("healthy.so")
    assert plan.repair == ""
    with pytest.raises(InputError, match="finds its rings"):
        repair_graph(plan)


@pytest.mark.parametrize(
    ("name", "settings", "level"),
    [
        (TURIN, {}, "PXB"),
        ("2gpu", {}, "SYS"),
        (TURIN, {"NCCL_P2P_LEVEL": "SYS"}, "SYS"),
        (TURIN, {"NCCL_P2P_LEVEL": "3"}, "PHB"),
        (TURIN, {"NCCL_P2P_LEVEL": "sys"}, "PXB"),
        (TURIN, {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, "LOC"),
        (TURIN, {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "0"}, "SYS"),
    ],
)
def test_the_level_in_force_follows_settings_vendor_and_number_of_gpus(name: str, settings, level: str) -> None:
    assert p2p_level(read_topology(name), settings)[0] == level


def test_two_gpus_on_intel_get_no_more_than_switches() -> None:
    node = read_topology("2gpu")
    cpus = tuple(replace(n, vendor="GenuineIntel") if n in node.cpus else n for n in node.nodes)
    assert p2p_level(replace(node, nodes=cpus), {})[0] == "PXB"


def test_a_pair_without_p2p_goes_through_host_memory_whatever_the_level() -> None:
    node = replace(read_topology(TURIN), p2p={(1, 0): "CNS", (0, 2): "U", (0, 3): "OK"})
    pairs = {pair.gpus: pair for pair in transports(node, {}, replace(HEALTHY, p2p=frozenset(ISLANDS)))}
    assert [pairs[0, n].p2p for n in (1, 2, 3, 4)] == [False, True, True, False]
    assert "CNS" in pairs[0, 1].why
    assert (pairs[0, 1].path, pairs[0, 4].path) == ("PIX", "SYS")


def test_where_nccl_contradicts_the_rule_its_word_counts() -> None:
    node = read_topology(TURIN)
    first = transports(node, {}, replace(HEALTHY, p2p=frozenset()))[0]
    assert not first.p2p
    assert first.why.startswith("NCCL's own word; PIX is within PXB")


@pytest.mark.parametrize("sizes", [(), (0,), (-1,), (1 << 60,), tuple(range(1, 100))])
def test_sizes_that_cannot_be_meant_are_refused(fake_search, sizes) -> None:
    with pytest.raises(InputError, match="sizes are"):
        fake_search(sizes=sizes)


def test_one_gpu_has_nothing_to_plan(tmp_path: Path) -> None:
    node = read_topology("2gpu")
    alone = replace(node, nodes=tuple(n for n in node.nodes if n != node.gpus[1]))
    with pytest.raises(InputError, match="has 1 GPUs"):
        make_plan(alone, nccl="cu13-2.30.7", cache=tmp_path)


@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", reference_names())
def test_real_plans_agree_with_the_rules_and_repair_what_fails(name: str) -> None:
    """NCCL's own word on every pair is that of `p2p_level`; and NCCL takes the repairing file."""
    try:
        find_nccl("cu13-2.30.7", CACHE)
    except LanewiseError as error:
        pytest.skip(f"no wheel: {error.what}")
    plan = make_plan(read_topology(name), nccl="cu13-2.30.7", cache=CACHE)
    for outcome in (plan.base, *plan.alternatives):
        for pair in outcome.transports:
            assert "own word" not in pair.why, (outcome.label, pair)
            assert pair.p2p == (" within " in pair.why), (outcome.label, pair)
    assert plan.base.failed == bool(plan.repair)
    if plan.repair:
        (mended,) = [outcome for outcome in plan.alternatives if outcome.label == "repaired graph file"]
        assert not mended.failed
        assert mended.search.graphs == read_graphs(plan.repair, where="x")
        assert str(mended.choices[plan.sizes.index(43_008)].cell) == "Ring LL"
