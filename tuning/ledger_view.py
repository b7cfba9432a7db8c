"""Shows the ledger: tables and text for people, documents for programs. It concludes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from tuning.ledger import ANY, NVLINK_PAIR, Change, Entry, Reopened, Standing
from tuning.ledger_preflight import PreflightResult


def show(standings: Sequence[Standing]) -> RenderableType:
    """A line a verdict; one on several toolchains or node classes is one line."""
    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("approach", "toolchain", "nodes", "verdict", "since", "why"):
        view.add_column(heading, no_wrap=heading in ("approach", "verdict", "since"))
    for group in _groups(standings):
        entry, against = group[0].entry, group[0].against
        said = f" (against it: {', '.join(map(_short, against))})" if against else ""
        toolchains = sorted({standing.entry.toolchain for standing in group})
        nodes = sorted({standing.entry.node_class for standing in group})
        view.add_row(
            *(entry.approach, ", ".join(toolchains), ", ".join(nodes), str(entry.verdict), str(entry.date)),
            entry.why + said,
        )
    return view


def _short(entry: Entry) -> str:
    return f"{entry.verdict}, {entry.date}, {entry.origin}"


def _groups(standings: Iterable[Standing]) -> list[list[Standing]]:
    """Those that say the same of every toolchain with every node class among them; the others by themselves."""
    same: dict[tuple[object, ...], list[Standing]] = {}
    for standing in standings:
        entry = standing.entry
        content = (entry.approach, entry.verdict, entry.date, entry.why, entry.origin, entry.reopens, standing.against)
        same.setdefault(content, []).append(standing)
    groups = []
    for group in same.values():
        toolchains, nodes = ({standing.entry.key[part] for standing in group} for part in (1, 2))
        groups += [group] if len(group) == len(toolchains) * len(nodes) else [[standing] for standing in group]
    return groups


def explain(standing: Standing) -> str:
    """Everything known of one verdict."""
    entry = standing.entry
    lines = [f"{_about([standing])}: {entry.verdict}, {entry.date} ({entry.origin})", f"  {entry.why}"]
    if entry.believed:
        lines.append(f"  believed before: {entry.believed}")
    lines += [f"  {evidence.kind}: {evidence.where}: {evidence.says}" for evidence in entry.evidence]
    lines += [f"  reopened by {condition}: {condition.why}" for condition in entry.reopens]
    lines += [f"  against it: {_short(other)}: {other.why}" for other in standing.against]
    return "\n".join(lines)


def _about(group: Sequence[Standing]) -> str:
    toolchains, nodes = (sorted({standing.entry.key[part] for standing in group}) for part in (1, 2))
    toolchain = "any toolchain" if toolchains == [ANY] else ", ".join(toolchains)
    node = "any PCIe node" if nodes == [ANY] else ", ".join(nodes)
    note = " (two H200 over NVLink, not SM120)" if NVLINK_PAIR in nodes else ""
    return f"{group[0].entry.approach} on {toolchain}, {node}{note}"


def show_reopened(
    found: Sequence[Reopened], stale: Sequence[tuple[PreflightResult, Change]], changes: Sequence[Change]
) -> str:
    """What changes reopen and why, and which preflight results they leave behind."""
    said = ", ".join(f"{change.what} {change.value}" for change in changes)
    lines = [f"{said} reopens {len(found) or 'no'} verdict{'' if len(found) == 1 else 's'}" + (":" if found else "")]
    reasons = {item.standing.entry.key: item.reasons for item in found}
    for same in _groups(item.standing for item in found):
        entry = same[0].entry
        lines.append(f"{_about(same)}: {entry.verdict} since {entry.date}")
        conditions = dict.fromkeys(condition for _, condition in reasons[entry.key])
        lines += [f"  {condition}: {condition.why}" for condition in conditions]
    for result, group in groupby(stale, key=lambda pair: pair[0]):
        pairs = [change for _, change in group]
        was = ", ".join(f"{change.what} {result.state[change.what]}" for change in pairs)
        lines.append(f"preflight of {result.toolchain} was of {was}: {_again(result, pairs)}")
    return "\n".join(lines)


def _again(result: PreflightResult, changes: Iterable[Change]) -> str:
    """How preflight judges the changes; CUDA is no package that could be pinned."""
    pins = [
        f" --pin {name}=={change.value}"
        for change in changes
        for name in result.versions
        if name == change.what or (change.what == "nccl" and name.startswith("nvidia-nccl-"))
    ]
    if not pins:
        return "a toolchain with another CUDA has to be written into the matrix"
    return f"./inv preflight --toolchain {result.toolchain}{''.join(pins)} judges the other"


def document(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """Verdicts as JSON values."""
    return [
        {**_entry(standing.entry), "against": [_entry(other) for other in standing.against]} for standing in standings
    ]


def reopened_document(
    found: Iterable[Reopened], stale: Iterable[tuple[PreflightResult, Change]], changes: Iterable[Change]
) -> dict[str, Any]:
    """What changes reopen, as JSON values."""
    return {
        "changes": {change.what: change.value for change in changes},
        "reopened": [
            {
                **document([item.standing])[0],
                "reasons": [
                    {"what": change.what, "value": change.value, "condition": str(condition), "why": condition.why}
                    for change, condition in item.reasons
                ],
            }
            for item in found
        ],
        "preflight_of_others": [
            {
                "toolchain": result.toolchain,
                "what": change.what,
                "was": result.state[change.what],
                "value": change.value,
            }
            for result, change in stale
        ],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "approach": entry.approach,
        "toolchain": entry.toolchain,
        "node_class": entry.node_class,
        "verdict": str(entry.verdict),
        "date": entry.date.isoformat(),
        "why": entry.why,
        "believed": entry.believed,
        "evidence": [
            {"kind": str(evidence.kind), "where": evidence.where, "says": evidence.says} for evidence in entry.evidence
        ],
        "reopens": [{"when": str(condition), "why": condition.why} for condition in entry.reopens],
        "origin": entry.origin,
    }
