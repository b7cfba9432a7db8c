"""Reads a server's /metrics (Prometheus text) and what its counters gained in a window: SGLang from 0.5.9, and vLLM.

Counters differ in when they count, as read in the wheels of SGLang 0.5.9, 0.5.12, 0.5.13 and 0.5.23:

- Once a request has finished: generation_tokens_total, spec_verify_calls_total (from 0.5.13), num_requests_total. What
  they gain is exact for requests that began and finished within the window, and nothing else should run in it.
- At each decode step (from 0.5.9): realtime_tokens_total{mode="decode"}, cuda_graph_passes_total{mode="decode_..."}.
  They count a window exactly, whatever is still running in it.

vLLM counts at each step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lanewise.errors import LanewiseError

Labels = tuple[tuple[str, str], ...]
"""Label names and values, sorted."""

_TOKENS = ("sglang:generation_tokens_total", "vllm:generation_tokens_total")
_FINISHED = ("sglang:num_requests_total", "vllm:request_success_total")
_VERIFIED = ("sglang:spec_verify_calls_total", "vllm:spec_decode_num_drafts_total")
_ACCEPTED = ("vllm:spec_decode_num_accepted_tokens_total",)
_POSITIONS = ("vllm:spec_decode_num_accepted_tokens_per_pos_total",)
_REALTIME = ("sglang:realtime_tokens_total",)
_PASSES = ("sglang:cuda_graph_passes_total",)
_COUNTERS = frozenset(_TOKENS + _FINISHED + _VERIFIED + _ACCEPTED + _POSITIONS + _REALTIME + _PASSES)
_RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
_QUEUED = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")
_DRAFT_TOKENS = ("sglang:spec_num_draft_tokens",)
_KEPT = _COUNTERS.union(_RUNNING, _QUEUED, _DRAFT_TOKENS)
_IN_GRAPH, _EAGER, _DECODE = ("mode", "decode_cuda_graph"), ("mode", "decode_none"), ("mode", "decode")
_MOST_SERIES = 10_000
_LEAST_VALUE, _MOST_VALUE = 1e-6, 2.0**53
_MOST_POSITIONS = 64
_LINE = re.compile(
    r'[ \t]*((?:sglang|vllm):[a-zA-Z0-9_:]+)[ \t]*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]*([^ \t#]+)', re.ASCII
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"', re.ASCII)

SOURCES: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((0, 5, 13), "counters"),
    ((0, 5, 9), "requests"),
    ((0, 0, 0), "log"),
)
"""From which release on which source tells the accept length best: counters (spec_verify_calls_total), each request's
spec_verify_ct, or the log's decode lines. Read in SGLang's wheels 0.5.3, 0.5.9, 0.5.12 and 0.5.13."""


def best_source(release: str) -> str:
    """Where the accept length of an SGLang release is read best.

    Args:
        release: the version that /server_info gives, e.g. "0.5.12.post1". Of one that is no version the requests are
            asked, since each says by itself whether it knows.
    """
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if not found:
        return "requests"
    version = (int(found[1]), int(found[2]), int(found[3]))
    return next(source for since, source in SOURCES if version >= since)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What one scrape said, as far as this module reads it.

    Attributes:
        series: values by metric name and labels. Of several tensor-parallel ranks that count the same (SGLang's
            --enable-metrics-for-all-schedulers) only the first is here.
    """

    series: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @property
    def running(self) -> float | None:
        """Requests that decode now, over all data-parallel ranks; None where the server does not say."""
        return self._total(_RUNNING)

    @property
    def queued(self) -> float | None:
        """Requests that wait; None where the server does not say."""
        return self._total(_QUEUED)

    @property
    def draft_tokens(self) -> float | None:
        """Rows of a verify pass now (SGLang from 0.5.13); 0 without speculation, None where the server does not say."""
        return max((value for name in _DRAFT_TOKENS for value in self.series.get(name, {}).values()), default=None)

    def _total(self, names: tuple[str, ...]) -> float | None:
        values = [value for name in names for value in self.series.get(name, {}).values()]
        return math.fsum(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Window:
    """What counters gained between two scrapes. None: the server has no such counter.

    Attributes:
        generation_tokens: tokens of requests that finished in it, first tokens included (vLLM: generated in it).
        finished: requests that finished in it.
        verify_calls: verify passes, each request's counted by itself (SGLang: of requests that finished in it).
        accept_length: tokens a request got from a verify pass, bonus token included; None without speculation. First
            tokens come from prefill and are not among them.
        decode_tokens: tokens that decode steps emitted in it (SGLang).
        decode_passes: decode steps in it; of several data-parallel ranks, the busiest one's (SGLang).
        graph_share: share of decode steps that replayed a CUDA graph, over all ranks (SGLang).
        positions: share of verify passes in which draft 1, 2, ... was accepted (vLLM); () where unknown.
        restarted: a counter fell or vanished: the server was started anew, and the window says nothing about speed.
    """

    generation_tokens: float | None
    finished: float | None
    verify_calls: float | None
    accept_length: float | None
    decode_tokens: float | None
    decode_passes: float | None
    graph_share: float | None
    positions: tuple[float, ...]
    restarted: bool

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that a decode step emitted for all requests together: requests times accept length."""
        if self.decode_tokens is None or not self.decode_passes:
            return None
        return self.decode_tokens / self.decode_passes

    def step_ms(self, seconds: float) -> float | None:
        """Mean time of a decode step, where requests decoded without a pause in all `seconds` of the window."""
        return 1_000 * seconds / self.decode_passes if self.decode_passes else None


def parse_metrics(text: str) -> Metrics:
    """Reads one scrape; lines that are none, and values that no counter has, are left out.

    Raises:
        LanewiseError: more series than a server can have.
    """
    series: dict[str, dict[Labels, float]] = {}
    count = 0
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found or found[1] not in _KEPT or (value := _counted(found[3])) is None:
            continue
        series.setdefault(found[1], {})[tuple(sorted(_LABEL.findall(found[2] or "")))] = value
        if (count := count + 1) > _MOST_SERIES:
            raise LanewiseError(
                f"/metrics holds more than {_MOST_SERIES:,} series of the counters that are read",
                expected="some series for each rank of one server",
                todo="check that the address is a server's own, not a collector's",
            )
    return Metrics(series={name: _of_leaders(values) for name, values in series.items()})


def _counted(text: str) -> float | None:
    """A number that sums and quotients of its kind stay finite with; None of others."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == 0 or _LEAST_VALUE <= abs(value) <= _MOST_VALUE else None


def _of_leaders(values: Mapping[Labels, float]) -> dict[Labels, float]:
    """Without the ranks that repeat what the first of their tensor-parallel group counts."""
    ranked = {labels: _rank(labels) for labels in values}
    first: dict[str, tuple[int, int]] = {}
    for group, rank in ranked.values():
        first[group] = min(rank, first.get(group, rank))
    return {labels: value for labels, value in values.items() if ranked[labels][1] == first[ranked[labels][0]]}


def _rank(labels: Labels) -> tuple[str, tuple[int, int]]:
    """The data-parallel group of a series, and its (pipeline, tensor) rank there; (0, 0) where it has none."""
    named = dict(labels)
    numbers = (named.get(name, "") for name in ("pp_rank", "tp_rank"))
    pipeline, tensor = (int(number) if re.fullmatch("[0-9]{1,6}", number) else 0 for number in numbers)
    return named.get("dp_rank", ""), (pipeline, tensor)


def window(before: Metrics, after: Metrics) -> Window:
    """What a server's counters gained between two scrapes; a counter that fell began anew at 0."""
    gains = _Gains(before, after)
    tokens, finished, verified = (gains.total(names) for names in (_TOKENS, _FINISHED, _VERIFIED))
    passes, graph = gains.by_rank(_PASSES, _IN_GRAPH, _EAGER), gains.by_rank(_PASSES, _IN_GRAPH)
    all_passes = math.fsum(passes.values())
    decoded = gains.by_rank(_REALTIME, _DECODE)
    return Window(
        generation_tokens=tokens,
        finished=finished,
        verify_calls=verified,
        accept_length=_accept_length(tokens, finished, verified, accepted=gains.total(_ACCEPTED)),
        decode_tokens=math.fsum(decoded.values()) if decoded else None,
        decode_passes=max(passes.values()) if passes else None,
        graph_share=math.fsum(graph.values()) / all_passes if all_passes else None,
        positions=_positions(gains, verified),
        restarted=gains.restarted,
    )


def _accept_length(
    tokens: float | None, finished: float | None, verified: float | None, *, accepted: float | None
) -> float | None:
    if not verified:
        return None
    if accepted is not None:
        return 1 + accepted / verified
    return (tokens - (finished or 0)) / verified if tokens else None


def _positions(gains: _Gains, verified: float | None) -> tuple[float, ...]:
    """vLLM counts positions from 0."""
    counts = [gains.by_rank(_POSITIONS, ("position", str(position))) for position in range(_MOST_POSITIONS)]
    return tuple(math.fsum(count.values()) / verified for count in counts if count) if verified else ()


class _Gains:
    """What each series gained."""

    def __init__(self, before: Metrics, after: Metrics) -> None:
        self.restarted = False
        self._gains: dict[str, dict[Labels, float]] = {}
        for name in _COUNTERS:
            old, new = before.series.get(name, {}), after.series.get(name, {})
            self.restarted |= any(value > new.get(labels, 0) for labels, value in old.items())
            self._gains[name] = {labels: _gain(old.get(labels, 0), value) for labels, value in new.items()}

    def total(self, names: tuple[str, ...]) -> float | None:
        values = [value for name in names for value in self._gains[name].values()]
        return math.fsum(values) if values else None

    def by_rank(self, names: tuple[str, ...], *any_of: tuple[str, str]) -> dict[str, float]:
        """The gain of each data-parallel rank, over the series that have one of the labels."""
        ranks: dict[str, float] = {}
        for name in names:
            for labels, value in self._gains[name].items():
                if set(any_of) & set(labels):
                    rank = dict(labels).get("dp_rank", "")
                    ranks[rank] = ranks.get(rank, 0) + value
        return ranks


def _gain(old: float, new: float) -> float:
    return new - old if new >= old else new
