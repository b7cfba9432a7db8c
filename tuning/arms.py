"""Finding the arms of a run by what a person calls them, and their trials."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.plan import Case
from tuning.protocol import CaseKey
from tuning.runfile import Run
from tuning.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two that are compared: a candidate in an environment of a run."""

    environment: str
    candidate: str
    run: Run

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.environment}:{self.candidate}"


def known_names(run: Run) -> list[str]:
    """What can be named on a command line: environments, then candidates."""
    plan = run.header.plan
    return [env.name for env in plan.environments] + [candidate.name for candidate in plan.candidates]


def find_sides(run: Run, name: str) -> list[Side]:
    """The sides that a name stands for: an environment (its baseline), a candidate (in every environment), or
    `environment:candidate`.

    Raises:
        InputError: the run holds no such name.
    """
    plan = run.header.plan
    environments = [env.name for env in plan.environments]
    candidates = [candidate.name for candidate in plan.candidates]
    if found := find_arms(name, environments, candidates, plan.baseline):
        return [Side(environment=environment, candidate=candidate, run=run) for environment, candidate in found]
    raise InputError(
        f"{run.path} holds nothing called {name!r}",
        expected=f"one of {', '.join(known_names(run))}, or environment:candidate",
        todo="name one of these, or another run with --run FILE",
    )


def find_arms(name: str, environments: Sequence[str], arms: Sequence[str], baseline: str) -> list[tuple[str, str]]:
    """Environment and arm of each that a name stands for: `environment:arm`, an environment (its baseline), or an arm
    (in every environment); none where it is none of these."""
    environment, colon, arm = name.partition(":")
    if colon and environment in environments and arm in arms:
        return [(environment, arm)]
    if name in environments:
        return [(name, baseline)]
    return [(environment, name) for environment in environments] if name in arms else []


def one_against_several(names: Sequence[str], labels: Sequence[Sequence[str]], what: str) -> InputError:
    """The error of two names of which one stands for one arm, and the other for one in every environment.

    Args:
        names: the two.
        labels: what each stands for, as `environment:arm`.
        what: they are called, with its article.
    """
    one, several = names if len(labels[0]) == 1 else reversed(names)
    kind = what.partition(" ")[2]
    pair = next((a, b) for a in labels[0] for b in labels[1] if a != b)
    return InputError(
        f"{one!r} is one {kind} in one environment, {several!r} {what} in every environment",
        expected=f"two {kind}s, or two environments, or environment:{kind} twice",
        todo=f"say, for example, {' '.join(pair)}",
    )


def medians(side: Side, case: CaseKey, copy: int = 0) -> dict[int, Trial]:
    """By repetition, the last trial with numbers of that side; a repetition run again after a crash counts once."""
    return {
        trial.repetition: trial
        for trial in side.run.trials
        if trial.ok
        and (trial.environment, trial.candidate, trial.case, trial.copy)
        == (side.environment, side.candidate, case, copy)
    }


def failures(run: Run) -> list[Trial]:
    """One trial for each way in which an arm failed or was skipped, in order of appearance."""
    seen: dict[tuple[str, str, str], Trial] = {}
    for trial in run.trials:
        if not trial.ok:
            seen.setdefault((trial.environment, trial.candidate, trial.reason), trial)
    return list(seen.values())


def middle(values: Sequence[float]) -> float | None:
    """Their median, or None where there are none."""
    return statistics.median(values) if values else None


def share_launches(a: Side, b: Side) -> bool:
    """Whether the two arms are measured in the same processes."""
    return a.environment == b.environment and _needs(a) == _needs(b)


def candidate_differences(a: Side, b: Side) -> list[str]:
    """Environment variables that one of the two candidates needs and the other has not, in words."""
    before, after = _needs(a), _needs(b)
    return [
        f"{name}: {before.get(name, 'not set')} / {after.get(name, 'not set')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _needs(side: Side) -> dict[str, str]:
    """The variables that a side's candidate needs from process start."""
    candidates = side.run.header.plan.candidates
    return next(dict(c.process_environment) for c in candidates if c.name == side.candidate)


def launch_jump(side: Side, cases: Iterable[Case]) -> float:
    """Largest ratio between two launches of the same arm, on any of these cases."""
    values = [[t.median for t in medians(side, case.key).values()] for case in cases]
    return max((max(v) / min(v) for v in values if v), default=1.0)
