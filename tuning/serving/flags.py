"""From a launch spec to the arguments of one SGLang release, refused before anything is loaded where they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from lanewise.errors import InputError
from tuning.serving.backends import BACKENDS, Facts
from tuning.serving.flag_table import Dialect, dialect, releases
from tuning.serving.gpus import GpuFacts
from tuning.serving.spec import ServerSpec, Speculation
from tuning.workload import short

_MEASURED = {
    "random-seed": "1",
    "disable-radix-cache": "",  # a second pass would find its prompts prefilled
    "stream-interval": "1",  # a chunk a step
    "decode-log-interval": "10",  # steps a log line; SGLang's own 40 gives too few lines for a short window
    "enable-metrics": "",
}
"""What every server that is measured has alike; a spec's own flags may say otherwise."""
__all__ = ["Arguments", "arguments", "releases"]
_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Those that steps, topk and draft tokens describe."""
_DRAFT_NEEDED = ("EAGLE3", "STANDALONE")
_SPEC_V2 = (Version("0.5.9"), Version("0.5.11"))
"""From the first on and before the second the overlapping worker is there, off unless SGLANG_ENABLE_SPEC_V2 is set, for
topk 1 only (srt/server_args.py of 0.5.9; srt/environ.py of 0.5.11 has it on)."""
_SIMULATED = Version("0.5.9")
"""The oldest release in which the variables of simulated acceptance were read (srt/environ.py)."""
_SIMULATED_TOKENS = Version("0.5.23")
"""The release in which SGLANG_SIMULATE_ACC_TOKEN_MODE was read; 0.5.12 has none."""
_OURS = {
    "model-path": ("model",),
    "port": (),
    "host": (),
    "nccl-port": (),
    "tp-size": ("tensor-parallel-size", "tp"),
    "config": (),
    "nnodes": (),
    "node-rank": (),
    "speculative-algorithm": (),
    "speculative-num-steps": (),
    "speculative-eagle-topk": (),
    "speculative-num-draft-tokens": (),
    "speculative-draft-model-path": ("speculative-draft-model",),
}
"""Flags that a spec says in its own words, or that one server on one machine cannot have; with their other names."""
_MULTICAST = "it turns NVLink multicast on (NCCL_NVLS_ENABLE=1), which can take GPUs of a shared host out of service"
_NEVER = {
    "speculative-adaptive": "it moves the number of draft steps while it runs, and no two windows are of one server",
    "speculative-adaptive-config": "it is of --speculative-adaptive, which no comparison can use",
    "enable-symm-mem": _MULTICAST,
    "enable-nccl-nvls": _MULTICAST,
}
_SEVERAL = ("cuda-graph-bs", "cuda-graph-bs-decode", "cuda-graph-bs-prefill")
"""Flags that take several values, here with blanks between them."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a server is started with.

    Attributes:
        argv: from "--model-path" on, without the interpreter; every flag by its full name, since argparse also takes
            unambiguous beginnings, which another release may find ambiguous.
        variables: environment variables that it needs.
        notes: what was left open, in words.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    notes: tuple[str, ...]


def arguments(
    spec: ServerSpec,
    release: str,
    *,
    port: int,
    nccl_port: int,
    gpus: GpuFacts | None,
    known: frozenset[str] | None = None,
) -> Arguments:
    """The arguments of one release for a launch spec.

    Args:
        spec: what is wanted.
        release: SGLang's version, as its metadata has it.
        port: for HTTP.
        nccl_port: where its ranks meet.
        gpus: of the machine; what is not known of them is no ground for a refusal, and a note.
        known: flags without dashes that this very installation has (`installed.help_flags`); of a release that the
            table lacks they decide alone, else beside it.

    Raises:
        InputError: the release is not known; a flag is unknown or removed there; the allreduce backend would be ignored
            by this release or number of GPUs; the speculation is none that the server would keep.
    """
    table = dialect(release, known)
    asked_flags, asked_variables = _backend_asked(spec, table.version)
    flags = {
        **_basic(spec, table, port=port, nccl_port=nccl_port),
        **_MEASURED,
        **_graphs(spec, table),
        **_speculative(spec.speculation),
        **asked_flags,
        **_further(spec.flags, table),
    }
    for name in flags:
        table.require(name)
    variables = {**_simulated(spec, table.version), **_switches(spec, table.version), **asked_variables}
    variables.update(spec.environment)
    notes = [*table.notes, *_judged(spec, table.version, gpus, flags)]
    return Arguments(argv=tuple(_words(flags)), variables=variables, notes=tuple(notes))


