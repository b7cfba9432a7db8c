from __future__ import annotations

import pytest

from tuning.serving.log import DecodeLine, decode_lines, graph_share, steps
from tuning.serving.startup import startup


def decode(
    rate: float,
    *,
    running: int = 1,
    accept: float | None = None,
    stamp: str = "2026-03-01 10:00:00 TP0",
    graph: str = "True",
) -> str:
    """A decode line of today's dialect."""
    accepted = "" if accept is None else f"accept len: {accept:.2f}, accept rate: 0.40, "
    return (
        f"[{stamp}] Decode batch, #running-req: {running}, #token: 900, token usage: 0.01, {accepted}"
        f"cuda graph: {graph}, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    )


def prefill(stamp: str = "2026-03-01 10:00:00 TP0") -> str:
    return (
        f"[{stamp}] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.00, #running-req: 0, "
        "#queue-req: 0, cuda graph: False, input throughput (token/s): 12.00"
    )


def vllm(prompt: float, rate: float, running: int = 1) -> str:
    return (
        "(APIServer pid=7) INFO 05-02 11:22:33 [loggers.py:271] Engine 000: "
        f"Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {rate} tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%"
    )


def vllm_accept(length: float) -> str:
    return (
        "(APIServer pid=7) INFO 05-02 11:22:33 [metrics.py:101] SpecDecoding metrics: "
        f"Mean acceptance length: {length}, Accepted throughput: 50.79 tokens/s"
    )


def only(line: str) -> DecodeLine:
    [found] = decode_lines([line])
    return found


END = "cuda graph: True, gen throughput (token/s): 300.00, #queue-req: 4"
DOT = f"""[2025-09-01 10:00:00 TP0] Decode batch. #running-req: 3, #token: 77, token usage: 0.02, \
accept len: 2.50, {END}, """
ITERATION = f"""[2026-03-01 10:00:00 DP1 TP4 EP4] Decode batch [812], #running-req: 3, #token: 77, \
token usage: 0.02, accept len: 2.50, accept rate: 0.50, cap len: 3.00, block accept len: 2.00, \
{END}, est. decode TFLOPS/s (per GPU): 1.00"""
TWO_POOLS = f"""2026-03-01T10:00:00.1234+01:00 stdout F [2026-03-01 10:00:00] Decode batch, #running-req: 3, \
#full token: 77, full token usage: 0.02, #swa token: 9, swa token usage: 0.01, accept len: 2.50, accept rate: 0.83, \
pre-allocated usage: 0.00, #prealloc-req: 9, {END}"""
MAMBA = f"""\x1b[32m[10:00:00 TP0]\x1b[0m Decode batch, #running-req: \x1b[1m3\x1b[0m, #full token: 77, \
full token usage: 0.02, mamba num: 5, mamba usage: 0.10, accept len: 2.50, accept rate: 0.83, {END}"""


@pytest.mark.parametrize(("line", "rank"), [(DOT, "TP0"), (ITERATION, "DP1 TP4 EP4"), (TWO_POOLS, ""), (MAMBA, "TP0")])
def test_every_dialect_says_the_same(line: str, rank: str) -> None:
    found = only(line)
    assert (found.running, found.tokens, found.accept_len, found.graph) == (3, 77, 2.5, True)
    assert (found.tokens_per_second, found.queue, found.rank) == (300.0, 4, rank)
    assert found.step_ms == pytest.approx(25.0)  # 3 requests x 2.5 tokens at 300 tokens/s


def test_step_time_is_exact_where_acceptance_moves() -> None:
    lines = [prefill(), decode(0.5, accept=2), *(decode(accept / 0.012, accept=accept) for accept in (2.0, 1.5, 2.5))]
    said = steps(decode_lines(lines))
    assert said is not None
    assert said.step_ms == pytest.approx(12.0, rel=1e-4)
    assert said.accept_length == pytest.approx(2.0)
    assert said.tokens_per_second == pytest.approx(2.0 / 0.012, rel=1e-4)
    assert (said.lines, said.dropped, said.graph_share) == (3, 1, 1.0)


def test_each_line_counts_by_its_steps_not_by_its_speed() -> None:
    said = steps(decode_lines([prefill(), decode(100), decode(100), decode(50)]))
    assert said is not None
    assert said.step_ms == pytest.approx((10 + 20) / 2)
    assert said.tokens_per_second == pytest.approx(2 / 0.030)


def test_the_first_line_of_a_text_and_after_a_prefill_is_dropped() -> None:
    assert steps(decode_lines([decode(100)])) is None
    assert [line.steady for line in decode_lines([decode(100), decode(100), prefill(), decode(9), decode(100)])] == [
        False, True, False, True,
    ]  # fmt: skip


def test_a_line_over_which_the_batch_changed_is_dropped() -> None:
    lines = decode_lines([decode(100, running=8), decode(100, running=8), decode(90, running=5), decode(50, running=5)])
    assert [line.steady for line in lines] == [False, True, False, True]


def test_data_parallel_ranks_add_up_and_do_not_break_each_other() -> None:
    first, second = "2026-03-01 10:00:00 DP0 TP0", "2026-03-01 10:00:00 DP1 TP1"
    lines = [
        decode(100, running=2, stamp=first) + decode(1, running=3, stamp=second),
        prefill(second),
        decode(100, running=2, stamp=first) + decode(1, running=3, stamp=second),
        decode(150, running=3, stamp=second),
    ]
    said = steps(decode_lines(lines))
    assert said is not None
    assert (said.running, said.lines) == (5, 2)
    assert said.step_ms == pytest.approx(20.0)
    assert said.tokens_per_second == pytest.approx(250.0)


def test_eager_steps_are_counted_over_all_lines() -> None:
    assert graph_share(decode_lines([decode(9), decode(9, graph="False"), decode(9), decode(9)])) == 0.75
    assert graph_share(decode_lines([vllm(0.0, 99.0)])) is None


def test_vllm_pairs_rate_and_acceptance_and_drops_prefills() -> None:
    lines = [
        *(vllm(7.0, 30.0), vllm_accept(2.6)),
        *(vllm(0.0, 100.0), vllm_accept(2.5)),
        *(vllm(7.0, 95.0), vllm_accept(2.6)),  # a short prefill ran in it
        *(vllm(0.0, 62.5), vllm_accept(2.0)),
        *(vllm(0.0, 18.0), vllm_accept(2.4)),  # a long prefill runs, whose tokens are counted later
        *(vllm(0.0, 0.0), vllm(900.0, 40.0), vllm_accept(2.4)),
        vllm(0.0, 90.0),  # the log ends before its acceptance
    ]
    said = steps(decode_lines(lines))
    assert said is not None
    assert (said.lines, said.graph_share) == (2, None)
    assert said.step_ms == pytest.approx(2 / (1 / 25 + 1 / 32))  # both lines are equally long
    assert said.tokens_per_second == pytest.approx((100 + 62.5) / 2)


def test_vllm_without_speculation_emits_one_token_a_step() -> None:
    said = steps(decode_lines([vllm(3.0, 20.0), vllm(0.0, 50.0), vllm(0.0, 50.0)]))
    assert said is not None
    assert said.step_ms == pytest.approx(20.0)
    assert said.accept_length == 1.0


@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, ",
        "Decode batch, #running-req: x, gen throughput (token/s): 1.0",
        f"[10:00:00] Decode batch, #running-req: {'9' * 5_000}, gen throughput (token/s): {'9' * 5_000}",
        "[10:00:00] Decode batch, #running-req: 1, gen throughput (token/s): nan",
        "[" * 50_000 + "Decode batch",
        ("[10:00:00 TP0] Decode batch " * 5_000),
        "Decode batch [" + " " * 100_000,
    ],
)
def test_damaged_lines_are_passed_over(line: str) -> None:
    assert decode_lines([line]) == []


