"""From what a user asks for to a plan: arms of every backend and speculation, prompts, concurrencies."""

from __future__ import annotations

import itertools
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lanewise.errors import InputError
from tuning.plan import Environment
from tuning.serving.plan import (
    MARGIN,
    MOST_CONCURRENCY,
    MOST_REQUESTS,
    PROBE_ROWS,
    PromptChoice,
    ServingArm,
    ServingPlan,
    validate,
)
from tuning.serving.prompts import Prompt, PromptSet, load_prompts
from tuning.serving.spec import ServerSpec, Speculation
from tuning.serving.waves import LEAST_CHUNKS, SETTLE_CHUNKS
from tuning.workload import short

BASELINE, PROBE = "baseline", "probe"
_SPECULATION = re.compile(r"([0-9]{1,3})/([0-9]{1,3})/([0-9]{1,4})(?:@([0-9]{1,3}(?:\.[0-9]{1,4})?))?", re.ASCII)
_FLAG = re.compile(r"(?:--)?([a-z][a-z0-9-]{0,79})(?:=(.{0,2000}))?", re.ASCII | re.DOTALL)
_NO_TOKENIZER = "skip-tokenizer-init"
_DRAFTED = ("EAGLE3", "STANDALONE")
"""Algorithms that have no draft of their own in the target's weights."""
_TOKEN_REQUESTS = 8
"""Of a pass of generated token ids, where no number is given: they are all alike."""


@dataclass(frozen=True, kw_only=True)
class ServingRequest:
    """What a user asks for; the options of bench-speculative under their names.

    Attributes:
        environments: toolchains to compare.
        server: the baseline's server: what all arms have in common.
        speculations: "STEPS/TOPK/TOKENS[@ACCEPT_LENGTH]" each.
        algorithm: of all of these.
        draft: path or name of the draft model.
        allreduces: names of backends.
        concurrencies: numbers of requests at once.
        probe: whether a server without speculation is measured at the row counts of verify passes.
        probe_on: names of the backends that it is measured with, some of `allreduces`; none: all of them.
        prompts: name or path of a prompt set; "" for the one that fits.
        requests: of a pass at least; 0 for the whole set (8 of generated token ids).
        output_tokens, starts, passes, together, seed, timeout: as in `ServingPlan`; seed 0 draws one.
        margin: as a fraction; 0 for the usual one.
    """

    environments: tuple[Environment, ...]
    server: ServerSpec
    speculations: tuple[str, ...] = ()
    algorithm: str = "EAGLE3"
    draft: str = ""
    allreduces: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = (1,)
    probe: bool = False
    probe_on: tuple[str, ...] = ()
    prompts: str = ""
    requests: int = 0
    output_tokens: int = 512
    starts: int = 3
    passes: int = 3
    together: int = 1
    margin: float = 0.0
    seed: int = 0
    timeout: float = 300.0


def make_plan(request: ServingRequest) -> tuple[ServingPlan, tuple[Prompt, ...]]:
    """The plan, and the prompts of one of its passes.

    Raises:
        InputError: an option is wrong, or the prompts do not fit the server.
    """
    prompt_set = load_prompts(request.prompts or _fitting_prompts(request.server))
    prompts = _chosen(prompt_set, request.requests)
    _require_fit(request.server, prompts)
    _require_room(request.server, prompts, request.output_tokens)
    arms = tuple(_arms(request))
    for arm in arms:
        _require_chunks(arm, request.output_tokens)
    plan = ServingPlan(
        environments=request.environments,
        arms=arms,
        baseline=arms[0].name,
        prompts=PromptChoice(name=prompt_set.name, identity=prompt_set.identity, requests=len(prompts)),
        output_tokens=request.output_tokens,
        starts=request.starts,
        passes=request.passes,
        together=request.together,
        margin=request.margin or MARGIN,
        seed=request.seed or secrets.randbelow(1 << 31),
        timeout=request.timeout,
    )
    validate(plan)
    return plan, prompts


def _arms(request: ServingRequest) -> Iterable[ServingArm]:
    """Per backend the baseline, each speculation, and the probe."""
    if request.server.accept_length and not request.speculations:
        raise InputError(
            f"--accept-length is {request.server.accept_length:g}, and nothing speculates",
            expected="--speculation beside it",
            todo="name a speculation, or leave it out",
        )
    speculations = [_speculation(text, request) for text in request.speculations]
    allreduces = request.allreduces or ("default",)
    probed = _probed(request, allreduces)
    probe_rows = _probe_rows(request, [speculation for _, speculation, _ in speculations]) if probed else ()
    most = max([*request.concurrencies, *probe_rows], default=1)
    server = replace(request.server, max_running=request.server.max_running or most)
    for allreduce in allreduces:
        plain = replace(server, allreduce=allreduce, accept_length=0.0)
        yield ServingArm(name=f"{allreduce}/{BASELINE}", spec=plain, concurrencies=request.concurrencies)
        for name, speculation, accept_length in speculations:
            spec = replace(plain, speculation=speculation, accept_length=accept_length)
            yield ServingArm(name=f"{allreduce}/{name}", spec=spec, concurrencies=request.concurrencies)
        if allreduce in probed:
            yield ServingArm(name=f"{allreduce}/{PROBE}", spec=plain, concurrencies=probe_rows)


def _probed(request: ServingRequest, allreduces: Sequence[str]) -> Sequence[str]:
    """The backends that the probe is measured with."""
    for name in request.probe_on:
        if name not in allreduces:
            raise InputError(
                f"--probe-on is {short(name)}, a backend that this run does not measure",
                expected=f"one of {', '.join(allreduces)}",
                todo="correct it, or add the backend with --allreduce",
            )
    return request.probe_on or (allreduces if request.probe else ())