def _basic(spec: ServerSpec, table: Dialect, *, port: int, nccl_port: int) -> dict[str, str]:
    flags = {
        "model-path": spec.model,
        "host": "127.0.0.1",
        "port": str(port),
        "tp-size": str(spec.tensor_parallel),
        "max-running-requests": str(spec.max_running),
    }
    if table.has("nccl-port"):  # 0.4.6 takes any free one
        flags["nccl-port"] = str(nccl_port)
    if spec.dummy_weights:
        flags["load-format"] = "dummy"
    if spec.attention_backend:
        flags["attention-backend"] = spec.attention_backend
    for name, value in (("context-length", spec.context_length), ("max-total-tokens", spec.max_total_tokens)):
        if value:
            flags[name] = str(value)
    if spec.memory_fraction:
        flags["mem-fraction-static"] = f"{spec.memory_fraction:g}"
    return flags


def _graphs(spec: ServerSpec, table: Dialect) -> dict[str, str]:
    """Graphs for every number of requests that may decode together, or none for decoding."""
    if spec.cuda_graphs:
        return {table.first("cuda-graph-max-bs-decode", "cuda-graph-max-bs"): str(spec.max_running)}
    return {table.first("disable-decode-cuda-graph", "disable-cuda-graph"): ""}


def _speculative(speculation: Speculation | None) -> dict[str, str]:
    if speculation is None:
        return {}
    _require_kept(speculation)
    flags = {
        "speculative-algorithm": speculation.algorithm,
        "speculative-num-steps": str(speculation.steps),
        "speculative-eagle-topk": str(speculation.topk),
        "speculative-num-draft-tokens": str(speculation.draft_tokens),
    }
    if speculation.draft:
        flags["speculative-draft-model-path"] = speculation.draft
    return flags


def _require_kept(speculation: Speculation) -> None:
    """Refuse what the server would resolve to something else, or not start with."""
    if speculation.algorithm not in _ALGORITHMS:
        raise InputError(
            f"speculation by {short(speculation.algorithm)} is not supported",
            expected=f"one of {', '.join(_ALGORITHMS)}: steps, topk and draft tokens describe it",
            todo="name one of these",
        )
    if speculation.algorithm in _DRAFT_NEEDED and not speculation.draft:
        raise InputError(
            f"{speculation.algorithm} has no draft model", expected="the path of one", todo="name it with --draft"
        )
    if min(speculation.steps, speculation.topk) < 1 or speculation.draft_tokens < 2:
        raise InputError(
            f"speculation {speculation.label} drafts nothing",
            expected="steps/topk/draft tokens of at least 1/1/2",
            todo="correct it",
        )
    if speculation.topk == 1 and speculation.draft_tokens != speculation.steps + 1:
        raise InputError(
            f"speculation {speculation.label} is none that a server keeps",
            expected=f"with topk 1, a draft token a step and the root: {speculation.steps}/1/{speculation.steps + 1}; "
            "SGLang sets draft tokens to steps + 1",
            todo="correct it",
        )


