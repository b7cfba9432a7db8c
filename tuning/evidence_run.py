"""Reads a run file of this toolkit: its latencies, its failures, and what its node record and NCCL settings say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from lanewise.errors import InputError
from tuning.evidence import Latency, Reading, Sign
from tuning.evidence_node import record_models, record_signs
from tuning.runfile import Kind, Run, read_run
from tuning.trial import Status, Trial

_HOST_MEMORY = "p2p_off"
"""The candidate that sends through host memory on purpose (tuning/candidates.py)."""
_NO_SLOWER = 1.15
"""Host memory costs 1.7 times as much at 14 KB, and more above (docs/findings.md): less shows it is in use anyway."""


def read_run_file(path: Path, *, name: str) -> Reading:
    """What a run file tells.

    Raises:
        InputError: it is damaged, or no measurement of GPUs.
    """
    run = read_run(path)
    if run.header.plan.engine != "cuda" or run.header.kind is not Kind.MEASURED:
        raise InputError(
            f"run file {name} is of engine {run.header.plan.engine}, and its numbers are {run.header.kind}",
            expected="measurements of GPUs: of engine cuda",
            todo="./inv compare shows this one; there is nothing to diagnose",
        )
    baseline = run.header.plan.baseline
    latencies = tuple(_latencies(run, baseline, name))
    return Reading(
        path=name,
        kind="run file",
        said=(f"{len(run.trials)} trials, {len(latencies)} cases of {baseline}", f"{run.header.plan.ranks} ranks"),
        signs=tuple(_signs(run, latencies, name)),
        latencies=latencies,
        models=record_models(run.header.node),
        ranks=run.header.plan.ranks,
    )


def _latencies(run: Run, candidate: str, name: str) -> Iterator[Latency]:
    """The candidate's median over launches of each case with warm buffers."""
    sizes = {message.name: message.bytes for message in run.header.plan.workload.messages}
    found: dict[tuple[int, str], list[float]] = {}
    for trial in run.trials:
        if trial.candidate == candidate and trial.ok and trial.working_set == "warm" and trial.message in sizes:
            found.setdefault((sizes[trial.message], trial.mode), []).append(trial.median)
    for (size, mode), values in sorted(found.items()):
        us = statistics.median(values)
        yield Latency(size=size, us=us, ranks=run.header.plan.ranks, mode=mode, where=name)


def _signs(run: Run, latencies: tuple[Latency, ...], name: str) -> Iterator[Sign]:
    yield from record_signs(run.header.node, name)
    failed = [trial for trial in run.trials if not trial.ok]
    yield from _failures(failed, name)
    baseline = run.header.plan.baseline
    choices = {
        str(trial.choice.get("protocol")) for trial in run.trials if trial.candidate == baseline and trial.choice
    }
    if choices == {"LL"}:
        yield Sign(name="chose-ll-when-small", text="NCCL says it ran LL at every size", where=name)
    off = {(x.size, x.mode): x.us for x in _latencies(run, _HOST_MEMORY, name)}
    ratios = [off[x.size, x.mode] / x.us for x in latencies if (x.size, x.mode) in off]
    if ratios and statistics.median(ratios) < _NO_SLOWER:
        text = f"without P2P it takes {statistics.median(ratios):.2f} times as long as with it"
        yield Sign(name="p2p-off-no-slower", text=text, where=name)


def _failures(failed: list[Trial], name: str) -> Iterator[Sign]:
    timed_out = [trial for trial in failed if trial.status is Status.TIMED_OUT]
    wrong = [trial for trial in failed if trial.status is Status.WRONG_RESULT]
    memory = [trial for trial in failed if "out of memory" in trial.reason.lower()]
    for sign, trials in (("trial-timed-out", timed_out), ("nccl-wrong-sums", wrong), ("out-of-memory", memory)):
        if trials:
            text = f"{len(trials)} trials, the first of {trials[0].candidate}: {trials[0].reason[:100]}"
            yield Sign(name=sign, text=text, where=name)
