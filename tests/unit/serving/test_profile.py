"""Profiles: taken from a fake server, cut into whole steps, and read from files that hold anything."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import time
import tracemalloc
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from lanewise.errors import InputError, LanewiseError, UnreachableError
from tests.unit.serving.makers import OUTPUT_TOKENS, fake_arm, fake_serving_plan, fake_serving_run
from tests.unit.serving.servers import fake_server, free_port
from tuning.serving import profiled, trace
from tuning.serving.plan import Start
from tuning.serving.profile import REST, parse_profile, summarise, take
from tuning.serving.prompts import Prompt
from tuning.serving.served import Load
from tuning.serving.trace import Kernel, read_kernels

LOAD = Load(prompts=(Prompt(id="a", category="tokens", tokens=tuple(range(16))),), max_tokens=64, ignore_eos=True)


def write(path: Path, text: str) -> Path:
    with gzip.open(path, "wt") as file:
        file.write(text)
    return path


def read(path: Path) -> list[Kernel]:
    return read_kernels(path, deadline=time.monotonic() + 60)


def steps_of(count: int, *, calls: int = 4, ragged: bool = True) -> list[Kernel]:
    """Steps of 1 ms: `calls` allreduces of 20 us, a GEMM beside each, one argmax. The first and last are cut off."""
    kernels = []
    for step in range(count):
        at = 1000.0 * step
        for call in range(calls):
            kernels += [
                Kernel(name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begin=at + 100 * call, us=20),
                Kernel(name=f"gemm_{call % 2}", begin=at + 100 * call + 30, us=60),
            ]
        kernels.append(Kernel(name="argmax", begin=at + 900, us=5))
    return kernels[5:-3] if ragged else kernels


def test_steps_are_whole_though_the_trace_is_not() -> None:
    profile = summarise(steps_of(10), concurrency=2, steps=10)
    assert profile.allreduces == 4
    assert profile.allreduce_ms == pytest.approx(0.08)
    assert profile.step_ms == pytest.approx(1.0)
    assert profile.busy_ms == pytest.approx(0.08 + 0.24 + 0.005)


def test_kernels_that_take_little_are_one_entry_but_for_those_that_reduce() -> None:
    many = [Kernel(name=f"k{n:02}", begin=n + 1000.0 * s, us=50 - n / 2) for s in range(6) for n in range(60)]
    many += [Kernel(name="cross_device_reduce_1stage", begin=500 + 1000.0 * s, us=0.1) for s in range(6)]
    many.sort(key=lambda kernel: kernel.begin)
    profile = summarise(many, concurrency=1, steps=6)
    assert len(profile.kernels) == 40 + 2
    assert profile.kernels[REST][0] == 20
    assert profile.allreduces == 1


def test_a_profile_without_steps_says_so() -> None:
    with pytest.raises(LanewiseError, match="none of them ran about 50 times"):
        summarise(steps_of(10), concurrency=1, steps=50)


def test_a_profile_survives_its_file_and_nothing_else_does() -> None:
    profile = summarise(steps_of(10), concurrency=2, steps=10)
    assert parse_profile(json.loads(json.dumps(profile.to_dict()))) == profile
    for broken in ({}, None, [], {"kernels": {"a": [1]}}, {**profile.to_dict(), "kernels": {"a": [1, "x"]}}):
        assert parse_profile(broken) is None
    assert parse_profile({**profile.to_dict(), "steps": -1}) is None
    assert parse_profile({**profile.to_dict(), "kernels": {"all_reduce": [1e308, 1e308]}}) is None, "sums are finite"


def test_events_other_than_kernels_are_left_out(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "[x]}{"}},
        {"cat": "kernel", "name": "b", "ts": 5.5, "dur": 2},
        {"cat": "cpu_op", "name": "a", "ts": 1, "dur": 9},
        {"cat": "kernel", "name": "a" * 500, "ts": 1, "dur": 3},
        {"cat": "kernel", "name": "c", "ts": "now", "dur": 3},
        7,
        None,
    ]
    text = json.dumps(
        {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": events, "more": []}, indent=1
    )
    kernels = read(write(tmp_path / "t.json.gz", text))
    assert [(k.name, k.begin, k.us) for k in kernels] == [("a" * 140, 1, 3), ("b", 5.5, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"traceEvents": 1}',
        '{"traceEvents": [',
        '{"traceEvents": [{"cat": "kernel", "na',
        '{"traceEvents": [' + "[" * 200_000,
        '{"traceEvents": ["' + "x" * 3_000_000,
        "x" * 3_000_000,
    ],
    ids=["empty", "no events", "no list", "no end", "torn", "deep", "endless", "no JSON"],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="cannot read the profile"):
        read(write(tmp_path / "t.json.gz", text))


def test_what_is_no_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_text("{}")
    with pytest.raises(InputError, match="cannot read the profile"):
        read(tmp_path / "t.json.gz")
    with pytest.raises(InputError):
        read(tmp_path / "missing.json.gz")


def test_a_large_trace_is_read_in_little_memory_and_time(tmp_path: Path) -> None:
    event = json.dumps({"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {"x": "y" * 200}})
    path = write(tmp_path / "t.json.gz", '{"traceEvents": [' + ",".join([event] * 40_000) + "]}")
    tracemalloc.start()
    began = time.perf_counter()
    assert read(path) == []
    assert tracemalloc.get_traced_memory()[1] < 3_000_000, "the text is 11 MB"
    tracemalloc.stop()
    assert time.perf_counter() - began < 20


def test_a_fake_server_is_profiled(tmp_path: Path) -> None:
    out = tmp_path / "profile"
    out.mkdir()
    with fake_server(tmp_path, calls=12, allreduce_us=50.0, allreduce_us_per_kib=0.0, compute_ms=1.4) as server:
        profile = take(server.url, out, LOAD, timeout=20, steps=8)
    assert profile.allreduces == 12
    assert profile.allreduce_ms == pytest.approx(0.6)
    assert profile.step_ms == pytest.approx(2.0)
    assert (profile.steps, profile.concurrency) == (7, 1)


@pytest.mark.parametrize("special", ["link", "pipe", "folder", "socket", "huge"])
def test_what_is_no_regular_file_of_such_a_size_is_not_even_read(tmp_path: Path, special: str) -> None:
    whole = write(tmp_path / "whole.json.gz", '{"traceEvents": []}')
    path = tmp_path / "0-TP-0.trace.json.gz"
    if special == "link":
        path.symlink_to(whole)
    elif special == "pipe":
        os.mkfifo(path)
    elif special == "folder":
        path.mkdir()
    elif special == "socket":
        os.mknod(path, stat.S_IFSOCK)
    else:
        path.write_bytes(whole.read_bytes())
        os.truncate(path, 1 << 40)  # zeros, which gzip would go through one by one
    assert read(whole) == []
    with pytest.raises(InputError, match="cannot read the profile"):
        read(path)


def test_events_without_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_EVENTS", 100)
    assert read(write(tmp_path / "t.json.gz", '{"traceEvents": [' + "1," * 99 + "]}")) == []
    with pytest.raises(InputError, match="more than 100 events"):
        read(write(tmp_path / "t.json.gz", '{"traceEvents": [' + "1," * 101 + "]}"))


EMPTY = gzip.compress(b"")


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(b'{"traceEvents": [' + b"1," * 2_000_000), EMPTY * 20_000, EMPTY + bytes(1_000_000)],
    ids=["events", "members without text", "zeros"],
)
def test_reading_ends_at_its_deadline_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes
) -> None:
    """By a clock that goes on when it is looked at: it is, all the while."""
    looks = count()
    monkeypatch.setattr(trace, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"cannot read the profile .*the time for it was over before its end"):
        read_kernels(path, deadline=20)
    assert next(looks) == 21


def test_reading_ends_at_its_deadline_however_much_text_one_look_at_the_file_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gzip may unpack a thousand times what it read, before it reads on."""
    looks = count()
    monkeypatch.setattr(trace, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    monkeypatch.setattr(trace, "_Source", lambda packed, _: io.BytesIO(packed))
    with pytest.raises(InputError, match="the time for it was over before its end"):
        read_kernels(write(tmp_path / "t.json.gz", '{"traceEvents": [' + "1," * 2_000_000), deadline=20)


def test_a_trace_that_takes_too_long_to_read_ends_the_profile(tmp_path: Path) -> None:
    write(tmp_path / "1-TP-0.trace.json.gz", '{"traceEvents": [' + "1," * 6_000_000 + "]}")
    began = time.monotonic()
    with fake_server(tmp_path, profiler=False) as server, pytest.raises(InputError, match="the time for it was over"):
        take(server.url, tmp_path, LOAD, timeout=1.2)
    assert time.monotonic() - began < 10


def test_what_a_hostile_server_leaves_beside_its_traces_is_told_and_nothing_hangs(tmp_path: Path) -> None:
    out = tmp_path / "profile"
    out.mkdir()
    with fake_server(tmp_path, litter=True) as server, pytest.raises(InputError, match="cannot read the profile"):
        take(server.url, out, LOAD, timeout=2)
    subprocess.run(["rm", "-rf", "--", out], check=True)  # pytest's own removal does not take that many folders


def test_a_trace_is_read_when_it_is_whole_however_long_a_rank_writes(tmp_path: Path) -> None:
    out = tmp_path / "profile"
    out.mkdir()
    with fake_server(tmp_path, "--tp-size", "2", calls=12, trace_seconds=0.8) as server:
        assert take(server.url, out, LOAD, timeout=20).allreduces == 12


def test_a_trace_that_stays_broken_is_told(tmp_path: Path) -> None:
    write(tmp_path / "1-TP-0.trace.json.gz", '{"traceEvents": [')
    with fake_server(tmp_path, profiler=False) as server, pytest.raises(InputError, match="cannot read the profile"):
        take(server.url, tmp_path, LOAD, timeout=1.2)


def test_a_server_without_a_profiler_or_without_answer_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="gave no answer"):
        take(f"http://127.0.0.1:{free_port()}", tmp_path, LOAD, timeout=3)
    out = tmp_path / "profile"
    with fake_server(tmp_path, profiler=False) as server, pytest.raises(LanewiseError, match="wrote no profile"):
        take(server.url, out, LOAD, timeout=1.5)


