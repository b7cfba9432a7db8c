"""The verb `diagnose`: parses, calls, prints."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from invoke.context import Context

from lanewise import talk
from lanewise.errors import ExitCode, InputError
from lanewise.verbs import verb
from tuning import diagnose_view
from tuning.diagnose import Diagnosis, Verdict
from tuning.diagnose import diagnose as conclude
from tuning.evidence import Evidence, Latency, gather
from tuning.evidence_node import of_topology
from tuning.evidence_read import KINDS, read_evidence
from tuning.repair_worth import Worth, repair_worth
from tuning.topology import MAX_GPUS
from tuning.topology_read import read_topology
from tuning.workload import Message, load_workload, short

MOST_FILES = 64
_MEASURED = re.compile(r"([0-9]{1,12})=([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:,(graph|eager))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


@verb(
    files=f"any of: {KINDS}",
    measured="an allreduce that you measured, BYTES=MICROSECONDS[,graph|,eager], e.g. 43008=225 (may be repeated)",
    topology="the node: a reference node's name, or a file as ./inv topology reads it",
    ranks="ranks of what was measured; 0: as files and topology tell, or 8",
    rate="tokens per second of one request now, for what a repair is worth (default: what a log says, or assumed)",
    accept="tokens a step of speculation (default: what a log says, or assumed)",
    workload="calls in a pass, for what a repair is worth: built-in name or path of a YAML file",
    one_host="the files are of one host, though their names or GPUs differ",
    json="print as JSON",
)
def diagnose(
    _context: Context,
    *files: str,
    measured: list[str] | None = None,
    topology: str = "",
    ranks: int = 0,
    rate: str = "",
    accept: str = "",
    workload: str = "kimi-k2",
    one_host: bool = False,
    json: bool = False,
) -> ExitCode | None:
    """Tell what is wrong with a host from what you have: ./inv diagnose FILE...; exit code 3 where there is a fault."""
    paths = [path for path in files if path]
    by_hand = [parse_measured(text) for text in measured or []]
    _check(paths, by_hand, topology, ranks)
    node = read_topology(topology) if topology else None
    readings = [read_evidence(Path(path)) for path in paths]
    if node:
        readings.append(of_topology(node, name=f"--topology {short(topology)}", kind="topology"))
    messages = load_workload(workload).messages
    now, tokens = parse_number("--rate", rate), parse_number("--accept", accept)
    evidence = gather(readings, measured=by_hand, topology=node, ranks=ranks, one_host=one_host)
    diagnosis = conclude(evidence)
    worth = worth_of(diagnosis, evidence, messages, rate=now, accept=tokens)
    if json:
        talk.put_json(diagnose_view.document(evidence, diagnosis, worth, topology=topology))
    else:
        talk.put(talk.printable(diagnose_view.show(evidence, diagnosis, worth, topology=topology)))
    return ExitCode.ANSWER_IS_NO if diagnosis.verdict is Verdict.FAULT else None


def parse_measured(text: str) -> Latency:
    """A latency as it is named on the command line: BYTES=US, with ",graph" or ",eager" where that is known.

    Raises:
        InputError: it is not of that form, or is nothing that an allreduce could take.
    """
    found = _MEASURED.fullmatch(text)
    if not found or not int(found[1]) or not float(found[2]):
        raise InputError(
            f"--measured is {short(text)}",
            expected="BYTES=MICROSECONDS, both above 0, such as 43008=225 or 43008=225,graph",
            todo="correct it",
        )
    return Latency(size=int(found[1]), us=float(found[2]), mode=found[3] or "", where="--measured")


def parse_number(option: str, text: str) -> float | None:
    """A positive number of an option; None where it was not given.

    Raises:
        InputError: it is none.
    """
    if not text:
        return None
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)) or not float(text):
        raise InputError(f"{option} is {short(text)}", expected="a number above 0, such as 54", todo="correct it")
    return float(text)


def _check(paths: Sequence[str], measured: Sequence[Latency], topology: str, ranks: int) -> None:
    if not paths and not measured and not topology:
        raise InputError("no file and no measurement is named", expected=KINDS, todo="./inv diagnose FILE...")
    if len(paths) > MOST_FILES:
        raise InputError(f"{len(paths)} files are named", expected=f"at most {MOST_FILES}", todo="name fewer")
    if ranks and not 2 <= ranks <= MAX_GPUS:
        raise InputError(f"--ranks is {ranks}", expected=f"2 to {MAX_GPUS}, or 0", todo="correct it")


def worth_of(
    diagnosis: Diagnosis, evidence: Evidence, messages: Sequence[Message], *, rate: float | None, accept: float | None
) -> Worth | None:
    """What a repair is worth, by the worst latency of a size that the workload has; None where nothing is slow.

    Args:
        diagnosis, evidence: what was concluded, and from what.
        messages: of the workload.
        rate: tokens per second now; None: what a log says, if one does.
        accept: tokens a step; None: what a log says, if one does.
    """
    calls = {message.bytes: message for message in messages}
    slow = [judged for judged in diagnosis.slow if judged.latency.size in calls]
    if not slow:
        return None
    worst = max(slow, key=lambda judged: (judged.latency.size, judged.latency.us))
    logged = [reading for reading in evidence.readings if reading.rate]
    return repair_worth(
        calls[worst.latency.size],
        worst.latency.us,
        worst.span,
        present=rate or next((reading.rate for reading in logged), None),
        accept=accept or next((reading.accept for reading in logged), None),
    )
