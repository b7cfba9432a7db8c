"""What is predicted of servers: values only. Formulas: docs/speculation-model.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tuning.serving.estimates import Estimate
from tuning.serving.forecast_drafting import Drafting
from tuning.serving.forecast_pass import TargetPass
from tuning.serving.spec import Speculation
from tuning.speculation_model import rate


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A speculation to predict.

    Attributes:
        kind: as arms of it are called after their backend, e.g. "2-1-3" or "2-1-3@2.43".
        speculation: steps, topk and draft tokens.
        accept_length: for tokens per second; None: the simulated one of its arm, where the run has that.
    """

    kind: str
    speculation: Speculation
    accept_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One prediction.

    Attributes:
        environment, backend: which servers.
        wanted: which speculation.
        requests: at once.
        baseline_ms: step without speculation, measured.
        target: the target's pass over all rows.
        drafting: everything else of a step.
        accept_length: tokens a step and request; None where unknown.
        measured_ms: step with speculation as the run has it; None where it has not.
        one_start: whether one start alone tells the baseline, so that its spread is not known.
    """

    environment: str
    backend: str
    wanted: Wanted
    requests: int
    baseline_ms: Estimate
    target: TargetPass
    drafting: Drafting
    accept_length: float | None
    measured_ms: Estimate | None
    one_start: bool

    @property
    def rows(self) -> int:
        """Rows of a verify pass."""
        return self.requests * self.wanted.speculation.draft_tokens

    @property
    def step_ms(self) -> Estimate:
        """Predicted step time."""
        return self.target.ms.plus(self.drafting.ms)

    @property
    def break_even(self) -> Estimate:
        """Accept length from which speculation is faster; as if step and baseline were independent."""
        return self.step_ms.log().minus(self.baseline_ms.log()).exp()

    @property
    def tokens_per_second(self) -> float | None:
        """Of all requests together."""
        return None if self.accept_length is None else rate(self.requests, self.accept_length, self.step_ms.value)

    @property
    def speed_up(self) -> float | None:
        """Tokens per second over those without speculation."""
        return None if self.accept_length is None else self.accept_length / self.break_even.value

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less 1."""
        return None if self.measured_ms is None else self.step_ms.value / self.measured_ms.value - 1

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.environment}:{self.backend}/{self.wanted.kind} at {self.requests}"


@dataclass(frozen=True, kw_only=True)
class Untold:
    """What cannot be predicted, and why; speculation and requests are None where that holds for all of a backend."""

    environment: str
    backend: str
    wanted: Wanted | None
    requests: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How far predictions are off, as fractions: the median of the sizes, and the largest with its sign."""

    count: int
    median: float
    largest: float
    largest_of: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Everything that is predicted.

    Attributes:
        run, drafting, allreduce_run: the run files that it is made of, as they were named; "" where none was.
        cells: by environment, backend, speculation and number of requests.
        untold: what is not.
        assumptions: each a sentence.
    """

    run: str
    drafting: str
    allreduce_run: str
    cells: tuple[Cell, ...]
    untold: tuple[Untold, ...]
    assumptions: tuple[str, ...]

    @property
    def errors(self) -> Errors | None:
        """Over all cells that were measured too; None where none was."""
        found = [(cell.error, cell.label) for cell in self.cells if cell.error is not None]
        if not found:
            return None
        largest, label = max(found, key=lambda pair: abs(pair[0]))
        median = statistics.median(abs(error) for error, _ in found)
        return Errors(count=len(found), median=median, largest=largest, largest_of=label)
