"""What a run of servers will measure, in which starts and in which order: fixed, and stored, before the first one."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lanewise.errors import InputError
from tuning.plan import Environment, fields_of
from tuning.serving.spec import ServerSpec, Speculation
from tuning.trial import items, mapping, typed
from tuning.workload import short

BENCHMARK = "speculative"
MARGIN = 0.02
"""Equivalence margin where none is given: step times within it are "same" (starts of one server lie within 0.3 %)."""
PROBE_ROWS = (1, 2, 3, 4)
"""Requests that the probe decodes together, without speculation: rows of a pass, as a verify pass has them."""
MOST_CONCURRENCY = 64
MOST_REQUESTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,299}", re.ASCII)
_LIMITS: Mapping[str, tuple[int, int]] = {
    "output_tokens": (8, 32_768),
    "starts": (1, 100),
    "passes": (1, 100),
    "together": (1, 16),
    "seed": (0, 2**63 - 1),
}
_SIZES: Mapping[str, tuple[int, int]] = {
    "tensor_parallel": (1, 64),
    "max_running": (1, 100_000),
    "context_length": (0, 2**40),
    "max_total_tokens": (0, 2**40),
}


@dataclass(frozen=True, kw_only=True)
class ServingArm:
    """One kind of server, and the loads that it is measured at.

    Attributes:
        name: "ALLREDUCE/baseline", "ALLREDUCE/2-1-3" (steps, topk, draft tokens; with "@2.4" behind where an accept
            length of its own is simulated) or "ALLREDUCE/probe".
        spec: the server.
        concurrencies: numbers of requests that decode together, in the order of measuring.
    """

    name: str
    spec: ServerSpec
    concurrencies: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptChoice:
    """Which prompts a pass holds.

    Attributes:
        name: of the prompt set, as its reader takes it.
        identity: hash of the set's content.
        requests: how many of them a pass sends at least; the number is made up to whole waves of a concurrency.
    """

    name: str
    identity: str
    requests: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """One server start of the schedule: the unit of repetition."""

    environment: Environment
    arm: ServingArm
    repetition: int

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.environment.name} {self.arm.name} start {self.repetition + 1}"


@dataclass(frozen=True, kw_only=True)
class ServingPlan:
    """A whole run.

    Attributes:
        benchmark: "speculative".
        environments: toolchains, each in server starts of its own.
        arms: what is started in each environment.
        baseline: name of the arm that the others are held against.
        prompts: what is sent.
        output_tokens: tokens that each request generates.
        starts: starts of each arm in each environment; the unit of the statistics.
        passes: passes over the prompts at each concurrency of a start.
        together: servers that start at once and share the GPUs; each is measured while the others are frozen.
        margin: equivalence margin, as a fraction.
        seed: of the order, and of generated prompts.
        timeout: seconds without a sign of life after which a server is given up.
    """

    benchmark: str = BENCHMARK
    environments: tuple[Environment, ...]
    arms: tuple[ServingArm, ...]
    baseline: str
    prompts: PromptChoice
    output_tokens: int
    starts: int
    passes: int
    together: int
    margin: float
    seed: int
    timeout: float

    @property
    def identity(self) -> str:
        """Hash of the whole plan, by which a run file's starts show that its header was not changed since."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(re.sub("[\ud800-\udfff]", "\ufffd", text).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a run file's header."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["environments"] = [fields_of(environment) for environment in self.environments]
        fields["arms"] = [asdict(arm) for arm in self.arms]
        fields["prompts"] = asdict(self.prompts)
        return fields

    def arm(self, name: str) -> ServingArm:
        """The arm of this name; KeyError where there is none."""
        return {arm.name: arm for arm in self.arms}[name]

    def schedule(self) -> tuple[tuple[Start, ...], ...]:
        """Every start, in groups of those that start at once.

        Repetitions go forwards, then backwards, and so on (A B B A), so that a linear drift cancels; each pair of them
        begins at an arm that the seed draws, so that no arm is always the first. No group spans two repetitions.
        """
        order = [(environment, arm) for environment in self.environments for arm in self.arms]
        draw = random.Random(self.seed)  # noqa: S311 - not for secrets
        groups: list[tuple[Start, ...]] = []
        for repetition in range(self.starts):
            if repetition % 2 == 0:
                begin = draw.randrange(len(order))
                order = order[begin:] + order[:begin]
            turn = order if repetition % 2 == 0 else order[::-1]
            starts = [Start(environment=environment, arm=arm, repetition=repetition) for environment, arm in turn]
            groups += _chunks(starts, self.together)
        return tuple(groups)


