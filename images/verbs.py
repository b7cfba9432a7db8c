"""The verbs about images: they parse, call and print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from invoke.context import Context

from images import audit as auditing
from images import audit_view, images_view, preflight_view
from images.capability import Capability
from images.differences import differences
from images.lock import LOCK, Lock, read_lock, write_lock
from images.locking import ALL, drift, relock
from images.matrix import find_toolchain, parse_pins, read_toolchains
from images.origins import engine_if_any, origins
from images.preflight import Report
from images.preflight_run import preflight_installed, preflight_wheels, write_report
from images.rules import Approach, Verdict, read_approaches
from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.files import shown_path
from lanewise.verbs import verb

RUNS = Path(__file__).parents[1] / "runs"
_MOST_GPUS = 1024


@verb(
    "other",
    show="name a toolchain: all that it resolves to, with sizes",
    diff="name a toolchain, and then another: what differs between them, in words",
    other="the other one",
    json="print as JSON",
)
def images(_context: Context, other: str = "", show: str = "", diff: str = "", json: bool = False) -> None:
    """List the toolchains of images/matrix.yaml; --show NAME: one of them; --diff A B: what differs, in words."""
    toolchains, locks = read_toolchains(), read_lock()
    if bool(diff) != bool(other) or (show and diff):
        raise InputError(
            "--diff takes two toolchains, and goes without --show",
            expected=f"two of {', '.join(toolchains)}",
            todo="e.g. ./inv images --diff cu128 cu130",
        )
    if diff:
        a, b = find_toolchain(diff), find_toolchain(other)
        found = differences(a, b, locks)
        document, view = images_view.differences_document(found), images_view.show_differences(a, b, found)
    elif show:
        one = find_toolchain(show)
        document = images_view.document({show: one}, locks, with_wheels=True)
        view = images_view.show_one(one, locks)
    else:
        document = images_view.document(toolchains, locks, with_wheels=False)
        view = images_view.show_all(toolchains.values())
    talk.put_json(document) if json else talk.put(view)


@verb(
    toolchain="comma list; the others stay as they are (default: all)",
    check="change nothing; exit code 3 where the index, or the matrix, asks for something else than the lock",
    upgrade=f"comma list of distributions, bases and git refs that may move to the newest that fits, or {ALL!r}",
)
def lock(_context: Context, toolchain: str = "", check: bool = False, upgrade: str = "") -> ExitCode | None:
    """Resolve images/matrix.yaml into images/lock.yaml: wheels, base digests, commits. Nothing moves unasked."""
    old = read_lock() if LOCK.exists() else Lock()
    toolchains = read_toolchains()
    chosen = [find_toolchain(name) for name in _words(toolchain)] or list(toolchains.values())
    with talk.track("resolving") as progress, engine_if_any() as client:
        new = relock(
            chosen,
            toolchains,
            old,
            _words(upgrade),
            origins(toolchains.values(), client),
            lambda done, total, what: progress.step(done, total, f"resolving {what}", lasting=True),
        )
    changes = drift(old, new)
    talk.put("\n".join(changes) or "nothing moved")
    if check:
        return ExitCode.ANSWER_IS_NO if changes else None
    if changes:
        write_lock(new)
        talk.say(f"written: {shown_path(LOCK)}")
    return None


@verb(
    "target",
    target="a library, a wheel, a folder (environment or root file system), a tar archive of one, or a container image",
    capability="compute capability that the code should run on",
    toolchain="hold compilers found against this toolchain's CUDA",
    json="print as JSON",
)
def audit(
    _context: Context, target: str = "", capability: str = "12.0", toolchain: str = "", json: bool = False
) -> ExitCode | None:
    """Tell which GPUs the device code in TARGET is for, and what cannot run; nothing of it is run or unpacked."""
    if not target:
        raise InputError(
            "no target is named",
            expected="a library, a wheel, a folder, a tar archive, or a container image",
            todo="e.g. ./inv audit /usr/lib/x86_64-linux-gnu/libnccl.so.2",
        )
    cuda = find_toolchain(toolchain).cuda if toolchain else ""
    with talk.track("auditing") as progress:
        found = auditing.audit(
            target,
            capability=Capability.parse(capability),
            toolchain_cuda=cuda,
            progress=lambda done, path: progress.step(done, done, f"auditing {path}", lasting=done % 2000 == 1999),
        )
    talk.put_json(audit_view.document(found)) if json else talk.put(audit_view.show(found))
    return auditing.exit_code(found)


@verb(
    toolchain="comma list of toolchains; two or more are shown side by side",
    wheels="read the wheels that the toolchain pins, fetched where need be (the default)",
    env="read what is installed in this environment or root file system",
    image="read what is installed in this container image",
    gpus="SM120 GPUs of the node, joined by PCIe",
    approach="comma list of approaches (default: all): everything that is known; exit code 3 unless all of them start",
    pin="take this version instead, e.g. sglang==0.5.21 (may be repeated)",
    output="where to write the result (default: runs/TOOLCHAIN/preflight.json; nowhere with --approach, --pin, --env "
    "or --image)",
    markdown="print as a Markdown table",
    json="print as JSON",
)
def preflight(
    _context: Context,
    toolchain: str = "cu128,cu130",
    wheels: bool = False,
    env: str = "",
    image: str = "",
    gpus: int = 8,
    approach: str = "",
    pin: list[str] | None = None,
    output: str = "",
    markdown: bool = False,
    json: bool = False,
) -> ExitCode | None:
    """Tell for every approach whether it can start on SM120, from the packages alone: no GPU, nothing is run."""
    installed = env or image
    if bool(env) + bool(image) + wheels > 1 or (installed and pin):
        raise InputError(
            "--wheels, --env, --image: more than one is given, or one of the latter with --pin",
            expected="one thing to read; --pin goes with wheels",
            todo="leave the others out",
        )
    if not 1 <= gpus <= _MOST_GPUS:
        raise InputError(f"--gpus is {gpus}", expected=f"1 to {_MOST_GPUS}", todo="correct it")
    names = _words(toolchain)
    if len(names) != 1 and (installed or output or not names):
        raise InputError(
            f"--toolchain names {', '.join(names) or 'nothing'}",
            expected="one toolchain, or several without --env, --image and --output",
            todo="name one, e.g. --toolchain cu130",
        )
    catalogue = _chosen(read_approaches(), _words(approach))
    pins = parse_pins(pin or ())
    reports = []
    for name in names:
        chosen = find_toolchain(name)
        if unknown := [what for what in pins if what not in chosen.pins]:
            raise InputError(
                f"--pin names {', '.join(unknown)}, which {name} does not pin",
                expected=f"one of {', '.join(chosen.pins)}",
                todo="correct it",
            )
        chosen = replace(chosen, pins={**chosen.pins, **pins})
        if installed:
            report = preflight_installed(installed, chosen, catalogue, gpus)
        else:
            report = preflight_wheels(chosen, catalogue, gpus)
        path = Path(output) if output else RUNS / name / "preflight.json"
        if output or not (approach or pins or installed):  # anything else is no result of the toolchain's
            write_report(report, path)
            talk.say(f"written: {shown_path(path)}")
        reports.append(report)
    _print(reports, in_detail=bool(approach), markdown=markdown, json=json)
    starts = all(finding.verdict is Verdict.STARTS for report in reports for finding in report.findings)
    return ExitCode.ANSWER_IS_NO if approach and not starts else None


def _print(reports: list[Report], *, in_detail: bool, markdown: bool, json: bool) -> None:
    if json:
        documents = [preflight_view.document(report) for report in reports]
        talk.put_json(documents[0] if len(documents) == 1 else documents)
    elif markdown:
        talk.put(preflight_view.markdown(reports).rstrip("\n"))
    elif in_detail:
        for report in reports:
            for finding in report.findings:
                talk.put(preflight_view.explain(report, finding))
    elif len(reports) == 1:
        talk.put(preflight_view.show(reports[0]))
    else:
        talk.put(preflight_view.side_by_side(reports))


def _chosen(catalogue: tuple[Approach, ...], names: list[str]) -> tuple[Approach, ...]:
    known = {approach.id: approach for approach in catalogue}
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"there is no approach {', '.join(unknown)}", expected=f"some of {', '.join(known)}", todo="correct it"
        )
    return tuple(known[name] for name in names) or catalogue


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]
