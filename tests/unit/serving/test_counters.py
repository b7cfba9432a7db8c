from __future__ import annotations

import pytest

from lanewise.errors import LanewiseError
from tuning.serving.counters import best_source, parse_metrics, window


def scrape(**values: float) -> str:
    """SGLang's /metrics with some counters; `passes` and `eager` are decode steps with and without a graph."""
    lines = {
        "tokens": 'sglang:generation_tokens_total{is_streaming="true",model_name="m"}',
        "plain": 'sglang:generation_tokens_total{is_streaming="false",model_name="m"}',
        "verified": 'sglang:spec_verify_calls_total{model_name="m"}',
        "requests": 'sglang:num_requests_total{is_streaming="true",model_name="m"}',
        "passes": 'sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="0"}',
        "eager": 'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"}',
        "prefills": 'sglang:cuda_graph_passes_total{mode="prefill_none",tp_rank="0"}',
        "decoded": 'sglang:realtime_tokens_total{mode="decode",tp_rank="0"}',
        "prompt": 'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"}',
    }
    return "# HELP x y\n" + "".join(f"{lines[name]} {value}\n" for name, value in values.items())


def test_a_window_is_what_counters_gained() -> None:
    before = parse_metrics(
        scrape(tokens=1_000, verified=500, requests=10, passes=400, decoded=900, prompt=50, prefills=3)
    )
    after = parse_metrics(
        scrape(
            tokens=2_008, plain=4, verified=900, requests=22, passes=550, eager=50, decoded=1_900, prompt=99, prefills=9
        )
    )
    gained = window(before, after)
    assert (gained.generation_tokens, gained.verify_calls, gained.finished) == (1_012, 400, 12)
    assert gained.accept_length == pytest.approx(2.5)  # 12 first tokens are prefill's
    assert (gained.decode_passes, gained.decode_tokens, gained.graph_share) == (200, 1_000, 0.75)
    assert gained.tokens_per_pass == pytest.approx(5.0)
    assert gained.step_ms(3.0) == pytest.approx(15.0)
    assert not gained.restarted


def test_counters_that_are_not_there_are_unknown_not_nought() -> None:
    gained = window(parse_metrics(""), parse_metrics(""))
    assert (gained.generation_tokens, gained.decode_passes, gained.accept_length, gained.graph_share) == (None,) * 4
    assert gained.step_ms(1.0) is None
    assert gained.tokens_per_pass is None


def test_nothing_verified_is_no_accept_length() -> None:
    gained = window(parse_metrics(scrape(verified=5, tokens=9)), parse_metrics(scrape(verified=5, tokens=9)))
    assert (gained.verify_calls, gained.accept_length) == (0, None)


@pytest.mark.parametrize("after", [scrape(tokens=40), scrape(requests=5)], ids=["fell", "vanished"])
def test_a_restart_is_seen(after: str) -> None:
    assert window(parse_metrics(scrape(tokens=500)), parse_metrics(after)).restarted


def test_after_a_restart_counters_begin_at_nought() -> None:
    assert window(parse_metrics(scrape(tokens=500)), parse_metrics(scrape(tokens=40))).generation_tokens == 40


def ranks(*labels: str, value: int) -> str:
    return "".join(
        f'sglang:cuda_graph_passes_total{{{label},mode="decode_cuda_graph"}} {value}\n'
        f'sglang:realtime_tokens_total{{{label},mode="decode"}} {2 * value}\n'
        f"sglang:num_running_reqs{{{label}}} 3\n"
        for label in labels
    )


def test_tensor_parallel_ranks_count_once_and_data_parallel_ranks_add_up() -> None:
    labels = [f'dp_rank="{rank // 2}",tp_rank="{rank}"' for rank in range(4)]
    after = parse_metrics(ranks(*labels, value=70))
    gained = window(parse_metrics(ranks(*labels, value=20)), after)
    assert (gained.decode_passes, gained.decode_tokens, after.running) == (50, 200, 6)


def test_of_several_data_parallel_ranks_the_busiest_tells_the_steps() -> None:
    after = ranks('dp_rank="0",tp_rank="0"', value=70) + ranks('dp_rank="1",tp_rank="1"', value=10)
    assert window(parse_metrics(""), parse_metrics(after)).decode_passes == 70


def test_vllm_tells_each_position() -> None:
    def vllm(drafts: int, accepted: int, first: int, second: int) -> str:
        return (
            f' vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0\n'
            f'vllm:spec_decode_num_drafts_created{{engine="0"}} 1.7e9\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}.0\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {first}.0\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {second}.0\n'
            f'vllm:num_requests_running{{engine="0"}} 2.0\nvllm:num_requests_waiting{{engine="0"}} 1.0\n'
        )

    after = parse_metrics(vllm(300, 450, 260, 190))
    gained = window(parse_metrics(vllm(100, 150, 100, 50)), after)
    assert gained.accept_length == pytest.approx(1 + 300 / 200)
    assert gained.positions == pytest.approx((0.8, 0.7))
    assert (after.running, after.queued) == (2, 1)


def test_hostile_text_is_left_out() -> None:
    text = "\n".join(
        [
            "sglang:num_running_reqs NaN",
            "sglang:num_running_reqs +Inf",
            "sglang:num_running_reqs",
            "sglang:num_running_reqs{ 5",
            'sglang:num_running_reqs{a="' + "\\" * 100_000,
            "sglang:num_queue_reqs{" + 'a="b",' * 20_000,
            'sglang:num_running_reqs{name="a } \\" # 9",other="x"} 4 1700000000 # {trace="1"} 2',
            "\x00\udcff",
            "evil:num_running_reqs 9",
            "sglang:num_running_reqs_offline_batch 9",
            "sglang:spec_num_draft_tokens 3",
        ]
    )
    metrics = parse_metrics(text)
    assert (metrics.running, metrics.queued, metrics.draft_tokens) == (4, None, 3)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "5e-324", "9" * 400])
def test_values_that_sums_and_quotients_would_overflow_with_are_left_out(value: str) -> None:
    page = f'sglang:num_running_reqs{{dp_rank="0"}} {value}\nsglang:num_running_reqs{{dp_rank="1"}} {value}\n'
    page += f"sglang:generation_tokens_total 9\nsglang:spec_verify_calls_total {value}\n"
    metrics = parse_metrics(page)
    assert metrics.running is None
    gained = window(parse_metrics(""), metrics)
    assert (gained.generation_tokens, gained.accept_length) == (9, None)


def test_a_flood_of_series_is_refused() -> None:
    text = "".join(f'sglang:num_running_reqs{{dp_rank="{rank}"}} 1\n' for rank in range(10_001))
    with pytest.raises(LanewiseError, match="10,000 series"):
        parse_metrics(text)


@pytest.mark.parametrize(
    ("release", "source"),
    [
        ("0.5.13", "counters"), ("0.5.23", "counters"), ("0.6.0rc1", "counters"), ("v1.0.0", "counters"),
        ("0.5.12.post1", "requests"), ("0.5.9", "requests"), ("0.5.8", "log"), ("0.4.6", "log"),
        ("", "requests"), ("main", "requests"), ("9" * 99, "requests"),
    ],
)  # fmt: skip
def test_the_best_source_follows_the_release(release: str, source: str) -> None:
    assert best_source(release) == source
