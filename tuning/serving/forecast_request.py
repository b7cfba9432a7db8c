"""From options and run files to what is predicted of servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lanewise.errors import InputError
from tuning.runfile import read_run
from tuning.serving.forecast import forecast
from tuning.serving.forecast_values import Forecast, Wanted
from tuning.serving.runfile import ServingRun, read_serving_run
from tuning.serving.spec import Speculation
from tuning.speculation_request import parse_span
from tuning.workload import short

_SPECULATION = re.compile(r"([0-9]{1,3})/([0-9]{1,3})/([0-9]{1,4})", re.ASCII)
_FORM = "STEPS/TOPK/DRAFT-TOKENS of 1/1/2 to 999/999/9999; with topk 1 draft tokens are steps + 1: 2/1/3"
_MOST = (999, 999, 9999)


@dataclass(frozen=True, kw_only=True)
class AskedOfServers:
    """The options as typed; empty where not given. What they mean stands with the verb."""

    servers: str
    run: str
    drafting: str
    speculations: Sequence[str]
    accept_length: str


def predict_servers(asked: AskedOfServers) -> Forecast:
    """Read the files and predict.

    Raises:
        InputError: an option or a file is wrong, or they do not go together.
    """
    if not asked.servers:
        option = "--drafting" if asked.drafting else "--speculation"
        raise InputError(
            f"{option} is given without --servers", expected="both, or neither", todo="name a run of bench-speculative"
        )
    named = list(dict.fromkeys(map(_parsed, asked.speculations)))
    run = read_serving_run(Path(asked.servers))
    drafting = read_serving_run(Path(asked.drafting)) if asked.drafting else None
    for file in (run, drafting):
        if file is not None:
            _require_speculations(file)
    wanted = named or _speculations(run)
    if not wanted:
        raise InputError(
            f"run file {run.path} holds no speculation, and none is named",
            expected="--speculation STEPS/TOPK/DRAFT-TOKENS, e.g. 2/1/3",
            todo="name one or more",
        )
    return forecast(
        run,
        _with_accept_length(wanted, asked.accept_length),
        drafting=drafting,
        allreduce_run=read_run(Path(asked.run)) if asked.run else None,
    )


def _parsed(text: str) -> Wanted:
    found = _SPECULATION.fullmatch(text)
    if found:
        steps, topk, tokens = map(int, found.groups())
        speculation = Speculation(algorithm="", steps=steps, topk=topk, draft_tokens=tokens)
        if _fits(speculation) and (topk > 1 or tokens == steps + 1):
            return Wanted(kind=speculation.label.replace("/", "-"), speculation=speculation)
    raise InputError(f"--speculation is {short(text)}", expected=_FORM, todo="correct it")


def _fits(speculation: Speculation) -> bool:
    numbers = (speculation.steps, speculation.topk, speculation.draft_tokens)
    return all(least <= number <= most for least, number, most in zip((1, 1, 2), numbers, _MOST, strict=True))


def _require_speculations(run: ServingRun) -> None:
    """Those of a file, which nothing else bounds."""
    for arm in run.header.plan.arms:
        found = arm.spec.speculation
        if found and not _fits(found):
            raise InputError(
                f"arm {arm.name} of {run.path} speculates {short(found.label)}",
                expected=_FORM,
                todo="name a run file as bench-speculative wrote it",
            )


def _speculations(run: ServingRun) -> list[Wanted]:
    """Those that a run's arms have, each once."""
    found: dict[str, Wanted] = {}
    for arm in run.header.plan.arms:
        if arm.spec.speculation:
            kind = arm.name.partition("/")[2]
            found.setdefault(kind, Wanted(kind=kind, speculation=arm.spec.speculation))
    return list(found.values())


def _with_accept_length(wanted: Sequence[Wanted], text: str) -> list[Wanted]:
    if not text:
        return list(wanted)
    found = parse_span(text, "--accept-length")
    most = 1 + min(one.speculation.steps for one in wanted)
    if found.low < found.high or not 1 <= found.low <= most:
        raise InputError(
            f"--accept-length is {short(text)}",
            expected=f"one number, 1 to {most}: the target's token, and one for each of the fewest steps asked for",
            todo="correct it, or name fewer speculations with --speculation",
        )
    return [replace(one, accept_length=found.low) for one in wanted]
