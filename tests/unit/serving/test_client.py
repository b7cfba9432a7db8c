from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.serving.servers import fake_server, free_port
from tuning.serving.client import flush_cache, generate, metrics, server_info
from tuning.serving.prompts import Prompt, token_prompts
from tuning.serving.served import Api, Load, Reason

SPEC = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2")
FAST = {"calls": 0, "compute_ms": 1.0, "compute_ms_per_row": 0.0, "draft_ms": 0.0, "prefill_ms": 1.0}
"""Steps of 1 ms."""
TEXTS = tuple(Prompt(id=f"p{number}", category="chat", text=f"tell me {number}") for number in range(6))
TOKENS = token_prompts(length=5, vocabulary=32_000).prompts


def load(*, prompts=TOKENS[:1], tokens=20, **changes) -> Load:
    return Load(prompts=tuple(prompts), max_tokens=tokens, **changes)


def failure(url, *, timeout=10.0, **changes):
    """The only outcome of one request."""
    served = generate(url, load(**changes), concurrency=1, timeout=timeout)
    assert not served.answers
    (only,) = served.failures
    return only


@contextmanager
def raw_server(*replies: bytes, keep_open: bool = False, drip: int = 0):
    """A server that answers each connection with these bytes, whatever is asked; then with one more each 20 ms."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve() -> None:
        for reply in replies:
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            held.append(connection)
            with suppress(OSError):  # the client may have gone already
                connection.recv(65_536)
                connection.sendall(reply)
                for _ in range(drip):
                    connection.sendall(b"x")
                    time.sleep(0.02)
                if not keep_open:
                    connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for connection in held:
            connection.close()
        listener.close()


def http(body: bytes, *, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nConnection: close\r\n\r\n%b" % (status.encode(), body)


def event(**document) -> bytes:
    return b"data: %b\n\n" % json.dumps(document).encode()


META = {"prompt_tokens": 5, "completion_tokens": 3, "finish_reason": {"type": "length"}}
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("stream", [True, False])
def test_counts_are_the_servers_own(tmp_path, release: str, stream: bool) -> None:
    with fake_server(tmp_path, *SPEC, release=release, **FAST) as fake:
        served = generate(fake.url, load(tokens=100, stream=stream), concurrency=1, timeout=10)
        steps = fake.truth()
    (request,) = served.requests
    assert (request.prompt_tokens, request.completion_tokens, request.finish) == (5, 100, "length")
    assert request.verify_passes == len(steps) == sum(request.accepted)
    accepted = sum(drafts * passes for drafts, passes in enumerate(request.accepted))
    assert accepted + len(steps) == sum(step["tokens"] for step in steps)
    assert (request.ttft_ms is not None, request.chunks > 1) == (stream, stream)
    assert request.chunks <= len(steps) + 1  # fewer where the server was slow to send and put some together
    assert len(request.gaps_ms) == request.chunks - 1


@pytest.mark.parametrize("api", Api)
def test_gaps_between_chunks_are_the_steps(tmp_path, api: Api) -> None:
    with fake_server(tmp_path, *SPEC, **{**FAST, "compute_ms": 10.0}) as fake:
        served = generate(fake.url, load(prompts=TEXTS[:1], tokens=40, api=api), concurrency=1, timeout=10)
        prefill, *steps = [entry["time"] for kind in ("prefill", "step") for entry in fake.truth(kind)]
    (answer,) = served.answers
    assert 0.5 * len(steps) < len(answer.request.gaps_ms) <= len(steps)
    assert answer.last - answer.first == pytest.approx(steps[-1] - prefill, abs=0.1)  # of some 0.2


def test_a_chat_is_counted_by_its_usage_and_not_by_chunks(tmp_path) -> None:
    with fake_server(tmp_path, *SPEC, **FAST) as fake:
        chat = load(prompts=TEXTS[:1], tokens=50, api=Api.CHAT)
        (request,) = generate(fake.url, chat, concurrency=1, timeout=10).requests
        steps = fake.truth()
    assert request.completion_tokens == 50
    assert 2 < request.chunks <= len(steps) + 1 < 50


def test_so_many_run_at_once_until_there_are_no_more(tmp_path) -> None:
    with fake_server(tmp_path, **FAST) as fake:
        served = generate(fake.url, load(prompts=TOKENS[:9], tokens=40), concurrency=3, timeout=10)
        steps = [step["running"] for step in fake.truth()]
    assert [request.prompt for request in served.requests] == [f"tokens-{number}" for number in range(9)]
    assert max(steps) == 3
    assert steps.count(3) > 0.3 * len(steps)


def test_the_same_answer_has_the_same_hash_streamed_or_not(tmp_path) -> None:
    with fake_server(tmp_path, *SPEC, **FAST) as fake:
        both = [load(prompts=TOKENS[:2], stream=stream) for stream in (True, False)]
        served = [generate(fake.url, each, concurrency=2, timeout=10) for each in both]
    hashes = [[request.output for request in each.requests] for each in served]
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]


def test_a_stream_that_ends_early_is_no_answer(tmp_path) -> None:
    with fake_server(tmp_path, half_close_after=8, **FAST) as fake:
        only = failure(fake.url)
        chat = failure(fake.url, prompts=TEXTS[:1], api=Api.CHAT)
    assert only.reason is chat.reason is Reason.HALF_CLOSED
    assert "chunks came" in only.detail


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_complete_in_time_is_ended(tmp_path, stream: bool) -> None:
    with fake_server(tmp_path, hang="decode", hang_after_tokens=5, **FAST) as fake:
        begun = time.monotonic()
        only = failure(fake.url, timeout=0.4, stream=stream)
    assert only.reason is Reason.TIMED_OUT
    assert time.monotonic() - begun < 2


def test_a_server_that_drips_is_ended_too(tmp_path) -> None:
    with fake_server(tmp_path, chunk_delay_ms=30, **{**FAST, "compute_ms": 10.0}) as fake:
        only = failure(fake.url, timeout=0.4, tokens=100)
    assert only.reason is Reason.TIMED_OUT
    assert "chunks came" in only.detail


def test_an_event_without_end_is_cut_off(tmp_path) -> None:
    with fake_server(tmp_path, endless_event=True, **FAST) as fake:
        assert failure(fake.url, stream=True).reason is Reason.TOO_LARGE


@pytest.mark.parametrize(
    ("options", "reason", "says"),
    [
        ({"garbage_after": 3}, Reason.UNREADABLE, "not JSON"),
        ({"refuse": 503}, Reason.REFUSED, "HTTP 503: a fake refusal"),
        ({"abort_after": 3}, Reason.ABORTED, "a fake abort"),
    ],
)
def test_each_refusal_has_its_name_and_words(tmp_path, options, reason: Reason, says: str) -> None:
    with fake_server(tmp_path, **options, **FAST) as fake:
        only = failure(fake.url)
    assert (only.reason, only.prompt, only.category) == (reason, "tokens-0", "tokens")
    assert says in only.detail


def test_a_server_that_dies_fails_what_runs_and_what_follows(tmp_path) -> None:
    with fake_server(tmp_path, crash_after_tokens=30, **FAST) as fake:
        served = generate(fake.url, load(prompts=TOKENS[:8]), concurrency=2, timeout=5)
        assert fake.process.wait(5) == -signal.SIGKILL
    assert len(served.answers) + len(served.failures) == 8
    assert {only.reason for only in served.failures} <= {Reason.UNREACHABLE, Reason.HALF_CLOSED}


def test_the_others_go_on_or_are_cancelled_as_told() -> None:
    good = http(event(meta_info=META) + DONE)
    for keep_going, answers, reasons in (
        (True, 2, [Reason.UNREADABLE]),
        (False, 0, [Reason.UNREADABLE, Reason.CANCELLED, Reason.CANCELLED]),
    ):
        with raw_server(http(b"data: {}\n\n" + DONE), good, good) as url:
            served = generate(url, load(prompts=TOKENS[:3]), concurrency=1, timeout=5, keep_going=keep_going)
        assert len(served.answers) == answers
        assert [only.reason for only in served.failures] == reasons


def test_cancelling_ends_what_is_under_way(tmp_path) -> None:
    stalled = http(event(meta_info=META))
    with raw_server(stalled, stalled, b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", keep_open=True) as url:
        begun = time.monotonic()
        served = generate(url, load(prompts=TOKENS[:3]), concurrency=3, timeout=30, keep_going=False)
    assert time.monotonic() - begun < 3
    assert sorted(only.reason for only in served.failures) == [Reason.CANCELLED, Reason.CANCELLED, Reason.REFUSED]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense",
        http(b""),
        http(DONE),
        http(b"data: []\n\n" + DONE),
        http(b"data: " + b"[" * 100_000 + b"\n\n" + DONE),
        http(b"data: " + b"9" * 5_000 + b"\n\n" + DONE),
        http(event(meta_info={**META, "completion_tokens": -1}) + DONE),
        http(event(meta_info={**META, "completion_tokens": True}) + DONE),
        http(event(meta_info={**META, "completion_tokens": 1e999}) + DONE),
        http(event(meta_info={**META, "finish_reason": None}) + DONE),
        http(event(meta_info={**META, "spec_verify_ct": "3"}) + DONE),
        http(event(meta_info={**META, "spec_accept_histogram": [1, None]}) + DONE),
        http(event(meta_info={**META, "spec_accept_histogram": [1] * 5_000}) + DONE),
        http(event(error={"message": "too long"}) + DONE),
        http(event(meta_info=META) * 50 + DONE),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    ],
    ids=lambda reply: reply[:60].decode() + str(len(reply)),
)
def test_hostile_replies_are_failures_and_nothing_else(reply: bytes) -> None:
    with raw_server(reply) as url:
        only = failure(url, timeout=5)
    assert only.reason is not Reason.TIMED_OUT
    assert 0 < len(only.detail) < 600


def test_a_reply_that_is_cut_short_is_half_closed() -> None:
    body = json.dumps({"meta_info": META}).encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body) + 10, body)
    with raw_server(reply) as url:
        assert failure(url, stream=False).reason is Reason.HALF_CLOSED


def test_chunks_that_come_in_one_read_have_no_gap_between_them() -> None:
    meta = [{**META, "completion_tokens": tokens} for tokens in (1, 2, 3)]
    with raw_server(http(b"".join(event(meta_info=each) for each in meta) + b": ping\r\n\r\n" + DONE)) as url:
        (request,) = generate(url, load(), concurrency=1, timeout=5).requests
    assert request.gaps_ms == (0.0, 0.0)
    assert request.completion_tokens == request.chunks == 3


def test_verify_passes_of_a_chat_are_read_where_the_server_tells_them() -> None:
    events = [
        event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        event(choices=[{"delta": {"reasoning_content": "a"}}]),
        event(choices=[{"delta": {"content": "b"}}]),
        event(choices=[{"delta": {}, "finish_reason": "stop"}]),
        event(
            choices=[],
            usage={"prompt_tokens": 4, "completion_tokens": 5},
            sglext={"spec_tokens_details": {"spec_verify_ct": 2, "spec_correct_drafts_histogram": [0, 2]}},
        ),
    ]
    with raw_server(http(b"".join(events) + DONE)) as url:
        (request,) = generate(url, load(prompts=TEXTS[:1], api=Api.CHAT), concurrency=1, timeout=5).requests
    assert (request.verify_passes, request.accepted, request.finish, request.chunks) == (2, (0, 2), "stop", 2)


INTERRUPTED = """
import signal, sys, threading, time
from tuning.serving.client import generate
from tuning.serving.prompts import token_prompts
from tuning.serving.served import Load

