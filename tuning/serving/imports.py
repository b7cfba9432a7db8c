"""Reads results of other load generators: AIPerf, SGLang's bench_serving (JSON lines and text), llm-decode-bench.

They say less than a pass of our own: what they do not say stays None, and their notes tell what their numbers are.
"""

from __future__ import annotations

import json
from pathlib import Path

from lanewise.errors import InputError
from lanewise.files import read_text, shown_path
from tuning.serving.imported import Document, Imported
from tuning.serving.imports_aiperf import from_records, from_server_metrics, from_summary
from tuning.serving.imports_bench import from_decode_bench, from_json_lines, from_text

_MOST_BYTES = 256 << 20
_READERS = (from_records, from_summary, from_server_metrics, from_json_lines, from_decode_bench)
_EXPECTED = (
    "AIPerf's profile_export.jsonl, profile_export_aiperf.json or server_metrics_export.json, bench_serving's JSON "
    "lines or its printed table, or llm-decode-bench's JSON"
)
_TEXTS = (
    ("Performance Estimate", "an estimate of aiconfigurator", "nothing was measured: see ./inv predict-speculation"),
    ("NVIDIA AIPerf |", "AIPerf's screen", "give profile_export_aiperf.json, which lies beside it"),
    ("Metric,avg,min,max,sum", "AIPerf's CSV", "give profile_export_aiperf.json, which lies beside it"),
    ("Sustained Decode", "llm-decode-bench's screen", "give its JSON, which has the same numbers unrounded"),
    ("Decode batch", "a server's log", "see ./inv diagnose"),
    ("# TYPE ", "a scrape of /metrics", "counters need two of them: see ./inv watch"),
)
"""What stands in a text, what the text is, and what to do."""
_DOCUMENTS = (
    ({"benchmarks", "metadata"}, "guidellm's report"),
    ({"num_prompts", "endpoint_type"}, "a result of vLLM's bench serve"),
    ({"batch_size", "num_draft_tokens", "step_time"}, "a result of SGLang's bench_speculative.py"),
    ({"run_name", "input_len", "last_gen_throughput"}, "a result of SGLang's bench_one_batch_server"),
    ({"format", "plan"}, "a run file of ours, for ./inv compare"),
)
"""Keys of a JSON document, and what it is."""


def read_foreign(path: Path) -> Imported:
    """Reads a result of another tool.

    Raises:
        InputError: the file cannot be read, or is of none of these tools; what it is instead is said where it is known.
    """
    content = read_text(path, what="result", limit=_MOST_BYTES)
    if not content.lstrip().startswith("{"):
        if imported := from_text(content):
            return imported
        raise _refused(path, *next(((what, todo) for mark, what, todo in _TEXTS if mark in content), ("", "")))
    documents = _documents(path, content)
    for reader in _READERS:
        if imported := reader(documents):
            return imported
    raise _refused(path, next((what for keys, what in _DOCUMENTS if keys <= documents[0].keys()), ""))


def _documents(path: Path, content: str) -> list[Document]:
    """One JSON document, or one a line."""
    try:
        try:
            found = [json.loads(content)]
        except json.JSONDecodeError:
            found = [json.loads(line) for line in content.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"damaged JSON ({error})", "export it again") from error
    if not all(isinstance(document, dict) for document in found):
        raise _refused(path)
    return found


def _refused(path: Path, what: str = "", todo: str = "") -> InputError:
    return InputError(
        f"{shown_path(path)} is {what or 'no result that is known'}",
        expected=_EXPECTED,
        todo=todo or "give one of these files",
    )
