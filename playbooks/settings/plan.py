"""From a node's record and the inventory's wishes to its plan: every decision, and the variables of the roles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from playbooks.settings.catalogue import Setting, load_catalogue
from playbooks.settings.decide import HELD, Decision, Node, decide, decision_on
from playbooks.settings.facts import collect
from playbooks.settings.known import Record, read_record
from playbooks.settings.nccl_wishes import Grant, system_grants, workload_grants
from playbooks.settings.node_class import NodeClass, Tree, classify, pci_tree
from playbooks.settings.role_variables import Wanted, role_variables
from playbooks.settings.wishes import Wishes, near, read_wishes

SCHEMA = "lanewise.node-plan/1"
_MOST_CPUS = 8192
"""The most that Linux can be built for on x86 (NR_CPUS in arch/x86/Kconfig): a bound on what a record may claim."""


def make_plan(document: object, wanted: object) -> dict[str, Any]:
    """The plan of one node, as a JSON document.

    Args:
        document: its node record.
        wanted: what the inventory wishes.

    Raises:
        InputError: the record is none, or the wishes are malformed.
    """
    node = _node(read_record(document), read_wishes(wanted))
    record, wishes, catalogue = node.record, node.wishes, load_catalogue()
    decisions, held = _on_settings(catalogue, node)
    system = list(system_grants(wishes.nccl_system, record))
    workloads = dict(zip(wishes.nccl_workloads, workload_grants(wishes.nccl_workloads, record), strict=True))
    nccl = [
        *_granted("nccl_system_file", system, catalogue),
        *_granted("nccl_workload_files", workloads.values(), catalogue),
    ]
    return {
        "schema": SCHEMA,
        "node_class": node.node_class.to_dict(),
        "decisions": [one.to_dict() for one in (*_unknown_ids(wishes, catalogue), *decisions, *nccl)],
        "roles": role_variables(
            held,
            node.tree,
            wishes,
            nccl_system={name: value for grant in system for name, value in grant.settings.items()},
            nccl_workloads={
                name: asdict(wishes.nccl_workloads[name]) for name, grant in workloads.items() if grant.settings
            },
            threads=_cpus(record),
        ),
    }


def _node(record: Record, wishes: Wishes) -> Node:
    node_class = classify(record, wishes)
    tree = pci_tree(record, wishes.gpu_match)
    return Node(
        record=record,
        tree=tree if isinstance(tree, Tree) else Tree(devices={}, gpus=()),
        node_class=node_class,
        facts=collect(record, node_class, wishes),
        wishes=wishes,
    )


def _cpus(record: Record) -> int:
    """How many CPU numbers may be in use, from 0."""
    counts = (record.get(path) for path in ("cpu.threads_present", "cpu.threads"))
    return min(max((count for count in counts if isinstance(count, int)), default=0), _MOST_CPUS)


def _on_settings(catalogue: Mapping[str, Setting], node: Node) -> tuple[list[Decision], list[Wanted]]:
    """Every setting's decision in the catalogue's order, and what the roles are to hold."""
    decisions: dict[str, Decision] = {}
    held: list[Wanted] = []
    for setting in catalogue.values():
        if setting.target == "file":  # its decisions are the grants
            continue
        decision, wanted = decide(setting, node)
        decision = _with_overrides(_coupled(decision, setting, decisions), setting, node.node_class)
        decisions[setting.id] = decision
        if wanted is not None and decision.verdict in HELD:
            held.append(wanted)
    return list(decisions.values()), held


def _coupled(decision: Decision, setting: Setting, before: Mapping[str, Decision]) -> Decision:
    """What a change of other settings means for this one."""
    changed = [name for name in setting.recheck if name in before and before[name].verdict == "apply"]
    if setting.mechanism == "p2p_caches" and decision.verdict == "apply":
        if not changed:
            return replace(decision, verdict="in_force", why="nothing changes that an engine found out about P2P")
        return replace(decision, why=f"{', '.join(changed)} changes what engines found out about P2P")
    if not changed or decision.verdict not in ("apply", "in_force", "refuse"):
        return decision
    after = {"reboot": " after the reboot"}.get(before[changed[0]].takes_effect, "")
    return replace(decision, why=f"{decision.why}; {', '.join(changed)} changes: re-check{after}".lstrip("; "))


def _with_overrides(decision: Decision, setting: Setting, node_class: NodeClass) -> Decision:
    told = [name for name in node_class.overridden if name in set(setting.facts())]
    if not told:
        return decision
    return replace(decision, why=f"{decision.why}; {', '.join(told)}: as the inventory says".lstrip("; "))


def _unknown_ids(wishes: Wishes, catalogue: Mapping[str, Setting]) -> Iterator[Decision]:
    for where, names in (("enable", wishes.enable), ("disable", wishes.disable), ("values", wishes.values)):
        for name in names:
            if name not in catalogue:
                why = (
                    f"node_settings.{where} names {name}, which docs/settings.md does not have; {near(name, catalogue)}"
                )
                yield Decision(setting=name, title=name, policy="", verdict="refuse", why=why.rstrip("; "))


def _granted(setting_id: str, grants: Iterable[Grant], catalogue: Mapping[str, Setting]) -> Iterator[Decision]:
    for grant in grants:
        yield replace(
            decision_on(catalogue[setting_id], grant.verdict, grant.why, now=grant.now, want=grant.want),
            title=grant.title,
        )
