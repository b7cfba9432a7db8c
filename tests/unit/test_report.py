from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from invoke.context import Context

from lanewise.errors import InputError
from tests.unit.makers import fake_launch, fake_plan, fake_run, fake_trial
from tests.unit.makers_topology import fake_record
from tuning import report_verbs
from tuning.candidates import select_candidates
from tuning.ledger import latest
from tuning.ledger_read import SHIPPED, read_verdicts
from tuning.predict import predict
from tuning.predict_inputs import MEASURED_AS
from tuning.report import Beside, make_report
from tuning.report_document import Bullets, Cell, Commands, Paragraph, Report, Section, Table, Weight, line
from tuning.report_html import html
from tuning.report_markdown import markdown
from tuning.report_svg import Line, Point, measured_svg
from tuning.runfile import Kind, Run
from tuning.serving.any_run import read_any_run
from tuning.serving.report import serving_report
from tuning.speculation_request import Asked, question
from tuning.speculation_request import predict as predict_speculation
from tuning.topology_read import read_topology
from tuning.trial import Status
from tuning.workload import load_workload

ROOT = Path(__file__).resolve().parents[2]
NODE = "8gpu-2switch-1socket"
CANDIDATES = "default,ring_ll,ring_simple,p2p_off,symm_mem_one_shot"
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)>"
    "![x](http://evil.example/y)\x1b[2J\n# |h"
)
Truth = Callable[[str, str, str], float]


def mpi_run(truth: Truth = lambda _e, c, _m: 8.0 if c == "ring" else 10.0, **options) -> Run:
    return fake_run(fake_plan(**options), truth)


def likely(times: dict[str, float], ranks: int = 8) -> Truth:
    """Times as they are predicted for the node, times a factor for some candidates."""
    messages = load_workload("kimi-k2").messages
    prediction = predict(read_topology(NODE), sizes=[m.bytes for m in messages], gpus=range(ranks))
    us = {(p.family.name, e.size): e.us for p in prediction.families for e in p.estimates}
    sizes = {message.name: message.bytes for message in messages}
    return lambda _env, name, message: times.get(name, 1) * us[MEASURED_AS.get(name, "nccl-ring-ll"), sizes[message]]


def gpu_run(truth: Truth | None = None, *, ranks: int = 8, path: str = "gpu.jsonl", kind: Kind = Kind.MEASURED) -> Run:
    plan = fake_plan(workload=load_workload("kimi-k2"), candidates=select_candidates("cuda", CANDIDATES), margin=0.05)
    plan = replace(plan, engine="cuda", ranks=ranks, modes=("graph",))
    run = fake_run(plan, truth or likely({}), path=Path(path), kind=kind)
    return replace(run, trials=tuple(replace(trial, mode="graph") for trial in run.trials))


def on_node(run: Run, **options) -> Report:
    return make_report([run], Beside(topology=read_topology(NODE), **options))


def with_header(run: Run, **changes) -> Run:
    return replace(run, header=replace(run.header, **changes))


def section(report: Report, title: str) -> Section:
    return next(found for found in report.sections if found.title.startswith(title))


def words(part: Section) -> str:
    """All text of a section."""
    found: list[str] = []
    for block in part.blocks:
        match block:
            case Paragraph():
                found.append(block.text)
            case Bullets():
                found += block.items
            case Commands():
                found += block.lines
            case Table():
                found += [*block.head, *(" ".join(cell.text for cell in row) for row in block.rows)]
    return "\n".join(found)


def speculation(**options):
    given = {"baseline": "82-89", "with_speculation": "54", "accept_length": "", "allreduce": ("43008=200-250",)}
    asked = Asked(
        model="kimi-k2", gpu="rtx-pro-6000", gpus=8, draft_tokens=3, instead=(), per_position="", run="",
        **{**given, **options},
    )  # fmt: skip
    return predict_speculation(question(asked))


