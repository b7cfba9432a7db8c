"""Says why a server ended, or why it does not answer, from its log and its exit code; and what weakens its numbers.

What is known of lines is in endings.yaml. What is not known ends in the last exception that the log has.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tuning.evidence_log import log_signs
from tuning.serving.log import decode_lines, graph_share, pieces
from tuning.serving.startup import READY, Startup, startup
from tuning.trial import Status

_DATA = Path(__file__).parent / "endings.yaml"
_BEFORE, _AFTER = 60, 10
_MOST_HEAD, _MOST_TAIL = 10_000, 40_000
"""Lines that are looked at, of the beginning and of the end."""
_LONGEST = 200
_HARMLESS = re.compile(r"Ignore import error|Failed to import|\bWARNING\b|\w{0,40}Warning:", re.ASCII)
"""Lines of things that the server does without."""
_TRACEBACK = "Traceback (most recent call last):"
_DEAD = (
    "Received sigquit from a child",
    "SIGQUIT received",
    "Watchdog caught collective operation timeout",
    "atchdog timeout (self.watchdog_timeout",
    "hit an exception",
    "crashed with exit code",
    "scheduler died during initialization",
)
"""What a server prints that will answer no more, even while its process lives."""
_SURVIVED = "Can not initialize "
"""What a server does without, with a traceback below it (SGLang, http_server.py: optional parts of its interface)."""
_PREFIX = re.compile(r"^(?:\S{10,40} std(?:out|err) [FP] )?(?:\[[^\]]{0,60}\]:? ?){0,3}(?:\(\w+ pid=\d+\) )?", re.ASCII)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt)\b(?::|$)", re.ASCII
)
_CONSEQUENCES = (
    "EOFError",
    "Initialization failed. Please see",
    "scheduler died during",
    "BrokenPipeError",
    "ConnectionError",
)
_SIGNALS: Mapping[int, tuple[str, str]] = {
    signal.SIGKILL: (
        "killed (SIGKILL), by the kernel for want of memory or by somebody",
        'see the kernel\'s log (journalctl -k, dmesg) for "Out of memory"; weights are read through host memory',
    ),
    signal.SIGTERM: ("told to stop (SIGTERM)", "see who stopped it (the container's runtime, a scheduler, a shell)"),
    signal.SIGINT: ("interrupted (SIGINT)", "start it again"),
    signal.SIGBUS: (
        "killed (SIGBUS), mostly since /dev/shm is full",
        "start the container with --ipc=host or a larger --shm-size",
    ),
    signal.SIGILL: ("killed (SIGILL): this CPU lacks an instruction", "use packages built for this CPU"),
    signal.SIGABRT: ("aborted (SIGABRT)", "the lines before it in its log name the check that failed"),
    signal.SIGSEGV: ("killed (SIGSEGV) in native code", "run it with PYTHONFAULTHANDLER=1, which prints where"),
}

_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
"""Signals that a server does not give itself, but for SIGKILL once it has said that it is dead: where it had not, the
exceptions in its log are of requests that it refused."""


class Ending(NamedTuple):
    """How a server ended.

    Attributes:
        status: as a trial's.
        cause: one line, with the line of the log that proves it.
        advice: what to do next; "" where nothing is known.
    """

    status: Status
    cause: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Known:
    """An entry of endings.yaml.

    Attributes:
        name: its own.
        finds: literals of a line, each with what the line has to match as well, or None.
        near: literals of which one has to stand in the lines around; empty: any will do.
        says: the cause, or the finding.
        advice: what to do; "" of a finding.
        status: None: as the server was or was not ready.
        unless: a flag; it is no finding where the server was given that. "": always one.
    """

    name: str
    finds: tuple[tuple[str, re.Pattern[str] | None], ...]
    near: tuple[str, ...]
    says: str
    advice: str
    status: Status | None
    unless: str


@lru_cache(maxsize=1)
def known() -> tuple[tuple[Known, ...], tuple[Known, ...]]:
    """The endings and the findings that ship."""
    document = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    endings, found = (tuple(map(_known, document[part])) for part in ("endings", "findings"))
    return endings, found


def _known(entry: Mapping[str, Any]) -> Known:
    also = re.compile(entry["also"]) if "also" in entry else None
    signs = tuple((sign.find.decode(), sign.also) for sign in log_signs() if sign.sign == entry.get("sign"))
    return Known(
        name=entry["name"],
        finds=signs or tuple((literal, also) for literal in entry["find"]),
        near=tuple(entry.get("near", ())),
        says=entry["cause"] if "cause" in entry else entry["says"],
        advice=entry.get("advice", ""),
        status=Status(entry["status"]) if "status" in entry else None,
        unless=entry.get("unless", ""),
    )


def ending(lines: Sequence[str], exit_code: int | None, silent: bool, ready: bool) -> Ending | None:
    """How a server ended, or why it hangs; None where nothing is wrong.

    Args:
        lines: of its log; of a very long one the beginning and the end are read.
        exit_code: of its process, negative or above 128 for a signal; None while it runs.
        silent: whether it stopped answering, or did not become ready in time, while it ran.
        ready: whether it had become ready.
    """
    log = _without_survived(_since_ready(list(pieces(_bounded(lines)))))
    said = "\n".join(log)
    if exit_code is None and not silent and not any(mark in said for mark in _DEAD):
        return None
    failed = Status.CRASHED if ready else Status.LAUNCH_FAILED
    for entry in _likely(known()[0], said):
        if evidence := _cause(entry, log):
            return Ending(entry.status or failed, f"{entry.says}: {evidence}", entry.advice)
    if exit_code is None and silent:
        return _hang(startup(log), ready=ready)
    return _by_itself(log, exit_code, failed)


def _bounded(lines: Sequence[str]) -> Sequence[str]:
    if len(lines) <= _MOST_HEAD + _MOST_TAIL:
        return lines
    return [*lines[:_MOST_HEAD], *lines[-_MOST_TAIL:]]


def _since_ready(log: list[str]) -> list[str]:
    """What it survived before it was ready is not what it died of."""
    served = [at for at, line in enumerate(log) if READY in line]
    return log[served[-1] :] if served else log


def _without_survived(log: list[str]) -> list[str]:
    """Without tracebacks of what it did without."""
    kept: list[str] = []
    until = 0
    for at, line in enumerate(log):
        if _SURVIVED in line:
            until = at + next((n for n, below in enumerate(log[at : at + _BEFORE]) if _is_exception(below)), 0) + 1
        elif at >= until:
            kept.append(line)
    return kept


def _is_exception(line: str) -> bool:
    return bool(_EXCEPTION.match(_PREFIX.sub("", line)))


def _cause(entry: Known, log: Sequence[str]) -> str:
    """The first line that proves an ending; "" where none does."""
    for at in _matches(entry, log):
        line, around = log[at], log[max(0, at - _BEFORE) : at + _AFTER]
        near = not entry.near or any(mark in other for other in around for mark in entry.near)
        if near and not _HARMLESS.search(line):
            return _shown(_raised(log[at : at + _BEFORE]) if line.endswith(_TRACEBACK) else line)
    return ""


def _likely(entries: Sequence[Known], said: str) -> list[Known]:
    """The entries of which a literal is in the log at all, which is quick to see."""
    return [entry for entry in entries if any(literal in said for literal, _ in entry.finds)]


def _matches(entry: Known, log: Sequence[str]) -> Iterator[int]:
    for at, line in enumerate(log):
        if any(literal in line and (also is None or also.search(line)) for literal, also in entry.finds):
            yield at


def _raised(traceback: Sequence[str]) -> str:
    """What a traceback ends in; of one that is cut off, the innermost frame."""
    frame = traceback[0]
    for line in traceback:
        if _EXCEPTION.match(text := _PREFIX.sub("", line)):
            return line
        frame = line if text.lstrip().startswith('File "') else frame
    return frame


def _shown(line: str) -> str:
    text = " ".join(_PREFIX.sub("", line).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _hang(said: Startup, *, ready: bool) -> Ending:
    if ready or said.ready:
        what = "it stopped answering" if ready else "its log says that it serves, and it does not answer"
        return Ending(Status.TIMED_OUT, what, "see its log, and whether its GPUs are busy (nvidia-smi)")
    if said.stage.startswith("in graph capture"):
        return Ending(
            Status.TIMED_OUT,
            f"it hangs {said.stage}",
            "capture runs the allreduce: try --disable-custom-all-reduce, then NCCL_P2P_DISABLE=1, to see what hangs",
        )
    return Ending(
        Status.TIMED_OUT,
        f"it did not become ready in time{', ' * bool(said.stage)}{said.stage}",
        "allow more time if its log still moved; else see what its processes wait for (py-spy dump)",
    )


def _by_itself(log: Sequence[str], exit_code: int | None, failed: Status) -> Ending:
    number = -exit_code if exit_code and exit_code < 0 else (exit_code or 0) - 128
    from_outside = number in _OUTSIDE and not any(mark in line for line in log for mark in _DEAD)
    if not from_outside and (exception := _last_exception(log)):
        return Ending(failed, exception, "")
    if number in _SIGNALS:
        cause, advice = _SIGNALS[number]
        return Ending(failed, f"it was {cause}", advice)
    last = next((_shown(line) for line in reversed(log) if line.strip()), "")
    code = "" if exit_code is None else f" with exit code {exit_code}"
    return Ending(failed, f"it ended{code}" + (f"; its last line: {last}" if last else " without a word"), "")


def _last_exception(log: Sequence[str]) -> str:
    consequence = ""
    for line in reversed(log):
        text = _PREFIX.sub("", line)
        if _EXCEPTION.match(text):
            if not any(mark in text for mark in _CONSEQUENCES):
                return _shown(line)
            consequence = consequence or _shown(line)
    return consequence


def findings(lines: Sequence[str], *, speculative: bool, asked: Collection[str] = ()) -> tuple[str, ...]:
    """What weakens the numbers of a server, or makes it another one than was asked for, by its log.

    Args:
        lines: of its log.
        speculative: whether it verifies drafts.
        asked: names of flags that it was given: what they do is no weakness.
    """
    log = list(pieces(_bounded(lines)))
    by_line: dict[str, str] = {}
    unasked = [entry for entry in known()[1] if entry.unless not in asked]
    for entry in _likely(unasked, "\n".join(log)):
        for at in islice(_matches(entry, log), 1):
            by_line.setdefault(log[at], f"{entry.says}: {_shown(log[at])}")
    return (*_eager(log, speculative=speculative), *_by_arguments(startup(log).arguments), *by_line.values())


def _eager(log: Sequence[str], *, speculative: bool) -> Iterator[str]:
    share = graph_share(decode_lines(log))
    if share is not None and share < 1:
        what = "verify passes" if speculative else "decode steps"
        yield f"{what} ran eagerly, without a CUDA graph, by {1 - share:.0%} of the log's decode lines"


def _by_arguments(arguments: Mapping[str, object]) -> Iterator[str]:
    if arguments.get("disable_radix_cache") is False:
        yield "the radix cache is on: a prompt that comes again skips its prefill"
    if arguments.get("enable_deterministic_inference") is True:
        yield "deterministic inference is on, which switches the fast allreduces off"
    if arguments.get("speculative_adaptive") is True:
        yield "adaptive speculation is on: the number of drafts moves while it is measured"
    if window := arguments.get("speculative_draft_window_size"):
        yield f"the draft sees only the last {window} tokens, which lowers acceptance in long contexts"
