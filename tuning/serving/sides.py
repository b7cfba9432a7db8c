"""Finding the arms of a run of servers by what a person calls them, and what was measured of each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lanewise.errors import InputError
from tuning.arms import find_arms, middle
from tuning.serving.records import Request, ServerStart, ServingTrial
from tuning.serving.request import BASELINE
from tuning.serving.runfile import ServingRun
from tuning.serving.spec import ServerSpec
from tuning.workload import short


@dataclass(frozen=True, kw_only=True)
class ServingSide:
    """One of the two that are compared: an arm in an environment of a run."""

    environment: str
    arm: str
    run: ServingRun

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.environment}:{self.arm}"

    @property
    def spec(self) -> ServerSpec:
        """What its servers were asked to be."""
        return self.run.header.plan.arm(self.arm).spec

    @property
    def backend(self) -> str:
        """Name of the allreduce backend, as its arms begin with it."""
        return self.arm.partition("/")[0]

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Numbers of requests at once that it is measured at, rising."""
        return tuple(sorted(self.run.header.plan.arm(self.arm).concurrencies))

    @property
    def rows(self) -> int:
        """Rows of a pass for each request: draft tokens of a verify pass, 1 without speculation."""
        return self.spec.speculation.draft_tokens if self.spec.speculation else 1

    @property
    def baseline(self) -> ServingSide | None:
        """The arm without speculation of its backend and environment; None where the plan has none."""
        return self.sibling(BASELINE)

    def sibling(self, kind: str) -> ServingSide | None:
        """Another arm of its backend and environment, such as "probe"; None where the plan has none."""
        name = f"{self.backend}/{kind}"
        known = {arm.name for arm in self.run.header.plan.arms}
        return replace(self, arm=name) if name in known else None

    def trials(self, concurrency: int) -> dict[int, ServingTrial]:
        """By repetition, rising, its trials with numbers; of a start that was repeated whole, the later one."""
        key = (self.environment, self.arm, concurrency)
        found = {
            trial.repetition: trial
            for trial in self.run.trials
            if trial.ok and (trial.environment, trial.arm, trial.concurrency) == key
        }
        return dict(sorted(found.items()))

    def requests(self, concurrency: int) -> list[Request]:
        """All its requests that count, over starts and passes."""
        trials = self.trials(concurrency).values()
        return [request for trial in trials for done in trial.passes for request in done.requests]

    @property
    def starts(self) -> list[ServerStart]:
        """Its server starts with numbers, by repetition."""
        launches = {
            trial.repetition: trial.launch for number in self.concurrencies for trial in self.trials(number).values()
        }
        found = (self.run.starts.get(launches[repetition]) for repetition in sorted(launches))
        return [start for start in found if start is not None]


def known_names(run: ServingRun) -> list[str]:
    """What can be named on a command line: environments, then arms."""
    plan = run.header.plan
    return [environment.name for environment in plan.environments] + [arm.name for arm in plan.arms]


def find_sides(run: ServingRun, name: str) -> list[ServingSide]:
    """The sides that a name stands for: an environment (its baseline), an arm (in every environment), or
    `environment:arm`. An arm may be named without its backend where the run has one only, and with "/" for "-".

    Raises:
        InputError: the run holds no such name.
    """
    plan = run.header.plan
    environments, arms = [env.name for env in plan.environments], [arm.name for arm in plan.arms]
    found = find_arms(name, environments, arms, plan.baseline)
    found = found or find_arms(_in_full(name, arms), environments, arms, plan.baseline)
    if found:
        return [ServingSide(environment=environment, arm=arm, run=run) for environment, arm in found]
    raise InputError(
        f"{run.path} holds nothing called {short(name)}",
        expected=f"one of {', '.join(known_names(run))}, or environment:arm",
        todo="name one of these, or another run with --run FILE",
    )


def _in_full(name: str, arms: Sequence[str]) -> str:
    """An arm's own name in place of what stands for it alone; the same name where nothing does, or several do."""
    environment, colon, asked = name.rpartition(":")
    one_backend = len({arm.partition("/")[0] for arm in arms}) == 1
    names = {arm: (arm, arm.partition("/")[2]) if one_backend else (arm,) for arm in arms}
    meant = [arm for arm in arms if asked.replace("/", "-") in [name.replace("/", "-") for name in names[arm]]]
    return f"{environment}{colon}{meant[0]}" if len(meant) == 1 else name


def without_numbers(run: ServingRun) -> list[ServingTrial]:
    """Trials without numbers; not those whose start was cut short, and has numbers since it was repeated."""
    found = {_key(trial) for trial in run.trials if trial.ok}
    return [trial for trial in run.trials if not trial.ok and _key(trial) not in found]


def _key(trial: ServingTrial) -> tuple[str, str, int, int]:
    return trial.environment, trial.arm, trial.concurrency, trial.repetition


def step_ms(trial: ServingTrial) -> float:
    """A start's one number: the median of its passes' step times, since passes within a start are not independent."""
    return statistics.median(done.step_ms for done in trial.passes)


def tokens_per_second(trial: ServingTrial) -> float:
    """The same of the speed of all requests together."""
    return statistics.median(done.tokens_per_second for done in trial.passes)


def ttft_ms(trial: ServingTrial) -> float | None:
    """The same of the time to the first token, over requests; None where no reply was a stream."""
    return known_middle(request.ttft_ms for done in trial.passes for request in done.requests)


def tpot_ms(trial: ServingTrial) -> float | None:
    """The same of the time an output token after the first."""
    return known_middle(request.tpot_ms for done in trial.passes for request in done.requests)


def itl_p99_ms(trial: ServingTrial) -> float | None:
    """The same of the 99th percentile of the time between chunks; None in files of before."""
    return known_middle(done.itl_p99_ms for done in trial.passes)


def known_middle(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None where none is."""
    return middle([value for value in values if value is not None])


def accept_length(trial: ServingTrial) -> float:
    """The same of the tokens that a step gives a request."""
    return statistics.median(done.accept_length for done in trial.passes)
