"""What a node of GPUs would give, said on a machine that has none: for a reference node, toolchain by toolchain.

Which approaches can start is preflight's word, what an allreduce would cost is `predict`'s, what speculation would give
follows from both and one published server. Everything here is predicted, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tuning.model_parts import ModelParts
from tuning.predict import Predicted, Prediction, predict
from tuning.predict_inputs import Preflight, read_preflight
from tuning.repair_worth import TAU
from tuning.speculation_calibration import (
    Published,
    PublishedModel,
    expert_floor_ms,
    fitted_spans,
    more_experts,
    published,
)
from tuning.speculation_model import Span, rate
from tuning.speculation_request import DRAFT_MARGIN
from tuning.topology_read import read_topology
from tuning.workload import Workload, load_workload

REFERENCE = "8gpu-2switch-1socket"
"""The node that a campaign speaks of where none is named."""
DEFAULT_FAMILY = "nccl-ring-ll"
"""What NCCL runs on such nodes at these sizes unless it is told otherwise (docs/nccl-plan.md)."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What drafting `k` tokens a step would give one request, in tokens per second.

    Attributes:
        k: drafts a step.
        tau: the accept length that is assumed.
        without: the rate without speculation.
        speculating: the rate with it.
        break_even: the accept length from which speculation is faster.
    """

    k: int
    tau: Span
    without: Span
    speculating: Span
    break_even: Span

    @property
    def verdict(self) -> str:
        """Whether it pays at the assumed accept lengths."""
        if self.break_even.high < self.tau.low:
            return "faster"
        return "slower" if self.break_even.low > self.tau.high else "open"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A family that starts on a toolchain and deserves a look.

    Attributes:
        toolchain: where.
        predicted: the family, with its estimates.
        why: what makes it one of the few that are shown.
        speculation: what it would give; None where no published server is like it.
    """

    toolchain: str
    predicted: Predicted
    why: str
    speculation: Speculation | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An approach of which preflight says something else on another toolchain.

    Attributes:
        name: for people.
        verdicts: by toolchain.
        why: by toolchain.
    """

    name: str
    verdicts: Mapping[str, str]
    why: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is to be expected of a node.

    Attributes:
        workload: whose messages.
        predictions: by toolchain; they differ in what can start.
        unread: toolchains of which preflight's result is not there, so that nobody knows what starts.
        choices: a few families of each of the others.
        differences: approaches that do not end alike on all of the others.
        server: what speculation was computed from; "" where it was not.
    """

    workload: Workload
    predictions: Mapping[str, Prediction]
    unread: tuple[str, ...]
    choices: tuple[Choice, ...]
    differences: tuple[Difference, ...]
    server: str


def outlook(reference: str, toolchains: Sequence[str], runs: Path, workload: str = "kimi-k2") -> Outlook:
    """What the node would give on each toolchain.

    Args:
        reference: a reference node's name, or a file that tells a topology.
        toolchains: at least one.
        runs: the folder with what preflight found: TOOLCHAIN/preflight.json.
        workload: a built-in workload's name, or a path.

    Raises:
        InputError: a name, a topology or a file is not what it should be.
    """
    node, asked = read_topology(reference), load_workload(workload)
    sizes = tuple(message.bytes for message in asked.messages)
    found = {name: read_preflight(runs, name) for name in toolchains}
    read = {name: preflight for name, preflight in found.items() if preflight}
    predictions = {name: predict(node, sizes=sizes, preflight=preflight) for name, preflight in found.items()}
    server = _server(asked)
    choices = tuple(choice for name in read for choice in _choices(name, predictions[name], asked, server))
    return Outlook(
        workload=asked,
        predictions=predictions,
        unread=tuple(name for name in found if name not in read),
        choices=choices,
        differences=tuple(_differences(read)),
        server=f"{server.what}; {published().host}" if server and any(c.speculation for c in choices) else "",
    )


def pass_ms(predicted: Predicted, workload: Workload) -> Mapping[str, Span]:
    """By message, what the allreduces of one pass take: ms, from the lower to the upper bound."""
    by_size = {estimate.size: Span(low=estimate.low, high=estimate.high) for estimate in predicted.estimates}
    return {message.name: by_size[message.bytes].times(message.calls / 1000) for message in workload.messages}


