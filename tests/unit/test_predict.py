from __future__ import annotations

import io
import json
import re
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Console

from lanewise.errors import InputError
from tests.unit.makers import fake_plan, fake_run
from tests.unit.makers_topology import block_cells, matrix
from tuning import predict_verbs
from tuning.candidates import select_candidates
from tuning.predict import Predicted, Prediction, predict
from tuning.predict_constants import constants, fitted
from tuning.predict_fabric import make_fabric
from tuning.predict_inputs import Approach, OwnRows, Preflight, own_rows, read_preflight, start_of
from tuning.predict_schedules import FAMILIES
from tuning.predict_svg import svg
from tuning.predict_verbs import parse_gpus, parse_sizes
from tuning.predict_view import document, show
from tuning.published import Row
from tuning.runfile import Kind, Run
from tuning.topology import Topology
from tuning.topology_complete import Assumptions, completed
from tuning.topology_links import Link
from tuning.topology_nodes import Device, Gpu
from tuning.topology_read import parse_topology, read_topology, reference_names
from tuning.workload import Message, Workload

TWO_SWITCHES = "8gpu-2switch-1socket"
BROADCOM = "8gpu-4virtual-switch-broadcom"
VERIFY = 43_008
LADDER = tuple(1 << power for power in range(8, 28))


def of(prediction: Prediction, family: str) -> Predicted:
    return next(predicted for predicted in prediction.families if predicted.family.name == family)


def us(prediction: Prediction, family: str, size: int = VERIFY) -> float:
    return next(estimate.us for estimate in of(prediction, family).estimates if estimate.size == size)


def on(name: str, *sizes: int, **options) -> Prediction:
    return predict(read_topology(name), sizes=sizes or (VERIFY,), **options)


def changed(name: str, change) -> Topology:
    topology = read_topology(name)
    return replace(topology, nodes=tuple(map(change, topology.nodes)))


# ------------------------------------------------------------------------------------------------ facts of the field


@pytest.mark.parametrize("name", [TWO_SWITCHES, "8gpu-2switch-2socket-turin", "8gpu-direct-2socket"])
def test_ring_ll_on_a_healthy_node_of_eight_takes_17_to_31_us(name: str) -> None:
    # Rows of healthy 8-GPU hosts: docs/prediction.md.
    assert 17 <= us(on(name), "nccl-ring-ll") <= 31


def test_56_reads_over_two_switches_gain_nothing_on_a_healthy_ring() -> None:
    prediction = on(TWO_SWITCHES, VERIFY, 1 << 16, 1 << 20)
    ring, reads = of(prediction, "nccl-ring-ll"), of(prediction, "one-shot-pull")
    assert us(prediction, "one-shot-pull") > 0.8 * us(prediction, "nccl-ring-ll")
    assert us(prediction, "one-shot-pull", 1 << 16) > us(prediction, "nccl-ring-ll", 1 << 16)
    assert us(prediction, "one-shot-pull", 1 << 20) > 3 * us(prediction, "nccl-ring-ll", 1 << 20)
    assert reads.estimates[0].low < ring.estimates[0].high
    assert "switch" in reads.shape.bottleneck
    assert "pci0000" in reads.shape.bottleneck  # an uplink, not a GPU's own link


def test_the_order_at_42_kib_is_the_fields() -> None:
    prediction = on(TWO_SWITCHES)
    order = ["hierarchical", "two-shot", "one-shot-pull", "nccl-ring-ll", "nccl-ring-simple", "copy-engine-ring"]
    times = [us(prediction, family) for family in order]
    assert times == sorted(times)


def test_a_tree_gains_nothing_at_decode_sizes() -> None:
    for name in reference_names():
        prediction = on(name, *(size for size in LADDER if size <= 1 << 16))
        for protocol in ("ll", "ll128", "simple"):
            tree, ring = of(prediction, f"nccl-tree-{protocol}"), of(prediction, f"nccl-ring-{protocol}")
            # A chain does without the ring's last hop, which can be a long one.
            assert all(t.us >= 0.95 * r.us for t, r in zip(tree.estimates, ring.estimates, strict=True))


def test_a_copy_engine_ring_wins_at_large_sizes_only() -> None:
    prediction = on(TWO_SWITCHES, VERIFY, 96 << 20)
    assert us(prediction, "copy-engine-ring") > 3 * us(prediction, "nccl-ring-ll")
    assert us(prediction, "copy-engine-ring", 96 << 20) < us(prediction, "nccl-ring-simple", 96 << 20)


