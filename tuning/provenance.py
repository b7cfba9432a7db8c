"""What a run was made with: toolkit revision, node record, environments, variables. Gathered once, into the header."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lanewise.errors import InputError, LanewiseError
from lanewise.redact import Redactor, redact_environment
from tuning.engines import Engine, worker_identity
from tuning.nccl_settings import conf_files, effective_settings
from tuning.plan import Environment, Plan
from tuning.runfile import Header, Kind
from tuning.supervised import Ending, run_supervised

ROOT = Path(__file__).resolve().parent.parent
_NODE_RECORD = ROOT / "playbooks/module_utils/node_record.py"
_DESCRIBE = ROOT / "tuning/workers/describe.py"
_SECONDS = 60
_MOST_OUTPUT = 1 << 24
_PREFIXES = (
    "NCCL_", "OMPI_", "PRTE_", "PMIX_", "UCX_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "SGLANG_", "SGL_",
    "FLASHINFER_", "TRITON_", "VLLM_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "MPI4PY_", "MALLOC_", "HWLOC_",
)  # fmt: skip
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


def describe_environment(environment: Environment, redact: Redactor) -> dict[str, Any]:
    """Python, library versions and effective NCCL settings of an environment.

    Raises:
        InputError: its Python does not run.
    """
    described = _json_of([environment.python, str(_DESCRIBE)])
    if described is None:
        raise InputError(
            f"environment {environment.name}: {environment.python} does not run {_DESCRIBE.name}",
            expected="a Python interpreter",
            todo=f"try `{environment.python} --version`",
        )
    seen = {**os.environ, **environment.variables}
    # As lists and dictionaries, like what a run file gives back, so that the two compare.
    settings = json.loads(json.dumps([asdict(s) for s in effective_settings(seen, conf_files(seen), redact)]))
    return {**described, "variables": redact_environment(environment.variables), "nccl": settings}


def node_record(root: str = "") -> dict[str, Any]:
    """The node record, from its one reader, as a subprocess; of another root file system where `root` names one.

    Raises:
        LanewiseError: the reader does not run.
    """
    record = _json_of([sys.executable, str(_NODE_RECORD), *(["--root", root] if root else [])])
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
    revision = _output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    changes = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return {
        "revision": revision.strip() if revision else None,
        "changed": bool(changes.strip()) if changes is not None else None,
    }


def _json_of(command: list[str]) -> dict[str, Any] | None:
    text = _output(command)
    try:
        document = json.loads(text, parse_constant=_no_constant) if text else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _output(command: list[str]) -> str | None:
    """What a command prints, or None where it fails, prints too much or takes too long. Nothing of it survives."""
    lines: list[str] = []
    held = 0

    def feed(line: str) -> bool:
        nonlocal held
        held += len(line)
        if held > _MOST_OUTPUT:
            raise OverflowError
        lines.append(line)
        return False  # so that the time limit is one for the whole

    try:
        ending, code = run_supervised(command, environment=os.environ, scratch=[], timeout=_SECONDS, feed=feed)
    except OverflowError:
        return None
    return "\n".join(lines) if ending is Ending.EXITED and code == 0 else None
