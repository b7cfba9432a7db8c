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
from tuning.campaign_servers import SPECULATIONS, Servers, plan_servers, require_model, start_servers
from tuning.container_images import SERVERS, toolchain_images
from tuning.diagnose_verbs import diagnose
from tuning.knowing_verbs import nccl_plan_verb, topology, verdicts
from tuning.outlook import REFERENCE, outlook
from tuning.predict_verbs import predict
from tuning.provenance import ROOT, gpu_count, node_record
from tuning.report_verbs import report
from tuning.request import Request
from tuning.serving.verbs import bench_speculative
from tuning.serving.verbs import exit_code as servers_exit_code
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
    "vm": ["tests/vm"],
    "vm-full": ["tests/vm", "-m", "vm or vm_full"],
    "all": ["tests"],
}
"""Of tests: seconds and no hardware; packages of the Python index; MPI ranks; playbooks on a tree of files; a container
engine; a virtual machine with a simulated PCI tree, and with all that takes long there; all but that."""


# ---------------------------------------------------------------------------------------------------------- measuring


@verb(
    workload="built-in name or path of a YAML file",
    ranks="ranks of a launch, and GPUs of a server; 0: one a GPU, or 4 where there are none",
    launches="repetitions of every launch: the unit of the statistics",
    candidates="comma list, or 'all' (see bench-allreduce --help)",
    python="interpreter that runs ranks on GPUs, and servers (default: the first python3 on PATH that has "
    "cuda-bindings, and the first that has SGLang)",
    model="where there is a GPU: path or name of a model; servers of it are measured after the allreduces",
    draft="path or name of the model's EAGLE-3 draft; without one: the row counts of verify passes, no speculation",
    speculation=f"STEPS/TOPK/DRAFT-TOKENS (may be repeated; default with --draft: {', '.join(SPECULATIONS)}); more has "
    "bench-speculative",
    starts="starts of every server: the unit of the statistics",
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
    model: str = "",
    draft: str = "",
    speculation: list[str] | None = None,
    starts: int = 3,
    seed: int = 0,
    reference: str = REFERENCE,
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure every toolchain that this machine can run, compare them, and say what was skipped and why."""
    require_model(model, draft, speculation or [])
    containers, compared = engine_state(), _compared()
    images = toolchain_images(compared) if containers.present else {}
    survey = surveys.survey(python, containers, compared, images)
    holding = surveys.survey_servers(
        python, model, compared, toolchain_images(compared, SERVERS) if containers.present and model else {}
    )
    servers: Servers | None = None
    if holding.environments and not resume:
        servers = plan_servers(
            holding.environments,
            model=model,
            draft=draft,
            speculations=speculation or (),
            tensor_parallel=(ranks if survey.engine == "cuda" else 0) or gpu_count(),
            starts=starts,
            seed=seed,
            output=output,
        )
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
    served = start_servers(servers) if servers and json else None
    bench.finish(
        run,
        json=json,
        found=[*survey.found, *holding.found],
        skipped=[*survey.skipped, *holding.skipped],
        ahead=ahead,
        served=served,
    )
    if servers and not served:  # hours later, as a rule: people need not wait for the rest
        bench.finish_servers(served := start_servers(servers))
    return bench.exit_code(run) or (servers_exit_code(served) if served else None)


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
    """Lint, format check and types: ruff, mypy --strict, ansible-lint at profile production."""
    commands = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["ansiblelint", "-q"]]
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
