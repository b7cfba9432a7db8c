"""What a run of servers says about two arms: step time and acceptance apart, and what they make together. Pure.

A server start is the unit: it gives an arm one number at each number of requests, the median of its passes. Starts of
both arms are interleaved (A B B A), and the i-th of A pairs with the i-th of B. Acceptance is paired by prompt instead.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lanewise.errors import InputError
from tuning.arms import middle, one_against_several
from tuning.serving import acceptance
from tuning.serving.compare_acceptance import compare_acceptance
from tuning.serving.comparison import Acceptance, Comparison, Latency, Row
from tuning.serving.differing import asked, differs, follows, on_cuda
from tuning.serving.estimates import Estimate
from tuning.serving.pays import (
    NOT_BY_PROMPT,
    ONE_PROMPT,
    Pays,
    crossings,
    judge_speed,
    mean_acceptance,
    pays,
    step_ratio,
)
from tuning.serving.records import ServingTrial
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import (
    ServingSide,
    find_sides,
    itl_p99_ms,
    known_names,
    step_ms,
    tokens_per_second,
    tpot_ms,
    ttft_ms,
    without_numbers,
)
from tuning.serving.weakness import weaknesses
from tuning.stats import Judgement, Outcome, judge, mean_over_sizes, own_launch_floor

_LATENCIES: Mapping[str, Callable[[ServingTrial], float | None]] = {
    "TTFT": ttft_ms,
    "TPOT": tpot_ms,
    "ITL p99": itl_p99_ms,
}
_SGLANG_RELEASE = frozenset({"libraries sglang", "SGLang release", "version"})
"""Names under which an environment, a server's answer and what it resolved tell one and the same."""
_VARIABLE = re.compile(r"(?:nccl |variables )?(\S+)", re.ASCII)
"""A variable of an environment, as NCCL takes it, and of a server."""
_SOURCE = re.compile(r" \([^()]*\)(?= / |$)", re.ASCII)
"""Who said so, after a value: "Ring (environment)"."""
Number = Callable[[ServingTrial], float]
Pairs = dict[int, tuple[ServingTrial, ServingTrial]]
"""By repetition, trials of A and B whose starts are neighbours in the schedule."""


def compare_serving(a: ServingSide, b: ServingSide) -> Comparison:
    """Hold B against A at all numbers of requests that both are measured at.

    Raises:
        InputError: one and the same arm on both sides, or no number of requests in common.
    """
    if (a.run.path, a.label) == (b.run.path, b.label):
        raise InputError(
            f"{a.label} is on both sides",
            expected="two arms that differ",
            todo=f"name two of: {', '.join(known_names(a.run))}",
        )
    shared = [number for number in a.concurrencies if number in b.concurrencies]
    if not shared:
        raise InputError(
            f"{a.label} is planned at {_listed(a.concurrencies)} requests, {b.label} at {_listed(b.concurrencies)}",
            expected="a number of requests that both have",
            todo="name other arms, or measure both with the same --concurrency",
        )
    return _Comparing(a, b, shared).comparison()


def compare_serving_names(run_a: ServingRun, name_a: str, run_b: ServingRun, name_b: str) -> list[Comparison]:
    """The comparisons that two names stand for: two arms are compared in every environment, else it is one.

    Raises:
        InputError: unknown names, or kinds of name that do not go together.
    """
    sides_a, sides_b = find_sides(run_a, name_a), find_sides(run_b, name_b)
    if run_a.path != run_b.path:
        return [compare_serving(sides_a[0], sides_b[0])]
    if len(sides_a) != len(sides_b):
        labels = [[side.label for side in sides] for sides in (sides_a, sides_b)]
        raise one_against_several((name_a, name_b), labels, "an arm")
    return [compare_serving(a, b) for a, b in zip(sides_a, sides_b, strict=True)]


def serving_overview(run: ServingRun) -> tuple[Comparison, ...]:
    """Every question that a run answers: in each environment, each speculation against its baseline, and each other
    backend against the first one's; then each arm in the other environments against the same in the first.
    """
    plan = run.header.plan
    first, *others = [env.name for env in plan.environments]
    found: list[tuple[ServingSide, ServingSide]] = []
    for environment in (first, *others):
        sides = [ServingSide(environment=environment, arm=arm.name, run=run) for arm in plan.arms]
        found += [(side.baseline, side) for side in sides if side.spec.speculation and side.baseline]
        backend = plan.baseline.split("/")[0]
        for side in sides:
            name, _, kind = side.arm.partition("/")
            same = ServingSide(environment=environment, arm=backend, run=run).sibling(kind)
            if name != backend and same:
                found.append((same, side))
    for environment in others:
        sides = [ServingSide(environment=environment, arm=arm.name, run=run) for arm in plan.arms]
        found += [(replace(side, environment=first), side) for side in sides]
    return tuple(compare_serving(a, b) for a, b in found)


