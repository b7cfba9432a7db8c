"""The conditions that rules are made of. Each is true, false, or not to be told, and leaves the lines that tell it.

A condition is a function with keyword-only parameters, which are what a rule file may write after its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

from images import sources
from images.examine import Library
from images.snapshot import Snapshot
from images.sources import Line, Lookup, NotReadableError

_MOST_EVIDENCE = 3
"""Lines of one condition that are kept: more would say the same again."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """What the packages would run on and with.

    Attributes:
        cuda: the toolchain's CUDA, e.g. "12.8.1".
        arch: tool to the toolchain's arch token, e.g. {"flashinfer": "12.0a"}.
        gpus: SM120 GPUs, joined by PCIe only.
    """

    cuda: str
    arch: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 8


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is judged: packages, and what they would run on."""

    snapshot: Snapshot
    box: Box


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact, and where it stands. `line` 0: the fact is about the file or package as a whole."""

    file: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether a condition holds; `holds` is None where that cannot be told, and `reason` then says why."""

    holds: bool | None
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""


_MOST_WORDS = 300
Condition = Callable[..., Answer]
_MISSING = object()


def _evidence(file: str, lines: Sequence[Line]) -> tuple[Evidence, ...]:
    return tuple(Evidence(file=file, line=found.number, text=found.text) for found in lines[:_MOST_EVIDENCE])


def _unknown(reason: str) -> Answer:
    return Answer(holds=None, reason=reason)


def _source(snapshot: Snapshot, pattern: str) -> tuple[str, str]:
    """The path and text of the one file that a condition reads."""
    readable = [path for path in snapshot.matching(pattern) if path in snapshot.texts]
    if readable:
        return readable[0], snapshot.texts[readable[0]]
    raise NotReadableError(snapshot.fault_of(pattern) or f"there is no {pattern}")


def _within(version: str, at_least: str, below: str) -> bool:
    found = Version(version)
    return (not at_least or found >= Version(at_least)) and (not below or found < Version(below))


def _package(subject: Subject, *, name: str, at_least: str = "", below: str = "", present: bool = True) -> Answer:
    if name in subject.snapshot.unreadable:
        return _unknown(subject.snapshot.fault_of(name))
    version = subject.snapshot.versions.get(name)
    if version is None:
        return Answer(holds=not present, evidence=(Evidence(file=name, text="not among the packages"),))
    fact = (Evidence(file=name, text=f"version {version}"),)
    return Answer(holds=_within(version, at_least, below) is present, evidence=fact)


def _cuda(subject: Subject, *, at_least: str = "", below: str = "") -> Answer:
    return Answer(
        holds=_within(subject.box.cuda, at_least, below),
        evidence=(Evidence(file="toolchain", text=f"CUDA {subject.box.cuda}"),),
    )


def _arch(subject: Subject, *, tool: str, **wanted: str) -> Answer:
    if unknown := set(wanted) - {"is", "is_not"}:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}")
    token = subject.box.arch.get(tool, "")
    fact = (Evidence(file="toolchain", text=f"arch token of {tool}: {token or 'none'}"),)
    return Answer(
        holds=token == wanted.get("is", token) and (token != wanted["is_not"] if "is_not" in wanted else True),
        evidence=fact,
    )


def _gpus(subject: Subject, *, above: int = 0, at_most: int = 0, one_of: Sequence[int] = ()) -> Answer:
    holds = (
        (not above or subject.box.gpus > above)
        and (not at_most or subject.box.gpus <= at_most)
        and (not one_of or subject.box.gpus in one_of)
    )
    return Answer(holds=holds, evidence=(Evidence(file="node", text=f"{subject.box.gpus} GPUs"),))


def _file(subject: Subject, *, path: str, present: bool = True) -> Answer:
    found = subject.snapshot.matching(path)
    if not found and (fault := subject.snapshot.fault_of(path)):
        return _unknown(fault)
    fact = Evidence(file=found[0], text="there") if found else Evidence(file=path, text="not there")
    return Answer(holds=bool(found) is present, evidence=(fact,))


def _text(subject: Subject, *, file: str, pattern: str, present: bool = True) -> Answer:
    path, _ = _source(subject.snapshot, file)
    for candidate in subject.snapshot.matching(file):
        if found := sources.first_match(subject.snapshot.texts.get(candidate, ""), pattern):
            return Answer(holds=present, evidence=_evidence(candidate, [found]))
    return Answer(holds=not present, evidence=(Evidence(file=path, text=f"nowhere: {pattern}"),))


def _dict(subject: Subject, *, file: str, name: str, has: object = _MISSING, lacks: object = _MISSING) -> Answer:
    path, source = _source(subject.snapshot, file)
    keys = sources.dict_keys(source, name)
    _, where = sources.assigned(source, name)
    shown = Line(number=where.number, text=f"{name} has {', '.join(map(str, keys)) or 'no keys'}")
    return Answer(holds=_has(keys, has, lacks), evidence=_evidence(path, [shown]))