@pytest.mark.parametrize(
    ("sizes", "prompt_tokens", "least", "most"),
    [
        ({"context_length": 2048, "max_total_tokens": 8192}, 128, 450, 550),
        ({"context_length": 768, "max_total_tokens": 8192}, 64, 320, 320),
        ({}, 128, OUTPUT_TOKENS, OUTPUT_TOKENS),
        ({"context_length": 2048}, 0, OUTPUT_TOKENS, OUTPUT_TOKENS),
    ],
    ids=["room for two seconds", "room for less", "room unknown", "a text"],
)
def test_a_profile_watches_one_long_answer_where_the_server_has_room_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sizes: dict[str, int], prompt_tokens: int, least: int, most: int
) -> None:
    asked = []

    def fake_take(_url: str, _folder: Path, load: Load, *, timeout: float) -> None:
        asked.append((load.max_tokens, timeout))
        raise LanewiseError("enough", expected="-", todo="-")

    monkeypatch.setattr(profiled, "take", fake_take)
    arm = fake_arm("default/baseline")
    arm = replace(arm, spec=replace(arm.spec, **sizes))
    run = fake_serving_run(fake_serving_plan(arm), lambda *_: 4.0)
    prompt = Prompt(
        id="a", category="tokens", tokens=tuple(range(prompt_tokens)), text="" if prompt_tokens else "hello"
    )
    start = Start(environment=run.header.plan.environments[0], arm=arm, repetition=0)
    profiled.profile_of("http://127.0.0.1:1", start, run.header.plan, [prompt], run.trials, folder=tmp_path / "p")
    ((tokens, _),) = asked
    assert least <= tokens <= most