class _Comparing:
    """One comparison in the making."""

    def __init__(self, a: ServingSide, b: ServingSide, concurrencies: Sequence[int]) -> None:
        self._a, self._b, self._concurrencies = a, b, concurrencies
        self._plan = a.run.header.plan
        self._why_not = self._not_comparable()
        self._against_baseline = b.spec.speculation is not None and a.spec.speculation is None
        self._one_speculates = (b.spec.speculation is None) is not (a.spec.speculation is None)

    def comparison(self) -> Comparison:
        """All of it."""
        a, b = self._a, self._b
        rows = tuple(self._row(number) for number in self._concurrencies)
        alike = a.spec.speculation == b.spec.speculation
        overall = self._judged(self._concurrencies, step_ms, lower_is_better=True)
        if not alike:
            overall = self._speed(self._concurrencies, overall, [row.acceptance for row in rows])
        return Comparison(
            a=a,
            b=b,
            metric="step_ms" if alike else "tokens_per_second",
            rows=rows,
            overall=overall,
            crossings=crossings([(row.concurrency, row.pays) for row in rows if row.pays]),
            margin=self._plan.margin,
            asked=tuple(asked(a, b)),
            follows=follows(a, b),
            differs=_once(differs(a, b)),
            warnings=tuple(self._warnings(overall)),
            notes=tuple(self._notes()),
        )

    def _not_comparable(self) -> str:
        """Why these two must not be judged; "" where they may."""
        if self._a.run.path != self._b.run.path:
            return "two run files were not interleaved: described, never judged"
        for number in self._concurrencies:
            if other := acceptance.other_prompts(self._a.requests(number), self._b.requests(number)):
                return f"the servers were not sent the same: {other[0]}: another tokenizer or chat template"
        return ""

    def _pairs(self, concurrency: int) -> Pairs:
        a, b = self._a.trials(concurrency), self._b.trials(concurrency)
        return {repetition: (a[repetition], b[repetition]) for repetition in sorted(a.keys() & b.keys())}

    def _middles(self, concurrency: int, number: Number) -> tuple[float | None, float | None]:
        a, b = ([*map(number, side.trials(concurrency).values())] for side in (self._a, self._b))
        return middle(a), middle(b)

    def _judged(self, concurrencies: Sequence[int], number: Number, *, lower_is_better: bool) -> Judgement:
        """Over the repetitions that all of these numbers of requests have."""
        if self._why_not:
            middles = [self._middles(concurrency, number) for concurrency in concurrencies]
            ratios = [b / a for a, b in middles if a and b]
            return _refused(statistics.geometric_mean(ratios) if ratios else None, self._why_not)
        pairs = [self._pairs(concurrency) for concurrency in concurrencies]
        complete = sorted(set.intersection(*map(set, pairs)))
        logs = [[math.log(number(case[r][1]) / number(case[r][0])) for r in complete] for case in pairs]
        floor = self._floor(pairs, complete, number)
        return judge(mean_over_sizes(logs), margin=self._plan.margin, floor=floor, lower_is_better=lower_is_better)

    def _floor(self, pairs: Sequence[Pairs], complete: Sequence[int], number: Number) -> float | None:
        """How far starts of one and the same arm differ."""
        a, b = (
            [statistics.geometric_mean(number(case[r][side]) for case in pairs) for r in complete] for side in (0, 1)
        )
        return own_launch_floor(a, b)

    def _row(self, concurrency: int) -> Row:
        step = self._judged([concurrency], step_ms, lower_is_better=True)
        middles = self._middles(concurrency, step_ms)
        accepted = compare_acceptance(self._a, self._b, concurrency, why_not=self._why_not)
        speed = self._speed([concurrency], step, [accepted])
        own, step_b = accepted.a, middles[1]
        return Row(
            concurrency=concurrency,
            step_ms=middles,
            step=step,
            tokens_per_second=self._middles(concurrency, tokens_per_second),
            speed=speed,
            acceptance=accepted,
            at_acceptance_of_a=(
                1000 * concurrency * own.value / step_b if own and step_b and not self._one_speculates else None
            ),
            pays=self._pays(speed, step, middles, accepted.b) if self._against_baseline else None,
            latencies=tuple(self._latencies(concurrency)),
            outputs=self._outputs(concurrency),
        )

    def _latencies(self, concurrency: int) -> Iterator[Latency]:
        """Those that every start of both tells."""
        trials = [trial for side in (self._a, self._b) for trial in side.trials(concurrency).values()]
        for name, told in _LATENCIES.items():
            if trials and all(told(trial) for trial in trials):

                def number(trial: ServingTrial, told: Callable[[ServingTrial], float | None] = told) -> float:
                    return told(trial) or math.nan

                yield Latency(
                    name=name,
                    ms=self._middles(concurrency, number),
                    judged=self._judged([concurrency], number, lower_is_better=True),
                )

    def _speed(self, concurrencies: Sequence[int], step: Judgement, accepted: Sequence[Acceptance]) -> Judgement:
        """Tokens per second: with the interval of step time over starts, and that of acceptance over prompts."""
        if self._why_not:
            return self._judged(concurrencies, tokens_per_second, lower_is_better=False)
        against = self._against_baseline
        return judge_speed(
            step,
            mean_acceptance([one.b if against else one.ratio for one in accepted]),
            margin=self._plan.margin,
            names=("accept length", "break-even") if against else ("accept length B/A", "step time B/A"),
            no_interval=ONE_PROMPT if all(one.prompts for one in accepted) else NOT_BY_PROMPT,
        )

    def _pays(
        self, speed: Judgement, step: Judgement, middles: tuple[float | None, float | None], accept: Estimate | None
    ) -> Pays | None:
        """Without pairs of starts by the medians alone, which decide nothing."""
        a, b = middles
        if not a or not b or accept is None:
            return None
        return pays(speed, accept, step_ratio(step, step.ratio or b / a))

    def _outputs(self, concurrency: int) -> acceptance.Outputs | None:
        if any(side.spec.dummy_weights or side.spec.accept_length for side in (self._a, self._b)):
            return None
        found = acceptance.outputs(self._a.requests(concurrency), self._b.requests(concurrency))
        return found if found.prompts else None

    def _warnings(self, overall: Judgement) -> list[str]:
        found = []
        if self._a.run.path != self._b.run.path:
            found.append("these are two runs; put both arms into one: ./inv bench-speculative with both")
        elif overall.n < self._plan.starts and not self._why_not:
            found.append(
                f"{overall.n} of {self._plan.starts} starts have numbers for both; "
                f"{'see the failures below, or ' if self._failed() else ''}finish the run with --resume"
            )
        if overall.floor is not None and overall.floor > self._plan.margin:
            found.append(
                f"starts of one and the same arm differ by {overall.floor:.1%}, more than the margin of "
                f"{self._plan.margin:.1%}; stop other work on this machine and measure again"
            )
        return [*found, *weaknesses(self._a, self._b, self._concurrencies)]

    def _failed(self) -> bool:
        names = {(side.environment, side.arm) for side in (self._a, self._b)}
        return any((trial.environment, trial.arm) in names for trial in without_numbers(self._a.run))

    def _notes(self) -> list[str]:
        simulated = [side for side in (self._a, self._b) if side.spec.speculation and side.spec.accept_length]
        return [
            *on_cuda(self._a, self._b),
            *(
                f"{side.label}: an accept length of {side.spec.accept_length:g} was simulated, alike for requests that "
                "run together: step times are real; tokens per second and intervals of acceptance say nothing of the "
                "draft model"
                for side in simulated
            ),
        ]


def _refused(ratio: float | None, why: str) -> Judgement:
    return Judgement(
        outcome=Outcome.NOT_COMPARABLE, n=0, ratio=ratio, ci_low=None, ci_high=None, mde=None, floor=None,
        more_launches=None, more_launches_if_same=None, method="none", reason=why,
    )  # fmt: skip


def _once(lines: Sequence[str]) -> tuple[str, ...]:
    """Each fact by the first of the lines that tell it; lines are "name: before / after"."""
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        name, _, values = line.partition(": ")
        variable = _VARIABLE.fullmatch(name)
        of = "SGLang" if name in _SGLANG_RELEASE else variable[1] if variable else name
        found.setdefault((of, _SOURCE.sub("", values) if variable else values), line)
    return tuple(found.values())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
