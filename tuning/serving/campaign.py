"""Runs a plan of servers into one run file: failures are results, and what is missing is found again."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lanewise.errors import InputError
from lanewise.redact import Redactor
from tuning.campaign import host_pairs, require_unchanged
from tuning.described import describe_environment, without_tags
from tuning.differences import differences
from tuning.provenance import node_record, relevant_variables, toolkit_revision
from tuning.runfile import Kind
from tuning.scratch import require_scratch
from tuning.serving.plan import ServingPlan, validate
from tuning.serving.prepared import Prepared, prepare
from tuning.serving.prompts import Prompt
from tuning.serving.runfile import ServingHeader, ServingRun, ServingWriter, read_serving_run
from tuning.serving.starts import Report, Starts, Step

_CLIENT = Path(__file__).parent / "client.py"
_MOST_DIFFERENCES = 4
"""Between two plans that are named; an option often differs in every arm."""


def start_run(
    plan: ServingPlan,
    prompts: Sequence[Prompt],
    path: Path,
    report: Report,
    *,
    command: Sequence[str],
    minutes: float = 0,
    profile: bool = False,
) -> ServingRun:
    """Run a plan into a new run file.

    Args:
        plan: what to measure.
        prompts: of one pass, as the plan names them.
        path: the run file; logs of its servers lie beside it, in a folder NAME.logs.
        report: told of every start.
        command: what was called, for the header.
        minutes: start no repetition that would be expected to end later than so many minutes from now; 0: no limit.
            At least two repetitions run; --resume does the others.
        profile: take a profile of every server after its passes.

    Raises:
        InputError: a value of the plan, an environment or the path is wrong, or a release cannot do what an arm wants.
        LanewiseError: the disk filled up; what was measured before is in the file.
    """
    validate(plan)
    require_scratch()
    held = _prepare(plan, report)
    header = _make_header(plan, command)
    with ServingWriter.begin(ServingRun(path=path, header=header)) as writer:
        return Starts(writer, prompts, held, report, profile=profile).run(minutes)


def resume_run(
    path: Path,
    plan: ServingPlan,
    prompts: Sequence[Prompt],
    report: Report,
    *,
    minutes: float = 0,
    profile: bool = False,
) -> ServingRun:
    """Go on with a run file: only what is missing runs.

    Args:
        path: the run file.
        plan: what the user asks for now: nothing that a file alone names is run, so it must be the file's.
        prompts, report, minutes, profile: as in `start_run`.

    Raises:
        InputError: the file is damaged, held by another writer or another user's, its plan is another, or machine,
            client or environments are not those that the run began with.
    """
    with ServingWriter.go_on(path, read_serving_run) as writer:
        header = writer.run.header
        require_scratch()
        require_same_plan(writer.run, plan)
        redact = Redactor(os.environ)
        require_unchanged(
            path,
            [
                ("client", header.worker, _client_identity()),
                *host_pairs(header),
                *(
                    (
                        f"environment {env.name}",
                        without_tags(header.environments[env.name]),
                        without_tags(describe_environment(env, redact)),
                    )
                    for env in plan.environments
                ),
            ],
        )
        return Starts(writer, prompts, _prepare(plan, report), report, profile=profile).run(minutes)


def _prepare(plan: ServingPlan, report: Report) -> Mapping[str, Prepared]:
    return prepare(plan, lambda what: report(Step(done=0, total=0, remark=what)))


def require_same_plan(run: ServingRun, plan: ServingPlan) -> None:
    """Refuse to go on with a run that was begun with another plan.

    Raises:
        InputError: what differs, and how it was begun.
    """
    stored, asked = run.header.plan.to_dict(), plan.to_dict()
    if stored == asked and all(start.plan == plan.identity for start in run.starts.values()):
        return
    others = differences(stored, asked)
    raise InputError(
        f"{run.path} was begun with another plan than these options make"
        + (f" (there / here): {'; '.join(_few(others))}" if others else ", or changed since"),
        expected="the options that it was begun with: what a run file alone names is never run",
        todo=f"repeat them beside --resume; it was called as: {shlex.join(run.header.command)}",
    )


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_DIFFERENCES
    return [*lines[:_MOST_DIFFERENCES], *([f"{more} more"] if more > 0 else [])]


def _make_header(plan: ServingPlan, command: Sequence[str]) -> ServingHeader:
    redact = Redactor(os.environ)
    return ServingHeader(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=Kind.MEASURED,
        plan=plan,
        toolkit=toolkit_revision(),
        node=node_record(),
        environments={env.name: describe_environment(env, redact) for env in plan.environments},
        worker=_client_identity(),
        variables=relevant_variables(os.environ),
        command=redact.all(command),
    )


def _client_identity() -> dict[str, str]:
    return {"name": _CLIENT.name, "sha256": hashlib.sha256(_CLIENT.read_bytes()).hexdigest()}
