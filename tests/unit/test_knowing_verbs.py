from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from lanewise.errors import ExitCode
from tuning import knowing_verbs, nccl_plan
from tuning.knowing_verbs import nccl_plan_verb, topology, verdicts
from tuning.nccl_graph import Graph, read_graphs
from tuning.nccl_plan import make_plan
from tuning.nccl_reading import reading
from tuning.nccl_search import SearchResult, SearchStatus
from tuning.topology_read import read_topology, reference_names

TURIN, ONE_SOCKET = "8gpu-2switch-2socket-turin", "8gpu-2switch-1socket"
ORDER = tuple(range(8))
ISLANDS = frozenset((a, b) for half in (range(4), range(4, 8)) for a in half for b in half if b < a)
ALL = frozenset((a, b) for a in range(8) for b in range(a))


def graph(number: int, gb_s: float, channels: int, kind: str) -> Graph:
    return Graph(
        id=number, pattern=(4, 1)[number], gb_s=gb_s, gb_s_net=gb_s, type=kind, type_net="PIX", same_channels=True,
        channels=(ORDER,) * channels,
    )  # fmt: skip


FAILED = (graph(0, 0.1, 1, "SYS"), graph(1, 0.1, 1, "SYS"))
HEALTHY = (graph(0, 24, 2, "PHB"), graph(1, 24, 2, "PHB"))
NO_TREE = (graph(0, 15, 2, "SYS"), graph(1, 0.1, 1, "SYS"))


@pytest.fixture
def fake_search(monkeypatch, tmp_path: Path) -> list[Path]:
    """A search that finds nothing between sockets up to 2.30, as the real one; returns the libraries that it ran."""
    ran: list[Path] = []

    def find(spec: str, cache: Path) -> tuple[str, Path]:
        return spec, tmp_path / spec

    def run(library: Path, topology_xml: str, *, settings) -> SearchResult:
        ran.append(library)
        if "hangs" in library.name:
            return SearchResult(release="2.30.7", status=SearchStatus.TIMED_OUT, reason="no end after 60 s")
        graphs = HEALTHY
        if topology_xml.count("<cpu ") == 2 and "NCCL_GRAPH_FILE" not in settings:
            graphs = NO_TREE if "2.32.3" in library.name else FAILED
        status = SearchStatus.FELL_BACK if any(g.failed for g in graphs) else SearchStatus.FOUND
        release = "2.32.3" if "2.32.3" in library.name else "2.30.7"
        level, sockets = settings.get("NCCL_P2P_LEVEL"), topology_xml.count("<cpu ")
        p2p = ALL if level == "SYS" or (level == "PHB" and sockets == 1) else ISLANDS
        if level == "PHB" and sockets == 2:
            p2p = ISLANDS | {(4, 3)}
        return SearchResult(release=release, status=status, graphs=graphs, p2p=p2p)

    monkeypatch.setattr(nccl_plan, "find_nccl", find)
    monkeypatch.setattr(nccl_plan, "run_search", run)
    return ran


def plan_verb(**options: object) -> int:
    verb = nccl_plan_verb(lambda: {"cu128": "cu12-2.27.5", "cu130": "cu13-2.30.7"})
    return called(verb, **options)


def called(verb, **options: object) -> int:
    """The exit code of a verb, called as invoke does."""
    try:
        verb(Context(), **options)
    except Exit as ended:
        return ended.code
    return int(ExitCode.DONE)


def plan_of(node: str, nccl: str = "cu13-2.30.7", **more):
    return make_plan(read_topology(node), nccl=nccl, cache=Path("none"), **more)


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_failed_search_is_explained_with_its_choice_and_its_cure(fake_search) -> None:
    told = " ".join(reading(plan_of(TURIN)))
    assert "finds no ring and no tree" in told
    assert "Ring Simple for 43,008 B, on 2 channels" in told
    assert "priced at 88.2 us, those of Ring LL at 20.6 us" in told
    assert "With repaired graph file: Ring LL, priced at 23.7 us." in told


def test_a_found_search_tells_what_the_price_is_made_of(fake_search) -> None:
    told = reading(plan_of(ONE_SOCKET))
    assert "priced at 23.7 us: 20.6 us for start and 14 steps around 8 GPUs" in told[0]
    assert "3.1 us for the bytes" in told[0]
    assert told[1].startswith("2 of 8 steps around the ring go through host memory; with NCCL_P2P_LEVEL=PHB all are")


def test_only_a_level_that_makes_every_step_direct_is_named(fake_search) -> None:
    assert "2 of 8 steps around the ring go through host memory; with NCCL_P2P_LEVEL=SYS" in reading(plan_of(TURIN))[1]


def test_direct_steps_are_not_spoken_of(fake_search) -> None:
    assert "host memory;" not in " ".join(reading(plan_of(ONE_SOCKET, settings={"NCCL_P2P_LEVEL": "SYS"})))


