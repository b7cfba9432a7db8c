"""The verb that measures servers: it parses, calls and prints."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from invoke.context import Context

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from lanewise.verbs import verb
from tuning.bench import exit_code_of
from tuning.campaign import new_run_path
from tuning.container_images import SERVERS
from tuning.environments import asked_environments, parse_environment
from tuning.plan import Environment
from tuning.provenance import ROOT
from tuning.serving import campaign, summary_view
from tuning.serving.backends import BACKENDS
from tuning.serving.plan import MARGIN, PROBE_ROWS, ServingPlan
from tuning.serving.prepared import planned, prepare
from tuning.serving.request import ServingRequest, make_plan, parse_flags
from tuning.serving.runfile import ServingRun, read_serving_run
from tuning.serving.sides import without_numbers
from tuning.serving.spec import ServerSpec
from tuning.serving.starts import Report, Step
from tuning.workload import short

RUNS = ROOT / "runs"
_SETTING = re.compile(r"(?!python=|image=)[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
"""Not the two names that --environment takes for itself."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@verb(
    model="path or name of the model",
    draft="path or name of the draft model",
    speculation="STEPS/TOPK/DRAFT-TOKENS, e.g. 2/1/3; with @ACCEPT-LENGTH where one of its own is simulated (may be "
    "repeated; each is an arm beside the baseline)",
    algorithm="of all speculations, as SGLang names it",
    allreduce=f"backend, one of {', '.join(BACKENDS)} (may be repeated: each has a baseline and all speculations)",
    toolchain="the image that build-image made of this toolchain (may be repeated)",
    image="an image: a name or identifier that the engine has (may be repeated)",
    python="an interpreter with SGLang (may be repeated)",
    environment="NAME [image=IMAGE] [python=PATH] [VARIABLE=VALUE ...] (may be repeated)",
    tensor_parallel="GPUs that share a layer",
    concurrency="comma list of requests at once",
    prompts="built-in set, tokens[:LENGTH[:VOCABULARY]], or path of a YAML or MT-bench file (default: mixed; with "
    "random weights tokens)",
    requests="requests of a pass at least; 0: every prompt of the set (of tokens: 8)",
    output_tokens="tokens that each request generates",
    starts="starts of every server: the unit of the statistics",
    passes="passes over the prompts a start",
    together="servers that start at once and share the GPUs; each is measured while the others are stopped",
    accept_length="accept length to simulate (SGLANG_SIMULATE_ACC_LEN), where a speculation has none of its own",
    dummy_weights="random weights instead of the model's",
    probe=f"also measure without speculation at {', '.join(map(str, PROBE_ROWS))} requests: rows of a verify pass",
    probe_on="backend, one of those of --allreduce: the probe with it only (may be repeated)",
    attention_backend="as SGLang names it (default: the release's own choice)",
    flag="NAME[=VALUE]: a further flag of SGLang's, which the release must have (may be repeated)",
    set="VARIABLE=VALUE for all servers (may be repeated)",
    max_running="most requests that decode together (default: the highest concurrency)",
    context_length="tokens; 0: the model's own",
    max_total_tokens="of the KV cache; 0: what memory allows",
    memory_fraction="of GPU memory for weights and KV cache, e.g. 0.85 (default: the release's own choice)",
    no_graphs="without CUDA graphs",
    profile="profile ten steps of every server after its passes, with one request: kernels and allreduces of a step",
    minutes="begin no repetition that would end later than this; --resume goes on; 0: no limit",
    timeout="seconds without a sign of life after which a server is given up",
    seed="of the order of starts; 0 draws one",
    margin=f"equivalence margin in per cent (default: {MARGIN * 100:g})",
    output="path of the run file (default: a new one in runs/)",
    resume="go on with this run file; the other options must be those that it was begun with",
    plan="print what would run, and refuse what cannot, without starting a server",
    json="print as JSON",
)
def bench_speculative(
    _context: Context,
    model: str = "",
    draft: str = "",
    speculation: list[str] | None = None,
    algorithm: str = "EAGLE3",
    allreduce: list[str] | None = None,
    toolchain: list[str] | None = None,
    image: list[str] | None = None,
    python: list[str] | None = None,
    environment: list[str] | None = None,
    tensor_parallel: int = 1,
    concurrency: str = "1",
    prompts: str = "",
    requests: int = 0,
    output_tokens: int = 512,
    starts: int = 3,
    passes: int = 3,
    together: int = 1,
    accept_length: str = "",
    dummy_weights: bool = False,
    probe: bool = False,
    probe_on: list[str] | None = None,
    attention_backend: str = "",
    flag: list[str] | None = None,
    set: list[str] | None = None,  # noqa: A002 - the option's name
    max_running: int = 0,
    context_length: int = 0,
    max_total_tokens: int = 0,
    memory_fraction: str = "",
    no_graphs: bool = False,
    profile: bool = False,
    minutes: int = 0,
    timeout: int = 300,
    seed: int = 0,
    margin: str = "",
    output: str = "",
    resume: str = "",
    plan: bool = False,
    json: bool = False,
) -> ExitCode | None:
    """Measure SGLang servers with and without speculation: step time and acceptance apart, start by start."""
    if draft and not speculation:
        raise InputError(
            f"--draft is {short(draft)}, and no --speculation is given",
            expected="at least one, as STEPS/TOPK/DRAFT-TOKENS",
            todo="say how the draft is used, e.g. --speculation 2/1/3, or leave it out",
        )
    if resume and output:
        raise InputError(
            f"--output is {short(output)} beside --resume {short(resume)}",
            expected="one of the two: a run that goes on stays in its own file",
            todo="leave --output out, or --resume for a new run",
        )
    if output and Path(output).is_dir():
        raise InputError(
            f"--output is {short(output)}, a folder",
            expected="the path of a run file that is not there yet",
            todo=f"name a file in it: --output {shlex.quote(str(Path(output) / 'run.jsonl'))}",
        )
    if minutes < 0:
        raise InputError(f"--minutes is {minutes}", expected="0 or more", todo="correct it")
    server = ServerSpec(
        model=_required(model),
        tensor_parallel=tensor_parallel,
        dummy_weights=dummy_weights,
        attention_backend=attention_backend,
        cuda_graphs=not no_graphs,
        max_running=max_running,
        context_length=context_length,
        max_total_tokens=max_total_tokens,
        memory_fraction=_number("--memory-fraction", memory_fraction),
        accept_length=_number("--accept-length", accept_length),
        flags=parse_flags(flag or []),
    )
    request = ServingRequest(
        environments=_environments(environment or [], image or [], toolchain or [], python or [], set or []),
        server=server,
        speculations=tuple(speculation or ()),
        algorithm=algorithm,
        draft=draft,
        allreduces=tuple(allreduce or ()),
        concurrencies=_numbers(concurrency),
        probe=probe,
        probe_on=tuple(probe_on or ()),
        prompts=prompts,
        requests=requests,
        output_tokens=output_tokens,
        starts=starts,
        passes=passes,
        together=together,
        margin=_number("--margin", margin) / 100,
        seed=read_serving_run(Path(resume)).header.plan.seed if resume and not seed else seed,
        timeout=timeout,
    )
    made, chosen = make_plan(request)
    if plan:
        if resume:
            campaign.require_same_plan(read_serving_run(Path(resume)), made)
        _show_plan(made, json=json)
        return None
    path = Path(resume or output) if resume or output else new_run_path(RUNS, made.benchmark)
    with reported(path) as report:
        if resume:
            run = campaign.resume_run(path, made, chosen, report, minutes=minutes, profile=profile)
        else:
            run = campaign.start_run(made, chosen, path, report, command=sys.argv, minutes=minutes, profile=profile)
    if json:
        talk.put_json(summary_view.document(run))
    else:
        talk.put(summary_view.show(run))
        talk.put(f"\nrun file: {shown_path(run.path)}")
    return exit_code(run)


