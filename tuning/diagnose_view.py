"""A diagnosis as text and as a JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from tuning.causes import expected
from tuning.diagnose import NAMED, POSSIBLE, Diagnosis, Judged, Ranked, Verdict, search_fails_unasked
from tuning.evidence import Evidence
from tuning.repair_worth import Worth
from tuning.speculation_model import Span

_MOST_SHOWN = 5
_ALIKE = 3.0
"""Points within which one cause is not called likelier than another: two to one."""
_FEW_SIZES = 3
FIRST_COMMAND = (
    "./inv bench-allreduce --engine cuda --workload rows-of-7168 --modes graph,eager --working-sets warm "
    "--candidates default,ring_ll,ring_simple,p2p_off"
)
FIRST_WHY = (
    "measure 14, 28, 42 and 56 KiB in one graph first. As expected there: launching or late ranks, not the fabric. "
    "Slow at all sizes alike: transport, search or redirect. More than 1 us a KiB: a collapsed or narrow link. "
    "A jump between two sizes: a change of protocol"
)


def first_step(diagnosis: Diagnosis) -> tuple[str, str]:
    """What to do first, and why: the sweep in one graph, unless it was made or something is named already."""
    graphs = {judged.latency.size for judged in diagnosis.judged if judged.latency.mode == "graph"}
    if diagnosis.named:
        return diagnosis.named[0].cause.next, f"it tells most about: {diagnosis.named[0].cause.name}"
    if diagnosis.slow and len(graphs) < _FEW_SIZES:
        return FIRST_COMMAND, FIRST_WHY
    if diagnosis.slow:
        return diagnosis.ranked[0].cause.next, f"the likeliest is: {diagnosis.ranked[0].cause.name}"
    return "", ""


def plan_step(evidence: Evidence, topology: str) -> tuple[str, str]:
    """How to ask for NCCL's plan, and why: where its search is known to fail on such a node, and was not looked at.

    Args:
        evidence: what is known of the host.
        topology: the node as the user named it; "" where it was not named.
    """
    if not topology or not search_fails_unasked(evidence):
        return "", ""
    command = f"./inv nccl-plan --topology {shlex.quote(topology)}"
    return command, "NCCL's plan was not consulted; before 2.31 its search fails between Zen 5 sockets"


def show(evidence: Evidence, diagnosis: Diagnosis, worth: Worth | None, *, topology: str = "") -> str:
    """The diagnosis for people; `topology` as in `plan_step`."""
    return "\n".join(_lines(evidence, diagnosis, worth, topology))


def _lines(evidence: Evidence, diagnosis: Diagnosis, worth: Worth | None, topology: str) -> Iterator[str]:
    yield _headline(diagnosis)
    yield ""
    for reading in evidence.readings:
        yield f"read {reading.path}: {reading.kind}; {'; '.join(reading.said)}"
    for judged in _sample(diagnosis.judged):
        yield _measured(judged, evidence.ranks)
    yield from diagnosis.notes
    for ranked in _shown(diagnosis):
        yield ""
        yield from _cause(ranked)
    for command, why in (first_step(diagnosis), plan_step(evidence, topology)):
        if command:
            yield ""
            yield f"next: {command}"
            yield f"      {why}"
    if worth:
        yield from ("", *_worth(worth))


def _headline(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict is not Verdict.FAULT:
        return diagnosis.verdict
    if diagnosis.named:
        return f"a fault: {diagnosis.named[0].cause.name}"
    alike = [ranked for ranked in diagnosis.ranked if ranked.points >= diagnosis.ranked[0].points - _ALIKE]
    return f"a fault; what of is not clear yet, likeliest: {'; or '.join(ranked.cause.name for ranked in alike)}"


def _sample(judged: tuple[Judged, ...]) -> list[Judged]:
    """The worst of them, in the order of sizes."""
    worst = sorted(judged, key=lambda entry: -entry.excess)[:8]
    return sorted(worst, key=lambda entry: (entry.latency.mode, entry.latency.size))


def _measured(judged: Judged, ranks: int) -> str:
    latency, (low, high) = judged.latency, judged.span
    mode = f" ({latency.mode})" if latency.mode else ""
    beyond = f": {judged.excess:.1f} times the worst" if judged.excess >= expected().fault_from else ""
    return (
        f"measured {latency.size:,} B {latency.us:.1f} us{mode}; expected with {latency.ranks or ranks} ranks "
        f"{low:.0f} to {high:.0f} us (predicted){beyond}"
    )


def _shown(diagnosis: Diagnosis) -> tuple[Ranked, ...]:
    """All that are possible where there is a fault; otherwise those that something speaks for."""
    least = POSSIBLE if diagnosis.slow and not diagnosis.named else NAMED / 4
    return tuple(ranked for ranked in diagnosis.ranked if ranked.points >= least and ranked.because)[:_MOST_SHOWN]


def strength(points: float) -> str:
    """Points in words."""
    if points >= 2 * NAMED:
        return "settled"
    return "likely" if points >= NAMED else "possible" if points >= POSSIBLE else "unlikely"


def _cause(ranked: Ranked) -> Iterator[str]:
    cause = ranked.cause
    yield f"{strength(ranked.points)} ({ranked.points:+.0f}): {cause.name}"
    yield f"    {cause.means}"
    for points, sign in ranked.because:
        yield f"    {points:+4.0f}  {sign.text} ({sign.where})"
    yield f"    expected: {cause.expected}"
    yield f"    check:    {cause.next}"
    yield f"    remedy:   {cause.remedy}"
    yield f"    source:   {cause.source}"


def _worth(worth: Worth) -> Iterator[str]:
    yield (
        f"a repair is worth {_span(worth.saved_ms, 1)} ms a pass ({worth.calls} calls of {worth.size:,} B at "
        f"{worth.us:g} us; predicted)"
    )
    if worth.then is None:
        yield f"    {worth.assumed}: these contradict each other, since the calls alone take longer than a step"
    else:
        yield f"    {_span(worth.now)} tokens/s now, {_span(worth.then)} then (predicted; {worth.assumed})"


def _span(span: Span, digits: int = 0) -> str:
    low, high = f"{span.low:.{digits}f}", f"{span.high:.{digits}f}"
    return low if low == high else f"{low} to {high}"


def document(evidence: Evidence, diagnosis: Diagnosis, worth: Worth | None, *, topology: str = "") -> dict[str, Any]:
    """The diagnosis for programs; what is predicted says so; `topology` as in `plan_step`."""
    command, why = first_step(diagnosis)
    plan, unasked = plan_step(evidence, topology)
    return {
        "diagnosis": 1,
        "verdict": diagnosis.verdict.value,
        "named": [ranked.cause.id for ranked in diagnosis.named],
        "read": [{"file": r.path, "kind": r.kind, "said": list(r.said)} for r in evidence.readings],
        "measured": [
            {
                "bytes": judged.latency.size,
                "us": judged.latency.us,
                "mode": judged.latency.mode,
                "ranks": judged.latency.ranks or evidence.ranks,
                "where": judged.latency.where,
                "expected_us": {"low": judged.span[0], "high": judged.span[1], "predicted": True},
                "times_the_worst": judged.excess,
            }
            for judged in diagnosis.judged
        ],
        "causes": [
            {
                "cause": ranked.cause.id,
                "name": ranked.cause.name,
                "points": ranked.points,
                "strength": strength(ranked.points),
                "because": [
                    {"points": points, "sign": sign.name, "text": sign.text, "where": sign.where}
                    for points, sign in ranked.because
                ],
                "expected": ranked.cause.expected,
                "next": ranked.cause.next,
                "remedy": ranked.cause.remedy,
                "source": ranked.cause.source,
            }
            for ranked in diagnosis.ranked
            if ranked.because
        ],
        "next": {"command": command, "why": why},
        "next_plan": {"command": plan, "why": unasked},
        "worth": _worth_document(worth),
        "notes": list(diagnosis.notes),
    }


def _worth_document(worth: Worth | None) -> dict[str, Any] | None:
    if worth is None:
        return None
    return {
        "predicted": True,
        "bytes": worth.size,
        "calls": worth.calls,
        "us": worth.us,
        "saved_ms": vars(worth.saved_ms),
        "tokens_per_second_now": vars(worth.now),
        "tokens_per_second_then": vars(worth.then) if worth.then else None,
        "assumed": worth.assumed,
    }
