"""The approaches that a benchmark can try, as data: one entry each, per engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lanewise.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One approach to try.

    Attributes:
        name: identifier on the command line, in run files and in tables.
        engine: the engine that knows it.
        meaning: one line for people.
        parameters: what the engine's worker needs to select it inside a running process.
        process_environment: variables it needs from process start; candidates that need none share launches.
    """

    name: str
    engine: str
    meaning: str
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    process_environment: Mapping[str, str] = field(default_factory=dict)


def _tuned(name: str, algorithm: int, meaning: str, segment_bytes: int = 0) -> Candidate:
    parameters = {"algorithm": algorithm, "segment_bytes": segment_bytes}
    return Candidate(name=name, engine="mpi", meaning=meaning, parameters=parameters)


# Numbers: the enumeration behind Open MPI 5's coll_tuned_allreduce_algorithm (ompi_info --all shows it).
_MPI = (
    _tuned("default", 0, "Open MPI's own choice by size and ranks"),
    _tuned("basic_linear", 1, "reduce to rank 0 one after another, then broadcast"),
    _tuned("nonoverlapping", 2, "tuned reduce, then tuned broadcast"),
    _tuned("recursive_doubling", 3, "log2(n) exchanges of the whole message"),
    _tuned("ring", 4, "reduce-scatter and all-gather round a ring"),
    # Open MPI falls back to plain ring where a rank's block is no longer than a segment: 1 KiB splits 14 KiB on 8.
    _tuned("segmented_ring", 5, "ring, each block cut in segments of 1 KiB", segment_bytes=1024),
    _tuned("rabenseifner", 6, "recursive halving reduce-scatter, then recursive doubling all-gather"),
    Candidate(
        name="default_tcp",
        engine="mpi",
        meaning="Open MPI's own choice over loopback TCP: shared memory off, as NCCL with P2P and SHM off",
        parameters={"algorithm": 0},
        # Left to itself Open MPI takes all interfaces but loopback: a container engine's bridge where there is one, and
        # in a container without network none.
        process_environment={"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"},
    ),
)


def nccl_candidate(
    name: str, meaning: str, *, algo: str = "", proto: str = "", nccl: str = "", **env: str
) -> Candidate:
    """An allreduce of NCCL's C API on the capturing stream.

    Args:
        name: identifier.
        meaning: one line for people.
        algo: NCCL_ALGO of its communicator, for allreduce only: since 2.24 plain "Tree" makes other collectives fail.
        proto: NCCL_PROTO of its communicator.
        nccl: path of a libnccl other than the environment's.
        env: what it needs from process start.
    """
    parameters = {"kind": "nccl", "algo": f"allreduce:{algo}" if algo else "", "proto": proto, "nccl": nccl}
    return Candidate(name=name, engine="cuda", meaning=meaning, parameters=parameters, process_environment=env)


_CUDA = (
    nccl_candidate("default", "NCCL's own choice"),
    nccl_candidate("ring_ll", "Ring, low-latency protocol (8 B stores of data and flag)", algo="ring", proto="LL"),
    nccl_candidate("ring_simple", "Ring, Simple protocol", algo="ring", proto="Simple"),
    nccl_candidate("tree_ll", "Tree (in one node: a chain), low-latency protocol", algo="tree", proto="LL"),
    nccl_candidate("tree_simple", "Tree (in one node: a chain), Simple protocol", algo="tree", proto="Simple"),
    nccl_candidate(
        "ring_ll128", "Ring, LL128: can corrupt data on PCIe; needs --allow-ll128", algo="ring", proto="LL128"
    ),
    nccl_candidate(
        "tree_ll128", "Tree, LL128: can corrupt data on PCIe; needs --allow-ll128", algo="tree", proto="LL128"
    ),
    nccl_candidate("p2p_off", "NCCL's choice through host memory", NCCL_P2P_DISABLE="1"),
    nccl_candidate("sockets", "NCCL's choice over sockets", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1"),
    Candidate(
        name="torch_distributed",
        engine="cuda",
        meaning="NCCL through torch.distributed, which hops to a stream of its own and back",
        parameters={"kind": "torch_distributed"},
    ),
    Candidate(
        name="symm_mem_one_shot",
        engine="cuda",
        meaning="torch symmetric memory, one-shot: every rank reads all the others",
        parameters={"kind": "symm_mem", "variant": "one_shot"},
    ),
    Candidate(
        name="symm_mem_two_shot",
        engine="cuda",
        meaning="torch symmetric memory, two-shot: reduce-scatter, then all-gather",
        parameters={"kind": "symm_mem", "variant": "two_shot"},
    ),
)

CANDIDATES: Mapping[str, tuple[Candidate, ...]] = MappingProxyType({"mpi": _MPI, "cuda": _CUDA})
DEFAULT_SELECTION: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mpi": ("default", "recursive_doubling", "ring", "segmented_ring", "rabenseifner"),
        "cuda": tuple(candidate.name for candidate in _CUDA if "ll128" not in candidate.name),
    }
)
BASELINE = "default"


def select_candidates(engine: str, names: str) -> tuple[Candidate, ...]:
    """The engine's candidates of a comma list; "" gives the usual selection, "all" every one.

    Raises:
        InputError: an unknown engine or candidate, one named twice, or no baseline among them.
    """
    if engine not in CANDIDATES:
        raise InputError(
            f"there is no engine {engine!r}", expected=f"one of {', '.join(CANDIDATES)}", todo="name one of these"
        )
    known = {candidate.name: candidate for candidate in CANDIDATES[engine]}
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(DEFAULT_SELECTION[engine])
    if wanted == ["all"]:
        wanted = list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(
            f"engine {engine} has no candidate {', '.join(map(repr, unknown))}",
            expected=f"a comma list of {', '.join(known)}, or 'all'",
            todo="name some of these",
        )
    if len(set(wanted)) != len(wanted):
        raise InputError(f"a candidate stands twice in {names!r}", expected="each once", todo="drop the repetition")
    if BASELINE not in wanted:
        # Without the baseline and its second copy there is no noise floor, so no verdict.
        wanted.insert(0, BASELINE)
    return tuple(known[name] for name in wanted)
