"""Watching servers: fakes whose steps are known, and readings of made-up counters."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.serving.makers import BASELINE, EAGLE, fake_serving_plan, fake_serving_run
from tests.unit.serving.servers import Running, fake_server
from tuning.serving import watch_verbs
from tuning.serving.client import generate
from tuning.serving.counters import Metrics, parse_metrics
from tuning.serving.prompts import Prompt
from tuning.serving.runfile import ServingWriter
from tuning.serving.scrape import Address, parse_address, scrape, server_info
from tuning.serving.served import Load
from tuning.serving.watch import Baseline, Glance, doubt, glance
from tuning.serving.watch_verbs import PATIENCE, glances

EAGLE_FLAGS = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2")


def scraped(
    *,
    running: float = 1,
    steps: float = 0,
    eager: float = 0,
    tokens: float = 0,
    drafts: float = 3,
    queued: float = 0,
) -> Metrics:
    return parse_metrics(
        f"sglang:num_running_reqs {running}\nsglang:num_queue_reqs {queued}\nsglang:spec_num_draft_tokens {drafts}\n"
        f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph"}} {steps}\n'
        f'sglang:cuda_graph_passes_total{{mode="decode_none"}} {eager}\n'
        f'sglang:realtime_tokens_total{{mode="decode"}} {tokens}\n'
    )


def seen(baseline: Baseline | None = None, *, running: float = 1, ran: float | None = None, **after: float) -> Glance:
    begin = scraped(running=running if ran is None else ran)
    return glance(begin, scraped(running=running, **after), 2.0, baseline)


def given(ms: float) -> Baseline:
    return Baseline(source="--baseline-ms", any_concurrency=ms)


def test_a_window_tells_step_time_acceptance_and_break_even() -> None:
    found = seen(given(6.25), running=4, steps=200, tokens=1600)
    assert (found.step_ms, found.accept_length, found.tokens_per_second) == (10.0, 2.0, 800.0)
    assert found.break_even == pytest.approx(1.6)
    assert found.advice == "speculation pays at 4 requests: acceptance 2.00, break-even 1.60, 25% faster"


@pytest.mark.parametrize(
    ("glanced", "says"),
    [
        (seen(given(6.25), steps=200, tokens=240), "loses at 1 request: acceptance 1.20 is below the break-even 1.60"),
        (seen(given(6.25), steps=200, tokens=322), "makes no difference at 1 request"),
        (seen(steps=200, tokens=240), "--baseline-ms or --baseline-run"),
        (
            seen(Baseline(source="x.jsonl", by_concurrency={2: 9, 8: 12}), steps=200, tokens=240),
            "x.jsonl has no baseline",
        ),
        (seen(given(5), steps=100, eager=100, tokens=240), "50% of verify passes run eagerly"),
        (seen(given(5), eager=100, tokens=100, drafts=0), "100% of decode steps run eagerly"),
        (seen(running=0), "nothing running"),
        (seen(given(5), steps=100, tokens=100, drafts=0), "no speculation"),
    ],
)
def test_advice_is_the_one_thing_to_know(glanced: Glance, says: str) -> None:
    assert says in glanced.advice
    assert glanced.advice.count("\n") == 0


def test_a_pause_in_the_window_is_no_step_time() -> None:
    found = seen(given(5), running=1, ran=0, steps=10, tokens=20)
    assert (found.step_ms, found.break_even) == (None, None)
    assert found.tokens_per_second == 10


def test_a_restart_says_nothing_of_speed() -> None:
    found = glance(scraped(steps=900, tokens=900), scraped(steps=5, tokens=9), 2.0, given(5))
    assert (found.restarted, found.step_ms, found.tokens_per_second, found.accept_length) == (True, None, None, None)
    assert "started anew" in found.advice


def test_old_releases_say_what_cannot_be_known() -> None:
    old = "sglang:num_running_reqs 2\nsglang:generation_tokens_total{} %d\n"
    found = glance(parse_metrics(old % 100), parse_metrics(old % 300), 2.0, given(5))
    assert (found.tokens_per_second, found.step_ms, found.accept_length) == (100, None, None)
    assert any("step time" in line for line in found.unknown)


def test_an_accept_length_that_cannot_be_is_not_shown_and_judges_nothing() -> None:
    """A request that ended at the instant of reading: four ran, three are read."""
    found = seen(given(6.25), running=3, steps=200, tokens=200 * 3.3 * 3)
    assert (found.accept_length, found.step_ms) == (None, 10.0)
    assert "accept length not known" in found.advice
    assert seen(given(6.25), running=4, steps=200, tokens=200 * 0.7 * 4).accept_length is None
    assert seen(given(6.25), steps=200, tokens=602).accept_length == 3.0  # read in mid-step


def test_where_the_number_of_requests_changed_nothing_is_judged() -> None:
    found = seen(given(6.25), running=3, ran=4, steps=200, tokens=1600)
    assert (found.accept_length, found.break_even) == (None, None)
    assert "requests came or went" in found.advice


def finished(*, requests: int = 0, tokens: int = 0, verified: int = 0) -> str:
    return (
        f"sglang:num_requests_total {requests}\nsglang:generation_tokens_total {tokens}\n"
        f"sglang:spec_verify_calls_total {verified}\n"
    )


def counted(*, running: int, ran: int, decoded: float = 1600, ms: float = 8, **gained: int) -> Glance:
    """200 steps whose tokens would make 2.0 a step and request, of four, unless told otherwise."""
    begin, end = scraped(running=ran), scraped(running=running, steps=200, tokens=decoded)
    before, after = parse_metrics(finished()), parse_metrics(finished(**gained))
    return glance(
        Metrics(series={**begin.series, **before.series}),
        Metrics(series={**end.series, **after.series}),
        2.0,
        given(ms),
    )


def test_counters_of_verify_passes_need_no_number_of_requests() -> None:
    assert counted(running=4, ran=4, requests=5, tokens=1505, verified=600).accept_length == 2.5
    changed = counted(running=4, ran=3, requests=5, tokens=1505, verified=600)
    assert (changed.accept_length, changed.break_even) == (2.5, None)
    assert "number of requests changed" in changed.advice


def test_one_short_request_among_long_ones_does_not_stand_for_a_window() -> None:
    found = counted(running=4, ran=4, requests=1, tokens=6, verified=2)
    assert found.accept_length is None
    assert "requests came or went" in found.advice


@pytest.mark.parametrize("verified", [110, 20_000], ids=["of the window", "mostly before it"])
def test_one_finished_request_of_many_does_not_judge_them_all(verified: int) -> None:
    """It got 1.1 tokens a pass, the 64 that run got 2.5."""
    one = {"requests": 1, "tokens": verified * 11 // 10 + 1, "verified": verified}
    found = counted(running=64, ran=64, decoded=64 * 2.5 * 200, ms=5, **one)
    assert found.accept_length == pytest.approx(2.5)
    assert "speculation pays at 64 requests: acceptance 2.50, break-even 2.00" in found.advice
    changed = counted(running=64, ran=63, decoded=64 * 2.5 * 200, ms=5, **one)
    assert changed.accept_length is None
    assert "requests came or went" in changed.advice


def test_steps_over_requests_count_only_where_few_finished() -> None:
    """Two of 64 may have made the mean number another by 3%, one by less than can be told."""
    gained = {"tokens": 12, "verified": 10}
    assert counted(running=64, ran=64, decoded=64 * 2.5 * 200, requests=1, **gained).accept_length == 2.5
    assert counted(running=64, ran=64, decoded=64 * 2.5 * 200, requests=2, **gained).accept_length is None


def without_draft_gauge(metrics: Metrics) -> Metrics:
    """As SGLang 0.5.9 to 0.5.12 answer: they do not say whether they speculate, nor count verify passes."""
    return Metrics(
        series={name: rows for name, rows in metrics.series.items() if name != "sglang:spec_num_draft_tokens"}
    )


def old(**after: float) -> Glance:
    begin, end = (without_draft_gauge(scraped(running=4, **steps)) for steps in ({}, after))
    return glance(begin, end, 2.0, given(10))


@pytest.mark.parametrize("tokens", [800, 796, 804], ids=["read between steps", "in one", "in another"])
def test_a_server_that_may_not_speculate_gets_no_verdict_on_speculation(tokens: float) -> None:
    found = old(steps=200, tokens=tokens)
    assert found.advice.startswith("no speculation seen")
    assert "whose drafts are not accepted" in found.advice
    assert "50% of decode steps run eagerly" in old(steps=100, eager=100, tokens=tokens).advice


def test_a_server_that_speculates_is_judged_though_it_accepts_nothing() -> None:
    assert "speculation pays at 4 requests" in old(steps=200, tokens=1600).advice
    assert "speculation loses at 4 requests" in seen(given(5), running=4, steps=200, tokens=800).advice


def test_a_break_even_below_one_is_doubted_in_words() -> None:
    found = seen(given(20), steps=200, tokens=400)
    assert found.break_even == 0.5
    assert "is below 1" in found.advice
    assert "pays" not in found.advice


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"model_path": "/elsewhere/m/", "tp_size": 1}, []),
        ({"model_path": "/data/x", "served_model_name": "m"}, []),
        ({"model_path": "/hub/models--org--m/snapshots/0123abc", "tp_size": 1}, []),
        ({"model_path": "/hub/models--m/snapshots/0123abc/"}, []),
        ({"model_path": "/hub/models--org--n/snapshots/m"}, ["model 'm'", "the server has '/hub/models--org--n"]),
        ({"model_path": "/mine/snapshots/m"}, []),
        ({"model_path": "snapshots/x"}, ["model 'm'"]),
        ({}, []),
        ({"model_path": 7, "tp_size": "many"}, []),
        ({"model_path": "/models/other", "tp_size": 8}, ["model 'm'", "'/models/other'", "size 1, the server has 8"]),
    ],
)
def test_a_baseline_of_another_model_is_doubted(info: dict[str, object], says: list[str]) -> None:
    found = doubt(BASELINE.spec, info)
    assert bool(found) == bool(says)
    assert all(part in found for part in says)
    advice = seen(Baseline(source="r", any_concurrency=6.25, doubt=found), steps=200, tokens=400).advice
    assert ("in doubt: the baseline is of model" in advice) == bool(says)


def test_a_baseline_from_hugging_faces_cache_is_known_by_its_name() -> None:
    cached = replace(BASELINE.spec, model="/hub/models--org--m/snapshots/0123abc")
    assert doubt(cached, {"model_path": "org/m"}) == ""
    assert doubt(cached, {"model_path": "/other/models--org--m/snapshots/4567def"}) == ""
    assert "is of model" in doubt(cached, {"model_path": "org/n"})


def test_a_baseline_is_read_between_measured_numbers_and_not_beyond() -> None:
    baseline = Baseline(source="run", by_concurrency={1: 8.0, 4: 11.0, 8: 19.0})
    assert [baseline.step_ms(n) for n in (1, 2, 4, 6, 9, 0.5)] == [8.0, 9.0, 11.0, 15.0, None, None]


@contextmanager
def busy(server: Running, requests: int) -> Iterator[None]:
    prompts = tuple(Prompt(id=str(n), category="tokens", tokens=(n, 1, 2, 3)) for n in range(requests))
    load = Load(prompts=prompts, max_tokens=2000, ignore_eos=True, stream=False)
    thread = threading.Thread(
        target=lambda: generate(server.url, load, concurrency=requests, timeout=30, keep_going=False), daemon=True
    )
    thread.start()
    time.sleep(0.2)
    yield
    server.process.kill()
    thread.join(10)


def test_a_live_server_is_read_as_it_is(tmp_path: Path) -> None:
    with fake_server(tmp_path, *EAGLE_FLAGS, accept=(1.0, 0.0), calls=0, compute_ms=4.0, draft_ms=0.5) as server:
        with busy(server, 2):
            address = parse_address(server.url)
            (found,) = glances(lambda: scrape(address, 5), 0.5, 1, given(4.0))
        truth = [step["planned_ms"] for step in server.truth() if step["running"] == 2]
    assert found.step_ms == pytest.approx(truth[0], rel=0.1)
    assert found.accept_length == pytest.approx(2.0)
    assert found.running == 2
    assert "speculation pays at 2 requests" in found.advice


def test_a_server_that_goes_ends_the_watch_clearly(tmp_path: Path) -> None:
    with fake_server(tmp_path) as server:
        address = parse_address(server.url)
        stream = glances(lambda: scrape(address, 5), 0.02, 0, None)
        assert next(stream).advice == "nothing running"
        server.process.kill()
        server.process.wait()
        with pytest.raises(UnreachableError, match=f"gone.*{PATIENCE} times in a row"):
            list(stream)


def reading(*answers: Metrics | Exception) -> Callable[[], Metrics]:
    given = iter(answers)

    def read() -> Metrics:
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return read


AWAY = UnreachableError("x", expected="y", todo="z")
BROKEN = LanewiseError("it answered HTTP 500", expected="y", todo="z")


@pytest.mark.parametrize("missed", [[AWAY], [BROKEN], [BROKEN, AWAY]])
def test_missed_readings_are_borne(missed: list[Exception]) -> None:
    (found,) = glances(reading(scraped(), *missed, scraped(steps=10, tokens=20)), 0.001, 1, None)
    assert found.accept_length == 2


def test_a_server_that_goes_on_answering_without_counters_ends_the_watch() -> None:
    with pytest.raises(UnreachableError, match="gives no counters any more: it answered HTTP 500, 3 times in a row"):
        list(glances(reading(scraped(), *[BROKEN] * PATIENCE), 0.001, 0, None))
    with pytest.raises(LanewiseError, match=r"^it answered HTTP 500"):
        list(glances(reading(BROKEN), 0.001, 0, None))


@pytest.mark.parametrize(
    "text", ["", "ftp://x", "127.0.0.1:30000", "http://", "http://a:b", "http://u:p@x", "http://x?y", "http://x:0"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000/metrics"),
        ("http://box/metrics", "http://box:80/metrics"),
        ("https://[::1]/sglang/", "https://[::1]:443/sglang/metrics"),
    ],
)
def test_addresses_are_taken_as_people_write_them(text: str, url: str) -> None:
    assert parse_address(text).url == url


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[Address]:
    """A fake of any server."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if body == b"drip":
                for _ in range(100):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Address(host="127.0.0.1", port=server.server_port, secure=False)
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_elsewhere_is_never_contacted() -> None:
    with answering(302, b"", Location="http://127.0.0.1:9/") as address, pytest.raises(LanewiseError, match="HTTP 302"):
        scrape(address, 5)


