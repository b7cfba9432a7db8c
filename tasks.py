"""The verbs: a table of contents. They parse, call and print.

The only file that imports more than one part of the toolkit.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import yaml
from invoke.collection import Collection
from invoke.context import Context

from images.engine import engine_state
from images.matrix import read_toolchains
from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from lanewise.verbs import verb
from tuning import arms, bench
from tuning import compare as comparing
from tuning import compare_view as view
from tuning import survey as surveys
from tuning.candidates import CANDIDATES
from tuning.model_shape import derive_workload, read_model_shape
from tuning.plan import MARGINS, Environment
from tuning.provenance import ROOT, node_record
from tuning.request import Request, parse_environment, words
from tuning.runfile import read_run
from tuning.stats import Outcome
from tuning.workload import built_in_names, load_workload


def option_name(outcome: str) -> str:
    """An outcome as one word on the command line."""
    return outcome.replace(" ", "-")


# ---------------------------------------------------------------------------------------------------------- measuring


@verb(
    workload="built-in name or path of a YAML file",
    ranks="ranks of a launch; 0: one a GPU, or 4 where there are none",
    launches="repetitions of every launch: the unit of the statistics",
    candidates="comma list, or 'all' (see bench-allreduce --help)",
    python="interpreter that runs ranks on GPUs (default: the first python3 on PATH that has cuda-bindings)",
    seed="of data and orders; 0 draws one",
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
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure every toolchain that this machine can run, compare them, and say what was skipped and why."""
    survey = surveys.survey(python, engine_state())
    if resume:
        run = bench.resume(resume, environments=[], python=python, nccl=[])
    else:
        run = bench.start(
            Request(
                engine=survey.engine,
                environments=tuple(Environment(name=name, python=survey.python) for name in read_toolchains()),
                workload=workload,
                candidates=candidates,
                ranks=ranks,
                launches=launches,
                seed=seed,
            ),
            output,
        )
    bench.finish(run, json=json, found=list(survey.found), skipped=list(survey.skipped))
    return bench.exit_code(run)


