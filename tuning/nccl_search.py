"""Lets a libnccl search a topology for rings and trees, in a process of its own under a watchdog; no GPU is needed.

What NCCL will choose on a node follows from its topology and its release, so that a release can be ruled out before it
is installed. The functions that do it are internal: only releases that were checked are run, and a crash or a hang of
the library is a result, not an accident.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from lanewise.errors import InputError, LanewiseError
from lanewise.files import read_text
from lanewise.talk import printable
from tuning.nccl_graph import RING, TREE, Graph, parse_xml, read_graphs
from tuning.supervised import Ending, run_supervised
from tuning.workload import short

_WORKER = Path(__file__).parent / "workers" / "nccl_search.py"
_MARK = "nccl-search "
_SECONDS = 60.0
"""NCCL bounds its search itself (NCCL_SEARCH_GLOBAL_TIMEOUT, "within one second"); loading the library takes longer."""
_MAX_WARNINGS = 20
_MAX_GRAPH_BYTES = 16 << 20

KNOWN: Mapping[str, bool] = {
    "2.26.2": False,
    "2.27.5": False,
    "2.27.7": False,
    "2.28.9": True,
    "2.29.7": True,
    "2.30.7": True,
    "2.31.2": True,
    "2.32.3": True,
}
"""Releases whose internals were checked on their wheels (cu12 2.26.2 to 2.28.9, cu13 2.28.9 to 2.32.3): the functions'
mangled names, and a search of eight topologies with the same outcome as a graph dump. The value: whether the network
cards stay in the topology when all ranks are on one node; earlier releases remove them before they search (src/init.cc,
ncclTopoTrimSystem), and releases from 2.29 on fail without one where they find no path."""

SEARCH_SETTINGS = (
    "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_GRAPH_FILE", "NCCL_NVB_DISABLE", "NCCL_TOPO_SPLIT_MLOPART",
)  # fmt: skip
"""Settings that the search obeys and that reach the library; no other does, since some make it load a plugin."""


class SearchStatus(StrEnum):
    """How a search ended."""

    FOUND = "found"  # a ring and a tree
    FELL_BACK = "fell back"  # no path for one or both: NCCL goes on with the GPUs' order at 0.1 GB/s
    REFUSED = "refused"  # NCCL returned an error
    CRASHED = "crashed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a release makes of a topology.

    Attributes:
        release: of the library, by its own word, e.g. "2.30.7".
        status: how the search ended.
        reason: why, where there is neither ring nor tree; else "".
        graphs: ring and tree, where NCCL got that far.
        p2p: pairs of ranks (higher first) that NCCL would connect by P2P, as far as the settings go; that the GPUs can
            is assumed (NCCL_IGNORE_DISABLED_P2P=2).
        warnings: what NCCL warned of.
        foreign_settings: settings that NCCL read from this machine's /etc/nccl.conf, and that may have decided.
    """

    release: str
    status: SearchStatus
    reason: str = ""
    graphs: tuple[Graph, ...] = ()
    p2p: frozenset[tuple[int, int]] = frozenset()
    warnings: tuple[str, ...] = ()
    foreign_settings: tuple[str, ...] = ()

    @property
    def ring(self) -> Graph | None:
        """The ring, if there is one."""
        return next((graph for graph in self.graphs if graph.id == RING), None)

    @property
    def tree(self) -> Graph | None:
        """The tree, if there is one."""
        return next((graph for graph in self.graphs if graph.id == TREE), None)


