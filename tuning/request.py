"""From what a user asks for to a plan: names looked up, defaults filled in, nonsense refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lanewise.errors import InputError
from tuning.candidates import BASELINE, Candidate, nccl_candidate, select_candidates
from tuning.nccl_library import find_nccl
from tuning.plan import MARGINS, Environment, Plan, validate
from tuning.provenance import gpu_count
from tuning.workload import load_workload

_MPI_RANKS = 4
_VISITS: Mapping[str, tuple[int, int]] = {"mpi": (40, 1), "cuda": (4, 8)}
"""Rounds, and samples a visit. On CPUs other work disturbs, so many short rounds pair best (docs/findings.md). On GPUs
a visit's own cost (warm-up, reading back results) is large beside its samples, and nothing disturbs a graph."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks to be measured; the fields are those of `Plan`, as typed.

    Attributes:
        candidates: comma list, "" for the usual selection, or "all".
        ranks: 0 for the engine's default: 4 for mpi, one a GPU for cuda.
        rounds, samples: 0 for the engine's.
        margin: 0 for the engine's.
        seed: 0 draws one.
        nccl: cuda: further libraries to measure, paths or releases.
        allow_ll128: cuda: run LL128 candidates.
        shared_gpu: cuda: all ranks on one GPU.
    """

    engine: str
    environments: tuple[Environment, ...]
    workload: str
    candidates: str = ""
    ranks: int = 0
    launches: int = 5
    rounds: int = 0
    samples: int = 0
    margin: float = 0.0
    timeout: float = 60
    seed: int = 0
    modes: tuple[str, ...] = ("graph", "eager")
    working_sets: tuple[str, ...] = ("warm", "cold")
    nccl: tuple[str, ...] = ()
    allow_ll128: bool = False
    shared_gpu: bool = False


def words(text: str) -> tuple[str, ...]:
    """The words of a comma list."""
    return tuple(word.strip() for word in text.split(","))


def make_plan(request: Request, cache: Path) -> Plan:
    """The plan that a request asks for.

    Args:
        request: what was asked.
        cache: folder where fetched NCCL releases are kept.

    Raises:
        InputError: unknown names, values out of range, or options of another engine.
        LanewiseError: an NCCL release cannot be fetched.
    """
    if request.nccl and (contained := [env.name for env in request.environments if env.image]):
        raise InputError(
            f"--nccl together with images ({', '.join(contained)})",
            expected="environments of this machine: a library of this machine is not there in an image",
            todo="leave --nccl out, or measure an image that holds that NCCL",
        )
    candidates = (*select_candidates(request.engine, request.candidates), *further_nccl(request.nccl, cache))
    on_gpus = request.engine == "cuda"
    if not on_gpus and (given := [n for n in ("nccl", "allow_ll128", "shared_gpu") if getattr(request, n)]):
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"{named} with engine {request.engine}", expected="engine cuda", todo="add --engine cuda")
    plan = Plan(
        engine=request.engine,
        engine_options={"shared_gpu": request.shared_gpu, "allow_ll128": request.allow_ll128} if on_gpus else {},
        ranks=request.ranks or (_gpu_ranks(request) if on_gpus else _MPI_RANKS),
        workload=load_workload(request.workload),
        modes=request.modes if on_gpus else ("eager",),
        working_sets=request.working_sets if on_gpus else ("warm",),
        environments=request.environments,
        candidates=candidates,
        baseline=BASELINE,
        launches=request.launches,
        rounds=request.rounds or _VISITS[request.engine][0],
        samples=request.samples or _VISITS[request.engine][1],
        margin=request.margin or MARGINS[request.engine],
        seed=request.seed or secrets.randbelow(1 << 31),
        timeout=request.timeout,
    )
    validate(plan)
    return plan


def further_nccl(specs: tuple[str, ...], cache: Path) -> tuple[Candidate, ...]:
    """Candidates for further libraries of NCCL, by path or release.

    Raises:
        InputError, LanewiseError: as `find_nccl`.
    """
    found = [find_nccl(spec, cache / "nccl") for spec in specs]
    return tuple(
        nccl_candidate(f"nccl-{label}", f"NCCL's own choice, from {library}", nccl=str(library))
        for label, library in found
    )


def _gpu_ranks(request: Request) -> int:
    if request.shared_gpu:
        return 2
    if (count := gpu_count()) < 2:
        raise InputError(
            f"this machine has {count} NVIDIA GPUs",
            expected="two or more, one a rank",
            todo="--shared-gpu runs two ranks on one GPU (times are meaningless); --engine mpi needs none",
        )
    return count
