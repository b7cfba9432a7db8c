"""A topology as a prediction sees it: named, directed links with rates, latencies, and what no allreduce beats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations

from lanewise.errors import InputError
from tuning.predict_constants import Constants, HostClass
from tuning.topology import Topology
from tuning.topology_nodes import Gpu, Node, Switch
from tuning.topology_paths import Hop, PathType, islands, path, path_type

MOST_GPUS = 16
"""Nobody published a row of more; it also bounds what a prediction takes."""
_BROADCOM = "0x1000"
_OF_A_PAIR = ", GPU "
_P2P_BROKEN = ("CNS", "GNS", "TNS", "NS", "DR")


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What no allreduce can beat on these links, kernels apart: `latency_us` and `us_per_byte`; set by `link`."""

    latency_us: float
    us_per_byte: float
    link: str

    def time_us(self, size: int) -> float:
        """Of a message of `size` bytes."""
        return self.latency_us + size * self.us_per_byte


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """The GPUs that work together, and what joins them.

    Attributes:
        topology: the node, with nothing missing (`completed`) and no other GPU.
        gpus: indices, in the order of a ring: neighbours in the tree are neighbours here.
        constants: rates and latencies.
    """

    topology: Topology
    gpus: tuple[int, ...]
    constants: Constants

    @cached_property
    def host_class(self) -> HostClass:
        """Which kind of host it is."""
        switches = [node for gpu in self.gpus for node in self._chain(gpu) if isinstance(node, Switch)]
        if any(self._split(switch) for switch in switches):
            return self.constants.host_classes["split switches"]
        return self.constants.host_classes["switches" if switches else "root ports"]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """GPUs in equal groups for a hierarchy: by topmost switch, else by CPU; none where neither divides them so."""
        by_switch = [[gpu.index for gpu in island] for island in islands(self.topology)]
        by_cpu: dict[str, list[int]] = defaultdict(list)
        for gpu in self.gpus:
            by_cpu[self._chain(gpu)[-1].id].append(gpu)
        for groups in (by_switch, list(by_cpu.values())):
            if len(groups) > 1 and {len(group) for group in groups} == {len(groups[0])} != {1}:
                return tuple(tuple(sorted(group)) for group in groups)
        return ()

    @cached_property
    def without_p2p(self) -> str:
        """Which pair has no P2P by the driver's word, e.g. "GPU 0 and 1 (CNS)"; "" where none is known to lack it."""
        for (a, b), state in sorted(self.topology.p2p.items()):
            if a != b and state in _P2P_BROKEN:
                return f"GPU {a} and {b} ({state})"
        return ""

    def flag_us(self, a: int, b: int) -> float:
        """One way of a flag from GPU `a` to `b`, us."""
        return self.constants.flag_us[self._type(a, b)]

    def read_us(self, reader: int, owner: int) -> float:
        """A short read by one GPU from another, us."""
        return self.constants.read_us[self._type(reader, owner)]

    def through_host_us(self, a: int, b: int) -> float:
        """A flag into host memory and its read by the other GPU, us: a way over a host bridge each."""
        far = self._type(a, b) is PathType.SYS
        return self.constants.flag_us[PathType.PHB] + self.constants.read_us[PathType.SYS if far else PathType.PHB]

    def route(self, a: int, b: int, *, through_host: bool = False) -> tuple[str, ...]:
        """Names of the links from GPU `a` to `b` whose rates limit; over the CPU if asked, or where ACS redirects."""
        return tuple((self._hosted if through_host else self._direct)[a, b])

    @cached_property
    def capacities(self) -> Mapping[str, float]:
        """GB/s of every link of every route, and of what one GPU's kernels read and write."""
        found: dict[str, float] = {}
        for gpu in self.gpus:
            found[reads_of(gpu)], found[writes_of(gpu)] = self.host_class.reads_gb_s, self.host_class.writes_gb_s
        for links in (*self._direct.values(), *self._hosted.values()):
            found |= links
        return found

    def capacities_of(self, pairs: Iterable[tuple[int, int]]) -> Mapping[str, float]:
        """The capacities while these (source, destination) pairs send: uplinks that collapse have collapsed.

        Several GPUs behind one virtual switch that send to several others: see `predict_constants.yaml`.
        """
        if self.host_class.collapsed_gb_s is None:
            return self.capacities
        sources, targets = defaultdict(set), defaultdict(set)
        for a, b in pairs:
            home, other = self._top(a), self._top(b)
            if home.id != other.id and isinstance(home, Switch) and self._split(home):
                sources[home.id].add(a)
                targets[home.id].add(other.id)
        collapsed = [self.topology.by_id[id_] for id_ in sources if len(sources[id_]) > 1 and len(targets[id_]) > 1]
        uplinks = {self._name(node.id, node.parent): self.host_class.collapsed_gb_s for node in collapsed}
        return {**self.capacities, **uplinks}

    @cached_property
    def floor(self) -> Floor:
        """The least that an allreduce takes: the farthest flag, and the link that has most to carry for its rate.

        Every link parts the GPUs in two, and each part has to send the other one message. Together the GPUs send
        2 (n - 1): n - 1 parts that are to be reduced, n - 1 that are to be told.
        """
        n = len(self.gpus)
        share = self.constants.floor_share / self.constants.payload_share
        routes = (route.items() for route in self._direct.values())
        links = {name: rate * share for route in routes for name, rate in route if _OF_A_PAIR not in name}
        needs = {name: 1 / rate for name, rate in sorted(links.items())}
        if own := [rate for name, rate in links.items() if name.startswith("GPU ")]:
            needs["the GPUs' own links"] = 2 * (n - 1) / sum(own)
        link = max(needs, key=needs.__getitem__, default="")
        latency = max(self.flag_us(a, b) for a, b in self._pairs)
        return Floor(latency_us=latency, us_per_byte=needs.get(link, 0.0) / 1e3, link=link)

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(permutations(self.gpus, 2))

    @cached_property
    def _direct(self) -> Mapping[tuple[int, int], Mapping[str, float]]:
        """By pair: the links of its way with their rates."""
        return {
            (a, b): self._limits(self._over_cpu(a, b) if self._redirected(a, b) else path(self.topology, a, b), a, b)
            for a, b in self._pairs
        }

    @cached_property
    def _hosted(self) -> Mapping[tuple[int, int], Mapping[str, float]]:
        """The same over host memory."""
        return {(a, b): self._limits(self._over_cpu(a, b), a, b) for a, b in self._pairs}

    def _over_cpu(self, a: int, b: int) -> list[Hop]:
        """Up to the CPU and down again, whatever switch they share."""
        up, down = self._chain(a), self._chain(b)
        across = [hop for hop in path(self.topology, a, b) if hop.kind == "sockets"]
        rising = [_hop(low, high, low) for low, high in pairwise(up)]
        falling = [_hop(high, low, low) for low, high in pairwise(down)]
        return [*rising, *across, *reversed(falling)]

    def _limits(self, hops: Iterable[Hop], a: int, b: int) -> Mapping[str, float]:
        """Names and rates of the hops whose rates are limits; between sockets each pair of GPUs has its own."""
        found = {}
        for hop in hops:
            if hop.kind == "pcie" and hop.gb_per_s:
                found[self._name(hop.start, hop.end)] = hop.gb_per_s * self.constants.payload_share
            elif hop.kind == "sockets":
                rate = hop.gb_per_s or self.constants.socket_gb_s
                found[f"{hop.start} -> {hop.end}{_OF_A_PAIR}{a} to {b}"] = rate
        return found

    def _name(self, start: str, end: str) -> str:
        return f"{self._called(start)} -> {self._called(end)}"

    def _called(self, id_: str) -> str:
        node = self.topology.by_id[id_]
        if isinstance(node, Gpu):
            return f"GPU {node.index}"
        return f"switch {id_}" if isinstance(node, Switch) else id_

    def _chain(self, gpu: int) -> tuple[Node, ...]:
        return self.topology.chain(self.topology.gpu(gpu))

    def _top(self, gpu: int) -> Node:
        """What hangs below the CPU's root port: the topmost switch, or the GPU itself."""
        chain = self._chain(gpu)
        return next((node for node in reversed(chain) if isinstance(node, Switch)), chain[0])

    def _split(self, switch: Switch) -> bool:
        """Whether it is a part of a Broadcom chip that is partitioned into several virtual switches."""
        others = (node for node in self.topology.nodes if isinstance(node, Switch) and node.id != switch.id)
        return bool(switch.chip) and switch.ids.vendor == _BROADCOM and any(o.chip == switch.chip for o in others)

    def _redirected(self, a: int, b: int) -> bool:
        return any(self.topology.gpu(gpu).acs_redirect for gpu in (a, b))

    def _type(self, a: int, b: int) -> PathType:
        kind = path_type(self.topology, a, b)
        return PathType.PHB if self._redirected(a, b) and kind in (PathType.PIX, PathType.PXB) else kind