def _probe_rows(request: ServingRequest, speculations: Iterable[Speculation]) -> tuple[int, ...]:
    """Requests at once that have as many rows as a verify pass of each speculation at each number of requests."""
    rows = {each.draft_tokens * number for each in speculations for number in request.concurrencies}
    return tuple(sorted({*PROBE_ROWS, *(number for number in rows if number <= MOST_CONCURRENCY)}))


def _speculation(text: str, request: ServingRequest) -> tuple[str, Speculation, float]:
    """An arm's name after its backend, its speculation, and the accept length that is simulated (0: the real one)."""
    if not (found := _SPECULATION.fullmatch(text)):
        raise InputError(
            f"--speculation is {short(text)}",
            expected="STEPS/TOPK/DRAFT-TOKENS, and @ACCEPT-LENGTH where one is simulated, e.g. 2/1/3 or 2/1/3@2.43",
            todo="correct it",
        )
    if request.algorithm in _DRAFTED and not request.draft:
        raise InputError(
            f"--speculation {text} with {request.algorithm} and no draft model",
            expected="--draft PATH",
            todo="name the draft model, or another --algorithm",
        )
    steps, topk, tokens = (int(number) for number in found.groups()[:3])
    accept_length = float(found[4]) if found[4] else request.server.accept_length
    if (found[4] or accept_length) and not 1 <= accept_length <= steps + 1:
        raise InputError(
            f"accept length {accept_length:g} is to be simulated with --speculation {steps}/{topk}/{tokens}",
            expected=f"from 1 to {steps + 1}: each of {steps} steps adds a token at most, and the target one",
            todo="correct --accept-length, or give the speculation its own: 2/1/3@2.43",
        )
    speculation = Speculation(
        algorithm=request.algorithm, steps=steps, topk=topk, draft_tokens=tokens, draft=request.draft
    )
    name = speculation.label.replace("/", "-")
    return (f"{name}@{found[4]}" if found[4] else name), speculation, accept_length


def _fitting_prompts(server: ServerSpec) -> str:
    return "tokens" if server.dummy_weights or _NO_TOKENIZER in server.flags else "mixed"


def _require_fit(server: ServerSpec, prompts: Sequence[Prompt]) -> None:
    if _NO_TOKENIZER in server.flags and any(prompt.text for prompt in prompts):
        raise InputError(
            f"--prompts are texts, and --flag {_NO_TOKENIZER} leaves the server without a tokenizer",
            expected="prompts of token ids",
            todo="say --prompts tokens, or leave the flag out",
        )


def _require_room(server: ServerSpec, prompts: Sequence[Prompt], output_tokens: int) -> None:
    """Refuse requests that would be cut short, or not taken at all: a prompt of text is a token at least."""
    longest = max(max(1, len(prompt.tokens)) for prompt in prompts)
    for option, most in (("--context-length", server.context_length), ("--max-total-tokens", server.max_total_tokens)):
        if 0 < most < longest + output_tokens:
            prompt = f"a prompt of {longest:,}" if any(prompt.tokens for prompt in prompts) else "a prompt"
            raise InputError(
                f"{option} is {most:,}, and a request holds {prompt} and --output-tokens {output_tokens:,}",
                expected=f"at least {longest + output_tokens:,}",
                todo=f"raise {option}, or lower --output-tokens or the length of --prompts",
            )


def _require_chunks(arm: ServingArm, output_tokens: int) -> None:
    """Refuse answers of which too few chunks come, however the server is: nothing is concluded from them."""
    tokens_a_chunk = arm.spec.accept_length or 1.0
    least = math.ceil((SETTLE_CHUNKS + LEAST_CHUNKS) * tokens_a_chunk) + 1
    if output_tokens < least:
        raise InputError(
            f"--output-tokens is {output_tokens}, too few steps of {arm.name} to measure",
            expected=f"at least {least}; 512 is usual, and with speculation a step takes several",
            todo="raise it",
        )


def _chosen(prompt_set: PromptSet, requests: int) -> tuple[Prompt, ...]:
    """So many of a set, as evenly from its categories as can be; all of them for 0, of token ids 8."""
    if not 0 <= requests <= MOST_REQUESTS:  # before so many are made
        raise InputError(f"--requests is {short(requests)}", expected=f"from 0 to {MOST_REQUESTS:,}", todo="correct it")
    wanted = requests or (len(prompt_set.prompts) if any(p.text for p in prompt_set.prompts) else _TOKEN_REQUESTS)
    rows = [[prompt for prompt in prompt_set.prompts if prompt.category == name] for name in prompt_set.categories]
    mixed = [prompt for column in itertools.zip_longest(*rows) for prompt in column if prompt]
    return tuple(itertools.islice(itertools.cycle(mixed), wanted))


def parse_flags(texts: Sequence[str]) -> Mapping[str, str]:
    """Flags by name from "NAME[=VALUE]" each.

    Raises:
        InputError: one is no flag, or stands twice.
    """
    flags: dict[str, str] = {}
    for text in texts:
        found = _FLAG.fullmatch(text)
        if not found or found[1] in flags:
            raise InputError(
                f"--flag is {short(text)}{', a second time' if found else ''}",
                expected="NAME or NAME=VALUE, each name once, as SGLang has it, e.g. skip-tokenizer-init",
                todo="correct it",
            )
        flags[found[1]] = found[2] or ""
    return flags
