"""What a run of servers holds: starts, and what was measured on each; plain values as they stand in the run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning.trial import Status


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request and what came of it.

    Attributes:
        prompt: its identifier in the prompt set.
        category: the prompt's.
        prompt_tokens, completion_tokens: as the server counted them.
        verify_passes: verify passes of this request (spec_verify_ct); None where the server does not say.
        accepted: how often 0, 1, 2, ... drafts were accepted in a pass (spec_accept_histogram); () where unknown.
        ttft_ms: from sending to the first token; None where the reply was not a stream.
        seconds: from sending to the last token.
        chunks: number of chunks, and `gaps_ms` the time between them, in order.
        gaps_ms: at concurrency 1 and stream interval 1 these are step times.
        finish: why generation ended: "length", "stop", ...
        output: sha256 of its tokens or text, to find where arms diverge without storing texts.
    """

    prompt: str
    category: str
    prompt_tokens: int
    completion_tokens: int
    verify_passes: int | None = None
    accepted: tuple[int, ...] = ()
    ttft_ms: float | None = None
    seconds: float = 0.0
    chunks: int = 0
    gaps_ms: tuple[float, ...] = ()
    finish: str = ""
    output: str = ""

    @property
    def tpot_ms(self) -> float | None:
        """Time an output token after the first, (latency - TTFT) / (tokens - 1).

        None where there is no TTFT, or nothing after it. AIPerf calls it inter-token latency. It does not grow with
        chunks that hold several tokens, as gaps do.
        """
        if self.ttft_ms is None or self.completion_tokens < 2 or 1_000 * self.seconds <= self.ttft_ms:
            return None
        return (1_000 * self.seconds - self.ttft_ms) / (self.completion_tokens - 1)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over the prompt set at one concurrency, after warm-up.

    Attributes:
        step_ms: mean time of a decode step (a verify pass with its drafts, or a step without speculation).
        accept_length: tokens emitted a step and request, bonus token included; 1.0 without speculation.
        tokens_per_second: of all requests together, in the window in which they decode together.
        source: where step_ms and accept_length are from: "counters", "requests", "chunks" or "log".
        seconds: length of that window.
        running: requests that decoded together, on average.
        server_tokens_per_second: the server's own number, for the cross-check; None where there is none.
        graph_share: share of decode steps that replayed a CUDA graph; None where the server does not say.
        itl_p50_ms, itl_p99_ms: inter-token latency as who reads the stream has it: time between chunks, which may hold
            several tokens; median and 99th percentile over all requests.
        requests: each of them.
    """

    step_ms: float
    accept_length: float
    tokens_per_second: float
    source: str
    seconds: float
    running: float
    server_tokens_per_second: float | None = None
    graph_share: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerStart:
    """One server start, as its trials share it: the unit of repetition.

    Attributes:
        launch: its identifier.
        environment: the toolchain or interpreter it ran in.
        arm: the arm's name, e.g. "custom/baseline" or "nccl/2-1-3".
        repetition: which repetition of the schedule, from 0.
        plan: identity of the plan that it was part of.
        command: the argument vector.
        variables: environment variables set for it, redacted.
        started: ISO 8601 UTC.
        ready_seconds: from start to the first answer.
        seconds: duration in all.
        release: SGLang's version as the server said.
        resolved: what the server says that it resolved (/server_info), the part that may matter.
        engaged: per claim (allreduce backend, CUDA graphs, ...) what a log line proves, with that line.
        findings: what weakens its numbers, in words: "verify passes ran eagerly", ...
        gpus: per GPU clocks, temperature, power and throttle reasons before and after.
        status: OK, or how the start failed; `reason` is the cause in one line.
        reason: "" where OK.
        output: its last lines of log, where anything went wrong.
        profile: kernels of some decode steps, as `profile.Profile` has them; {} where none was taken.
    """

    launch: str
    environment: str
    arm: str
    repetition: int
    plan: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    ready_seconds: float | None = None
    seconds: float = 0.0
    release: str = ""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    engaged: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    gpus: tuple[Mapping[str, Any], ...] = ()
    status: Status = Status.OK
    reason: str = ""
    output: tuple[str, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServingTrial:
    """One arm at one concurrency on one server start.

    Attributes:
        environment, arm, repetition, launch: as in `ServerStart`; launch is "" where it was skipped.
        concurrency: requests at once.
        passes: measured passes over the prompt set; empty where the status is not ok.
        warm_up: step times of the warm-up windows, ms, until they were stable.
        status: how it ended.
        reason: why, where it is not ok.
    """

    environment: str
    arm: str
    concurrency: int
    repetition: int
    launch: str
    passes: tuple[Pass, ...] = ()
    warm_up: tuple[float, ...] = ()
    status: Status = Status.OK
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether it has numbers."""
        return self.status is Status.OK