def test_a_search_without_a_tree_is_told_from_one_without_both(fake_search) -> None:
    told = reading(plan_of(TURIN, "cu13-2.32.3"))[0]
    assert "finds no tree on this node" in told
    assert "on 1 channel, priced at 30.6 us" in told


def test_it_speaks_of_the_largest_message_of_decode_or_of_the_smallest(fake_search) -> None:
    assert reading(plan_of(ONE_SOCKET, sizes=(256, 65_536, 65_537)))[0].startswith("65,536 B")
    assert reading(plan_of(ONE_SOCKET, sizes=(1 << 22, 1 << 20)))[0].startswith("1,048,576 B")


def test_without_an_outcome_there_is_nothing_to_price(fake_search) -> None:
    assert "nothing to price" in reading(plan_of(ONE_SOCKET, "hangs"))[0]
    barred = plan_of(ONE_SOCKET)
    barred = replace(barred, base=replace(barred.base, choices=(None,) * len(barred.sizes)))
    assert "every call fails" in reading(barred)[0]


# ----------------------------------------------------------------------------------------------------------- nccl-plan


def test_toolchains_are_planned_in_order_and_a_failed_search_answers_no(fake_search, capsys) -> None:
    assert plan_verb(topology=TURIN) == ExitCode.ANSWER_IS_NO
    assert {library.name for library in fake_search} == {"cu12-2.27.5", "cu13-2.30.7"}
    out = capsys.readouterr()
    assert out.out.startswith("NCCL cu12-2.27.5 on")
    assert "searching" in out.err


def test_a_found_search_answers_yes_and_json_is_all_of_stdout(fake_search, capsys) -> None:
    assert plan_verb(topology=ONE_SOCKET, toolchain="cu130", sizes="43008", json=True) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["nccl"] == "cu13-2.30.7"
    assert [size["bytes"] for size in told["base"]["sizes"]] == [43008]
    assert told["reading"]


def test_the_graph_file_is_one_that_nccl_could_read(fake_search, tmp_path: Path, capsys) -> None:
    file, drawing = tmp_path / "graph.xml", tmp_path / "node.svg"
    code = plan_verb(topology=TURIN, nccl=["cu13-2.30.7"], graph_file=str(file), svg=str(drawing))
    assert code == ExitCode.ANSWER_IS_NO
    assert [len(graph.channels) for graph in read_graphs(file.read_text(), where="it")] == [2, 2]
    assert drawing.read_text().startswith("<svg")


def test_nothing_to_repair_is_said_after_the_plan(fake_search, tmp_path: Path, capsys) -> None:
    assert plan_verb(topology=ONE_SOCKET, nccl=["2.30.7"], graph_file=str(tmp_path / "x")) == ExitCode.INPUT
    out = capsys.readouterr()
    assert "search found" in out.out
    assert "nothing to repair" in out.err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no topology is named"),
        ({"topology": "moon"}, "moon"),
        ({"topology": "2gpu", "toolchain": "cu999"}, "cu128, cu130"),
        ({"topology": "2gpu", "toolchain": "cu130", "nccl": ["2.30.7"]}, "both given"),
        ({"topology": "2gpu", "set": ["FOO=1"]}, "FOO=1"),
        ({"topology": "2gpu", "set": ["NCCL_ALGO"]}, "NCCL_NAME=VALUE"),
        ({"topology": "2gpu", "set": ["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"]}, "set before"),
        ({"topology": "2gpu", "sizes": "42KiB"}, "42KiB"),
        ({"topology": "2gpu", "sizes": "0"}, "sizes are 0"),
        ({"topology": "2gpu", "sizes": "9" * 40}, "--sizes"),
        ({"lint": True}, "no settings"),
        ({"lint": True, "set": ["NCCL_DEBUG=INFO"], "nccl": ["./libnccl.so.2"]}, "its release"),
    ],
)
def test_wrong_options_are_named(fake_search, capsys, options, says: str) -> None:
    assert plan_verb(**options) == ExitCode.INPUT
    out = capsys.readouterr()
    assert says in out.err
    assert out.out == ""


def test_lint_needs_no_topology_and_answers_no_where_a_setting_is_lost(capsys) -> None:
    assert plan_verb(lint=True, set=["NCCL_P2P_LEVEL=SYS"]) == ExitCode.DONE
    assert plan_verb(lint=True, set=["NCCL_MAX_NCHANELS=1"], json=True) == ExitCode.ANSWER_IS_NO
    out = capsys.readouterr().out
    assert "NCCL 2.27.5:\nnothing to remark" in out
    told = json.loads(out[out.index("{") :])
    assert [remark["gravity"] for remark in told["2.30.7"]] == ["no effect"]


# ------------------------------------------------------------------------------------------------------------ topology


def test_topology_lists_the_reference_nodes(capsys) -> None:
    assert called(topology) == ExitCode.DONE
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == reference_names()


