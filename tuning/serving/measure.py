"""Measures one server that answers: warm-up until its step time is stable, then passes at each concurrency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lanewise.errors import LanewiseError, UnreachableError
from tuning.serving.client import flush_cache, generate, metrics
from tuning.serving.counters import Metrics, Window, parse_metrics, window
from tuning.serving.examine import Examined
from tuning.serving.log import decode_lines
from tuning.serving.plan import ServingPlan, Start
from tuning.serving.prompts import Prompt
from tuning.serving.records import Pass, ServingTrial
from tuning.serving.served import Api, Failure, Load, Reason
from tuning.serving.server_ended import ServerEnded
from tuning.serving.spec import ServerSpec
from tuning.serving.waves import NoWindowError, Wave, disagreement, measured_pass
from tuning.trial import Status

STABLE = 0.005
"""Two warm-up waves in a row whose step times differ by no more, as a fraction, are stable."""
MOST_WARM_UP_WAVES = 10
MOST_WARM_UP_SECONDS = 120.0
DISAGREEMENT = 0.02
"""Between the client's step time and the log's, above which one of them is wrong."""
MISCOUNT = 0.01
"""Between the tokens that answers of a trial hold and those that counters gained, as a fraction of the answers', above
which the trial has no numbers: step time and accept length are quotients of these counts."""
DRIFT = 0.01
"""Between the first and the last pass of a start, as a fraction, where all go the same way."""
_SECONDS_A_TOKEN = 0.1
"""Of a request, above which it hangs rather than being slow."""
_DYING_SECONDS = 3.0
_STOPPED_SECONDS = 1.0
_WAVE_TRIES = 3
_LOOK_SECONDS = 0.02
_SETTLED_SECONDS = 1.0
"""How long counters may lag behind the last chunk."""


class Measurable(Protocol):
    """What measuring needs of a server."""

    @property
    def url(self) -> str:
        """Where it answers."""
        ...

    @property
    def line_count(self) -> int:
        """Lines of log so far."""
        ...

    def lines(self, since: int = 0) -> list[str]:
        """Lines of log from a number on."""
        ...

    def alive(self) -> bool:
        """Whether it runs."""
        ...

    def failure(self, *, silent: bool = False, reason: str = "") -> ServerEnded:
        """Stop it, and say why it does not answer."""
        ...


class _TrialError(Exception):
    """A trial without numbers on a server that lives."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a server.

    Attributes:
        trials: one a concurrency.
        findings: what weakens their numbers, in words.
        ended: why the server ended, where it did.
    """

    trials: tuple[ServingTrial, ...]
    findings: tuple[str, ...]
    ended: ServerEnded | None = None


def measure(
    server: Measurable,
    start: Start,
    plan: ServingPlan,
    prompts: Sequence[Prompt],
    examined: Examined,
    *,
    launch: str,
    doing: Callable[[str], None],
) -> Measured:
    """Measure all concurrencies of a start, in their order.

    Args:
        server: it answers, and nothing else runs on its GPUs.
        start: which of the plan's it is.
        plan: says how much is measured.
        prompts: of one pass.
        examined: what the server is.
        launch: identifier of the start, for its trials.
        doing: told what is being done.
    """
    measuring = _Measuring(server, start, plan, prompts, examined, doing)
    trials = tuple(measuring.trial(concurrency, launch) for concurrency in start.arm.concurrencies)
    findings = (*measuring.findings, *measuring.contradicted())
    return Measured(trials=trials, findings=tuple(dict.fromkeys(findings)), ended=measuring.ended)


class _Measuring:
    """One server's measuring: what stays the same over it, and what is found."""

    def __init__(
        self,
        server: Measurable,
        start: Start,
        plan: ServingPlan,
        prompts: Sequence[Prompt],
        examined: Examined,
        doing: Callable[[str], None],
    ) -> None:
        self.findings: list[str] = []
        self.ended: ServerEnded | None = None
        self._start = start
        self._server, self._spec, self._plan, self._prompts = server, start.arm.spec, plan, prompts
        self._examined, self._doing = examined, doing
        self._timeout = plan.timeout + _SECONDS_A_TOKEN * plan.output_tokens
        self._has_metrics = True
        self._counted_otherwise: list[str] = []
        self._counts: list[tuple[float, int]] = []

    def trial(self, concurrency: int, launch: str) -> ServingTrial:
        """One concurrency; where the server ended before, how."""
        trial = ServingTrial(
            environment=self._start.environment.name,
            arm=self._start.arm.name,
            concurrency=concurrency,
            repetition=self._start.repetition,
            launch=launch,
        )
        try:
            if self.ended:
                raise self.ended
            return replace(trial, warm_up=self._warm_up(concurrency), passes=self._passes(concurrency))
        except _TrialError as error:
            return replace(trial, status=error.status, reason=error.reason)
        except (ServerEnded, UnreachableError) as error:
            self.ended = error if isinstance(error, ServerEnded) else self._server.failure()
            return replace(trial, status=self.ended.status, reason=self.ended.reason)

    def contradicted(self) -> Iterator[str]:
        """That counters told another number of tokens than answers held: once, with the first of its waves."""
        if waves := self._counted_otherwise:
            yield (
                f"in {len(waves)} wave{'s' * (len(waves) > 1)} the server's counters gained other tokens than its "
                f"answers hold (first {waves[0]}): somebody else uses it, or one of the two is wrong"
            )

    def _warm_up(self, concurrency: int) -> tuple[float, ...]:
        """Step times, ms, of the first prompts again and again, until two in a row are the same."""
        prompts = next(waves_of(self._prompts, concurrency))
        times: list[float] = []
        deadline = time.monotonic() + MOST_WARM_UP_SECONDS
        while len(times) < MOST_WARM_UP_WAVES and time.monotonic() < deadline:
            self._doing(f"{_requests(concurrency)}: warm-up {len(times) + 1}")
            times.append(self._numbers([self._wave(prompts)], keep_gaps=False).step_ms)
            if len(times) > 1 and abs(times[-1] / times[-2] - 1) <= STABLE:
                return tuple(times)
        self.findings.append(
            f"{_requests(concurrency)}: step time still drifting after {len(times)} warm-up waves "
            f"({', '.join(f'{ms:.3g}' for ms in times[-4:])} ms)"
        )
        return tuple(times)

    def _passes(self, concurrency: int) -> tuple[Pass, ...]:
        """The passes over all prompts."""
        self._counts.clear()
        found = []
        for number in range(self._plan.passes):
            self._doing(f"{_requests(concurrency)}: pass {number + 1}/{self._plan.passes}")
            waves = [self._wave(prompts) for prompts in waves_of(self._prompts, concurrency)]
            found.append(self._numbers(waves, keep_gaps=concurrency == 1 and number == 0))
            self._look_at(waves, found[-1], concurrency)
        self._require_counts()
        times = [done.step_ms for done in found]
        if _drifts(times):
            listed = ", ".join(f"{ms:.4g}" for ms in times)
            self.findings.append(f"{_requests(concurrency)}: step time drifted over the passes ({listed} ms)")
        return tuple(found)

    def _require_counts(self) -> None:
        """No numbers where answers and counters of the passes contradict each other, whichever of them is wrong.

        A counter that stays at 0 counts nothing, and so contradicts nothing.
        """
        gained, held = (sum(counts) for counts in zip(*self._counts, strict=True)) if self._counts else (0, 0)
        if gained and abs(gained - held) > MISCOUNT * held:
            raise _TrialError(
                Status.UNREADABLE,
                f"its answers hold {held:,.0f} tokens, and the server's counters gained {gained:,.0f}: "
                "somebody else uses it, or one of the two is wrong",
            )

    def _numbers(self, waves: list[Wave], *, keep_gaps: bool) -> Pass:
        try:
            return measured_pass(
                waves,
                speculative=self._spec.speculation is not None,
                counters=self._examined.counters,
                keep_gaps=keep_gaps,
            )
        except NoWindowError as error:
            raise _TrialError(Status.UNSUPPORTED, str(error)) from error

    def _look_at(self, waves: list[Wave], done: Pass, concurrency: int) -> None:
        """Note what weakens a pass."""
        where = _requests(concurrency)
        if (apart := disagreement(waves, done)) is not None and abs(apart) > DISAGREEMENT:
            self.findings.append(f"{where}: the log's step time is {apart:+.1%} off the client's, by {done.source}")
        most = max((line.running for wave in waves for line in wave.lines), default=concurrency)
        if most < concurrency:
            self.findings.append(f"{where}: the log shows at most {most} running")
        if self._spec.cuda_graphs and done.graph_share is not None and done.graph_share < 1:
            passes = "verify passes" if self._spec.speculation else "decode steps"
            self.findings.append(f"{where}: {1 - done.graph_share:.0%} of {passes} ran eagerly, without a CUDA graph")
        if early := sum(request.completion_tokens < self._plan.output_tokens for request in done.requests):
            self.findings.append(f"{where}: {early} of {len(done.requests)} answers ended early")

    def _wave(self, prompts: tuple[Prompt, ...]) -> Wave:
        """Send prompts at once and wait for all; anew where this process stood still meanwhile."""
        for _ in range(_WAVE_TRIES):
            if wave := self._sent(prompts):
                return wave
        raise _TrialError(
            Status.UNREADABLE,
            f"this process stood still (Ctrl-Z, or the machine slept) in {_WAVE_TRIES} waves in a row",
        )

    def _sent(self, prompts: tuple[Prompt, ...]) -> Wave | None:
        """A wave; None where this process stood still, so that its times are none of the server's."""
        if self._examined.caches:
            flush_cache(self._server.url)
        load = load_of(self._spec, prompts, max_tokens=self._plan.output_tokens)
        line, before = self._server.line_count, self._metrics()
        served = generate(self._server.url, load, concurrency=len(prompts), timeout=self._timeout, keep_going=False)
        if served.stopped > _STOPPED_SECONDS and self._server.alive():
            return None
        if served.failures:
            raise self._failed(served.failures)
        expected = sum(request.completion_tokens for request in served.requests)
        gained = self._gained(before, expected) if before else None
        return Wave(
            answers=served.answers,
            tokens=gained.generation_tokens if gained else None,
            passes=gained.verify_calls if gained else None,
            graph_share=gained.graph_share if gained else None,
            lines=tuple(decode_lines(self._server.lines(line))),
        )

    def _metrics(self) -> Metrics | None:
        """One scrape; None where the server has no such page."""
        try:
            return parse_metrics(metrics(self._server.url)) if self._has_metrics else None
        except UnreachableError:
            raise
        except LanewiseError:
            self._has_metrics = False
            return None

    def _gained(self, before: Metrics, expected: int) -> Window | None:
        """What counters gained over a wave of so many tokens; None where they count something else, or nothing."""
        deadline = time.monotonic() + _SETTLED_SECONDS
        while after := self._metrics():
            gained = window(before, after)
            if (tokens := gained.generation_tokens) is None:
                return gained
            if tokens >= expected or time.monotonic() > deadline:
                self._counts.append((tokens, expected))
                if tokens == expected:
                    return gained
                self._counted_otherwise.append(f"{tokens:,.0f} where they hold {expected:,}")
                return None
            time.sleep(_LOOK_SECONDS)
        return None

    def _failed(self, failures: Sequence[Failure]) -> Exception:
        """What a wave with failed requests means for the trial, or the server."""
        first = next((failure for failure in failures if failure.reason is not Reason.CANCELLED), failures[0])
        if self._is_gone():
            return self._server.failure()
        reason = f"request {first.prompt}: {first.reason}: {first.detail}"
        if first.reason in (Reason.TIMED_OUT, Reason.UNREACHABLE):
            return self._server.failure(silent=True, reason=reason)
        return _TrialError(Status.UNREADABLE, reason)

    def _is_gone(self) -> bool:
        """Whether the server ends: connections break before its processes do."""
        deadline = time.monotonic() + _DYING_SECONDS
        while self._server.alive() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return not self._server.alive()


def load_of(spec: ServerSpec, prompts: Sequence[Prompt], *, max_tokens: int) -> Load:
    """How a start is asked: texts through the chat template, token ids as they are."""
    return Load(
        prompts=tuple(prompts),
        max_tokens=max_tokens,
        api=Api.CHAT if prompts[0].text else Api.GENERATE,
        # What random weights or forced acceptance say means nothing, so its end means nothing either.
        ignore_eos=spec.dummy_weights or spec.accept_length > 0,
    )


def waves_of(prompts: Sequence[Prompt], concurrency: int) -> Iterator[tuple[Prompt, ...]]:
    """Prompts in waves, each of as many as the concurrency; the last is made up from the first prompts."""
    for begin in range(0, len(prompts), concurrency):
        yield tuple(prompts[number % len(prompts)] for number in range(begin, begin + concurrency))


def _drifts(times: Sequence[float]) -> bool:
    """Whether each of at least three is further from the first, and the last by more than `DRIFT`."""
    one_way = times in (sorted(times), sorted(times, reverse=True))
    return len(times) > 2 and one_way and abs(times[-1] / times[0] - 1) > DRIFT


def _requests(concurrency: int) -> str:
    return f"{concurrency} request{'s' if concurrency > 1 else ''}"
