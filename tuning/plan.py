"""What a run will measure, in which launches and in which order: fixed, and stored, before the first measurement."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lanewise.errors import InputError
from tuning.candidates import CANDIDATES, Candidate
from tuning.trial import items, mapping, typed
from tuning.workload import Message, Workload, parse_workload, short

BENCHMARKS = ("allreduce",)
MODES = ("graph", "eager")
WORKING_SETS = ("warm", "cold")
MARGINS: Mapping[str, float] = {"mpi": 0.10, "cuda": 0.05}
"""Equivalence margin per engine: differences within it are "same". Fixed beforehand and stored in the run."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,299}", re.ASCII)
_IMAGE = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What needs launches of its own: a toolchain's software, here or in an image.

    Attributes:
        name: the toolchain's or image's identifier.
        python: interpreter that runs the worker; of an image, its path there.
        variables: environment variables set for its launches.
        image: identifier ("sha256:...") of the container image that launches run in; "" for this machine itself.
    """

    name: str
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a candidate is measured on: a message, called in a mode, on a working set."""

    message: Message
    mode: str = "eager"
    working_set: str = "warm"

    @property
    def key(self) -> tuple[str, str, str]:
        """As trials and the worker's protocol name it."""
        return self.message.name, self.mode, self.working_set


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One candidate in a launch; copy 1 is the baseline's second copy, whose ratio to copy 0 is the noise floor."""

    candidate: Candidate
    copy: int = 0

    @property
    def key(self) -> str:
        """How the worker's protocol names it."""
        return f"{self.candidate.name}#{self.copy}"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One process start: every arm that can share it.

    Attributes:
        environment: where it runs.
        arms: what it holds.
        process_environment: variables that its arms need from process start.
        repetition: which repetition of the schedule it belongs to.
        group: number of its group of candidates within the environment.
        seed: of its data and its order of visits.
    """

    environment: Environment
    arms: tuple[Arm, ...]
    process_environment: Mapping[str, str]
    repetition: int
    group: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole run.

    Attributes:
        benchmark: "allreduce".
        engine: what runs it.
        ranks: processes in a launch.
        workload: what is measured.
        engine_options: what the engine's worker is told beside this, e.g. cuda's "shared_gpu".
        modes: how calls are made: "eager" from the host, "graph" captured into one CUDA graph.
        working_sets: "warm": one pair of buffers, "cold": more of them than the GPU's L2 cache holds.
        environments: toolchains, each in launches of its own.
        candidates: what is tried in each environment.
        baseline: the candidate that the others are held against.
        launches: repetitions of each launch; the unit of the statistics.
        rounds: random orders in which a launch visits its arms.
        samples: samples of each visit.
        margin: equivalence margin, as a fraction.
        seed: of everything random.
        timeout: seconds without a sign of life after which the watchdog ends a launch.
    """

    benchmark: str = "allreduce"
    engine: str
    ranks: int
    workload: Workload
    engine_options: Mapping[str, bool | str] = field(default_factory=dict)
    modes: tuple[str, ...] = ("eager",)
    working_sets: tuple[str, ...] = ("warm",)
    environments: tuple[Environment, ...]
    candidates: tuple[Candidate, ...]
    baseline: str
    launches: int
    rounds: int
    samples: int
    margin: float
    seed: int
    timeout: float

    @property
    def identity(self) -> str:
        """Hash of the whole plan, by which a run file's launches show that its header was not changed since."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        # As run files store text: bytes of an environment variable that are no UTF-8 do not survive JSON.
        return hashlib.sha256(re.sub("[\ud800-\udfff]", "\ufffd", text).encode()).hexdigest()[:16]

    @property
    def cases(self) -> tuple[Case, ...]:
        """What each candidate is measured on."""
        return tuple(
            Case(message=message, mode=mode, working_set=working_set)
            for mode in self.modes
            for working_set in self.working_sets
            for message in self.workload.messages
        )

    @property
    def slices(self) -> tuple[tuple[Case, ...], ...]:
        """The cases of each mode and working set: what may be put together into one mean, since only sizes differ."""
        kinds = dict.fromkeys((case.mode, case.working_set) for case in self.cases)
        return tuple(tuple(c for c in self.cases if (c.mode, c.working_set) == kind) for kind in kinds)

    def kind(self, cases: tuple[Case, ...]) -> str:
        """What tells a slice from the run's others, e.g. "graph, warm"; "" where there is only one."""
        more = [(cases[0].mode, self.modes), (cases[0].working_set, self.working_sets)]
        return ", ".join(value for value, values in more if len(values) > 1)

    def launch_label(self, launch: Launch) -> str:
        """A launch's name for people: environment, repetition, and its candidates where groups differ."""
        several = len(self._groups()) > 1
        names = ", ".join(dict.fromkeys(arm.candidate.name for arm in launch.arms)) if several else ""
        return f"{launch.environment.name} launch {launch.repetition + 1}" + (f" ({names})" if names else "")

    def schedule(self) -> tuple[Launch, ...]:
        """Every launch in order: all groups forwards, then backwards, and so on (A B B A for two).

        So the launches of two groups have the same mean position in time and a linear drift cancels; the i-th launches
        of both are neighbours and compare as a pair.
        """
        groups = [(env, number, group) for env in self.environments for number, group in enumerate(self._groups())]
        seeds = random.Random(self.seed)  # noqa: S311 - not for secrets
        launches = []
        for repetition in range(self.launches):
            for env, number, group in groups if repetition % 2 == 0 else reversed(groups):
                arms = tuple(
                    Arm(candidate=candidate, copy=copy)
                    for candidate in group
                    for copy in range(2 if candidate.name == self.baseline else 1)
                )
                launches.append(
                    Launch(
                        environment=env,
                        arms=arms,
                        process_environment=group[0].process_environment,
                        repetition=repetition,
                        group=number,
                        seed=seeds.randrange(1 << 31),
                    )
                )
        return tuple(launches)

    def _groups(self) -> list[tuple[Candidate, ...]]:
        """Candidates that can share a launch: those that need the same variables from process start."""
        groups: dict[tuple[tuple[str, str], ...], list[Candidate]] = {}
        for candidate in self.candidates:
            groups.setdefault(tuple(sorted(candidate.process_environment.items())), []).append(candidate)
        return [tuple(group) for group in groups.values()]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a run file's header."""
        document = fields_of(self)
        document["workload"] = self.workload.to_dict()
        document["environments"] = [_environment_fields(env) for env in self.environments]
        document["candidates"] = [fields_of(candidate) for candidate in self.candidates]
        return document