def _simulated(spec: ServerSpec, release: Version) -> dict[str, str]:
    if not spec.accept_length:
        return {}
    if not spec.can_accept:
        raise InputError(
            f"accept length {spec.accept_length:g} cannot be simulated "
            + (f"at {spec.speculation.label}" if spec.speculation else "without speculation"),
            expected="with speculation, from 1 to its steps + 1",
            todo="correct it, or leave it out",
        )
    if release < _SIMULATED:
        raise InputError(
            f"SGLang {release} cannot be told an accept length: the names of its variables are not known",
            expected=f"a release from {_SIMULATED} on",
            todo="leave --accept-length out, or name a newer release",
        )
    # Set explicitly, since the default changed from "multinomial", which misses the mean, between 0.5.9 and 0.5.11.
    variables = {"SGLANG_SIMULATE_ACC_LEN": f"{spec.accept_length:g}", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
    return variables | ({"SGLANG_SIMULATE_ACC_TOKEN_MODE": "fixed"} if release >= _SIMULATED_TOKENS else {})


def _switches(spec: ServerSpec, release: Version) -> dict[str, str]:
    overlaps = spec.speculation and spec.speculation.topk == 1 and _SPEC_V2[0] <= release < _SPEC_V2[1]
    return {"SGLANG_ENABLE_SPEC_V2": "1"} if overlaps else {}


def _backend_asked(spec: ServerSpec, release: Version) -> tuple[dict[str, str], dict[str, str]]:
    if not (backend := BACKENDS.get(spec.allreduce)):
        raise InputError(
            f"there is no allreduce backend {short(spec.allreduce)}",
            expected=f"one of {', '.join(BACKENDS)}",
            todo="name one of these",
        )
    return backend.asked(release)


def _judged(spec: ServerSpec, release: Version, gpus: GpuFacts | None, flags: Mapping[str, str]) -> list[str]:
    """What nobody knows of the backend here.

    Raises:
        InputError: it would be ignored, or fail.
    """
    if gpus and spec.tensor_parallel > gpus.count:
        raise InputError(
            f"tensor parallel size is {spec.tensor_parallel}, and there are {gpus.count} GPUs",
            expected="at most as many",
            todo="correct it",
        )
    if spec.allreduce == "default":
        return []
    if spec.tensor_parallel == 1:
        raise InputError(
            f"allreduce {spec.allreduce} is asked for on one GPU, which reduces nothing",
            expected='"default" on one GPU',
            todo="leave it out, or raise the tensor parallel size",
        )
    facts = Facts(release=release, world=spec.tensor_parallel, gpus=gpus, flags=flags, variables=spec.environment)
    why, open_questions = BACKENDS[spec.allreduce].judged(facts)
    if why:
        raise InputError(
            f"allreduce {spec.allreduce} would not run in SGLang {release} on {spec.tensor_parallel} GPUs here: {why}",
            expected="a backend that the server really takes",
            todo="choose another one",
        )
    return open_questions


def _further(flags: Mapping[str, str], table: Dialect) -> dict[str, str]:
    """A spec's own flags, checked."""
    protected = {name: ours for ours, others in _OURS.items() for name in (ours, *others)}
    for name, value in flags.items():
        if name in _NEVER:
            raise InputError(
                f"--{name} cannot be used: {_NEVER[name]}", expected="a server that stays as it is", todo="leave it out"
            )
        if name in protected:
            raise InputError(
                f"--{protected[name]} is given as a further flag",
                expected="further flags beside model, draft, parallel size, ports and the numbers of speculation",
                todo="say it by its own option, or leave it out",
            )
        if "\0" in value or (name in _SEVERAL and any(word.startswith("-") for word in value.split())):
            raise InputError(f"--{name} is {short(value)}", expected="a value of that flag", todo="correct it")
        table.require(name)
    return dict(flags)


def _words(flags: Mapping[str, str]) -> list[str]:
    words: list[str] = []
    for name, value in flags.items():
        words.append(f"--{name}")
        if name in _SEVERAL:
            words += value.split()
        elif value.startswith("-"):
            words[-1] += f"={value}"  # else argparse takes it for a flag
        elif value:
            words.append(value)
    return words
