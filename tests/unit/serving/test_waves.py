"""Step time and acceptance of waves whose truth is written down: windows, chunks that hold several steps, sources."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tuning.serving.log import DecodeLine
from tuning.serving.records import Request
from tuning.serving.served import Answer
from tuning.serving.waves import NoWindowError, Wave, disagreement, measured_pass

STEP = 0.010


def answer(times: list[float], *, tokens: int, passes: int | None) -> Answer:
    """A request with chunks at these times, seconds."""
    request = Request(
        prompt="p", category="c", prompt_tokens=5, completion_tokens=tokens, verify_passes=passes,
        ttft_ms=1e3 * times[0], seconds=times[-1], chunks=len(times),
        gaps_ms=tuple(1e3 * (b - a) for a, b in pairwise(times)),
    )  # fmt: skip
    return Answer(request=request, sent=0.0, first=times[0], last=times[-1])


def steady(steps: int, *, begin: float = 0.0, step: float = STEP, tokens_a_step: int = 2, told: bool = True) -> Answer:
    """A request whose every step is a chunk."""
    times = [begin + step * number for number in range(steps + 1)]
    return answer(times, tokens=1 + steps * tokens_a_step, passes=steps if told else None)


def line(*, running: int = 1, step: float = STEP, accept: float = 2.0) -> DecodeLine:
    return DecodeLine(
        time="", rank="", running=running, tokens=None, accept_len=accept, graph=True,
        tokens_per_second=running * accept / step, queue=0, steady=True, engine="sglang",
    )  # fmt: skip


def test_step_time_and_acceptance_of_one_request() -> None:
    done = measured_pass([Wave(answers=(steady(50),))], speculative=True, counters=False, keep_gaps=False)
    assert done.step_ms == pytest.approx(10)
    assert done.accept_length == 2
    assert done.tokens_per_second == pytest.approx(200)
    assert (done.source, done.running) == ("requests", 1)


def test_inter_token_latency_is_of_all_chunks_of_all_requests() -> None:
    slow = [STEP * number + (0.09 if number > 40 else 0.0) for number in range(51)]
    waves = [Wave(answers=(steady(50),)), Wave(answers=(answer(slow, tokens=101, passes=50),))]
    done = measured_pass(waves, speculative=True, counters=False, keep_gaps=False)
    assert done.itl_p50_ms == pytest.approx(10)
    assert done.itl_p99_ms == pytest.approx(10 + 0.01 * 90, abs=0.02), "one of a hundred gaps is of 100 ms"


def test_chunks_that_hold_two_steps_are_counted_as_two() -> None:
    times = [STEP * number for number in range(101)]
    merged = [time for number, time in enumerate(times) if number % 4 != 1 or number == 1]
    done = measured_pass(
        [Wave(answers=(answer(merged, tokens=201, passes=100),))], speculative=True, counters=False, keep_gaps=False
    )
    assert done.step_ms == pytest.approx(10, rel=0.01)
    assert done.accept_length == 2


def test_only_the_time_in_which_all_decode_counts() -> None:
    """Before the second has its first token and after the first ends, steps are three times as fast."""
    fast, both = STEP / 3, 60
    begin = 30 * fast
    slow = [begin + STEP * number for number in range(both + 1)]
    first = [fast * number for number in range(30)] + slow
    second = slow + [slow[-1] + fast * number for number in range(1, 31)]
    answers = tuple(answer(times, tokens=2 * len(times) - 1, passes=len(times) - 1) for times in (first, second))
    done = measured_pass([Wave(answers=answers)], speculative=True, counters=False, keep_gaps=False)
    assert done.step_ms == pytest.approx(10)
    assert done.seconds == pytest.approx(both * STEP)
    assert done.running == 2


def test_requests_that_do_not_overlap_or_are_too_short_have_no_window() -> None:
    apart = Wave(answers=(steady(50), steady(50, begin=1.0)))
    with pytest.raises(NoWindowError, match="of 2 requests sent at once at most 1 decoded together"):
        measured_pass([apart], speculative=True, counters=False, keep_gaps=False)
    with pytest.raises(NoWindowError, match="too short"):
        measured_pass([Wave(answers=(steady(8),))], speculative=True, counters=False, keep_gaps=False)
    whole = Wave(answers=(answer([0.5], tokens=100, passes=50),))
    with pytest.raises(NoWindowError):
        measured_pass([whole], speculative=True, counters=False, keep_gaps=False)


@pytest.mark.parametrize(
    ("wave", "speculative", "counters", "source", "accept_length"),
    [
        (Wave(answers=(steady(50),), tokens=101, passes=40), True, True, "counters", 2.5),
        (Wave(answers=(steady(50),), tokens=101, passes=40), True, False, "requests", 2.0),
        (Wave(answers=(steady(50),)), True, True, "requests", 2.0),
        (Wave(answers=(steady(50, told=False),), lines=(line(accept=1.9),) * 4), True, True, "log", 1.9),
        (Wave(answers=(steady(50, told=False),), lines=(line(accept=1.9),) * 3), True, True, "chunks", 2.0),
        (Wave(answers=(steady(50, tokens_a_step=1, told=False),)), False, True, "requests", 1.0),
        (Wave(answers=(steady(50, tokens_a_step=1, told=False),), tokens=51), False, True, "counters", 1.0),
    ],
)
def test_the_best_source_that_there_is_counts(
    wave: Wave, speculative: bool, counters: bool, source: str, accept_length: float
) -> None:
    done = measured_pass([wave], speculative=speculative, counters=counters, keep_gaps=False)
    assert (done.source, done.accept_length) == (source, pytest.approx(accept_length))


def test_lines_of_a_smaller_batch_do_not_count() -> None:
    answers = (steady(50, told=False), steady(50, told=False))
    lines = (*(line(running=2),) * 4, *(line(running=1, step=0.001),) * 4)
    done = measured_pass([Wave(answers=answers, lines=lines)], speculative=True, counters=False, keep_gaps=False)
    assert (done.source, done.step_ms) == ("log", pytest.approx(10))


def test_the_logs_step_time_is_held_against_the_clients() -> None:
    wave = Wave(answers=(steady(50),), lines=(line(step=1.05 * STEP, accept=2.4),) * 4)
    done = measured_pass([wave], speculative=True, counters=False, keep_gaps=False)
    assert disagreement([wave], done) == pytest.approx(0.05), "whatever acceptance its lines had"
    assert disagreement([replace(wave, lines=())], done) is None


def test_gaps_are_kept_where_they_are_wanted() -> None:
    wave = Wave(answers=(steady(20),))
    kept = measured_pass([wave], speculative=True, counters=False, keep_gaps=True)
    assert kept.requests[0].gaps_ms == (10.0,) * 20
    assert not measured_pass([wave], speculative=True, counters=False, keep_gaps=False).requests[0].gaps_ms


def test_graph_shares_of_counters_come_before_the_logs() -> None:
    wave = Wave(answers=(steady(50),), graph_share=0.5, lines=(line(),) * 4)
    assert measured_pass([wave], speculative=True, counters=False, keep_gaps=False).graph_share == 0.5
    logged = replace(wave, graph_share=None)
    assert measured_pass([logged], speculative=True, counters=False, keep_gaps=False).graph_share == 1.0
