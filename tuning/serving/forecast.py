"""What speculation would take on servers of which only the baseline is known. Pure; docs/speculation-model.md.

    T_s = pass(rows) + D        break-even = T_s / T_b        rate = requests tau / T_s

Steps measured with speculation in the same run never enter a prediction: they stand beside it, with its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lanewise.errors import InputError
from tuning.runfile import Run
from tuning.runlines import Kind
from tuning.serving.estimates import certain
from tuning.serving.forecast_drafting import drafting_from, published_drafting, speculative_arms
from tuning.serving.forecast_pass import (
    LEAST_STEP_MS,
    Steps,
    UntoldError,
    step_of,
    steps_without,
    target_pass,
)
from tuning.serving.forecast_values import Cell, Forecast, Untold, Wanted
from tuning.serving.request import BASELINE
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import ServingSide

_ANY_CONTEXT = (
    "a row costs the same whoever it belongs to: the rows of one request, and one row each of as many requests"
)
_ONE_START = "of one start alone the spread is not known: "


def forecast(
    run: ServingRun, wanted: Sequence[Wanted], *, drafting: ServingRun | None = None, allreduce_run: Run | None = None
) -> Forecast:
    """Predict each speculation on each baseline of a run.

    Args:
        run: run of servers with baselines.
        wanted: speculations, at least one.
        drafting: another run of servers, which tells what drafting takes; None for the published constants.
        allreduce_run: of the same node, which tells how allreduces grow with rows.

    Raises:
        InputError: the run holds no baseline with numbers, or the other one is the same run or does not speculate.
    """
    _require_measured(run)
    if drafting is not None:
        _require_another(run, drafting)
    made = [one for side in _baselines(run) for one in _of_backend(side, wanted, drafting, allreduce_run)]
    cells = tuple(one for one in made if isinstance(one, Cell))
    untold = tuple(one for one in made if isinstance(one, Untold))
    if not cells and all(one.requests is None for one in untold):
        raise InputError(
            f"run file {run.path} holds no baseline with numbers",
            expected="servers without speculation that were measured",
            todo="measure them: ./inv bench-speculative, with or without --speculation",
        )
    return Forecast(
        run=str(run.path),
        drafting=str(drafting.path) if drafting else "",
        allreduce_run=str(allreduce_run.path) if allreduce_run else "",
        cells=cells,
        untold=untold,
        assumptions=tuple(dict.fromkeys(_assumptions(cells))),
    )


def _require_measured(run: ServingRun) -> None:
    if run.header.kind is not Kind.MEASURED:
        raise InputError(
            f"the times of run file {run.path} are {run.header.kind}", expected="measured ones", todo="name another"
        )


def _require_another(run: ServingRun, drafting: ServingRun) -> None:
    _require_measured(drafting)
    if drafting.header == run.header:
        raise InputError(
            f"--drafting {drafting.path} is the run of --servers",
            expected="another run: with its own drafting a run would judge itself",
            todo="name a run of another machine or day, or leave --drafting out",
        )
    if not speculative_arms(drafting):
        raise InputError(
            f"--drafting {drafting.path} holds no speculation with numbers",
            expected="a run of bench-speculative with --speculation, whose baselines were measured too",
            todo="name another, or leave --drafting out for published hosts' drafting",
        )


def _baselines(run: ServingRun) -> list[ServingSide]:
    plan = run.header.plan
    arms = [arm.name for arm in plan.arms if arm.name.endswith(f"/{BASELINE}") and arm.spec.speculation is None]
    return [ServingSide(environment=env.name, arm=arm, run=run) for env in plan.environments for arm in arms]


def _of_backend(
    side: ServingSide, wanted: Sequence[Wanted], drafting: ServingRun | None, allreduce_run: Run | None
) -> Iterator[Cell | Untold]:
    steps = steps_without(side)
    if drafting is None:
        steps = {number: step if step.low is not None else certain(step.value) for number, step in steps.items()}
    numbers = [number for number in side.concurrencies if number in steps]
    if not numbers:
        reason = "its baseline has no numbers (./inv compare says why)"
        yield Untold(environment=side.environment, backend=side.backend, wanted=None, requests=None, reason=reason)
    for one in wanted:
        for requests in numbers:
            try:
                yield _cell(side, steps, one, requests, drafting, allreduce_run)
            except UntoldError as why:
                yield Untold(
                    environment=side.environment,
                    backend=side.backend,
                    wanted=one,
                    requests=requests,
                    reason=str(why),
                )


def _cell(
    side: ServingSide,
    steps: Steps,
    wanted: Wanted,
    requests: int,
    drafting: ServingRun | None,
    allreduce_run: Run | None,
) -> Cell:
    speculation = wanted.speculation
    target = target_pass(steps, requests * speculation.draft_tokens, side, allreduce_run)
    if drafting is None:
        drafts = published_drafting(speculation.steps)
    else:
        drafts = drafting_from(drafting, side, speculation, requests, allreduce_run)
    arm = _arm_of(side, wanted)
    simulated = arm.spec.accept_length if arm else 0
    cell = Cell(
        environment=side.environment,
        backend=side.backend,
        wanted=wanted,
        requests=requests,
        baseline_ms=steps[requests],
        target=target,
        drafting=drafts,
        accept_length=wanted.accept_length or simulated or None,
        measured_ms=step_of(arm, requests) if arm else None,
        one_start=len(side.trials(requests)) == 1,
    )
    if cell.step_ms.value < LEAST_STEP_MS:
        raise UntoldError(f"pass and drafting come to {cell.step_ms.value:.3g} ms: {drafts.source} cannot hold here")
    return cell


def _arm_of(side: ServingSide, wanted: Wanted) -> ServingSide | None:
    """The arm that measured what is predicted."""
    arm = side.sibling(wanted.kind)
    speculation = arm.spec.speculation if arm else None
    return arm if speculation and speculation.label == wanted.speculation.label else None


def _assumptions(cells: Sequence[Cell]) -> Iterator[str]:
    if cells:
        yield _ANY_CONTEXT
    for cell in cells:
        if cell.target.assumption:
            yield cell.target.assumption
        yield from cell.drafting.assumptions
        if cell.one_start:
            yield _ONE_START + (
                "there is no range" if cell.step_ms.low is None else "ranges hold only what drafting may take"
            )
