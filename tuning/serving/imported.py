"""What a result of another load generator says, in values of ours; and how to take a number from a foreign document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuning.serving.records import Request
from tuning.trial import is_number

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ImportedPass:
    """One run of another tool at one load. None: the tool does not say.

    Attributes:
        label: what tells it from the file's others; "" where it is alone.
        concurrency: most requests at once, as asked for.
        running: requests at once, on average.
        seconds: its duration, with prefills and with the end in which fewer and fewer requests run.
        completed: requests that finished.
        tokens_per_second: of output, over all that time.
        ttft_ms: mean time to the first token.
        tpot_ms: mean time of an output token after the first.
        step_ms: mean time of a decode step: the mean gap between chunks where one request ran at a time.
        accept_length: tokens a step and request.
        accept_source: where that is from: "server lifetime" (an average since the server's start), "counters", or "".
        requests: each, where the file has them.
    """

    label: str = ""
    concurrency: float | None = None
    running: float | None = None
    seconds: float | None = None
    completed: float | None = None
    tokens_per_second: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    step_ms: float | None = None
    accept_length: float | None = None
    accept_source: str = ""
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What a file of another tool says.

    Attributes:
        tool: "AIPerf", "bench_serving" or "llm-decode-bench".
        version: of the tool; "" where it does not say.
        passes: at least one.
        notes: what its numbers are and are not, in sentences.
    """

    tool: str
    version: str
    passes: tuple[ImportedPass, ...]
    notes: tuple[str, ...]


def number(document: object, *keys: str) -> float | None:
    """A number that is not negative, by its path of keys; None where there is none."""
    value = inner(document, *keys)
    return float(value) if is_number(value) and value >= 0 else None


def numbers(document: object, *keys: str) -> tuple[float, ...]:
    """The numbers of a list, by its path of keys; () where there is none or one of its items is no such number."""
    value = inner(document, *keys)
    if not isinstance(value, list) or not all(is_number(item) and item >= 0 for item in value):
        return ()
    return tuple(map(float, value))


def text(document: object, *keys: str) -> str:
    """A text, by its path of keys; "" where there is none. It is cut at 200 characters."""
    value = inner(document, *keys)
    return value[:200] if isinstance(value, str) else ""


def inner(document: object, *keys: str) -> object:
    """What stands under a path of keys; None where there is nothing."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document
