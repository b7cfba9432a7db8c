"""Reads images/matrix.yaml: the toolchains and bases, as a person wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.build_plan import Base, BaseKind, Profile
from lanewise.errors import InputError
from lanewise.files import read_text

MATRIX = Path(__file__).parent / "matrix.yaml"
_MAX_FILE_BYTES = 1 << 20
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_ARCH_TOKEN = re.compile(r"[1-9][0-9]?\.[0-9][af]?")


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    """What images can start from.

    Attributes:
        name: identifier, e.g. "debian-bookworm".
        kind: a registry's image, or made of the machine's own Debian packages.
        reference: name and tag of a registry's image, or a Debian suite.
        python: Python version, major and minor.
        cuda: version of the CUDA toolkit that it brings, nvcc included; "" where it brings none.
        packages: Debian packages that it lacks.
        packages_full: further ones that the profile `full` needs.
    """

    name: str
    kind: BaseKind
    reference: str
    python: str
    cuda: str = ""
    packages: tuple[str, ...] = ()
    packages_full: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _PYTHON.fullmatch(self.python):
            raise ValueError(f"{self.name}: python is {self.python!r}, not such as '3.12'")

    def of(self, profile: Profile, digest: str = "") -> Base:
        """The base as a build plan has it."""
        return Base(
            name=self.name,
            kind=self.kind,
            reference=self.reference,
            python=self.python,
            digest=digest,
            cuda=bool(self.cuda),
            packages=(*self.packages, *(self.packages_full if profile is Profile.FULL else ())),
        )


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """CUDA and the versions that go with it.

    Attributes:
        name: identifier, e.g. "cu128".
        cuda: CUDA version.
        python: Python version of its first base, major and minor: what is read where no base is named is for it.
        meaning: why it is in the matrix.
        arch: tool to the token that makes it compile for SM120, e.g. {"flashinfer": "12.0a"}.
        pins: distribution on the Python index to version.
        together: CUDA's own parts, pinned so that they stay at the toolchain's CUDA.
        core: names of pins that the profile `core` has, too.
        overrides: names of pins that hold although another distribution demands another version.
        everywhere: distributions that every image has, whatever its toolchain, to version.
        from_source: distributions that no index has, to version: in an image only where they are built.
        bases: what its images can start from, the one that is taken unless another is named first.
        pair: the toolchain from which this one differs in nothing but CUDA; "" where there is none.
    """

    name: str
    cuda: str
    python: str
    meaning: str
    arch: Mapping[str, str]
    pins: Mapping[str, str]
    together: Mapping[str, str] = field(default_factory=dict)
    core: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    everywhere: Mapping[str, str] = field(default_factory=dict)
    from_source: Mapping[str, str] = field(default_factory=dict)
    bases: tuple[BaseChoice, ...] = ()
    pair: str = ""

    def __post_init__(self) -> None:
        versions = {**self.pins, **self.together, **self.everywhere, **self.from_source}
        _check_versions(self.name, {"cuda": self.cuda, **versions})
        if not _PYTHON.fullmatch(self.python):
            raise ValueError(f"{self.name}: python is {self.python!r}, not such as '3.12'")
        for tool, token in self.arch.items():
            if not _ARCH_TOKEN.fullmatch(token):
                raise ValueError(f"{self.name}: arch of {tool} is {token!r}, not such as '12.0a'")
        for name in self.core:
            if name not in self.pins:
                raise ValueError(f"{self.name}: core names {name!r}, which is not pinned")
        if unknown := set(self.overrides) - versions.keys():
            raise ValueError(f"{self.name}: overrides names {min(unknown)!r}, which is not pinned")
        for base in self.bases:
            if base.cuda and release(base.cuda) != release(self.cuda):
                raise ValueError(f"{self.name}: base {base.name} brings CUDA {base.cuda}, not {self.cuda}")

    def pins_of(self, profile: Profile) -> dict[str, str]:
        """All that the profile pins, distribution to version."""
        pins = self.pins if profile is Profile.FULL else {name: self.pins[name] for name in self.core}
        return {**self.everywhere, **self.together, **pins}

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons of its bases, the first base's first."""
        return tuple(dict.fromkeys((self.python, *(base.python for base in self.bases))))

    def base(self, name: str = "") -> BaseChoice:
        """The base of that name; the first where none is named.

        Raises:
            InputError: the toolchain has no such base.
        """
        for base in self.bases:
            if name in ("", base.name):
                return base
        raise InputError(
            f"toolchain {self.name} has no base {name!r}",
            expected=f"one of {', '.join(base.name for base in self.bases)} (images/matrix.yaml)",
            todo="name one of these",
        )


