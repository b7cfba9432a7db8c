from __future__ import annotations

import datetime as dt
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.version import Version
from rich.console import Console

from images import preflight as images_preflight
from images.conditions import Box
from images.preflight_view import document as preflight_document
from images.rules import Verdict as Found
from images.rules import read_approaches
from lanewise.errors import InputError
from tuning import ledger_view
from tuning.ledger import (
    ANY,
    NODE_CLASSES,
    NVLINK_PAIR,
    Change,
    Entry,
    Evidence,
    EvidenceKind,
    Reopening,
    Standing,
    Verdict,
    about,
    latest,
    reopened,
)
from tuning.ledger_preflight import PREFLIGHT_VERDICTS, STOPS, Finding, PreflightResult, join, unseen
from tuning.ledger_read import SHIPPED, parse_changes, read_ledger, read_preflight, read_verdicts

ROOT = Path(__file__).resolve().parents[2]
OLD, NOW, LATER = dt.date(2026, 1, 1), dt.date(2026, 6, 1), dt.date(2026, 12, 1)


def entry(verdict: str = "works", *, date: dt.date = NOW, toolchain: str = "cu128", node: str = ANY, **more) -> Entry:
    evidence = (Evidence(kind=EvidenceKind.SOURCE, where="https://example.org", says=f"{verdict} on {date}"),)
    stated = {"approach": "ring", "why": "so it is", "evidence": evidence, "origin": "test", **more}
    return Entry(verdict=Verdict(verdict), date=date, toolchain=toolchain, node_class=node, **stated)


def preflight(
    verdict: str, *, date: dt.date = NOW, toolchain: str = "cu128", approach: str = "ring"
) -> PreflightResult:
    finding = Finding(approach=approach, verdict=verdict, why="the code", rule="a-rule", error="", unblock="")
    return PreflightResult(
        toolchain=toolchain,
        date=date,
        read="wheels",
        cuda="12.8.1",
        gpus=8,
        versions={"nvidia-nccl-cu12": "2.27.5", "sglang": "0.5.10"},
        findings=(finding,),
        origin=f"runs/{toolchain}/preflight.json",
    )


def only(standings: tuple[Standing, ...]) -> Standing:
    (standing,) = standings
    return standing


# ------------------------------------------------------------------------------------------------------------- merging


def test_the_later_verdict_wins_and_the_other_is_kept_against_it() -> None:
    for order in (1, -1):
        standing = only(latest([entry("works", date=OLD), entry("faulty", date=LATER)][::order]))
        assert standing.entry.verdict is Verdict.FAULTY
        assert [other.verdict for other in standing.against] == [Verdict.WORKS]


def test_of_one_date_the_later_in_order_wins() -> None:
    assert only(latest([entry("works"), entry("faulty")])).entry.verdict is Verdict.FAULTY


def test_verdicts_that_agree_add_their_evidence() -> None:
    standing = only(latest([entry(date=OLD), entry(date=LATER)]))
    assert standing.entry.date == LATER
    assert [evidence.says for evidence in standing.entry.evidence] == ["works on 2026-12-01", "works on 2026-01-01"]
    assert standing.against == ()


@pytest.mark.parametrize("verdict", ["works", "dominated", "faulty", "unknown"])
def test_that_it_starts_supports_all_but_unsupported(verdict: str) -> None:
    standing = only(join(latest([entry(verdict)]), [preflight("starts", date=LATER)]))
    assert standing.entry.verdict == verdict
    assert standing.entry.evidence[-1].kind is EvidenceKind.PREFLIGHT
    assert standing.against == ()


@pytest.mark.parametrize("found", ["fails", "falls back", "absent"])
def test_newer_preflight_overthrows_what_it_contradicts_and_shows_it(found: str) -> None:
    standing = only(join(latest([entry("works", date=OLD)]), [preflight(found)]))
    assert standing.entry.verdict is Verdict.UNSUPPORTED
    assert [other.verdict for other in standing.against] == [Verdict.WORKS]


def test_of_one_date_preflight_wins() -> None:
    assert only(join(latest([entry("works")]), [preflight("fails", date=NOW)])).entry.verdict is Verdict.UNSUPPORTED


