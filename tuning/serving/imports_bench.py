"""Reads what SGLang's bench_serving writes (JSON lines; the printed table of 2024 and of today), and llm-decode-bench.

Keys and rows as in the wheels 0.5.9 and 0.5.23 (bench_serving.py, benchmark/serving.py); llm-decode-bench as in
https://github.com/local-inference-lab/rtx6kpro, benchmarks/inference-throughput.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from tuning.serving.imported import Document, Imported, ImportedPass, number, numbers, text
from tuning.serving.records import Request

_TITLE = "Serving Benchmark Result"
_ROW = re.compile(r"([A-Z][A-Za-z0-9 ()/&.-]{2,60}):[ \t]+(\S.{0,60}?)[ \t]*", re.ASCII)
_LIFETIME = (
    "accept length is the server's average since its start or last cache flush, warm-up and earlier runs included"
)
_WHOLE = "throughput is over the whole run, with prefills and with the end in which fewer requests run"
_MISSPELT = "Max reqeuest concurrency"


def from_json_lines(documents: Sequence[Document]) -> Imported | None:
    """bench_serving's --output-file: one line a run; None where it is none."""
    if not all({"backend", "duration", "completed", "output_throughput"} <= document.keys() for document in documents):
        return None
    passes = tuple(_line(document, len(documents) > 1) for document in documents)
    version = text(documents[0], "server_info", "version")
    return Imported(tool="bench_serving", version=version, passes=passes, notes=_notes(passes))


def _line(document: Document, several: bool) -> ImportedPass:
    accept = number(document, "accept_length")
    return ImportedPass(
        label=_label(document) if several else "",
        concurrency=number(document, "max_concurrency"),
        running=number(document, "concurrency"),
        seconds=number(document, "duration"),
        completed=number(document, "completed"),
        tokens_per_second=number(document, "output_throughput"),
        ttft_ms=number(document, "mean_ttft_ms"),
        tpot_ms=number(document, "mean_tpot_ms"),
        accept_length=accept,
        accept_source="server lifetime" if accept else "",
        requests=_requests(document),
    )


def _label(document: Document) -> str:
    parts = (text(document, "tag"), text(document, "dataset_name"))
    return " ".join(part for part in parts if part)


def _requests(document: Document) -> tuple[Request, ...]:
    """Of --output-details; its inter-token times share a chunk's gap among its tokens, so that they tell no steps."""
    prompts, outputs, first = (numbers(document, name) for name in ("input_lens", "output_lens", "ttfts"))
    between = document.get("itls")
    if not (len(prompts) == len(outputs) == len(first)):
        return ()
    gaps = between if isinstance(between, list) and len(between) == len(first) else [[]] * len(first)
    return tuple(
        Request(
            prompt=str(index),
            category="",
            prompt_tokens=int(prompt),
            completion_tokens=int(tokens),
            ttft_ms=1_000 * ttft,
            seconds=ttft + math.fsum(numbers({"gaps": gap}, "gaps")),
        )
        for index, (prompt, tokens, ttft, gap) in enumerate(zip(prompts, outputs, first, gaps, strict=True))
    )


def _notes(passes: Sequence[ImportedPass]) -> tuple[str, ...]:
    return (_WHOLE, _LIFETIME) if any(one.accept_length for one in passes) else (_WHOLE,)


def from_text(printed: str) -> Imported | None:
    """bench_serving's printed tables; None where there is none."""
    tables = [dict(_rows(part)) for part in printed.split(_TITLE)[1:]]
    passes = tuple(_table(rows) for rows in tables if "Successful requests" in rows)
    if not passes:
        return None
    return Imported(tool="bench_serving", version="", passes=passes, notes=_notes(passes))


def _rows(table: str) -> list[tuple[str, str]]:
    found = (_ROW.fullmatch(line.strip()) for line in table.splitlines())
    return [(row[1], row[2]) for row in found if row]


def _table(rows: Mapping[str, str]) -> ImportedPass:
    accept = _cell(rows, "Accept length")
    asked = _cell(rows, "Max request concurrency")
    return ImportedPass(
        concurrency=_cell(rows, _MISSPELT) if asked is None else asked,
        running=_cell(rows, "Concurrency"),
        seconds=_cell(rows, "Benchmark duration (s)"),
        completed=_cell(rows, "Successful requests"),
        tokens_per_second=_cell(rows, "Output token throughput (tok/s)"),
        ttft_ms=_cell(rows, "Mean TTFT (ms)"),
        tpot_ms=_cell(rows, "Mean TPOT (ms)"),
        accept_length=accept,
        accept_source="server lifetime" if accept else "",
    )


def _cell(rows: Mapping[str, str], name: str) -> float | None:
    value = rows.get(name, "")
    return float(value) if re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", value) else None


def from_decode_bench(documents: Sequence[Document]) -> Imported | None:
    """llm-decode-bench's JSON: a cell for each context length and concurrency; None where it is none."""
    results = documents[0].get("results")
    if len(documents) > 1 or not isinstance(results, list) or not results:
        return None
    if not all(isinstance(cell, dict) and {"concurrency", "aggregate_tps"} <= cell.keys() for cell in results):
        return None
    notes = ["throughput is over a cell's time, its prefills included"]
    if any("server_spec_accept_rate" in cell for cell in results):
        notes.append(
            "the accept rate is not used: SGLang changed its meaning in 0.5.11, and the drafts of a step are not told"
        )
    passes = tuple(map(_decode_cell, results))
    return Imported(
        tool="llm-decode-bench", version=text(documents[0], "metadata", "version"), passes=passes, notes=tuple(notes)
    )


def _decode_cell(cell: Document) -> ImportedPass:
    first = number(cell, "ttft_avg")
    context = number(cell, "context_tokens")
    return ImportedPass(
        label=f"context {context:.0f}" if context is not None else "",
        concurrency=number(cell, "concurrency"),
        seconds=number(cell, "wall_time"),
        completed=number(cell, "num_completed"),
        tokens_per_second=number(cell, "aggregate_tps"),
        ttft_ms=None if first is None else 1_000 * first,
    )
