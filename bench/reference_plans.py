"""The reference nodes' NCCL plans as a Markdown table: python bench/reference_plans.py cu12-2.27.5 cu13-2.30.7 ...

A row for each node and each outcome among the named releases (fetched where they are not kept): what the search finds,
which pairs are direct, what NCCL takes for 43,008 bytes and where it changes over, and what a graph file would make of
a search that failed. Bold is what was not found; a price in brackets rests on that, and is no time. All is predicted.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lanewise.errors import LanewiseError
from tuning.nccl_plan import NcclPlan, make_plan
from tuning.topology_read import read_topology, reference_names

SIZE = 43_008
"""Three rows of hidden size 7168 in bfloat16: a verify pass of two draft tokens."""
PRICE = "Price, us"
HEADINGS = ("Node", "NCCL", "Ring", "Tree", "P2P pairs", f"Takes for {SIZE:,} B", PRICE, "Then", "With a graph file")


def main(releases: list[str]) -> int:
    """Print the table; 2 where no release is named."""
    if not releases:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"| {' | '.join('--:' if heading == PRICE else '---' for heading in HEADINGS)} |")
    for node in reference_names():
        rows: dict[tuple[str, ...], list[str]] = {}
        for release in releases:
            plan = make_plan(read_topology(node), nccl=release, cache=ROOT / ".cache" / "nccl", sizes=(SIZE,))
            rows.setdefault(outcome(plan), []).append(plan.nccl)
        for cells, labels in rows.items():
            print(f"| {node} | {', '.join(labels)} | {' | '.join(cells)} |")
    return 0


def outcome(plan: NcclPlan) -> tuple[str, ...]:
    """The cells of a row from the third on."""
    base, choice = plan.base, plan.base.choices[0]
    ring, tree = base.search.ring, base.search.tree
    if not (ring and tree and choice and base.model):
        return (str(base.search.status), *("-" for _ in HEADINGS[3:]))
    price = f"{choice.time_us:.1f}"
    return (
        *(f"**{graph}**" if graph.failed else str(graph) for graph in (ring, tree)),
        f"{sum(pair.p2p for pair in base.transports)} of {len(base.transports)}",
        f"{choice.cell}, {choice.channels} ch",
        f"({price})" if ring.failed else price,
        "; ".join(f"{cell} from {size:,} B" for size, cell in base.model.crossovers()[1:]),
        repaired(plan),
    )


def repaired(plan: NcclPlan) -> str:
    """What NCCL takes with the graph file that repairs its search."""
    for alternative in plan.alternatives:
        choice = alternative.choices[0]
        if alternative.label == "repaired graph file" and choice:
            return f"{choice.cell}, {choice.time_us:.1f} us"
    return "not needed" if not plan.base.failed else "none"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LanewiseError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
