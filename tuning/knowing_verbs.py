"""The verbs of knowing before running: they parse, call and print."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.tasks import Task

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path, write_atomic
from lanewise.verbs import verb
from tuning import ledger_view, nccl_plan_view
from tuning.bench import CACHE, RUNS
from tuning.ledger import NODE_CLASSES, about, reopened
from tuning.ledger_preflight import unseen
from tuning.ledger_read import Ledger, parse_changes, read_ledger
from tuning.nccl_lint import Gravity, Remark
from tuning.nccl_lint import lint as lint_settings
from tuning.nccl_plan import DEFAULT_SIZES, NcclPlan, make_plan, repair_graph
from tuning.request import words
from tuning.topology_document import document
from tuning.topology_read import read_topology, reference_names
from tuning.topology_svg import svg as picture
from tuning.topology_text import headline, text_tree
from tuning.topology_xml import to_nccl_xml
from tuning.workload import short

_SETTING = re.compile(r"(NCCL_[A-Z0-9_]{1,80})=(.*)", re.ASCII | re.DOTALL)
_RELEASE = re.compile(r"(?:cu1[23]-)?(\d{1,4}\.\d{1,4}\.\d{1,4})(?:\.post\d{1,4})?", re.ASCII)
_TOPOLOGY = "a reference node's name, or a file: NCCL's XML, a node record, `nvidia-smi topo -m`, lspci, YAML by hand"


def nccl_plan_verb(toolchain_nccl: Callable[[], Mapping[str, str]]) -> Task[Any]:
    """The verb `nccl-plan`.

    Args:
        toolchain_nccl: tells every toolchain's NCCL release, as `nccl_library.find_nccl` has them; this part does not
            know which toolchains there are.
    """

    @verb(
        topology=_TOPOLOGY,
        lspci="with `nvidia-smi topo -m`: the same node's `lspci -vvv` or `lspci -tv`",
        nccl="a release such as 2.30.7 or cu12-2.27.5, or the path of a libnccl: the first is planned, others are "
        "compared with it (may be repeated)",
        toolchain="comma list of toolchains in place of --nccl (default: all of them)",
        set="a setting of that node, NCCL_NAME=VALUE (may be repeated)",
        sizes=f"comma list of bytes to look at (default: {','.join(map(str, DEFAULT_SIZES))})",
        graph_file="write the graph file that repairs a failed search here, for NCCL_GRAPH_FILE",
        svg="write a picture of the node here",
        lint="look over the settings only; exit code 3 where NCCL refuses or ignores one",
        json="print as JSON",
    )
    def nccl_plan(
        _context: Context,
        topology: str = "",
        lspci: str = "",
        nccl: list[str] | None = None,
        toolchain: str = "",
        set: list[str] | None = None,  # noqa: A002 - the option's name
        sizes: str = "",
        graph_file: str = "",
        svg: str = "",
        lint: bool = False,
        json: bool = False,
    ) -> ExitCode | None:
        """Tell what NCCL will choose on a node, and why, without a GPU; exit code 3 where its search fails there."""
        settings = _settings(set or [])
        libraries = _libraries(nccl or [], words(toolchain), toolchain_nccl)
        if lint:
            return _lint(settings, libraries, json=json)
        node = read_topology(_named(topology), lspci)
        chosen = _sizes(sizes)
        talk.say(f"searching {node.name} with NCCL {', '.join(libraries)}; a release that is not kept yet is fetched")
        plan = make_plan(
            node, nccl=libraries[0], cache=CACHE / "nccl", settings=settings, others=libraries[1:], sizes=chosen
        )
        talk.put_json(nccl_plan_view.document(plan)) if json else talk.put(nccl_plan_view.show(plan))
        _write(plan, graph_file, svg)
        return ExitCode.ANSWER_IS_NO if plan.base.failed else None

    return nccl_plan


def _named(topology: str) -> str:
    if topology:
        return topology
    raise InputError(
        "no topology is named",
        expected=f"--topology with one of {', '.join(reference_names())}, or a file",
        todo="name one; ./inv topology --list tells what they are",
    )


def _libraries(
    nccl: Sequence[str], toolchains: Sequence[str], toolchain_nccl: Callable[[], Mapping[str, str]]
) -> list[str]:
    """What to plan and compare with, each once."""
    if nccl and any(toolchains):
        raise InputError("--nccl and --toolchain are both given", expected="one of them", todo="leave one out")
    if nccl:
        return list(dict.fromkeys(nccl))
    known = toolchain_nccl()
    names = [name for name in toolchains if name] or list(known)
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"there is no toolchain {short(unknown[0])}", expected=f"some of {', '.join(known)}", todo="correct it"
        )
    return list(dict.fromkeys(known[name] for name in names))


def _settings(texts: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        found = _SETTING.fullmatch(text)
        if not found or found[1] in settings:
            raise InputError(
                f"--set is {short(text)}" + (f", and {found[1]} is set before" if found else ""),
                expected="NCCL_NAME=VALUE, each name once",
                todo="correct it",
            )
        settings[found[1]] = found[2]
    return settings


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [word for word in words(text) if word]
    if wrong := [word for word in sizes if not (word.isascii() and word.isdigit() and len(word) < 16)]:
        raise InputError(
            f"--sizes holds {short(wrong[0])}", expected="a comma list of bytes, such as 14336,43008", todo="correct it"
        )
    return tuple(map(int, sizes)) or DEFAULT_SIZES


def _lint(settings: Mapping[str, str], libraries: Sequence[str], *, json: bool) -> ExitCode | None:
    if not settings:
        raise InputError("no settings are given", expected="--set NCCL_NAME=VALUE", todo="name what to look over")
    remarks: dict[str, tuple[Remark, ...]] = {}
    for library in libraries:
        if not (found := _RELEASE.fullmatch(library)):
            raise InputError(
                f"--lint with the library {short(library)}",
                expected="a release such as 2.30.7",
                todo="name its release",
            )
        remarks[found[1]] = lint_settings(settings, found[1])
    if json:
        talk.put_json({release: nccl_plan_view.remarks_document(said) for release, said in remarks.items()})
    else:
        for release, said in remarks.items():
            talk.put(f"NCCL {release}:\n{nccl_plan_view.show_remarks(said) or 'nothing to remark'}")
    lost = (Gravity.REFUSED, Gravity.NO_EFFECT)
    return ExitCode.ANSWER_IS_NO if any(r.gravity in lost for said in remarks.values() for r in said) else None


def _write(plan: NcclPlan, graph_file: str, svg: str) -> None:
    """The files that were asked for; the plan is printed before, since there may be no graph file to write."""
    if svg:
        _keep(svg, picture(plan.topology))
    if graph_file:
        _keep(graph_file, repair_graph(plan))


def _keep(path: str, text: str) -> None:
    write_atomic(Path(path), text)
    talk.say(f"written: {shown_path(Path(path))}")


@verb(
    "name",
    name=_TOPOLOGY,
    lspci="with `nvidia-smi topo -m`: the same node's `lspci -vvv` or `lspci -tv`",
    list="list the reference nodes",
    svg="write a picture of it here",
    xml="write NCCL's topology XML here, for NCCL_TOPO_FILE",
    json="print as JSON",
)
def topology(
    _context: Context,
    name: str = "",
    lspci: str = "",
    list: bool = False,  # noqa: A002 - the option's name
    svg: str = "",
    xml: str = "",
    json: bool = False,
) -> None:
    """Show a node's PCI tree, `./inv topology NAME`: links, paths between GPUs, islands, and what is not known."""
    if list or not name:
        if name or lspci or svg or xml:
            raise InputError(
                "--list goes with no other option, and the others with a name",
                expected="./inv topology NAME, or ./inv topology --list",
                todo="name a node, or leave the others out",
            )
        nodes = [read_topology(known) for known in reference_names()]
        talk.put_json([document(node) for node in nodes]) if json else talk.put("\n".join(map(headline, nodes)))
        return
    node = read_topology(name, lspci)
    talk.put_json(document(node)) if json else talk.put(text_tree(node).rstrip("\n"))
    for path, text in ((svg, picture), (xml, to_nccl_xml)):
        if path:
            _keep(path, text(node))


