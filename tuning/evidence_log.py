"""Reads logs of any size: SGLang, vLLM, NCCL INFO, and mixtures, in one pass and bounded memory.

Literals are looked for in blocks of a megabyte; only lines that hold one are looked at. Of each kind of line the first
2,000 count.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import yaml

from tuning.evidence import Reading, Sign
from tuning.evidence_nccl import NCCL_LINES, NcclFacts, number

_SIGNS = Path(__file__).parent / "log_signs.yaml"
_BLOCK = 1 << 20
_LONGEST = 1 << 11
"""Bytes of a line that are looked at; a longer one is cut."""
_MOST_LINES = 2_000
_SGLANG_LINE = re.compile(r"(?:\S+ std(?:out|err) [FP] )?\[(?:[0-9-]{10} )?[0-9:]{8}[^\]]*\]", re.ASCII)
_VLLM_LINE = re.compile(r"(?:\(\w+ pid=\d+\) )?(?:INFO|WARNING|ERROR) [0-9]", re.ASCII)
_NCCL_LINE = re.compile(r"(?:.{0,120}:\d+:\d+ .{0,120})?NCCL (?:INFO|WARN|CALL|version \d)")
_TRACEBACK_LINE = re.compile(r'.{0,60}File "', re.ASCII)
_MARKS: Mapping[bytes, tuple[str, re.Pattern[str]]] = {
    **dict.fromkeys(
        (b"Decode batch", b"Prefill batch", b"Capture ", b"server_args", b"llReduce", b"llreduce", b"sglang is using"),
        ("SGLang", _SGLANG_LINE),
    ),
    **dict.fromkeys((b"loggers.py", b"vLLM is using", b"vLLM API server", b"metrics.py"), ("vLLM", _VLLM_LINE)),
    **dict.fromkeys((b"NCCL INFO", b"NCCL WARN", b"NCCL version"), ("NCCL", _NCCL_LINE)),
    b"/sglang/srt/": ("SGLang", _TRACEBACK_LINE),
    b"/vllm/": ("vLLM", _TRACEBACK_LINE),
}
"""Literals that tell whose log it is, in a line that begins as that program's do: prose mentions them too."""
_ANYBODYS = {"exception", "graphs-off", "fast-allreduce-on", "fast-allreduce-off"}
"""Signs whose lines other programs, and texts, have too: by themselves they make no known log."""
_PROSE = "|#>`"
"""Lines that begin so are tables and text about logs, not logs."""
_DECODE = re.compile(r"Decode batch.*?gen throughput \(token/s\): ([0-9.]+)", re.ASCII)
_ACCEPT = re.compile(r"accept len: ([0-9.]+)|Mean acceptance length: ([0-9.]+)", re.ASCII)
_RATE = re.compile(r"Avg generation throughput: ([0-9.]+)", re.ASCII)
_PROGRESS = re.compile(r"\| [1-9][0-9]*/[0-9]+ \[", re.ASCII)
_RANKS = re.compile(r"\bTP([0-9]{1,3})\b", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class LogSign:
    """A line that says something by itself; see log_signs.yaml."""

    sign: str
    find: bytes
    also: re.Pattern[str] | None


@lru_cache(maxsize=1)
def log_signs() -> tuple[LogSign, ...]:
    """Every such line that ships."""
    return tuple(
        LogSign(
            sign=entry["sign"],
            find=entry["find"].encode(),
            also=re.compile(entry["also"]) if "also" in entry else None,
        )
        for entry in yaml.safe_load(_SIGNS.read_text(encoding="utf-8"))
    )


@dataclass(kw_only=True)
class _Log:
    """What a pass over a log has found so far."""

    name: str
    lines: int = 0
    tools: set[str] = field(default_factory=set)
    signs: dict[str, list[Sign]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    accepts: list[float] = field(default_factory=list)
    graphs: dict[str, int] = field(default_factory=lambda: {"True": 0, "False": 0})
    rank: int = -1
    capture: Sign | None = None
    captured: list[int] = field(default_factory=lambda: [0, 0])
    nccl: NcclFacts = field(default_factory=NcclFacts)

    def add(self, name: str, text: str, line: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        kept = self.signs.setdefault(name, [])
        if not kept:
            kept.append(Sign(name=name, text=text[:160].strip(), where=f"{self.name}:{line}"))


_Handler = Callable[[_Log, str, int], None]


def read_log(file: BinaryIO, *, name: str) -> Reading | None:
    """What a log tells; None where no line of it is of a known kind.

    Args:
        file: the log, from its start.
        name: what to call it.
    """
    log = _Log(name=name)
    seen: dict[bytes, int] = {}
    for block, line in _blocks(file):
        for literal, handlers in _handlers().items():
            for text, at in _hits(block, literal, line, _MOST_LINES - seen.get(literal, 0)):
                seen[literal] = seen.get(literal, 0) + 1
                for handler in handlers:
                    handler(log, text, at)
        log.lines = line + block.count(b"\n")
    return _reading(log) if log.tools or log.signs.keys() - _ANYBODYS else None


def _blocks(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Whole lines, about a megabyte at a time, and how many lines came before."""
    rest, lines = b"", 0
    while data := file.read(_BLOCK):
        block, newline, tail = (rest + data).rpartition(b"\n")
        if newline:
            yield block + newline, lines
            lines += block.count(b"\n") + 1
        rest = tail[-_LONGEST:]
    if rest:
        yield rest, lines


def _hits(block: bytes, literal: bytes, before: int, most: int) -> Iterator[tuple[str, int]]:
    """The lines of a block that hold a literal, each once, and their numbers."""
    position, counted, line = block.find(literal) if most > 0 else -1, 0, before + 1
    while position >= 0 and most > 0:
        start, end = block.rfind(b"\n", 0, position) + 1, block.find(b"\n", position)
        end = len(block) if end < 0 else end
        line += block.count(b"\n", counted, start)
        yield block[start : min(end, start + _LONGEST)].decode("utf-8", "replace"), line
        counted, most = start, most - 1
        position = block.find(literal, end)


@lru_cache(maxsize=1)
def _handlers() -> dict[bytes, tuple[_Handler, ...]]:
    """What to do with a line, by the literal that it holds."""
    handlers: dict[bytes, list[_Handler]] = {}
    takers: list[tuple[bytes, _Handler]] = [
        *((literal, _marked(tool, line)) for literal, (tool, line) in _MARKS.items()),
        *((entry.find, _signed(entry)) for entry in log_signs()),
        *((literal, _of_nccl(take)) for literal, take in NCCL_LINES.items()),
        (b"Decode batch", _decoded),
        (b"cuda graph: False, gen throughput", _without_graph),
        (b"Avg generation throughput", _vllm_rate),
        (b"Mean acceptance length", _accepted),
        (b"graph begin", _capture_began),
        (b"graph end", _capture_went_on),
        (b"Capturing", _capture_went_on),
    ]
    for literal, taker in takers:
        handlers.setdefault(literal, []).append(taker)
    return {literal: tuple(found) for literal, found in handlers.items()}


def _marked(tool: str, line: re.Pattern[str]) -> _Handler:
    def take(log: _Log, text: str, _line: int) -> None:
        if line.match(text):
            log.tools.add(tool)

    return take


def _of_nccl(taker: Callable[[NcclFacts, str], None]) -> _Handler:
    return lambda log, text, _line: taker(log.nccl, text)


def _signed(entry: LogSign) -> _Handler:
    def take(log: _Log, text: str, line: int) -> None:
        prose = text.lstrip()[:1] in _PROSE
        if not prose and (entry.also is None or entry.also.search(text)):
            log.add(entry.sign, text, line)

    return take


def _decoded(log: _Log, text: str, _line: int) -> None:
    if found := _DECODE.search(text):
        log.rates.append(number(found[1]))
        log.graphs["True"] += "cuda graph: True" in text
    if rank := _RANKS.search(text):
        log.rank = max(log.rank, int(rank[1]))
    _accepted(log, text, _line)


def _without_graph(log: _Log, text: str, line: int) -> None:
    if "Decode batch" in text:
        log.graphs["False"] += 1
        log.add("decode-without-graph", text, line)


def _vllm_rate(log: _Log, text: str, _line: int) -> None:
    if found := _RATE.search(text):
        log.rates.append(number(found[1]))


def _accepted(log: _Log, text: str, _line: int) -> None:
    if found := _ACCEPT.search(text):
        log.accepts.append(number(found[1] or found[2]))


def _capture_began(log: _Log, text: str, line: int) -> None:
    if "apture" in text and _SGLANG_LINE.match(text):
        log.capture = Sign(name="capture-did-not-end", text=text[:160], where=f"{log.name}:{line}")
        log.captured[0] = line


def _capture_went_on(log: _Log, text: str, line: int) -> None:
    """It ended, or one batch size at least was captured; literals of a block are not met in the order of its lines."""
    if "raph end" in text or _PROGRESS.search(text):
        log.captured[1] = max(log.captured[1], line)


def _reading(log: _Log) -> Reading:
    if log.capture and log.captured[0] > log.captured[1] and not log.rates:
        log.signs[log.capture.name] = [log.capture]
    if log.graphs["True"] and not log.graphs["False"]:
        text = f"{log.graphs['True']} decode lines say cuda graph: True, none False"
        log.signs["decode-in-graph"] = [Sign(name="decode-in-graph", text=text, where=log.name)]
    tools = sorted(log.tools) or ["a program"]
    facts = log.nccl
    return Reading(
        path=log.name,
        kind=f"log of {' and '.join(tools)}",
        said=tuple(_said(log)),
        signs=(*(sign for kept in log.signs.values() for sign in kept), *facts.signs(log.name)),
        hosts=frozenset(facts.hosts),
        ranks=facts.ranks or (log.rank + 1 if log.rank > 0 else 0),
        releases=frozenset(facts.releases),
        accept=statistics.median(log.accepts) if log.accepts else None,
        rate=_steady(log.rates),
    )


def _steady(rates: list[float]) -> float | None:
    """The median of rates at work: a first line after an idle spell covers the idle time, so slow ones are left out."""
    if not rates:
        return None
    most = max(rates)
    return statistics.median(rate for rate in rates if rate >= most / 2) if most > 0 else None


def _said(log: _Log) -> Iterator[str]:
    yield f"{log.lines:,} lines"
    if log.rates:
        yield f"{len(log.rates):,} decode lines, {_steady(log.rates) or 0:.1f} tokens/s at work"
    if log.accepts:
        yield f"{statistics.median(log.accepts):.2f} tokens a step of speculation (median)"
    for name, count in log.counts.items():
        yield f"{count:,} lines of {name}" + (" or more" if count >= _MOST_LINES else "")
    yield from log.nccl.said()