@dataclass
class _Told:
    """What the worker said so far."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def feed(self, line: str) -> bool:
        """Take a line; none is a sign of life: the whole search has to end in time."""
        if line.startswith(_MARK):
            with suppress(ValueError):  # the last line of a worker that died while it wrote
                event = json.loads(line.removeprefix(_MARK))
                self.events[event["event"]] = event
        elif "NCCL WARN " in line and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(printable(line.split("NCCL WARN ", 1)[1][:200]))
        elif line.strip() and "release" not in self.events:  # the last words of a worker that cannot start
            self.events["trouble"] = {"reason": printable(line.strip()[:200])}
        return False


def run_search(
    library: Path, topology_xml: str, *, settings: Mapping[str, str] | None = None, timeout: float = _SECONDS
) -> SearchResult:
    """Search for rings and trees as this library does when all ranks are on one node.

    Args:
        library: a libnccl.so.2 of a release in `KNOWN`.
        topology_xml: NCCL's topology XML with its <gpu> elements; network cards in it are of no account.
        settings: NCCL's settings; those of `SEARCH_SETTINGS` are obeyed.
        timeout: seconds after which it is ended.

    Raises:
        InputError: the release is not known, the file is no libnccl, or the topology or graph file cannot be meant.
    """
    settings = settings or {}
    if broken := [name for name in SEARCH_SETTINGS if "\0" in settings.get(name, "")]:
        raise InputError(f"{broken[0]} holds a NUL", expected="text", todo="correct it")
    if graph_file := settings.get("NCCL_GRAPH_FILE"):
        path = Path(os.path.realpath(os.path.expanduser(graph_file)))  # noqa: PTH111 - pathlib raises over ~nobody
        read_graphs(read_text(path, what="graph file", limit=_MAX_GRAPH_BYTES), where=f"graph file {path}")
        settings = {**settings, "NCCL_GRAPH_FILE": str(path)}
    # The release is the library's own word, so what depends on it is learnt by asking.
    first = _run(library, _one_node(topology_xml, network=True), settings, timeout)
    if not KNOWN.get(first.release, True):
        return _run(library, _one_node(topology_xml, network=False), settings, timeout)
    return first


def _one_node(topology_xml: str, *, network: bool) -> ET.Element:
    """The topology without its network cards, and with a plain one in their place where the release keeps them.

    Which cards there are decides nothing while all ranks are on one node, and files of other releases lack attributes
    that 2.32 requires. Every real node has one: NCCL's sockets.
    """
    root = parse_xml(topology_xml, where="the topology")
    ranks = _ranks(root)
    if root.tag != "system" or len(ranks) < 2 or len(set(ranks)) < len(ranks):
        raise InputError(
            f"the topology XML begins with <{root.tag[:40]}> and holds {len(ranks)} GPUs",
            expected="<system> with at least two <gpu> elements, each with a rank of its own",
            todo="name the topology of a node with its GPUs",
        )
    if len({cpu.get("host_hash") for cpu in root.iter("cpu")}) > 1:
        raise InputError(
            "the topology XML holds the CPUs of several hosts",
            expected="one node",
            todo="name the dump of a communicator of one node",
        )
    for cpu in root.iter("cpu"):
        cpu.attrib.pop("host_hash", None)  # a dump's is that of its own host, and NCCL looks for it
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "nic" or (child.tag == "pci" and child.find("nic") is not None):
                parent.remove(child)
    if network and (home := root.find("cpu")) is not None:
        net = ET.SubElement(ET.SubElement(home, "nic"), "net")
        for name, value in {
            "name": "eth0", "dev": "0", "speed": "10000", "port": "0", "latency": "0", "guid": "0x0",
            "maxconn": "65536", "gdr": "0", "rail": "-1", "plane": "-1",
        }.items():  # fmt: skip
            net.set(name, value)
    return root


def _ranks(root: ET.Element) -> list[int]:
    texts = [gpu.get("rank", "") for gpu in root.iter("gpu")]
    if wrong := [text for text in texts if not (text.isascii() and text.isdigit() and len(text) < 5)]:
        raise InputError(
            f"the topology XML has a GPU of rank {short(wrong[0])}", expected="a small number", todo="mend it"
        )
    return [int(text) for text in texts]


def _run(library: Path, topology: ET.Element, settings: Mapping[str, str], timeout: float) -> SearchResult:
    told = _Told()
    with tempfile.TemporaryDirectory(prefix="lanewise-nccl-") as name:
        folder = Path(name)
        xml, dump = folder / "topology.xml", folder / "graph.xml"
        xml.write_text(ET.tostring(topology, encoding="unicode"), encoding="utf-8")
        environment = _environment(settings, dump)
        ranks = ",".join(map(str, _ranks(topology)))
        ending, code = run_supervised(
            [sys.executable, "-I", "-S", str(_WORKER), str(library), str(xml), ranks, ",".join(KNOWN)],
            environment=environment,
            scratch=[folder / "scratch"],
            timeout=timeout,
            feed=told.feed,
        )
        dumped = dump.read_text(encoding="utf-8", errors="replace") if dump.is_file() else ""
    result = _result(library, told, ending, code, timeout)
    if result.status is not SearchStatus.FOUND:
        return result
    return _with_graphs(result, dumped, told, set(environment))


def _environment(settings: Mapping[str, str], dump: Path) -> dict[str, str]:
    """All that the worker gets: nothing of this process's environment can decide what NCCL does."""
    return {
        **{name: value for name, value in settings.items() if name in SEARCH_SETTINGS},
        "NCCL_CONF_FILE": "/dev/null",
        "NCCL_DEBUG": "WARN",
        "NCCL_GRAPH_DUMP_FILE": str(dump),
        "NCCL_IGNORE_DISABLED_P2P": "2",
    }


