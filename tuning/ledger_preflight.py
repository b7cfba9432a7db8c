"""What preflight found, as part of the ledger: whether an approach can start is evidence, for or against a verdict."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from tuning.ledger import ANY, NVLINK_PAIR, Change, Entry, Evidence, EvidenceKind, Standing, Verdict, component
from tuning.workload import short

FORMAT = 1
"""Of preflight's document; another is refused."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What preflight found of one approach (docs/preflight.md).

    Attributes:
        approach: its id.
        verdict: one of `PREFLIGHT_VERDICTS`.
        why: the rule's reason.
        rule: the rule that decided; "" where none did.
        error: what the approach ends in, or what runs in its place; "" for none.
        unblock: what would change it; "" for not known.
    """

    approach: str
    verdict: str
    why: str
    rule: str
    error: str
    unblock: str


STOPS = ("falls back", "fails", "absent")
PREFLIGHT_VERDICTS = ("starts", *STOPS, "unknown")


@dataclass(frozen=True, kw_only=True)
class PreflightResult:
    """A toolchain's preflight.json.

    Attributes:
        toolchain: whose.
        date: when it was made.
        read: what was read: wheels, an environment, an image.
        cuda: the toolchain's CUDA.
        gpus: SM120 GPUs that work together.
        versions: of the components, by distribution.
        findings: one an approach.
        origin: the file.
    """

    toolchain: str
    date: dt.date
    read: str
    cuda: str
    gpus: int
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]
    origin: str

    @property
    def state(self) -> Mapping[str, str]:
        """What it holds for, in the words of `Reopening.what`."""
        return {"cuda": self.cuda, **{component(name): version for name, version in self.versions.items()}}


def preflight_result(document: object, where: str) -> PreflightResult:
    """A result from the document that preflight writes (docs/preflight.md).

    Raises:
        ValueError: the document is another; the message says where.
    """
    top = _mapping(document, "the document")
    if _value(top, "preflight") != FORMAT:
        raise ValueError(f"preflight, the format, is {short(top['preflight'])}")
    box = _mapping(_value(top, "box"), "box")
    gpus, findings = _value(box, "gpus"), _value(top, "findings")
    if not isinstance(gpus, int):
        raise ValueError(f"gpus is {short(gpus)}")
    if not isinstance(findings, list):
        raise ValueError(f"findings is {short(findings)}")
    versions = _mapping(_value(top, "versions"), "versions")
    return PreflightResult(
        toolchain=_line(top, "toolchain"),
        date=_date(_line(top, "date")),
        read=_line(top, "read"),
        cuda=_line(box, "cuda"),
        gpus=gpus,
        versions={name: _version(name, _line(versions, name)) for name in versions},
        findings=tuple(_finding(_mapping(finding, "a finding")) for finding in findings),
        origin=where,
    )


def _finding(stated: Mapping[str, Any]) -> Finding:
    undecided = _value(stated, "verdict") == "unknown" and _value(stated, "rule") is None
    names = ("approach", "verdict", "why", "error", "unblock")
    finding = Finding(**{name: _line(stated, name) for name in names}, rule="" if undecided else _line(stated, "rule"))
    if finding.verdict not in PREFLIGHT_VERDICTS or not finding.approach:
        raise ValueError(f"the verdict on {short(finding.approach)} is {short(finding.verdict)}")
    return finding


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {short(value)}")
    return value


def _value(stated: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    if name not in stated:
        raise ValueError(f"{name} is missing")
    return stated[name]


def _line(stated: Mapping[str, Any], name: str) -> str:
    value = _value(stated, name)
    if not isinstance(value, str):
        raise ValueError(f"{short(name)} is {short(value)}")
    return " ".join("".join(c if c.isprintable() else " " for c in value).split())


def _date(text: str) -> dt.date:
    try:
        return dt.datetime.fromisoformat(text).date()
    except ValueError as error:
        raise ValueError(f"date is {short(text)}") from error


def _version(name: str, text: str) -> str:
    try:
        return str(Version(text))
    except ValueError as error:  # InvalidVersion is one; so is that of a number with thousands of digits
        raise ValueError(f"the version of {short(name)} is {short(text)}") from error


def join(standings: Iterable[Standing], results: Iterable[PreflightResult]) -> tuple[Standing, ...]:
    """The standings with what preflight found: as evidence where it agrees; where not, the newer of both holds.

    Args:
        standings: each subject once.
        results: of preflight; where one is of an entry's date, it wins.
    """
    known = {standing.entry.key: standing for standing in standings}
    for result in results:
        for finding in result.findings:
            known |= {standing.entry.key: standing for standing in _joined(tuple(known.values()), result, finding)}
    return tuple(sorted(known.values(), key=lambda standing: standing.entry.key))


def _joined(standings: Sequence[Standing], result: PreflightResult, finding: Finding) -> list[Standing]:
    """What a finding adds or changes. It speaks of one toolchain, and of every node of PCIe."""
    about = [
        standing
        for standing in standings
        if standing.entry.approach == finding.approach and standing.entry.node_class != NVLINK_PAIR
    ]
    own = [standing for standing in about if standing.entry.toolchain == result.toolchain]
    general = [standing for standing in about if standing.entry.toolchain == ANY]
    told = _told(result, finding)
    if not own and not general:
        return [Standing(entry=told)]
    # A verdict on all toolchains is not overthrown by one of them: `told` then becomes a verdict of its own beside it.
    return [_confronted(standing, told, finding) for standing in own or general]


def _confronted(standing: Standing, told: Entry, finding: Finding) -> Standing:
    entry = standing.entry
    if _agree(entry.verdict, finding.verdict):
        return replace(standing, entry=replace(entry, evidence=(*entry.evidence, *told.evidence)))
    if told.date >= entry.date:
        return Standing(entry=replace(told, node_class=entry.node_class), against=(entry, *standing.against))
    return replace(standing, against=(told, *standing.against))


def _agree(verdict: Verdict, found: str) -> bool:
    """What starts may work, be dominated, faulty or unknown; what does not start is unsupported, and nothing else."""
    return found == "unknown" or (verdict is Verdict.UNSUPPORTED) == (found in STOPS)


def _told(result: PreflightResult, finding: Finding) -> Entry:
    """A finding as an entry: to start is no proof of anything, so what starts is unknown."""
    why = finding.why
    if finding.verdict == "starts":
        why = f"starts, and was not measured: {why}"
    ends = f": {finding.error}" if finding.error else ""
    unblock = f"; would change: {finding.unblock}" if finding.unblock else ""
    rule = f"{finding.rule or 'no rule'} on {result.toolchain}"
    says = f"{finding.verdict}{ends} ({result.read}, {result.gpus} GPUs, {result.date}){unblock}"
    return Entry(
        approach=finding.approach,
        toolchain=result.toolchain,
        node_class=ANY,
        verdict=Verdict.UNSUPPORTED if finding.verdict in STOPS else Verdict.UNKNOWN,
        date=result.date,
        why=why,
        evidence=(Evidence(kind=EvidenceKind.PREFLIGHT, where=rule, says=says),),
        origin=result.origin,
    )


def unseen(results: Iterable[PreflightResult], changes: Sequence[Change]) -> tuple[tuple[PreflightResult, Change], ...]:
    """Changes of what preflight results were made for; none where one of them was made for all the changes."""
    results = tuple(results)
    if any(all(result.state.get(change.what) == change.value for change in changes) for result in results):
        return ()
    return tuple(
        (result, change)
        for result in results
        for change in changes
        if result.state.get(change.what, change.value) != change.value
    )