signal.signal(signal.SIGINT, signal.default_int_handler)
load = Load(prompts=token_prompts(length=5, vocabulary=32_000).prompts[:8], max_tokens=9)
try:
    generate(sys.argv[1], load, concurrency=4, timeout=60)
except KeyboardInterrupt:
    deadline = time.monotonic() + 3  # a thread that was just being started ends by itself
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    sys.exit(30 + threading.active_count())
"""


def test_ctrl_c_ends_all_requests(tmp_path) -> None:
    with fake_server(tmp_path, hang="decode", **FAST) as fake:
        process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, fake.url])
        while "Prefill" not in fake.log:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 31  # this thread is the only one left


def test_nobody_there_is_a_failure_of_each_request_and_an_error_of_each_question() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert failure(url).reason is Reason.UNREACHABLE
    for ask in (server_info, metrics, flush_cache):
        with pytest.raises(UnreachableError, match="no answer"):
            ask(url)


def test_what_the_server_says_of_itself(tmp_path) -> None:
    with fake_server(tmp_path, *SPEC, **FAST, release="0.5.9") as fake:
        generate(fake.url, load(tokens=200), concurrency=1, timeout=10)
        assert "avg_spec_accept_length" in server_info(fake.url)["internal_states"][0]
        flush_cache(fake.url)
        info = server_info(fake.url)
        assert 'sglang:generation_tokens_total{engine_type="unified",model_name="M"} 200.0' in metrics(fake.url)
    assert (info["version"], info["speculative_num_draft_tokens"]) == ("0.5.9", 3)
    assert "avg_spec_accept_length" not in info["internal_states"][0]


def test_a_flush_waits_for_the_last_request_and_gives_up_in_time(tmp_path) -> None:
    with fake_server(tmp_path, **{**FAST, "compute_ms": 5.0}) as fake:
        thread = threading.Thread(
            target=generate, args=(fake.url, load(tokens=200)), kwargs={"concurrency": 1, "timeout": 10}
        )
        thread.start()
        while not fake.truth():
            time.sleep(0.01)
        with pytest.raises(LanewiseError, match="HTTP 400"):
            flush_cache(fake.url, timeout=0.2)
        flush_cache(fake.url)
        thread.join()


def test_a_page_that_never_ends_is_ended() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx", keep_open=True) as url:
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match="no answer"):
            server_info(url, timeout=0.3)
        assert time.monotonic() - begun < 2


@pytest.mark.parametrize("length", [b"Content-Length: 99\r\n", b""], ids=["of a length", "to the end"])
def test_a_page_that_drips_is_cut_off_and_none(length: bytes) -> None:
    with raw_server(b"HTTP/1.0 200 OK\r\n" + length + b"\r\n", drip=150) as url:
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match="no answer"):
            metrics(url, timeout=0.3)
        assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:30000", "https://h:1", "http://", "http://h:99999", "http://u@h:1", "http://h:1/v1", "http://[h"]
)  # fmt: skip
def test_addresses_that_cannot_be_meant_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="address"):
        generate(url, load(), concurrency=1, timeout=1)


def test_loads_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InputError, match="token ids"):
        generate("http://127.0.0.1:1", load(api=Api.CHAT), concurrency=1, timeout=1)
    for concurrency in (0, 65):
        with pytest.raises(InputError, match=str(concurrency)):
            generate("http://127.0.0.1:1", load(), concurrency=concurrency, timeout=1)


def test_gaps_add_up_to_the_time_between_first_and_last_token(tmp_path) -> None:
    with fake_server(tmp_path, *SPEC, **FAST) as fake:
        served = generate(fake.url, load(prompts=TOKENS[:4]), concurrency=4, timeout=10)
    for answer in served.answers:
        assert sum(answer.request.gaps_ms) == pytest.approx((answer.last - answer.first) * 1000)
        assert answer.sent + answer.request.seconds == pytest.approx(answer.last)
