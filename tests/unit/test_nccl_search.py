from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from pathlib import Path

import pytest

from lanewise.errors import InputError, LanewiseError
from tuning import nccl_search
from tuning.nccl_constants import BASE_US, HOP_US, RELEASES, TREE_CORRECTION
from tuning.nccl_graph import Graph, write_graphs
from tuning.nccl_library import find_nccl
from tuning.nccl_search import KNOWN, SearchResult, SearchStatus, run_search
from tuning.topology_complete import Assumptions, completed
from tuning.topology_read import read_topology, reference_names
from tuning.topology_xml import to_nccl_xml
from tuning.workers.nccl_search import read_symbols

TOPOLOGY = """<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="26" modelid="2">
<pci busid="0000:01:00.0" class="0x030000" link_speed="32.0 GT/s PCIe" link_width="16">
  <gpu dev="0" sm="120" rank="0" gdr="0"/></pci>
<pci busid="0000:02:00.0" class="0x030000" link_speed="32.0 GT/s PCIe" link_width="16">
  <gpu dev="1" sm="120" rank="1" gdr="0"/></pci>
</cpu></system>"""
GRAPHS = tuple(
    Graph(
        id=number,
        pattern=pattern,
        gb_s=24,
        gb_s_net=24,
        type="PHB",
        type_net="PIX",
        same_channels=True,
        channels=((0, 1),),
    )
    for number, pattern in ((0, 4), (1, 1))
)
SAY = """import json, os, signal, sys, time
library, topology, ranks, known = sys.argv[1:]
def say(event, **fields): print("nccl-search " + json.dumps({"event": event, **fields}), flush=True)
"""
GOOD = f"""
say("release", release="2.30.7")
say("step", step="compute")
say("p2p", pairs=[[1, 0]])
open(os.environ["NCCL_GRAPH_DUMP_FILE"], "w").write({write_graphs(GRAPHS)!r})
say("done", ring_channels=1, settings=sorted(n for n in os.environ if n.startswith("NCCL_")) + ["NCCL_FROM_ETC"])
"""


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch):
    """Puts a fake in the place of the worker: what it does is the given Python."""

    def put(does: str) -> None:
        worker = tmp_path / "fake_worker.py"
        worker.write_text(SAY + does)
        monkeypatch.setattr(nccl_search, "_WORKER", worker)

    return put


def search(**options) -> SearchResult:
    return run_search(Path("/no/libnccl.so.2"), TOPOLOGY, **options)


def test_a_search_gives_graphs_pairs_and_what_else_was_set(fake_worker) -> None:
    fake_worker(GOOD)
    result = search()
    assert result == SearchResult(
        release="2.30.7",
        status=SearchStatus.FOUND,
        graphs=GRAPHS,
        p2p=frozenset({(1, 0)}),
        foreign_settings=("NCCL_FROM_ETC",),
    )
    assert (result.ring, result.tree) == GRAPHS


def test_only_settings_of_the_search_reach_the_library(fake_worker, monkeypatch) -> None:
    monkeypatch.setenv("NCCL_TOPO_FILE", "/of/this/process")
    fake_worker(GOOD.replace('["NCCL_FROM_ETC"]', '[f"{n}={v}" for n, v in os.environ.items()]'))
    told = search(settings={"NCCL_P2P_LEVEL": "SYS", "NCCL_ENV_PLUGIN": "evil", "LD_PRELOAD": "evil"}).foreign_settings
    assert "NCCL_P2P_LEVEL=SYS" in told
    assert "NCCL_IGNORE_DISABLED_P2P=2" in told
    assert not [entry for entry in told if "evil" in entry or "of/this/process" in entry]


@pytest.mark.parametrize(
    ("does", "status", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", SearchStatus.CRASHED, "ended by SIGSEGV, in step 'compute'"),
        ("os.abort()", SearchStatus.CRASHED, "ended by SIGABRT, in step 'compute'"),
        ("print('nccl-search {', flush=True); os.abort()", SearchStatus.CRASHED, "ended by SIGABRT, in step 'compute'"),
        ("os._exit(3)", SearchStatus.CRASHED, "ended with exit code 3, in step 'compute'"),
        ("time.sleep(60)", SearchStatus.TIMED_OUT, "no end after 0.7 s, in step 'compute'"),
        (
            "print('x:1 [0] topo.cc:2 NCCL WARN no such path'); say('failed', step='paths', reason='NCCL returned 3')",
            SearchStatus.REFUSED,
            "step 'paths': NCCL returned 3; no such path",
        ),
    ],
)
def test_crash_abort_hang_and_refusal_are_results(fake_worker, does: str, status: SearchStatus, reason: str) -> None:
    fake_worker(f'say("release", release="2.30.7")\nsay("step", step="compute")\n{does}\n')
    began = time.monotonic()
    result = search(timeout=0.7 if status is SearchStatus.TIMED_OUT else 30)
    assert (result.status, result.reason, result.graphs) == (status, reason, ())
    assert time.monotonic() - began < 15


