"""The ledger's rows that matter to a report: on what was measured, and where the runs' toolchains differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tuning.ledger import ANY, Entry, Standing, Verdict, about
from tuning.predict_schedules import FAMILIES
from tuning.report_document import Block, Paragraph, Table, Weight, cells
from tuning.report_predicted import families
from tuning.runfile import Run


def toolchains_of(runs: Sequence[Run], standings: Sequence[Standing], named: str) -> list[str]:
    """The toolchains that count: the one that was named, or those environments of the runs that the ledger knows."""
    known = {standing.entry.toolchain for standing in standings}
    found = [env.name for run in runs for env in run.header.plan.environments if env.name in known]
    return [named] if named else list(dict.fromkeys(found))


def on_measured(runs: Sequence[Run], standings: Sequence[Standing], toolchains: Sequence[str]) -> list[Standing]:
    """Verdicts on the approaches that the runs measured; of these toolchains where there are any."""
    approaches = {name for run in runs for family in families(run).values() for name in FAMILIES[family].approaches}
    return [
        standing
        for standing in standings
        if standing.entry.approach in approaches and (not toolchains or standing.entry.toolchain in (*toolchains, ANY))
    ]


def on_best(run: Run, candidates: Iterable[str], rows: Sequence[Standing]) -> Iterator[Block]:
    """What the ledger says, of any PCIe node, on the approaches that a run's best candidates are.

    Args:
        run: the run.
        candidates: its best ones.
        rows: as `on_measured` gives them.
    """
    known = families(run)
    said: dict[Entry, list[str]] = {}
    for candidate in candidates:
        approaches = FAMILIES[known[candidate]].approaches if candidate in known else ()
        for entry in (row.entry for row in rows if row.entry.approach in approaches and row.entry.node_class == ANY):
            if entry.verdict is not Verdict.UNSUPPORTED:
                said.setdefault(entry, []).append(candidate)
    for entry, names in said.items():
        subject = f"{', '.join(names)} ({entry.approach}, toolchain {entry.toolchain})"
        yield Paragraph(text=f"The ledger, of SM120 GPUs joined by PCIe, on {subject}: {entry.verdict}: {entry.why}.")


def ledger(measured: Sequence[Standing], standings: Sequence[Standing], toolchains: Sequence[str]) -> Iterator[Block]:
    """The section: verdicts on what was measured, then where toolchains differ."""
    if measured:
        yield Paragraph(text="Verdicts on what was measured, of any node; ./inv verdicts APPROACH tells the evidence.")
        yield _verdicts(measured)
    else:
        yield Paragraph(text="No verdict is on what was measured here.", weight=Weight.NOTE)
    if len(toolchains) > 1:
        yield from _apart(standings, toolchains)


def _verdicts(standings: Sequence[Standing]) -> Table:
    """A line for what is said alike of several toolchains, and then for the same toolchains of several nodes."""
    toolchains: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for standing in standings:
        entry = standing.entry
        verdict: tuple[str, ...] = (entry.approach, str(entry.verdict), entry.date.isoformat(), entry.why)
        toolchains.setdefault((verdict, entry.node_class), []).append(entry.toolchain)
    nodes: dict[tuple[str, ...], list[str]] = {}
    for (said, node_class), names in toolchains.items():
        nodes.setdefault((*said, ", ".join(sorted(names))), []).append(node_class)
    rows = [
        cells(approach, toolchain, ", ".join(sorted(classes)), verdict, since, why)
        for (approach, verdict, since, why, toolchain), classes in nodes.items()
    ]
    head = ("approach", "toolchain", "nodes", "verdict", "since", "why")
    return Table(head=head, rows=tuple(rows), words=tuple(range(len(head))))


def _apart(standings: Sequence[Standing], toolchains: Sequence[str]) -> Iterator[Block]:
    """Approaches whose verdict on every node is another on another of the toolchains."""
    found: dict[str, dict[str, Standing]] = {}
    for toolchain in toolchains:
        for standing in about(standings, toolchain=toolchain):
            if standing.entry.node_class == ANY:
                found.setdefault(standing.entry.approach, {})[toolchain] = standing
    rows = [
        cells(approach, *(each[name].entry.verdict if name in each else "-" for name in toolchains), _because(each))
        for approach, each in found.items()
        if len({standing.entry.verdict for standing in each.values()}) > 1
    ]
    if rows:
        yield Paragraph(text=f"Where verdicts on {' and '.join(toolchains)} differ:")
        yield Table(head=("approach", *toolchains, "why"), rows=tuple(rows), words=tuple(range(len(toolchains) + 2)))


def _because(each: Mapping[str, Standing]) -> str:
    said = {
        name: standing.entry.why for name, standing in each.items() if standing.entry.verdict is not Verdict.UNKNOWN
    }
    return "; ".join(f"{name}: {why}" for name, why in said.items())
