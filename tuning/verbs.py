"""The verbs about measuring: they parse, call and print."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from invoke.context import Context

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from lanewise.verbs import verb
from tuning import arms, bench
from tuning import compare as comparing
from tuning import compare_view as view
from tuning import survey as surveys
from tuning.candidates import CANDIDATES
from tuning.container_images import PYTHON
from tuning.environments import asked_environments
from tuning.model_shape import derive_workload, read_model_shape
from tuning.plan import MARGINS
from tuning.request import Request, words
from tuning.serving import foreign_view
from tuning.serving.any_run import newest_path, of_one_benchmark
from tuning.serving.compare_verb import compare_servers
from tuning.serving.imported import Imported
from tuning.stats import Outcome
from tuning.workload import built_in_names, load_workload


def option_name(outcome: str) -> str:
    """An outcome as one word on the command line."""
    return outcome.replace(" ", "-")


@verb(
    engine=f"what runs the ranks: {', '.join(CANDIDATES)} (default: mpi; "
    "with --image or --toolchain cuda, where there are two GPUs)",
    workload="built-in name or path of a YAML file",
    candidates="comma list, or 'all'; "
    + "; ".join(f"{e}: {', '.join(c.name for c in cs)}" for e, cs in CANDIDATES.items()),
    environment="NAME [image=IMAGE] [python=PATH] [VARIABLE=VALUE ...]; repeat it to compare two: each gets launches "
    "of its own, interleaved (default: host)",
    image="measure in a container of this image: a name or identifier that the engine has (may be repeated)",
    toolchain="measure in the image that build-image made of this toolchain (may be repeated)",
    python="interpreter that runs the ranks (default: mpi: the toolkit's own; cuda: the first with cuda-bindings; "
    f"in images {PYTHON})",
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
    engine: str = "",
    workload: str = "kimi-k2",
    candidates: str = "",
    environment: list[str] | None = None,
    image: list[str] | None = None,
    toolchain: list[str] | None = None,
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
    environments, images, toolchains = environment or [], image or [], toolchain or []
    if resume:
        run = bench.resume(
            resume,
            environments=environments,
            images=images,
            toolchains=toolchains,
            python=python,
            nccl=nccl or [],
            minutes=minutes,
        )
    else:
        engine = engine or surveys.default_engine(in_images=bool(images or toolchains))
        run = bench.start(
            Request(
                engine=engine,
                environments=asked_environments(
                    environments,
                    images=images,
                    toolchains=toolchains,
                    python=python,
                    host_python=lambda: surveys.default_python(engine),
                ),
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
    a="what to compare with: a candidate or arm, a toolchain or image, or environment:candidate (default: all in the "
    "run)",
    b="what is held against it",
    run="run file (default: the newest in runs/); two are described only: A of the first, B of the second. "
    "Results of AIPerf, bench_serving and llm-decode-bench are described, too",
    fail_on=f"comma list of overall outcomes that end in exit code 3: {', '.join(map(option_name, Outcome))}",
    any_size="--fail-on looks at every size, or number of requests, by itself, too",
    allreduce_run="of servers: a bench-allreduce run of their node, which tells what allreduces add to a step",
    json="print as JSON",
)
def compare(
    _context: Context,
    a: str = "",
    b: str = "",
    run: list[str] | None = None,
    fail_on: str = "",
    any_size: bool = False,
    allreduce_run: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Compare arms of a run, `./inv compare A B`: per size, with intervals, outcomes and what else differs."""
    wanted, paths = _outcomes(fail_on), run or []
    if len(paths) > 2:
        raise InputError(
            f"--run was given {len(paths)} times", expected="one run file, or two", todo="name at most two"
        )
    read = [foreign_view.read_measured(Path(path)) for path in paths or [str(newest_path())]]
    if described := foreign_view.only_foreign(paths, read):
        if json:
            talk.put_json(foreign_view.to_document(described))
        else:
            foreign_view.put(described)
        return None
    files, serving = of_one_benchmark([run for run in read if not isinstance(run, Imported)])
    if serving:
        return compare_servers(serving, a, b, allreduce_run=allreduce_run, wanted=wanted, every_row=any_size, json=json)
    if allreduce_run:
        raise InputError(
            f"--allreduce-run beside {files[0].path}",
            expected="a run of servers, whose step time it helps to explain",
            todo="leave it out, or name a run of bench-speculative",
        )
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