def test_preflight_speaks_to_its_own_toolchains_verdict_before_that_on_all() -> None:
    standings = latest([entry("works", toolchain=ANY), entry("unsupported", toolchain="cu128")])
    joined = {s.entry.toolchain: s for s in join(standings, [preflight("fails", date=LATER)])}
    assert joined["cu128"].against == joined[ANY].against == ()
    assert len(joined["cu128"].entry.evidence) == 2
    assert len(joined[ANY].entry.evidence) == 1


def test_older_preflight_is_shown_against_what_it_contradicts() -> None:
    standing = only(join(latest([entry("works", date=LATER)]), [preflight("fails")]))
    assert standing.entry.verdict is Verdict.WORKS
    assert [other.verdict for other in standing.against] == [Verdict.UNSUPPORTED]


def test_what_was_unsupported_and_now_starts_is_unknown_not_working() -> None:
    standing = only(join(latest([entry("unsupported", date=OLD)]), [preflight("starts")]))
    assert standing.entry.verdict is Verdict.UNKNOWN
    assert "not measured" in standing.entry.why


def test_one_toolchain_does_not_overthrow_a_verdict_on_all() -> None:
    joined = join(latest([entry("works", toolchain=ANY)]), [preflight("fails", date=LATER, toolchain="cu128")])
    assert {s.entry.toolchain: s.entry.verdict for s in joined} == {ANY: "works", "cu128": "unsupported"}


def test_preflight_of_what_has_no_verdict_is_one() -> None:
    joined = join((), [preflight("starts", approach="new"), preflight("fails", approach="newer")])
    assert {s.entry.approach: s.entry.verdict for s in joined} == {"new": "unknown", "newer": "unsupported"}


def test_preflight_says_nothing_of_nvlink() -> None:
    joined = join(latest([entry("works", toolchain=ANY, node=NVLINK_PAIR)]), [preflight("fails", date=LATER)])
    assert {s.entry.node_class: s.entry.verdict for s in joined} == {NVLINK_PAIR: "works", ANY: "unsupported"}


def test_preflight_that_cannot_tell_changes_nothing() -> None:
    assert only(join(latest([entry("unsupported", date=OLD)]), [preflight("unknown")])).entry.verdict == "unsupported"


# ------------------------------------------------------------------------------------------------------------- asking


def test_a_verdict_on_any_speaks_of_each_but_not_of_nvlink() -> None:
    standings = latest([entry(toolchain=ANY), entry(node="vm"), entry(node=NVLINK_PAIR)])
    assert {s.entry.node_class for s in about(standings, node_class="vm")} == {ANY, "vm"}
    assert {s.entry.node_class for s in about(standings, node_class=NVLINK_PAIR)} == {NVLINK_PAIR}
    assert {s.entry.toolchain for s in about(standings, toolchain="cu130")} == {ANY}
    assert about(standings, approach="tree") == ()


@pytest.mark.parametrize(
    ("condition", "change", "holds"),
    [
        ({"what": "nccl", "at_least": Version("2.31.2")}, ("nccl", "2.31.2"), True),
        ({"what": "nccl", "at_least": Version("2.31.2")}, ("nccl", "2.4.8"), False),
        ({"what": "nccl", "above": Version("2.31.2")}, ("nccl", "2.31.2"), False),
        ({"what": "nccl", "above": Version("2.31.2")}, ("nccl", "2.31.10"), True),
        ({"what": "nccl"}, ("sglang", "1"), False),
        ({"what": "driver"}, ("driver", "590"), True),
        ({"what": "topology", "value": "vm"}, ("topology", "vm"), True),
        ({"what": "topology", "value": "vm"}, ("topology", "two-sockets"), False),
    ],
)
def test_what_reopens(condition, change, holds: bool) -> None:
    standings = latest([entry(reopens=(Reopening(why="because", **condition),))])
    found = reopened(standings, [Change(what=change[0], value=change[1])])
    assert bool(found) is holds


