"""The verbs: a table of contents, and those verbs that more than one part has to do with.

The only file that imports more than one part of the toolkit.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context

from images.building_verbs import build_image, push
from images.matrix import read_toolchains
from images.verbs import audit, images, lock, preflight
from lanewise import talk
from lanewise.engine import engine_state
from lanewise.errors import ExitCode, InputError
from lanewise.verbs import verb
from playbooks.verbs import provision, revert
from playbooks.verify_verbs import verify_node
from tuning import bench
from tuning import survey as surveys
from tuning.container_images import toolchain_images
from tuning.diagnose_verbs import diagnose
from tuning.knowing_verbs import nccl_plan_verb, topology, verdicts
from tuning.outlook import REFERENCE, outlook
from tuning.predict_verbs import predict
from tuning.provenance import ROOT, node_record
from tuning.report_verbs import report
from tuning.request import Request
from tuning.serving.verbs import bench_speculative
from tuning.serving.watch_verbs import watch
from tuning.speculation_verbs import predict_memory, predict_speculation
from tuning.topology_read import reference_names
from tuning.verbs import bench_allreduce, compare, workload

LEVELS = {
    "unit": ["tests/unit", "-m", "not network"],
    "network": ["tests/unit", "-m", "network"],
    "ranks": ["tests/ranks"],
    "roles": ["tests/roles"],
    "containers": ["tests/containers"],
    "all": ["tests"],
}
"""Of tests: seconds and no hardware; packages of the Python index; MPI ranks; a container engine; all of them."""


# ---------------------------------------------------------------------------------------------------------- measuring


@verb(
    workload="built-in name or path of a YAML file",
    ranks="ranks of a launch; 0: one a GPU, or 4 where there are none",
    launches="repetitions of every launch: the unit of the statistics",
    candidates="comma list, or 'all' (see bench-allreduce --help)",
    python="interpreter that runs ranks on GPUs (default: the first python3 on PATH that has cuda-bindings)",
    seed="of data and orders; 0 draws one",
    reference="without GPUs: the node that the outlook is for: a topology file, or one of "
    f"{', '.join(reference_names())}",
    output="path of the run file (default: a new one in runs/)",
    resume="go on with this run file: only what is missing runs, as its own plan says",
    json="print the comparisons as JSON",
)
def campaign(
    _context: Context,
    workload: str = "kimi-k2",
    ranks: int = 0,
    launches: int = 5,
    candidates: str = "",
    python: str = "",
    seed: int = 0,
    reference: str = REFERENCE,
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure every toolchain that this machine can run, compare them, and say what was skipped and why."""
    containers, compared = engine_state(), _compared()
    images = toolchain_images(compared) if containers.present else {}
    survey = surveys.survey(python, containers, compared, images)
    ahead = outlook(reference, compared, bench.RUNS, workload) if survey.engine == "mpi" else None
    if resume:
        run = bench.resume(resume, toolchains=list(images), python=python)
    else:
        run = bench.start(
            Request(
                engine=survey.engine,
                environments=survey.environments,
                workload=workload,
                candidates=candidates,
                ranks=ranks,
                launches=launches,
                seed=seed,
            ),
            output,
        )
    bench.finish(run, json=json, found=list(survey.found), skipped=list(survey.skipped), ahead=ahead)
    return bench.exit_code(run)


def _compared() -> list[str]:
    """Toolchains that a campaign compares: a matched pair is for the question what CUDA alone does."""
    return [name for name, toolchain in read_toolchains().items() if not toolchain.pair]


# -------------------------------------------------------------------------------------------------------------- nodes


@verb(root="read another root file system, such as a copied tree (default: this machine)")
def record(_context: Context, root: str = "") -> None:
    """Print this node's record as JSON: what it is and how it is set, as far as it can be read."""
    if root and not Path(root).is_dir():
        raise InputError(
            f"--root is {root!r}", expected="a folder that holds a root file system", todo="check the path"
        )
    talk.put_json(node_record(root))


# ------------------------------------------------------------------------------------------------------------ knowing


def _toolchain_nccl() -> dict[str, str]:
    """Toolchain to its libnccl, as nccl-plan finds one: cu12-2.27.5."""
    return {
        name: f"{distribution.removeprefix('nvidia-nccl-')}-{version}"
        for name in _compared()
        for distribution, version in read_toolchains()[name].pins.items()
        if distribution.startswith("nvidia-nccl-")
    }


nccl_plan = nccl_plan_verb(_toolchain_nccl)


# -------------------------------------------------------------------------------------------------- the project's own


@verb()
def check(_context: Context) -> ExitCode | None:
    """Lint, format check and types: ruff and mypy --strict."""
    commands = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
    codes = [_tool(command) for command in commands]
    return ExitCode.FAILED if any(codes) else None


@verb(
    level=f"one of {', '.join(LEVELS)}",
    args="more arguments for pytest, e.g. '-k run_file -x'",
)
def test(_context: Context, level: str = "all", args: str = "") -> ExitCode | None:
    """Run the test suite; skipped tests are listed with their reasons."""
    if level not in LEVELS:
        raise InputError(f"--level is {level!r}", expected=f"one of {', '.join(LEVELS)}", todo="name one of these")
    return ExitCode.FAILED if _tool(["pytest", *LEVELS[level], *shlex.split(args)]) else None


def _tool(command: list[str]) -> int:
    """Run one of the development tools with this Python, in the repository's root; its exit code."""
    talk.say(f"+ {' '.join(command)}")
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


ns = Collection(
    *(build_image, lock, images, audit, preflight, push),
    *(record, provision, verify_node, revert),
    *(campaign, bench_allreduce, bench_speculative, compare, report, watch),
    *(topology, nccl_plan, predict, predict_speculation, predict_memory, diagnose, verdicts),
    *(workload, check, test),
)