class Page(HTMLParser):
    """What a browser would make of a page: its tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


# ------------------------------------------------------------------------------------------------------------ verdict


def test_the_verdict_comes_first_and_names_the_best_with_its_interval() -> None:
    first = make_report([mpi_run()], Beside()).sections[0]
    lead = first.blocks[0]
    assert first.title == "Verdict"
    assert isinstance(lead, Paragraph)
    assert lead.weight is Weight.LEAD
    assert re.match(r"ring is the best of 2 on here .*: it takes 80\.\d % \(95 %: \d\d\.\d to \d\d\.\d\)", lead.text)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_where_nothing_is_better_the_verdict_says_so(factor: float) -> None:
    report = make_report([mpi_run(lambda _e, c, _m: 10.0 * (factor if c == "ring" else 1))], Beside())
    said = words(report.sections[0])
    assert said.startswith("Nothing measured is better than default")
    assert said.count("nothing is better") == 2  # a line a size
    assert "of these sizes something is" not in said


def test_where_nothing_is_better_together_the_verdict_counts_the_sizes_where_something_is() -> None:
    times = {("ring", "small"): 13.0, ("ring", "large"): 8.0}
    said = words(make_report([mpi_run(lambda _e, c, m: times.get((c, m), 10.0))], Beside()).sections[0])
    assert said.startswith("Nothing measured is better than default")
    assert "At 1 of these sizes something is." in said


def test_a_baseline_without_numbers_is_no_verdict_for_it() -> None:
    run = mpi_run()
    alone = replace(run, trials=tuple(trial for trial in run.trials if trial.candidate != "default"))
    for left in (alone, replace(run, trials=())):
        said = words(make_report([left], Beside()).sections[0])
        assert said.startswith("Not answered: default has no numbers on here")
        assert said.count("no numbers") == 1 + 2  # and a line a size
        assert "is better" not in said


def test_each_size_has_its_own_best() -> None:
    report = make_report([mpi_run(lambda _e, c, m: 8.0 if (c, m) == ("ring", "large") else 10.0)], Beside())
    small, large = section(report, "Verdict").blocks[1].rows
    assert (small[4].text, small[-1].text) == ("default", "nothing is better")
    assert large[4].text == "ring"


def test_ranks_on_a_cpu_say_nothing_about_gpus() -> None:
    assert "it says nothing about GPUs" in words(section(make_report([mpi_run()], Beside()), "Verdict"))


def test_environments_are_compared_in_the_verdict() -> None:
    run = mpi_run(lambda e, _c, _m: 12.0 if e == "cu130" else 10.0, environments=("cu128", "cu130"))
    assert "cu130:default against cu128:default: worse" in words(section(make_report([run], Beside()), "Verdict"))


def test_a_best_candidate_that_may_corrupt_data_is_warned_of() -> None:
    run = gpu_run(likely({"symm_mem_one_shot": 0.2}))
    fast = replace(run.header.plan.candidates[-1], parameters={"proto": "LL128"})
    plan = replace(run.header.plan, candidates=(*run.header.plan.candidates[:-1], fast))
    assert "LL128 may corrupt" not in words(section(on_node(run), "Verdict"))
    assert "LL128 may corrupt" in words(section(on_node(with_header(run, plan=plan)), "Verdict"))


def test_times_that_mean_nothing_give_endings_only() -> None:
    report = make_report([gpu_run(kind=Kind.MEANINGLESS)], Beside())
    said = words(section(report, "Verdict"))
    assert "meaningless" in said
    assert "here ring_ll 10 10 ok" in said
    assert not report.pictures
    assert "us" not in said.split()


# ---------------------------------------------------------------------------------------------------------- predicted


def test_floor_and_bounds_stand_beside_what_was_measured() -> None:
    report = on_node(gpu_run())
    table = section(report, "Verdict").blocks[1]
    prediction = predict(read_topology(NODE), sizes=[43_008])
    assert table.head[-2:] == ("floor, us (predicted)", "bounds, us (predicted)")
    assert table.rows[1][-2].text == f"{prediction.floor.time_us(43_008):.1f}"
    assert [picture.name for picture in report.pictures] == ["latency-1.svg", "predicted-1.svg"]
    assert "PREDICTED for 8gpu-2switch-1socket" in words(section(report, "Latency"))
    assert "ring_ll: 2 of 2 sizes within the bounds" in words(section(report, "Verdict"))


def test_what_takes_longer_than_predicted_is_sent_to_diagnosis() -> None:
    said = words(section(on_node(gpu_run(likely({"ring_ll": 10}))), "Verdict"))
    assert "ring_ll: 0 of 2 sizes within the bounds" in said
    assert "./inv diagnose" in said


def test_times_below_the_physical_floor_cannot_be_right() -> None:
    said = words(section(on_node(gpu_run(likely({"symm_mem_one_shot": 0.02}))), "Verdict"))
    assert "below the physical floor" in said
    assert "below the physical floor" not in words(section(on_node(gpu_run()), "Verdict"))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (mpi_run(), "engine mpi"),
        (with_header(gpu_run(), node={"gpus": [{"name": "H200", "compute_capability": "9.0"}]}), "H200 (9.0)"),
        (with_header(gpu_run(), node={"gpus": "unknown"}), "--topology"),
        (with_header(gpu_run(ranks=4), node=fake_record()), "has 3 GPUs, and 4 ranks"),
        (with_header(gpu_run(ranks=3), node=fake_record()), "does not say that the GPUs are SM120"),
    ],
)
def test_where_nothing_can_be_predicted_the_report_says_why(run: Run, says: str) -> None:
    said = words(section(make_report([run], Beside()), "Latency"))
    assert "Measured only, without physical floor and predicted bounds" in said
    assert says in said


def test_the_runs_own_node_record_gives_the_topology() -> None:
    run = with_header(gpu_run(ranks=2), node=fake_record())
    report = make_report([run], Beside())
    assert "PREDICTED for the run's node: 2 GPUs" in words(section(report, "Latency"))


def test_gpus_that_are_no_sm120_stay_unpredicted_whatever_topology_is_named() -> None:
    run = with_header(gpu_run(), node={"gpus": [{"name": "H200", "compute_capability": "9.0"}] * 8})
    assert len(on_node(run).pictures) == 1


def test_nccls_own_choice_is_the_family_where_it_was_always_the_same() -> None:
    run = gpu_run()
    chosen = {"algorithm": "RING", "protocol": "LL", "channels": 8}
    said = [replace(t, choice=chosen) if t.candidate == "default" else t for t in run.trials]
    assert "default: 2 of 2 sizes" in words(section(on_node(replace(run, trials=tuple(said))), "Verdict"))
    said[0] = replace(said[0], choice={**chosen, "protocol": "SIMPLE"})
    assert "default: 2 of 2" not in words(section(on_node(replace(run, trials=tuple(said))), "Verdict"))


# ------------------------------------------------------------------------------------------------ tokens, ledger, rest


def test_rates_that_are_given_become_a_verdict_and_a_picture() -> None:
    report = on_node(gpu_run(), speculation=speculation())
    assert "PREDICTED from the rates that were given: speculation with 2 drafts is slower" in words(report.sections[1])
    assert report.pictures[-1].name == "speculation.svg"
    assert "2 1.59-3.00 54 82-89 2.41-4.94 no" in words(section(report, "Tokens"))


def test_without_rates_nothing_is_said_of_tokens() -> None:
    assert "--baseline" in words(section(on_node(gpu_run()), "Tokens"))


def test_the_ledgers_rows_on_what_was_measured_are_shown_and_no_others() -> None:
    report = on_node(gpu_run(), standings=latest(read_verdicts(SHIPPED, "shipped")))
    approaches = {row[0].text for row in section(report, "What is already concluded").blocks[1].rows}
    assert {"nccl-ring", "torch-symm-mem"} <= approaches
    assert "deepep" not in approaches
    assert {entry["approach"] for entry in report.document["ledger"]} == approaches


def test_toolchains_whose_verdicts_differ_are_set_side_by_side() -> None:
    standings = latest(read_verdicts(SHIPPED, "shipped"))
    report = make_report([mpi_run(environments=("cu128", "cu130"))], Beside(standings=standings))
    said = words(section(report, "What is already concluded"))
    assert "Where verdicts on cu128 and cu130 differ" in said
    assert "flashinfer-pcie-ipc unsupported works" in said


def test_the_ledger_speaks_on_the_best_candidate_in_the_verdict() -> None:
    standings = latest(read_verdicts(SHIPPED, "shipped"))
    report = on_node(gpu_run(likely({"symm_mem_one_shot": 0.5})), standings=standings)
    assert "on symm_mem_one_shot (torch-symm-mem, toolchain any): unknown" in words(section(report, "Verdict"))


def test_several_runs_are_described_and_never_judged() -> None:
    other = with_header(replace(mpi_run(), path=Path("other.jsonl")), toolkit={"revision": "1" * 40, "changed": True})
    report = make_report([mpi_run(), other], Beside())
    assert [s.title for s in report.sections[:2]] == ["Verdict: fake.jsonl", "Verdict: other.jsonl"]
    said = words(section(report, "What differs"))
    assert "never judged" in said
    assert "toolkit revision" in said
    assert report.document["between_runs"][0]["overall"]["outcome"] == "not comparable"


def test_commands_hold_revision_and_the_seed_that_was_drawn() -> None:
    command = ["/somewhere/inv", "--search-root", "/x", "bench-allreduce", "--candidates", "a b"]
    said = words(section(make_report([with_header(mpi_run(), command=command)], Beside()), "How to reproduce"))
    assert f"git checkout {'0' * 40}" in said
    assert "./inv bench-allreduce --candidates 'a b' --seed 1\n" in said


@pytest.mark.parametrize(
    "command", [["sh", "-c", "rm -rf /"], ["inv", "test; rm"], [], "campaign", {"a": 1}, [None, 3]]
)
def test_a_command_that_is_none_of_the_toolkits_is_not_shown(command: object) -> None:
    said = words(section(make_report([with_header(mpi_run(), command=command)], Beside()), "How to reproduce"))
    assert "rm" not in said
    assert "does not tell the command" in said


def test_words_of_a_command_cannot_end_it() -> None:
    command = ["inv", "campaign", "--output", "x; rm -rf ~\n$(reboot)`"]
    said = words(section(make_report([with_header(mpi_run(), command=command)], Beside()), "How to reproduce"))
    assert "./inv campaign --output 'x; rm -rf ~ $(reboot)`' --seed 1\n" in said


def test_failures_are_results_too() -> None:
    failed = fake_trial(candidate="ring", status=Status.CRASHED, reason="died of a fault", samples=())
    run = mpi_run(lambda _e, _c, _m: 10.0)
    run = replace(run, trials=(*(t for t in run.trials if t.candidate != "ring"), failed))
    report = make_report([run], Beside())
    assert "here:ring: crashed: died of a fault" in words(section(report, "Every result"))
    assert "Nothing measured is better" in words(report.sections[0])


# ----------------------------------------------------------------------------------------------------------- writings


def full_report() -> Report:
    return on_node(gpu_run(), speculation=speculation(), standings=latest(read_verdicts(SHIPPED, "shipped")))


def test_both_writings_hold_every_section_and_number() -> None:
    report = full_report()
    page, text = html(report), markdown(report)
    for part in report.sections:
        assert f"<h2>{part.title}</h2>" in page
        assert f"## {part.title}\n" in text
        for block in part.blocks:
            for cell in (cell for row in block.rows for cell in row) if isinstance(block, Table) else ():
                assert line(cell.text).split("'")[0].split("&")[0] in page
                assert cell.text.split("[")[0].split("*")[0] in text or "<" in cell.text
    assert all(f"]({picture.name})" in text for picture in report.pictures)


def test_the_page_needs_no_network_and_no_script() -> None:
    page = Page(html(full_report()))
    assert "script" not in page.tags
    assert page.tags & {"link", "iframe", "object", "a", "form"} == set()
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == 3
    assert all(value.startswith("data:image/svg+xml;base64,") for value in sources)
    assert any("default-src 'none'" in value for _, value in page.attributes)
    assert "url(" not in html(full_report()).split("</style>")[0]


def test_pictures_are_well_formed_and_grey() -> None:
    for picture in full_report().pictures:
        ET.fromstring(picture.svg)
        for colour in re.findall(r"#([0-9a-f]{6})\b", picture.svg):
            parts = [int(colour[at : at + 2], 16) for at in (0, 2, 4)]
            assert max(parts) - min(parts) <= 8, colour
        assert not re.search(r"<script|href|\bon\w+=", picture.svg)


def hostile(run: Run) -> Run:
    """The run with hostile text wherever a run file may hold text."""
    nasty = {HOSTILE: HOSTILE}
    node = {"host": {"hostname": HOSTILE, "kernel": HOSTILE}, "cpu": {"model_name": HOSTILE, "threads": 2}, **nasty}
    plan = replace(
        run.header.plan,
        candidates=tuple(replace(candidate, meaning=HOSTILE) for candidate in run.header.plan.candidates),
        workload=replace(run.header.plan.workload, source=HOSTILE),
    )
    run = with_header(
        run,
        plan=plan,
        created=HOSTILE,
        toolkit={"revision": HOSTILE, "changed": True},
        node={**node, "gpus": [{"name": HOSTILE, "compute_capability": HOSTILE}], "driver": HOSTILE},
        environments={
            env.name: {"python": HOSTILE + env.name, "libraries": {HOSTILE: HOSTILE}, "nccl": nasty}
            for env in plan.environments
        },
        worker={"name": HOSTILE, "sha256": HOSTILE},
        variables={"NCCL_" + HOSTILE: HOSTILE, "NCCL_FENCE": "````"},
        command=["inv", "campaign", HOSTILE],
    )
    failed = fake_trial(candidate="ring", status=Status.CRASHED, reason=HOSTILE, samples=(), launch="bad")
    trials = [replace(trial, choice=nasty) for trial in run.trials]
    launches = {**run.launches, "bad": fake_launch(launch="bad", output=(HOSTILE,))}
    return replace(run, path=Path(HOSTILE + run.path.name), trials=(*trials, failed), launches=launches)


def hostile_report() -> Report:
    run = hostile(mpi_run(environments=("cu128", "cu130")))
    return make_report([run, hostile(gpu_run())], Beside(topology=read_topology(NODE), speculation=speculation()))


def test_hostile_text_of_a_run_file_stays_text_in_the_page() -> None:
    plain, nasty = Page(html(full_report())), Page(html(hostile_report()))
    assert nasty.tags <= plain.tags
    assert {name for name, _ in nasty.attributes} <= {name for name, _ in plain.attributes}
    assert all(value.startswith("data:") for name, value in nasty.attributes if name == "src")
    assert "\x1b" not in html(hostile_report())


def test_hostile_text_of_a_run_file_stays_text_in_markdown() -> None:
    report = hostile_report()
    text = markdown(report)
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "<img" not in outside
    pictures = re.findall(r"(?<!\\)!\[.*?(?<!\\)\]\((.*?)\)", outside)
    assert pictures == [picture.name for picture in report.pictures]
    assert len(re.findall(r"(?<!\\)\]\(", outside)) == len(pictures)  # and no link
    headings = [line for line in outside.splitlines() if re.match(r"#+ ", line)]
    assert len(headings) == 1 + len(report.sections)
    assert "\n`````\n" in text  # longer than the fence that a variable holds
    assert "\x1b" not in text


def test_a_document_of_hostile_runs_is_json() -> None:
    assert json.loads(json.dumps(hostile_report().document, allow_nan=False))["runs"][0]["kind"] == "measured"


@pytest.mark.parametrize("value", [None, 3, "x", [], [3], {}, {"a": {"b": []}}, [[{}]], True])
@pytest.mark.parametrize("field", ["gpus", "driver", "pci", "numa", "iommu"])
def test_odd_node_records_make_no_trouble(field: str, value: object) -> None:
    node = {**fake_record(), field: value}
    report = make_report([with_header(gpu_run(ranks=2), node=node)], Beside())
    assert html(report)
    assert markdown(report)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "runs").glob("*.jsonl")), ids=lambda path: path.stem)
def test_real_runs_make_reports(path: Path) -> None:
    run = read_any_run(path)
    report = make_report([run], Beside()) if isinstance(run, Run) else serving_report([run])
    assert html(report)
    assert markdown(report)
    json.dumps(report.document, allow_nan=False)


def test_markdown_shows_what_is_special_as_it_is() -> None:
    blocks = (
        Paragraph(text="# no heading"),
        Paragraph(text="1. no list"),
        Table(head=("a|b",), rows=((Cell(text="*x* | `y`"),),)),
        Commands(lines=("```", "x")),
    )
    text = markdown(Report(title="t", about="", sections=(Section(title="s", blocks=blocks),)))
    assert "\n\\# no heading" in text
    assert "\n1\\. no list" in text
    assert "| a\\|b |" in text
    assert "| \\*x\\* \\| \\`y\\` |" in text
    assert "\n````\n```\nx\n````" in text


@pytest.mark.parametrize("us", [1.1, 10.0, 99.0], ids=["bottom", "middle", "top"])
def test_names_of_lines_that_end_together_are_set_apart_within_the_picture(us: float) -> None:
    point = Point(size=64, us=us, low=1.0, high=100.0)
    lines = [Line(name=f"line {number}", points=(point,), named=number < 6) for number in range(12)]
    picture = measured_svg(lines, [(64, 0.5)])
    ET.fromstring(picture)
    assert "faint: 6 more" in picture
    heights = sorted(float(y) for y in re.findall(r'x="[\d.]+" y="([\d.]+)">line', picture))
    assert all(above + 17 < below for above, below in pairwise(heights))
    assert 30 < heights[0] < heights[-1] < 420


# --------------------------------------------------------------------------------------------------------------- verb


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A real run file, copied."""
    path = tmp_path / "run.jsonl"
    path.write_bytes((ROOT / "docs" / "runs" / "h200x2-thresholds.jsonl").read_bytes())
    return path