def test_split_broadcom_switches_ruin_one_shot_and_spare_the_ring() -> None:
    prediction = on(BROADCOM)
    assert us(prediction, "one-shot-pull") > 5 * us(prediction, "nccl-ring-ll")
    assert us(prediction, "nccl-ring-ll") < 31
    assert "fall to 2.7 GB/s" in " ".join(prediction.notes)
    healthy = changed(BROADCOM, lambda node: replace(node, chip="") if hasattr(node, "chip") else node)
    assert us(predict(healthy, sizes=[VERIFY]), "one-shot-pull") < 30


def test_two_virtual_switches_alone_do_not_collapse() -> None:
    assert us(on(BROADCOM, gpus=(0, 1, 2, 3)), "one-shot-pull") < 20  # 10 us at 32 KiB were measured there


# --------------------------------------------------------------------------------------------------- bounds and floor


@pytest.mark.parametrize("name", reference_names())
def test_floor_bounds_and_time_are_in_order_and_grow_with_size(name: str) -> None:
    prediction = on(name, *LADDER)
    for predicted in prediction.families:
        for estimate in predicted.estimates:
            assert prediction.floor.time_us(estimate.size) <= estimate.low <= estimate.us <= estimate.high
        times = [estimate.us for estimate in predicted.estimates]
        assert times == sorted(times)


def test_the_floor_is_what_hand_arithmetic_gives() -> None:
    floor = on(TWO_SWITCHES).floor
    # 2 x 7/8 of a message through a GPU's Gen5 x16 at 57.2 GB/s, and one flag to the other switch.
    assert floor.time_us(VERIFY) == pytest.approx(1.07 + 1.75 * VERIFY / 57_170, rel=0.01)
    assert floor.link == "the GPUs' own links"


def test_a_narrow_uplink_sets_the_floor_and_is_named() -> None:
    narrow = changed(
        TWO_SWITCHES,
        lambda node: replace(node, link=Link(generation=3, width=4)) if node.id == "0000:41:00.0" else node,
    )
    prediction = predict(narrow, sizes=[1 << 20])
    assert "0000:41:00.0" in prediction.floor.link
    assert "0000:41:00.0" in of(prediction, "nccl-ring-ll").shape.bottleneck
    assert us(prediction, "nccl-ring-ll", 1 << 20) > 3 * us(on(TWO_SWITCHES, 1 << 20), "nccl-ring-ll", 1 << 20)


def test_half_of_a_gpus_lanes_slow_large_messages_and_are_told() -> None:
    half = Link(generation=5, width=8, max_generation=5, max_width=16)
    slow = changed(TWO_SWITCHES, lambda n: replace(n, link=half) if isinstance(n, Gpu) and n.index == 3 else n)
    prediction = predict(slow, sizes=[16 << 20])
    assert us(prediction, "nccl-ring-simple", 16 << 20) > 1.7 * us(
        on(TWO_SWITCHES, 16 << 20), "nccl-ring-simple", 16 << 20
    )
    assert any("0000:26:00.0 (Gen5 x8 of Gen5 x16)" in note for note in prediction.notes)


def test_acs_redirect_takes_neighbours_over_the_uplink() -> None:
    redirected = changed("4gpu-1switch", lambda n: replace(n, acs_redirect=True) if isinstance(n, Gpu) else n)
    assert us(predict(redirected, sizes=[1 << 20]), "nccl-ring-simple", 1 << 20) > us(
        on("4gpu-1switch", 1 << 20), "nccl-ring-simple", 1 << 20
    )
    fabric = make_fabric(completed(redirected, Assumptions()), (), constants())
    assert any("pci0000" in link for link in fabric.route(0, 1))


def test_a_rings_order_follows_the_tree_not_the_numbers() -> None:
    crossed = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}
    renumbered = changed(TWO_SWITCHES, lambda n: replace(n, index=crossed[n.index]) if isinstance(n, Gpu) else n)
    assert us(predict(renumbered, sizes=[1 << 22]), "nccl-ring-ll", 1 << 22) == pytest.approx(
        us(on(TWO_SWITCHES, 1 << 22), "nccl-ring-ll", 1 << 22)
    )


