"""Comparisons of servers as people and programs see them: text, documents, pictures, pages, exit codes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Console

from tests.unit.makers import fake_plan, fake_run
from tests.unit.serving.makers import SPECULATION, fake_arm, fake_serving_plan, fake_serving_run, with_latencies
from tuning import bench, report_verbs, verbs
from tuning.report_document import Bullets, Paragraph, Table
from tuning.report_html import html
from tuning.report_markdown import markdown
from tuning.runwriter import RunWriter
from tuning.serving import any_run, view
from tuning.serving.compare import compare_serving_names, serving_overview
from tuning.serving.compare_verb import attributed
from tuning.serving.headline import headline
from tuning.serving.report import serving_report
from tuning.serving.runfile import ServingRun, ServingWriter
from tuning.serving.svg import Line, Panel, Point, panels_svg
from tuning.trial import Status

TOGETHER = (1, 2, 8)
ARMS = (
    fake_arm("default/baseline", *TOGETHER),
    fake_arm("default/2-1-3", *TOGETHER, speculation=SPECULATION),
    fake_arm("default/probe", 1, 2, 3, 4),
)
HOSTILE = "<script>alert(1)</script>\x1b[2J\n# |h"


def truth(_environment: str, arm: str, concurrency: int, _repetition: int) -> float:
    return (8 + 0.4 * concurrency) * ({1: 1.4, 2: 1.5, 8: 2.6}[concurrency] if arm.endswith("3") else 1)


def served(path: Path = Path("servers.jsonl"), starts: int = 3) -> ServingRun:
    return fake_serving_run(fake_serving_plan(*ARMS, starts=starts), truth, path=path)


def written(tmp_path: Path, run: ServingRun | None = None) -> Path:
    run = run or served(tmp_path / "servers.jsonl")
    with ServingWriter.begin(replace(run, trials=(), starts={})) as writer:
        writer.append(*run.records())
    return run.path


def text(run: ServingRun, a: str = "default/baseline", b: str = "default/2-1-3") -> str:
    console = Console(width=160, record=True, file=sys.stderr)
    (found,) = compare_serving_names(run, a, run, b)
    with console.capture() as captured:
        console.print(view.show(found, attributed(found, None)))
    return captured.get()


def test_the_headline_says_where_speculation_pays() -> None:
    (found,) = serving_overview(served())
    assert headline(found) == (
        "host:default/2-1-3 against host:default/baseline: pays at 1, 2 requests; does not pay at 8 requests; stops "
        f"paying between 2 and 8 requests (at about {found.crossings[0].at:.1f}); over all of these: undecided"
    )


def test_text_holds_break_even_categories_origins_and_what_differs() -> None:
    shown = text(served())
    for part in ("break-even", "does not pay", "code", "chat", "drafting and what only", "EAGLE3 2/1/3", "3 pairs"):
        assert part in shown
    assert "no numbers of 6 rows; add 6 to --concurrency (at 2 requests)" in shown
    assert "no numbers of 24 rows; add 24 to --concurrency (at 8 requests)" in shown
    assert shown.count("\nwhere ") == 1


def test_latencies_are_shown_without_a_verdict() -> None:
    shown = text(with_latencies(served(), slower=1.5))
    (line, *_) = [line for line in shown.splitlines() if line.startswith("ITL p99")]
    assert not [word for word in ("better", "worse", "same", "undecided") if word in line]


def test_where_no_source_tells_no_table_is_announced() -> None:
    run = fake_serving_run(fake_serving_plan(*ARMS[:2]), truth)
    assert "ms a step come from, B less A, at 1 request: no source tells" in text(run)
    assert ARMS[0].spec.speculation is None
    alike = fake_serving_run(
        fake_serving_plan(ARMS[0], fake_arm("custom/baseline", *TOGETHER)),
        lambda _e, arm, _c, _r: 11.0 if arm.startswith("custom") else 10.0,
    )
    assert "where " not in text(alike, "default/baseline", "custom/baseline")


def test_an_a_a_is_called_one_and_step_time_decides() -> None:
    shown = text(served(), "default/baseline", "default/probe")
    assert "A/A, both are the same thing here" in shown
    assert "step time same" in shown


def test_beyond_all_there_is_a_detectable_difference_is_only_said_to_be() -> None:
    assert [view.share_text(share) for share in (None, 0.0123, 1.0, 12.2)] == ["-", "1.2%", "100.0%", ">100%"]
    assert ">100%" in text(fake_serving_run(fake_serving_plan(*ARMS, starts=2), truth, spread=1.0))


def test_the_picture_says_what_the_bars_of_each_panel_are() -> None:
    (picture,) = serving_report([served()]).pictures
    assert (
        "bars: range over starts; of accept length and break-even 95 % intervals, cut at twice the value" in picture.svg
    )
    (plain,) = serving_report([fake_serving_run(fake_serving_plan(ARMS[0]), truth)]).pictures
    assert "bars: range over starts<" in plain.svg


def test_each_backend_has_its_picture_and_their_baselines_one() -> None:
    arms = (*ARMS, fake_arm("nccl/baseline", *TOGETHER), fake_arm("nccl/2-1-3", *TOGETHER, speculation=SPECULATION))
    baselines, *each = serving_report([fake_serving_run(fake_serving_plan(*arms), truth)]).pictures
    assert [picture.name for picture in (baselines, *each)] == [f"servers-1-{number}.svg" for number in (1, 2, 3)]
    assert ["default/baseline<" in picture.svg for picture in (baselines, *each)] == [True, True, False]
    assert ["nccl/2-1-3<" in picture.svg for picture in (baselines, *each)] == [False, False, True]


def test_no_section_of_the_report_is_empty() -> None:
    alone = fake_serving_run(fake_serving_plan(ARMS[0]), truth)
    for run in (served(), alone):
        for section in serving_report([run]).sections:
            blocks = [block for block in section.blocks if not (isinstance(block, Bullets) and not block.items)]
            assert blocks, section.title


def test_a_document_is_json_whatever_the_numbers_are() -> None:
    run = served(starts=2)
    wild = [replace(d, step_ms=1e12 if t.repetition else 1e-30) for t in run.trials for d in t.passes[:1]]
    trials = tuple(replace(t, passes=(done,)) for t, done in zip(run.trials, wild, strict=True))
    trials = tuple(replace(t, repetition=1 - t.repetition) if t.arm == "default/2-1-3" else t for t in trials)
    broken = replace(run, trials=trials)
    (found,) = serving_overview(broken)
    document = json.loads(json.dumps(view.to_document(found, attributed(found, None)), allow_nan=False))
    assert document["rows"][0]["step"]["mde"] is None, "beyond what a float holds"
    assert text(broken)
    for picture in serving_report([broken]).pictures:
        ET.fromstring(picture.svg)
    (found,) = serving_overview(served())
    document = view.to_document(found, attributed(found, None))
    assert [row["pays"]["verdict"] for row in document["rows"]] == ["pays", "pays", "does not pay"]
    assert document["attribution"][0]["splits"][0]["source"] == "probe"


def test_failures_are_listed_once_a_reason() -> None:
    run = served()
    trials = tuple(
        replace(t, status=Status.CRASHED, passes=(), reason="out of memory") if t.arm == "default/2-1-3" else t
        for t in run.trials
    )
    lost = replace(run, trials=trials)
    assert view.failures(lost) == ["host:default/2-1-3 at 1, 2, 8, starts 1, 2, 3: crashed: out of memory"]
    assert text(lost)
    assert serving_report([lost]).sections


def test_where_nothing_has_numbers_a_sentence_says_so_instead_of_a_table() -> None:
    run = served()
    lost = replace(run, trials=tuple(replace(t, status=Status.CRASHED, passes=(), reason="x") for t in run.trials))
    assert "neither has numbers" in text(lost)
    assert "step A, ms" not in text(lost)
    blocks = [block for section in serving_report([lost]).sections for block in section.blocks]
    assert Paragraph(text="Nothing has numbers.") in blocks
    assert not [block for block in blocks if isinstance(block, Table) and not block.rows]


def called(verb: object, *words: str, **options: object) -> int:
    body = verb.body  # type: ignore[attr-defined]
    try:
        body(Context(), **options, **({f"runs_{n}": word for n, word in enumerate(words, 1)}))
    except Exit as error:
        return int(error.code)
    return 0


def test_the_verb_compares_servers_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path))
    assert called(verbs.compare, run=[path]) == 0
    assert "does not pay at 8 requests" in capsys.readouterr().out
    assert called(verbs.compare, run=[path], json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["comparisons"]) == 1
    names = {"a": "default/baseline", "b": "default/probe"}
    assert called(verbs.compare, run=[path], fail_on="same", **names) == 3
    assert called(verbs.compare, run=[path], fail_on="worse", **names) == 0
    assert called(verbs.compare, run=[path], a="default/baseline") == 2
    assert called(verbs.compare, run=[path], allreduce_run=path) == 2


def test_the_exit_code_and_the_document_tell_the_verdict_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starts alone would call it better; prompts such as these leave it open."""
    plan = fake_serving_plan(fake_arm("default/baseline"), fake_arm("default/2-1-3", speculation=SPECULATION), starts=4)
    run = fake_serving_run(
        plan, lambda _e, arm, _c, _r: 18.6 if arm.endswith("3") else 10.0, path=tmp_path / "servers.jsonl"
    )
    path = str(written(tmp_path, run))
    assert called(verbs.compare, run=[path], fail_on="undecided") == 3
    assert "undecided at 1 request (the accept length, " in capsys.readouterr().out
    assert called(verbs.compare, run=[path], fail_on="better,worse,same", any_size=True) == 0
    capsys.readouterr()
    assert called(verbs.compare, run=[path], json=True) == 0
    (told,) = json.loads(capsys.readouterr().out)["comparisons"]
    (row,) = told["rows"]
    assert {told["overall"]["outcome"], row["speed"]["outcome"], row["pays"]["outcome"], row["pays"]["verdict"]} == {
        "undecided"
    }