def test_a_library_that_crashes_while_it_loads_is_a_result(fake_worker) -> None:
    fake_worker("os.kill(os.getpid(), signal.SIGILL)")
    assert search().reason == "ended by SIGILL, in step 'load'"


def test_an_endless_log_is_cut(fake_worker) -> None:
    fake_worker("for _ in range(5000): print('x NCCL WARN ' + 'y' * 1000)\n" + GOOD)
    result = search()
    assert result.status is SearchStatus.FOUND
    assert (len(result.warnings), max(map(len, result.warnings))) == (20, 200)


def test_an_unknown_release_is_refused_by_name_with_the_known_ones(fake_worker) -> None:
    fake_worker('say("release", release="2.99.1")')
    with pytest.raises(InputError, match=r"NCCL 2\.99\.1") as refused:
        search()
    assert all(release in refused.value.expected for release in KNOWN)


def test_a_release_of_another_layout_is_not_believed(fake_worker) -> None:
    fake_worker(GOOD.replace("ring_channels=1", "ring_channels=7"))
    with pytest.raises(LanewiseError, match="counts 7 ring channels"):
        search()


def test_a_damaged_dump_is_an_error_not_an_answer(fake_worker) -> None:
    fake_worker(GOOD.replace("pattern=", "p="))
    with pytest.raises(InputError, match=r"what NCCL 2\.30\.7 dumped"):
        search()


@pytest.mark.parametrize("content", [b"not a library", b"", b"\x7fELF\x02\x01" + b"\0" * 200])
def test_what_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(content)
    with pytest.raises(InputError, match="cannot be loaded as libnccl"):
        run_search(library, TOPOLOGY)


def test_another_library_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be loaded as libnccl.*ncclGetVersion"):
        run_search(Path("libc.so.6"), TOPOLOGY)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ("", "not XML"),
        ("<graphs/>", "holds 0 GPUs"),
        (TOPOLOGY.replace('rank="1"', 'rank="0"'), "holds 2 GPUs"),
        (TOPOLOGY.replace('rank="1"', 'rank="-1"'), "rank '-1'"),
        (TOPOLOGY.replace('<cpu numaid="0"', '<cpu host_hash="1"/><cpu host_hash="2"'), "several hosts"),
    ],
)
def test_a_topology_that_cannot_be_searched_is_refused(topology: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        run_search(Path("/no/libnccl.so.2"), topology)
    assert says in refused.value.what


def test_network_cards_give_way_to_a_plain_one_where_the_release_keeps_them(fake_worker) -> None:
    nic = '<pci busid="0000:09:00.0" class="0x020000"><nic><net name="mlx5_0" dev="0"/></nic></pci></cpu>'
    for release, cards in (("2.30.7", 1), ("2.27.5", 0)):
        fake_worker(
            GOOD.replace("2.30.7", release).replace('["NCCL_FROM_ETC"]', '[open(topology).read()]')
        )  # fmt: skip
        (given,) = run_search(Path("/no/lib"), TOPOLOGY.replace("</cpu>", nic)).foreign_settings
        assert "mlx5_0" not in given
        assert "0000:09:00.0" not in given
        assert given.count("<net ") == cards


def test_a_setting_that_no_process_can_be_given_is_refused() -> None:
    with pytest.raises(InputError, match="NCCL_P2P_LEVEL holds a NUL"):
        search(settings={"NCCL_P2P_LEVEL": "SYS\0"})


def test_a_graph_file_is_read_before_nccl_reads_it(tmp_path: Path) -> None:
    (tmp_path / "graph.xml").write_text("<graphs><graph/></graphs>")
    with pytest.raises(InputError, match=r"graph\.xml"):
        search(settings={"NCCL_GRAPH_FILE": str(tmp_path / "graph.xml")})
    with pytest.raises(InputError, match="no such file"):
        search(settings={"NCCL_GRAPH_FILE": str(tmp_path / "none.xml")})
    with pytest.raises(InputError, match="no such file"):
        search(settings={"NCCL_GRAPH_FILE": "~no-such-user/graph.xml"})


def elf(symbols: dict[str, int]) -> bytes:
    """The least 64-bit ELF file with a symbol table: a header, the names, the symbols, three section headers."""
    names, entries = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, value in symbols.items():
        entries += struct.pack("<IBBHQQ", len(names), 2, 0, 1, value, 0)
        names += name.encode() + b"\0"
    at = 64 + len(names)
    sections = b"\0" * 64
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at, len(entries), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, at + len(entries), 0, 64, 0, 0, 64, 3, 0
    )
    return header + names + entries + sections


def test_symbols_are_read_from_the_elf_file_itself(tmp_path: Path) -> None:
    wanted = {"ncclGetVersion": 0x1000, "_Z18ncclTopoSearchInitP14ncclTopoSystem": 0x2345}
    (tmp_path / "lib").write_bytes(elf({"other": 1, **wanted}))
    assert read_symbols(str(tmp_path / "lib")) == wanted
    (tmp_path / "stripped").write_bytes(elf({}))
    assert read_symbols(str(tmp_path / "stripped")) == {}