def _choices(
    toolchain: str, prediction: Prediction, workload: Workload, server: PublishedModel | None
) -> Iterator[Choice]:
    """NCCL's own choice, the fastest that was validated, and the fastest of all; each family once."""
    starting = [predicted for predicted in prediction.families if predicted.start.able]
    ranked = sorted(starting, key=lambda predicted: _total_us(predicted, workload))
    wanted = (
        ("NCCL's default", [p for p in starting if p.family.name == DEFAULT_FAMILY]),
        ("least predicted time, validated families", [p for p in ranked if p.validated]),
        ("least predicted time of all", ranked),
    )
    reasons: dict[str, list[str]] = {}
    for reason, among in wanted:
        if among:
            reasons.setdefault(among[0].family.name, []).append(reason)
    for predicted in (p for p in starting if p.family.name in reasons):
        speculation = _speculation(predicted, workload, server, len(prediction.gpus)) if server else None
        why = "; ".join(reasons[predicted.family.name])
        yield Choice(toolchain=toolchain, predicted=predicted, why=why, speculation=speculation)


def _total_us(predicted: Predicted, workload: Workload) -> float:
    likely = {estimate.size: estimate.us for estimate in predicted.estimates}
    return sum(message.calls * likely[message.bytes] for message in workload.messages)


def _server(workload: Workload) -> PublishedModel | None:
    """The published server of the model that the workload is named after, if its passes have the same allreduces."""
    server, first = published().models.get(workload.name), workload.messages[0]
    return server if server and (server.calls, server.row_bytes) == (first.calls, first.bytes) else None


def _speculation(predicted: Predicted, workload: Workload, server: PublishedModel, gpus: int) -> Speculation | None:
    """Step times as docs/speculation-model.md has them: T_b = N a(b) + C(1), T_s = N a((k+1) b) + C(k+1) + D.

    C(1) is what the published server's baseline leaves beside its allreduces. Both latencies are taken at their lower,
    or both at their upper bounds: what makes a host slow makes both slow.
    """
    host, last = published(), workload.messages[-1]
    rows, rest = divmod(last.bytes, server.row_bytes)
    if gpus != host.gpus or rest or rows < 2 or last.calls != server.calls:
        return None
    k = rows - 1
    compute = 1000 / server.batch[1] - server.calls * host.curve.at(server.row_bytes) / 1000
    more = _more_ms(server.parts, host, k)
    passes = pass_ms(predicted, workload)
    one, many = passes[workload.messages[0].name], passes[last.name]
    steps = [
        (without + compute, with_drafts + compute + added)
        for (without, with_drafts), added in product(
            ((one.low, many.low), (one.high, many.high)), (more.low, more.high)
        )
    ]
    rates = [rate(1, tau, step) for _, step in steps for tau in (TAU.low, TAU.high)]
    return Speculation(
        k=k,
        tau=TAU,
        without=_around([rate(1, 1, step) for step, _ in steps]),
        speculating=_around(rates),
        break_even=_around([step / baseline for baseline, step in steps]),
    )


def _more_ms(parts: ModelParts, host: Published, k: int) -> Span:
    """What k more rows add beside allreduces, and drafting them: as published hosts need, drafting within a margin."""
    efficiency, draft = fitted_spans()
    experts = expert_floor_ms(parts, host.gpu, host.gpus) * more_experts(parts, k)
    return Span(
        low=experts / efficiency.high + k * draft.low / DRAFT_MARGIN,
        high=experts / efficiency.low + k * draft.high * DRAFT_MARGIN,
    )


def _around(values: Sequence[float]) -> Span:
    return Span(low=min(values), high=max(values))


def _differences(read: Mapping[str, Preflight]) -> Iterator[Difference]:
    identifiers = dict.fromkeys(key for preflight in read.values() for key in preflight.approaches)
    for identifier in identifiers:
        told = {name: p.approaches[identifier] for name, p in read.items() if identifier in p.approaches}
        verdicts = {name: approach.verdict for name, approach in told.items()}
        if len(set(verdicts.values())) > 1:
            yield Difference(
                name=next(iter(told.values())).name,
                verdicts=verdicts,
                why={name: approach.why for name, approach in told.items()},
            )
