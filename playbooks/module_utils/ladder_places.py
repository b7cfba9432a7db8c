"""Where GPUs sit in the PCI tree, how far two of them are apart, and what their links carry.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENCODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130}
"""What coding leaves of the rate by GT/s: PCI Express Base Specification 5.0, section 4.2."""


@dataclass(frozen=True)
class Place:
    """Where a GPU sits.

    Attributes:
        root: its host bridge, such as "pci0000:40".
        bridges: addresses of the bridges above it, nearest first.
        numa_node: None where the firmware does not say.
        gb_s: GB/s (1e9 bytes) that the narrowest link on its way to the root carries after coding, at the highest rate
            that both ends can: an idle link may have lowered its rate. None: not known.
    """

    address: str
    root: str
    bridges: tuple[str, ...]
    numa_node: int | None
    gb_s: float | None

    @property
    def switch(self) -> str | None:
        """The upstream port nearest the root of the switches above it: below a root port, above a downstream port."""
        return self.bridges[-2] if len(self.bridges) > 2 else None


def places(devices: Sequence[Mapping[str, Any]], gpus: Sequence[str]) -> dict[str, Place]:
    """The GPUs that the node record's `pci` has, by address."""
    known = {str(device["address"]): device for device in devices}
    return {gpu: _place(known, gpu) for gpu in gpus if gpu in known}


def _place(known: Mapping[str, Mapping[str, Any]], gpu: str) -> Place:
    way = [gpu]
    while (above := str(known[way[-1]].get("parent"))) in known and above not in way:
        way.append(above)
    node = known[gpu].get("numa_node")
    return Place(
        gpu, above, tuple(way[1:]), node if isinstance(node, int) else None, _rate([known[one] for one in way])
    )


def _rate(way: Sequence[Mapping[str, Any]]) -> float | None:
    links = [(one.get("max_link_speed_gts"), one.get("current_link_width")) for one in way]
    links = [link for link in links if link != (None, None)]  # a port inside a chip has no link
    speeds = [speed for speed, _ in links if isinstance(speed, (int, float))]
    widths = [width for _, width in links if isinstance(width, int)]
    if not links or len(speeds) < len(links) or len(widths) < len(links) or min(speeds) not in _ENCODING:
        return None
    return min(speeds) * _ENCODING[min(speeds)] * min(widths) / 8


def apart(one: Place, other: Place) -> str:
    """How far two GPUs are apart: "switch", "host_bridge", "node" (NUMA) or "system"."""
    if set(one.bridges) & set(other.bridges):
        return "switch"
    if one.root == other.root:
        return "host_bridge"
    return "node" if one.numa_node is not None and one.numa_node == other.numa_node else "system"


def write_patterns(placed: Sequence[Place | None]) -> list[list[tuple[int, int]]]:
    """Flows, as numbers of GPUs, under which a switch's uplink may collapse: all its GPUs write at once, to GPUs of at
    least two host bridges and behind other switches (collapse-report.md, named in playbooks/settings/faults.yaml).
    """
    found = []
    for switch in sorted({place.switch for place in placed if place and place.switch}):
        sources = [n for n, place in enumerate(placed) if place and place.switch == switch]
        roots: dict[str, list[int]] = {}
        for n, place in enumerate(placed):
            if place and place.switch != switch:
                roots.setdefault(place.root, []).append(n)
        if len(sources) > 1 and len(roots) > 1:
            groups = [roots[root] for root in sorted(roots)]
            flows = []
            for n, source in enumerate(sources):
                group = groups[n % len(groups)]
                flows.append((source, group[n // len(groups) % len(group)]))
            found.append(flows)
    return found
