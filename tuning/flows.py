"""Max-min fair flows over links with capacities: how long a set of transfers takes that begin together.

Links are directed and named; a flow occupies all links of its way at one rate. Rates are max-min fair by progressive
filling (Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2): all rise together, and a flow stops where a link of
its way is full. PCIe's credits and arbitration are not in it: where those decide, capacities have to say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SAME = 1 + 1e-9
"""Shares and times that differ by no more are one event, so that rounding does not multiply the rounds."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One transfer.

    Attributes:
        links: names of the links on its way, each once.
        size: how much it carries: bytes, or a share of a message where the caller multiplies later.
    """

    links: tuple[str, ...]
    size: float


@dataclass(frozen=True, kw_only=True)
class Completion:
    """When all flows of a phase have ended.

    Attributes:
        time: in units of size over capacity: with bytes and GB/s, ns; 0 where nothing flows.
        busiest: the link that has to carry most for its capacity, the first by name of equals; "" where nothing flows.
        busiest_time: how long that link needs for all that crosses it: `time` is never shorter.
    """

    time: float
    busiest: str
    busiest_time: float


def fair_rates(ways: Sequence[tuple[str, ...]], capacities: Mapping[str, float]) -> list[float]:
    """The max-min fair rate of each flow.

    Args:
        ways: each flow's links.
        capacities: of every link that is named, more than 0.

    Returns:
        A rate for each flow, in the capacities' unit; infinite for one that has no links.
    """
    rates = [float("inf")] * len(ways)
    rising = {number for number, links in enumerate(ways) if links}
    left = {link: capacities[link] for links in ways for link in links}
    users = Counter(link for links in ways for link in links)
    while rising:
        share = min(left[link] / count for link, count in users.items() if count)
        full = {link for link, count in users.items() if count and left[link] / count <= share * _SAME}
        for number in [number for number in rising if not full.isdisjoint(ways[number])]:
            rates[number] = share
            rising.remove(number)
            for link in ways[number]:
                left[link] = max(0.0, left[link] - share)
                users[link] -= 1
    return rates


def completion(flows: Sequence[Flow], capacities: Mapping[str, float]) -> Completion:
    """When the last of the flows ends, if all begin together and rates are shared anew whenever one ends.

    Args:
        flows: the transfers; those of no size are left out.
        capacities: of every link that is named, more than 0.
    """
    load: dict[str, float] = {}
    for flow in flows:
        for link in flow.links:
            load[link] = load.get(link, 0.0) + flow.size
    needs = {link: size / capacities[link] for link, size in sorted(load.items())}
    busiest = max(needs, key=needs.__getitem__, default="")
    remaining = [(flow.links, flow.size) for flow in flows if flow.size > 0 and flow.links]
    time = 0.0
    while remaining:
        rates = fair_rates([links for links, _ in remaining], capacities)
        step = min(size / rate for (_, size), rate in zip(remaining, rates, strict=True))
        time += step
        remaining = [
            (links, size - rate * step)
            for (links, size), rate in zip(remaining, rates, strict=True)
            if size / rate > step * _SAME
        ]
    return Completion(time=time, busiest=busiest, busiest_time=needs.get(busiest, 0.0))