def test_runs_of_two_benchmarks_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers, allreduce = written(tmp_path), tmp_path / "allreduce.jsonl"
    run = fake_run(fake_plan(), lambda *_: 10.0, path=allreduce)
    with RunWriter.begin(replace(run, trials=(), launches={})) as writer:
        writer.append(*run.records())
    assert called(verbs.compare, run=[str(servers), str(allreduce)]) == 2
    assert "of one benchmark" in capsys.readouterr().err
    assert called(verbs.compare, run=[str(allreduce)], allreduce_run=str(allreduce)) == 2
    assert called(verbs.compare, run=[str(allreduce)]) == 0
    assert called(verbs.compare, run=[str(servers)], allreduce_run=str(allreduce)) == 0


def test_the_newest_run_may_be_of_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (bench, any_run, report_verbs):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    assert called(verbs.compare) == 2
    written(tmp_path)
    assert called(verbs.compare) == 0
    monkeypatch.setattr(sys, "argv", ["inv", "report"])
    assert called(report_verbs.report) == 0
    assert (tmp_path / "reports/servers/report.html").is_file()
    assert (tmp_path / "reports/servers/servers-1-1.svg").is_file()
    capsys.readouterr()


def test_a_page_answers_first_and_escapes_everything() -> None:
    run = served()
    starts = {key: replace(start, findings=(HOSTILE,)) for key, start in run.starts.items()}
    report = serving_report([replace(run, starts=starts)])
    assert report.sections[0].title == "Verdict"
    page, text_page = html(report), markdown(report)
    for written_page in (page, text_page):
        assert "<script>" not in written_page
        assert "\x1b" not in written_page
        assert "stops paying between 2 and 8" in written_page
        assert "./inv bench-speculative --model m --seed 1" in written_page
    several = serving_report([run, replace(run, path=Path("b.jsonl"))])
    assert several.sections[0].title == "Verdict: servers.jsonl"
    assert len(several.pictures) == 2


def test_the_picture_is_a_picture_and_break_even_is_in_it() -> None:
    (picture,) = serving_report([served()]).pictures
    root = ET.fromstring(picture.svg)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Step time, ms", "Tokens per second", "default/2-1-3"} <= set(texts)
    assert picture.svg.count('class="even"') == 1
    assert picture.svg.count('class="cross"') == 3
    numbers = [float(value) for node in root.iter() for key, value in node.attrib.items() if key in ("x", "y")]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= number <= max(width, height) for number in numbers)


@pytest.mark.parametrize("value", [1e-9, 1.0, 123456.0, 1e12])
def test_a_picture_of_one_point_of_any_size_is_drawn(value: float) -> None:
    point = Point(concurrency=4, value=value, low=value, high=value)
    drawn = panels_svg("<t>", ["a&b"], [Panel(title="x", lines=(Line(look=0, points=(point,)),))])
    ET.fromstring(drawn)
    assert drawn.count('class="grid"') <= 8
