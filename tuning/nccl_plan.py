"""What NCCL will do on a node, before there is one: search, prices, transports, and what another setting, graph file or
release would change. Everything here is predicted: by NCCL's own code and constants, but not by a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lanewise.errors import InputError
from tuning.nccl_cost import MODELLED_SETTINGS, Choice, CostModel, cost_model
from tuning.nccl_library import find_nccl
from tuning.nccl_lint import Remark, lint
from tuning.nccl_repair import repaired
from tuning.nccl_search import KNOWN, SEARCH_SETTINGS, SearchResult, run_search
from tuning.nccl_transport import PairTransport, transports
from tuning.topology import Topology
from tuning.topology_complete import Assumptions, completed
from tuning.topology_xml import to_nccl_xml
from tuning.workload import MAX_MESSAGE_BYTES

DEFAULT_SIZES = (1 << 10, 14_336, 43_008, 1 << 18, 1 << 20, 4 << 20, 16 << 20)
"""Bytes of the messages that a plan looks at: decode and verify passes of hidden size 7168 among round sizes."""
_LEVELS = ("PXB", "PHB", "SYS")
_MAX_SIZES = 64


@dataclass(frozen=True, kw_only=True)
class NcclOutcome:
    """What one library does on a node under one set of settings.

    Attributes:
        label: what distinguishes it, e.g. "as set", "NCCL_P2P_LEVEL=SYS", "repaired graph file", "cu13-2.32.3".
        settings: NCCL's settings, as given.
        search: what came of its search.
        model: its prices; None where the search had no outcome.
        choices: what it takes for each of the plan's sizes; None where it has nothing to take.
        transports: how each pair of GPUs is connected; none where the search had no outcome.
    """

    label: str
    settings: Mapping[str, str]
    search: SearchResult
    model: CostModel | None
    choices: tuple[Choice | None, ...]
    transports: tuple[PairTransport, ...]

    @property
    def failed(self) -> bool:
        """Whether NCCL found no path for ring or tree, or did not even get so far."""
        return self.model is None or any(graph.failed for graph in self.search.graphs)


@dataclass(frozen=True, kw_only=True)
class NcclPlan:
    """A node, a library, and what would change.

    Attributes:
        topology: the node; what was not known is assumed, and its `unknown` says so.
        nccl: the library's label, e.g. "cu13-2.30.7".
        sizes: bytes of the messages looked at.
        base: what it does with the settings as given.
        alternatives: what other settings, a graph file or other releases do, those that differ from `base`; other
            releases always.
        repair: the graph file that repairs a failed search; "" where there is nothing to repair, or no way.
        remarks: on the settings.
        notes: what was assumed or left out, a sentence each.
    """

    topology: Topology
    nccl: str
    sizes: tuple[int, ...]
    base: NcclOutcome
    alternatives: tuple[NcclOutcome, ...]
    repair: str
    remarks: tuple[Remark, ...]
    notes: tuple[str, ...]


def make_plan(
    topology: Topology,
    *,
    nccl: str,
    cache: Path,
    settings: Mapping[str, str] | None = None,
    others: Sequence[str] = (),
    sizes: Sequence[int] = DEFAULT_SIZES,
    assumptions: Assumptions | None = None,
) -> NcclPlan:
    """Plan NCCL on a node.

    Args:
        topology: the node.
        nccl: a library's path, or a release as `find_nccl` has them, e.g. "cu13-2.30.7".
        cache: where fetched libraries are kept.
        settings: NCCL's settings on that node.
        others: further libraries, to compare with.
        sizes: bytes of the allreduces to look at.
        assumptions: what stands for what the topology does not know.

    Raises:
        InputError: a value is wrong, a release is not known, or the topology has fewer than two GPUs.
        LanewiseError: a library cannot be had.
    """
    settings = dict(settings or {})
    sizes = _checked(sizes)
    node = completed(topology, assumptions or Assumptions())
    if len(node.gpus) < 2:
        raise InputError(
            f"topology {node.name} has {len(node.gpus)} GPUs", expected="at least two", todo="name another node"
        )
    label, library = find_nccl(nccl, cache)
    runner = _Runner(node=node, xml=to_nccl_xml(node), sizes=sizes)
    base = runner.run("as set", library, settings)
    repair = _repair(node, base)
    alternatives = [*runner.levels(library, settings), *runner.with_graph_file(library, settings, repair)]
    changed = [outcome for outcome in alternatives if changes(base, outcome)]
    compared = [runner.run(name, path, settings) for name, path in (find_nccl(other, cache) for other in others)]
    return NcclPlan(
        topology=node,
        nccl=label,
        sizes=sizes,
        base=base,
        alternatives=(*changed, *compared),
        repair=repair,
        remarks=lint(settings, base.search.release) if base.search.release in KNOWN else (),
        notes=_notes(node, base, settings),
    )


def repair_graph(plan: NcclPlan) -> str:
    """The graph file, for $NCCL_GRAPH_FILE, that repairs the plan's failed search.

    Raises:
        InputError: there is nothing to repair, or a graph file would hide what is wrong.
    """
    return plan.repair or repaired(plan.topology, plan.base.search)


def changes(base: NcclOutcome, other: NcclOutcome) -> tuple[str, ...]:
    """What differs between two outcomes, in words, from `base` to `other`; none where NCCL would do the same."""
    said = []
    for what, before, after in (
        ("search", base.search.status, other.search.status),
        ("ring", base.search.ring, other.search.ring),
        ("tree", base.search.tree, other.search.tree),
    ):
        if str(before) != str(after):
            said.append(f"{what} {before or '-'} -> {after or '-'}")
        elif before != after:
            said.append(f"{what} in another order")
    if (before_p2p := _direct(base)) != (after_p2p := _direct(other)):
        said.append(f"P2P pairs {before_p2p} -> {after_p2p} of {len(base.transports)}")
    for before_choice, after_choice in zip(base.choices, other.choices, strict=True):
        chosen = before_choice or after_choice
        if chosen and (old := _told(before_choice)) != (new := _told(after_choice)):
            said.append(f"{chosen.size:,} B: {old} -> {new}")
    return tuple(said)


def _direct(outcome: NcclOutcome) -> int:
    return sum(pair.p2p for pair in outcome.transports)


def _told(choice: Choice | None) -> str:
    return f"{choice.cell}, {choice.channels} ch" if choice else "nothing"


def _checked(sizes: Sequence[int]) -> tuple[int, ...]:
    wrong = [size for size in sizes if not 0 < size <= MAX_MESSAGE_BYTES]
    if wrong or not 0 < len(sizes) <= _MAX_SIZES:
        raise InputError(
            f"sizes are {wrong[0] if wrong else f'{len(sizes)} in number'}",
            expected=f"1 to {_MAX_SIZES} sizes from 1 to {MAX_MESSAGE_BYTES:,} bytes",
            todo="correct them",
        )
    return tuple(sorted(set(sizes)))


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """Runs searches on one node and prices what they find."""

    node: Topology
    xml: str
    sizes: tuple[int, ...]

    def run(self, label: str, library: Path, settings: Mapping[str, str]) -> NcclOutcome:
        search = run_search(library, self.xml, settings=settings)
        model = None
        if search.ring and search.tree:
            least = min(gpu.sm or 0 for gpu in self.node.gpus)
            model = cost_model(
                search.ring,
                search.tree,
                release=search.release,
                ranks=len(self.node.gpus),
                sm=least,
                settings=settings,
            )
        return NcclOutcome(
            label=label,
            settings=settings,
            search=search,
            model=model,
            choices=tuple(model.choose(size) if model else None for size in self.sizes),
            transports=transports(self.node, settings, search) if model else (),
        )

    def levels(self, library: Path, settings: Mapping[str, str]) -> list[NcclOutcome]:
        """Every level that may differ, once for each outcome; NCCL_P2P_DISABLE would overrule it, so it goes."""
        rest = {name: value for name, value in settings.items() if name != "NCCL_P2P_DISABLE"}
        found: list[NcclOutcome] = []
        for level in _LEVELS:
            outcome = self.run(f"NCCL_P2P_LEVEL={level}", library, {**rest, "NCCL_P2P_LEVEL": level})
            if not any(not changes(earlier, outcome) for earlier in found):
                found.append(outcome)
        return found

    def with_graph_file(self, library: Path, settings: Mapping[str, str], graph: str) -> list[NcclOutcome]:
        """The node with the repairing graph file; NCCL itself reads it, so this proves it."""
        if not graph:
            return []
        with tempfile.TemporaryDirectory(prefix="lanewise-nccl-") as folder:
            file = Path(folder) / "graph.xml"
            file.write_text(graph, encoding="utf-8")
            outcome = self.run("repaired graph file", library, {**settings, "NCCL_GRAPH_FILE": str(file)})
        return [replace(outcome, settings={**settings, "NCCL_GRAPH_FILE": "the plan's repair"})]


def _repair(node: Topology, base: NcclOutcome) -> str:
    try:
        return repaired(node, base.search)
    except InputError:  # nothing to repair, or not by a file: `repair_graph` says which
        return ""


def _notes(node: Topology, base: NcclOutcome, settings: Mapping[str, str]) -> tuple[str, ...]:
    notes = [
        "predicted: NCCL's own search and prices, which rank what it may choose and are not what a call takes",
        "P2P is taken to work between all GPUs whose drivers are not known to refuse it",
        *(text if text.startswith("assumed") else f"not known: {text}" for text in node.unknown),
    ]
    if any(gpu.fabric for gpu in node.gpus):
        notes.append("NVLS, which NVSwitch nodes of compute capability 9.0 and later may choose, is not looked at")
    ignored = sorted(set(settings) - {*SEARCH_SETTINGS, *MODELLED_SETTINGS})
    if ignored:
        notes.append(f"not looked at: {', '.join(ignored)}")
    if base.search.foreign_settings:
        notes.append(f"/etc/nccl.conf of this machine also set {', '.join(base.search.foreign_settings)}")
    return tuple(notes)
