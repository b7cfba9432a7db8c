"""The verb `report`: parses, reads, calls, writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from invoke.context import Context

from lanewise import talk
from lanewise.errors import InputError
from lanewise.files import shown_path, write_atomic
from lanewise.verbs import verb
from tuning.bench import RUNS
from tuning.ledger_read import read_ledger
from tuning.model_parts import gpus as known_gpus
from tuning.model_parts import shipped_models
from tuning.predict_inputs import read_preflight
from tuning.report import MOST_RUNS, Beside, make_report
from tuning.report_document import Paragraph, Report, Weight
from tuning.report_html import html
from tuning.report_markdown import markdown
from tuning.runfile import Kind, Run
from tuning.serving.any_run import newest_path, of_one_benchmark, read_any_run
from tuning.serving.report import serving_report
from tuning.serving.runfile import ServingRun
from tuning.speculation_request import UNASKED, Asked, predict, question
from tuning.speculation_view import Prediction as Speculation
from tuning.topology_read import read_topology, reference_names
from tuning.workload import short

_MOST_GPUS_OF_A_NODE = 64


@verb(
    runs="a run file",
    topology=f"the runs' node, for floor and predicted bounds: one of {', '.join(reference_names())}, or a file "
    "(default: as the run's node record tells it)",
    toolchain="verdicts and preflight of this toolchain count (default: of those that the runs name)",
    baseline="tokens per second of one request without speculation, e.g. 82-89: adds what speculation gives",
    with_speculation="tokens per second of one request with it, where that was measured",
    accept_length="tokens a step, where that was read: a number or a range",
    draft_tokens="rows of a verify pass: drafts and one",
    allreduce="SIZE=US: latency of one allreduce, where the run does not hold it (may be repeated)",
    model=f"{', '.join(shipped_models())}, or a config.json",
    gpu=f"one of {', '.join(known_gpus())}",
    output="folder for report.html, report.md and its pictures (default: runs/reports/RUN)",
    json="print as JSON; files are written only where --output is given",
)
def report(
    _context: Context,
    *runs: str,
    topology: str = "",
    toolchain: str = "",
    baseline: str = "",
    with_speculation: str = "",
    accept_length: str = "",
    draft_tokens: int = UNASKED.draft_tokens,
    allreduce: list[str] | None = None,
    model: str = UNASKED.model,
    gpu: str = UNASKED.gpu,
    output: str = "",
    json: bool = False,
) -> None:
    """Report on run files, ./inv report RUN... (default: the newest): one HTML page, and the same as Markdown."""
    files, servers = of_one_benchmark(_read([path for path in runs if path]))
    if servers:
        _refuse(
            servers[0].path,
            topology=topology,
            toolchain=toolchain,
            baseline=baseline,
            with_speculation=with_speculation,
            accept_length=accept_length,
            draft_tokens="" if draft_tokens == UNASKED.draft_tokens else draft_tokens,
            allreduce=" ".join(allreduce or ()),
            model="" if model == UNASKED.model else model,
            gpu="" if gpu == UNASKED.gpu else gpu,
        )
        made = serving_report(servers)
        if json:
            talk.put_json(made.document)
        if output or not json:
            _write(made, Path(output) if output else RUNS / "reports" / servers[0].path.stem, quiet=json)
        return
    ledger = read_ledger(RUNS)
    for remark in ledger.remarks:
        talk.say(f"remark: {remark}")
    if toolchain and toolchain not in ledger.toolchains:
        raise InputError(
            f"--toolchain is {toolchain[:60]!r}", expected=f"one of {', '.join(ledger.toolchains)}", todo="correct it"
        )
    asked = Asked(
        model=model,
        gpu=gpu,
        gpus=min(files[0].header.plan.ranks, _MOST_GPUS_OF_A_NODE),
        draft_tokens=draft_tokens,
        baseline=baseline,
        with_speculation=with_speculation,
        instead=(),
        accept_length=accept_length,
        per_position="",
        allreduce=allreduce or (),
        run=str(files[0].path) if _tells_latency(files[0]) else "",
    )
    made = make_report(
        files,
        Beside(
            topology=read_topology(topology) if topology else None,
            toolchain=toolchain,
            preflight=read_preflight(RUNS, toolchain) if toolchain else None,
            standings=ledger.standings,
            speculation=_speculation(asked),
        ),
    )
    if json:
        talk.put_json(made.document)
    if output or not json:
        folder = Path(output) if output else RUNS / "reports" / files[0].path.stem
        _write(made, folder, quiet=json)


def _refuse(path: Path, **options: str | int) -> None:
    """InputError where an option is given ("": not) that says nothing to a run of servers."""
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value != ""}
    if given:
        raise InputError(
            f"{', '.join(f'{name} {short(value)}' for name, value in given.items())}: given for {shown_path(path)}, "
            "a run of servers",
            expected="--output and --json; the other options are of predictions, for runs of bench-allreduce",
            todo=f"leave {', '.join(given)} out; predictions of speculation are ./inv predict-speculation",
        )


def _read(paths: Sequence[str]) -> list[Run | ServingRun]:
    """The runs, each once; the newest of this clone where none is named."""
    named = list({Path(path).resolve(): Path(path) for path in paths}.values())
    if len(named) > MOST_RUNS:
        raise InputError(f"{len(named)} run files are named", expected=f"at most {MOST_RUNS}", todo="name fewer")
    return [read_any_run(path) for path in named or [newest_path()]]


def _tells_latency(run: Run) -> bool:
    return run.header.plan.engine == "cuda" and run.header.kind is Kind.MEASURED


def _speculation(asked: Asked) -> Speculation | None:
    """What `predict-speculation` says of the rates given; None where none of its options was."""
    given = asked.baseline or asked.with_speculation or asked.accept_length or asked.allreduce
    return predict(question(asked)) if given else None


def _write(made: Report, folder: Path, *, quiet: bool) -> None:
    for picture in made.pictures:
        write_atomic(folder / picture.name, picture.svg)
    write_atomic(folder / "report.md", markdown(made))
    write_atomic(folder / "report.html", html(made))
    if quiet:
        return
    answers = [
        block for block in made.sections[0].blocks if isinstance(block, Paragraph) and block.weight is Weight.LEAD
    ]
    talk.put("\n".join(answer.text for answer in answers))
    for name in ("report.html", "report.md"):
        talk.put(f"written: {shown_path(folder / name)}")
