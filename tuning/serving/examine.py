"""What a server that answers really is: its release, what it resolved, what its log proves.

It is refused where it is not what its arm's name says. A profile, taken later, tells more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lanewise.redact import Redactor
from tuning.serving import backends, counters, endings
from tuning.serving.profile import Profile
from tuning.serving.spec import ServerSpec
from tuning.trial import is_plain

_KEPT = re.compile(
    r"(model_path|load_format|dtype|quantization|kv_cache_dtype|revision|tp_size|dp_size|ep_size|pp_size|nnodes"
    r"|speculative_\w+|\w*cuda_graph\w*|\w*radix_cache|\w*all_?reduce\w*|enable_\w+|disable_\w+|attention_backend"
    r"|\w+_attention_backend|sampling_backend|moe_\w+|max_running_requests|max_total_tokens|max_total_num_tokens"
    r"|context_length|mem_fraction_static|chunked_prefill_size|page_size|stream_interval|decode_log_interval|random_seed"
    r"|version|skip_tokenizer_init)",
    re.ASCII,
)
"""Of /server_info's some four hundred resolved arguments: those that may change a step's time or the acceptance."""
_TRIPLE: Mapping[str, str] = {
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "draft_tokens": "speculative_num_draft_tokens",
}
_MOST_TEXT = 500
_UNKNOWN = "unknown"


class RefusedError(Exception):
    """The server is not what was asked for; the message says in what, in words."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What a server that answers is.

    Attributes:
        release: SGLang's version as it says; "" where it does not.
        resolved: the resolved arguments that may matter, redacted.
        engaged: per claim what a log line proves, with that line.
        findings: what weakens its numbers, in words.
        caches: whether it may take a prompt from its prefix cache, so that the cache has to be flushed.
        counters: whether its counters tell of verify passes.
    """

    release: str
    resolved: Mapping[str, Any]
    engaged: Mapping[str, str]
    findings: tuple[str, ...]
    caches: bool
    counters: bool


def examine(spec: ServerSpec, info: Mapping[str, Any], lines: list[str], redact: Redactor) -> Examined:
    """Judge a server by its /server_info and its log so far.

    Raises:
        RefusedError: speculation was resolved to something else, or the log proves that the backend is not on.
    """
    resolved = {
        key: redact(value)[:_MOST_TEXT] if isinstance(value, str) else value
        for key, value in info.items()
        if _KEPT.fullmatch(key) and is_plain(value, 2)
    }
    release = str(info.get("version") or "")[:80]
    untold = _require_speculation(spec, resolved)
    engaged, unproven = _engaged(spec, release, lines)
    return Examined(
        release=release,
        resolved=resolved,
        engaged=engaged,
        findings=(
            *untold,
            *unproven,
            *endings.findings(lines, speculative=spec.speculation is not None, asked=_flags(spec)),
        ),
        caches=resolved.get("disable_radix_cache") is not True,
        counters=counters.best_source(release) == "counters",
    )


def with_profile(examined: Examined, spec: ServerSpec, profile: Profile | None) -> Examined:
    """The same with what the kernels of a profile tell of the allreduce backend: proof where the log has none, and a
    finding where most allreduces of a step are another's.
    """
    if profile is None or spec.tensor_parallel == 1:
        return examined
    told = backends.engaged_by_kernels(spec.allreduce, examined.release, profile.reducing)
    if told.state is None:
        return examined
    by_log = examined.engaged["allreduce"]
    findings = tuple(finding for finding in examined.findings if finding != _unproven(spec))
    if told.state is False:
        other = f"allreduce {spec.allreduce} was asked for, and most of a profiled step are others: {told.line}"
        return replace(examined, findings=(*findings, other))
    if by_log == _UNKNOWN:
        engaged = {**examined.engaged, "allreduce": f"{spec.allreduce}: {told.line} a step (profile)"}
        return replace(examined, engaged=engaged, findings=findings)
    if spec.allreduce == backends.DEFAULT and by_log.split(": ")[1] != told.line.split(": ")[0]:
        other = f"allreduce is another in most of a profiled step than the log says: {told.line}"
        return replace(examined, findings=(*findings, other))
    return examined


def _flags(spec: ServerSpec) -> set[str]:
    """Flags that it was given for its backend, in whatever release, or by the user."""
    settings = backends.BACKENDS[spec.allreduce].settings
    return {*spec.flags, *(flag for setting in settings for flag in setting.flags)}


def _unproven(spec: ServerSpec) -> str:
    by_kernels = spec.allreduce == backends.DEFAULT or backends.BACKENDS[spec.allreduce].kernels
    told = "; --profile tells by its kernels" if by_kernels else ""
    return f"no line of the log says whether allreduce {spec.allreduce} is on{told}"


def _require_speculation(spec: ServerSpec, resolved: Mapping[str, Any]) -> list[str]:
    """Findings on what the server does not say of its speculation."""
    asked = spec.speculation
    algorithm = resolved.get("speculative_algorithm")
    if asked is None:
        if algorithm not in (None, "", "None"):
            raise RefusedError(f"no speculation was asked for, and the server resolved {algorithm}")
        return []
    told = {name: resolved.get(key) for name, key in _TRIPLE.items()}
    wrong = {name: value for name, value in told.items() if value is not None and value != getattr(asked, name)}
    if wrong:
        found = "/".join(str(value) for value in told.values())
        raise RefusedError(f"speculation {asked.label} was asked for, and the server resolved {found}")
    return [f"the server does not tell {_TRIPLE[name]}" for name, value in told.items() if value is None]


def _engaged(spec: ServerSpec, release: str, lines: list[str]) -> tuple[dict[str, str], list[str]]:
    """What the log proves of the allreduce backend, and what it leaves open."""
    if spec.tensor_parallel == 1:
        return {"allreduce": "none: one GPU"}, []
    found = backends.engaged(spec.allreduce, release, lines)
    if found.state is False:
        raise RefusedError(f"allreduce {spec.allreduce} is not on: {found.line[:_MOST_TEXT]}")
    if found.state is None:
        return {"allreduce": _UNKNOWN}, [_unproven(spec)]
    return {"allreduce": f"{spec.allreduce}: {found.line[:_MOST_TEXT]}"}, []
