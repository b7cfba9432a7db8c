"""The fake is what other tests hold for true, so it is tested itself: counts, names and lines by release, endings."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.unit.serving.fake_sglang import install
from tests.unit.serving.fake_sglang_steps import Model, Options
from tests.unit.serving.servers import Running, fake_server, free_port, start_fake
from tuning.serving.client import generate, metrics
from tuning.serving.prompts import token_prompts
from tuning.serving.served import Load, Served

SPEC = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": "2"}
FLAGS = [part for name, value in SPEC.items() for part in (f"--{name}", value)]
FAST = {"calls": 0, "compute_ms": 1.0, "compute_ms_per_row": 0.0, "draft_ms": 0.0, "prefill_ms": 1.0}


def ask(fake: Running, *, requests: int = 1, tokens: int = 60) -> Served:
    load = Load(prompts=token_prompts(length=5, vocabulary=32_000).prompts[:requests], max_tokens=tokens)
    return generate(fake.url, load, concurrency=requests, timeout=10)


def model(flags=SPEC, **options) -> Model:
    return Model(Options(**options), flags)


def test_a_step_is_allreduce_compute_and_drafts() -> None:
    options = {"calls": 100, "row_bytes": 10_240, "allreduce_us": 10.0, "allreduce_us_per_kib": 0.1}
    made = model(**options, compute_ms=3.0, compute_ms_per_row=0.5, draft_ms=0.25)
    assert made.quiet_ms(2) == pytest.approx(100 * (10 + 6 * 10 * 0.1) / 1000 + 3 + 5 * 0.5 + 2 * 0.25)
    assert model({}, **options, compute_ms=3.0).quiet_ms(1) == pytest.approx(100 * (10 + 1) / 1000 + 3)


def test_steps_drift_are_cold_at_first_and_as_slow_as_the_start(tmp_path) -> None:
    quiet = model().quiet_ms(1) / 1000
    assert model(drift=0.1).step_seconds(1, 30.0) == pytest.approx(1.05 * quiet)
    cold = model(cold_steps=2, cold_factor=3.0)
    assert [cold.step_seconds(1, 0) / quiet for _ in range(3)] == pytest.approx([3, 2, 1])
    starts = {"modes": (1.0, 1.3), "starts": str(tmp_path / "starts")}
    assert {round(model(**starts).quiet_ms(1) / 1000 / quiet, 6) for _ in range(20)} == {1.0, 1.3}
    noisy = model(noise=0.05)
    assert statistics.stdev(noisy.step_seconds(1, 0) / quiet for _ in range(2000)) == pytest.approx(0.05, rel=0.1)


def test_a_flag_or_variable_makes_the_allreduce_slower(monkeypatch) -> None:
    factors = {"--disable-custom-all-reduce": 2.0, "NCCL_P2P_DISABLE=1": 3.0}
    assert model(allreduce_factors=factors).allreduce_factor == 1
    assert model({**SPEC, "disable-custom-all-reduce": ""}, allreduce_factors=factors).allreduce_factor == 2
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert model(allreduce_factors=factors).allreduce_factor == 3


@pytest.mark.parametrize(("simulated", "mean"), [("", 1 + 0.8 + 0.8 * 0.5), ("1.7", 1.7), ("9", 3.0)])
def test_acceptance_is_by_position_or_simulated(monkeypatch, simulated: str, mean: float) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", simulated or "0")
    made = model(accept=(0.8, 0.5, 0.9))
    draws = made.random
    assert 1 + statistics.fmean(made.accepted(draws) for _ in range(5000)) == pytest.approx(mean, abs=0.04)


def test_requests_share_steps_and_what_is_true_adds_up(tmp_path) -> None:
    with fake_server(tmp_path, *FLAGS, **FAST) as fake:
        requests = ask(fake, requests=4).requests
        steps = fake.truth()
    assert max(step["running"] for step in steps) == 4
    assert sum(step["running"] for step in steps) == sum(request.verify_passes or 0 for request in requests)
    assert len(steps) < sum(request.verify_passes or 0 for request in requests)
    assert {step["planned_ms"] for step in steps} == {1.0}


DECODE = r"#running-req: 1, #token: \d+, token usage: 0.00, "
SPEED = r"cuda graph: True, gen throughput \(token/s\): [\d.]+, #queue-req: 0"


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("0.5.3", rf"Decode batch\. {DECODE}accept len: [\d.]+, {SPEED}, $"),
        ("0.5.9", rf"Decode batch, {DECODE}accept len: (?P<len>[\d.]+), accept rate: (?P<rate>[\d.]+), {SPEED}$"),
        ("0.5.23", rf"Decode batch, {DECODE}accept len: (?P<len>[\d.]+), accept rate: (?P<rate>[\d.]+), {SPEED}$"),
    ],
)
def test_decode_lines_are_of_the_release(tmp_path, release: str, line: str) -> None:
    with fake_server(tmp_path, *FLAGS, "--decode-log-interval", "10", release=release, **FAST) as fake:
        ask(fake)
        found = re.search(line, fake.log, re.MULTILINE)
    assert found
    if "rate" in found.groupdict():
        length, rate = float(found["len"]), float(found["rate"])
        assert rate == pytest.approx(length / 3 if release == "0.5.9" else (length - 1) / 2, abs=0.011)


def test_counters_are_of_the_release_and_grow_as_there(tmp_path) -> None:
    for release, verified in (("0.5.9", False), ("0.5.13", True)):
        with fake_server(tmp_path, *FLAGS, release=release, **FAST) as fake:
            (request,) = ask(fake).requests
            text = metrics(fake.url)
        assert re.search(r"generation_tokens_total\{[^}]*\} 60\.0$", text, re.MULTILINE)
        passes = re.findall(r'cuda_graph_passes_total\{[^}]*mode="decode_cuda_graph"\} ([\d.]+)$', text, re.MULTILINE)
        assert [float(count) for count in passes] == [request.verify_passes]
        assert ("spec_verify_calls_total{" in text) == verified
    with fake_server(tmp_path, *FLAGS, counters=False, **FAST) as fake:
        assert "_total" not in metrics(fake.url)


def test_an_eager_fake_says_so(tmp_path) -> None:
    with fake_server(tmp_path, "--decode-log-interval", "10", eager=True, **FAST) as fake:
        ask(fake)
        assert re.search(r'mode="decode_none"\} 59\.0$', metrics(fake.url), re.MULTILINE)
        assert "cuda graph: False, gen throughput" in fake.log
        assert not any(step["graph"] for step in fake.truth())


def test_stated_counts_can_be_wrong(tmp_path) -> None:
    with fake_server(tmp_path, wrong_counts=-5, **FAST) as fake:
        assert ask(fake).requests[0].completion_tokens == 55


def ended(tmp_path, *flags: str, port: int | None = None, **options: object) -> tuple[int, str]:
    """Exit code and log of a fake that does not get ready."""
    code = start_fake(tmp_path, *flags, port=port or free_port(), **options).wait(20)
    return code, (tmp_path / "log").read_text()


def test_it_dies_with_given_words(tmp_path) -> None:
    code, log = ended(tmp_path, dies="torch.OutOfMemoryError: CUDA out of memory.")
    assert code == -signal.SIGKILL
    assert "CUDA graph begin" in log
    assert "CUDA graph end" not in log
    assert "torch.OutOfMemoryError" in log
    assert ended(tmp_path, dies="x", exit_code=3)[0] == 3


def test_a_port_that_is_taken_ends_it_as_there(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, log = ended(tmp_path, port=port)
        assert (code, "error while attempting to bind" in log) == (1, True)
        code, log = ended(tmp_path, "--nccl-port", str(port))
        assert (code, "EADDRINUSE" in log) == (1, True)


@pytest.mark.parametrize(("hang", "last"), [("start", "server_args"), ("capture", "CUDA graph begin")])
def test_it_hangs_where_told(tmp_path, hang: str, last: str) -> None:
    process = start_fake(tmp_path, port=free_port(), hang=hang)
    try:
        while last not in (log := (tmp_path / "log").read_text()):
            assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert last in log.splitlines()[-1]
    finally:
        process.kill()
        process.wait()


def test_a_profile_holds_the_kernels_of_its_steps(tmp_path) -> None:
    with fake_server(tmp_path, *FLAGS, calls=10) as fake:
        body = json.dumps({"output_dir": str(tmp_path / "profile"), "num_steps": 3}).encode()
        urllib.request.urlopen(f"{fake.url}/start_profile", body).close()
        while not (found := list((tmp_path / "profile").glob("*"))) or not found[0].stat().st_size:
            time.sleep(0.02)
        time.sleep(0.1)
    (path,) = found
    kernels = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum("AllReduce" in kernel["name"] for kernel in kernels) == 30
    quiet = model(calls=10).quiet_ms(1)
    assert sum(kernel["dur"] for kernel in kernels) == pytest.approx(3 * quiet * 1000)


def test_it_is_found_as_the_package_sglang(tmp_path) -> None:
    environment = {**os.environ, **install(tmp_path), "FAKE_SGLANG": json.dumps({"dies": "bye", "exit_code": 7})}
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "M"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert (done.returncode, "bye" in done.stderr) == (7, True)