def test_groups_are_switches_then_sockets_then_none() -> None:
    def groups(name: str, *gpus: int) -> tuple[tuple[int, ...], ...]:
        return make_fabric(completed(read_topology(name), Assumptions()), gpus, constants()).groups

    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups(TWO_SWITCHES) == halves
    assert groups("8gpu-direct-2socket") == halves
    assert groups("4gpu-1switch") == ()
    assert groups(TWO_SWITCHES, 0, 1, 2, 4) == ()
    unable = of(on("4gpu-1switch"), "hierarchical")
    assert unable.start.able is False
    assert not unable.estimates


def test_pairs_without_p2p_leave_host_memory_alone() -> None:
    broken = replace(read_topology(TWO_SWITCHES), p2p={(0, 1): "CNS", (1, 0): "CNS"})
    prediction = predict(broken, sizes=[VERIFY])
    assert [p.family.name for p in prediction.families if p.estimates] == ["host-staged"]
    assert "GPU 0 and 1 (CNS)" in of(prediction, "nccl-ring-ll").start.says
    assert of(predict(broken, sizes=[VERIFY], gpus=(4, 5)), "nccl-ring-ll").estimates


def test_what_a_topology_does_not_tell_is_assumed_and_said() -> None:
    bare = parse_topology(matrix(block_cells([4, 4], "PIX", "NODE"), [0] * 8), name="bare", source="here")
    prediction = predict(bare, sizes=[VERIFY])
    assert us(prediction, "nccl-ring-ll") == pytest.approx(us(on(TWO_SWITCHES), "nccl-ring-ll"), rel=0.2)
    assert any(note.startswith("assumed where not known: links") for note in prediction.notes)


def test_all_families_20_sizes_and_6_nodes_take_a_fraction_of_the_time_allowed() -> None:
    # A bound on the work, not a timing: 2 s are allowed, tens of milliseconds are usual.
    started = time.process_time()
    for name in reference_names():
        on(name, *LADDER)
    assert time.process_time() - started < 2


