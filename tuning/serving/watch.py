"""What a running server does, from two readings of its counters: step time, acceptance, break-even, one advice. Pure.

SGLang from 0.5.9 counts decode steps and their tokens as they happen (`counters`), so a window is exact whatever still
runs in it. Accept length is tokens a step over requests that ran, which are known at both ends of the window only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tuning.serving.counters import Metrics, Window, window

EAGER = 0.99
"""Share of decode steps in a CUDA graph below which their absence costs."""
ABOUT_EVEN = 0.02
"""Between accept length and break-even, as a fraction of it: windows of seconds tell no less."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Step time without speculation.

    Attributes:
        source: where it is from, for people.
        by_concurrency: ms by number of requests.
        any_concurrency: ms, given by the user for whatever number of requests runs; None where the other counts.
    """

    source: str
    by_concurrency: Mapping[int, float] = field(default_factory=dict)
    any_concurrency: float | None = None

    def step_ms(self, running: float) -> float | None:
        """Of so many requests, by a straight line between those measured; None beyond them."""
        if self.any_concurrency is not None:
            return self.any_concurrency
        known = sorted(self.by_concurrency.items())
        if running in self.by_concurrency:
            return self.by_concurrency[int(running)]
        for (low, below), (high, above) in pairwise(known):
            if low <= running <= high:
                return below + (above - below) * (running - low) / (high - low)
        return None


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A window of a running server. None: not known, and `unknown` says why.

    Attributes:
        seconds: its length.
        running: requests that decoded, the mean of both ends.
        queued: requests that wait at its end.
        tokens_per_second: that decode steps gave.
        step_ms: mean time of a decode step; only where requests ran at both ends.
        accept_length: tokens a step and request.
        graph_share: share of decode steps in a CUDA graph.
        break_even: accept length that pays; where the baseline is known.
        restarted: the server was started anew in it.
        unknown: what cannot be known of this server, in words.
        advice: one line.
    """

    seconds: float
    running: float | None
    queued: float | None
    tokens_per_second: float | None
    step_ms: float | None
    accept_length: float | None
    graph_share: float | None
    break_even: float | None
    restarted: bool
    unknown: tuple[str, ...]
    advice: str


def glance(before: Metrics, after: Metrics, seconds: float, baseline: Baseline | None) -> Glance:
    """What a server did between two readings of its counters, so many seconds apart."""
    gained = window(before, after)
    idle = not before.running or not after.running
    running = None if before.running is None or after.running is None else (before.running + after.running) / 2
    step_ms = None if idle or gained.restarted else gained.step_ms(seconds)
    accept = _accept_length(gained, running, idle=idle)
    base = baseline.step_ms(running) if baseline and running and step_ms else None
    break_even = step_ms / base if step_ms and base else None
    return Glance(
        seconds=seconds,
        running=running,
        queued=after.queued,
        tokens_per_second=_speed(gained, seconds),
        step_ms=step_ms,
        accept_length=accept,
        graph_share=gained.graph_share,
        break_even=break_even,
        restarted=gained.restarted,
        unknown=tuple(_unknown(after, gained)),
        advice=_advice(after, gained, running, accept, break_even, baseline),
    )


def _accept_length(gained: Window, running: float | None, *, idle: bool) -> float | None:
    """By steps where requests ran all the while, else by those that finished; at least the target's own token."""
    if gained.restarted:
        return None
    if gained.tokens_per_pass is not None and running and not idle:
        return max(1.0, gained.tokens_per_pass / running)
    return gained.accept_length


def _speed(gained: Window, seconds: float) -> float | None:
    """By decode steps, else by the requests that finished."""
    tokens = gained.decode_tokens if gained.decode_tokens is not None else gained.generation_tokens
    return None if tokens is None or gained.restarted else tokens / seconds


def _unknown(after: Metrics, gained: Window) -> list[str]:
    found = []
    if after.series and gained.decode_passes is None:
        found.append("step time: the server does not count decode steps (SGLang does from 0.5.9)")
    if gained.graph_share is None and after.running and gained.decode_passes is None:
        found.append("whether steps run in CUDA graphs")
    if after.series and gained.decode_tokens is None:
        found.append("tokens of requests that still run: only finished ones count")
    return found


def _advice(
    after: Metrics,
    gained: Window,
    running: float | None,
    accept: float | None,
    break_even: float | None,
    baseline: Baseline | None,
) -> str:
    """The one thing to know now."""
    if not after.series:
        return "its /metrics has no counters of SGLang's or vLLM's: start SGLang with --enable-metrics"
    if gained.restarted:
        return "the server was started anew: its counters begin at 0"
    if not running:
        return "nothing running"
    if gained.graph_share is not None and gained.graph_share < EAGER:
        steps = "decode steps" if after.draft_tokens == 0 else "verify passes"
        return (
            f"{1 - gained.graph_share:.0%} of {steps} run eagerly: capture CUDA graphs for {running:.0f} requests "
            "(--cuda-graph-max-bs-decode, up to 0.5.19 --cuda-graph-max-bs)"
        )
    if after.draft_tokens == 0:
        return "no speculation: this is a baseline's step time"
    if accept is None:
        return "accept length not known"
    if break_even is None:
        return _no_break_even(baseline, running)
    return _held_against(accept, break_even, running)


def _no_break_even(baseline: Baseline | None, running: float) -> str:
    if baseline is None:
        return "break-even not known: give a step without speculation, with --baseline-ms or --baseline-run"
    return f"break-even not known: {baseline.source} has no baseline at {running:g} requests"


def _held_against(accept: float, break_even: float, running: float) -> str:
    at = f"at {running:g} requests" if running != 1 else "at 1 request"
    if accept < break_even * (1 - ABOUT_EVEN):
        return f"speculation loses {at}: acceptance {accept:.2f} is below the break-even {break_even:.2f}"
    if accept > break_even * (1 + ABOUT_EVEN):
        gain = accept / break_even - 1
        return f"speculation pays {at}: acceptance {accept:.2f}, break-even {break_even:.2f}, {gain:.0%} faster"
    return f"speculation makes no difference {at}: acceptance {accept:.2f}, break-even {break_even:.2f}"
