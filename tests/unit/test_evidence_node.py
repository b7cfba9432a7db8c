"""Topologies, node records, graph files and run files as evidence; and files that nobody can read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lanewise.errors import InputError
from tests.unit.makers import fake_candidate, fake_header, fake_plan, fake_trial
from tests.unit.makers_topology import (
    block_cells,
    fake_lspci,
    fake_record,
    fake_xml,
    lspci_bridge,
    lspci_link,
    matrix,
    xml,
    xml_cpu,
    xml_gpu,
    xml_switch,
)
from tuning.evidence import Reading
from tuning.evidence_read import read_evidence
from tuning.nccl_graph import Graph, write_graphs
from tuning.runfile import Kind
from tuning.trial import Status, to_line
from tuning.workload import Message, Workload


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def written(text: str) -> Reading:
        path = tmp_path / "evidence"
        path.write_text(text, encoding="utf-8")
        return read_evidence(path)

    return written


def names(reading: Reading) -> set[str]:
    return {sign.name for sign in reading.signs}


def test_lspci_tells_links_and_acs(read: Any) -> None:
    assert names(read(fake_lspci())) >= {"links-full", "acs-clear"}
    assert "acs-redirect" in names(read(fake_lspci(redirect="+")))
    assert "link-narrow" in names(read(fake_lspci(gpu_links=(lspci_link(width=8),))))
    idle = read(fake_lspci(gpu_links=(lspci_link(speed="2.5GT/s"),)))
    assert "gpu-link-at-first-rate" in names(idle)
    assert not names(idle) & {"link-slow", "links-full"}
    assert idle.gpus == 4


def test_a_part_of_an_lspci_without_any_gpu_still_tells_acs(read: Any) -> None:
    reading = read(lspci_bridge("82:00.0", "83", redirect="+"))
    assert (reading.kind, names(reading)) == ("part of an lspci", {"acs-redirect"})


def test_an_lspci_without_details_is_refused(read: Any) -> None:
    with pytest.raises(InputError, match="without their details"):
        read("82:00.0 PCI bridge: Fake Inc. Device 4128\n")


def test_topo_m_tells_pairs_beyond_the_default_p2p_level(read: Any) -> None:
    assert "pairs-beyond-default-level" in names(read(matrix(block_cells([4, 4], "PIX", "NODE"), [0] * 8)))
    assert "pairs-beyond-default-level" not in names(read(matrix(block_cells([4], "PIX", "NODE"), [0] * 4)))


def test_p2p_states_that_are_refused_speak_and_ok_does_not(read: Any) -> None:
    table = "\tGPU0\tGPU1\n GPU0\tX\t{0}\n GPU1\t{0}\tX\n\nLegend:\n  OK   = Status Ok\n"
    assert names(read(table.format("CNS"))) == {"p2p-state-refused"}
    assert names(read(table.format("OK"))) == set()
    assert read(table.format("OK")).kind == "nvidia-smi topo -p2p"


def test_ncclS_xml_says_what_nccl_counts_with_so_an_idle_gpu_matters_there(read: Any) -> None:  # noqa: N802
    assert "nccl-counts-first-rate" not in names(read(fake_xml()))
    idle = xml(xml_cpu(0, *(xml_gpu(f"0000:0{n}:00.0", n, link_speed="2.5 GT/s PCIe") for n in range(1, 3))))
    assert "nccl-counts-first-rate" in names(read(idle))


def test_more_broadcom_switches_than_cpus_are_taken_for_split_chips(read: Any) -> None:
    def switch(n: int) -> str:
        return xml_switch(f"0000:{n}0:00.0", xml_gpu(f"0000:{n}1:00.0", 2 * n), xml_gpu(f"0000:{n}2:00.0", 2 * n + 1))

    assert "split-broadcom-switch" in names(read(xml(xml_cpu(0, switch(1), switch(2)))))
    assert "split-broadcom-switch" not in names(read(xml(xml_cpu(0, switch(1)), xml_cpu(1, switch(2)))))
    other = xml(xml_cpu(0, switch(1), switch(2))).replace('vendor="0x1000"', 'vendor="0x1f18"')
    assert "no-broadcom-switch" in names(read(other))


@pytest.mark.parametrize(
    ("mode", "sign"),
    [
        ("translated", "iommu-translates"),
        ("mixed", "iommu-translates"),
        ("passthrough", "iommu-off"),
        ("off", "iommu-off"),
    ],
)
def test_a_node_record_tells_its_iommu(read: Any, mode: str, sign: str) -> None:
    reading = read(json.dumps(fake_record(iommu={"mode": mode}, host={"hostname": "fake-a"})))
    assert sign in names(reading)
    assert (reading.gpus, reading.hosts, reading.models) == (3, {"fake-a"}, {"Fake GPU"})


@pytest.mark.parametrize("iommu", [None, [], "off", {}, {"mode": 3}, {"mode": "unknown"}])
def test_an_iommu_that_is_not_known_says_nothing(read: Any, iommu: object) -> None:
    assert not names(read(json.dumps(fake_record(iommu=iommu)))) & {"iommu-off", "iommu-translates"}


def test_a_record_without_gpus_is_read_as_far_as_it_goes(read: Any) -> None:
    reading = read(json.dumps(fake_record(pci=[], gpus=[], iommu={"mode": "off"})))
    assert (names(reading), reading.gpus) == ({"iommu-off"}, 0)


def test_a_graph_file_tells_whether_the_search_failed(read: Any) -> None:
    def ring(gb_s: float) -> str:
        graph = Graph(
            id=0,
            pattern=4,
            gb_s=gb_s,
            gb_s_net=gb_s,
            type="SYS",
            type_net="PIX",
            same_channels=True,
            channels=((0, 1),),
        )
        return write_graphs([graph])

    assert names(read(ring(0.1))) == {"search-failed"}
    assert names(read(ring(24.0))) == {"search-succeeded"}


# ----------------------------------------------------------------------------------------------------------- run files

SIZES = Workload(name="w", dtype="float32", messages=(Message(name="m", bytes=43008, calls=2),))


def run_text(*trials: Any, engine: str = "cuda", kind: Kind = Kind.MEASURED, **node: Any) -> str:
    plan = fake_plan(workload=SIZES, candidates=(fake_candidate("default"), fake_candidate("p2p_off"))).to_dict()
    header = fake_header(fake_plan(workload=SIZES), kind).to_dict()
    document = {**header, "plan": {**plan, "engine": engine, "modes": ["graph", "eager"], "working_sets": ["warm"]}}
    document["node"] = {**document["node"], **node}
    for candidate in document["plan"]["candidates"]:
        candidate["engine"] = engine
    return "\n".join(json.dumps(line) for line in (document, *(to_line(trial) for trial in trials))) + "\n"


def timed(us: float, **changes: Any) -> Any:
    return fake_trial(message="m", mode="graph", samples=((us, us),), **changes)


def test_a_run_file_tells_latencies_of_its_baseline_with_mode_and_ranks(read: Any) -> None:
    node = {"iommu": {"mode": "off"}, "gpus": [{"name": "Fake GPU"}]}
    reading = read(run_text(timed(24.0), timed(26.0, repetition=1), timed(99.0, candidate="p2p_off"), **node))
    assert [(x.size, x.us, x.mode, x.ranks) for x in reading.latencies] == [(43008, 25.0, "graph", 2)]
    assert (names(reading), reading.models) == ({"iommu-off"}, {"Fake GPU"})


def test_p2p_off_that_is_no_slower_says_that_p2p_was_never_on(read: Any) -> None:
    assert names(read(run_text(timed(50.0), timed(52.0, candidate="p2p_off")))) == {"p2p-off-no-slower"}


@pytest.mark.parametrize(
    ("status", "reason", "sign"),
    [
        (Status.TIMED_OUT, "no sign of life", "trial-timed-out"),
        (Status.WRONG_RESULT, "sum is 3, not 8", "nccl-wrong-sums"),
        (Status.LAUNCH_FAILED, "CUDA out of memory", "out-of-memory"),
    ],
)
def test_failures_of_a_run_speak(read: Any, status: Status, reason: str, sign: str) -> None:
    trial = fake_trial(message="m", mode="graph", status=status, reason=reason, samples=())
    assert names(read(run_text(trial))) == {sign}


@pytest.mark.parametrize("changes", [{"engine": "mpi"}, {"kind": Kind.MEANINGLESS}, {"kind": Kind.PREDICTED}])
def test_a_run_that_says_nothing_of_gpus_is_refused(read: Any, changes: Any) -> None:
    with pytest.raises(InputError, match="engine"):
        read(run_text(timed(24.0), **changes))


# ---------------------------------------------------------------------------------------------------------- unreadable


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", b"\0\1\2", b"\x7fELF" + bytes(100), b"hello", b"{}", b'{"a": 1}', b"[1, 2]", b"<html></html>",
     b"{" * 100_000, b'{"schema": "lanewise.node-record/1", ' + b'"a": [' * 50_000, b"<?xml version='1.0'?><a/>",
     b"<!DOCTYPE x [<!ENTITY a 'b'>]><system/>", b"<graphs version='1'></graphs>", b"\xff\xfe\xfd",
     b'{"format": "lanewise-run", "version": 9}\n', b"GPU0\tGPU1\n", b"9" * 5_000],
)  # fmt: skip
def test_what_is_nothing_known_is_refused_in_three_parts(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_evidence(path)
    assert caught.value.expected
    assert caught.value.todo
    assert len(caught.value.what) < 600


def test_a_table_within_a_log_is_read_with_it_and_a_broken_one_does_not_hide_it(read: Any) -> None:
    line = "fake-a:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
    table = matrix(block_cells([4], "PIX", "NODE"), [0] * 4)
    assert (read(line + table).gpus, names(read(line + table))) == (4, {"p2p-off-by-setting"})
    broken = table.replace("PIX", "???")
    assert (read(line + broken).gpus, names(read(line + broken))) == (0, {"p2p-off-by-setting"})
    with pytest.raises(InputError):
        read(broken)


def test_what_is_no_text_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"NCCL INFO \0")
    with pytest.raises(InputError, match="is no text"):
        read_evidence(tmp_path / "x")


def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/zero", "pipe", "missing", "", "x\0y", "n" * 300):
        with pytest.raises(InputError, match="cannot read"):
            read_evidence(tmp_path / name)