@verb(
    engine=f"what runs the ranks: {', '.join(CANDIDATES)}",
    workload="built-in name or path of a YAML file",
    candidates="comma list, or 'all'; "
    + "; ".join(f"{e}: {', '.join(c.name for c in cs)}" for e, cs in CANDIDATES.items()),
    environment="NAME [python=PATH] [VARIABLE=VALUE ...]; repeat it to compare two: each gets launches of its own, "
    "interleaved (default: host)",
    python="interpreter that runs the ranks (default: mpi: the toolkit's own; cuda: the first with cuda-bindings)",
    ranks="ranks of a launch; 0: mpi 4, cuda one a GPU",
    launches="repetitions of every launch: the unit of the statistics",
    minutes="begin no repetition that would end later than this; --resume goes on; 0: no limit",
    rounds="random orders in which a launch visits its candidates; 0: mpi 40, cuda 4",
    samples="samples of each visit, each the time of all calls of a pass; 0: mpi 1, cuda 8",
    margin=f"equivalence margin in per cent; 0: {', '.join(f'{e} {m * 100:g}' for e, m in MARGINS.items())}",
    timeout="seconds without a sign of life after which a launch is ended",
    seed="of data and orders; 0 draws one",
    modes="cuda: comma list of graph (captured into one CUDA graph) and eager",
    working_sets="cuda: comma list of warm (one pair of buffers) and cold (more than the L2 cache holds)",
    nccl="cuda: also measure this libnccl: a path, or a release such as 2.28.9 or cu12-2.27.5 (may be repeated)",
    allow_ll128="cuda: run LL128 candidates: they can corrupt data on PCIe, and are checked at length",
    shared_gpu="cuda: all ranks on GPU 0: right results, meaningless times",
    output="path of the run file (default: a new one in runs/)",
    resume="go on with this run file: only what is missing runs, as its own plan says",
    json="print the comparisons as JSON",
)
def bench_allreduce(
    _context: Context,
    engine: str = "mpi",
    workload: str = "kimi-k2",
    candidates: str = "",
    environment: list[str] | None = None,
    python: str = "",
    ranks: int = 0,
    launches: int = 5,
    minutes: int = 0,
    rounds: int = 0,
    samples: int = 0,
    margin: int = 0,
    timeout: int = 60,
    seed: int = 0,
    modes: str = "graph,eager",
    working_sets: str = "warm,cold",
    nccl: list[str] | None = None,
    allow_ll128: bool = False,
    shared_gpu: bool = False,
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure allreduce candidates on a workload into a run file, and compare them."""
    if resume:
        run = bench.resume(resume, environments=environment or [], python=python, nccl=nccl or [], minutes=minutes)
    else:
        where = python or surveys.default_python(engine)
        run = bench.start(
            Request(
                engine=engine,
                environments=tuple(parse_environment(text, where) for text in environment or ["host"]),
                workload=workload,
                candidates=candidates,
                ranks=ranks,
                launches=launches,
                rounds=rounds,
                samples=samples,
                margin=margin / 100,
                timeout=timeout,
                seed=seed,
                modes=words(modes),
                working_sets=words(working_sets),
                nccl=tuple(nccl or ()),
                allow_ll128=allow_ll128,
                shared_gpu=shared_gpu,
            ),
            output,
            minutes,
        )
    bench.finish(run, json=json)
    return bench.exit_code(run)


@verb(
    "a",
    "b",
    a="what to compare with: a candidate, a toolchain or image, or environment:candidate (default: all in the run)",
    b="what is held against it",
    run="run file (default: the newest in runs/); two are described only: A of the first, B of the second",
    fail_on=f"comma list of overall outcomes that end in exit code 3: {', '.join(map(option_name, Outcome))}",
    any_size="--fail-on looks at every size by itself, too",
    json="print as JSON",
)
def compare(
    _context: Context,
    a: str = "",
    b: str = "",
    run: list[str] | None = None,
    fail_on: str = "",
    any_size: bool = False,
    json: bool = False,
) -> ExitCode | None:
    """Compare arms of a run, `./inv compare A B`: per size, with intervals, outcomes and what else differs."""
    wanted, paths = _outcomes(fail_on), run or []
    if len(paths) > 2:
        raise InputError(
            f"--run was given {len(paths)} times", expected="one run file, or two", todo="name at most two"
        )
    files = [read_run(Path(path)) for path in paths] or [bench.newest_run()]
    first, last = files[0], files[-1]
    if bool(a) != bool(b):
        raise InputError(
            f"only {a or b!r} is named",
            expected=f"two names, or none: {', '.join(arms.known_names(first))}",
            todo="name what to compare it with",
        )
    if not a and first is last:
        overview = comparing.overview(first)
        comparisons, warnings = overview.all, overview.warnings
        shown = view.show_overview(first, overview)
    else:
        names = (a, b) if a else (first.header.plan.baseline, last.header.plan.baseline)
        comparisons = comparing.compare_names(first, names[0], last, names[1])
        warnings = tuple(line for file in files for line in comparing.run_warnings(file))
        shown = view.show_comparisons(comparisons, warnings)
    if json:
        talk.put_json(bench.document(comparisons, first, warnings))
    else:
        bench.show(shown, first)
        talk.put(f"\nrun file: {', '.join(shown_path(file.path) for file in files)}")
    return ExitCode.ANSWER_IS_NO if wanted & view.outcomes(comparisons, any_size=any_size) else None


def _outcomes(names: str) -> set[Outcome]:
    known = {option_name(outcome): outcome for outcome in Outcome}
    wanted = [option_name(name) for name in words(names) if name]
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(
            f"--fail-on names {', '.join(unknown)}", expected=f"a comma list of {', '.join(known)}", todo="correct it"
        )
    return {known[name] for name in wanted}


# -------------------------------------------------------------------------------------------------------------- nodes


@verb(root="read another root file system, such as a copied tree (default: this machine)")
def record(_context: Context, root: str = "") -> None:
    """Print this node's record as JSON: what it is and how it is set, as far as it can be read."""
    if root and not Path(root).is_dir():
        raise InputError(
            f"--root is {root!r}", expected="a folder that holds a root file system", todo="check the path"
        )
    talk.put_json(node_record(root))


# -------------------------------------------------------------------------------------------------- the project's own


@verb(
    config="a model's config.json (Hugging Face)",
    name="show this built-in workload or file instead",
    draft_tokens="rows that speculation verifies in a pass; 1: no speculation",
    batch="sequences decoded together",
    calls_per_layer="allreduces in a layer; 1 where attention and MLP run in parallel",
    json="print as JSON instead of YAML",
)
def workload(
    _context: Context,
    config: str = "",
    name: str = "",
    draft_tokens: int = 3,
    batch: int = 1,
    calls_per_layer: int = 2,
    json: bool = False,
) -> None:
    """Print a workload: derived from a model's config.json, or one that ships; without options, list those."""
    if config and name:
        raise InputError("--config and --name are both given", expected="one of them", todo="leave one out")
    if not config and not name:
        talk.put_json({"workloads": built_in_names()}) if json else talk.put("\n".join(built_in_names()))
        return
    if config:
        path = Path(config)
        stem = path.parent.resolve().name if path.name == "config.json" else path.stem
        shape = read_model_shape(path, name=stem)
        made = derive_workload(shape, draft_tokens=draft_tokens, batch=batch, calls_per_layer=calls_per_layer)
    else:
        made = load_workload(name)
    document = made.to_dict()
    if json:
        talk.put_json(document)
    else:
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False))


@verb()
def check(_context: Context) -> ExitCode | None:
    """Lint, format check and types: ruff and mypy --strict."""
    commands = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
    codes = [_tool(command) for command in commands]
    return ExitCode.FAILED if any(codes) else None


@verb(
    level="unit (seconds), ranks (real MPI ranks, minutes) or all",
    args="more arguments for pytest, e.g. '-k run_file -x'",
)
def test(_context: Context, level: str = "all", args: str = "") -> ExitCode | None:
    """Run the test suite; skipped tests are listed with their reasons."""
    folders = {"unit": ["tests/unit"], "ranks": ["tests/ranks"], "all": ["tests"]}
    if level not in folders:
        raise InputError(f"--level is {level!r}", expected=f"one of {', '.join(folders)}", todo="name one of these")
    return ExitCode.FAILED if _tool(["pytest", *folders[level], *shlex.split(args)]) else None


def _tool(command: list[str]) -> int:
    """Run one of the development tools with this Python, in the repository's root; its exit code."""
    talk.say(f"+ {' '.join(command)}")
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


ns = Collection(campaign, bench_allreduce, compare, record, workload, check, test)