def test_preflight_of_other_versions_is_told_unless_one_was_of_all_changes() -> None:
    results = [preflight("starts")]
    (stale,) = unseen(results, [Change(what="nccl", value="2.32.3"), Change(what="sglang", value="0.5.10")])
    assert stale[1].what == "nccl"
    assert len(unseen(results, [Change(what="nccl", value="2.32.3")])) == 1
    other = replace(results[0], toolchain="cu130", versions={"nvidia-nccl-cu13": "2.30.7"})
    assert unseen([*results, other], [Change(what="nccl", value="2.30.7")]) == ()
    shown = ledger_view.show_reopened((), [stale], [stale[1]])
    assert "./inv preflight --toolchain cu128 --pin nvidia-nccl-cu12==2.32.3" in shown


def test_verdicts_alike_are_one_line_only_if_all_combinations_are_there() -> None:
    square = latest([entry(toolchain=t, node=n) for t in ("a", "b") for n in ("vm", "two-sockets")])
    assert [len(listed(square, width).splitlines()) for width in (160, 80)] == [2, 3]
    assert [len(listed(square[:3], width).splitlines()) for width in (160, 80)] == [4, 5]


def listed(standings: tuple[Standing, ...], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(ledger_view.Listing(standings))
    return console.file.getvalue()


@pytest.mark.parametrize("width", range(40, 100))
def test_narrow_consoles_get_one_line_a_verdict_without_its_reason(width: int) -> None:
    nodes = list(NODE_CLASSES)[1:]
    why = 60 * "so it is "
    alone = [entry(node=node, approach=f"of-{node}", why=why) for node in nodes]
    standings = latest([*alone, *(entry(node=node, why=why) for node in nodes)])
    lines = listed(standings, width).splitlines()
    assert len(lines) == 1 + len(nodes) + 1 + 1
    assert all(len(line) <= width for line in lines)
    assert "so it is" not in "".join(lines)
    assert lines[-1] == "./inv verdicts APPROACH tells why"


@pytest.mark.parametrize("width", [60, 80, 99, 100, 160])
def test_no_line_of_the_list_ends_in_blanks(tmp_path: Path, width: int) -> None:
    lines = listed(read_ledger(tmp_path).standings, width).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert ("why" in lines[0]) is (width >= 100)


def test_a_release_that_others_were_looked_at_in_closes_rather_than_opens() -> None:
    above = Reopening(what="nccl", above=Version("2.32.3"), why="not read")
    asked = entry("unknown", reopens=(Reopening(what="nccl", at_least=Version("2.29.2"), why="asks for NVLink"),))
    other = entry("unsupported", toolchain="cu130", reopens=(above,), why="there is no NVLink")

    def closers(release: str, beside: Entry) -> tuple[Standing, ...]:
        standings = latest([asked, beside])
        found = reopened(standings[:1], [Change(what="nccl", value=release)], beside=standings)
        assert len(found) == 1
        assert ("likely closes it" in ledger_view.show_reopened(found, (), ())) is bool(found[0].closers)
        return found[0].closers

    assert [closer.entry for closer in closers("2.32.3", other)] == [other]
    assert closers("2.32.4", other) == ()
    for unlike in ({"verdict": Verdict.WORKS}, {"node_class": "vm"}, {"approach": "tree"}, {"reopens": ()}):
        assert closers("2.32.3", replace(other, **unlike)) == ()


def test_entries_and_their_combinations_are_both_counted() -> None:
    any_change = (Reopening(what="nccl", why="new"),)
    square = [entry(toolchain=t, node=n, reopens=any_change) for t in ("a", "b") for n in ("vm", "two-sockets")]
    changes = [Change(what="nccl", value="3")]

    def said(entries: list[Entry]) -> str:
        return ledger_view.show_reopened(reopened(latest(entries), changes), (), changes).splitlines()[0]

    alone = entry(approach="tree", reopens=any_change)
    assert said([*square, alone]) == "nccl 3 reopens 2 entries (5 combinations of toolchain and nodes):"
    assert said([alone]) == "nccl 3 reopens 1 entry:"
    assert said([]) == "nccl 3 reopens no verdicts"


# ------------------------------------------------------------------------------------------------------- what ships


def test_the_shipped_ledger_speaks_of_every_approach_of_the_catalogue_and_of_no_other() -> None:
    groups = ("allreduce", "all-to-all")
    expected = {approach.id for approach in read_approaches() if approach.group in groups}
    assert {shipped.approach for shipped in read_verdicts(SHIPPED)} == expected


def test_every_shipped_verdict_on_pcie_says_what_reopens_it() -> None:
    closed = [e.key for e in read_verdicts(SHIPPED) if not e.reopens and e.node_class != NVLINK_PAIR]
    assert closed == []


def test_shipped_runs_exist_and_only_the_nvlink_pair_rests_on_them_alone() -> None:
    for shipped in read_verdicts(SHIPPED):
        runs = [evidence for evidence in shipped.evidence if evidence.kind is EvidenceKind.RUN]
        assert all((ROOT / run.where).is_file() for run in runs)
        if shipped.node_class != NVLINK_PAIR:
            assert len(runs) < len(shipped.evidence)
            assert all("H200" in run.says for run in runs)


def test_shipped_preflight_evidence_names_rules_of_the_catalogue() -> None:
    rules = {rule.id for approach in read_approaches() for rule in approach.rules}
    for shipped in read_verdicts(SHIPPED):
        named = [e.where.split(" on ")[0] for e in shipped.evidence if e.kind is EvidenceKind.PREFLIGHT]
        assert set(named) <= rules


def test_the_campaigns_dead_ends_are_there_with_what_was_believed() -> None:
    believed = {shipped.approach for shipped in read_verdicts(SHIPPED) if shipped.believed}
    assert believed >= {
        "nccl-ring", "nccl-tree", "sglang-custom-allreduce-v1", "flashinfer-trtllm-fusion", "sglang-torch-symm-mem",
        "flashinfer-a2a", "sglang-mscclpp", "flashinfer-pcie-ipc", "b12x",
    }  # fmt: skip


def test_without_runs_the_shipped_ledger_stands(tmp_path: Path) -> None:
    ledger = read_ledger(tmp_path / "none")
    (tree,) = about(ledger.standings, approach="nccl-tree", node_class="vm")
    assert tree.entry.verdict is Verdict.DOMINATED
    explained = ledger_view.explain(tree)
    assert "believed before: incompatible with CUDA graphs" in explained
    assert "36 of 36" in explained


# ------------------------------------------------------------------------------------------------------- own verdicts


STATED = {
    "approach": "nccl-tree",
    "toolchains": ["any"],
    "nodes": ["any"],
    "verdict": "works",
    "date": "2099-01-01",
    "why": "we measured it",
    "evidence": [{"run": "runs/x.jsonl", "says": "0.9 (0.8-0.95) of ring, better"}],
    "reopens": [{"what": "nccl", "at_least": "2.40", "why": "new"}],
}


def written(tmp_path: Path, *verdicts: object, text: str = "") -> Path:
    path = tmp_path / "verdicts.yaml"
    path.write_text(text or json.dumps({"verdicts": verdicts}))
    return path


def test_an_own_verdict_of_a_later_date_wins(tmp_path: Path) -> None:
    written(tmp_path, STATED)
    (tree,) = about(read_ledger(tmp_path).standings, approach="nccl-tree", node_class="vm")
    assert tree.entry.verdict is Verdict.WORKS
    assert tree.against[0].origin == "shipped"
    written(tmp_path, {**STATED, "date": "2020-01-01"})
    (tree,) = about(read_ledger(tmp_path).standings, approach="nccl-tree", node_class="vm")
    assert tree.entry.verdict is Verdict.DOMINATED


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"verdict": "great"}, "works, dominated, unsupported, faulty, unknown"),
        ({"evidence": []}, "no evidence"),
        ({"evidence": [{"says": "x"}]}, "0 kinds"),
        ({"evidence": [{"rumour": "x", "says": "y"}]}, "rumour"),
        ({"evidence": [{"run": "", "says": "y"}]}, "as run"),
        ({"date": "2026-02-30"}, "2026-02-30"),
        ({"date": "yesterday"}, "yesterday"),
        ({"date": 20260101}, "20260101"),
        ({"nodes": ["moon"]}, "moon"),
        ({"nodes": []}, "names no nodes"),
        ({"toolchains": "any"}, "a list"),
        ({"toolchains": ["a b"]}, "a b"),
        ({"approach": ["x"]}, "approach"),
        ({"why": "x\x1b[2J"}, "printable"),
        ({"why": "x" * 2000}, "printable"),
        ({"surprise": 1}, "surprise"),
        ({"reopens": [{"what": "nccl", "at_least": 2.31, "why": "x"}]}, "in quotes"),
        ({"reopens": [{"what": "nccl", "at_least": "1", "above": "2", "why": "x"}]}, "at once"),
        ({"reopens": [{"what": "topology", "is": "moon", "why": "x"}]}, "moon"),
        ({"reopens": [{"what": "topology", "above": "1", "why": "x"}]}, "node class"),
        ({"reopens": [{"what": "nccl"}]}, "lacks why"),
        ({"reopens": "nccl"}, "a list"),
    ],
)
def test_bad_verdicts_are_named(tmp_path: Path, changed, says: str) -> None:
    with pytest.raises(InputError) as error:
        read_verdicts(written(tmp_path, {**STATED, **changed}))
    assert says in str(error.value)
    assert "nccl-tree" in str(error.value) or "approach" in changed


