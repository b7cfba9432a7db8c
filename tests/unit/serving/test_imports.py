from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from lanewise.errors import InputError
from tests.unit.serving.makers import fake_serving_plan, fake_serving_run
from tuning.serving.foreign_view import only_foreign, read_measured
from tuning.serving.imported import Imported
from tuning.serving.imports import read_foreign
from tuning.verbs import compare


def imported(tmp_path: Path, *documents: object) -> Imported:
    path = tmp_path / "result"
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in documents))
    return read_foreign(path)


def record(name: str, start: float, end: float, *, phase: str = "profiling", cancelled: bool = False) -> dict[str, Any]:
    """A line of AIPerf's profile_export.jsonl; times in seconds."""
    return {
        "metadata": {
            "conversation_id": name, "benchmark_phase": phase, "was_cancelled": cancelled,
            "request_start_ns": int(start * 1e9), "request_end_ns": int(end * 1e9),
        },
        "metrics": {
            "request_latency": {"value": 1_000 * (end - start), "unit": "ms"},
            "time_to_first_token": {"value": 50.0, "unit": "ms"},
            "inter_token_latency": {"value": 8.0, "unit": "ms"},
            "usage_prompt_tokens": {"value": 12, "unit": "tokens"},
            "usage_completion_tokens": {"value": 100, "unit": "tokens"},
            "inter_chunk_latency": {"value": [20.0, 22.0, 18.0], "unit": "ms"},
        },
    }  # fmt: skip


def test_aiperfs_records_become_requests_and_chunk_gaps_step_times(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        record("w", 0, 1, phase="warmup"),
        record("a", 1, 2),
        record("b", 2.5, 3.5),
        record("c", 4, 9, cancelled=True),
    )
    [one] = found.passes
    assert (found.tool, [request.prompt for request in one.requests]) == ("AIPerf", ["a", "b"])
    assert (one.completed, one.seconds, one.running) == (2, 2.5, 0.8)
    assert (one.tokens_per_second, one.ttft_ms, one.tpot_ms, one.step_ms) == (80, 50, 8, 20)
    assert one.requests[0].gaps_ms == (20, 22, 18)
    assert (one.requests[0].prompt_tokens, one.requests[0].completion_tokens, one.requests[0].seconds) == (12, 100, 1)
    assert one.accept_length is None
    assert any("2 requests of warm-up or cancelled" in note for note in found.notes)


def test_chunk_gaps_of_requests_that_overlap_are_no_step_times(tmp_path: Path) -> None:
    [one] = imported(tmp_path, record("a", 1, 3), record("b", 2, 4), record("c", 9, 10)).passes
    assert one.step_ms is None


def summary(concurrency: int) -> dict[str, Any]:
    phases = [{"kind": "warmup", "concurrency": 9}, {"kind": "profiling", "concurrency": concurrency}]
    return {
        "aiperf_version": "0.13.0",
        "input_config": {"phases": phases},
        "request_latency": {"avg": 900.0},
        "request_count": {"avg": 5.0},
        "effective_concurrency": {"avg": 0.98},
        "benchmark_duration": {"avg": 3.6},
        "output_token_throughput": {"avg": 87.5},
        "time_to_first_token": {"avg": 55.0},
        "inter_token_latency": {"avg": 10.0},
        "inter_chunk_latency": {"avg": 21.0},
    }


def test_aiperfs_summary(tmp_path: Path) -> None:
    found = imported(tmp_path, summary(1))
    [one] = found.passes
    assert (found.version, one.concurrency, one.running, one.seconds, one.completed) == ("0.13.0", 1, 0.98, 3.6, 5)
    assert (one.tokens_per_second, one.ttft_ms, one.tpot_ms, one.step_ms) == (87.5, 55, 10, 21)
    assert imported(tmp_path, summary(4)).passes[0].step_ms is None


def server_metrics(**totals: float) -> dict[str, Any]:
    metrics = {
        f"sglang:{name}": {"type": "counter", "series": [{"stats": {"total": value}}, {"stats": {"total": 0.0}}]}
        for name, value in totals.items()
    }
    return {"aiperf_version": "0.13.0", "metrics": metrics, "input_config": {}}