def test_no_throughput_is_no_step() -> None:
    assert only(decode(0.0)).step_ms is None
    assert steps(decode_lines([decode(0), decode(0), decode(5, running=0), decode(5, running=0)])) is None


START = """\
[2026-03-01 10:00:00] server_args=ServerArgs(model_path='/models/m', tp_size=2, mem_fraction_static=0.85, \
disable_radix_cache=True, speculative_draft_model_path=None, cuda_graph_bs=[1, 2])
[2026-03-01 10:00:01 TP0] Init torch distributed begin.
[2026-03-01 10:00:02 TP0] Init torch distributed ends. elapsed=1.00 s, mem usage=0.30 GB
[2026-03-01 10:00:02 TP0] Load weight begin. avail mem=139.00 GB
[2026-03-01 10:00:03 TP1] Load weight end. type=M, avail mem=127.00 GB, mem usage=12.30 GB.
[2026-03-01 10:00:03 TP0] Load weight end. type=M, avail mem=127.00 GB, mem usage=12.30 GB.
[2026-03-01 10:00:04 TP0] KV Cache is allocated. #tokens: 16384, K size: 1.75 GB, V size: 1.75 GB
[2026-03-01 10:00:05 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=120.00 GB
Capturing batches (bs=2 avail_mem=120.00 GB):   0%|   | 0/2\rCapturing batches (bs=2 avail_mem=120.00 GB):  50%|x\r\
Capturing batches (bs=1 avail_mem=119.00 GB):  50%|x
[2026-03-01 10:00:07 TP0] Capture cuda graph end. Time elapsed: 2.50 s. mem usage=0.50 GB. avail mem=119.50 GB.
[2026-03-01 10:00:08 TP0] Load weight end. type=D, avail mem=118.00 GB, mem usage=1.20 GB.
[2026-03-01 10:00:09 TP0] Capture draft extend CUDA graph begin. backend=full, num_tokens=[4], avail mem=118.00 GB
[2026-03-01 10:00:10 TP0] Capture draft extend CUDA graph end. elapsed=1.25 s, mem usage=0.10 GB, avail mem=118.00 GB.
[2026-03-01 10:00:11 TP0] max_total_num_tokens=16384, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=4, context_len=8192, available_gpu_mem=117.00 GB
[2026-03-01 10:00:12] The server is fired up and ready to roll!"""


