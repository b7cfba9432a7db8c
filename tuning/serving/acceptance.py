"""What the requests of two arms say of acceptance: paired by prompt, with intervals over prompts. Pure.

At temperature 0 a prompt's acceptance is the same in every start, so starts are no further evidence on it: the prompt
is the unit (clustered standard errors). The accept length of several prompts is a ratio of sums, tokens over verify
passes, whose log has the influence (tokens_i - tau passes_i) / (tau mean passes) of prompt i (delta method: Cochran,
Sampling Techniques, 3rd ed. 1977, chapter 6); a ratio of two arms has the difference of both influences, so that what a
prompt does to both alike falls out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuning.serving.estimates import Estimate, certain, of_mean
from tuning.serving.records import Request


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Tokens that decode steps gave a prompt's requests (the first comes from prefill), and those steps."""

    tokens: float
    passes: float


ByPrompt = Mapping[str, Counts]


def by_prompt(requests: Iterable[Request], *, speculative: bool) -> ByPrompt | None:
    """Each prompt's counts; None where some request does not tell its verify passes."""
    found: dict[str, Counts] = {}
    for request in requests:
        tokens = request.completion_tokens - 1
        passes = request.verify_passes if speculative else tokens
        if passes is None:
            return None
        if tokens > 0 and passes > 0:
            so_far = found.get(request.prompt, Counts(tokens=0, passes=0))
            found[request.prompt] = Counts(tokens=so_far.tokens + tokens, passes=so_far.passes + passes)
    return found


def accept_length(counts: ByPrompt) -> Estimate | None:
    """Tokens a step over all prompts; None without prompts, and no interval from one alone."""
    if not counts:
        return None
    tau = _ratio(counts)
    if all(one.tokens == one.passes for one in counts.values()):
        return certain(tau)  # without speculation a step gives one token, whatever the prompt
    return _around(math.log(tau), _influences(counts)).exp()


def accept_ratio(a: ByPrompt, b: ByPrompt) -> Estimate | None:
    """B's accept length over A's, on the prompts that both have; None where they share none."""
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return None
    own, other = ({name: side[name] for name in shared} for side in (a, b))
    before, after = _influences(own), _influences(other)
    differences = [new - old for old, new in zip(before, after, strict=True)]
    return _around(math.log(_ratio(other) / _ratio(own)), differences).exp()


def _ratio(counts: ByPrompt) -> float:
    return sum(one.tokens for one in counts.values()) / sum(one.passes for one in counts.values())


def _influences(counts: ByPrompt) -> list[float]:
    """How far each prompt pulls the log of the accept length from its place; their mean is 0."""
    tau, mean = _ratio(counts), sum(one.passes for one in counts.values()) / len(counts)
    return [(one.tokens - tau * one.passes) / (tau * mean) for one in counts.values()]


def _around(value: float, influences: Sequence[float]) -> Estimate:
    spread = of_mean(influences)
    if spread.low is None or spread.high is None:
        return Estimate(value=value)
    return Estimate(value=value, low=value + spread.low, high=value + spread.high)


@dataclass(frozen=True, kw_only=True)
class Category:
    """One kind of prompts: how many both arms had, their accept lengths, and B's over A's."""

    name: str
    prompts: int
    a: Estimate
    b: Estimate
    ratio: Estimate


def by_category(a: ByPrompt, b: ByPrompt, requests: Iterable[Request]) -> tuple[Category, ...]:
    """The same for each category, where the prompts of these requests have several."""
    kinds = {request.prompt: request.category for request in requests if request.prompt in a and request.prompt in b}
    found = []
    for name in dict.fromkeys(kinds.values()):
        mine, theirs = ({p: side[p] for p, kind in kinds.items() if kind == name} for side in (a, b))
        tau_a, tau_b, ratio = accept_length(mine), accept_length(theirs), accept_ratio(mine, theirs)
        if tau_a and tau_b and ratio:
            found.append(Category(name=name, prompts=len(mine), a=tau_a, b=tau_b, ratio=ratio))
    return tuple(found) if len(found) > 1 else ()


def positions(requests: Iterable[Request]) -> tuple[float, ...]:
    """Share of verify passes in which draft 1, 2, ... was accepted; () where no request tells."""
    total: list[int] = []
    for request in requests:
        total += [0] * (len(request.accepted) - len(total))
        for number, passes in enumerate(request.accepted):
            total[number] += passes
    passes = sum(total)
    return tuple(sum(total[number:]) / passes for number in range(1, len(total))) if passes else ()


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Whether two arms answered alike, by hashes of their answers.

    Attributes:
        prompts: that both answered.
        differing: of which no answer of one arm is one of the other's.
        unsteady: to which one and the same arm gave different answers: what the rest is to be seen against.
    """

    prompts: int
    differing: int
    unsteady: int


def outputs(a: Iterable[Request], b: Iterable[Request]) -> Outputs:
    """Compare the answers of two arms to the same prompts."""
    sets: tuple[dict[str, set[str]], ...] = ({}, {})
    for found, requests in zip(sets, (a, b), strict=True):
        for request in requests:
            if request.output:
                found.setdefault(request.prompt, set()).add(request.output)
    shared = sets[0].keys() & sets[1].keys()
    return Outputs(
        prompts=len(shared),
        differing=sum(not sets[0][name] & sets[1][name] for name in shared),
        unsteady=sum(any(len(found[name]) > 1 for found in sets) for name in shared),
    )


def other_prompts(a: Iterable[Request], b: Iterable[Request]) -> list[str]:
    """Prompts that the two arms' servers counted differently: another tokenizer or chat template; in words."""
    lengths: tuple[dict[str, set[int]], ...] = ({}, {})
    for found, requests in zip(lengths, (a, b), strict=True):
        for request in requests:
            found.setdefault(request.prompt, set()).add(request.prompt_tokens)
    return [
        f"prompt {name} has {_listed(lengths[0][name])} tokens in A and {_listed(lengths[1][name])} in B"
        for name in sorted(lengths[0].keys() & lengths[1].keys())
        if lengths[0][name] != lengths[1][name]
    ]


def _listed(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
