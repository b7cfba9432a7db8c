"""Shows what preflight found: tables for people, Markdown for the docs, JSON for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from images.conditions import Evidence
from images.preflight import Finding, Report
from images.rules import Verdict

_STYLES = {
    Verdict.STARTS: "bold green",
    Verdict.FALLS_BACK: "yellow",
    Verdict.FAILS: "bold red",
    Verdict.ABSENT: "dim",
    Verdict.UNKNOWN: "bold yellow",
}


def show(report: Report) -> RenderableType:
    """Every approach with its verdict, by group, and what would change it."""
    lines: list[RenderableType] = [_heading(report)]
    for group, findings in groupby(report.findings, key=lambda finding: finding.approach.group):
        lines += [Text(f"\n{group}", style="bold"), _table(list(findings))]
    lines += [Text(f"remark: {remark}") for remark in report.remarks]
    return Group(*lines)


def _heading(report: Report) -> Text:
    counts = [(verdict, sum(f.verdict is verdict for f in report.findings)) for verdict in Verdict]
    text = Text(f"{report.toolchain} on {report.box.gpus} SM120 GPUs over PCIe: ")
    text.append(", ".join(f"{count} {verdict}" for verdict, count in counts if count), style="bold")
    read = [f"CUDA {report.box.cuda}", *(f"{name} {version}" for name, version in report.versions.items())]
    return text.append(f"\nread: {report.where}: {', '.join(read)}")


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for finding in findings:
        verdict = Text(str(finding.verdict), style=_STYLES[finding.verdict])
        table.add_row(finding.approach.id, verdict, summary(finding))
    return table


def summary(finding: Finding) -> str:
    """In one line: what it ends in, or why; where it starts, only what to heed."""
    rule = finding.rule
    if rule is None:
        return finding.reason
    parts = [] if finding.verdict is Verdict.STARTS else [rule.error or rule.why]
    if rule.needs:
        parts.append(f"needs {', '.join(rule.needs)}")
    return "; ".join([*parts, *([rule.note] if rule.note else [])])


def explain(report: Report, finding: Finding) -> RenderableType:
    """Everything that is known of one approach."""
    title = Text(f"{finding.approach.name} on {report.toolchain}: ")
    title.append(str(finding.verdict), style=_STYLES[finding.verdict])
    lines = [title, *(Text(f"  {what:<9}{text}") for what, text in _facts(finding) if text)]
    lines += [Text(f"  {'evidence':<9}{place(item)}: {item.text}") for item in finding.evidence]
    return Group(*lines)


def _facts(finding: Finding) -> list[tuple[str, str]]:
    rule = finding.rule
    facts = [("switch", finding.approach.switch), ("why", finding.reason)]
    if rule is None:
        return facts
    return [
        *facts,
        ("ends in", rule.error),
        ("needs", ", ".join(rule.needs)),
        ("unblock", rule.unblock),
        ("note", rule.note),
        ("rule", rule.id),
        ("source", rule.source),
    ]


def place(evidence: Evidence) -> str:
    """Where a fact stands: file:line."""
    return f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file


def side_by_side(reports: Sequence[Report]) -> RenderableType:
    """One line an approach, one column a toolchain; lines that differ are marked with *."""
    heads = [_heading(report) for report in reports]
    remarks = [Text(f"remark: {report.toolchain}: {remark}") for report in reports for remark in report.remarks]
    how = Text(
        "* differs. What each ends in or needs: --toolchain NAME; evidence, and what would unblock it: --approach ID"
    )
    return Group(*heads, "", _matrix(reports), "", *remarks, how)


def _matrix(reports: Sequence[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("approach", no_wrap=True)
    for report in reports:
        table.add_column(report.toolchain, no_wrap=True)
    for row in zip(*(report.findings for report in reports), strict=True):
        verdicts = [finding.verdict for finding in row]
        mark = "*" if len(set(verdicts)) > 1 else ""
        table.add_row(mark, row[0].approach.id, *(Text(str(v), style=_STYLES[v]) for v in verdicts))
    return table


def markdown(reports: Sequence[Report]) -> str:
    """The compatibility matrix for the docs, with versions and dates."""
    names = [report.toolchain for report in reports]
    lines = [f"| Approach | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    lines += [
        f"| {row[0].approach.name} | {' | '.join(_cell(finding) for finding in row)} |"
        for row in zip(*(report.findings for report in reports), strict=True)
    ]
    for report in reports:
        pinned = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        read = f"{report.where}, read {report.date[:10]}, for {report.box.gpus} GPUs"
        lines += ["", f"{report.toolchain}: CUDA {report.box.cuda}, {pinned}; {read}."]
    return "\n".join(lines) + "\n"


def _cell(finding: Finding) -> str:
    text = summary(finding)
    shown = f"**{finding.verdict}**" + (f": {text}" if text else "")
    return shown.replace("|", "\\|").replace("\n", " ")


def document(report: Report) -> dict[str, Any]:
    """What preflight.json holds; docs/preflight.md explains it."""
    return {
        "preflight": 1,
        "toolchain": report.toolchain,
        "read": report.where,
        "date": report.date,
        "box": {"cuda": report.box.cuda, "arch": dict(report.box.arch), "gpus": report.box.gpus, "capability": "12.0"},
        "versions": dict(report.versions),
        "remarks": list(report.remarks),
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    rule = finding.rule
    return {
        "approach": finding.approach.id,
        "name": finding.approach.name,
        "group": str(finding.approach.group),
        "switch": finding.approach.switch,
        "verdict": str(finding.verdict),
        "why": finding.reason,
        "rule": rule.id if rule else None,
        "error": rule.error if rule else "",
        "needs": list(rule.needs) if rule else [],
        "unblock": rule.unblock if rule else "",
        "note": rule.note if rule else "",
        "source": rule.source if rule else "",
        "evidence": [asdict(item) for item in finding.evidence],
    }