@pytest.mark.parametrize("key", ["approach", "toolchains", "nodes", "verdict", "date", "why", "evidence"])
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match=f"lacks {key}"):
        read_verdicts(written(tmp_path, {name: value for name, value in STATED.items() if name != key}))


def test_two_verdicts_on_the_same_are_refused(tmp_path: Path) -> None:
    twice = {**STATED, "toolchains": ["cu130", "any"]}
    with pytest.raises(InputError, match="two verdicts on nccl-tree, any, any"):
        read_verdicts(written(tmp_path, STATED, twice))


@pytest.mark.parametrize(
    "text",
    [
        "[]", "verdicts: {}", "verdicts: [1]", "verdicts: [[]]", "x: 1", "[" * 5000, "a: &a [*a]", "\t", "verdicts: [",
        "verdicts: []\nverdicts: []", "!!python/object/apply:os.system [id]",
    ],
)  # fmt: skip
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_verdicts(written(tmp_path, text=text))


def test_mutated_ledgers_end_in_verdicts_or_a_named_error(tmp_path: Path) -> None:
    draw, text = random.Random(6), yaml.dump({"verdicts": [STATED]})
    for _ in range(400):
        at = draw.randrange(len(text))
        mutated = text[:at] + draw.choice("[]{}:-#&*!|>%@`'\"\n\t\0é0") + text[at + draw.randrange(3) :]
        try:
            read_verdicts(written(tmp_path, text=mutated))
        except InputError:
            continue