def release(cuda: str) -> tuple[int, int]:
    """Major and minor of a CUDA version: what compilers and libraries have in common that go together."""
    version = Version(cuda)
    return version.major, version.minor


def read_toolchains(path: Path = MATRIX) -> dict[str, Toolchain]:
    """The toolchains by name, in the file's order.

    Raises:
        InputError: the file is not a matrix.
    """
    try:
        document = yaml.safe_load(read_text(path, what="matrix", limit=_MAX_FILE_BYTES))
        bases = {str(name): _base(str(name), fields) for name, fields in document["bases"].items()}
        shared = {key: document.get(key, {}) for key in ("everywhere", "from_source")}
        toolchains = {
            str(name): _toolchain(str(name), {**shared, **fields}, bases)
            for name, fields in document["toolchains"].items()
        }
        _check_pairs(toolchains)
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(
            f"matrix {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="mappings `bases` and `toolchains`, as images/matrix.py has them",
            todo="mend the file",
        ) from error
    return toolchains


def find_toolchain(name: str, path: Path = MATRIX) -> Toolchain:
    """The toolchain of that name.

    Raises:
        InputError: there is none.
    """
    toolchains = read_toolchains(path)
    if name not in toolchains:
        raise InputError(
            f"there is no toolchain {name!r}",
            expected=f"one of {', '.join(toolchains)} (images/matrix.yaml)",
            todo="name one of these, or write it into the matrix",
        )
    return toolchains[name]


def parse_pins(texts: Iterable[str]) -> dict[str, str]:
    """Pins as typed, e.g. "sglang==0.5.21".

    Raises:
        InputError: one is no pin.
    """
    pins = {}
    for text in texts:
        name, separator, version = text.partition("==")
        try:
            pins[canonicalize_name(name.strip(), validate=True)] = str(Version(version.strip()))
            if not separator:
                raise ValueError
        except ValueError:
            raise InputError(
                f"{text!r} is no pin", expected="a distribution and a version, e.g. sglang==0.5.21", todo="correct it"
            ) from None
    return {str(name): version for name, version in pins.items()}


def _base(name: str, fields: Mapping[str, Any]) -> BaseChoice:
    lists = {key: tuple(fields.get(key, ())) for key in ("packages", "packages_full")}
    return BaseChoice(**{**fields, **lists, "name": name, "kind": BaseKind(fields["kind"])})


def _toolchain(name: str, fields: Mapping[str, Any], bases: Mapping[str, BaseChoice]) -> Toolchain:
    if not fields["bases"]:
        raise ValueError(f"{name}: it has no base")
    if unknown := [base for base in fields["bases"] if base not in bases]:
        raise ValueError(f"{name}: there is no base {unknown[0]!r}")
    chosen = tuple(bases[base] for base in fields["bases"])
    lists = {key: tuple(fields.get(key, ())) for key in ("core", "overrides")}
    return Toolchain(**{**fields, **lists, "name": name, "bases": chosen, "python": chosen[0].python})


def _check_versions(toolchain: str, versions: Mapping[str, str]) -> None:
    for name, value in versions.items():
        try:
            Version(value)
        except (InvalidVersion, TypeError):
            raise ValueError(f"{toolchain}: {name} is {value!r}, not a version in quotes") from None
        if canonicalize_name(name) != name:
            raise ValueError(f"{toolchain}: {name!r} is {canonicalize_name(name)!r} on the Python index")


def _check_pairs(toolchains: Mapping[str, Toolchain]) -> None:
    for name, toolchain in toolchains.items():
        if toolchain.pair and (toolchain.pair not in toolchains or toolchains[toolchain.pair].pair != name):
            raise ValueError(f"{name}: its pair is {toolchain.pair}, which is not paired with it")