def _result(library: Path, told: _Told, ending: Ending, code: int, timeout: float) -> SearchResult:
    """How the search ended, before its graphs are read; "found" where it went to its end.

    Raises:
        InputError: it could not even begin.
    """
    events = told.events
    if "release" not in events and ending is Ending.EXITED and code < 128:
        raise InputError(
            f"{library} cannot be loaded as libnccl: {events.get('trouble', {}).get('reason', f'exit code {code}')}",
            expected=f"a libnccl.so.2 of NCCL {', '.join(KNOWN)}",
            todo="name another",
        )
    release = events.get("release", {}).get("release", "unknown")
    if release not in KNOWN and "release" in events:
        raise InputError(
            f"{library} is NCCL {release}, whose internals are not known",
            expected=f"one of {', '.join(KNOWN)}",
            todo="name a library of one of these; another release is added after its internals were checked",
        )
    result = SearchResult(release=release, status=SearchStatus.FOUND, warnings=tuple(told.warnings))
    step = events.get("step", {}).get("step", "load")
    if ending is not Ending.EXITED:
        reason = f"no end after {timeout:g} s, in step {step!r}"
        return replace(result, status=SearchStatus.TIMED_OUT, reason=reason)
    if failed := events.get("failed"):
        if failed["step"] == "symbols":
            raise InputError(
                f"{library}: {failed['reason']}",
                expected="NCCL's wheel, which keeps its symbol table",
                todo="name the library of a wheel: distributions strip theirs",
            )
        why = "; ".join([f"step {failed['step']!r}: {failed['reason']}", *told.warnings[:2]])
        return replace(result, status=SearchStatus.REFUSED, reason=why)
    if "done" not in events:
        return replace(result, status=SearchStatus.CRASHED, reason=f"{_death(code)}, in step {step!r}")
    return result


def _death(code: int) -> str:
    try:
        return f"ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"


def _with_graphs(result: SearchResult, dumped: str, told: _Told, ours: set[str]) -> SearchResult:
    done = told.events["done"]
    graphs = read_graphs(dumped, where=f"what NCCL {result.release} dumped")
    result = replace(
        result,
        status=SearchStatus.FELL_BACK if any(graph.failed for graph in graphs) else SearchStatus.FOUND,
        graphs=graphs,
        p2p=frozenset((one, other) for one, other in told.events["p2p"]["pairs"]),
        foreign_settings=tuple(sorted(set(done["settings"]) - ours)),
    )
    # The one number that is read from memory: where it differs, the layout of NCCL's struct is not the known one.
    if result.ring is None or result.tree is None or len(result.ring.channels) != done["ring_channels"]:
        raise LanewiseError(
            f"NCCL {result.release} counts {done['ring_channels']} ring channels and dumped {result.ring}",
            expected="the same twice",
            todo="take another build of that release: this one's internals differ",
        )
    return result
