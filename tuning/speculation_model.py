"""Speculative decoding in formulas: step time, accept length, tokens per second, break-evens. Pure; times in ms or us.

Symbols, as docs/speculation-model.md has them:

    N     allreduces of one pass of the target model        a(b)  one allreduce of b bytes, us
    C(r)  everything else of a pass with r rows, ms         D     drafting k tokens, with sampling, ms
    tau   accept length: tokens emitted a step, the target's own token included

    baseline     T_b = N a(b) + C(1)                        rate = 1 / T_b
    speculation  T_s = N a((k+1) b) + C(k+1) + D            rate = tau / T_s

Leviathan et al. (arXiv:2211.17192) have verify cost one baseline step, so that the speed-up is tau / (k c + 1). Over
PCIe it does not: allreduce and MoE grow with rows, and the speed-up is tau / (T_s / T_b).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a number is known to lie in; both ends are equal where it is known."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        """The span of the number times a positive factor."""
        return Span(low=self.low * factor, high=self.high * factor)


def exactly(value: float) -> Span:
    """The span of a known number."""
    return Span(low=value, high=value)


def chain(alpha: float, k: int) -> float:
    """Accept length of k drafts in a chain, each accepted with probability alpha once all before it are.

    1 + alpha + ... + alpha^k = (1 - alpha^(k+1)) / (1 - alpha) (Leviathan et al., equation 1).
    """
    total = 0.0
    for _ in range(k + 1):
        total = 1 + alpha * total
    return total


def chain_alpha(tau: float, k: int) -> float:
    """The alpha with which `chain(alpha, k)` is tau, for 1 <= tau <= k + 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chain(middle, k) < tau else (low, middle)
    return (low + high) / 2


def accept_span(tau: float, at: int, k: int) -> Span:
    """What an accept length measured with `at` drafts says of one with k drafts.

    Assumes that a later position is never accepted more readily than an earlier one (published per-position rates of
    EAGLE-3 and MTP fall). Then the products q_i are log-concave from q_0 = 1, and a constant alpha is one extreme: it
    has the least in its first k < `at` positions, and the most beyond `at`. The other extreme accepts as much as it can
    first, and nothing after.
    """
    even = chain(chain_alpha(tau, at), k)
    if k == at:
        return exactly(tau)
    return Span(low=even, high=min(k + 1.0, tau)) if k < at else Span(low=tau, high=even)


def touched_experts(rows: int, experts: int, each: int) -> float:
    """How many times the experts of one row a pass of several rows reads: E (1 - (1 - e/E)^r) / e.

    The expected number of different experts, where each row chooses e of E by itself and evenly. Rows that choose alike
    read fewer.
    """
    missed: float = (1 - each / experts) ** rows
    return experts * (1 - missed) / each


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Allreduce latency by message size: bytes and us, sizes rising; two points at least.

    Between points a straight line; beyond the last the last line goes on, and before the first the first, but never
    falling: larger messages are not taken to be cheaper where nothing was measured.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, size: float) -> float:
        """Latency of a message of so many bytes, us."""
        sizes = [point[0] for point in self.points]
        right = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        (x1, y1), (x2, y2) = self.points[right - 1], self.points[right]
        slope = (y2 - y1) / (x2 - x1)
        if not sizes[0] <= size <= sizes[-1]:
            slope = max(slope, 0.0)
        start = (x1, y1) if size < sizes[-1] else (x2, y2)
        return max(start[1] + slope * (size - start[0]), 0.0)


Milliseconds = TypeVar("Milliseconds", float, NDArray[np.float64])
"""One time, or one for each of many possibilities."""


def rate(requests: int, tau: float, step: Milliseconds) -> Milliseconds:
    """Tokens per second of so many requests that step together."""
    return 1000 * requests * tau / step


def break_even_latency(tau: float, baseline: Milliseconds, rest: Milliseconds, calls: int) -> Milliseconds:
    """The allreduce latency of a verify pass, us, below which speculation is faster: (tau T_b - C - D) / N.

    Negative where no allreduce would be fast enough. `baseline` (T_b) and `rest` (C + D) in ms.
    """
    return 1000 * (tau * baseline - rest) / calls