def _constant(
    subject: Subject,
    *,
    file: str,
    name: str,
    has: object = _MISSING,
    lacks: object = _MISSING,
    equals: object = _MISSING,
    has_gpus: bool = False,
    lacks_gpus: bool = False,
) -> Answer:
    path, source = _source(subject.snapshot, file)
    node, where = sources.assigned(source, name)
    value = sources.literal(node)
    if equals is not _MISSING:
        return Answer(holds=value == equals, evidence=_evidence(path, [where]))
    if not isinstance(value, Sequence | set | frozenset | Mapping):
        raise NotReadableError(f"{name} is no collection")
    if has_gpus:
        has = subject.box.gpus
    if lacks_gpus:
        lacks = subject.box.gpus
    return Answer(holds=_has(value, has, lacks), evidence=_evidence(path, [where]))


def _use(subject: Subject, *, file: str, name: str, how: Lookup, present: bool = True) -> Answer:
    path, source = _source(subject.snapshot, file)
    found = sources.lookups(source, name, how)
    nothing = (Evidence(file=path, text=f"no {how} of {name}"),)
    return Answer(holds=bool(found) is present, evidence=_evidence(path, found) or nothing)


def _keyword(
    subject: Subject,
    *,
    file: str,
    function: str,
    keyword: str,
    has: object = _MISSING,
    lacks: object = _MISSING,
) -> Answer:
    path, source = _source(subject.snapshot, file)
    found = sources.keyword_values(source, function, keyword)
    if not found:
        return Answer(holds=False, evidence=(Evidence(file=path, text=f"{function} passes no {keyword}"),))
    values = {item for value, _ in found for item in (value if isinstance(value, list | tuple | set) else [value])}
    return Answer(holds=_has(values, has, lacks), evidence=_evidence(path, [where for _, where in found]))


def _calls(subject: Subject, *, file: str, function: str, name: str, present: bool = True) -> Answer:
    path, source = _source(subject.snapshot, file)
    found = sources.calls(source, function, name)
    nothing = (Evidence(file=path, text=f"{function} does not call {name}"),)
    return Answer(holds=bool(found) is present, evidence=_evidence(path, found) or nothing)


def _enum(subject: Subject, **wanted: str) -> Answer:
    if unknown := set(wanted) - {"file", "class", "has", "lacks"}:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}")
    path, source = _source(subject.snapshot, wanted["file"])
    members = sources.class_names(source, wanted["class"])
    name = wanted.get("has") or wanted["lacks"]
    where = [members[name]] if name in members else []
    nothing = (Evidence(file=path, text=f"{wanted['class']} has no {name}"),)
    return Answer(holds=(name in members) is ("has" in wanted), evidence=_evidence(path, where) or nothing)


def _library(subject: Subject, *, path: str, verdict: Sequence[str] = (), present: bool = True) -> Answer:
    there = subject.snapshot.matching(path)
    if fault := subject.snapshot.fault_of(path):
        return _unknown(fault)
    found = [name for name in there if name in subject.snapshot.libraries]
    if not found:
        fact = "no device code in it" if there else "no such library"
        return Answer(holds=not present, evidence=(Evidence(file=path, text=fact),))
    library = subject.snapshot.libraries[found[0]]
    return Answer(
        holds=(not verdict or library.verdict in verdict) is present,
        evidence=(Evidence(file=found[0], text=_in_words(library)),),
    )


def _in_words(library: Library) -> str:
    code = ", ".join(f"{code.target} x{code.count}" for code in library.code)
    return f"{library.verdict} for SM120: holds {code}"[:_MOST_WORDS]


def _nccl(subject: Subject, *, at_least: str = "", below: str = "", built_with_at_least: str = "") -> Answer:
    build = subject.snapshot.nccl
    if build is None:
        return _unknown(subject.snapshot.fault_of("nvidia/nccl/lib/libnccl.so.2") or "no libnccl among the packages")
    fact = (Evidence(file=build.path, text=f"NCCL version {build.version} compiled with CUDA {build.cuda}"),)
    holds = _within(build.version, at_least, below) and _within(build.cuda, built_with_at_least, "")
    return Answer(holds=holds, evidence=fact)


def _has(values: Any, has: object, lacks: object) -> bool:  # noqa: ANN401 - any collection
    return (has is _MISSING or has in values) and (lacks is _MISSING or lacks not in values)


CONDITIONS: dict[str, Condition] = {
    "package": _package,
    "cuda": _cuda,
    "arch": _arch,
    "gpus": _gpus,
    "file": _file,
    "text": _text,
    "dict": _dict,
    "constant": _constant,
    "use": _use,
    "keyword": _keyword,
    "calls": _calls,
    "enum": _enum,
    "library": _library,
    "nccl": _nccl,
}
READS_A_SOURCE = frozenset({"text", "dict", "constant", "use", "keyword", "calls", "enum"})
"""Conditions whose parameter `file` names a source that has to be read."""


def check_parameters(name: str, parameters: Mapping[str, object]) -> None:
    """Refuse what the condition would not take.

    Raises:
        TypeError: an unknown or missing parameter; its text says which.
        KeyError: there is no such condition.
    """
    inspect.signature(CONDITIONS[name]).bind(None, **parameters)


def ask(name: str, parameters: Mapping[str, object], subject: Subject) -> Answer:
    """Whether a condition holds; what cannot be read is an answer, too."""
    try:
        return CONDITIONS[name](subject, **parameters)
    except NotReadableError as error:
        file = str(parameters.get("file", ""))
        reason = str(error)
        return _unknown(reason if not file or file in reason else f"{file}: {reason}")
    except InvalidVersion as error:
        return _unknown(str(error))