# What NCCL finds on the nodes that ship, by its own search; P2P pairs by default and with NCCL_P2P_LEVEL=SYS.
FALLS_BACK = "1 x 0.1 SYS"
TO_2_30 = {
    "2gpu": ("2 x 24 PHB", "2 x 40 PHB", 1, 1),
    "4gpu-1switch": ("2 x 24 PIX", "2 x 24 PIX", 6, 6),
    "8gpu-2switch-1socket": ("2 x 24 PHB", "2 x 24 PHB", 12, 28),
    "8gpu-2switch-2socket-turin": (FALLS_BACK, FALLS_BACK, 12, 28),
    "8gpu-4virtual-switch-broadcom": (FALLS_BACK, FALLS_BACK, 4, 28),
    "8gpu-direct-2socket": (FALLS_BACK, FALLS_BACK, 0, 28),
}
FROM_2_29 = {"2gpu": ("2 x 24 PHB", "2 x 45 PHB", 1, 1)}
FROM_2_31 = {
    name: ("2 x 15 SYS", FALLS_BACK, *TO_2_30[name][2:])
    for name in ("8gpu-2switch-2socket-turin", "8gpu-4virtual-switch-broadcom", "8gpu-direct-2socket")
}
EXPECTED = {
    "cu12-2.27.5": TO_2_30,
    "cu13-2.30.7": TO_2_30 | FROM_2_29,
    "cu13-2.32.3": TO_2_30 | FROM_2_29 | FROM_2_31,
}
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "nccl"


@pytest.fixture(scope="module", params=EXPECTED)
def real_nccl(request) -> tuple[str, Path]:
    """A real libnccl, from its wheel."""
    try:
        return find_nccl(request.param, CACHE)
    except LanewiseError as error:
        pytest.skip(f"no wheel: {error.what}")


@pytest.mark.network
@pytest.mark.timeout(600)
def test_real_libraries_find_the_same_on_the_nodes_that_ship(real_nccl: tuple[str, Path]) -> None:
    label, library = real_nccl
    for name in reference_names():
        node = completed(read_topology(name), Assumptions())
        xml = to_nccl_xml(node)
        default, everywhere = (run_search(library, xml, settings=s) for s in ({}, {"NCCL_P2P_LEVEL": "SYS"}))
        found = (str(default.ring), str(default.tree), len(default.p2p), len(everywhere.p2p))
        assert (name, found) == (name, EXPECTED[label][name])
        assert default.graphs == everywhere.graphs, "on these nodes the level moves no graph"
        order = tuple(gpu.index for gpu in node.gpus)
        assert default.ring
        assert set(default.ring.channels) == {order}
        assert not default.foreign_settings


@pytest.mark.network
@pytest.mark.timeout(600)
def test_a_real_library_obeys_a_graph_file_and_bears_a_hostile_topology(real_nccl, tmp_path: Path) -> None:
    _, library = real_nccl
    file = tmp_path / "graph.xml"
    file.write_text(write_graphs(GRAPHS))
    assert run_search(library, TOPOLOGY, settings={"NCCL_GRAPH_FILE": str(file)}).graphs == GRAPHS
    deep = TOPOLOGY.replace("<cpu", '<cpu numaid="0">' * 40 + "<cpu", 1).replace("</cpu>", "</cpu>" * 41)
    many = TOPOLOGY.replace("</cpu>", '<pci busid="0000:0a:00.0"/>' * 5000 + "</cpu>")
    for hostile in (deep, many, TOPOLOGY.replace('vendor="AuthenticAMD"', 'vendor="' + "x" * 100_000 + '"')):
        assert run_search(library, hostile, timeout=20).status is SearchStatus.REFUSED


@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_constants_of_the_prices_are_those_in_the_library(real_nccl: tuple[str, Path]) -> None:
    """As doubles or floats, in the order of its tables: Tree before Ring, Blackwell's caps after Hopper's."""
    label, library = real_nccl
    caps = RELEASES[label.split("-")[1]].blackwell
    rows = (
        (141, 45, 35, caps.ll),
        (36.7, 36.7, 36.7, caps.ring_ll128),
        (36.7, 36.7, 29, caps.tree_ll128),
        (38.7, 41.4, 36, caps.tree),
    )
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert [row for row in rows if data.find(struct.pack("<4d", *row)) < 0] == []
        for times in (BASE_US, *HOP_US.values()):
            row = (*times["Tree"], *times["Ring"])
            assert data.find(struct.pack("<6d", *row)) > 0 or data.find(struct.pack("<6f", *row)) > 0
        assert [row for row in TREE_CORRECTION.values() if data.find(struct.pack("<23f", *row)) < 0] == []


def test_nothing_of_a_search_is_left_behind(fake_worker) -> None:
    fake_worker(GOOD + 'import subprocess; subprocess.Popen(["sleep", "987654"])')
    search()
    left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and b"987654" in _command(p)]
    for process in left:
        os.kill(int(process.name), signal.SIGKILL)
    assert not left


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
