"""The verbs that predict speculation and memory: they parse, call and print."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from invoke.context import Context

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import write_atomic
from lanewise.verbs import verb
from tuning import memory_view, speculation_view
from tuning.identify import identify
from tuning.memory_layout import AllToAll, Attention, Drafting
from tuning.memory_model import Verdict, budget
from tuning.memory_request import KV_BYTES, read_layout, read_weights
from tuning.model_parts import find_gpu, shipped_models
from tuning.model_parts import gpus as known_gpus
from tuning.serving import forecast_view
from tuning.serving.forecast_request import AskedOfServers, predict_servers
from tuning.speculation_request import UNASKED, Asked, Question, predict, question
from tuning.speculation_svg import STEPS as PICTURE_STEPS
from tuning.speculation_svg import svg as picture
from tuning.speculation_table import slices

_MODEL = f"{', '.join(shipped_models())}, or a config.json"
_GPU = f"one of {', '.join(known_gpus())}"
_ALSO_OF_SERVERS = ("accept_length", "run")
"""Options of rates that go together with --servers."""


@verb(
    baseline="tokens per second of one request without speculation: a number or a range, e.g. 82-89",
    with_speculation="tokens per second of one request with it, where that was measured",
    instead="NAME=RATE: the rate with another allreduce, all else the same, e.g. custom=38 (may be repeated)",
    draft_tokens="rows of a verify pass: drafts and one (SGLang's --speculative-num-draft-tokens)",
    accept_length="tokens a step, as 'accept len' in SGLang's decode lines: a number or a range",
    per_position="instead of it: cumulative acceptance of each position, as vLLM prints it, e.g. 0.849,0.574,0.319",
    allreduce="SIZE=US: latency of one allreduce in a CUDA graph, e.g. 43008=200-250 or 42KiB=22 (may be repeated)",
    run="run file of ./inv bench-allreduce --engine cuda on that host; its baseline's latencies, or its backends'",
    model=_MODEL,
    gpu=_GPU,
    gpus="GPUs that work together",
    servers="run file of ./inv bench-speculative: predict its servers from their baselines, instead of from rates",
    drafting="another such run, whose speculation tells what drafting takes (default: what published hosts need)",
    speculation="STEPS/TOPK/DRAFT-TOKENS to predict, e.g. 2/1/3 (may be repeated; default: those of --servers)",
    svg="write tokens per second against accept length, with the break-even, to this file",
    json="print as JSON",
)
def predict_speculation(
    _context: Context,
    baseline: str = "",
    with_speculation: str = "",
    instead: list[str] | None = None,
    draft_tokens: int = UNASKED.draft_tokens,
    accept_length: str = "",
    per_position: str = "",
    allreduce: list[str] | None = None,
    run: str = "",
    model: str = UNASKED.model,
    gpu: str = UNASKED.gpu,
    gpus: int = UNASKED.gpus,
    servers: str = "",
    drafting: str = "",
    speculation: list[str] | None = None,
    svg: str = "",
    json: bool = False,
) -> None:
    """Predict tokens per second with speculation; say what is known, what is free, and what would settle it."""
    asked = Asked(
        model=model,
        gpu=gpu,
        gpus=gpus,
        draft_tokens=draft_tokens,
        baseline=baseline,
        with_speculation=with_speculation,
        instead=tuple(instead or ()),
        accept_length=accept_length,
        per_position=per_position,
        allreduce=tuple(allreduce or ()),
        run=run,
    )
    of_servers = AskedOfServers(
        servers=servers, run=run, drafting=drafting, speculations=speculation or (), accept_length=accept_length
    )
    if servers or drafting or speculation:
        _put_servers(of_servers, asked, svg=svg, json=json)
    else:
        _put_rates(question(asked), svg=svg, json=json)


def _put_servers(of_servers: AskedOfServers, asked: Asked, *, svg: str, json: bool) -> None:
    others = [one.name for one in fields(Asked) if one.name not in _ALSO_OF_SERVERS]
    given = [name for name in others if getattr(asked, name) != getattr(UNASKED, name)] + ["svg"] * bool(svg)
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')} is given with --servers, --drafting or --speculation",
            expected="of the others, with --servers: --drafting, --speculation, --run, --accept-length, --json",
            todo="leave it out: all else is in the run file",
        )
    found = predict_servers(of_servers)
    if json:
        talk.put_json(forecast_view.document(found))
    else:
        talk.put(forecast_view.show(found))


def _put_rates(asked: Question, *, svg: str, json: bool) -> None:
    prediction = predict(asked)
    if svg:
        # Over every accept length, also where one is given: the picture is about what it would be otherwise.
        known = replace(asked.known, tau=None)
        write_atomic(Path(svg), picture(known, slices(identify(known), steps=PICTURE_STEPS)))
    if json:
        talk.put_json(speculation_view.document(prediction))
    else:
        talk.put(speculation_view.show(prediction))


@verb(
    model=f"{_MODEL}, or a folder with one; safetensors files in it are read for exact sizes",
    gpu=_GPU,
    gpus="GPUs that work together (tensor-parallel size)",
    attention=f"{' or '.join(Attention)} parallel (default: tensor; with --all-to-all data, as SGLang demands it)",
    expert_parallel="whole experts on single GPUs instead of a slice of each on all",
    all_to_all=f"what moves tokens between experts: {' or '.join(AllToAll)}",
    speculation=f"what drafts: {', '.join(Drafting)}",
    draft_tokens="rows of a verify pass",
    concurrency="requests at the same time",
    context="tokens of each request",
    kv_cache=f"data type of the KV cache: {' or '.join(KV_BYTES)}",
    prefill_chunk="tokens of a prefill chunk; 0: what SGLang chooses",
    graph_batch="largest batch with a CUDA graph; 0: what SGLang chooses",
    json="print as JSON",
)
def predict_memory(
    _context: Context,
    model: str = "kimi-k2",
    gpu: str = "rtx-pro-6000",
    gpus: int = 8,
    attention: str = "",
    expert_parallel: bool = False,
    all_to_all: str = "none",
    speculation: str = "none",
    draft_tokens: int = 1,
    concurrency: int = 1,
    context: int = 8192,
    kv_cache: str = "bf16",
    prefill_chunk: int = 0,
    graph_batch: int = 0,
    json: bool = False,
) -> ExitCode | None:
    """Predict what a model needs on each GPU before it is loaded; exit code 3: it does not fit."""
    numbers = {
        "--gpus": gpus,
        "--draft-tokens": draft_tokens,
        "--concurrency": concurrency,
        "--context": context,
        "--prefill-chunk": prefill_chunk,
        "--graph-batch": graph_batch,
    }
    parts, weights, where = read_weights(model)
    layout = read_layout(
        parts,
        numbers,
        attention=attention,
        expert_parallel=expert_parallel,
        all_to_all=all_to_all,
        speculation=speculation,
        kv_cache=kv_cache,
    )
    found = find_gpu(gpu)
    needed = budget(parts, weights, layout, found)
    if json:
        talk.put_json(memory_view.document(needed, found, where))
    else:
        talk.put(memory_view.show(needed, found, where))
    return None if needed.verdict is Verdict.FITS else ExitCode.ANSWER_IS_NO
