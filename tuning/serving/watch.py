"""What a running server does, from two readings of its counters: step time, acceptance, break-even, one advice. Pure.

SGLang from 0.5.9 counts decode steps and their tokens as they happen (`counters`), so a window is exact whatever still
runs in it. Accept length is read from counters of verify passes where enough requests finished; else it is tokens a
step over requests that ran, which are known at both ends of the window only: where their number changed, or more than a
few finished, it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from tuning.serving.counters import Metrics, Window, window
from tuning.serving.spec import ServerSpec
from tuning.workload import short

EAGER = 0.99
"""Share of decode steps in a CUDA graph below which their absence costs."""
ABOUT_EVEN = 0.02
"""Between accept length and break-even, as a fraction of it: windows of seconds tell no less."""
_ENOUGH = 0.5
"""Verify passes of requests that finished, as a share of those of the window, from which on they stand for it."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Step time without speculation.

    Attributes:
        source: where it is from, for people.
        by_concurrency: ms by number of requests.
        any_concurrency: ms, given by the user for whatever number of requests runs; None where the other counts.
        doubt: why it may be none for the server that is watched, in words; "" where nothing speaks against it.
    """

    source: str
    by_concurrency: Mapping[int, float] = field(default_factory=dict)
    any_concurrency: float | None = None
    doubt: str = ""

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
        accept_length: tokens a step and request; None also where what was read cannot be.
        graph_share: share of decode steps in a CUDA graph.
        break_even: accept length that pays; where the baseline is known, and as many requests ran at both ends.
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
    steady = before.running == after.running
    base = baseline.step_ms(running) if baseline and running and step_ms and steady else None
    seen = Glance(
        seconds=seconds,
        running=running,
        queued=after.queued,
        tokens_per_second=_speed(gained, seconds),
        step_ms=step_ms,
        accept_length=_accept_length(before, after, gained, running),
        graph_share=gained.graph_share,
        break_even=step_ms / base if step_ms and base else None,
        restarted=gained.restarted,
        unknown=tuple(_unknown(after, gained)),
        advice="",
    )
    return replace(seen, advice=_advice(seen, gained, after, baseline, steady=steady))


def doubt(baseline: ServerSpec, info: Mapping[str, Any]) -> str:
    """What speaks against a server's steps being held against those of a baseline, in words; "" where nothing does.

    Args:
        baseline: what the baseline's servers were asked to be.
        info: what the watched server says of itself (/server_info). What it does not say is not compared.
    """
    found = []
    models = [told for name in ("model_path", "served_model_name") if isinstance(told := info.get(name), str)]
    if models and _last(baseline.model) not in map(_last, models):
        found.append(f"the baseline is of model {short(baseline.model)}, the server has {short(models[0])}")
    size = info.get("tp_size")
    if isinstance(size, int) and size != baseline.tensor_parallel:
        found.append(f"the baseline is of tensor parallel size {baseline.tensor_parallel}, the server has {size}")
    return "; ".join(found)


def _last(model: str) -> str:
    """A model's own name: folders differ from machine to machine.

    In Hugging Face's cache it is part of a folder's name: models--ORG--NAME/snapshots/HASH.
    """
    path = PurePosixPath(model)
    cached = path.parent.parent.name
    if path.parent.name == "snapshots" and cached.startswith("models--"):
        return cached.rpartition("--")[2]
    return path.name


def _accept_length(before: Metrics, after: Metrics, gained: Window, running: float | None) -> float | None:
    """By counters of verify passes, else by steps over requests, where their number hardly changed.

    None where neither tells: SGLang counts verify passes once a request has finished, and those of a few among many do
    not stand for the window.
    """
    if gained.restarted:
        return None
    most = _most_accepted(before, after)
    if gained.accept_length is not None and _counters_suffice(gained, running):
        return _possible(gained.accept_length, most)
    if not running or before.running != after.running or not _few_finished(gained, running):
        return None
    if gained.tokens_per_pass is None:
        return None
    return _possible(gained.tokens_per_pass / running, most)


def _counters_suffice(gained: Window, running: float | None) -> bool:
    """Whether verify passes of requests that finished stand for all requests that ran; vLLM counts those of all."""
    if gained.decode_passes is None:
        return True
    if running is None:
        return False
    # A request also counts its passes before the window: of those in it there are no more than steps.
    within = min(gained.verify_calls or 0, (gained.finished or 0) * gained.decode_passes)
    return within >= _ENOUGH * gained.decode_passes * running


def _few_finished(gained: Window, running: float) -> bool:
    """Whether the number of requests, the same at both ends, can have been another by ABOUT_EVEN at most in between."""
    return (gained.finished or 0) <= ABOUT_EVEN * running


def _most_accepted(before: Metrics, after: Metrics) -> float:
    """Tokens that a step can give a request: the rows of a verify pass; 1 without speculation."""
    rows = [metrics.draft_tokens for metrics in (before, after) if metrics.draft_tokens is not None]
    return max(1.0, *rows) if rows else math.inf


def _possible(value: float, most: float) -> float | None:
    """An accept length, from 1 (the target's own token) to `most`; readings in mid-step may lie a little outside."""
    if not 1 - ABOUT_EVEN <= value <= most * (1 + ABOUT_EVEN):
        return None
    return min(max(1.0, value), most)


def _speed(gained: Window, seconds: float) -> float | None:
    """By decode steps, else by the requests that finished."""
    tokens = gained.decode_tokens if gained.decode_tokens is not None else gained.generation_tokens
    return None if tokens is None or gained.restarted else tokens / seconds


def _unknown(after: Metrics, gained: Window) -> list[str]:
    found = []
    if gained.decode_passes is None:
        found.append("step time: the server does not count decode steps (SGLang does from 0.5.9)")
    if gained.graph_share is None and after.running and gained.decode_passes is None:
        found.append("whether steps run in CUDA graphs")
    if gained.decode_tokens is None:
        found.append("tokens of requests that still run: only finished ones count")
    return found


def _advice(seen: Glance, gained: Window, after: Metrics, baseline: Baseline | None, *, steady: bool) -> str:
    """The one thing to know now."""
    if seen.restarted:
        return "the server was started anew: its counters begin at 0"
    if not seen.running:
        return "nothing running"
    drafting = _drafting(seen, gained, after)
    if seen.graph_share is not None and seen.graph_share < EAGER:
        steps = "verify passes" if drafting else "decode steps"
        return (
            f"{1 - seen.graph_share:.0%} of {steps} run eagerly: capture CUDA graphs for {seen.running:.0f} requests "
            "(--cuda-graph-max-bs-decode, up to 0.5.19 --cuda-graph-max-bs)"
        )
    if after.draft_tokens == 0:
        return "no speculation: this is a baseline's step time"
    if not drafting:
        return (
            "no speculation seen: steps gave each request one token. This is a baseline's step time, "
            "or that of speculation whose drafts are not accepted"
        )
    if seen.accept_length is None:
        return _no_accept_length(gained, seen.running, steady=steady)
    if seen.break_even is None:
        return _no_break_even(baseline, seen.running, steady=steady)
    held = _held_against(seen.accept_length, seen.break_even, seen.running)
    return f"{held}; in doubt: {baseline.doubt}" if baseline and baseline.doubt else held


def _drafting(seen: Glance, gained: Window, after: Metrics) -> bool:
    """Whether the server speculates, or may: SGLang does not say so itself before 0.5.13."""
    if after.draft_tokens is not None:
        return after.draft_tokens > 0
    return bool(gained.verify_calls) or seen.accept_length is None or seen.accept_length > 1 + ABOUT_EVEN


def _no_accept_length(gained: Window, running: float, *, steady: bool) -> str:
    if not steady or not _few_finished(gained, running):
        return "accept length not known: requests came or went in this window"
    if gained.tokens_per_pass is None:
        return "accept length not known"
    return "accept length not known: the tokens of this window do not fit the requests that the server says it ran"


def _no_break_even(baseline: Baseline | None, running: float, *, steady: bool) -> str:
    if baseline is None:
        return "break-even not known: give a step without speculation, with --baseline-ms or --baseline-run"
    if not steady:
        return "break-even not known: the number of requests changed in this window"
    return f"break-even not known: {baseline.source} has no baseline at {running:g} requests"


def _held_against(accept: float, break_even: float, running: float) -> str:
    at = f"at {running:g} requests" if running != 1 else "at 1 request"
    if break_even < 1 - ABOUT_EVEN:
        return (
            f"not judged {at}: break-even {break_even:.2f} is below 1, but speculation makes no step shorter: "
            "is the baseline of this model, machine and load?"
        )
    if accept < break_even * (1 - ABOUT_EVEN):
        return f"speculation loses {at}: acceptance {accept:.2f} is below the break-even {break_even:.2f}"
    if accept > break_even * (1 + ABOUT_EVEN):
        gain = accept / break_even - 1
        return f"speculation pays {at}: acceptance {accept:.2f}, break-even {break_even:.2f}, {gain:.0%} faster"
    return f"speculation makes no difference {at}: acceptance {accept:.2f}, break-even {break_even:.2f}"
