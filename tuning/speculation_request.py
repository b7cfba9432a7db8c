"""From what a user typed, and files that were named, to what is known of a host, a model and a draft."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lanewise.errors import InputError
from tuning.arms import Side, medians, middle
from tuning.identify import Known, identify, latency_at
from tuning.memory_layout import Layout
from tuning.memory_model import ranks_of
from tuning.model_parts import Gpu, ModelParts, find_gpu, find_parts
from tuning.model_weights import Divided, weights_of_config
from tuning.runfile import Kind, Run, read_run
from tuning.speculation_calibration import expert_floor_ms, fitted_spans
from tuning.speculation_model import Span, exactly, touched_experts
from tuning.speculation_table import (
    KS,
    Acceptance,
    Touched,
    acceptance_from,
    break_even_latencies,
    repairs,
    slices,
    table,
)
from tuning.speculation_view import Prediction
from tuning.workload import MAX_MESSAGE_BYTES, short

CALLS_PER_LAYER = 2
"""As tuning/model_shape.py has it: one allreduce after attention, one after the MLP or MoE."""
ROW_ELEMENT_BYTES = 2
"""Hidden states are reduced in BF16."""
LEAST_READ_EFFICIENCY = 0.35
"""Expert weights are taken to be read at this fraction of peak bandwidth at least; published hosts: 0.44 and 0.56."""
DRAFT_MARGIN = 1.5
"""Where drafting was not measured, it is taken to lie within this factor around what published hosts need."""
REPAIR_US = (10.0, 20.0, 30.0, 50.0)
"""Allreduce latencies to compare with: 8-GPU hosts in order have 8 to 31 us at 42 KiB, without a topology file 48."""
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_SPAN = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,10})(B|KiB|MiB)?", re.ASCII)
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options as typed; empty where not given. What they mean stands with the verb."""

    model: str
    gpu: str
    gpus: int
    draft_tokens: int
    baseline: str
    with_speculation: str
    instead: Sequence[str]
    accept_length: str
    per_position: str
    allreduce: Sequence[str]
    run: str


UNASKED = Asked(
    model="kimi-k2", gpu="rtx-pro-6000", gpus=8, draft_tokens=3, baseline="", with_speculation="", instead=(),
    accept_length="", per_position="", allreduce=(), run="",
)  # fmt: skip
"""The options of a verb that are not given."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known, and what goes with it.

    Attributes:
        known: what is known.
        others: rates with speculation over other allreduces, by name.
        acceptance: carries an accept length to other numbers of drafts.
        touched: how many times one row's experts a pass reads.
        assumptions: what was assumed, each a sentence.
    """

    known: Known
    others: Mapping[str, Span]
    acceptance: Acceptance
    touched: Touched
    assumptions: tuple[str, ...]


def question(asked: Asked) -> Question:
    """What the options say.

    Raises:
        InputError: an option or a file is wrong, or too little is known to bound anything.
    """
    if not 2 <= asked.draft_tokens <= KS[-1] + 1:
        raise InputError(
            f"--draft-tokens is {asked.draft_tokens}",
            expected=f"rows of a verify pass, 2 to {KS[-1] + 1}: drafts and one",
            todo="correct it",
        )
    if not 2 <= asked.gpus <= 64:
        raise InputError(f"--gpus is {asked.gpus}", expected="a number of GPUs from 2 to 64", todo="correct it")
    if not asked.baseline:
        raise InputError(
            "--baseline is missing",
            expected="tokens per second of one request without speculation, e.g. 82-89",
            todo="measure it on the same server without speculation, and give it",
        )
    parts, gpu, k = find_parts(asked.model), find_gpu(asked.gpu), asked.draft_tokens - 1
    per_position = _positions(asked.per_position, k)
    speculating = parse_span(asked.with_speculation, "--with-speculation") if asked.with_speculation else None
    known = Known(
        calls=CALLS_PER_LAYER * parts.num_hidden_layers,
        row_bytes=parts.hidden_size * ROW_ELEMENT_BYTES,
        k=k,
        baseline=parse_span(asked.baseline, "--baseline"),
        speculating=speculating,
        tau=_tau(asked, per_position, k),
        latencies=_latencies(asked),
        floor_ms=read_floor_ms(parts, gpu, asked.gpus),
        experts_ms=_experts(parts, gpu, asked.gpus),
        growth=_touched(parts)(k + 1) - _touched(parts)(1),
        draft_ms=None if speculating else _drafting(k),
    )
    _must_be_bounded(known)
    return Question(
        known=known,
        others=_others(asked, speculating),
        acceptance=acceptance_from(known, per_position),
        touched=_touched(parts),
        assumptions=_assumptions(parts, known, asked, per_position),
    )


