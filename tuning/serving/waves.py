"""From the requests of a wave to step time and accept length, in the time in which all of them decode together.

A wave is as many requests as the concurrency, sent at once. Its window begins some steps after the last of them has its
first token, and ends when the first of them ends: before it prefills, and after it a smaller batch, run in between.

Time is always the client's: that between chunks of a request within the window. Chunks are not steps: a busy server
puts several steps into one. All steps of the requests are known from elsewhere, and say how many a chunk holds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuning.serving.log import DecodeLine, Steps, steps
from tuning.serving.records import Pass, Request
from tuning.serving.served import Answer

SETTLE_CHUNKS = 3
"""Chunks of each request after the last first token that are left out: steps that a prefill may have delayed."""
_LEAST_LINES = 4
"""Of the log, steady ones, below which what it prints is too coarse: an accept length of two decimals a line."""
LEAST_CHUNKS = 8
"""Chunks of a request in a window below which nothing is concluded from it."""


class NoWindowError(Exception):
    """Requests never decoded together for long enough; the message says why, in words."""


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Requests that were sent at once, and what the server counted meanwhile.

    Attributes:
        answers: to all of them, with the times of their chunks.
        tokens: that the server's counters gained; None where there are none.
        passes: verify passes that they gained, each request's by itself; None where there are none.
        graph_share: share of decode steps that replayed a CUDA graph by the counters; None where there are none.
        lines: decode lines that the server logged meanwhile.
    """

    answers: tuple[Answer, ...]
    tokens: float | None = None
    passes: float | None = None
    graph_share: float | None = None
    lines: tuple[DecodeLine, ...] = ()

    @property
    def requests(self) -> tuple[Request, ...]:
        """The answers as records."""
        return tuple(answer.request for answer in self.answers)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What the client saw of one wave's window: seconds and chunks of all requests, and the window's length, s."""

    seconds: float
    chunks: int
    length: float


def measured_pass(waves: Sequence[Wave], *, speculative: bool, counters: bool, keep_gaps: bool) -> Pass:
    """One pass's numbers.

    Args:
        waves: all of the same number of requests.
        speculative: whether a step may emit several tokens.
        counters: whether the release's counters tell of verify passes.
        keep_gaps: whether the requests keep the times between their chunks.

    Raises:
        NoWindowError: the requests of a wave never decoded together, or too shortly.
    """
    running = len(waves[0].answers)
    requests = tuple(request for wave in waves for request in wave.requests)
    seen, logged = [_seen(wave) for wave in waves], steps(_together(waves))
    source = _best_source(waves, logged, speculative=speculative, counters=counters)
    if source == "log" and logged:
        step_ms, accept_length = logged.step_ms, logged.accept_length
    else:
        counted = _steps_counted(waves, source, speculative=speculative)
        within = sum(wave.chunks for wave in seen) * counted / _chunks(requests)
        step_ms = 1_000 * math.fsum(wave.seconds for wave in seen) / within
        accept_length = sum(request.completion_tokens - 1 for request in requests) / counted if speculative else 1.0
    between = statistics.quantiles([gap for request in requests for gap in request.gaps_ms], n=100, method="inclusive")
    return Pass(
        step_ms=step_ms,
        accept_length=accept_length,
        tokens_per_second=1_000 * running * accept_length / step_ms,
        source=source,
        seconds=math.fsum(wave.length for wave in seen),
        running=float(running),
        server_tokens_per_second=logged.tokens_per_second if logged else None,
        graph_share=_graph_share(waves, logged),
        itl_p50_ms=round(between[49], 3),
        itl_p99_ms=round(between[98], 3),
        requests=tuple(_stored(request, keep_gaps=keep_gaps) for request in requests),
    )


def _best_source(waves: Sequence[Wave], logged: Steps | None, *, speculative: bool, counters: bool) -> str:
    """Where step counts and acceptance of these waves are read best."""
    if counters and all(wave.tokens and (wave.passes or not speculative) for wave in waves):
        return "counters"
    if not speculative or all(request.verify_passes for wave in waves for request in wave.requests):
        return "requests"
    # Chunks may each hold several steps, and nothing tells.
    return "log" if logged and logged.lines >= _LEAST_LINES else "chunks"


def _steps_counted(waves: Sequence[Wave], source: str, *, speculative: bool) -> float:
    """Decode steps of all requests, each request's counted by itself: what their chunks after the first stand for."""
    requests = [request for wave in waves for request in wave.requests]
    if source == "counters":
        if speculative:
            return math.fsum(wave.passes or 0 for wave in waves)
        # First tokens come from prefill.
        return math.fsum((wave.tokens or 0) - len(wave.requests) for wave in waves)
    if source == "requests":
        return math.fsum(
            (request.verify_passes or 0) if speculative else request.completion_tokens - 1 for request in requests
        )
    return _chunks(requests)


def _chunks(requests: Sequence[Request]) -> int:
    """Chunks after the first of each request."""
    return sum(len(request.gaps_ms) for request in requests)


def _seen(wave: Wave) -> _Seen:
    """The window of one wave."""
    arrivals = [
        [*itertools.accumulate((gap / 1_000 for gap in answer.request.gaps_ms), initial=answer.first)]
        for answer in wave.answers
    ]
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    windows = [[time for time in times if begin <= time <= end][SETTLE_CHUNKS:] for times in arrivals]
    if min(map(len, windows)) <= LEAST_CHUNKS:
        most, sent = _most_together(arrivals), len(arrivals)
        raise NoWindowError(
            f"of {sent} requests sent at once at most {most} decoded together"
            if most < sent
            else f"{sent} at once decoded for {max(0, end - begin):.2f} s, or in too few chunks: too short to measure"
        )
    return _Seen(
        seconds=math.fsum(times[-1] - times[0] for times in windows),
        chunks=sum(len(times) - 1 for times in windows),
        length=end - begin,
    )


def _most_together(arrivals: Sequence[Sequence[float]]) -> int:
    """Most requests between their first and last chunk at one time."""
    events = sorted([(times[0], 1) for times in arrivals] + [(times[-1], -1) for times in arrivals])
    return max(itertools.accumulate(change for _, change in events))


def _together(waves: Sequence[Wave]) -> list[DecodeLine]:
    """Decode lines of steps that all requests of a wave shared."""
    return [line for wave in waves for line in wave.lines if line.running == len(wave.requests)]


def _stored(request: Request, *, keep_gaps: bool) -> Request:
    """To a microsecond, which is finer than a socket's time stamp."""
    return replace(
        request,
        ttft_ms=None if request.ttft_ms is None else round(request.ttft_ms, 3),
        seconds=round(request.seconds, 6),
        gaps_ms=tuple(round(gap, 3) for gap in request.gaps_ms) if keep_gaps else (),
    )


def _graph_share(waves: Sequence[Wave], logged: Steps | None) -> float | None:
    shares = [wave.graph_share for wave in waves if wave.graph_share is not None]
    return statistics.fmean(shares) if shares else logged.graph_share if logged else None


def disagreement(waves: Sequence[Wave], done: Pass) -> float | None:
    """How far the step time that the server's log gives lies from the pass's, as a fraction of it; None without lines.

    Step times, since tokens a second also hold the luck of acceptance, over other steps than the client's.
    """
    logged = steps(_together(waves))
    return None if logged is None else logged.step_ms / done.step_ms - 1
