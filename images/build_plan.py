"""What building an image means, before anything is built: values that planning makes and building follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from images.lock import LockedWheel


class BaseKind(StrEnum):
    """Where a base comes from."""

    REGISTRY = "registry"
    DEBIAN = "debian"


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an image starts from.

    Attributes:
        name: identifier in the matrix, e.g. "debian-bookworm".
        kind: pulled by digest from a registry, or made of the machine's own Debian packages.
        reference: of a registry base, e.g. "nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04"; of a Debian base its suite.
        python: Python version, major and minor.
        digest: of a registry base "sha256:...", as locked; of a Debian base "" (its inputs are hashed instead).
        cuda: whether it brings CUDA's toolkit, nvcc included; otherwise that comes from wheels.
        packages: Debian packages that it needs beside what it brings, e.g. a compiler for what is compiled at run time.
    """

    name: str
    kind: BaseKind
    reference: str
    python: str
    digest: str = ""
    cuda: bool = False
    packages: tuple[str, ...] = ()


class Profile(StrEnum):
    """How much an image holds."""

    CORE = "core"
    FULL = "full"


class SourceKind(StrEnum):
    """What a component is built from."""

    SDIST = "sdist"
    WHEEL = "wheel"
    GIT = "git"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class Source:
    """The sources of a component.

    Attributes:
        kind: a source archive or a wheel of the index, a git repository at a commit, or a local folder.
        location: distribution and version as "name==version", address, or path.
        identity: what is verified: sha256 of the file, the commit, or the hash of the tree.
        ref: of a git repository the tag or branch that the commit was found under.
        mirror: another place to fetch from; what is fetched is verified all the same.
    """

    kind: SourceKind
    location: str
    identity: str
    ref: str = ""
    mirror: str = ""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a build is expected to take; never measured here unless `source` says so.

    Attributes:
        cpu_minutes: of one core.
        gb_per_job: peak memory of one compiler job.
        source: where the figures are from.
    """

    cpu_minutes: int
    gb_per_job: float
    source: str


@dataclass(frozen=True, kw_only=True)
class ComponentBuild:
    """One component that is rebuilt in a builder container.

    Attributes:
        name: of the component, e.g. "nccl".
        distributions: what the wheels that it makes are called on the index.
        version: its version.
        source: what it is built from.
        patches: file name to sha256, in the order in which they are applied.
        packages: Debian packages that the builder container needs.
        requires: wheels that have to be installed in the builder container (pip requirements, pinned).
        needs: other components whose wheels it is built with.
        environment: what the script is told.
        script: text of the build script.
        why: why it is rebuilt.
        estimate: what it is expected to take.
        untried: whether it was never run end to end; the docs say so.
    """

    name: str
    distributions: tuple[str, ...]
    version: str
    source: Source
    patches: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    script: str
    why: str
    estimate: Estimate
    untried: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """All that makes an image what it is. The same plan gives the same key, and the same key the same image.

    Attributes:
        toolchain: its name.
        cuda: its CUDA version.
        arch: tool to arch token.
        profile: how much goes in.
        base: what it starts from.
        wheels: from the index, as locked, without those that components replace.
        components: to be rebuilt, in an order in which each comes after what it needs.
        overrides: distributions whose version holds although another one demands another: pip check complains.
        left_out: payloads without SM120 code that are removed: glob in site-packages to why.
        environment: variables of the final image.
        remarks: what such an image cannot do, and what else its user should know.
        unresolved: what the plan lacks, to why: it can be shown, but not built.
    """

    toolchain: str
    cuda: str
    arch: Mapping[str, str]
    profile: Profile
    base: Base
    wheels: tuple[LockedWheel, ...]
    components: tuple[ComponentBuild, ...] = ()
    overrides: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    unresolved: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The image's name."""
        return f"lanewise/{self.toolchain}:{self.profile}"

    def component_key(self, name: str) -> str:
        """Hash of all that decides what a component builds to, the keys of what it needs included."""
        component = next(c for c in self.components if c.name == name)
        parts = {
            "cuda": self.cuda,
            "arch": dict(self.arch),
            "base": asdict(self.base),
            "component": {
                k: v for k, v in asdict(component).items() if k not in ("why", "estimate", "untried", "source")
            },
            "source": {k: v for k, v in asdict(component.source).items() if k != "mirror"},
            "needs": [self.component_key(need) for need in component.needs],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def key(self) -> str:
        """Hash of all that decides what the image is."""
        parts = {
            "toolchain": self.toolchain,
            "profile": self.profile,
            "base": asdict(self.base),
            "wheels": [[w.name, w.version, w.sha256] for w in self.wheels],
            "components": [self.component_key(c.name) for c in self.components],
            "left_out": sorted(self.left_out),
            "environment": dict(self.environment),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