def predict(asked: Question) -> Prediction:
    """Answers a question.

    Raises:
        InputError: nothing explains the numbers together.
    """
    known = asked.known
    identified = identify(known)
    cut = slices(identified)
    return Prediction(
        known=known,
        others=asked.others,
        identified=identified,
        cells=table(known, cut, asked.acceptance, asked.touched),
        repairs=repairs(known, cut, REPAIR_US),
        break_even_us=break_even_latencies(known, cut),
        assumptions=asked.assumptions,
    )


def parse_span(text: str, option: str, *, most: float = 1e6) -> Span:
    """A number or a range of positive numbers, such as 54 or 82-89.

    Raises:
        InputError: it is neither, or beyond `most`.
    """
    if found := _SPAN.fullmatch(text.strip()):
        low, high = float(found[1]), float(found[2] or found[1])
        if 0 < low <= high <= most:
            return Span(low=low, high=high)
    raise InputError(
        f"{option} is {short(text)}",
        expected=f"a positive number or a range, the smaller first, up to {most:,.0f}: 54 or 82-89",
        todo="correct it",
    )


def _named(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value) or not name.isprintable() or len(name) > 60:
        raise InputError(f"{option} is {short(text)}", expected=f"NAME=VALUE, e.g. {example}", todo="correct it")
    return name, value


def _others(asked: Asked, speculating: Span | None) -> dict[str, Span]:
    named = [_named(text, "--instead", "custom=38") for text in asked.instead]
    if named and speculating is None:
        raise InputError(
            "--instead is given without --with-speculation",
            expected="the rate with speculation that it is compared with",
            todo="give both, or neither",
        )
    return {name: parse_span(value, "--instead") for name, value in named}


def _positions(text: str, k: int) -> tuple[float, ...]:
    if not text:
        return ()
    try:
        values = tuple(float(word) for word in text.split(",")) if len(text) < 200 else ()
    except ValueError:
        values = ()
    falling = all(1 >= a >= b >= 0 for a, b in zip((1.0, *values), values, strict=False))
    if len(values) != k or not falling:
        raise InputError(
            f"--per-position is {short(text)}",
            expected=f"{k} falling numbers from 1 to 0 for {k} drafts, as vLLM prints them, e.g. 0.849,0.574,0.319",
            todo="correct it, or --draft-tokens",
        )
    return values


def _tau(asked: Asked, per_position: Sequence[float], k: int) -> Span | None:
    if asked.accept_length and per_position:
        raise InputError(
            "--accept-length and --per-position are both given", expected="one of them", todo="leave one out"
        )
    if per_position:
        return exactly(1 + sum(per_position))
    if not asked.accept_length:
        return None
    tau = parse_span(asked.accept_length, "--accept-length")
    if not 1 <= tau.low <= tau.high <= k + 1:
        raise InputError(
            f"--accept-length is {asked.accept_length}",
            expected=f"1 to {k + 1}: the target's token, and at most {k} drafts",
            todo="correct it, or --draft-tokens",
        )
    return tau


def _latencies(asked: Asked) -> dict[int, Span]:
    measured: dict[int, Span] = _measured(read_run(Path(asked.run))) if asked.run else {}
    found: dict[int, Span] = {}
    for text in asked.allreduce:
        size, us = _named(text, "--allreduce", "43008=200-250")
        match = _SIZE.fullmatch(size)
        value = int(match[1]) * _UNITS[match[2]] if match else 0
        if not 1 <= value <= MAX_MESSAGE_BYTES or value in found:
            raise InputError(
                f"--allreduce is {short(text)}",
                expected=f"message sizes of 1 to {MAX_MESSAGE_BYTES:,} bytes, each once, as 43008 or 42KiB, then =US",
                todo="correct it",
            )
        found[value] = parse_span(us, "--allreduce", most=1e7)
    return {**measured, **found}