def test_topology_shows_and_writes_a_node_that_reads_back(tmp_path: Path, capsys) -> None:
    xml, drawing = tmp_path / "node.xml", tmp_path / "node.svg"
    assert called(topology, name=TURIN, xml=str(xml), svg=str(drawing)) == ExitCode.DONE
    assert "2 islands" in capsys.readouterr().out
    assert len(read_topology(str(xml)).gpus) == 8
    assert drawing.read_text().startswith("<svg")


def test_topology_as_json_tells_paths_links_and_parents(capsys) -> None:
    assert called(topology, name=ONE_SOCKET, json=True) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["islands"] == {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7]}
    paths = {tuple(path["gpus"]): path["possible"] for path in told["paths"]}
    assert len(paths) == 28
    assert (paths[0, 1], paths[0, 4]) == (["PIX"], ["NODE"])
    gpu = next(node for node in told["nodes"] if node["kind"] == "Gpu")
    assert (gpu["generation"], gpu["width"], gpu["sm"], gpu["parent"]) == (5, 16, 120, "0000:21:00.0")


@pytest.mark.parametrize("options", [{"name": TURIN, "list": True}, {"xml": "x"}, {"name": "moon"}, {"lspci": "x"}])
def test_topology_names_what_is_wrong(capsys, options) -> None:
    assert called(topology, **options) == ExitCode.INPUT
    assert "error:" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ verdicts


@pytest.fixture
def no_runs(monkeypatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(knowing_verbs, "RUNS", tmp_path)
    return tmp_path


def test_verdicts_lists_then_explains_one(no_runs, capsys) -> None:
    assert called(verdicts) == ExitCode.DONE
    assert "flashinfer-a2a" in capsys.readouterr().out
    assert called(verdicts, approach="nccl-tree", node_class="two-sockets") == ExitCode.DONE
    out = capsys.readouterr().out
    assert "dominated" in out
    assert "reopened by nccl" in out
    assert "nvlink-pair" not in out


def test_a_change_lists_what_it_reopens(no_runs, capsys) -> None:
    assert called(verdicts, changed=["nccl=2.32.3"], toolchain="cu130") == ExitCode.DONE
    assert "nccl 2.31.2 or later: counts 32 GB/s" in capsys.readouterr().out
    assert called(verdicts, changed=["nccl=2.32.3"], approach="flashinfer-a2a") == ExitCode.DONE
    assert capsys.readouterr().out == "nccl 2.32.3 reopens no verdicts\n"


def test_verdicts_as_json(no_runs, capsys) -> None:
    assert called(verdicts, approach="b12x", json=True) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["verdict"] == "unsupported"
    assert called(verdicts, changed=["sglang=0.5.24"], json=True) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["changes"] == {"sglang": "0.5.24"}


def test_a_damaged_result_of_preflight_is_a_remark_and_no_end(no_runs, capsys) -> None:
    (no_runs / "cu128").mkdir()
    (no_runs / "cu128/preflight.json").write_text("[]")
    for options in ({"approach": "b12x"}, {"changed": ["nccl=2.32.3"]}):
        assert called(verdicts, **options, json=True) == ExitCode.DONE
        told = capsys.readouterr()
        (remark,) = json.loads(told.out)["remarks"]
        assert "is no result of preflight: the document is []" in remark
        assert told.err == f"remark: {remark}\n"


def test_what_closes_is_told_though_only_another_toolchain_is_asked_about(no_runs, capsys) -> None:
    options = {"changed": ["nccl=2.32.3"], "toolchain": "cu128", "approach": "nccl-symmetric-kernels"}
    assert called(verdicts, **options) == ExitCode.DONE
    assert "likely closes it: unsupported on cu130, looked at up to nccl 2.32.3" in capsys.readouterr().out
    assert called(verdicts, **options, json=True) == ExitCode.DONE
    (item,) = json.loads(capsys.readouterr().out)["reopened"]
    assert [closer["toolchain"] for closer in item["closed_by"]] == ["cu130"]


def test_no_verdict_there_is_said(no_runs, capsys) -> None:
    assert called(verdicts, approach="b12x", node_class="nvlink-pair") == ExitCode.DONE
    assert "no verdict on that" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [{"approach": "x"}, {"toolchain": "x"}, {"node_class": "x"}, {"changed": ["x"]}, {"changed": ["nccl=x"]}]
)
def test_verdicts_names_what_is_unknown(no_runs, capsys, options) -> None:
    assert called(verdicts, **options) == ExitCode.INPUT
    assert "expected:" in capsys.readouterr().err


def test_a_damaged_file_of_own_verdicts_is_named(no_runs, capsys) -> None:
    (no_runs / "verdicts.yaml").write_text("verdicts: [{approach: x}]")
    assert called(verdicts) == ExitCode.INPUT
    assert "lacks toolchains" in capsys.readouterr().err
