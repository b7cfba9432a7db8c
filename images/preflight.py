"""Decides for each approach whether it can start: the first rule whose conditions all hold, and the lines that tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from images.conditions import Box, Evidence, Subject, ask
from images.rules import Approach, Rule, Verdict
from images.snapshot import Snapshot

_NO_RULE = "no rule decides for these packages"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What becomes of one approach.

    Attributes:
        approach: what was judged.
        verdict: the decision.
        rule: the rule that decided; None where none did.
        evidence: the facts on which it did.
        reason: why; where nothing decides, what could not be read.
    """

    approach: Approach
    verdict: Verdict
    rule: Rule | None
    evidence: tuple[Evidence, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What preflight found for one toolchain.

    Attributes:
        toolchain: its name.
        where: what was read: wheels, an environment, an image.
        box: what the packages would run on.
        versions: distribution to version as read, of those that the toolchain pins.
        findings: one an approach.
        remarks: faults of packages, and versions other than the pinned ones.
        date: of the reading, ISO 8601.
    """

    toolchain: str
    where: str
    box: Box
    versions: Mapping[str, str]
    findings: Sequence[Finding]
    remarks: Sequence[str]
    date: str


def judge(approaches: Iterable[Approach], snapshot: Snapshot, box: Box) -> tuple[Finding, ...]:
    """One finding an approach, in their order."""
    subject = Subject(snapshot=snapshot, box=box)
    return tuple(_judge(approach, subject) for approach in approaches)


def _judge(approach: Approach, subject: Subject) -> Finding:
    """Go through the rules; one that can be neither applied nor ruled out ends the search: it might have decided."""
    for rule in approach.rules:
        answers = [ask(name, parameters, subject) for name, parameters in rule.when]
        if any(answer.holds is False for answer in answers):
            continue
        if unclear := [answer.reason for answer in answers if answer.holds is None]:
            return Finding(
                approach=approach,
                verdict=Verdict.UNKNOWN,
                rule=None,
                evidence=(),
                reason="; ".join(dict.fromkeys(unclear)),
            )
        evidence = tuple(dict.fromkeys(item for answer in answers for item in answer.evidence))
        return Finding(approach=approach, verdict=rule.verdict, rule=rule, evidence=evidence, reason=rule.why)
    return Finding(approach=approach, verdict=Verdict.UNKNOWN, rule=None, evidence=(), reason=_NO_RULE)