# -------------------------------------------------------------------------------------------------- what may be asked


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sizes": [0]}, "sizes are 0"),
        ({"sizes": [-4]}, "sizes are -4"),
        ({"sizes": [1 << 31]}, "sizes are 2147483648"),
        ({"sizes": []}, "0 in number"),
        ({"sizes": range(1, 300)}, "299 in number"),
        ({"sizes": [1], "gpus": [0]}, "1 GPUs"),
        ({"sizes": [1], "gpus": [0, 0]}, "2 GPUs"),
        ({"sizes": [1], "gpus": [0, 9]}, "no GPU 9"),
        ({"sizes": [1], "own": OwnRows(ranks=4, rows=(), source="r.jsonl")}, "r.jsonl is of 4 GPUs"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(options, says: str) -> None:
    with pytest.raises(InputError) as caught:
        predict(read_topology(TWO_SWITCHES), **options)
    assert says in caught.value.what
    assert caught.value.todo


def test_more_gpus_than_anyone_measured_are_refused() -> None:
    many = parse_topology(matrix(block_cells([20], "PIX", ""), [0] * 20), name="many", source="here")
    with pytest.raises(InputError, match="20 GPUs"):
        predict(many, sizes=[VERIFY])
    assert predict(many, sizes=[VERIFY], gpus=range(16)).gpus == tuple(range(16))


def test_nvlink_is_refused() -> None:
    nvlink = parse_topology(matrix(block_cells([2], "NV12", ""), [0, 0]), name="nv", source="here")
    with pytest.raises(InputError, match="NVLink"):
        predict(nvlink, sizes=[VERIFY])


@pytest.mark.parametrize(("text", "sizes"), [("14336", (14_336,)), ("42KiB, 1 MiB,7", (43_008, 1 << 20, 7))])
def test_sizes_are_bytes_or_binary_units(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "-1", "1.5", "42KB", "x", "1,,2", "9" * 4_000, "1 GiB", "\u0661"])
def test_other_sizes_are_refused_briefly(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sizes(text)
    assert len(caught.value.what) < 200


def test_gpus_are_numbers_and_ranges() -> None:
    assert parse_gpus("") == ()
    assert parse_gpus("0-3, 6") == (0, 1, 2, 3, 6)
    for text in ("a", "3-1", "-1", "1-", "1-2-3", "9" * 4_000):
        with pytest.raises(InputError):
            parse_gpus(text)


# --------------------------------------------------------------------------------------------------------- preflight


def fake_findings(**verdicts: str) -> dict[str, object]:
    """A result of preflight with these verdicts, underscores for hyphens."""
    return {
        "preflight": 1,
        "box": {"gpus": 8},
        "findings": [
            {"approach": name.replace("_", "-"), "name": name, "verdict": verdict, "why": f"why {name}", "error": "E"}
            for name, verdict in verdicts.items()
        ],
    }


def preflight(tmp_path: Path, document: object):
    (tmp_path / "cu1").mkdir(exist_ok=True)
    (tmp_path / "cu1" / "preflight.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return read_preflight(tmp_path, "cu1")


def test_what_cannot_start_gets_a_reason_instead_of_a_number(tmp_path: Path) -> None:
    verdicts = dict.fromkeys(("nccl_ring", "nccl_tree", "torch_symm_mem"), "starts")
    verdicts |= {"flashinfer_pcie_ipc": "absent", "sglang_pcie_ipc": "fails", "b12x": "unknown", "nccl_ll128": "fails"}
    prediction = on(TWO_SWITCHES, preflight=preflight(tmp_path, fake_findings(**verdicts)))
    push = of(prediction, "one-shot-push")
    assert push.start.able is False
    assert push.estimates == ()
    assert "flashinfer_pcie_ipc absent: why flashinfer_pcie_ipc: E" in push.start.says
    assert of(prediction, "one-shot-pull").start.says == "torch_symm_mem"
    assert of(prediction, "hierarchical").start.able is None  # one of its carriers is not decided
    assert of(prediction, "hierarchical").estimates
    assert of(prediction, "nccl-ring-ll128").start.able is False  # it needs Ring and LL128
    assert of(prediction, "nccl-ring-ll").start.able is True


def test_a_verdict_for_another_number_of_gpus_is_told(tmp_path: Path) -> None:
    found = preflight(tmp_path, fake_findings(nccl_ring="starts"))
    assert "--gpus 2" in " ".join(on("2gpu", preflight=found).notes)
    assert "--gpus" not in " ".join(on(TWO_SWITCHES, preflight=found).notes)


def test_nobody_asked_is_not_known() -> None:
    assert start_of(FAMILIES["two-shot"], None).able is None
    nothing = Preflight(toolchain="t", gpus=8, approaches={})
    assert start_of(FAMILIES["two-shot"], nothing).able is None


def test_an_approach_that_falls_back_does_not_start() -> None:
    ring = Approach(name="Ring", verdict="falls back", why="w")
    assert (
        start_of(FAMILIES["nccl-ring-ll"], Preflight(toolchain="t", gpus=8, approaches={"nccl-ring": ring})).able
        is False
    )


def test_a_toolchain_that_was_not_looked_at_is_none(tmp_path: Path) -> None:
    assert read_preflight(tmp_path, "cu1") is None


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc", "a/b", "x" * 200, "a\0b"])
def test_a_toolchain_is_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--toolchain"):
        read_preflight(tmp_path, name)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "[" * 100_000, '{"preflight": 2}', '{"preflight": 1, "findings": 3}',
     '{"preflight": 1, "box": {"gpus": 8}, "findings": [{"approach": 3}]}', "9" * 5_000,
     '{"preflight": 1, "box": {"gpus": 8}, "findings": ["x"]}',
     '{"preflight": 1, "box": {"gpus": "8"}, "findings": []}'],
)  # fmt: skip
def test_what_is_no_result_of_preflight_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="preflight"):
        preflight(tmp_path, text)


# ------------------------------------------------------------------------------------------------------- measurements


WORKLOAD = Workload(
    name="fake",
    dtype="bfloat16",
    messages=tuple(Message(name=f"s{size}", bytes=size, calls=1) for size in (14_336, 43_008, 1 << 20)),
)


def fake_gpu_run(truth=lambda _env, _candidate, message: 40 + int(message[1:]) / 1e4, **changes) -> Run:
    plan = replace(
        fake_plan(candidates=select_candidates("cuda", "ring_ll"), workload=WORKLOAD),
        **{"engine": "cuda", "ranks": 8, **changes},
    )
    run = fake_run(plan, truth)
    return replace(run, trials=tuple(replace(trial, mode="graph") for trial in run.trials))


