"""Allreduce backends of a server: what asks for one, where it would be ignored, which log lines prove that it is on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from tuning.serving.gpus import GpuFacts

_DATA = Path(__file__).with_name("backends.yaml")
DEFAULT = "default"
"""The backend that stands for whatever a release takes by itself."""
_MOST_LINE, _MOST_RELEASE = 300, 80
_NEVER = r"(?!)"
_DECLARED = re.compile(r"^void |\(anonymous namespace\)::")
_WITH_KERNELS = ("flashinfer-fusion", "custom", "custom-v1", "mscclpp", "torch-symm-mem", "nccl")
"""What "default" may come to be, and is told by its kernels."""
_IN_ORDER = ("flashinfer-fusion", "custom", "custom-v1", "pcie-ipc", "mscclpp")
"""In which SGLang asks them whether they take a message (srt/distributed/parallel_state.py of 0.5.23)."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides whether a server takes a backend.

    Attributes:
        release: SGLang's.
        world: GPUs that a layer is spread over.
        gpus: of the machine; None where nobody knows.
        flags: all flags of the server by name, with their values.
        variables: environment variables that are set for it.
    """

    release: Version
    world: int
    gpus: GpuFacts | None
    flags: Mapping[str, str]
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Flags and variables that ask for a backend, in some releases."""

    since: Version | None = None
    before: Version | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Where a backend would be ignored, or fail: where all conditions hold (backends.yaml says what they mean)."""

    why: str
    conditions: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a log line matches, in some releases."""

    line: str
    since: Version | None = None
    before: Version | None = None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to reduce.

    Attributes:
        name: as launch specs have it.
        says: what it is.
        settings: what asks for it.
        refusals: where it would be ignored.
        runs, idle: what log lines prove that it runs, or that it does not.
        kernels: what its kernels that reduce are called.
    """

    name: str
    says: str
    settings: tuple[Setting, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    runs: tuple[Sign, ...] = ()
    idle: tuple[Sign, ...] = ()
    kernels: tuple[Sign, ...] = ()

    def asked(self, release: Version) -> tuple[dict[str, str], dict[str, str]]:
        """Flags and variables that ask a release for it."""
        held = [setting for setting in self.settings if _within(release, setting.since, setting.before)]
        flags = {name: value for setting in held for name, value in setting.flags.items()}
        return flags, {name: value for setting in held for name, value in setting.variables.items()}

    def judged(self, facts: Facts) -> tuple[str, list[str]]:
        """Why it would be ignored, or ""; and what could make it so where nobody knows, in words."""
        open_questions = []
        for refusal in self.refusals:
            held = [_holds(name, value, facts) for name, value in refusal.conditions.items()]
            if all(held):
                return refusal.why, []
            if False not in held:
                open_questions.append(f"allreduce {self.name}: nobody could tell whether {refusal.why}")
        return "", open_questions


@dataclass(frozen=True, kw_only=True)
class Engaged:
    """What a log proves of a backend.

    Attributes:
        state: whether it runs; None where no line tells.
        line: the line that proves it, or "".
    """

    state: bool | None
    line: str = ""


def engaged(name: str, release: str, lines: Iterable[str]) -> Engaged:
    """What a server's log proves of the backend that it was asked for.

    Args:
        name: of the backend. Of "default" the line is preceded by the name of the backend that it came to be.
        release: SGLang's; of one that is no version, every release's lines count.
        lines: of the log, from its start.
    """
    version = parse_release(release)
    if name != DEFAULT:
        return _engaged(BACKENDS[name], version, lines)
    lines = list(lines)
    for other in _IN_ORDER:
        if (found := _engaged(BACKENDS[other], version, lines)).state:
            return Engaged(state=True, line=f"{other}: {found.line}")
    custom = _engaged(BACKENDS["custom"], version, lines)
    return Engaged(state=True, line=f"nccl: {custom.line}") if custom.state is False else custom


def engaged_by_kernels(name: str, release: str, reducing: Mapping[str, float]) -> Engaged:
    """What a profile proves of the backend that a server was asked for: whether most allreduces of a step are its own.

    Args:
        name, release: as in `engaged`.
        reducing: kernels that reduce, and how often a step runs each.

    Returns:
        state None where there are no kernels, nobody knows what this backend's are called, or neither are most. `line`
        counts its kernels and the others; of "default" it is preceded by the name of the backend.
    """
    if name == DEFAULT:
        for other in _WITH_KERNELS:
            if (found := engaged_by_kernels(other, release, reducing)).state:
                return Engaged(state=True, line=f"{other}: {found.line}")
        return Engaged(state=None)
    pattern = _patterns(BACKENDS[name].kernels, parse_release(release))
    own = {kernel: calls for kernel, calls in reducing.items() if pattern.search(kernel)}
    others = {kernel: calls for kernel, calls in reducing.items() if kernel not in own}
    more = sum(own.values()) - sum(others.values())
    if more > 0:
        return Engaged(state=True, line=" beside ".join(_counted(kernels) for kernels in (own, others) if kernels))
    if more < 0 and BACKENDS[name].kernels:
        return Engaged(state=False, line=f"{sum(own.values()):.4g} of its own, {_counted(others)}")
    return Engaged(state=None)


def _counted(kernels: Mapping[str, float]) -> str:
    """Kernels by their names alone, without types and arguments: "123 ncclDevKernel_AllReduce_Sum_bf16_RING_LL"."""
    counts: dict[str, float] = {}
    for kernel, calls in kernels.items():
        bare = re.split("[<(]", _DECLARED.sub("", kernel))[0].split("::")[-1]
        counts[bare] = counts.get(bare, 0) + calls
    return ", ".join(f"{calls:.4g} {bare}" for bare, calls in counts.items())


def _engaged(backend: Backend, release: Version | None, lines: Iterable[str]) -> Engaged:
    """Idle where any line says so: a rank or a later step that falls back spoils every step."""
    runs, idle = _patterns(backend.runs, release), _patterns(backend.idle, release)
    found = Engaged(state=None)
    for line in lines:
        if match := idle.search(line):
            return Engaged(state=False, line=_shown(line, match))
        if found.state is None and (match := runs.search(line)):
            found = Engaged(state=True, line=_shown(line, match))
    return found


def _patterns(signs: Iterable[Sign], release: Version | None) -> re.Pattern[str]:
    held = [sign.line for sign in signs if release is None or _within(release, sign.since, sign.before)]
    return re.compile("|".join(f"(?:{line})" for line in held) or _NEVER)


def _shown(line: str, match: re.Match[str]) -> str:
    text = line.strip()
    return text if len(text) <= _MOST_LINE else f"… {match[0][:_MOST_LINE]} …"


def _within(release: Version, since: Version | None, before: Version | None) -> bool:
    return (since is None or release >= since) and (before is None or release < before)


def _holds(name: str, value: Any, facts: Facts) -> bool | None:  # noqa: ANN401 - as YAML has it
    """Whether a condition holds; None where nobody knows."""
    major = facts.gpus.capability[0] if facts.gpus and facts.gpus.capability else None
    nvlink = facts.gpus.nvlink if facts.gpus else None
    match name:
        case "since":
            return facts.release >= Version(value)
        case "before":
            return facts.release < Version(value)
        case "worlds":
            return facts.world not in value
        case "over":
            return facts.world > int(value)
        case "nvlink":
            return None if nvlink is None else nvlink is value
        case "majors":
            return None if major is None else major not in value
        case "flag":
            return value in facts.flags
        case "dtypes":
            return facts.flags.get("dtype", value[0]) not in value
        case "unless":
            return not any(f"{variable}={given}" in value for variable, given in facts.variables.items())
        case _:
            raise AssertionError(f"condition {name}")


@cache
def _read() -> Mapping[str, Backend]:
    entries = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    return MappingProxyType({entry["name"]: _backend(entry) for entry in entries})


def _backend(entry: Mapping[str, Any]) -> Backend:
    return Backend(
        name=entry["name"],
        says=entry["says"],
        settings=tuple(_setting(setting) for setting in entry.get("settings", ())),
        refusals=tuple(
            Refusal(why=refusal["why"], conditions={k: v for k, v in refusal.items() if k != "why"})
            for refusal in entry.get("refused", ())
        ),
        runs=tuple(_sign(sign) for sign in entry.get("runs", ())),
        idle=tuple(_sign(sign) for sign in entry.get("idle", ())),
        kernels=tuple(_sign(sign) for sign in entry.get("kernels", ())),
    )


def _setting(entry: Mapping[str, Any]) -> Setting:
    return Setting(**_releases(entry), flags=entry.get("flags", {}), variables=entry.get("variables", {}))


def _sign(entry: str | Mapping[str, Any]) -> Sign:
    if isinstance(entry, str):
        return Sign(line=entry)
    return Sign(**_releases(entry), line=entry["line"])


def _releases(entry: Mapping[str, Any]) -> dict[str, Version]:
    return {name: Version(entry[name]) for name in ("since", "before") if name in entry}


BACKENDS: Mapping[str, Backend] = _read()
"""Every backend by name."""


def parse_release(text: str) -> Version | None:
    """A release as a version that compares; None where it is none."""
    try:
        return Version(text) if len(text) <= _MOST_RELEASE else None
    except InvalidVersion:
        return None