# ---------------------------------------------------------------------------------------------------------- preflight


REPORT = {
    "preflight": 1,
    "toolchain": "cu128",
    "read": "wheels",
    "date": "2099-11-29T18:53:28+00:00",
    "box": {"cuda": "12.8.1", "gpus": 8},
    "versions": {"nvidia-nccl-cu12": "2.27.5", "sglang": "0.5.10.post1"},
    "findings": [
        {
            "approach": "sglang-torch-symm-mem", "verdict": "starts", "why": "mended", "rule": "r", "error": "",
            "unblock": "",
        }
    ],
}  # fmt: skip


def reported(runs: Path, **changed: object) -> Path:
    path = runs / "cu128" / "preflight.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**REPORT, **changed}))
    return path


def test_a_newer_preflight_contradicts_the_shipped_verdict_in_sight(tmp_path: Path) -> None:
    reported(tmp_path)
    ledger = read_ledger(tmp_path)
    (standing,) = about(ledger.standings, approach="sglang-torch-symm-mem", toolchain="cu128")
    assert standing.entry.verdict is Verdict.UNKNOWN
    assert "against it: unsupported" in ledger_view.explain(standing)
    assert ledger_view.document([standing])[0]["against"][0]["origin"] == "shipped"


def test_every_verdict_of_preflight_comes_back_as_it_was_written_also_without_a_rule(tmp_path: Path) -> None:
    document = json.loads((ROOT / "images/preflight/cu128.json").read_text())
    nothing_decides = images_preflight.Finding(
        approach=read_approaches()[0], verdict=Found.UNKNOWN, rule=None, evidence=(), reason="no rule decides"
    )
    report = images_preflight.Report(
        toolchain="cu128", where="wheels", box=Box(cuda="12.8.1"), versions={}, findings=[nothing_decides], remarks=[],
        date=document["date"],
    )  # fmt: skip
    document["findings"] += preflight_document(report)["findings"]
    assert document["findings"][-1]["rule"] is None
    assert {finding["verdict"] for finding in document["findings"]} == set(PREFLIGHT_VERDICTS)
    result = read_preflight(reported(tmp_path, **document))
    for finding, written_as in zip(result.findings, document["findings"], strict=True):
        for name in ("approach", "verdict", "why", "error", "unblock"):
            assert getattr(finding, name) == " ".join(written_as[name].split())
        assert finding.rule == (written_as["rule"] or "")
    stated = {finding.approach: finding.verdict in STOPS for finding in result.findings[:-1]}
    joined = {standing.entry.approach: standing.entry.verdict for standing in join((), [result])}
    assert {name: verdict is Verdict.UNSUPPORTED for name, verdict in joined.items()} == stated


