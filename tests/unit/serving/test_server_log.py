"""A server's log: whole lines of any pieces, in bounded files and bounded memory, without secrets."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from lanewise.errors import InputError
from lanewise.redact import Redactor
from tuning.serving import server_log
from tuning.serving.server_log import ServerLog


def fed(path: Path, data: bytes, *, limit: int = 1 << 20, cuts: int = 0) -> ServerLog:
    log = ServerLog(path, Redactor({"MY_TOKEN": "s3cr3t-value"}), limit=limit)
    draw = random.Random(1)
    at = [0, *sorted(draw.randrange(len(data) + 1) for _ in range(cuts)), len(data)]
    for begin, end in pairwise(at):
        log.feed(data[begin:end])
    log.close()
    return log


def test_lines_are_put_together_from_any_pieces(tmp_path: Path) -> None:
    text = "one\r\ntwo\n\n  \nprogress 1%\rprogress 2%\rüber\nlast"
    want = ["one", "two", "progress 1%", "progress 2%", "über", "last"]
    for cuts in (0, 1, 5, 40):
        log = fed(tmp_path / "a/server.log", text.encode(), cuts=cuts)
        assert log.lines() == want
        assert (tmp_path / "a/server.log").read_text() == "\n".join(want) + "\n"
        assert (log.count, log.problem) == (6, "")


def test_lines_since_a_count_are_the_new_ones(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "x.log", Redactor({}))
    log.feed(b"a\nb\n")
    count = log.count
    assert log.lines(count) == []
    log.feed(b"c\nd")
    assert log.lines(count) == ["c"]
    log.close()
    assert log.lines(count) == ["c", "d"]


def test_files_keep_the_beginning_and_the_end_within_the_limit(tmp_path: Path) -> None:
    lines = [f"line {number:06}" for number in range(10_000)]
    log = fed(tmp_path / "server.log", "\n".join(lines).encode(), limit=24_000, cuts=100)
    files = [tmp_path / name for name in ("server.log", "server.log.tail.old", "server.log.tail")]
    assert sum(file.stat().st_size for file in files) <= 24_000
    head, *tail = [file.read_text().splitlines() for file in files]
    assert head == lines[:1000], "half of the limit"
    kept = [*tail[0], *tail[1]]
    assert kept == lines[-len(kept) :]
    assert len(kept) >= 500
    assert log.lines() == lines, "memory has its own limits"


def test_a_new_log_removes_the_tails_of_an_old_one(tmp_path: Path) -> None:
    fed(tmp_path / "server.log", b"x\n" * 10_000, limit=1000)
    fed(tmp_path / "server.log", b"y\n")
    assert [file.name for file in tmp_path.iterdir()] == ["server.log"]


def test_memory_keeps_the_beginning_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "_MOST_HEAD", 10_000)
    monkeypatch.setattr(server_log, "_MOST_TAIL", 20_000)
    log = fed(tmp_path / "server.log", b"".join(b"line %06d\n" % number for number in range(5000)))
    lines = log.lines()
    assert lines[0] == "line 000000"
    assert lines[-1] == "line 004999"
    assert 300 < len(lines) < 500
    assert log.lines(log.count - 3) == lines[-3:]
    assert log.lines(2)[0] == "line 000002"


def test_a_line_without_end_is_cut_and_what_follows_is_read(tmp_path: Path) -> None:
    log = fed(tmp_path / "server.log", b"a" * 100_000 + b"\nnext\n", cuts=50)
    assert [len(line) for line in log.lines()] == [1 << 14, 4]


def test_secrets_and_broken_text_are_kept_out(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n-----END PRIVATE KEY-----\n"
    log = fed(tmp_path / "server.log", b"with s3cr3t-value\n\xff\xfe\n" + key.encode())
    text = (tmp_path / "server.log").read_text()
    assert "s3cr3t" not in text
    assert "AAAA" not in text
    assert log.lines()[0] == "with <redacted>"


def test_a_folder_that_cannot_be_made_is_an_error_in_three_parts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"server\.log"):
        ServerLog(tmp_path / "file/server.log", Redactor({}))


def test_a_full_disk_is_told_and_memory_goes_on(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "server.log", Redactor({}))
    assert log._file
    log._file.close()
    log._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the log closes it
    log.feed(b"one\ntwo\n")
    log.close()
    assert "No space left on device" in log.problem
    assert log.lines() == ["one", "two"]
