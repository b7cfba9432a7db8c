"""Reads a file of a host, whatever it is: recognises it by its content. Nothing that it holds is run or imported."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from lanewise.errors import InputError
from tuning.evidence import Reading
from tuning.evidence_log import read_log
from tuning.evidence_node import (
    looks_like_states,
    read_graph_file,
    read_lspci,
    read_nccl_xml,
    read_p2p_states,
    read_record,
    read_topology_text,
)
from tuning.evidence_run import read_run_file
from tuning.evidence_tables import looks_like_nccl_tests, looks_like_p2p, read_nccl_tests, read_p2p
from tuning.topology_lspci import looks_like_lspci
from tuning.topology_lspci_tree import looks_like_lspci_tree
from tuning.topology_matrix import looks_like_matrix

_WHOLE = 4 << 20
"""Bytes up to which a file is read at once; a larger one can only be a log or a run file."""
_MOST_RUN = 64 << 20
_PROBE = 16 << 20
"""Bytes of a large file within which a line of a known log has to stand."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]", re.ASCII)
KINDS = (
    "a run file, a log of SGLang, vLLM or NCCL (NCCL_DEBUG=INFO), an output of nccl-tests, `nvidia-smi topo -m` or "
    "-p2p, `lspci -vvv`, a matrix of p2pBandwidthLatencyTest, nvbandwidth or p2pmark, NCCL's topology or graph XML, "
    "a node record"
)


def read_evidence(path: Path) -> Reading:
    """What a file tells of its host.

    Raises:
        InputError: it cannot be read, is of no known kind, or is damaged.
    """
    name = "".join(c if c.isprintable() else "\ufffd" for c in str(path))
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise OSError(0, "it is no regular file")
            return _read(path, file, about.st_size, name)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read {name} ({why})", expected="a readable file", todo="check the path") from error


def _read(path: Path, file: BinaryIO, size: int, name: str) -> Reading:
    start = file.read(4096)
    file.seek(0)
    if start.startswith(b"{") and b'"lanewise-run"' in start:
        if size > _MOST_RUN:
            raise _unknown(name, f"is a run file of {size:,} bytes, more than {_MOST_RUN:,}")
        return read_run_file(path, name=name)
    if b"\0" in start:
        raise _unknown(name, "is no text")
    if size > _WHOLE:
        return _large(file, name)
    text = _ESCAPES.sub("", file.read().decode("utf-8", "replace").lstrip("\ufeff"))
    if not text.strip():
        raise _unknown(name, "is empty")
    return _structured(text, name)


def _large(file: BinaryIO, name: str) -> Reading:
    """A log; one of another program is told by its start, not after half a gigabyte."""
    if not read_log(io.BytesIO(file.read(_PROBE)), name=name):
        raise _unknown(name, f"has no line of a known log in its first {_PROBE >> 20} MiB")
    file.seek(0)
    reading = read_log(file, name=name)
    if reading is None:  # what was there a moment ago: the file is being changed
        raise _unknown(name, "changed while it was read")
    return reading


def _structured(text: str, name: str) -> Reading:
    """Each kind by what only it has; a log is what holds lines of known logs."""
    start = text.lstrip()[:200]
    if start.startswith("{") and "lanewise.node-record" not in text:
        raise _unknown(name, "is JSON of another kind")
    log = _log(text, name)
    for read in (read for looks_like, read in _FORMS if looks_like(text)):
        try:
            return _with_log(read(text, name), log)
        except InputError:
            if log is None:
                raise
    if log is None:
        raise _unknown(name, f"is of no known kind; it begins {start.splitlines()[0][:60]!r}")
    return log


def _log(text: str, name: str) -> Reading | None:
    return read_log(io.BytesIO(text.encode("utf-8", "replace")), name=name)


def _begins(*starts: str) -> Callable[[str], bool]:
    return lambda text: text.lstrip().startswith(starts)


def _with_log(reading: Reading, log: Reading | None) -> Reading:
    """The same, and what lines of logs around it say."""
    if log is None:
        return reading
    known = {sign.name for sign in reading.signs}
    return replace(
        reading,
        signs=(*reading.signs, *(sign for sign in log.signs if sign.name not in known)),
        said=(*reading.said, *log.said),
        hosts=reading.hosts | log.hosts,
        releases=log.releases,
        ranks=reading.ranks or log.ranks,
    )


_FORMS: tuple[tuple[Callable[[str], bool], Callable[[str, str], Reading]], ...] = (
    (_begins("<graphs"), lambda text, name: read_graph_file(text.lstrip(), name=name)),
    (_begins("<?xml", "<system", "<!"), lambda text, name: read_nccl_xml(text, name=name)),
    (_begins("{"), lambda text, name: read_record(text, name=name)),
    (looks_like_lspci, lambda text, name: read_lspci(text, name=name)),
    (looks_like_lspci_tree, lambda text, name: read_topology_text(text, name=name, kind="lspci -tv")),
    (looks_like_nccl_tests, lambda text, name: read_nccl_tests(text, name=name)),
    (looks_like_p2p, lambda text, name: read_p2p(text, name=name)),
    (looks_like_states, lambda text, name: read_p2p_states(text, name=name)),
    (looks_like_matrix, lambda text, name: read_topology_text(text, name=name, kind="nvidia-smi topo -m")),
)
"""How each kind is told, and what reads it; the first that fits."""


def _unknown(name: str, how: str) -> InputError:
    return InputError(f"{name} {how}", expected=KINDS, todo="leave it out, or name the file that was meant")