def reads_of(gpu: int) -> str:
    """Name of the limit on what one GPU's kernels read from several peers."""
    return f"reads of GPU {gpu}"


def writes_of(gpu: int) -> str:
    """Name of the limit on what one GPU's kernels write to several peers."""
    return f"writes of GPU {gpu}"


def _hop(start: Node, end: Node, lower: Node) -> Hop:
    link = getattr(lower, "link", None)
    if link is None:
        return Hop(start=start.id, end=end.id, kind="inside")
    return Hop(start=start.id, end=end.id, kind="pcie", link=link, gb_per_s=link.bandwidth)


def make_fabric(topology: Topology, gpus: Sequence[int], constants: Constants) -> Fabric:
    """The fabric of some GPUs of a node.

    Args:
        topology: the node, with nothing missing (`completed`).
        gpus: their indices; none for all.
        constants: rates and latencies.

    Raises:
        InputError: a GPU is not there or stands twice, they are too few or too many, or something faster than PCIe
            joins them.
    """
    wanted = list(gpus) or [gpu.index for gpu in topology.gpus]
    if not 2 <= len(set(wanted)) == len(wanted) <= MOST_GPUS:
        raise InputError(
            f"{len(wanted)} GPUs of topology {topology.name} are to work together",
            expected=f"2 to {MOST_GPUS} different ones",
            todo="name some with --gpus, e.g. --gpus 0-7",
        )
    place = {node.id: number for number, node in enumerate(topology.nodes)}
    order = sorted(wanted, key=lambda gpu: [place[node.id] for node in reversed(topology.chain(topology.gpu(gpu)))])
    for one, other in combinations(order, 2):
        if path_type(topology, one, other) is PathType.NVL:
            raise InputError(
                f"GPU {one} and {other} of topology {topology.name} are joined by NVLink",
                expected="GPUs joined by PCIe alone: nothing else is predicted",
                todo="name others with --gpus, or measure: ./inv bench-allreduce",
            )
    return Fabric(topology=_without_others(topology, set(order)), gpus=tuple(order), constants=constants)


def _without_others(topology: Topology, gpus: set[int]) -> Topology:
    nodes = tuple(node for node in topology.nodes if not isinstance(node, Gpu) or node.index in gpus)
    p2p = {pair: state for pair, state in topology.p2p.items() if gpus.issuperset(pair)}
    return replace(topology, nodes=nodes, p2p=p2p)
