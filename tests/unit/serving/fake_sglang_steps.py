"""The fake SGLang server's inside: its step model, its scheduler, what it counts and the lines that it logs.

A step of all running requests takes T = N a(rows x row_bytes) + C(rows) + D, as docs/speculation-model.md has it, so a
test knows what a harness should find. Times are kept by absolute deadlines and written down as they came true.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import queue
import random
import re
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

WORDS = ("lane", "ring", "tree", "switch", "rank", "token", "draft", "verify", "kernel", "graph", "cache", "tensor")
VOCABULARY = 32_000
_SLEEP_SHORT_OF = 150e-6
"""Seconds before a deadline at which sleeping ends and waiting awake begins: more than a wake-up is late by."""
_PR_SET_TIMERSLACK = 29  # <linux/prctl.h>


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the fake does, beside what its SGLang flags say. Times in ms where not named otherwise.

    The step model: `calls` allreduces of rows x `row_bytes`, each `allreduce_us` + `allreduce_us_per_kib`; everything
    else `compute_ms` + `compute_ms_per_row` (of each further row); `draft_ms` for each draft step. `allreduce_factors`:
    by flag ("--disable-custom-all-reduce") or variable ("NCCL_P2P_DISABLE=1"), what the allreduce then takes times.
    `accept`: probability of each draft position, once all before it are accepted. SGLANG_SIMULATE_ACC_LEN overrides it.
    """

    release: str = "0.5.23"
    truth: str = ""  # file for one JSON line per prefill and step
    seed: int = 1
    calls: int = 122
    row_bytes: int = 14_336
    allreduce_us: float = 8.0
    allreduce_us_per_kib: float = 0.02
    allreduce_factors: Mapping[str, float] = field(default_factory=dict)
    compute_ms: float = 3.0
    compute_ms_per_row: float = 0.05
    draft_ms: float = 0.3
    prefill_ms: float = 3.0
    accept: tuple[float, ...] = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

    drift: float = 0.0  # steps become slower by this fraction a minute
    noise: float = 0.0  # standard deviation of a step, as a fraction
    cold_steps: int = 0  # steps until warm
    cold_factor: float = 3.0  # of the first step, falling evenly to 1
    modes: tuple[float, ...] = (1.0,)  # a start is as slow as one of these, picked by seed and number of the start
    starts: str = ""  # file that counts starts
    eager: bool = False  # no step replays a CUDA graph
    slot_limit: int = 0  # requests that really run together; 0: --max-running-requests

    start_seconds: float = 0.0
    dies: str = ""  # last words of a process that never gets ready
    exit_code: int | None = None  # how it dies; None: by SIGKILL, as SGLang ends its own tree
    crash_after_tokens: int = 0
    crash_text: str = "RuntimeError: CUDA error: an illegal memory access was encountered"
    hang: str = ""  # "start", "capture" or "decode"
    hang_after_tokens: int = 0
    children: int = 0  # further processes of the tree
    stubborn: bool = False  # SIGTERM and SIGINT are ignored
    flood_lines: int = 0  # further lines in the log a step
    flood_at_start: int = 0

    profiler: bool = True  # whether /start_profile ends in a trace
    trace_seconds: float = 0.0  # how long a rank's trace is being written
    litter: bool = False  # whether a hostile server leaves links, pipes and deep folders beside its traces
    counters: bool = True  # whether /metrics has them
    wrong_counts: int = 0  # added to every completion_tokens that a reply states
    half_close_after: int = 0  # tokens after which a stream ends without its end
    garbage_after: int = 0  # tokens after which a stream is no JSON
    endless_event: bool = False  # a stream is one event without an end
    chunk_delay_ms: float = 0.0  # each chunk is sent so much later; steps do not wait
    refuse: int = 0  # status that /generate answers with
    abort_after: int = 0  # tokens after which a request is aborted by the server

    @staticmethod
    def read(text: str) -> Options:
        """From JSON; lists stand for tuples."""
        values = json.loads(text or "{}")
        return Options(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})

    def at_least(self, release: str) -> bool:
        """Whether this release is that one or newer."""
        numbers = [tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (self.release, release)]
        return numbers[0] >= numbers[1]