def test_a_hosts_own_run_takes_the_place_of_published_constants() -> None:
    own = own_rows(fake_gpu_run())
    prediction = on(TWO_SWITCHES, VERIFY, 1 << 19, own=own)
    assert us(prediction, "nccl-ring-ll") == pytest.approx(44.3, rel=0.1)
    ring = of(prediction, "nccl-ring-ll")
    assert ring.evidence == "measured here, 3 sizes"
    assert ring.validated
    assert ring.estimates[0].high < 2 * ring.estimates[0].low
    assert us(prediction, "two-shot") == us(on(TWO_SWITCHES), "two-shot")  # what was not measured stays


def test_one_measured_size_is_met_too() -> None:
    row = Row(host="this host", machine="this host", family="two-shot", size=VERIFY, us=30)
    prediction = on(TWO_SWITCHES, own=OwnRows(ranks=8, rows=(row,), source="r"))
    assert us(prediction, "two-shot") == pytest.approx(30, rel=0.05)


def test_only_graphs_on_warm_buffers_of_that_environment_count() -> None:
    run = fake_gpu_run()
    eager = replace(run, trials=tuple(replace(trial, mode="eager") for trial in run.trials))
    cold = replace(run, trials=tuple(replace(trial, working_set="cold") for trial in run.trials))
    for wrong in (eager, cold):
        with pytest.raises(InputError, match="no family"):
            own_rows(wrong)
    assert own_rows(run, environment="cu999").source.endswith("here")


@pytest.mark.parametrize("changes", [{"engine": "mpi"}, {"kind": Kind.PREDICTED}, {"kind": Kind.MEANINGLESS}])
def test_runs_that_say_nothing_of_gpus_are_refused(changes) -> None:
    run = fake_gpu_run(engine=changes.get("engine", "cuda"))
    run = replace(run, header=replace(run.header, kind=changes.get("kind", Kind.MEASURED)))
    with pytest.raises(InputError, match="run file"):
        own_rows(run)


# ----------------------------------------------------------------------------------------------------------- the views


def shown(prediction: Prediction, width: int = 400) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(show(prediction, WORKLOAD.messages))
    return console.file.getvalue()


def numbers(text: str) -> Counter[str]:
    return Counter(word for word in text.split() if re.fullmatch(r"[(\d.,)!-]{2,}", word))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_no_latency_is_shortened_on_a_narrow_console(width: int) -> None:
    prediction = on(TWO_SWITCHES, 14_336, VERIFY, 1 << 20)
    text = shown(prediction, width)
    assert "\u2026" not in text
    assert numbers(text) >= numbers(shown(prediction))
    table = [line for line in text.splitlines() if line.startswith(("family", "NCCL Ring LL  "))]
    assert all(len(line) <= max(width, 80) for line in table)
    assert "GPU 0 -> switch 0000:21:00.0" in text


def test_a_familys_row_names_what_would_use_it_where_nobody_asked_what_starts() -> None:
    sizes = 14_336, VERIFY, 1 << 20
    prediction = on(TWO_SWITCHES, *sizes)
    assert "used by: flashinfer-pcie-ipc," in shown(prediction)
    assert "used by: flashinfer-pcie-ipc," in shown(prediction, 80)
    assert "used by: nccl" not in shown(prediction), "NCCL's titles name it"
    one = Approach(name="FlashInfer pcie_ipc", verdict="starts", why="")
    known = on(
        TWO_SWITCHES, *sizes, preflight=Preflight(toolchain="t", gpus=8, approaches={"flashinfer-pcie-ipc": one})
    )
    row = shown(replace(known, families=(of(known, "one-shot-push"),)))
    assert "starts: FlashInfer" in row
    assert "used by" not in row


def test_table_and_json_say_predicted_and_what_is_unvalidated() -> None:
    prediction = on(TWO_SWITCHES, 14_336, VERIFY, 1 << 20)
    text = shown(prediction)
    assert text.startswith("PREDICTED")
    assert text.count("unvalidated") == sum(not found.validated for found in fitted().values())
    found = json.loads(json.dumps(document(prediction, WORKLOAD.messages), allow_nan=False))
    assert found["predicted"] is True
    assert [family["family"] for family in found["families"]] == list(FAMILIES)
    one = found["families"][0]
    assert one["passes"][1] == {"message": "s43008", "calls": 1, "us": one["estimates"][1]["us"]}