def call(*runs: str, **options) -> None:
    report_verbs.report.body.__wrapped__(Context(), *runs, **options)


def test_the_verb_writes_page_text_and_pictures(stored: Path, tmp_path: Path, capsys) -> None:
    call(str(stored), output=str(tmp_path / "out"), accept_length="2.4", baseline="87")
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"report.html", "report.md", "latency-1.svg", "speculation.svg"}
    said = capsys.readouterr().out
    assert "Nothing measured is better" in said or "is the best" in said
    assert "report.html" in said


def test_json_is_printed_and_nothing_written(stored: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(report_verbs, "RUNS", tmp_path / "runs")
    call(str(stored), json=True)
    assert json.loads(capsys.readouterr().out)["runs"][0]["run"] == str(stored)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_named_twice_counts_once(stored: Path, capsys) -> None:
    call(str(stored), str(stored), json=True)
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"runs": ["/no/such.jsonl"]}, "/no/such.jsonl"),
        ({"runs": [f"/no/{n}" for n in range(9)]}, "9 run files"),
        ({"toolchain": "cu9"}, "cu9"),
        ({"topology": "nowhere"}, "nowhere"),
        ({"accept_length": "2.4"}, "--baseline is missing"),
        ({"baseline": "-3"}, "--baseline is '-3'"),
    ],
)
def test_wrong_options_end_in_three_parts(stored: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        call(*options.pop("runs", [str(stored)]), **options)
    assert says in caught.value.what
    assert caught.value.expected
    assert caught.value.todo


# ------------------------------------------------------------------------------------------------------------ browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def chromium(page: Path, tmp_path: Path, *options: str) -> bytes:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1180,1600", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=90, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_a_browser_shows_the_page_with_its_pictures_and_runs_nothing_of_a_hostile_one(tmp_path: Path) -> None:
    page, shot = tmp_path / "report.html", tmp_path / "page.png"
    page.write_text(html(hostile_report()), encoding="utf-8")
    chromium(page, tmp_path, f"--screenshot={shot}")
    data = shot.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1180, 1600)
    assert len(data) > 50_000  # an empty page takes less than a tenth
    dom = chromium(page, tmp_path, "--dump-dom").decode()
    assert Page(dom).tags <= Page(html(full_report())).tags
    assert dom.count("<img ") == len(hostile_report().pictures)


def test_pictures_of_a_page_are_those_of_the_report() -> None:
    report = full_report()
    embedded = re.findall(r"base64,([^\"]+)", html(report))
    assert [base64.b64decode(data).decode() for data in embedded] == [picture.svg for picture in report.pictures]
