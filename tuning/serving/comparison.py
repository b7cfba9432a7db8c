"""What holding one arm of a run of servers against another gives: values only."""

from __future__ import annotations

from dataclasses import dataclass

from tuning.serving.acceptance import Category, Outputs
from tuning.serving.estimates import Estimate
from tuning.serving.pays import Crossing, Pays
from tuning.serving.sides import ServingSide
from tuning.stats import Judgement, Outcome


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Accept lengths of A and B, B's over A's on the same prompts, and what that says; None where unknown.

    Without speculation the accept length is 1, so there is nothing to conclude where one side alone speculates. `mde`
    is the smallest difference, as a fraction, that as many prompts would find 4 times in 5.
    """

    a: Estimate | None
    b: Estimate | None
    ratio: Estimate | None
    outcome: Outcome | None
    prompts: int
    mde: float | None = None
    categories: tuple[Category, ...] = ()
    positions: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One latency of single requests: its name, medians over starts of A and B in ms, and B's against A's."""

    name: str
    ms: tuple[float | None, float | None]
    judged: Judgement


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of requests at once.

    Attributes:
        concurrency: that number.
        step_ms: medians over starts of A and B.
        step: B's step time against A's.
        tokens_per_second: medians over starts, of all requests together.
        speed: B's tokens per second against A's, over prompts such as these: acceptance over step time, with the
            intervals of both.
        acceptance: of A and B.
        at_acceptance_of_a: tokens per second of B, had it A's acceptance; None where unknown, and where
            one of them does not speculate.
        pays: of speculation against its baseline, and then the same as `speed`; None of other comparisons, and without
            numbers of both.
        latencies: TTFT, TPOT and ITL, where every start tells them.
        outputs: whether the answers are the same; None where they mean nothing (random weights, forced acceptance).
    """

    concurrency: int
    step_ms: tuple[float | None, float | None]
    step: Judgement
    tokens_per_second: tuple[float | None, float | None]
    speed: Judgement
    acceptance: Acceptance
    at_acceptance_of_a: float | None
    pays: Pays | None
    latencies: tuple[Latency, ...]
    outputs: Outputs | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B against A.

    Attributes:
        a: the baseline of the comparison.
        b: what is held against it.
        metric: what decides: "step_ms" where both speculate alike, else "tokens_per_second".
        rows: by rising number of requests.
        overall: over the geometric mean of all rows, in that metric; of tokens per second judged as `Row.speed`.
        crossings: where speculation begins or stops paying.
        margin: the run's equivalence margin.
        asked: what the two were meant to differ in.
        follows: what differs as a consequence of that, by the server's own rules.
        differs: what else differs.
        warnings: what weakens the comparison; each ends in advice.
        notes: how to read it.
    """

    a: ServingSide
    b: ServingSide
    metric: str
    rows: tuple[Row, ...]
    overall: Judgement
    crossings: tuple[Crossing, ...]
    margin: float
    asked: tuple[str, ...]
    follows: tuple[str, ...]
    differs: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def against_baseline(self) -> bool:
        """Whether it is speculation held against none, so that the question is whether it pays."""
        return self.a.spec.speculation is None and self.b.spec.speculation is not None

    @property
    def is_a_a(self) -> bool:
        """Whether both are the same thing under two names, so that the right answer is "same"."""
        return self.a.run.path == self.b.run.path and not self.asked and not self.differs

    def outcomes(self, *, every_row: bool) -> set[Outcome]:
        """What was concluded: overall, of acceptance where both speculate alike, and of every row if asked for."""
        found = {self.overall.outcome}
        for row in self.rows:
            if self.metric == "step_ms" and row.acceptance.outcome is Outcome.WORSE:
                found.add(row.acceptance.outcome)
            if every_row:
                found |= {(row.step if self.metric == "step_ms" else row.speed).outcome}
        return found
