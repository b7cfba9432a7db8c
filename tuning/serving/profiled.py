"""The profile of a start: taken after its passes, while one request decodes. Numbers never depend on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanewise.errors import LanewiseError
from lanewise.files import writing
from tuning.serving.measure import load_of
from tuning.serving.plan import ServingPlan, Start
from tuning.serving.profile import take
from tuning.serving.prompts import Prompt
from tuning.serving.records import ServingTrial

CONCURRENCY = 1
"""Where step times are compared first, and where a profile's steps hold one request each."""
_ANSWER_SECONDS = 2.0
"""That a request should decode for: long enough to start the profiler and watch ten steps, and soon over."""
_MOST_SECONDS = 20.0
"""For a profile in all. SGLang 0.5.12 on two H200 takes three; ranks that write large traces take longer."""
_USUAL_STEP_MS = 10.0
"""Where the start has no numbers at this concurrency."""


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """What came of profiling: a profile as it stands in a run file, {} where there is none; and findings, in words."""

    profile: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


def profile_of(
    url: str,
    start: Start,
    plan: ServingPlan,
    prompts: Sequence[Prompt],
    trials: Sequence[ServingTrial],
    *,
    folder: Path,
) -> Profiled:
    """Take a profile; that none could be taken is a finding.

    Args:
        url: of the server; nothing else runs on its GPUs.
        start, plan, prompts: what it is, and what it was measured with.
        trials: what came of that.
        folder: for the traces, which the server can write to under the same path; made where it is missing. It goes
            with the server, which is to be stopped after this.
    """
    load = load_of(start.arm.spec, prompts[:CONCURRENCY], max_tokens=_tokens(start, plan, prompts, trials))
    try:
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return Profiled(profile=take(url, folder, load, timeout=_MOST_SECONDS).to_dict())
    except LanewiseError as error:
        return Profiled(findings=(f"not profiled: {error.what}",))


def _tokens(start: Start, plan: ServingPlan, prompts: Sequence[Prompt], trials: Sequence[ServingTrial]) -> int:
    """Of an answer that takes about `_ANSWER_SECONDS`, where the server is known to have room for it.

    A shorter one ends while the profiler watches, and the next one's prefill is among the steps.
    """
    passes = [done for trial in trials if trial.concurrency == CONCURRENCY for done in trial.passes]
    a_token = statistics.fmean(done.step_ms / done.accept_length for done in passes) if passes else _USUAL_STEP_MS
    limits = [limit for limit in (start.arm.spec.context_length, start.arm.spec.max_total_tokens) if limit]
    longest = max(len(prompt.tokens) for prompt in prompts[:CONCURRENCY])
    room = min(limits) // 2 - longest if limits and longest else 0  # half: SGLang keeps some for draft tokens
    return min(max(plan.output_tokens, room), math.ceil(1_000 * _ANSWER_SECONDS / a_token))
