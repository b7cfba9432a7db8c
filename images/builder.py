"""Builds the components of a plan, each in a builder container of its own, into the wheelhouse."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.audit import audit
from images.build_plan import BuildPlan, ComponentBuild
from images.builder_image import builder_image
from images.builder_run import Job, Remarks, remove_containers, run_job
from images.capability import SM120
from images.components import COMPONENTS
from images.engine_work import BUILD_LABEL, PID_LABEL, Progress
from images.jobs import available_memory, job_count, memory_limit, usable_cores
from images.patching import PATCHES, read_patches
from images.sources_fetch import fetch_source
from images.wheelhouse import BuiltComponent, Wheelhouse
from lanewise.errors import InputError, LanewiseError
from lanewise.files import writing

if TYPE_CHECKING:
    from docker import DockerClient

_MOST_SECONDS = 48 * 3600
"""For one component: torch on two cores."""
_INSIDE = "/lanewise"
_COMPONENT_LABEL = "lanewise.component"
_INDEX_VARIABLES = (
    "PIP_NO_INDEX", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT",
    "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
"""How the user reaches indexes; builder containers are told, layers of images never are."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What builds may take of this machine.

    Attributes:
        cores: CPUs.
        memory: bytes.
        jobs: compiler jobs; 0: as many as fit (images/jobs.py).
    """

    cores: int
    memory: int
    jobs: int = 0

    def jobs_for(self, component: ComponentBuild) -> int:
        """Compiler jobs for one component."""
        fitting = job_count(cores=self.cores, memory=self.memory, gb_per_job=component.estimate.gb_per_job)
        return self.jobs or fitting


def this_machine(jobs: int = 0) -> Resources:
    """All of this machine that is free."""
    return Resources(cores=usable_cores(), memory=available_memory(), jobs=jobs)


def build_components(
    plan: BuildPlan,
    client: DockerClient,
    base_image: str,
    wheelhouse: Wheelhouse,
    resources: Resources,
    progress: Progress,
    *,
    cache: Path,
    stock: Mapping[str, Path] | None = None,
    seconds: int = _MOST_SECONDS,
    patches: Path = PATCHES,
) -> dict[str, BuiltComponent]:
    """Build what the wheelhouse does not have; whatever ends this early loses only the component under way.

    Args:
        plan: whose components.
        client: the engine; its machine is this one, for folders are mounted.
        base_image: id of the image that the plan's base is.
        wheelhouse: where finished components are kept.
        resources: what the builds may take.
        progress: is told what happens.
        cache: folder for sources, compiler and package caches, which last between runs; wheels of the plan that are in
            it (images/wheels.py) are taken for builds, too, instead of being fetched again.
        stock: distribution to the index's wheel, to be audited for comparison.
        seconds: for one component.
        patches: folder with the patches.

    Returns:
        By name, in the plan's order.

    Raises:
        UnreachableError: the engine stops answering.
        InputError, LanewiseError: sources cannot be had or are not as planned, a build fails, there is no space.
    """
    builder = _Builder(
        plan=plan,
        client=client,
        base_image=base_image,
        wheelhouse=wheelhouse,
        resources=resources,
        progress=progress,
        cache=cache,
        stock=stock or {},
        seconds=seconds,
        patches=patches,
    )
    built: dict[str, BuiltComponent] = {}
    for number, component in enumerate(plan.components, 1):
        what = f"[{number}/{len(plan.components)}] {component.name} {component.version}"
        made = builder.build(component, [built[name] for name in component.needs], Remarks(progress, what))
        progress(f"{what}: {'was built before' if made.reused else f'built in {made.seconds:,.0f} s'}")
        built[component.name] = made
    return built


@dataclass(frozen=True, kw_only=True)
class _Builder:
    """What every build of a run has in common."""

    plan: BuildPlan
    client: DockerClient
    base_image: str
    wheelhouse: Wheelhouse
    resources: Resources
    progress: Progress
    cache: Path
    stock: Mapping[str, Path]
    seconds: int
    patches: Path

    def build(self, component: ComponentBuild, needs: Iterable[BuiltComponent], remarks: Remarks) -> BuiltComponent:
        """What the wheelhouse has, or else a build."""
        key = self.plan.component_key(component.name)
        if found := self.wheelhouse.find(key, self.progress):
            return found
        with self.wheelhouse.building(key, self.progress) as work:
            # Whoever held the key before may have built it; else what has its label is left of a run that was killed.
            if found := self.wheelhouse.find(key):
                return found
            remove_containers(self.client, f"{_COMPONENT_LABEL}={key}")
            return self._build(component, key, work, needs, remarks)

    def _build(
        self, component: ComponentBuild, key: str, work: Path, needs: Iterable[BuiltComponent], remarks: Remarks
    ) -> BuiltComponent:
        began = time.monotonic()
        source = fetch_source(component.source, self.cache, remarks)
        folders = self._lay_out(component, work)
        job = self._job(component, key, {**folders, "source": source}, needs, remarks)
        run_job(job, self.client, remarks)
        stock = [self.stock[name] for name in component.distributions if name in self.stock]
        after = audit_summary(folders["out"].glob("*.whl"))
        _check(component, after)
        record = {
            "name": component.name,
            "version": component.version,
            "seconds": round(time.monotonic() - began, 1),
            "jobs": self.resources.jobs_for(component),
            "before": audit_summary(stock) if stock else None,
            "after": after,
        }
        return self.wheelhouse.keep(folders["out"], record, key)

    def _job(
        self,
        component: ComponentBuild,
        key: str,
        folders: Mapping[str, Path],
        needs: Iterable[BuiltComponent],
        remarks: Remarks,
    ) -> Job:
        variables, named_files = index_access(os.environ)
        wheels = self.cache / "wheels"
        at_hand = [f"{_INSIDE}/wheels/{w.sha256}" for w in self.plan.wheels if (wheels / w.sha256 / w.file).exists()]
        return Job(
            what=f"{component.name} {component.version}",
            image=builder_image(self.base_image, component.packages, self.client, remarks),
            command=("/bin/bash", f"{_INSIDE}/script/supervise.sh"),
            environment={
                **variables,
                "PIP_FIND_LINKS": " ".join((*variables.get("PIP_FIND_LINKS", "").split(), *at_hand)),
                **component.environment,
                "LANEWISE_SOURCE": str(component.source.kind),
                "LANEWISE_JOBS": str(self.resources.jobs_for(component)),
            },
            read_only={
                **{str(path): path for path in named_files},
                **{f"{_INSIDE}/{name}": folders[name] for name in ("source", "script", "patches")},
                **({f"{_INSIDE}/wheels": wheels} if at_hand else {}),
                **{f"{_INSIDE}/needs/{need.name}": need.wheels[0].path.parent for need in needs},
            },
            writable={f"{_INSIDE}/out": folders["out"], **self._caches()},
            labels={BUILD_LABEL: self.plan.key, PID_LABEL: str(os.getpid()), _COMPONENT_LABEL: key},
            memory=memory_limit(self.resources.memory),
            cores=self.resources.cores,
            seconds=self.seconds,
            log=self.wheelhouse.log(key),
        )

    def _lay_out(self, component: ComponentBuild, work: Path) -> dict[str, Path]:
        """The folders that the container sees, filled: script, patches, and an empty one for wheels."""
        folders = {name: work / name for name in ("script", "patches", "out")}
        there = {patch.name: patch for patch in read_patches(component.name, self.patches)}
        with writing(work):
            for folder in folders.values():
                folder.mkdir()
            for name, text in (
                ("build.sh", component.script),
                ("requires.txt", "".join(f"{requirement}\n" for requirement in component.requires)),
                ("supervise.sh", (COMPONENTS / "supervise.sh").read_text(encoding="utf-8")),
            ):
                (folders["script"] / name).write_text(text, encoding="utf-8")
            for name, sha256 in component.patches.items():
                if name not in there or there[name].sha256 != sha256:
                    raise _changed(component, name, sha256)
                (folders["patches"] / name).write_bytes(there[name].path.read_bytes())
        return folders

    def _caches(self) -> dict[str, Path]:
        folders = {f"{_INSIDE}/{name}": self.cache / name for name in ("ccache", "pip")}
        for folder in folders.values():
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        return folders


def _changed(component: ComponentBuild, name: str, sha256: str) -> InputError:
    return InputError(
        f"patch {name} of {component.name} is not the one that was planned with",
        expected=f"a file with sha256 {sha256}",
        todo="call again: the plan is made anew",
    )


def _check(component: ComponentBuild, after: Mapping[str, Any]) -> None:
    """Refuse what SM120 cannot run: such a wheel would only be found out on the node."""
    if after["missing"]:
        raise LanewiseError(
            f"the build of {component.name} {component.version} has no code for SM120 in"
            f" {', '.join(after['missing'][:5])}",
            expected="native code, or PTX, in every library with device code that is in use",
            todo="see the arch tokens of the toolchain in images/matrix.yaml, and the build script",
        )


def index_access(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[Path, ...]]:
    """The variables by which the user reaches package indexes, and the files and folders here that they name."""
    variables = {name: environment[name] for name in _INDEX_VARIABLES if environment.get(name)}
    paths = {Path(word) for text in variables.values() for word in text.split() if word.startswith("/")}
    return variables, tuple(sorted(path for path in paths if path.exists()))


def audit_summary(wheels: Iterable[Path]) -> dict[str, Any]:
    """What the audit says of wheels, in short: bytes, device code by target, libraries that SM120 cannot run."""
    found = [audit(str(path), capability=SM120) for path in sorted(wheels)]
    libraries = [library for one in found for library in one.libraries]
    targets = Counter[str]()
    for library in libraries:
        targets.update({str(code.target): code.count for code in library.code})
    return {
        "size": sum(Path(one.target.name).stat().st_size for one in found),
        "device_bytes": sum(library.device_bytes for library in libraries),
        "code": dict(sorted(targets.items())),
        "verdicts": dict(Counter(str(library.verdict) for library in libraries if library.unused is None)),
        "missing": [library.path for one in found for library in one.missing],
        "sources": sum(package.sources for one in found for package in one.compiled_at_run_time),
    }