@dataclass
class Sequence:
    """One request inside."""

    prompt: str
    prompt_tokens: int
    most: int
    stream: bool
    number: int
    draws: random.Random
    events: queue.SimpleQueue[bool] = field(default_factory=queue.SimpleQueue)  # True: the last one
    tokens: int = 0
    verify_passes: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    aborted: bool = False
    started: float = 0.0

    def ids(self, first: int, last: int) -> list[int]:
        """Tokens from `first` up to `last`: always the same for one prompt."""
        start = zlib.crc32(self.prompt.encode())
        return [(start + 7919 * position) % VOCABULARY for position in range(first, last)]

    def text(self, first: int, last: int) -> str:
        """The same as words."""
        return "".join(f" {WORDS[token % len(WORDS)]}" for token in self.ids(first, last))

    @property
    def histogram(self) -> list[int]:
        return [self.accepted[drafts] for drafts in range(max(self.accepted, default=-1) + 1)]


class Model:
    """How long a step takes and what it emits."""

    def __init__(self, options: Options, flags: Mapping[str, str]) -> None:
        self.options = options
        self.speculates = "speculative-algorithm" in flags
        self.drafts = int(flags.get("speculative-num-steps", 3)) if self.speculates else 0
        self.rows = int(flags.get("speculative-num-draft-tokens", self.drafts + 1)) if self.speculates else 1
        self.simulated = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "0"))
        self.random = random.Random(options.seed)
        self.allreduce_factor = 1.0
        for token, factor in options.allreduce_factors.items():
            name, _, value = token.partition("=")
            there = token.removeprefix("--") in flags if token.startswith("--") else os.environ.get(name) == value
            self.allreduce_factor *= factor if there else 1
        self.mode = self._mode()
        self.steps = 0

    def _mode(self) -> float:
        number = 0
        if self.options.starts:
            path = Path(self.options.starts)
            number = int(path.read_text()) if path.exists() else 0
            path.write_text(str(number + 1))
        return random.Random(f"{self.options.seed}:{number}").choice(self.options.modes)

    def allreduce_ms(self, rows: int) -> float:
        """Of all calls of a pass."""
        kib = rows * self.options.row_bytes / 1024
        each = self.options.allreduce_us + self.options.allreduce_us_per_kib * kib
        return self.options.calls * each * self.allreduce_factor / 1000

    def quiet_ms(self, running: int) -> float:
        """A warm step of so many requests, without drift and noise: what a harness should find."""
        rows = running * self.rows
        compute = self.options.compute_ms + self.options.compute_ms_per_row * (rows - 1)
        return self.mode * (self.allreduce_ms(rows) + compute + self.options.draft_ms * self.drafts)

    def step_seconds(self, running: int, age: float) -> float:
        """The next step's, `age` seconds after the server became ready."""
        cold = max(0.0, 1 - self.steps / self.options.cold_steps) if self.options.cold_steps else 0.0
        factor = (1 + (self.options.cold_factor - 1) * cold) * (1 + self.options.drift * age / 60)
        factor *= max(0.1, self.random.gauss(1, self.options.noise)) if self.options.noise else 1
        self.steps += 1
        return self.quiet_ms(running) * factor / 1000

    def accepted(self, draws: random.Random) -> int:
        """Drafts that one verify pass accepts."""
        if self.simulated:  # the expected number, as SGLang's method match-expected
            drafts = min(self.simulated - 1, self.drafts)
            return int(drafts) + (draws.random() < drafts - int(drafts))
        accepted = 0
        for probability in self.options.accept[: self.drafts]:
            if draws.random() >= probability:
                break
            accepted += 1
        return accepted


@dataclass
class Counted:
    """What the server counts. `all_time` of verify passes is what /flush_cache forgets."""

    requests: int = 0
    prompt: int = 0
    finished_tokens: int = 0
    finished_passes: int = 0
    decoded: int = 0
    prefilled: int = 0
    graph_steps: int = 0
    eager_steps: int = 0
    all_time_tokens: int = 0
    all_time_passes: int = 0
    throughput: float = 0.0
    accept_length: float = 0.0
    accept_rate: float = 0.0


class Log:
    """Lines on stderr, as SGLang's logging writes them."""

    def __init__(self, ranks: int) -> None:
        self.rank = " TP0" if ranks > 1 else ""

    def say(self, text: str) -> None:
        """One line, with the prefix."""
        self.raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self.rank}] {text}")

    def raw(self, text: str) -> None:
        """One line as it is."""
        with suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


