"""What a run says about two arms: pure functions from run files to a Comparison; compare_view.py shows it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.arms import (
    Side,
    candidate_differences,
    find_sides,
    known_names,
    launch_jump,
    medians,
    middle,
    one_against_several,
    share_launches,
)
from tuning.differences import between_environments, between_runs
from tuning.intervals import Floats
from tuning.metrics import METRICS
from tuning.plan import Case
from tuning.protocol import CaseKey
from tuning.runfile import Kind, Run
from tuning.stats import (
    Judgement,
    Outcome,
    judge,
    mean_over_sizes,
    own_launch_floor,
    shared_launch_floor,
)
from tuning.trial import Trial

_METRIC = METRICS["time_us"]
Pairs = dict[int, tuple[Trial, Trial]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: medians over launches in the metric's unit, and the judgement of B against A."""

    case: Case
    a: float | None
    b: float | None
    judgement: Judgement


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B against A.

    Attributes:
        a: the baseline of the comparison.
        b: what is held against it.
        pairing: "same launch" (both arms in one process), "neighbours" (launches interleaved A B B A) or "none".
        rows: per case: message, mode, working set.
        overall: over the geometric mean of all cases.
        margin: the run's equivalence margin.
        differs: what else differs between the two, in words.
        warnings: what weakens the comparison; each ends in advice.
        notes: how to read it.
    """

    a: Side
    b: Side
    pairing: str
    rows: tuple[Row, ...]
    overall: Judgement
    margin: float
    differs: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_a_a(self) -> bool:
        """Whether both are the same thing under two names, so that the right answer is "same"."""
        return self.pairing != "none" and self.a.candidate == self.b.candidate and not self.differs


def compare(a: Side, b: Side, cases: tuple[Case, ...] = ()) -> Comparison:
    """Hold B against A, on these cases of the plan or on all.

    Raises:
        InputError: predicted or meaningless times, or one and the same arm on both sides.
    """
    for side in (a, b):
        if side.run.header.kind is not Kind.MEASURED:
            raise InputError(
                f"the times of {side.run.path} are {side.run.header.kind}",
                expected="measured times",
                todo="compare runs measured on one device a rank",
            )
    if a.run.path != b.run.path:
        return _describe(a, b, cases or a.run.header.plan.cases)
    if (a.environment, a.candidate) == (b.environment, b.candidate):
        raise InputError(
            f"{a.label} is on both sides",
            expected="two arms that differ",
            todo=f"name two of: {', '.join(known_names(a.run))}",
        )
    return _judge(a, b, cases or a.run.header.plan.cases)


def compare_names(run_a: Run, name_a: str, run_b: Run, name_b: str) -> list[Comparison]:
    """The comparisons that two names stand for: two candidates are compared in every environment, else it is one.

    Raises:
        InputError: unknown names, or kinds of name that do not go together.
    """
    sides_a, sides_b = find_sides(run_a, name_a), find_sides(run_b, name_b)
    slices = run_a.header.plan.slices
    if run_a.path != run_b.path:
        return [compare(sides_a[0], sides_b[0], cases) for cases in slices]
    if len(sides_a) != len(sides_b):
        labels = [[side.label for side in sides] for sides in (sides_a, sides_b)]
        raise one_against_several((name_a, name_b), labels, "a candidate")
    return [compare(a, b, cases) for a, b in zip(sides_a, sides_b, strict=True) for cases in slices]


@dataclass(frozen=True, kw_only=True)
class CandidatesView:
    """The candidates of one environment against the baseline, on cases of one mode and working set."""

    environment: str
    cases: tuple[Case, ...]
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything that a run can answer.

    Attributes:
        environments: each environment's baseline against the first environment's.
        candidates: per environment and slice of the cases, each candidate against the baseline.
        warnings: what weakens the whole run; each ends in advice.
    """

    environments: tuple[Comparison, ...]
    candidates: tuple[CandidatesView, ...]
    warnings: tuple[str, ...]

    @property
    def all(self) -> list[Comparison]:
        """Every comparison, environments first."""
        return [*self.environments, *(comparison for group in self.candidates for comparison in group.comparisons)]


