"""Run files of any benchmark: which is the newest, and what is refused for a run of servers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from invoke.context import Context

from lanewise.errors import InputError
from tests.unit.serving.makers import fake_serving_plan, fake_serving_run
from tuning import report_verbs
from tuning.runlines import FORMAT
from tuning.serving import any_run
from tuning.serving.runfile import ServingWriter


def dated(path: Path, created: object) -> None:
    path.write_text(json.dumps({"format": FORMAT, "version": 1, "created": created}) + "\n")


def test_the_newest_run_is_the_one_begun_last_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(any_run, "RUNS", tmp_path)
    dated(tmp_path / "mine.jsonl", "2026-01-01T00:00:00+00:00")
    dated(tmp_path / "20260102T000000Z-a.jsonl", "2026-01-02T00:00:00+00:00")
    assert any_run.newest_path().name == "20260102T000000Z-a.jsonl"
    dated(tmp_path / "a.jsonl", "long ago")
    assert any_run.newest_path().name == "a.jsonl"  # changed just now
    os.utime(tmp_path / "a.jsonl", (0, 0))
    assert any_run.newest_path().name == "20260102T000000Z-a.jsonl"
    dated(tmp_path / "a.jsonl", 7)
    dated(tmp_path / "b.jsonl", None)
    assert any_run.newest_path().name in ("a.jsonl", "b.jsonl")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "content", [b"", b'{"format": "lanewise-run"}', b"[1]\n", b"\xff\n", b"{}\n", b"[" * 99_999 + b"\n"]
)
def test_what_is_no_run_file_is_passed_over_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    monkeypatch.setattr(any_run, "RUNS", tmp_path)
    (tmp_path / "z.jsonl").write_bytes(content)
    with pytest.raises(InputError, match="there is no run file"):
        any_run.newest_path()
    dated(tmp_path / "a.jsonl", "2026-01-01T00:00:00+00:00")
    assert any_run.newest_path().name == "a.jsonl"
    assert "z.jsonl is no run file, and is passed over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topology": "nonsense"}, "--topology 'nonsense'"),
        ({"draft_tokens": -5, "gpu": "foo"}, "--draft-tokens -5, --gpu 'foo'"),
        ({"allreduce": ["42KiB=9"]}, "--allreduce '42KiB=9'"),
        ({"toolchain": "x", "baseline": "1", "with_speculation": "2", "accept_length": "3", "model": "m"}, "--model"),
    ],
)
def test_options_of_predictions_are_refused_for_a_run_of_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], says: str
) -> None:
    run = fake_serving_run(fake_serving_plan(), lambda *_: 5.0, path=tmp_path / "servers.jsonl")
    with ServingWriter.begin(run) as writer:
        writer.append(*run.records())
    with pytest.raises(InputError) as caught:
        report_verbs.report.body.__wrapped__(Context(), str(run.path), json=True, **options)
    assert says in caught.value.what
    assert "--output and --json" in caught.value.expected
    assert caught.value.what.count("--") == len(options)
    assert capsys.readouterr().out == ""