def fields_of(value: Environment | Candidate | Plan) -> dict[str, Any]:
    """The value's fields with mappings as plain dictionaries, as JSON wants them."""
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in fields.items()}


def _environment_fields(environment: Environment) -> dict[str, Any]:
    fields = fields_of(environment)
    if not environment.image:
        del fields["image"]  # as in run files from before there were images: their plans keep their identity
    return fields


def parse_plan(document: object) -> Plan:
    """A plan from a run file's header, whatever JSON value stands there.

    Raises:
        ValueError, KeyError, TypeError, InputError: it is not a plan; the message says what is wrong.
    """
    fields = dict(mapping(document))
    fields["workload"] = parse_workload(fields["workload"], where="in the run file")
    fields["modes"], fields["working_sets"] = items(fields["modes"]), items(fields["working_sets"])
    fields["environments"] = tuple(typed(Environment(**mapping(env))) for env in items(fields["environments"]))
    fields["candidates"] = tuple(typed(Candidate(**mapping(entry))) for entry in items(fields["candidates"]))
    plan = typed(Plan(**fields))
    validate(plan)
    return plan


LIMITS: Mapping[str, tuple[int, int]] = {
    "ranks": (2, 1024),
    "launches": (1, 1000),
    "rounds": (1, 1000),
    "samples": (1, 10_000),
    "seed": (0, 2**63 - 1),
}


def validate(plan: Plan) -> None:
    """Refuse values that cannot be meant.

    Raises:
        InputError: a value is out of its range or unknown, or names repeat.
    """
    for option, (least, most) in LIMITS.items():
        if not least <= (value := getattr(plan, option)) <= most:
            raise InputError(
                f"--{option} is {short(value)}", expected=f"a whole number from {least} to {most:,}", todo="correct it"
            )
    if not 0.001 <= plan.margin <= 1:
        raise InputError(f"--margin is {plan.margin:.1%}", expected="from 0.1 to 100 per cent", todo="correct it")
    if not 1 <= plan.timeout <= 86_400:
        raise InputError(f"--timeout is {plan.timeout}", expected="seconds from 1 to 86,400", todo="correct it")
    environments, candidates = [env.name for env in plan.environments], [entry.name for entry in plan.candidates]
    _require_names("environment", environments)
    _require_names("candidate", candidates)
    if clash := set(environments) & set(candidates):
        raise InputError(
            f"{', '.join(sorted(clash))} is an environment and a candidate",
            expected="names that differ",
            todo="rename it",
        )
    if wrong := [env.image for env in plan.environments if env.image and not _IMAGE.fullmatch(env.image)]:
        raise InputError(
            f"image {short(wrong[0])} is no identifier", expected="sha256: and 64 digits", todo="name it with --image"
        )
    _require_some("benchmark is", (plan.benchmark,), BENCHMARKS)
    _require_some("engine is", (plan.engine,), tuple(CANDIDATES))
    _require_some("baseline is", (plan.baseline,), tuple(candidates))
    _require_some("modes are", plan.modes, MODES)
    _require_some("working sets are", plan.working_sets, WORKING_SETS)


def _require_names(what: str, names: list[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"{what}s are {', '.join(names) or 'none'}", expected=f"at least one {what}, each once", todo="correct it"
        )
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise InputError(
            f"{what} {short(wrong[0])} is no name", expected="letters, digits, '.', '_' and '-'", todo="rename it"
        )


def _require_some(what: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not values or len(set(values)) != len(values) or not set(values) <= set(known):
        raise InputError(
            f"{what} {', '.join(map(short, values)) or 'none'}",
            expected=f"some of {', '.join(known)}" if len(known) > 1 else known[0],
            todo="correct it",
        )