def overview(run: Run) -> Overview:
    """Compare environments by their baselines, and in each environment every candidate with the baseline."""
    plan = run.header.plan

    def side(environment: str, candidate: str = plan.baseline) -> Side:
        return Side(environment=environment, candidate=candidate, run=run)

    first, *others = [env.name for env in plan.environments]
    rest = [candidate.name for candidate in plan.candidates if candidate.name != plan.baseline]
    return Overview(
        environments=tuple(compare(side(first), side(other), cases) for other in others for cases in plan.slices),
        candidates=tuple(
            CandidatesView(
                environment=env,
                cases=cases,
                comparisons=tuple(compare(side(env), side(env, name), cases) for name in rest),
            )
            for env in (first, *others)
            for cases in plan.slices
        ),
        warnings=tuple(run_warnings(run)),
    )


def run_warnings(run: Run) -> Iterable[str]:
    """What weakens every comparison of a run; each ends in advice."""
    if run.torn:
        yield f"the last line of {run.path} is torn and was left out; --resume sets it aside and goes on"
    busy = [launch.busy for launch in run.launches.values() if launch.busy is not None]
    threads = run.header.node.get("cpu", {}).get("threads")
    if busy and isinstance(threads, int) and (most := max(busy)) >= max(1, threads / 4):
        yield (
            f"other work ran on this machine: up to {most:g} tasks on {threads} threads before a launch; "
            "stop it and measure again"
        )


def _judge(a: Side, b: Side, cases: tuple[Case, ...]) -> Comparison:
    plan = a.run.header.plan
    shared = share_launches(a, b)
    rows, pairs, floors = [], [], []
    for case in cases:
        pairs.append(_join(medians(a, case.key), medians(b, case.key), shared=shared))
        floors.append(_floor_pairs(a, case.key) if shared else pairs[-1])
        middles = [middle([pair[side].median for pair in pairs[-1].values()]) for side in (0, 1)]
        judgement = _judgement(plan.margin, pairs[-1:], floors[-1:], shared=shared)
        rows.append(Row(case=case, a=middles[0], b=middles[1], judgement=judgement))
    overall = _judgement(plan.margin, pairs, floors, shared=shared)
    differs = between_environments(a.run.header, a.environment, b.environment) + candidate_differences(a, b)
    return Comparison(
        a=a,
        b=b,
        pairing="same launch" if shared else "neighbours",
        rows=tuple(rows),
        overall=overall,
        margin=plan.margin,
        differs=tuple(differs),
        warnings=tuple(_warnings(a, b, cases, overall, shared=shared)),
        notes=tuple(_notes(a, b)),
    )


def _judgement(margin: float, pairs: list[Pairs], floors: list[Pairs], *, shared: bool) -> Judgement:
    """Judge pairs of trials by repetition, one mapping a case, over the repetitions that all cases have."""
    floor = _shared_floor(floors) if shared else _own_floor(floors)
    return judge(_log_ratios(pairs), margin=margin, floor=floor, lower_is_better=_METRIC.lower_is_better)


def _log_ratios(pairs: list[Pairs]) -> Floats:
    """Per repetition the log ratio, of the geometric mean where there are several cases."""
    complete = sorted(set.intersection(*map(set, pairs)))
    return mean_over_sizes([[case[r][1].log_ratio_to(case[r][0]) for r in complete] for case in pairs])


def _shared_floor(pairs: list[Pairs]) -> float | None:
    return shared_launch_floor(_log_ratios(pairs))


def _own_floor(pairs: list[Pairs]) -> float | None:
    complete = sorted(set.intersection(*map(set, pairs)))
    first, second = (
        [statistics.geometric_mean(case[r][side].median for case in pairs) for r in complete] for side in (0, 1)
    )
    return own_launch_floor(first, second)


