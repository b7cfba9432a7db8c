"""What a run of servers says about two arms: step time and acceptance apart, and what they make together. Pure.

A server start is the unit: it gives an arm one number at each number of requests, the median of its passes. Starts of
both arms are interleaved (A B B A), and the i-th of A pairs with the i-th of B. Acceptance is paired by prompt instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from lanewise.errors import InputError
from tuning.arms import middle
from tuning.serving import acceptance
from tuning.serving.comparison import Acceptance, Comparison, Row
from tuning.serving.differing import asked, differs, follows, on_cuda
from tuning.serving.estimates import Estimate, conclude, of_mean
from tuning.serving.pays import Pays, crossings, pays
from tuning.serving.records import ServingTrial
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide, accept_length, find_sides, known_names, step_ms, tokens_per_second
from tuning.serving.weakness import weaknesses
from tuning.stats import Judgement, Outcome, judge, mean_over_sizes, own_launch_floor

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
        raise InputError(
            f"{name_a!r} and {name_b!r} are an arm and an environment",
            expected="two arms, or two environments, or environment:arm twice",
            todo=f"say, for example, {sides_a[0].label} {sides_b[0].label}",
        )
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
        number: Number = step_ms if alike else tokens_per_second
        overall = self._judged(list(self._concurrencies), number, lower_is_better=alike)
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
            differs=differs(a, b),
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
        accepted = self._acceptance(concurrency)
        own, step_b = accepted.a, middles[1]
        return Row(
            concurrency=concurrency,
            step_ms=middles,
            step=step,
            tokens_per_second=self._middles(concurrency, tokens_per_second),
            speed=self._judged([concurrency], tokens_per_second, lower_is_better=False),
            acceptance=accepted,
            at_acceptance_of_a=(
                1000 * concurrency * own.value / step_b if own and step_b and not self._one_speculates else None
            ),
            pays=self._pays(step, middles, accepted.b) if self._against_baseline else None,
            outputs=self._outputs(concurrency),
        )

    def _acceptance(self, concurrency: int) -> Acceptance:
        sides = (self._a, self._b)
        requests = [side.requests(concurrency) for side in sides]
        counts = [
            acceptance.by_prompt(own, speculative=side.spec.speculation is not None)
            for side, own in zip(sides, requests, strict=True)
        ]
        if not counts[0] or not counts[1]:
            a, b = (self._of_starts(side, concurrency) for side in sides)
            ratio = b.log().minus(a.log()).exp() if a and b else None
            return Acceptance(a=a, b=b, ratio=ratio, outcome=self._accept_outcome(ratio), prompts=0)
        ratio = acceptance.accept_ratio(counts[0], counts[1])
        return Acceptance(
            a=acceptance.accept_length(counts[0]),
            b=acceptance.accept_length(counts[1]),
            ratio=ratio,
            outcome=self._accept_outcome(ratio),
            prompts=len(counts[0].keys() & counts[1].keys()),
            categories=acceptance.by_category(counts[0], counts[1], requests[0]),
            positions=(acceptance.positions(requests[0]), acceptance.positions(requests[1])),
        )

    def _of_starts(self, side: ServingSide, concurrency: int) -> Estimate | None:
        """Where requests do not tell their verify passes: the passes' accept lengths, with starts as the unit."""
        logs = [math.log(accept_length(trial)) for trial in side.trials(concurrency).values()]
        return of_mean(logs).exp() if logs else None

    def _accept_outcome(self, ratio: Estimate | None) -> Outcome | None:
        if self._one_speculates:
            return None
        if self._why_not:
            return Outcome.NOT_COMPARABLE
        if ratio is None:
            return Outcome.UNDECIDED
        return conclude(ratio.log(), margin=self._plan.margin, floor=None, lower_is_better=False)

    def _pays(
        self, step: Judgement, middles: tuple[float | None, float | None], accept: Estimate | None
    ) -> Pays | None:
        """Without pairs of starts by the medians alone, which decide nothing."""
        a, b = middles
        if not a or not b or accept is None:
            return None
        ratio = Estimate(value=step.ratio or b / a, low=step.ci_low, high=step.ci_high)
        floor = None if step.floor is None else math.log1p(step.floor)
        found = pays(ratio, accept, margin=self._plan.margin, floor=floor)
        return replace(found, outcome=Outcome.NOT_COMPARABLE) if self._why_not else found

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
                f"{overall.n} of {self._plan.starts} starts have numbers for both; see the failures below, or finish "
                "the run with --resume"
            )
        if overall.floor is not None and overall.floor > self._plan.margin:
            found.append(
                f"starts of one and the same arm differ by {overall.floor:.1%}, more than the margin of "
                f"{self._plan.margin:.1%}; stop other work on this machine and measure again"
            )
        return [*found, *weaknesses(self._a, self._b, self._concurrencies)]

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


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
