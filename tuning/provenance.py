"""What a run was made with: toolkit revision, node record, environments, variables. Gathered once, into the header."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lanewise.errors import LanewiseError
from lanewise.redact import Redactor, redact_environment
from tuning.described import describe_environment
from tuning.engines import Engine, worker_identity
from tuning.plan import Plan
from tuning.printed import printed
from tuning.runfile import Header, Kind

ROOT = Path(__file__).resolve().parent.parent
_NODE_RECORD = ROOT / "playbooks/module_utils/node_record.py"
_PREFIXES = (
    "NCCL_", "OMPI_", "PRTE_", "PMIX_", "UCX_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "SGLANG_", "SGL_",
    "FLASHINFER_", "TRITON_", "VLLM_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "MPI4PY_", "MALLOC_", "HWLOC_",
)  # fmt: skip
_STEERING = ("NCCL_", "OMPI_MCA_", "UCX_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH", "TMPDIR", "HOSTNAME")


def make_header(plan: Plan, engine: Engine, command: list[str]) -> Header:
    """Gather a run's header. Takes about a second; starts the interpreter of every environment once.

    Raises:
        InputError: an environment's Python does not run.
        LanewiseError: the node cannot be read at all.
    """
    redact = Redactor(os.environ)
    return Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        # Ranks that share a GPU talk through the host: right results, but times that say nothing.
        kind=Kind.MEANINGLESS if plan.engine_options.get("shared_gpu") else Kind.MEASURED,
        plan=plan,
        toolkit=toolkit_revision(),
        node=node_record(),
        environments={env.name: describe_environment(env, redact) for env in plan.environments},
        worker=worker_identity(engine),
        variables=relevant_variables(os.environ),
        command=redact.all(command),
    )


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change a measurement, redacted; the rest of the environment is nobody's business."""
    return redact_environment({k: v for k, v in environment.items() if k.startswith(_PREFIXES) or k in _NAMES})


def variables_outside(environment: Mapping[str, str]) -> list[str]:
    """Names of variables that steer a measurement on this machine, and that a container does not inherit."""
    return sorted(name for name in environment if name.startswith(_STEERING))


def node_record(root: str = "") -> dict[str, Any]:
    """The node record, from its one reader, as a subprocess; of another root file system where `root` names one.

    Raises:
        LanewiseError: the reader does not run.
    """
    record = printed([sys.executable, str(_NODE_RECORD), *(["--root", root] if root else [])]).json()
    if record is None:
        raise LanewiseError(
            "the node record cannot be read",
            expected=f"JSON from {_NODE_RECORD.relative_to(ROOT)}",
            todo=f"run `python3 {_NODE_RECORD.relative_to(ROOT)}` and report what it says",
        )
    return record


def gpu_count() -> int:
    """How many NVIDIA GPUs this machine has, by its node record; 0 where that cannot be told."""
    gpus = node_record().get("gpus")
    return len(gpus) if isinstance(gpus, list) else 0


def toolkit_revision() -> dict[str, Any]:
    """Version and git revision of this toolkit, and whether its tree holds uncommitted changes; null where unknown."""
    revision = printed(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    changes = printed(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return {
        "revision": "\n".join(revision.lines).strip() or None if revision.ok else None,
        "changed": any(line.strip() for line in changes.lines) if changes.ok else None,
    }
