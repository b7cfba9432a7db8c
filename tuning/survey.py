"""What this machine can measure, and what it therefore skips: found before anything runs, in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuning.container_images import PYTHON, Image
from tuning.plan import Environment
from tuning.provenance import gpu_count
from tuning.pythons import find_cuda_python, find_sglang_python, has_sglang

_LEAST_GPUS = 2


class EngineState(Protocol):
    """Whether a container engine answers, in words."""

    @property
    def present(self) -> bool:
        """Whether it answers."""
        ...

    @property
    def detail(self) -> str:
        """Its version, or the reason why not."""
        ...


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a campaign can do here.

    Attributes:
        engine: the engine to measure with.
        environments: the toolchains, each in its image where all have one, or all on this machine.
        found: what there is, a line each.
        skipped: what is not measured and why, a line each.
    """

    engine: str
    environments: tuple[Environment, ...]
    found: tuple[str, ...]
    skipped: tuple[str, ...]


def survey(python: str, containers: EngineState, toolchains: Sequence[str], images: Mapping[str, Image]) -> Survey:
    """Look at GPUs, interpreters and images.

    Args:
        python: interpreter of this machine for ranks on GPUs that the user named, or ""; one that is named is used.
        containers: what is known of the container engine.
        toolchains: those to measure.
        images: the images of those toolchains that the engine has one of.
    """
    count = gpu_count()
    found = [f"{count} NVIDIA GPUs" if count else "no NVIDIA GPU", containers.detail]
    found += [f"image {image.tags[0] if image.tags else image.id} of {name}" for name, image in images.items()]
    lacking = [name for name in toolchains if name not in images]
    in_images = not python and not lacking
    cuda_python = (python or find_cuda_python()) if count >= _LEAST_GPUS and not in_images else None
    if cuda_python:
        found.append(f"{cuda_python} for ranks on GPUs")
    skipped = []
    if count < _LEAST_GPUS:
        skipped.append("allreduce on GPUs: two are needed")
    elif not in_images and not cuda_python:
        skipped.append("allreduce on GPUs: no python3 on PATH has numpy and cuda-bindings; name one with --python")
    if not in_images:
        why = "--python names one of this machine" if python else _why_no_images(containers, lacking)
        skipped.append(f"images of the toolchains: {why}; all toolchains ran the same Python on this host")
    interpreter = cuda_python or sys.executable
    return Survey(
        engine="cuda" if cuda_python or (in_images and count >= _LEAST_GPUS) else "mpi",
        environments=tuple(
            Environment(name=name, python=PYTHON, image=images[name].id)
            if in_images
            else Environment(name=name, python=interpreter)
            for name in toolchains
        ),
        found=tuple(found),
        skipped=tuple(skipped),
    )


@dataclass(frozen=True, kw_only=True)
class ServerSurvey:
    """Where a campaign can start servers.

    Attributes:
        environments: toolchains in their images, or this machine; none where there is nothing to start.
        found, skipped: as in `Survey`.
    """

    environments: tuple[Environment, ...] = ()
    found: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def survey_servers(python: str, model: str, toolchains: Sequence[str], images: Mapping[str, Image]) -> ServerSurvey:
    """Look for SGLang, where there are a GPU and a model.

    Args:
        python: interpreter of this machine that the user named, or ""; one that is named is used.
        model: that the servers are to load, or "".
        toolchains: those to measure.
        images: the images with SGLang of those toolchains that the engine has one of.
    """
    if not gpu_count():
        return _no_servers(
            "no NVIDIA GPU; where there is one, give --model PATH, and --draft PATH of its EAGLE-3 draft"
        )
    if not model:
        return _no_servers("no model is named; give --model PATH, and --draft PATH of its EAGLE-3 draft")
    if python and not has_sglang(python):
        return _no_servers(f"{python} has no SGLang; give --python one that has, or leave it out")
    if images and not python:
        return ServerSurvey(
            environments=tuple(
                Environment(name=name, python=PYTHON, image=images[name].id) for name in toolchains if name in images
            ),
            found=tuple(
                f"image {image.tags[0] if image.tags else image.id} of {name} for servers"
                for name, image in images.items()
            ),
            skipped=tuple(
                f"speculative decoding in {name}: no image with SGLang (./inv build-image --toolchain {name})"
                for name in toolchains
                if name not in images
            ),
        )
    if not (found := python or find_sglang_python()):
        builds = " or ".join(f"./inv build-image --toolchain {name}" for name in toolchains)
        return _no_servers(f"no python3 on PATH has SGLang; name one with --python, or build an image ({builds})")
    return ServerSurvey(environments=(Environment(name="host", python=found),), found=(f"{found} for servers",))


def _no_servers(why: str) -> ServerSurvey:
    return ServerSurvey(skipped=(f"speculative decoding: {why}",))


def _why_no_images(containers: EngineState, lacking: Sequence[str]) -> str:
    if not containers.present:
        return containers.detail
    builds = ", ".join(f"./inv build-image --toolchain {name}" for name in lacking)
    return f"the engine has none of {', '.join(lacking)} ({builds})"


def default_engine(*, in_images: bool) -> str:
    """The engine where the user names none: an image brings what ranks on GPUs need, this machine may not."""
    return "cuda" if in_images and gpu_count() >= _LEAST_GPUS else "mpi"


def default_python(engine: str) -> str:
    """The interpreter that an engine's ranks run with where the user names none."""
    return (find_cuda_python() or sys.executable) if engine == "cuda" else sys.executable
