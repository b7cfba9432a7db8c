"""Reads what a server's log says of its decode steps: SGLang's two dialects, and vLLM's.

SGLang prints a line every --decode-log-interval steps; its throughput and accept length are of exactly those steps, so
that running x accept length / throughput is their mean time (wheels 0.5.3 to 0.5.23, scheduler_metrics_mixin.py and
metrics_reporter.py). The printed accept rate is not read: up to 0.5.10 it counts the bonus token, from 0.5.11 it does
not. vLLM prints a line about every ten seconds, with the speculation of that interval in a second one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

_LONGEST = 1 << 14
"""Characters of a line that are looked at: SGLang prints its arguments as one of about 10,000."""
_HINTS = ("batch", "Engine ", "SpecDecoding")
_STAMP = re.compile(
    r"\[((?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{1,6})?)((?: (?:DP|TP|EP|PP|CP|ATTN_\w+|MOE_\w+)\d{1,4})*)\]",
    re.ASCII,
)
"""Where a line of SGLang's begins; several ranks can share one physical line, and a container runtime can go before."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_END = r"(?!\.?\d)"
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?)" + _END
_BATCH = re.compile(r"(Decode|Prefill) batch[.,]? ?(?:\[\d{1,12}\])?[.,]? ", re.ASCII)
_RUNNING = re.compile(rf"#running-req: (\d{{1,9}}){_END}", re.ASCII)
_TOKENS = re.compile(rf"#(?:full )?token: (\d{{1,15}}){_END}", re.ASCII)
_ACCEPT = re.compile(rf", accept len: {_NUMBER}", re.ASCII)
_GRAPH = re.compile(r"\w{1,8} graph: (True|False)", re.ASCII)
_RATE = re.compile(rf"gen throughput \(token/s\): {_NUMBER}", re.ASCII)
_QUEUE = re.compile(rf"#queue-req: (\d{{1,9}}){_END}", re.ASCII)
_VLLM = re.compile(
    rf"(\d\d-\d\d \d\d:\d\d:\d\d) .{{0,80}}Engine (\d{{1,6}}): Avg prompt throughput: {_NUMBER} tokens/s, "
    rf"Avg generation throughput: {_NUMBER} tokens/s, Running: (\d{{1,9}}) reqs, Waiting: (\d{{1,9}}) reqs",
    re.ASCII,
)
_VLLM_ACCEPT = re.compile(rf"SpecDecoding metrics: Mean acceptance length: {_NUMBER}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DecodeLine:
    """One line about decode steps.

    Attributes:
        time: as printed.
        rank: the rank that printed it, e.g. "TP0" or "DP1 TP4"; vLLM's engine; "" where none is named.
        running: requests that decoded when it was printed.
        tokens: of the KV cache in use; None where not printed.
        accept_len: tokens a step and request, bonus token included; None: no speculation, or not printed.
        graph: whether the last step replayed a graph; None where not printed.
        tokens_per_second: of this rank's requests together, since its line before.
        queue: requests that waited.
        steady: whether the same requests decoded all the time since this rank's line before: no prefill and no idle
            spell lies between, and as many ran then.
        engine: "sglang" or "vllm".
    """

    time: str
    rank: str
    running: int
    tokens: int | None
    accept_len: float | None
    graph: bool | None
    tokens_per_second: float
    queue: int
    steady: bool
    engine: str

    @property
    def step_ms(self) -> float | None:
        """Mean time of the steps that it covers; only meaningful where it is steady."""
        if not self.running or not self.tokens_per_second:
            return None
        return 1_000 * self.running * (self.accept_len or 1) / self.tokens_per_second


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What steady decode lines say together.

    Attributes:
        step_ms: mean time of a decode step, each line weighted by its steps.
        accept_length: tokens a step and request, bonus token included; 1.0 without speculation.
        tokens_per_second: of all ranks together.
        running: requests that decoded together, over all ranks.
        graph_share: share of the lines whose last step replayed a graph; None where not printed.
        lines: how many lines it rests on.
        dropped: decode lines left out, since they cover a prefill, an idle spell or a change of the batch.
    """

    step_ms: float
    accept_length: float
    tokens_per_second: float
    running: float
    graph_share: float | None
    lines: int
    dropped: int


def decode_lines(lines: Iterable[str]) -> list[DecodeLine]:
    """The decode lines of a log, in order; any other line is passed over, damaged ones too."""
    found: list[DecodeLine] = []
    before: dict[str, DecodeLine | None] = {}
    for line in pieces(line for line in lines if any(hint in line for hint in _HINTS)):
        if batch := _BATCH.search(line):
            rank = _rank(line)
            if batch[1] == "Prefill":
                before[rank] = None
            elif decoded := _sglang(line, rank):
                found.append(replace(decoded, steady=_went_on(before.get(rank), decoded)))
                before[rank] = decoded
        elif about := _VLLM.search(line):
            decoded = _vllm(about)
            prefilled = float(about[3]) > 0
            found.append(replace(decoded, steady=not prefilled and _went_on(before.get(decoded.rank), decoded)))
            before[decoded.rank] = decoded
        elif (accept := _VLLM_ACCEPT.search(line)) and found and found[-1].engine == "vllm":
            found[-1] = replace(found[-1], accept_len=float(accept[1]))
    return _without_hidden_prefills(found)


def pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines as the server wrote them: parted at carriage returns and where another rank's begins, without colours."""
    for physical in lines:
        for line in re.split(r"[\r\n]", _ESCAPE.sub("", physical)):
            starts = [stamp.start() for stamp in _STAMP.finditer(line)]
            cuts = [0, *starts[1:], len(line)]
            yield from (line[start : min(end, start + _LONGEST)] for start, end in pairwise(cuts))


def _rank(line: str) -> str:
    stamp = _STAMP.search(line)
    return stamp[2].strip() if stamp else ""


def _sglang(line: str, rank: str) -> DecodeLine | None:
    running, rate = _RUNNING.search(line), _RATE.search(line)
    if not running or not rate:
        return None
    stamp, tokens, accept, graph, queue = (
        pattern.search(line) for pattern in (_STAMP, _TOKENS, _ACCEPT, _GRAPH, _QUEUE)
    )
    return DecodeLine(
        time=stamp[1] if stamp else "",
        rank=rank,
        running=int(running[1]),
        tokens=int(tokens[1]) if tokens else None,
        accept_len=float(accept[1]) if accept else None,
        graph=graph[1] == "True" if graph else None,
        tokens_per_second=float(rate[1]),
        queue=int(queue[1]) if queue else 0,
        steady=False,
        engine="sglang",
    )


def _vllm(about: re.Match[str]) -> DecodeLine:
    return DecodeLine(
        time=about[1],
        rank=about[2],
        running=int(about[5]),
        tokens=None,
        accept_len=None,
        graph=None,
        tokens_per_second=float(about[4]),
        queue=int(about[6]),
        steady=False,
        engine="vllm",
    )


def _went_on(before: DecodeLine | None, line: DecodeLine) -> bool:
    return before is not None and before.running == line.running > 0 and line.tokens_per_second > 0


def _without_hidden_prefills(lines: list[DecodeLine]) -> list[DecodeLine]:
    """vLLM counts a prompt's tokens when its prefill ends, so that the intervals before look like slow decoding.

    They are told by a rate, for a request, of less than half the log's best; and where the log has speculation at all,
    an interval without its line ran no verify pass.
    """
    steady = [line for line in lines if line.engine == "vllm" and line.steady]
    best = max((line.tokens_per_second / line.running for line in steady), default=0)
    speculates = any(line.accept_len for line in lines)
    return [
        replace(line, steady=line.steady and _is_at_work(line, best / 2, speculates=speculates))
        if line.engine == "vllm"
        else line
        for line in lines
    ]


def _is_at_work(line: DecodeLine, least: float, *, speculates: bool) -> bool:
    return line.tokens_per_second >= least * line.running and (line.accept_len is not None or not speculates)


def steps(lines: Iterable[DecodeLine]) -> Steps | None:
    """What the steady ones of some decode lines say together; None where there is none.

    SGLang's lines cover equally many steps, vLLM's equally long times: step times are averaged over the steps of both.
    """
    given = list(lines)
    used = [line for line in given if line.steady and line.step_ms]
    if not used:
        return None
    weights = [_share_of_steps(line) for line in used]
    emitted = [weight * line.running * (line.accept_len or 1) for weight, line in zip(weights, used, strict=True)]
    seconds = [tokens / line.tokens_per_second for tokens, line in zip(emitted, used, strict=True)]
    ranks = {line.rank for line in used}
    requests = [weight * line.running for weight, line in zip(weights, used, strict=True)]
    return Steps(
        step_ms=1_000 * math.fsum(seconds) / math.fsum(weights),
        accept_length=math.fsum(emitted) / math.fsum(requests),
        tokens_per_second=len(ranks) * math.fsum(emitted) / math.fsum(seconds),
        running=len(ranks) * math.fsum(requests) / math.fsum(weights),
        graph_share=graph_share(used),
        lines=len(used),
        dropped=len(given) - len(used),
    )


def graph_share(lines: Iterable[DecodeLine]) -> float | None:
    """Share of decode lines, steady or not, whose last step replayed a CUDA graph; None where none says it."""
    said = [line.graph for line in lines if line.graph is not None]
    return said.count(True) / len(said) if said else None


def _share_of_steps(line: DecodeLine) -> float:
    return 1.0 if line.engine == "sglang" else line.tokens_per_second / (line.running * (line.accept_len or 1))