def test_aiperfs_counters_give_the_accept_length(tmp_path: Path) -> None:
    found = imported(tmp_path, server_metrics(generation_tokens=505, spec_verify_calls=200, num_requests=5))
    assert (found.passes[0].accept_length, found.passes[0].accept_source) == (2.5, "counters")
    rough = imported(tmp_path, server_metrics(generation_tokens=505, spec_verify_calls=200))
    assert rough.passes[0].accept_length == pytest.approx(2.525)
    assert any("first tokens" in note for note in rough.notes)
    assert imported(tmp_path, server_metrics(generation_tokens=505)).passes[0].accept_source == ""


LINE = {
    "tag": "x", "backend": "sglang", "dataset_name": "random", "max_concurrency": 8,
    "server_info": {"version": "0.5.9"},
    "duration": 60.0, "completed": 20, "output_throughput": 200.0, "mean_ttft_ms": 300.0, "mean_tpot_ms": 9.0,
    "concurrency": 7.5, "accept_length": 2.25,
}  # fmt: skip


def test_bench_servings_lines(tmp_path: Path) -> None:
    found = imported(tmp_path, LINE, {**LINE, "tag": "y", "accept_length": None})
    first, second = found.passes
    assert (found.tool, found.version, first.label) == ("bench_serving", "0.5.9", "x random")
    assert (first.concurrency, first.running, first.seconds, first.completed) == (8, 7.5, 60, 20)
    assert (first.tokens_per_second, first.ttft_ms, first.tpot_ms, first.step_ms) == (200, 300, 9, None)
    assert (first.accept_length, first.accept_source) == (2.25, "server lifetime")
    assert (second.accept_length, second.accept_source) == (None, "")
    assert any("since its start" in note for note in found.notes)


def test_bench_servings_details_become_requests(tmp_path: Path) -> None:
    details = {"input_lens": [5, 6], "output_lens": [3, 1], "ttfts": [0.5, 0.25], "itls": [[0.125, 0.125], []]}
    first, second = imported(tmp_path, LINE | details).passes[0].requests
    assert (first.prompt_tokens, first.completion_tokens, first.ttft_ms, first.seconds) == (5, 3, 500, 0.75)
    assert (second.seconds, second.gaps_ms) == (0.25, ())
    assert imported(tmp_path, LINE | details | {"ttfts": [0.5]}).passes[0].requests == ()


@pytest.mark.parametrize(
    ("asked", "concurrency"),
    [
        ("Max request concurrency:                 8         ", 8),
        ("Max reqeuest concurrency:                16", 16),
        ("Max request concurrency:                 not set   ", None),
    ],
)
def test_bench_servings_table_of_2024_and_of_today(tmp_path: Path, asked: str, concurrency: float | None) -> None:
    table = f"""\
noise: before
============ Serving Benchmark Result ============
Backend:                                 sglang
{asked}
Successful requests:                     50
Benchmark duration (s):                  100.50
Output token throughput (tok/s):         183.80
Peak output token throughput (tok/s):    299.00
Concurrency:                             7.01
Accept length:                           2.14
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   18000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          120.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          31.00
"""
    found = imported(tmp_path, table, table)
    assert len(found.passes) == 2
    one = found.passes[0]
    assert (one.concurrency, one.running, one.seconds, one.completed) == (concurrency, 7.01, 100.5, 50)
    assert (one.tokens_per_second, one.ttft_ms, one.tpot_ms, one.accept_length) == (183.8, 120, 31, 2.14)