def _measured(run: Run) -> dict[int, Span]:
    """Median latencies of a run's baseline, in a graph and with warm buffers where the run has those."""
    plan = run.header.plan
    if plan.engine != "cuda" or run.header.kind is Kind.MEANINGLESS:
        raise InputError(
            f"run file {run.path} holds {run.header.kind} times of engine {plan.engine}",
            expected="times of GPUs, each rank on its own",
            todo="measure there: ./inv bench-allreduce --engine cuda --modes graph",
        )
    side = Side(environment=plan.environments[0].name, candidate=plan.baseline, run=run)
    cases = max(plan.slices, key=lambda cases: (cases[0].mode == "graph", cases[0].working_set == "warm"))
    values = {case.message.bytes: middle([t.median for t in medians(side, case.key).values()]) for case in cases}
    return {size: exactly(value) for size, value in values.items() if value is not None}


def read_floor_ms(parts: ModelParts, gpu: Gpu, gpus: int) -> float:
    """Time in which the weights that one row needs can be read from memory, on the GPU that has most of them, ms."""
    layout = Layout(gpus=gpus)
    read = sum(
        group.bytes / ranks_of(group.divided, layout)
        for group in weights_of_config(parts)
        if group.divided not in (Divided.EXPERTS, Divided.EMBEDDING)
    )
    return read / (gpu.gb_per_s * 1e6) + expert_floor_ms(parts, gpu, gpus)


def _experts(parts: ModelParts, gpu: Gpu, gpus: int) -> Span:
    floor = expert_floor_ms(parts, gpu, gpus)
    return Span(low=floor, high=floor / LEAST_READ_EFFICIENCY)


def _touched(parts: ModelParts) -> Touched:
    experts, each = parts.n_routed_experts, parts.num_experts_per_tok
    return (lambda rows: touched_experts(rows, experts, each)) if experts else (lambda _rows: 1.0)


def _drafting(k: int) -> Span:
    _, drafts = fitted_spans()
    return Span(low=k * drafts.low / DRAFT_MARGIN, high=k * drafts.high * DRAFT_MARGIN)


def _must_be_bounded(known: Known) -> None:
    size = known.row_bytes * (known.k + 1)
    if known.speculating is None and latency_at(known.latencies, size) is None:
        raise InputError(
            f"nothing bounds the allreduce of {size:,} bytes, that of a verify pass",
            expected="--with-speculation, or its latency by --allreduce or --run (that size, or sizes around it)",
            todo=f"measure it: ./inv bench-allreduce --engine cuda, or give --allreduce {size}=US",
        )


def _assumptions(parts: ModelParts, known: Known, asked: Asked, per_position: Sequence[float]) -> tuple[str, ...]:
    told = [
        f"{CALLS_PER_LAYER} allreduces a layer, hidden states in BF16; those outside the layers count as drafting",
        f"{asked.gpus} x {find_gpu(asked.gpu).name}: weights of one row are read in {known.floor_ms:.1f} ms at best",
        "attention over the context costs verify and baseline alike; prefill does not disturb",
    ]
    if parts.n_routed_experts:
        told.append(
            "rows choose experts independently and evenly, and experts are read at "
            f"{LEAST_READ_EFFICIENCY:.0%} to 100 % of peak bandwidth"
        )
    else:
        told.append("a dense model: more rows cost nothing until compute limits, which is not modelled")
    if known.draft_ms:
        told.append(
            f"drafting takes {known.draft_ms.low:.1f} to {known.draft_ms.high:.1f} ms: what published hosts need, "
            f"within a factor of {DRAFT_MARGIN:g}"
        )
    if not per_position:
        told.append("no position is accepted more readily than the one before it")
    if asked.instead:
        told.append("accept length, drafting and compute are the same with every allreduce that is compared")
    told.append("where allreduce latency was not measured, it follows straight lines over bytes")
    return tuple(told)