@contextmanager
def reported(path: Path) -> Iterator[Report]:
    """What takes the steps of a run and shows them; where the user breaks it off, how to go on is said."""
    begun = False
    with talk.track("preparing") as progress:

        def report(step: Step) -> None:
            nonlocal begun
            if step.begun:
                begun = True
                talk.say(f"run file: {shown_path(path)}")
            if step.stopped:
                talk.say(step.remark)
            elif step.total:
                progress.step(step.done, step.total, step.remark, lasting=step.finished)
            else:
                progress.remark(step.remark)

        try:
            yield report
        except KeyboardInterrupt:
            if begun:
                talk.say(f"the same options and --resume {shlex.quote(shown_path(path))} go on with it")
            raise


def exit_code(run: ServingRun) -> ExitCode | None:
    """As `tuning.bench.exit_code_of` its trials, but for those whose start has numbers since it was repeated."""
    counted = [*(trial for trial in run.trials if trial.ok), *without_numbers(run)]
    return exit_code_of([trial.status for trial in counted])


def _show_plan(plan: ServingPlan, *, json: bool) -> None:
    with talk.track("preparing") as progress:
        commands = planned(plan, prepare(plan, progress.remark))
    if json:
        talk.put_json({"plan": plan.to_dict(), "servers": commands})
        return
    for server in commands:
        talk.put(f"{server['environment']} {server['arm']} (SGLang {server['release']})")
        talk.put("  " + " ".join(f"{name}={shlex.quote(value)}" for name, value in server["variables"].items()))
        talk.put(f"  {shlex.join(server['command'])}")
        for note in server["notes"]:
            talk.put(f"  note: {note}")
    for number, group in enumerate(plan.schedule(), 1):
        talk.put(f"{number}. {'; '.join(start.label for start in group)}")