def test_pages_without_counters_and_slow_ones_end_in_time() -> None:
    with answering(404, b"") as address, pytest.raises(LanewiseError, match="HTTP 404"):
        scrape(address, 5)
    for page, begins in ((b"", "is empty"), (b"<html>\x1b[2J", "begins '<html>"), (b"go_gc_seconds 1\n", "go_gc")):
        with answering(200, page) as address, pytest.raises(LanewiseError, match=f"no counters.*{begins}") as caught:
            scrape(address, 5)
        assert "\x1b" not in str(caught.value)
        assert "sglang:num_running_reqs" in caught.value.expected
    began = time.monotonic()
    with answering(200, b"drip", **{"Content-Length": "1000"}) as address, pytest.raises(UnreachableError):
        scrape(address, 0.3)
    with answering(200, b"drip") as address, pytest.raises(UnreachableError):
        scrape(address, 0.3)
    assert time.monotonic() - began < 4
    with answering(200, b"", **{"Content-Length": "10"}) as address, pytest.raises(UnreachableError):
        scrape(address, 5)


def test_a_server_that_is_too_slow_is_not_said_to_have_closed_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(host="127.0.0.1", port=listener.getsockname()[1], secure=False)
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.2 s"):
            scrape(address, 0.2)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [(200, b'{"tp_size": 2}', {"tp_size": 2}), (200, b"[1]", {}), (200, b"[" * 100_000, {}), (401, b'{"a": 1}', {})],
)
def test_what_a_server_says_of_itself_may_be_anything(status: int, body: bytes, told: dict[str, object]) -> None:
    with answering(status, body) as address:
        assert server_info(address, 5) == told


