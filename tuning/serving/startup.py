"""Reads what SGLang's log says of a server's start: resolved arguments, graph captures, memory, how far it came.

Lines as in the wheels 0.5.3, 0.5.9, 0.5.13 and 0.5.23. The log does not print SGLang's version; /server_info does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tuning.serving.log import pieces

Scalar = str | int | float | bool | None
_STAGES = (
    ("Init torch distributed begin", "Init torch distributed ends", "while its ranks connected"),
    ("Load weight begin", "Load weight end", "while weights were loaded"),
)
READY = "fired up and ready to roll"
"""What SGLang prints once it has served a first request of its own."""
_FIRST = ("", "TP0", "DP0 TP0", "DP0 TP0 EP0", "TP0 EP0")
_MOST_BATCHES = 1_000
_CAPTURE = re.compile(r"Capture (\S.{0,40}? )?(?:cuda|CUDA|cpu|npu) graph (begin|end)\b", re.ASCII)
_RANK = re.compile(r"\[[0-9: .-]{8,30} ([A-Z][A-Z0-9_ ]{0,40})\]", re.ASCII)
_ELAPSED = re.compile(r"(?:Time elapsed: |elapsed=)(\d{1,9}(?:\.\d{1,9})?) ?s", re.ASCII)
_USED = re.compile(r"mem usage=(-?\d{1,9}(?:\.\d{1,9})?) GB", re.ASCII)
_BATCH = re.compile(r"Capturing batches \(bs=(\d{1,6}) ", re.ASCII)
_NUMBERS = re.compile(r"\b(max_total_num_tokens|max_running_requests|context_len)=(\d{1,15})\b", re.ASCII)
_SIZES = re.compile(r"\b(?:K|V|KV) size: (\d{1,9}(?:\.\d{1,9})?) GB", re.ASCII)
_ARGUMENT = re.compile(
    r"""(?<![\w'"])['"]?([a-z][a-z0-9_]{0,80})['"]?(?:=|: )"""
    r"""(?:'([^'\\]{0,500})'|(True|False|None|-?\d{1,18}(?:\.\d{1,18})?))(?=[,)}])""",
    re.ASCII,
)
"""An argument in ServerArgs(name=value, ...) (to 0.5.20 or so) or {'name': value, ...}."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One capture of CUDA graphs on one rank.

    Attributes:
        name: what was captured, as printed: "", "draft", "draft extend", "target decode", ...
        rank: e.g. "TP0"; "" where none is named.
        batches: batch sizes in their order, as far as it came; only the first rank prints them.
        ended: whether it did.
        seconds: how long it took; None where not printed.
        memory_gb: GPU memory that it took; None where not printed.
    """

    name: str
    rank: str
    batches: tuple[int, ...] = ()
    ended: bool = False
    seconds: float | None = None
    memory_gb: float | None = None


@dataclass(frozen=True, kw_only=True)
class Startup:
    """What the log says of the start. None: not printed.

    Attributes:
        arguments: the resolved ones that are plain values.
        captures: in order of their begin.
        max_total_num_tokens: tokens that the KV cache holds.
        max_running_requests: most requests that decode together, as resolved.
        context_length: tokens.
        weights_gb: GPU memory of the weights, by rank 0, draft model included.
        kv_gb: GPU memory of the KV caches, by rank 0, the draft's included.
        stage: what it was doing last, in words; "" where it was none of what is known.
        ready: whether it said that it serves.
    """

    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    captures: tuple[Capture, ...] = ()
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    context_length: int | None = None
    weights_gb: float | None = None
    kv_gb: float | None = None
    stage: str = ""
    ready: bool = False


def startup(lines: Iterable[str]) -> Startup:
    """What a log, or a part of one, says of the server's start."""
    start = _Start()
    for line in pieces(lines):
        start.take(line)
    return start.said()


class _Start:
    """What a pass over a log has found so far."""

    def __init__(self) -> None:
        self.arguments: dict[str, Scalar] = {}
        self.captures: list[Capture] = []
        self.numbers: dict[str, int] = {}
        self.weights: list[float] = []
        self.caches: list[float] = []
        self.stage = ""
        self.ready = False

    def take(self, line: str) -> None:
        if "server_args=" in line and not self.arguments:
            self.arguments = {name: _scalar(text, plain) for name, text, plain in _ARGUMENT.findall(line)}
        elif "aptur" in line:
            self._capture(line)
        elif "max_total_num_tokens=" in line:
            self.numbers |= {name: int(number) for name, number in _NUMBERS.findall(line)}
        else:
            self._memory(line)
            self._stage(line)

    def _capture(self, line: str) -> None:
        if (batch := _BATCH.search(line)) and self.captures:
            self._batch(int(batch[1]))
        elif found := _CAPTURE.search(line):
            rank = _rank(line)
            if found[2] == "begin":
                self.captures.append(Capture(name=(found[1] or "").strip(), rank=rank))
            else:
                self._end((found[1] or "").strip(), rank, line)

    def _batch(self, size: int) -> None:
        last = self.captures[-1]
        if size not in last.batches[-1:]:
            self.captures[-1] = replace(last, batches=(*last.batches, size)[:_MOST_BATCHES])

    def _end(self, name: str, rank: str, line: str) -> None:
        seconds, used = _ELAPSED.search(line), _USED.search(line)
        for index, capture in enumerate(self.captures):
            if (capture.name, capture.rank, capture.ended) == (name, rank, False):
                self.captures[index] = replace(
                    capture,
                    ended=True,
                    seconds=float(seconds[1]) if seconds else None,
                    memory_gb=float(used[1]) if used else None,
                )
                return

    def _memory(self, line: str) -> None:
        if _rank(line) not in _FIRST:
            return
        if "Load weight end" in line and (used := _USED.search(line)):
            self.weights.append(float(used[1]))
        elif "KV Cache is allocated" in line:
            self.caches.extend(float(size) for size in _SIZES.findall(line))

    def _stage(self, line: str) -> None:
        for begins, ends, stage in _STAGES:
            if begins in line:
                self.stage = stage
            elif ends in line:
                self.stage = ""
        self.ready |= READY in line

    def said(self) -> Startup:
        open_capture = next((capture for capture in reversed(self.captures) if not capture.ended), None)
        return Startup(
            arguments=self.arguments,
            captures=tuple(self.captures),
            max_total_num_tokens=self.numbers.get("max_total_num_tokens"),
            max_running_requests=self.numbers.get("max_running_requests"),
            context_length=self.numbers.get("context_len"),
            weights_gb=sum(self.weights) if self.weights else None,
            kv_gb=sum(self.caches) if self.caches else None,
            stage=_in_capture(open_capture) if open_capture and not self.ready else self.stage,
            ready=self.ready,
        )


def _in_capture(capture: Capture) -> str:
    what = f" of {capture.name}" if capture.name else ""
    batch = f", after the begin of batch {capture.batches[-1]}" if capture.batches else ""
    return f"in graph capture{what}{batch}"


def _rank(line: str) -> str:
    found = _RANK.search(line)
    return found[1] if found else ""


def _scalar(text: str, plain: str) -> Scalar:
    if plain in ("True", "False"):
        return plain == "True"
    if not plain:
        return text
    if plain == "None":
        return None
    return float(plain) if "." in plain else int(plain)