class Scheduler(threading.Thread):
    """One thread: prefills what waits, steps what runs, all together."""

    def __init__(self, options: Options, flags: Mapping[str, str], log: Log, die: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="scheduler")
        self.options, self.log, self.die = options, log, die
        self.model = Model(options, flags)
        self.interval = int(flags.get("decode-log-interval", 40))
        self.stream_interval = int(flags.get("stream-interval", 1))
        self.most = options.slot_limit or int(flags.get("max-running-requests", 48))
        self.counted = Counted()
        self.waiting: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
        self.running: list[Sequence] = []
        self.numbers = itertools.count()
        self.deadline = self.ready = self.logged = time.perf_counter()
        self.steps = self.emitted = self.since_tokens = self.since_passes = 0
        self.truth: TextIO | None = Path(options.truth).open("w") if options.truth else None  # noqa: SIM115
        self.graph = not options.eager and "disable-cuda-graph" not in flags

    def submit(self, prompt: str, prompt_tokens: int, most: int, *, stream: bool) -> Sequence:
        """Queue a request. The draws depend on the prompt, so acceptance is a property of it."""
        draws = random.Random(f"{self.options.seed}:{prompt}")
        sequence = Sequence(prompt, prompt_tokens, most, stream, next(self.numbers), draws, started=time.perf_counter())
        self.waiting.put(sequence)
        return sequence

    def run(self) -> None:
        """Until the process ends."""
        with suppress(OSError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)
        while True:
            admitted = list(self._admit(block=not self.running))
            if admitted:
                self._prefill(admitted)
            if self.running:
                self._step()

    def _admit(self, *, block: bool) -> Iterator[Sequence]:
        while len(self.running) < self.most:
            try:
                sequence = self.waiting.get(block=block)
            except queue.Empty:
                return
            if block:
                self.deadline = time.perf_counter()
            block = False
            self.running.append(sequence)
            yield sequence

    def _wait(self, seconds: float) -> float:
        """To the next deadline; a server that is late by more than a step does not make up for it."""
        self.deadline += seconds
        if time.perf_counter() > self.deadline + seconds:
            self.deadline = time.perf_counter()
        if (left := self.deadline - time.perf_counter() - _SLEEP_SHORT_OF) > 0:
            time.sleep(left)
        while (now := time.perf_counter()) < self.deadline:
            pass
        return now

    def _write(self, kind: str, now: float, seconds: float, running: int, tokens: int, *, flush: bool) -> None:
        if self.truth:
            self.truth.write(
                f'{{"kind": "{kind}", "time": {now:.7f}, "planned_ms": {seconds * 1000:.5f}, "running": {running}, '
                f'"tokens": {tokens}, "graph": {str(self.graph).lower()}}}\n'
            )
            if flush:
                self.truth.flush()

    def _prefill(self, admitted: list[Sequence]) -> None:
        tokens = sum(sequence.prompt_tokens for sequence in admitted)
        seconds = self.options.prefill_ms / 1000
        now = self._wait(seconds)
        ended = [sequence for sequence in admitted if sequence.most <= 1]
        self._write("prefill", now, seconds, len(admitted), len(admitted), flush=bool(ended))
        self.counted.prefilled += tokens
        for sequence in admitted:
            self._emit(sequence, 1)
        self._log_prefill(admitted, tokens)

    def _step(self) -> None:
        running = list(self.running)
        seconds = self.model.step_seconds(len(running), time.perf_counter() - self.ready)
        now = self._wait(seconds)
        if self.options.hang == "decode" and self.emitted >= self.options.hang_after_tokens:
            threading.Event().wait()
        emits = []
        for sequence in running:
            accepted = self.model.accepted(sequence.draws) if self.model.speculates else 0
            if self.model.speculates:
                sequence.verify_passes += 1
                sequence.accepted[accepted] += 1
            emits.append(accepted + 1)
        total = sum(emits)
        ending = any(sequence.tokens + tokens >= sequence.most for sequence, tokens in zip(running, emits, strict=True))
        self._write("step", now, seconds, len(running), total, flush=ending)
        self._count(len(running), total)
        for sequence, tokens in zip(running, emits, strict=True):
            self._emit(sequence, tokens)
        self.steps += 1
        if self.steps % self.interval == 0:
            self._log_decode(len(running))
        for number in range(self.options.flood_lines):
            self.log.say(f"fake warning {number}: " + "x" * 200)

    def _count(self, running: int, tokens: int) -> None:
        self.counted.decoded += tokens
        self.counted.graph_steps += self.graph
        self.counted.eager_steps += not self.graph
        self.since_tokens += tokens
        self.since_passes += running

    def _emit(self, sequence: Sequence, tokens: int) -> None:
        sequence.tokens = min(sequence.tokens + tokens, sequence.most)
        self.emitted += tokens
        if self.options.crash_after_tokens and self.emitted >= self.options.crash_after_tokens:
            self.die(self.options.crash_text)
        sequence.aborted = bool(self.options.abort_after and sequence.tokens >= self.options.abort_after)
        if sequence.tokens >= sequence.most or sequence.aborted:
            self.running.remove(sequence)
            self.counted.requests += 1
            self.counted.prompt += sequence.prompt_tokens
            self.counted.finished_tokens += sequence.tokens
            self.counted.finished_passes += sequence.verify_passes
            sequence.events.put(True)
        elif sequence.stream and (self.stream_interval == 1 or sequence.tokens % self.stream_interval == 1):
            sequence.events.put(False)  # 0.5.9's rule, scheduler_output_processor_mixin.py

    def _log_prefill(self, admitted: list[Sequence], tokens: int) -> None:
        new, before = self.options.at_least("0.5.5"), max(0, len(self.running) - len(admitted))
        line = (
            f"Prefill batch{',' if new else '.'} #new-seq: {len(admitted)}, #new-token: {tokens}, #cached-token: 0, "
            f"token usage: 0.00, #running-req: {before}, #queue-req: {self.waiting.qsize()}, "
        )
        speed = tokens / (self.options.prefill_ms / 1000)
        self.log.say(line + (f"cuda graph: False, input throughput (token/s): {speed:.2f}" if new else ""))

    def _log_decode(self, running: int) -> None:
        now, counted = time.perf_counter(), self.counted
        counted.throughput = self.since_tokens / (now - self.logged)
        self.logged = now
        held = sum(sequence.prompt_tokens + sequence.tokens for sequence in self.running)
        new = self.options.at_least("0.5.5")
        line = f"Decode batch{',' if new else '.'} #running-req: {running}, #token: {held}, token usage: 0.00, "
        if self.model.speculates:
            line += self._accept_text()
        line += f"cuda graph: {self.graph}, gen throughput (token/s): {counted.throughput:.2f}, "
        line += f"#queue-req: {self.waiting.qsize()}"
        self.log.say(line + ("" if new else ", "))
        self.since_tokens = self.since_passes = 0

    def _accept_text(self) -> str:
        counted, passes = self.counted, self.since_passes
        counted.all_time_tokens += self.since_tokens
        counted.all_time_passes += passes
        counted.accept_length = self.since_tokens / passes
        if self.options.at_least("0.5.11"):  # correct drafts of those proposed; before, all tokens of all rows
            counted.accept_rate = (counted.accept_length - 1) / max(1, self.model.rows - 1)
        else:
            counted.accept_rate = counted.accept_length / self.model.rows
        text = f"accept len: {counted.accept_length:.2f}, "
        return text + (f"accept rate: {counted.accept_rate:.2f}, " if self.options.at_least("0.5.5") else "")

    def info(self) -> dict[str, Any]:
        """internal_states[0] of /server_info."""
        counted = self.counted
        state: dict[str, Any] = {
            "last_gen_throughput": counted.throughput,
            "memory_usage": {"weight": 12.3, "kvcache": 4.0, "token_capacity": 16_384, "graph": 0.5},
            "effective_max_running_requests_per_dp": self.most,
        }
        if self.model.speculates and counted.all_time_passes:
            state["avg_spec_accept_length"] = counted.all_time_tokens / counted.all_time_passes
        return state

    def flush(self) -> bool:
        """Forget the accept average; not while anything runs."""
        if self.running:
            return False
        self.counted.all_time_tokens = self.counted.all_time_passes = 0
        return True
