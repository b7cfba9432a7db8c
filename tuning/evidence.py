"""What files tell of a host, as values: signs, latencies, whose host it is. `evidence_read` makes them from files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lanewise.errors import InputError
from tuning.topology import Topology

_NO_NAME = re.compile(r"localhost|hostname|<.*>|[0-9a-f]{12}", re.IGNORECASE)
"""Names that tell no host: placeholders, and those that container engines make up."""
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Something seen that speaks for or against causes.

    Attributes:
        name: as causes.yaml names it, e.g. "acs-redirect".
        text: what was seen, with its numbers.
        where: the file, and the line where one line says it.
    """

    name: str
    text: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One measured allreduce.

    Attributes:
        size: bytes of the message.
        us: microseconds a call.
        ranks: how many took part; 0 where not known.
        mode: "graph", "eager", or "" where not known.
        where: the file or option that says so.
    """

    size: int
    us: float
    ranks: int = 0
    mode: str = ""
    where: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one file tells.

    Attributes:
        path: the file, for people.
        kind: what it was recognised as, in words.
        said: what was read of it, a sentence each.
        signs, latencies: what it shows.
        hosts: host names in it.
        models: GPU models in it.
        gpus: how many GPUs the node has; 0 where it does not tell.
        ranks: how many ranks took part in what it is of; 0 where it does not tell.
        topology: the node's PCI tree.
        releases: NCCL releases in it, as (major, minor, patch).
        accept: tokens a step of speculative decoding; None without.
        rate: tokens per second of decoding; None without.
    """

    path: str
    kind: str
    said: tuple[str, ...]
    signs: tuple[Sign, ...] = ()
    latencies: tuple[Latency, ...] = ()
    hosts: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    gpus: int = 0
    ranks: int = 0
    topology: Topology | None = None
    releases: frozenset[tuple[int, int, int]] = frozenset()
    accept: float | None = None
    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of one host.

    Attributes:
        readings: what each file told.
        latencies: measured allreduces of files and options.
        topology: the node's PCI tree, where one is known.
        ranks: how many ranks an allreduce has; 8 where nothing tells.
    """

    readings: tuple[Reading, ...] = ()
    latencies: tuple[Latency, ...] = ()
    topology: Topology | None = None
    ranks: int = 8
    signs: tuple[Sign, ...] = field(default=())


def gather(
    readings: Sequence[Reading],
    *,
    measured: Sequence[Latency] = (),
    topology: Topology | None = None,
    ranks: int = 0,
    one_host: bool = False,
) -> Evidence:
    """Put together what files and options tell of one host.

    Args:
        readings: a file each.
        measured: latencies named by hand.
        topology: the node named by hand; goes before those of files.
        ranks: ranks of the latencies named by hand; 0: those of the files, or the node's GPUs, or 8.
        one_host: the files are of one host even if their names differ.

    Raises:
        InputError: they are of different hosts.
    """
    if not one_host:
        _check_one_host(readings, topology)
    node = topology or next((r.topology for r in readings if r.topology), None)
    told = [ranks, *(r.ranks for r in readings), *(r.gpus for r in readings), len(node.gpus) if node else 0]
    return Evidence(
        readings=tuple(readings),
        latencies=(*measured, *(latency for reading in readings for latency in reading.latencies)),
        topology=node,
        ranks=next((number for number in told if number > 1), 8),
        signs=tuple(sign for reading in readings for sign in reading.signs),
    )


def _check_one_host(readings: Sequence[Reading], topology: Topology | None) -> None:
    _check_alike("names", [(r.path, sorted(h for h in r.hosts if not _NO_NAME.fullmatch(h))) for r in readings])
    _check_alike("GPUs", [(r.path, sorted(r.models)) for r in readings])
    named = [("--topology", [f"{len(topology.gpus)} GPUs"])] if topology and topology.gpus else []
    _check_alike("numbers of GPUs", [*named, *((r.path, [f"{r.gpus} GPUs"] if r.gpus else []) for r in readings)])
    nodes = [(where, len(node.gpus)) for where, node in [("--topology", topology)] if node and node.gpus]
    nodes += [(r.path, r.gpus) for r in readings if r.gpus]
    for where, gpus in nodes[:1]:
        for reading in readings:
            if reading.ranks > gpus:
                raise _mixed(f"{reading.path} is of {reading.ranks} ranks, and {where} of a node with {gpus} GPUs")


def _check_alike(what: str, told: Iterable[tuple[str, list[str]]]) -> None:
    """That no two files tell different things, and none tells two."""
    seen: dict[str, str] = {}
    for path, values in told:
        for value in values:
            seen.setdefault(value, path)
    if len(seen) > 1:
        shown = "; ".join(f"{value[:60]} in {path}" for value, path in list(seen.items())[:_SHOWN])
        raise _mixed(f"the files hold different {what}: {shown}")


def _mixed(what: str) -> InputError:
    return InputError(
        what,
        expected="files of one host: one cause is looked for, and what holds of one host says nothing of another",
        todo="give each host's files a call of their own, or say --one-host where they are of one after all",
    )
