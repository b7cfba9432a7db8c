"""What a repaired allreduce is worth, in milliseconds a pass and tokens per second; predicted.

As docs/speculation-model.md has it:

    T = N a + rest, rate = tau / T    N calls of a us each, rest everything else of a step, tau tokens a step

With the present rate, rest is what is left of tau / rate; without, it is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuning.speculation_model import Span, exactly, rate
from tuning.workload import Message

TAU = Span(low=2.0, high=2.43)
"""Tokens a step of 3 verified rows where no log tells: EAGLE-3's golden acceptance is 2.33 and 2.43 without and with
thinking (InferenceX, https://github.com/SemiAnalysisAI/InferenceX); 2.0 is a prompt that it suits less."""
REST_MS = Span(low=8.0, high=13.6)
"""Everything but allreduce of a verify pass with its drafts, Kimi-K2 on 8 RTX PRO 6000, where no rate tells: what 54
tokens/s leave at 2.0 to 2.25 tokens a step and 122 calls of 230 us."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What a repair would give.

    Attributes:
        size: bytes of the message.
        calls: calls of it in a pass.
        us: what a call takes now.
        saved_ms: what a pass would save.
        now: tokens per second now: the given rate, or computed from what is assumed.
        then: tokens per second after the repair; None where the numbers contradict each other.
        assumed: what the numbers rest on, in words.
    """

    size: int
    calls: int
    us: float
    saved_ms: Span
    now: Span
    then: Span | None
    assumed: str


def repair_worth(
    message: Message, us: float, repaired: tuple[float, float], *, present: float | None, accept: float | None
) -> Worth:
    """What it is worth to bring a call from `us` into the span `repaired`.

    Args:
        message: the message and its calls in a pass.
        us: a call's time now.
        repaired: best and worst time of a call of a healthy host, us.
        present: tokens per second now; None where not known.
        accept: tokens a step; None where not known.
    """
    tau = exactly(accept) if accept else TAU
    corners = [
        (tokens, rest, better)
        for tokens in (tau.low, tau.high)
        for rest in _rests(tokens, message.calls, us, present)
        for better in repaired
    ]
    rates = [rate(1, tokens, message.calls * better / 1000 + rest) for tokens, rest, better in corners]
    current = [rate(1, tokens, message.calls * us / 1000 + rest) for tokens, rest, _ in corners]
    return Worth(
        size=message.bytes,
        calls=message.calls,
        us=us,
        saved_ms=Span(low=message.calls * (us - repaired[1]) / 1000, high=message.calls * (us - repaired[0]) / 1000),
        now=exactly(present) if present else Span(low=min(current), high=max(current)),
        then=Span(low=min(rates), high=max(rates)) if rates else None,
        assumed=_assumed(accept, present),
    )


def _rests(tau: float, calls: int, us: float, present: float | None) -> list[float]:
    """What else a step takes, ms; none where the calls alone would take longer than the step does."""
    if present is None:
        return [REST_MS.low, REST_MS.high]
    rest = 1000 * tau / present - calls * us / 1000
    return [rest] if rest > 0 else []


def _assumed(accept: float | None, present: float | None) -> str:
    tokens = f"{accept:.2f} tokens a step" if accept else f"{TAU.low:g} to {TAU.high:g} tokens a step (assumed)"
    if present:
        return f"{tokens}, {present:g} tokens/s now"
    return f"{tokens}, {REST_MS.low:g} to {REST_MS.high:g} ms a step beside allreduce (assumed)"
