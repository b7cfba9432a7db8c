"""Reads what AIPerf exports: schema of 0.13.0, as it wrote it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from tuning.serving.imported import Document, Imported, ImportedPass, inner, number, numbers, text
from tuning.serving.records import Request

_TOOL = "AIPerf"
_CHUNKS = (
    "chunk gaps are step times where one request runs at a time and the server streams each step (stream interval 1); "
    "a busy client merges chunks"
)
_FIRST_TOKENS = "the accept length counts the first tokens too, which prefill makes: there is no count of requests"
_NO_ACCEPT = "accept length is in server_metrics_export.json, not here"


def from_records(documents: Sequence[Document]) -> Imported | None:
    """profile_export.jsonl: one line a request; None where it is none. Warm-up and cancelled requests are left out."""
    if not all("benchmark_phase" in _metadata(document) and "metrics" in document for document in documents):
        return None
    counted = [document for document in documents if _counts(document)]
    requests = tuple(map(_request, counted))
    spans = sorted(filter(None, map(_span, counted)))
    seconds = (max(end for _, end in spans) - spans[0][0]) / 1e9 if spans else 0
    alone = bool(spans) and all(start >= end for (_, end), (start, _) in pairwise(spans))
    tokens = sum(request.completion_tokens for request in requests)
    one = ImportedPass(
        running=math.fsum(end - start for start, end in spans) / 1e9 / seconds if seconds > 0 else None,
        seconds=seconds or None,
        completed=len(requests),
        tokens_per_second=tokens / seconds if seconds > 0 else None,
        ttft_ms=_mean([request.ttft_ms for request in requests if request.ttft_ms is not None]),
        tpot_ms=_mean(
            [ms for document in counted if (ms := number(_metrics(document), "inter_token_latency", "value"))]
        ),
        step_ms=_mean([gap for request in requests for gap in request.gaps_ms]) if alone else None,
        requests=requests,
    )
    skipped = len(documents) - len(counted)
    notes = (_CHUNKS, _NO_ACCEPT, *([f"{skipped} requests of warm-up or cancelled are left out"] if skipped else []))
    return Imported(tool=_TOOL, version="", passes=(one,), notes=notes)


def _metadata(document: Document) -> Document:
    found = inner(document, "metadata")
    return found if isinstance(found, dict) else {}


def _metrics(document: Document) -> Document:
    found = inner(document, "metrics")
    return found if isinstance(found, dict) else {}


def _counts(document: Document) -> bool:
    about = _metadata(document)
    return about["benchmark_phase"] == "profiling" and about.get("was_cancelled") is not True


def _span(document: Document) -> tuple[float, float] | None:
    """When a request began and ended, in nanoseconds of the client's clock."""
    start, end = (number(document, "metadata", name) for name in ("request_start_ns", "request_end_ns"))
    return (start, end) if start is not None and end is not None and start <= end else None


def _request(document: Document) -> Request:
    metrics = _metrics(document)
    gaps = numbers(metrics, "inter_chunk_latency", "value")
    prompt = number(metrics, "usage_prompt_tokens", "value") or number(metrics, "input_sequence_length", "value")
    tokens = number(metrics, "usage_completion_tokens", "value") or number(metrics, "output_sequence_length", "value")
    return Request(
        prompt=text(document, "metadata", "conversation_id"),
        category="",
        prompt_tokens=int(prompt or 0),
        completion_tokens=int(tokens or 0),
        ttft_ms=number(metrics, "time_to_first_token", "value"),
        seconds=(number(metrics, "request_latency", "value") or 0) / 1_000,
        chunks=len(gaps) + 1 if gaps else 0,
        gaps_ms=gaps,
    )


def from_summary(documents: Sequence[Document]) -> Imported | None:
    """profile_export_aiperf.json; None where it is none."""
    summary = documents[0]
    if len(documents) > 1 or "aiperf_version" not in summary or "request_latency" not in summary:
        return None
    concurrency = _concurrency(summary)
    one = ImportedPass(
        concurrency=concurrency,
        running=number(summary, "effective_concurrency", "avg"),
        seconds=number(summary, "benchmark_duration", "avg"),
        completed=number(summary, "request_count", "avg"),
        tokens_per_second=number(summary, "output_token_throughput", "avg"),
        ttft_ms=number(summary, "time_to_first_token", "avg"),
        tpot_ms=number(summary, "inter_token_latency", "avg"),
        step_ms=number(summary, "inter_chunk_latency", "avg") if concurrency == 1 else None,
    )
    broken = ["the run was cancelled"] if summary.get("was_cancelled") is True else []
    return Imported(
        tool=_TOOL, version=text(summary, "aiperf_version"), passes=(one,), notes=(_CHUNKS, _NO_ACCEPT, *broken)
    )


def from_server_metrics(documents: Sequence[Document]) -> Imported | None:
    """server_metrics_export.json: what counters gained during the profiling phase; None where it is none."""
    export = documents[0]
    if len(documents) > 1 or "aiperf_version" not in export or not isinstance(export.get("metrics"), dict):
        return None
    gained = {name: _gained(export, name) for name in ("generation_tokens", "spec_verify_calls", "num_requests")}
    tokens, verified = gained["generation_tokens"], gained["spec_verify_calls"]
    first = gained["num_requests"]
    accept = (tokens - (first or 0)) / verified if tokens and verified else None
    one = ImportedPass(
        concurrency=_concurrency(export),
        completed=first,
        accept_length=accept,
        accept_source="counters" if accept else "",
    )
    notes = ["times are in profile_export_aiperf.json, not here"]
    if accept and first is None:
        notes.append(_FIRST_TOKENS)
    return Imported(tool=_TOOL, version=text(export, "aiperf_version"), passes=(one,), notes=tuple(notes))


def _gained(export: Document, counter: str) -> float | None:
    """AIPerf names counters without their _total."""
    series = inner(export, "metrics", f"sglang:{counter}", "series")
    totals = (
        [total for one in series if (total := number(one, "stats", "total")) is not None]
        if isinstance(series, list)
        else []
    )
    return math.fsum(totals) if totals else None


def _concurrency(document: Document) -> float | None:
    phases = inner(document, "input_config", "phases")
    found = [
        concurrency
        for phase in (phases if isinstance(phases, list) else [])
        if text(phase, "kind") == "profiling" and (concurrency := number(phase, "concurrency")) is not None
    ]
    return found[0] if len(found) == 1 else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
