"""The verbs: a table of contents. They parse, call, print; one place turns errors into text and exit code.

The only file that imports more than one part of the toolkit.
"""

from __future__ import annotations

import functools
import inspect
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task
from rich.console import RenderableType

from images.engine import engine_state
from images.matrix import read_toolchains
from lanewise import talk
from lanewise.errors import ExitCode, InputError, LanewiseError
from tuning import campaign as campaigns
from tuning import compare as comparing
from tuning import compare_view as view
from tuning.candidates import BASELINE, CANDIDATES, DEFAULT_SELECTION, select_candidates
from tuning.engines import MpiEngine
from tuning.model_shape import derive_workload, read_model_shape
from tuning.plan import MARGINS, Environment, Plan
from tuning.provenance import ROOT, node_record
from tuning.runfile import Run, read_run
from tuning.stats import Outcome
from tuning.workload import built_in_names, load_workload

RUNS = "runs"
Verb = Callable[..., ExitCode | None]


class _NumberType(type):
    """Makes `Number` look like int to invoke, whose help then says INT."""

    def __eq__(cls, other: object) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)


class Number(int, metaclass=_NumberType):
    """An option's whole number; what is none ends as an error in three parts instead of a traceback."""

    def __new__(cls, value: str | int) -> Self:
        """Parse what was typed."""
        try:
            return super().__new__(cls, value)
        except ValueError:
            error = InputError(f"{value!r} is given for a number", expected="a whole number, e.g. 4", todo="correct it")
            raise Exit(f"error: {error}", code=int(error.exit_code)) from None