def test_what_answers_and_is_no_web_server_is_quoted_in_short() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener.accept()[0] as link:
                link.recv(4096)
                link.sendall(b"\x1b[2J" + b"y" * 60_000 + b"\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UnreachableError) as caught:
            scrape(Address(host="127.0.0.1", port=port, secure=False), 5)
    assert len(str(caught.value)) < 400


def called(
    monkeypatch: pytest.MonkeyPatch, *words: str, info: dict[str, object] | None = None, **options: object
) -> int | None:
    """The verb as the command line calls it; its exit code. The server says nothing of itself unless told to."""
    monkeypatch.setattr(watch_verbs, "server_info", lambda *_: info or {})
    monkeypatch.setattr(sys, "argv", ["inv", "watch", *words])
    monkeypatch.setattr(watch_verbs, "glances", lambda _read, _s, _count, baseline: iter([seen(baseline, **STEPS)]))
    body = watch_verbs.watch.body
    try:
        body(Context(), **{"url": words[0] if words else "", **options})
    except Exit as error:
        return int(error.code)
    return None


STEPS = {"steps": 200.0, "tokens": 400.0}


def test_lines_are_json_or_plain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    called(monkeypatch, "http://x", json=True, baseline_ms="6.25")
    document = json.loads(capsys.readouterr().out)
    assert (document["step_ms"], document["break_even"]) == (10.0, 1.6)
    called(monkeypatch, "http://x", baseline_ms="6.25")
    line = capsys.readouterr().out
    assert "step ms 10.000" in line
    assert "speculation pays" in line


def test_a_run_file_gives_the_baseline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = fake_serving_run(fake_serving_plan(BASELINE, EAGLE), lambda *_: 5.0, path=tmp_path / "base.jsonl", spread=0)
    with ServingWriter.begin(run) as writer:
        writer.append(*run.records())
    called(monkeypatch, "http://x", json=True, baseline_run=str(run.path))
    said = capsys.readouterr()
    assert json.loads(said.out)["break_even"] == pytest.approx(2.0)
    assert "does not tell its model" in said.err
    called(monkeypatch, "http://x", json=True, baseline_run=str(run.path), info={"model_path": "m", "tp_size": 1})
    assert capsys.readouterr().err == ""
    called(monkeypatch, "http://x", json=True, baseline_run=str(run.path), info={"model_path": "n", "tp_size": 1})
    said = capsys.readouterr()
    assert "warning: the baseline is of model 'm', the server has 'n'" in said.err
    assert "in doubt" in json.loads(said.out)["advice"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"baseline_ms": "fast"}, "--baseline-ms is 'fast'"),
        ({"baseline_ms": "nan"}, "--baseline-ms is 'nan'"),
        ({"baseline_ms": "5", "baseline_run": "x"}, "both given"),
        ({"baseline_run": "/no/such.jsonl"}, "/no/such.jsonl"),
        ({"interval": 0}, "--interval is 0"),
        ({"count": -1}, "--count -1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: dict[str, object], says: str
) -> None:
    assert called(monkeypatch, "http://x", **options) == 2
    assert says in capsys.readouterr().err