def words(picture: str) -> str:
    return " ".join(text for e in ET.fromstring(picture).iter() for text in (e.text or "", e.tail or ""))


@pytest.mark.parametrize("name", reference_names())
def test_the_picture_stands_alone_and_tells_families_apart_without_colour(name: str) -> None:
    prediction = on(name, *LADDER)
    picture = svg(prediction, [1 << 14])
    root = ET.fromstring(picture)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg", "title", "style", "rect", "text", "line", "polygon", "polyline", "path",
    }  # fmt: skip
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    drawn = [p for p in prediction.families if p.estimates]
    assert all(p.family.title in words(picture) for p in drawn)
    ends = [element for element in root.iter() if element.get("stroke-dasharray") and element.find("{*}title") is None]
    marks = [element.get("d", "").count("l") for element in root.iter() if element.get("class") == "mark"]
    assert len(ends) == len(drawn)
    looks = zip([e.get("stroke-dasharray") for e in ends], marks[-len(drawn) :], strict=True)
    assert len(set(looks)) == len(drawn)
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    for element in root.iterfind(".//{*}text"):
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height


def test_names_beside_the_picture_do_not_cover_each_other() -> None:
    for name in reference_names():
        prediction = on(name, *LADDER)
        titles = {p.family.title for p in prediction.families}
        texts = ET.fromstring(svg(prediction, [])).iterfind(".//{*}text")
        heights = sorted(float(text.attrib["y"]) for text in texts if (text.text or "").removesuffix(" *") in titles)
        assert len(heights) == sum(bool(p.estimates) for p in prediction.families)
        assert min(b - a for a, b in pairwise(heights)) >= 14


def test_a_name_that_is_markup_stays_text() -> None:
    evil = replace(read_topology("2gpu"), name="<script>x</script>")
    assert "<script>" not in svg(predict(evil, sizes=LADDER), [])


# ------------------------------------------------------------------------------------------------------------ the verb


def verb(**options) -> None:
    predict_verbs.predict.body(Context(), **options)


def test_the_verb_prints_json_and_writes_a_picture(tmp_path: Path, capsys) -> None:
    verb(topology="2gpu", sizes="42KiB", svg=str(tmp_path / "p.svg"), json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["floor"][0]["bytes"] == 43_008
    assert "43,008 B" in words((tmp_path / "p.svg").read_text())


def test_the_verb_takes_a_workload_unless_told_sizes(capsys) -> None:
    verb(topology=TWO_SWITCHES)
    assert "122 calls" in capsys.readouterr().out
    verb(topology=TWO_SWITCHES, workload="glm-5")
    assert "49,152 B" in capsys.readouterr().out


def test_the_verb_uses_what_preflight_found(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(predict_verbs, "_RUNS", tmp_path)
    verb(topology="2gpu", toolchain="cu1")
    assert "./inv preflight --toolchain cu1" in capsys.readouterr().err
    preflight(tmp_path, fake_findings(nccl_ring="fails"))
    verb(topology="2gpu", toolchain="cu1")
    assert "cannot start: NCCL Ring LL: nccl_ring fails: why nccl_ring: E" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"workload": "kimi-k2", "sizes": "1"}, {"topology": "none"}, {"sizes": "0"}, {"gpus": "0"}, {"gpus": "0-99"},
        {"measured": "/no/such.jsonl"}, {"toolchain": "../x"}, {"workload": "llama"}, {"svg": "/proc/x/y.svg"},
    ],
)  # fmt: skip
def test_the_verb_refuses_in_three_parts_with_exit_code_2(options, capsys) -> None:
    with pytest.raises(Exit) as ending:
        verb(**options)
    assert ending.value.code == 2
    assert "expected:" in capsys.readouterr().err


def test_every_device_on_the_way_has_a_rate() -> None:
    for name in reference_names():
        fabric = make_fabric(completed(read_topology(name), Assumptions()), (), constants())
        links = [link for link in fabric.capacities if "->" in link and "cpu" not in link]
        devices = [node for node in fabric.topology.nodes if isinstance(node, Device)]
        assert len(links) == 2 * len(devices)
        assert all(rate > 0 for rate in fabric.capacities.values())