def verb(*positional: str, **help_texts: str) -> Callable[[Verb], Task[Any]]:
    """Make a function an invoke task: help for every option with its default, errors as text and exit code.

    Args:
        positional: options that may also be given by position.
        help_texts: help for every option.
    """

    def decorate(function: Verb) -> Task[Any]:
        signature = inspect.signature(function)
        options = list(signature.parameters.values())[1:]
        if {option.name for option in options} != set(help_texts):
            raise TypeError(f"{function.__name__}: every option has a help text, and no others")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - invoke passes what it parsed
            if code := guarded(function, *args, **kwargs):
                raise Exit(code=int(code))

        typed = positional[: _bare_words(function.__name__, options)]
        required = dict.fromkeys(typed, inspect.Parameter.empty)
        parameters = [
            p.replace(default=required.get(p.name, _parsed(p.default))) for p in signature.parameters.values()
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        made: Task[Any] = task(
            help={option.name: _with_default(help_texts[option.name], option.default) for option in options},
            iterable=[option.name for option in options if option.default is None],
            positional=list(typed),
            auto_shortflags=False,
        )(run)
        return made

    return decorate


def _parsed(default: object) -> object:
    return Number(default) if type(default) is int else default


def _bare_words(name: str, options: list[inspect.Parameter]) -> int:
    """How many words without an option the user typed for a verb.

    invoke has no optional positional arguments: either they are demanded, or not taken. So what is demanded is what
    was typed.
    """
    words = sys.argv[1:]
    verb_name = name.replace("_", "-")
    if verb_name not in words:
        return 0
    with_value = {"--" + option.name.replace("_", "-") for option in options if option.default is not False}
    count, rest = 0, iter(words[words.index(verb_name) + 1 :])
    for word in rest:
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            count += 1
    return count


def _with_default(text: str, default: object) -> str:
    if default in ("", None, False):
        return text
    return f"{text} (default: {default})"


def guarded(function: Verb, *args: Any, **kwargs: Any) -> ExitCode | int | None:  # noqa: ANN401 - as above
    """The one place where errors become text on stderr and an exit code."""
    try:
        return function(*args, **kwargs)
    except LanewiseError as error:
        talk.say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        talk.say("interrupted: nothing is left running; what was measured is in the run file")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of stdout left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


# ---------------------------------------------------------------------------------------------------------- measuring


@verb(
    workload="built-in name or path of a YAML file",
    ranks="ranks of a launch",
    launches="repetitions of every launch: the unit of the statistics",
    candidates="comma list, or 'all' (see bench-allreduce --help)",
    seed="of data and orders; 0 draws one",
    output="path of the run file (default: a new one in runs/)",
    resume="go on with this run file: only what is missing runs; its own plan counts, so no other option is taken",
    json="print the comparisons as JSON",
)
def campaign(
    _context: Context,
    workload: str = "kimi-k2",
    ranks: int = 4,
    launches: int = 5,
    candidates: str = "",
    seed: int = 0,
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure every toolchain that this machine can run, compare them, and say what was skipped and why."""
    found, skipped = _survey()
    if resume:
        run = _resume(resume)
    else:
        environments = tuple(Environment(name=name, python=sys.executable) for name in read_toolchains())
        run = _start(
            environments,
            workload=workload,
            ranks=ranks,
            launches=launches,
            candidates=candidates,
            seed=seed,
            output=output,
        )
    overview = comparing.overview(run)
    failed = comparing.failures(run)
    if json:
        talk.put_json(_document(overview.all, run, overview.warnings) | {"found": found, "skipped": skipped})
    else:
        plan = run.header.plan
        _show(view.show_overview(overview), run)
        names = ", ".join(env.name for env in plan.environments)
        talk.put(
            f"\nmeasured: allreduce, engine {plan.engine}, {plan.ranks} ranks, {plan.launches} launches each of {names}"
        )
        for line in found:
            talk.put(f"found:    {line}")
        for line in skipped:
            talk.put(f"skipped:  {line}")
        talk.put(f"run file: {run.path}")
        talk.put(f"next:     ./inv compare ring recursive_doubling --run {run.path}")
    return ExitCode.FAILED if not any(trial.ok for trial in run.trials) else (ExitCode.FAILED if failed else None)


@verb(
    engine=f"what runs the ranks: {', '.join(CANDIDATES)}",
    workload="built-in name or path of a YAML file",
    candidates=f"comma list, or 'all'; mpi: {', '.join(c.name for c in CANDIDATES['mpi'])} "
    f"(usual selection: {', '.join(DEFAULT_SELECTION['mpi'])})",
    environments="comma list of names; each gets launches of its own, interleaved; two with one Python are an A/A",
    python="interpreter that runs the ranks (default: the toolkit's own)",
    ranks="ranks of a launch",
    launches="repetitions of every launch: the unit of the statistics",
    rounds="random orders in which a launch visits its candidates",
    samples="samples of each visit; one sample times all calls of a pass",
    margin="equivalence margin in per cent; 0 takes the engine's (mpi 10)",
    timeout="seconds without a sign of life after which a launch is ended",
    seed="of data and orders; 0 draws one",
    output="path of the run file (default: a new one in runs/)",
    resume="go on with this run file: only what is missing runs; its own plan counts, so no other option is taken",
    json="print the comparisons as JSON",
)
def bench_allreduce(
    _context: Context,
    engine: str = "mpi",
    workload: str = "kimi-k2",
    candidates: str = "",
    environments: str = "host",
    python: str = "",
    ranks: int = 4,
    launches: int = 5,
    rounds: int = 40,
    samples: int = 1,
    margin: int = 0,
    timeout: int = 60,
    seed: int = 0,
    output: str = "",
    resume: str = "",
    json: bool = False,
) -> ExitCode | None:
    """Measure allreduce candidates on a workload into a run file, and compare them."""
    if resume:
        run = _resume(resume)
    else:
        named = tuple(
            Environment(name=name.strip(), python=python or sys.executable) for name in environments.split(",")
        )
        run = _start(
            named, engine=engine, workload=workload, ranks=ranks, launches=launches, candidates=candidates,
            rounds=rounds, samples=samples, margin=margin, timeout=timeout, seed=seed, output=output,
        )  # fmt: skip
    overview = comparing.overview(run)
    if json:
        talk.put_json(_document(overview.all, run, overview.warnings))
    else:
        _show(view.show_overview(overview), run)
        talk.put(f"\nrun file: {run.path}")
    return ExitCode.FAILED if comparing.failures(run) else None


@verb(
    "a",
    "b",
    a="what to compare with: a candidate, a toolchain or image, or environment:candidate (default: all in the run)",
    b="what is held against it",
    run="run file (default: the newest in runs/); two are described only: A of the first, B of the second",
    fail_on=f"comma list of outcomes that end in exit code 3: {', '.join(Outcome)}",
    json="print as JSON",
)
def compare(
    _context: Context, a: str = "", b: str = "", run: list[str] | None = None, fail_on: str = "", json: bool = False
) -> ExitCode | None:
    """Compare arms of a run: per message size, with intervals, outcomes and what else differs."""
    wanted, paths = _outcomes(fail_on), run or []
    if len(paths) > 2:
        raise InputError(
            f"--run was given {len(paths)} times", expected="one run file, or two", todo="name at most two"
        )
    files = [read_run(Path(path)) for path in paths] or [_newest_run()]
    first, last = files[0], files[-1]
    if bool(a) != bool(b):
        raise InputError(
            f"only {a or b!r} is named",
            expected=f"two names, or none: {', '.join(comparing.known_names(first))}",
            todo="name what to compare it with",
        )
    if not a and first is last:
        overview = comparing.overview(first)
        comparisons, warnings = overview.all, overview.warnings
        shown = view.show_overview(overview)
    else:
        names = (a, b) if a else (first.header.plan.baseline, last.header.plan.baseline)
        comparisons = comparing.compare_names(first, names[0], last, names[1])
        warnings = tuple(line for file in files for line in comparing.run_warnings(file))
        shown = view.show_comparisons(comparisons, warnings)
    if json:
        talk.put_json(_document(comparisons, first, warnings))
    else:
        _show(shown, first)
        talk.put(f"\nrun file: {', '.join(str(file.path) for file in files)}")
    return ExitCode.ANSWER_IS_NO if wanted & view.outcomes(comparisons) else None


def _outcomes(names: str) -> set[Outcome]:
    known = {str(outcome).replace(" ", "-"): outcome for outcome in Outcome}
    wanted = [name.strip().replace(" ", "-") for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(
            f"--fail-on names {', '.join(unknown)}", expected=f"a comma list of {', '.join(known)}", todo="correct it"
        )
    return {known[name] for name in wanted}


def _start(
    environments: tuple[Environment, ...],
    *,
    workload: str,
    ranks: int,
    launches: int,
    candidates: str,
    seed: int,
    output: str,
    engine: str = "mpi",
    rounds: int = 40,
    samples: int = 1,
    margin: int = 0,
    timeout: int = 60,
) -> Run:
    selected = select_candidates(engine, candidates)
    plan = Plan(
        engine=engine,
        ranks=ranks,
        workload=load_workload(workload),
        environments=environments,
        candidates=selected,
        baseline=BASELINE,
        launches=launches,
        rounds=rounds,
        samples=samples,
        margin=margin / 100 if margin else MARGINS[engine],
        seed=seed or secrets.randbelow(1 << 31),
        timeout=timeout,
    )
    path = Path(output) if output else campaigns.new_run_path(ROOT / RUNS, "allreduce")
    talk.say(f"run file: {path}")
    with talk.track("preparing") as progress:
        return campaigns.start_run(plan, MpiEngine(), path, _reporter(progress), command=sys.argv)


def _resume(path: str) -> Run:
    if given := [
        argument
        for argument in sys.argv[2:]
        if argument.startswith("--") and not argument.startswith(("--resume", "--json"))
    ]:
        raise InputError(
            f"--resume together with {', '.join(given)}",
            expected="no other option: the run file's own plan counts",
            todo=f"leave the others out, or start a new run without --resume {path}",
        )
    with talk.track("preparing") as progress:
        return campaigns.resume_run(Path(path), MpiEngine(), _reporter(progress))


def _reporter(progress: talk.Track) -> campaigns.Report:
    def report(step: campaigns.Step) -> None:
        if step.launch is None:
            remark = "launching"
        else:
            failed = sum(not trial.ok for trial in step.trials)
            told = f"{len(step.trials)} trials" + (f", {failed} without numbers" if failed else "")
            remark = f"{step.launch.environment.name} launch {step.launch.repetition + 1}: {told}, {step.seconds:.1f} s"
        progress.step(step.done, step.total, remark)

    return report


def _newest_run() -> Run:
    files = sorted((ROOT / RUNS).glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise InputError(
            f"there is no run file in {RUNS}/",
            expected="one from an earlier run",
            todo="./inv campaign makes one; or --run FILE",
        )
    return read_run(files[-1])


def _show(shown: RenderableType, run: Run) -> None:
    talk.put(shown)
    if failed := comparing.failures(run):
        talk.put(view.show_failures(failed, run.launches))
    talk.put(view.legend())


def _document(comparisons: list[comparing.Comparison], run: Run, warnings: tuple[str, ...]) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "comparisons": [view.to_document(comparison) for comparison in comparisons],
        "warnings": list(warnings),
        "failures": view.failures_document(comparing.failures(run), run.launches),
    }


def _survey() -> tuple[list[str], list[str]]:
    """What this machine has, and what is therefore skipped, in words."""
    gpus = node_record().get("gpus")
    count = len(gpus) if isinstance(gpus, list) else 0
    docker = engine_state()
    found = [f"{count} NVIDIA GPUs" if count else "no NVIDIA GPU", docker.detail]
    skipped = [
        f"allreduce on GPUs: {count} GPUs, two are needed"
        if count < 2
        else "allreduce on GPUs: engine cuda is not built yet",
        "images of the toolchains: not built yet; both toolchains ran the toolkit's own Python"
        if docker.present
        else f"images of the toolchains: {docker.detail}; both toolchains ran the toolkit's own Python",
        "speculative decoding: it needs GPUs and a model",
    ]
    return found, skipped


# -------------------------------------------------------------------------------------------------------------- nodes


@verb(root="read another root file system, such as a copied tree (default: this machine)")
def record(_context: Context, root: str = "") -> None:
    """Print this node's record as JSON: what it is and how it is set, as far as it can be read."""
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
        shape = read_model_shape(
            path, name="".join(c if c.isalnum() or c in "._-" else "-" for c in stem.lower()) or "model"
        )
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
    return ExitCode.FAILED if _tool(["pytest", *folders[level], *args.split()]) else None


def _tool(command: list[str]) -> int:
    """Run one of the development tools with this Python, in the repository's root; its exit code."""
    talk.say(f"+ {' '.join(command)}")
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


ns = Collection(campaign, bench_allreduce, compare, record, workload, check, test)