def test_a_damaged_preflight_result_is_remarked_and_the_verdicts_stand(tmp_path: Path) -> None:
    path = reported(tmp_path, box=[])
    ledger = read_ledger(tmp_path)
    assert ledger.results == ()
    assert [remark for remark in ledger.remarks if str(path) in remark and "box is []" in remark] == list(
        ledger.remarks
    )
    assert len(ledger.remarks) == 1
    assert about(ledger.standings, approach="nccl-tree")


@pytest.mark.parametrize(
    "changed",
    [
        {"preflight": 2}, {"date": "soon"}, {"date": 1}, {"box": []}, {"versions": []}, {"versions": {"x": "y"}},
        {"findings": [{}]}, {"findings": 1}, {"toolchain": None}, {"box": {"cuda": "12", "gpus": float("inf")}},
        {"findings": [{**REPORT["findings"][0], "verdict": "flies"}]},
        {"findings": [{**REPORT["findings"][0], "rule": None}]}, {"findings": [None]}, {"versions": {"x": 1}},
        {"versions": {"x": 9000 * "1"}},
    ],
)  # fmt: skip
def test_a_damaged_preflight_result_is_named(tmp_path: Path, changed) -> None:
    with pytest.raises(InputError, match="is no result of preflight") as error:
        read_preflight(reported(tmp_path, **changed))
    assert not re.search(r"\w*Error|\b(?:str|dict|list|int|NoneType)\b", error.value.what)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "null", '{"preflight": 1}'])
def test_what_is_no_preflight_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_preflight(path)


# ------------------------------------------------------------------------------------------------------------ changes


def test_changes_are_read_and_a_toolchain_stands_for_its_versions(tmp_path: Path) -> None:
    reported(tmp_path)
    ledger = read_ledger(tmp_path)
    changes = parse_changes(["NCCL = 2.32.3", "topology=vm", "toolchain=cu128"], ledger)
    assert [(change.what, change.value) for change in changes] == [
        ("nccl", "2.32.3"), ("topology", "vm"), ("cuda", "12.8.1"), ("nccl", "2.27.5"), ("sglang", "0.5.10.post1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["nccl", "nccl=", "=1", "nccl=new", f"nccl={9000 * '1'}", "cats=1", "topology=moon", "toolchain=cu999",
     "toolchain=cu128"],
)  # fmt: skip
def test_bad_changes_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="--changed is"):
        parse_changes([text], read_ledger(tmp_path))


def test_a_new_nccl_reopens_the_failed_search_and_not_what_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    ledger = read_ledger(tmp_path)
    found = reopened(ledger.standings, parse_changes(["nccl=2.32.3"], ledger))
    assert ("nccl-ring", "cu130", "two-sockets") in [item.standing.entry.key for item in found]
    assert "flashinfer-a2a" not in {item.standing.entry.approach for item in found}
    assert ledger_view.reopened_document(found, (), ())["reopened"][0]["reasons"]


def test_every_node_class_has_a_meaning_with_reference_nodes_that_exist() -> None:
    text = " ".join(NODE_CLASSES.values())
    for path in (ROOT / "inventory/topologies").glob("*.yaml"):
        assert path.stem in text