def _chunks(starts: list[Start], size: int) -> Iterator[tuple[Start, ...]]:
    for begin in range(0, len(starts), size):
        yield tuple(starts[begin : begin + size])


def parse_serving_plan(document: object) -> ServingPlan:
    """A plan from a run file's header, whatever JSON value stands there.

    Raises:
        ValueError, KeyError, TypeError, InputError: it is not a plan; the message says what is wrong.
    """
    fields = dict(mapping(document))
    fields["environments"] = tuple(typed(Environment(**mapping(env))) for env in items(fields["environments"]))
    fields["arms"] = tuple(_arm(entry) for entry in items(fields["arms"]))
    fields["prompts"] = typed(PromptChoice(**mapping(fields["prompts"])))
    plan = typed(ServingPlan(**fields))
    validate(plan)
    return plan


def _arm(entry: object) -> ServingArm:
    fields = dict(mapping(entry))
    spec = dict(mapping(fields["spec"]))
    if spec["speculation"] is not None:
        spec["speculation"] = typed(Speculation(**mapping(spec["speculation"])))
    fields["spec"] = typed(ServerSpec(**spec))
    fields["concurrencies"] = items(fields["concurrencies"])
    return typed(ServingArm(**fields))


def validate(plan: ServingPlan) -> None:
    """Refuse values that cannot be meant. What a release can do with a server's spec is not looked at here.

    Raises:
        InputError: a value is out of its range or unknown, or names repeat.
    """
    if plan.benchmark != BENCHMARK:
        raise InputError(f"benchmark is {short(plan.benchmark)}", expected=BENCHMARK, todo="correct it")
    for option, (least, most) in _LIMITS.items():
        _require_between(f"--{option.replace('_', '-')}", getattr(plan, option), least, most)
    _require_between("--requests", plan.prompts.requests, 1, MOST_REQUESTS)
    if not 0.001 <= plan.margin <= 1:
        raise InputError(f"--margin is {plan.margin:.1%}", expected="from 0.1 to 100 per cent", todo="correct it")
    if not 1 <= plan.timeout <= 86_400:
        raise InputError(f"--timeout is {short(plan.timeout)}", expected="seconds from 1 to 86,400", todo="correct it")
    _require_names("environment", [environment.name for environment in plan.environments])
    _require_names("arm", names := [arm.name for arm in plan.arms])
    if plan.baseline not in names:
        raise InputError(
            f"baseline is {short(plan.baseline)}", expected=f"one of {', '.join(names)}", todo="correct it"
        )
    for arm in plan.arms:
        _require_concurrencies(arm)
        if not arm.spec.can_accept:
            raise InputError(
                f"arm {arm.name} simulates an accept length of {short(arm.spec.accept_length)}",
                expected="with speculation, from 1 to its steps + 1",
                todo="correct it",
            )
        _require_sizes(arm.spec)


def _require_sizes(spec: ServerSpec) -> None:
    for option, (least, most) in _SIZES.items():
        _require_between(f"--{option.replace('_', '-')}", getattr(spec, option), least, most)
    if not 0 <= spec.memory_fraction < 1:
        raise InputError(f"--memory-fraction is {spec.memory_fraction:g}", expected="below 1", todo="correct it")


def _require_concurrencies(arm: ServingArm) -> None:
    for concurrency in arm.concurrencies:
        _require_between(f"concurrency of {arm.name}", concurrency, 1, MOST_CONCURRENCY)
    if not arm.concurrencies or len(set(arm.concurrencies)) != len(arm.concurrencies):
        raise InputError(
            f"concurrencies of {arm.name} are {arm.concurrencies}",
            expected="at least one, each once",
            todo="correct it",
        )
    if (most := max(arm.concurrencies)) > arm.spec.max_running:
        raise InputError(
            f"arm {arm.name} is to decode {most} requests together, and --max-running is {arm.spec.max_running}",
            expected="as many running requests as the highest concurrency",
            todo=f"say --max-running {most}, or lower --concurrency",
        )


def _require_between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(
            f"{what} is {short(value)}", expected=f"a whole number from {least} to {most:,}", todo="correct it"
        )


def _require_names(what: str, names: list[str]) -> None:
    if not names or len(set(names)) != len(names) or not all(map(_NAME.fullmatch, names)):
        raise InputError(
            f"{what}s are {', '.join(map(short, names)) or 'none'}",
            expected=f"at least one {what}, each once, of letters, digits, '.', '_', '/', '@' and '-'",
            todo="correct it",
        )