def test_a_step_of_which_kernels_are_lost_does_not_count() -> None:
    """As of SGLang 0.5.12 over its custom allreduce on two H200, whose profile held 131.125 allreduces a step."""
    whole = [
        Kernel(name=name, begin=1000.0 * step + at, us=2.0)
        for step in range(10)
        for at, name in enumerate(["first", *["all_reduce"] * 132])
    ]
    lost = [kernel for kernel in whole if not 100 <= kernel.begin < 110]
    assert len(lost) == len(whole) - 10
    everything, found = (summarise(kernels, concurrency=1, steps=10) for kernels in (whole, lost))
    assert (everything.steps, everything.allreduces) == (9, 132)
    assert (found.steps, found.allreduces) == (8, 132)
    assert found.step_ms == everything.step_ms == pytest.approx(1.0)


@pytest.mark.parametrize(("sizes", "steps"), [([50] * 4 + [40, 40, 60, 60], 4), ([10 * n for n in range(1, 10)], 9)])
def test_steps_that_differ_all_count_unless_half_are_alike(sizes: list[int], steps: int) -> None:
    kernels = [
        Kernel(name=name, begin=1000.0 * step + at, us=2.0)
        for step, size in enumerate([*sizes, 1])
        for at, name in enumerate(["first", *["all_reduce"] * (size - 1)])
    ]
    found = summarise(kernels, concurrency=1, steps=len(sizes))
    assert found.steps == steps