def test_llm_decode_bench_without_its_accept_rate(tmp_path: Path) -> None:
    cell = {
        "concurrency": 4, "context_tokens": 16_384, "aggregate_tps": 361.5, "ttft_avg": 0.125, "wall_time": 15.25,
        "num_completed": 4, "server_spec_accept_rate": 0.5,
    }  # fmt: skip
    found = imported(tmp_path, {"metadata": {"model": "m"}, "results": [cell, cell]})
    one = found.passes[0]
    assert (found.tool, len(found.passes), one.label) == ("llm-decode-bench", 2, "context 16384")
    assert (one.concurrency, one.tokens_per_second, one.ttft_ms, one.seconds) == (4, 361.5, 125, 15.25)
    assert one.accept_length is None
    assert any("accept rate is not used" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("  Performance Estimate (static_gen)\n", "an estimate of aiconfigurator"),
        ("NVIDIA AIPerf | LLM Metrics", "AIPerf's screen"),
        ("Metric,avg,min,max,sum,p1\n", "AIPerf's CSV"),
        ("Sustained Decode\n│ 0 │ 95.6 │", "llm-decode-bench's screen"),
        ("[10:00:00] Decode batch, #running-req: 1", "a server's log"),
        ("# TYPE vllm:x counter\n", "a scrape of /metrics"),
        ('{"benchmarks": [], "metadata": {}}', "guidellm's report"),
        ('{"num_prompts": 5, "endpoint_type": "openai"}', "vLLM's bench serve"),
        ('{"batch_size": 1, "num_draft_tokens": 4, "step_time": 0.01}', "bench_speculative.py"),
        ('{"run_name": "x", "input_len": 4, "last_gen_throughput": 1}', "bench_one_batch_server"),
        ('{"format": "lanewise-run", "plan": {}}', "a run file of ours"),
        ('{"a": 1}', "no result that is known"),
        ('{"a": 1}\n[2]\n', "no result that is known"),
        ("anything", "no result that is known"),
        ("", "no result that is known"),
        ('{"a": ', "damaged JSON"),
        ('{"a":' * 200_000, "damaged JSON"),
    ],
)
def test_what_is_none_of_them_is_named(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(InputError, match="result") as caught:
        imported(tmp_path, content)
    assert says in caught.value.what


@pytest.mark.parametrize(
    "document",
    [
        {
            **LINE,
            "duration": "long",
            "completed": -1,
            "server_info": [],
            "input_lens": "x",
            "itls": {},
            "accept_length": 1e999,
        },
        {
            **summary(1),
            "input_config": {"phases": {"kind": 1}},
            "request_count": [],
            "inter_chunk_latency": {"avg": True},
        },
        {**server_metrics(), "metrics": {"sglang:generation_tokens": {"series": [None, {"stats": 3}]}}},
        {"metadata": {"benchmark_phase": "profiling", "request_start_ns": "x"}, "metrics": []},
        {"metadata": {"benchmark_phase": "profiling", "request_start_ns": 9, "request_end_ns": 1}, "metrics": {}},
        {"results": [{"concurrency": None, "aggregate_tps": {}}]},
    ],
)
def test_damaged_numbers_are_unknown(tmp_path: Path, document: dict[str, Any]) -> None:
    [one] = imported(tmp_path, document).passes
    assert (one.accept_length, one.step_ms) == (None, None)
    assert one.completed in (None, len(one.requests))


def test_compare_describes_results_of_other_tools_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b\x1b.jsonl"
    first.write_text(json.dumps(record("a", 0, 2)) + "\n")
    second.write_text(json.dumps(record("a", 0, 1)) + "\n")
    compare(Context(), run=[str(first), str(second)])
    shown = capsys.readouterr().out
    assert "described, not judged" in shown
    assert all(rate in shown for rate in (" 50 ", " 100 "))
    assert "\x1b" not in shown.replace("\x1b[", ""), "a name drives no terminal"
    compare(Context(), run=[str(first)], json=True)
    (described,) = json.loads(capsys.readouterr().out)["described"]
    assert (described["tool"], described["passes"][0]["tokens_per_second"]) == ("AIPerf", 50)
    assert "requests" not in described["passes"][0]


def test_compare_of_a_file_of_nobody_says_what_a_run_file_is(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}\n")
    with pytest.raises(InputError, match="is not a run file"):
        read_measured(tmp_path / "x")


def test_compare_takes_files_of_one_kind(tmp_path: Path) -> None:
    imported(tmp_path, record("a", 0, 2))
    path = str(tmp_path / "result")
    with pytest.raises(InputError, match="another is a run file"):
        only_foreign([path, "run"], [read_measured(Path(path)), fake_serving_run(fake_serving_plan(), lambda *_: 8.0)])