@verb(
    "approach",
    approach="all that is known of this one (default: a line for each)",
    toolchain="what holds on this toolchain",
    node_class=f"what holds on this class of nodes: {', '.join(NODE_CLASSES)}",
    changed="what is, or may become, different, such as nccl=2.32.3, sglang=0.5.24, topology=two-sockets or "
    "toolchain=NAME: list what that reopens (may be repeated)",
    json="print as JSON",
)
def verdicts(
    _context: Context,
    approach: str = "",
    toolchain: str = "",
    node_class: str = "",
    changed: list[str] | None = None,
    json: bool = False,
) -> None:
    """Tell what is concluded of every approach, on which evidence, and what would reopen it."""
    ledger = read_ledger(RUNS)
    for remark in ledger.remarks:
        talk.say(f"remark: {remark}")
    _known(ledger, approach, toolchain, node_class)
    standings = about(ledger.standings, approach=approach, toolchain=toolchain, node_class=node_class)
    if changed:
        changes = parse_changes(changed, ledger)
        results = [result for result in ledger.results if toolchain in ("", result.toolchain)]
        found, stale = reopened(standings, changes, beside=ledger.standings), unseen(results, changes)
        if json:
            talk.put_json({**ledger_view.reopened_document(found, stale, changes), "remarks": ledger.remarks})
        else:
            talk.put(ledger_view.show_reopened(found, stale, changes))
    elif json:
        talk.put_json({"verdicts": ledger_view.document(standings), "remarks": ledger.remarks})
    elif approach:
        talk.put("\n\n".join(map(ledger_view.explain, standings)) or "no verdict on that toolchain and node class")
    else:
        talk.put(ledger_view.Listing(standings))


def _known(ledger: Ledger, approach: str, toolchain: str, node_class: str) -> None:
    for what, name, known in (
        ("approach", approach, ledger.approaches),
        ("toolchain", toolchain, ledger.toolchains),
        ("node class", node_class, list(NODE_CLASSES)),
    ):
        if name and name not in known:
            raise InputError(
                f"no verdict is on the {what} {short(name)}", expected=f"one of {', '.join(known)}", todo="correct it"
            )
