"""What the verb `compare` does with runs of servers: what is compared, where differences come from, what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from tuning.runfile import Run, read_run
from tuning.serving import view
from tuning.serving.attribution import Attribution, attribute
from tuning.serving.compare import compare_serving_names, serving_overview
from tuning.serving.comparison import Comparison
from tuning.serving.runfile import ServingRun
from tuning.serving.sides import known_names
from tuning.stats import Outcome


def compare_servers(
    files: Sequence[ServingRun],
    a: str,
    b: str,
    *,
    allreduce_run: str,
    wanted: set[Outcome],
    every_row: bool,
    json: bool,
) -> ExitCode | None:
    """Compare and print.

    Args:
        files: one run, or two, which are described only: A of the first, B of the second.
        a, b: names of arms; both "" for everything that the run answers.
        allreduce_run: bench-allreduce run of the same node, for where differences come from; "" for none.
        wanted: outcomes that are answered with ANSWER_IS_NO.
        every_row: whether each number of requests counts for that by itself.
        json: print as JSON.

    Raises:
        InputError: unknown names, or names that do not go together.
    """
    first, last = files[0], files[-1]
    if bool(a) != bool(b):
        raise InputError(
            f"only {a or b!r} is named",
            expected=f"two names, or none: {', '.join(known_names(first))}",
            todo="name what to compare it with",
        )
    reduced = read_run(Path(allreduce_run)) if allreduce_run else None
    if not a and first is last:
        found = list(serving_overview(first))
    else:
        names = (a, b) if a else (first.header.plan.baseline, last.header.plan.baseline)
        found = compare_serving_names(first, names[0], last, names[1])
    made = [(comparison, attributed(comparison, reduced)) for comparison in found]
    failed = [line for file in files for line in view.failures(file)]
    if json:
        documents = [view.to_document(comparison, attributions) for comparison, attributions in made]
        runs = [str(file.path) for file in files]
        talk.put_json({"run": runs[0], "runs": runs, "comparisons": documents, "failures": failed})
    else:
        _put(files, made, failed)
    outcomes = {outcome for comparison in found for outcome in comparison.outcomes(every_row=every_row)}
    return ExitCode.ANSWER_IS_NO if wanted & outcomes else None


def attributed(comparison: Comparison, allreduce_run: Run | None) -> list[Attribution]:
    """Where the difference comes from, at every number of requests; of one run only, whose starts pair."""
    if comparison.a.run.path != comparison.b.run.path:
        return []
    found = (attribute(comparison.a, comparison.b, row.concurrency, allreduce_run) for row in comparison.rows)
    return [attribution for attribution in found if attribution is not None]


def _put(
    files: Sequence[ServingRun], made: Sequence[tuple[Comparison, list[Attribution]]], failed: Sequence[str]
) -> None:
    for comparison, attributions in made:
        # Where step times are the same there is nothing to ascribe.
        same = {row.concurrency for row in comparison.rows if row.step.outcome is Outcome.SAME}
        shown = [attribution for attribution in attributions if attribution.concurrency not in same]
        talk.put(view.show(comparison, shown))
        talk.put("")
    if not made:
        talk.put("one arm in one environment: nothing to compare; ./inv report shows its numbers")
    if failed:
        talk.put(view.show_failures(failed))
    for file in files:
        if file.torn:
            talk.put(f"warning: the last line of {file.path} is torn and was left out; --resume goes on from there")
    talk.put(view.legend())
    talk.put(f"\nrun file: {', '.join(shown_path(file.path) for file in files)}")
