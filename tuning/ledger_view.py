"""Shows the ledger: tables and text for people, documents for programs. It concludes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from tuning.ledger import ANY, NVLINK_PAIR, Change, Entry, Reopened, Standing
from tuning.ledger_preflight import PreflightResult

_NARROW = 100
"""Columns below which reasons would be folded into a ribbon."""
_HEADINGS = ("approach", "toolchain", "nodes", "verdict", "since")


class Listing:
    """A line a verdict, for rich; one on several toolchains or node classes is one line. Narrow consoles get no why."""

    def __init__(self, standings: Iterable[Standing]) -> None:
        self._groups = _groups(standings)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """See rich; lines end without the blanks that a table fills its last column with."""
        narrow = options.max_width < _NARROW
        table = _short_table(self._groups) if narrow else _full_table(self._groups)
        for line in console.render_lines(table, options, pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
            text.rstrip()
            yield text
        if narrow:
            yield Text("./inv verdicts APPROACH tells why")


def _full_table(groups: Iterable[Sequence[Standing]]) -> Table:
    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in (*_HEADINGS, "why"):
        view.add_column(heading, no_wrap=heading in ("approach", "verdict", "since"))
    for group in groups:
        entry, against = group[0].entry, group[0].against
        said = f" (against it: {', '.join(map(_short, against))})" if against else ""
        toolchains, nodes = _subjects(group)
        view.add_row(
            *(entry.approach, ", ".join(toolchains), ", ".join(nodes), str(entry.verdict), str(entry.date)),
            entry.why + said,
        )
    return view


def _short_table(groups: Iterable[Sequence[Standing]]) -> Table:
    """One line a verdict: where there is no room for names of nodes, they are cut before anything else is."""
    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        view.add_column(heading, no_wrap=heading != "nodes", overflow="ellipsis")
    for group in groups:
        entry = group[0].entry
        toolchains, nodes = _subjects(group)
        named = nodes[0] if len(nodes) == 1 else f"{len(nodes)} classes"
        view.add_row(
            *(entry.approach, ", ".join(toolchains)),
            Text(named, no_wrap=True, overflow="ellipsis"),
            *(str(entry.verdict), str(entry.date)),
        )
    return view


def _subjects(group: Iterable[Standing]) -> tuple[list[str], list[str]]:
    """Toolchains and node classes that a group speaks of."""
    entries = [standing.entry for standing in group]
    return sorted({entry.toolchain for entry in entries}), sorted({entry.node_class for entry in entries})


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
        toolchains, nodes = _subjects(group)
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
    toolchains, nodes = _subjects(group)
    toolchain = "any toolchain" if toolchains == [ANY] else ", ".join(toolchains)
    node = "any PCIe node" if nodes == [ANY] else ", ".join(nodes)
    note = " (two H200 over NVLink, not SM120)" if NVLINK_PAIR in nodes else ""
    return f"{group[0].entry.approach} on {toolchain}, {node}{note}"


def show_reopened(
    found: Sequence[Reopened], stale: Sequence[tuple[PreflightResult, Change]], changes: Sequence[Change]
) -> str:
    """What changes reopen and why, and which preflight results they leave behind."""
    said = ", ".join(f"{change.what} {change.value}" for change in changes)
    groups = _groups(item.standing for item in found)
    lines = [f"{said} reopens {_count(len(groups), len(found))}"]
    items = {item.standing.entry.key: item for item in found}
    for same in groups:
        entry = same[0].entry
        lines.append(f"{_about(same)}: {entry.verdict} since {entry.date}")
        conditions = dict.fromkeys(condition for _, condition in items[entry.key].reasons)
        lines += [f"  {condition}: {condition.why}" for condition in conditions]
        closers = {closer.entry.key: closer for standing in same for closer in items[standing.entry.key].closers}
        lines += [f"  likely closes it: {_closing(closer)}" for closer in closers.values()]
    for result, group in groupby(stale, key=lambda pair: pair[0]):
        pairs = [change for _, change in group]
        was = ", ".join(f"{change.what} {result.state[change.what]}" for change in pairs)
        lines.append(f"preflight of {result.toolchain} was of {was}: {_again(result, pairs)}")
    return "\n".join(lines)


def _count(entries: int, combinations: int) -> str:
    if not entries:
        return "no verdicts"
    of = f" ({combinations} combinations of toolchain and nodes)" if combinations > entries else ""
    return f"{entries} {'entry' if entries == 1 else 'entries'}{of}:"


def _closing(closer: Standing) -> str:
    entry = closer.entry
    seen = ", ".join(f"{condition.what} {condition.above}" for condition in entry.reopens if condition.above)
    return f"{entry.verdict} on {entry.toolchain}, looked at up to {seen}: {entry.why}"


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
                "closed_by": [_entry(closer.entry) for closer in item.closers],
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
