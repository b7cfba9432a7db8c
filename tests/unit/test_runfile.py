from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanewise.errors import ExitCode, InputError, LanewiseError
from tests.unit.makers import fake_header, fake_launch, fake_plan, fake_trial
from tuning.runfile import read_run
from tuning.runwriter import RunWriter
from tuning.trial import Status, to_line

ROOT = Path(__file__).resolve().parents[2]


def line_of(**changes: object) -> bytes:
    return json.dumps({**to_line(fake_trial()), **changes}).encode()


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "r.jsonl"
    with RunWriter.create(path, fake_header(fake_plan())) as writer:
        writer.append(fake_launch(output=("boom",)), fake_trial())
        writer.append(fake_trial(status=Status.CRASHED, samples=(), reason="exit code 1"))
    return path


def test_what_was_written_is_read_back(run_path: Path) -> None:
    run = read_run(run_path)
    assert run.header == fake_header(fake_plan())
    assert run.trials[0] == fake_trial()
    assert run.trials[1].reason == "exit code 1"
    assert run.launches == {"abc": fake_launch(output=("boom",))}
    assert run.torn == 0


def test_every_line_is_json_and_the_first_is_a_versioned_header(run_path: Path) -> None:
    lines = [json.loads(line) for line in run_path.read_text().splitlines()]
    assert (lines[0]["format"], lines[0]["version"]) == ("lanewise-run", 1)
    assert [line["kind"] for line in lines[1:]] == ["launch", "trial", "trial"]


@pytest.mark.parametrize("torn", [b'{"kind": "trial", "env', b"\x00\x00\x00", b"{}"])
def test_a_torn_last_line_is_reported_and_set_aside(run_path: Path, torn: bytes) -> None:
    before = run_path.read_bytes()
    run_path.write_bytes(before + torn)
    assert read_run(run_path).torn == len(torn)
    assert run_path.read_bytes() == before + torn, "reading changes nothing"
    with RunWriter.resume(run_path) as writer:
        assert (len(writer.run.trials), writer.run.torn) == (2, 0)
        writer.append(fake_trial(repetition=1))
    assert len(read_run(run_path).trials) == 3
    assert run_path.with_name("r.jsonl.torn").read_bytes() == torn + b"\n"


@pytest.mark.parametrize(
    "line",
    [b"not json", b"[]", b"null", b'{"kind": "trial"}', b'{"kind": "header"}', b"", b"\xff", b"[" * 100_000,
     line_of(status="splendid"),
     line_of(samples=[]),
     line_of(samples=[[-1.0]]),
     line_of(samples=[[float("nan")]]),
     line_of(samples=5),
     line_of(extra=5),
     line_of(candidate=5)],
)  # fmt: skip
def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_changed(run_path: Path, line: bytes) -> None:
    first, second, *rest = run_path.read_bytes().splitlines()
    run_path.write_bytes(b"\n".join([first, second, line, *rest, b""]))
    content = run_path.read_bytes()
    for action in (read_run, RunWriter.resume):
        with pytest.raises(InputError, match="line 3"):
            action(run_path)
    assert run_path.read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"[1]\n", b'{"format": "other", "version": 1}\n', b"\x7fELF\x00\n"]
)
def test_what_is_no_run_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_run(path)
    assert caught.value.exit_code == ExitCode.INPUT


def test_a_version_from_the_future_says_so(run_path: Path) -> None:
    run_path.write_text(run_path.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(InputError, match="version 2"):
        read_run(run_path)


def test_a_header_with_an_absurd_plan_is_refused(run_path: Path) -> None:
    run_path.write_text(run_path.read_text().replace('"bytes": 64', '"bytes": -64', 1))
    with pytest.raises(InputError, match="bytes is -64"):
        read_run(run_path)


def test_an_existing_file_is_never_overwritten(run_path: Path) -> None:
    content = run_path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        RunWriter.create(run_path, fake_header(fake_plan()))
    assert run_path.read_bytes() == content


def test_two_writers_are_refused_also_from_another_process(run_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tuning.runwriter import RunWriter\n"
        "try:\n    RunWriter.resume(Path(sys.argv[1]))\n"
        "except Exception as error:\n    print(error); raise SystemExit(error.exit_code)"
    )
    with RunWriter.resume(run_path):
        with pytest.raises(InputError, match="another process"):
            RunWriter.resume(run_path)
        other = subprocess.run([sys.executable, "-c", code, str(run_path)], cwd=ROOT, capture_output=True, text=True)
        assert (other.returncode, "another process" in other.stdout) == (2, True)
    subprocess.run([sys.executable, "-c", code, str(run_path)], cwd=ROOT, check=True)


def test_a_missing_file_and_a_folder_are_errors_with_advice(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(InputError, match="expected"):
            read_run(path)


def test_a_full_disk_leaves_whole_lines(run_path: Path, monkeypatch) -> None:
    content, real_write = run_path.read_bytes(), os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 40:
            return real_write(descriptor, data[:40])
        raise OSError(28, "No space left on device")

    with RunWriter.resume(run_path) as writer:
        monkeypatch.setattr(os, "write", lambda d, data: full(d, data[:80]))
        with pytest.raises(LanewiseError, match="no space left") as caught:
            writer.append(fake_trial(repetition=1))
    assert caught.value.exit_code == ExitCode.FAILED
    assert run_path.read_bytes() == content


def test_a_full_disk_at_the_start_leaves_no_file(tmp_path: Path, monkeypatch) -> None:
    def full(_descriptor: int, _data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LanewiseError, match="no space left"):
        RunWriter.create(tmp_path / "r.jsonl", fake_header(fake_plan()))
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_no_unicode_can_be_stored(run_path: Path) -> None:
    odd = fake_trial(status=Status.CRASHED, samples=(), reason="\udcff and \x00")
    with RunWriter.resume(run_path) as writer:
        writer.append(odd)
    assert read_run(run_path).trials[-1].reason == "\ufffd and \x00"