def _floor_pairs(side: Side, case: CaseKey) -> Pairs:
    """By repetition, the baseline and its second copy, which are the same thing."""
    baseline = Side(environment=side.environment, candidate=side.run.header.plan.baseline, run=side.run)
    return _join(medians(baseline, case), medians(baseline, case, copy=1), shared=True)


def _join(a: dict[int, Trial], b: dict[int, Trial], *, shared: bool) -> Pairs:
    """By repetition, trials that belong together: of one launch, or of neighbours in the interleaved schedule."""
    both = {repetition: (a[repetition], b[repetition]) for repetition in sorted(a.keys() & b.keys())}
    return {r: pair for r, pair in both.items() if not shared or pair[0].launch == pair[1].launch}


def _describe(a: Side, b: Side, cases: tuple[Case, ...]) -> Comparison:
    """Two run files: not interleaved, so whatever changed on the machine in between would be taken for a difference."""
    why = "two run files were not interleaved: described, never judged"
    plan = a.run.header.plan
    cases_b = {(c.message.bytes, c.message.calls, c.mode, c.working_set): c for c in b.run.header.plan.cases}
    rows = []
    for case in cases:
        other = cases_b.get((case.message.bytes, case.message.calls, case.mode, case.working_set))
        value_a = middle([t.median for t in medians(a, case.key).values()])
        value_b = middle([t.median for t in medians(b, other.key).values()]) if other else None
        ratio = value_b / value_a if value_a and value_b else None
        judgement = _not_comparable(ratio, why)
        rows.append(Row(case=case, a=value_a, b=value_b, judgement=judgement))
    ratios = [row.judgement.ratio for row in rows if row.judgement.ratio]
    overall = _not_comparable(statistics.geometric_mean(ratios) if ratios else None, why)
    return Comparison(
        a=a,
        b=b,
        pairing="none",
        rows=tuple(rows),
        overall=overall,
        margin=plan.margin,
        differs=tuple(between_runs(a.run.header, b.run.header, a.environment, b.environment)),
        warnings=("these are two runs; put both arms into one: ./inv campaign, or ./inv bench-allreduce with both",),
        notes=(),
    )


def _not_comparable(ratio: float | None, why: str) -> Judgement:
    return Judgement(
        outcome=Outcome.NOT_COMPARABLE, n=0, ratio=ratio, ci_low=None, ci_high=None, mde=None, floor=None,
        more_launches=None, more_launches_if_same=None, method="none", reason=why,
    )  # fmt: skip


def _warnings(a: Side, b: Side, cases: tuple[Case, ...], overall: Judgement, *, shared: bool) -> Iterable[str]:
    plan = a.run.header.plan
    if overall.n < plan.launches:
        yield (
            f"{overall.n} of {plan.launches} launches have numbers for both; "
            "see the failures below, or finish the run with --resume"
        )
    if overall.floor is not None and overall.floor > plan.margin:
        yield (
            f"{_the_same(a, shared=shared)} differ by {overall.floor:.0%}, more than the margin of {plan.margin:.0%}; "
            "stop other work on this machine and measure again"
        )
    if not shared:
        for side in (a, b):
            if (jump := launch_jump(side, cases)) > 1.25:
                yield (
                    f"launches of {side.label} differ by up to {jump - 1:.0%} among themselves; "
                    "more launches are the only cure (--launches)"
                )


def _the_same(a: Side, *, shared: bool) -> str:
    return f"two copies of {a.run.header.plan.baseline}" if shared else "launches of one and the same arm"


def _notes(a: Side, b: Side) -> Iterable[str]:
    if a.environment != b.environment and a.run.header.plan.engine == "mpi":
        yield "engine mpi runs ranks on the CPU: whatever the outcome, it says nothing about CUDA"