def test_a_start_says_what_was_resolved_captured_and_allocated() -> None:
    said = startup(START.split("\n"))
    assert said.arguments == {
        "model_path": "/models/m", "tp_size": 2, "mem_fraction_static": 0.85, "disable_radix_cache": True,
        "speculative_draft_model_path": None,
    }  # fmt: skip
    target, draft = said.captures
    assert (target.name, target.rank, target.batches, target.seconds, target.memory_gb) == ("", "TP0", (2, 1), 2.5, 0.5)
    assert (draft.name, draft.ended, draft.seconds) == ("draft extend", True, 1.25)
    assert (said.max_total_num_tokens, said.max_running_requests, said.context_length) == (16_384, 4, 8_192)
    assert said.weights_gb == pytest.approx(13.5)
    assert said.kv_gb == pytest.approx(3.5)
    assert (said.ready, said.stage) == (True, "")


def test_arguments_printed_as_a_mapping_are_read_too() -> None:
    said = startup(["[10:00:00] server_args={'model_path': '/m', 'tp_size': 1, 'nested': {'a': True}, 'log': None}"])
    assert said.arguments == {"model_path": "/m", "tp_size": 1, "a": True, "log": None}


@pytest.mark.parametrize(
    ("last", "stage"),
    [
        ("Init torch distributed begin", "while its ranks connected"),
        ("Load weight begin", "while weights were loaded"),
        ("Capturing batches (bs=1", "in graph capture, after the begin of batch 1"),
        ("Capture draft extend CUDA graph begin", "in graph capture of draft extend"),
        ("max_total_num_tokens", ""),
    ],
)
def test_a_start_that_broke_off_says_where(last: str, stage: str) -> None:
    lines = START.split("\n")
    end = next(at for at, line in enumerate(lines) if last in line)
    assert startup(lines[: end + 1]).stage == stage