def _required(model: str) -> str:
    if not model:
        raise InputError("no --model is given", expected="a model's folder", todo="name it with --model PATH")
    return model


def _environments(
    texts: Sequence[str],
    images: Sequence[str],
    toolchains: Sequence[str],
    pythons: Sequence[str],
    settings: Sequence[str],
) -> tuple[Environment, ...]:
    """All that are named, with the variables of --set."""
    found = [Environment(name=_NO_NAME.sub("-", path).strip("-._")[-64:], python=path) for path in pythons]
    if len(pythons) == 1 and not (texts or images or toolchains):
        found = [Environment(name="host", python=pythons[0])]
    if texts or images or toolchains:
        found += asked_environments(
            texts,
            images=images,
            toolchains=toolchains,
            python="",
            host_python=lambda: "python3",
            profiles=SERVERS,
        )
    if not found:
        raise InputError(
            "no environment is named",
            expected="an interpreter or image with SGLang",
            todo="name one with --python PATH, --image IMAGE, --toolchain NAME or --environment",
        )
    if wrong := [setting for setting in settings if not _SETTING.match(setting)]:
        raise InputError(
            f"--set is {short(wrong[0])}", expected="VARIABLE=VALUE, e.g. NCCL_DEBUG=INFO", todo="correct it"
        )
    given = parse_environment(shlex.join(["set", *settings])).variables
    return tuple(replace(env, variables={**given, **env.variables}) for env in found)


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(re.fullmatch("[0-9]{1,4}", word.strip(), re.ASCII) for word in words):
        raise InputError(f"--concurrency is {short(text)}", expected="a comma list such as 1,2,4", todo="correct it")
    return tuple(dict.fromkeys(int(word) for word in words))


def _number(option: str, text: str) -> float:
    """A fraction or other number that is not whole, and above 0; 0 where none is given."""
    if text and not (re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII) and float(text)):
        raise InputError(
            f"{option} is {short(text)}", expected="a number above 0, such as 2.5", todo="correct it, or leave it out"
        )
    return float(text or 0)
