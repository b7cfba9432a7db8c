"""Makes an image of a plan: its context as a stream, the classic builder, and no tag until it is checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename

from images.bases import BaseImage
from images.build_plan import BuildPlan, ComponentBuild
from images.context import ContextFile, save, tar_stream
from images.dockerfile import RECIPE_LABEL, dockerfile
from images.engine_errors import asking
from images.engine_work import PLAN_LABEL, Progress, alone, build, present, remove_leftovers, remove_untagged
from images.image_checks import Checked, check_image
from lanewise.errors import LanewiseError

if TYPE_CHECKING:
    from docker import DockerClient

_TRIM = Path(__file__).parent / "inside/trim.py"
_MOST_FAULTS = 20
_SPACE_PER_WHEEL = 7
"""Bytes that the classic builder needs for a byte of wheels: it holds the context, a layer of it, and what it installs
to in two stages. Core images of CUDA 12.8 and 13.0 were 2.3 times as large as their wheels, which makes 6.6."""


def recipe_files(plan: BuildPlan, workers: Path) -> list[ContextFile]:
    """Everything that an image is made by, but for its wheels and their list: the Dockerfile first.

    Args:
        plan: what is made.
        workers: folder of the benchmark's workers.

    Raises:
        InputError: the plan holds what no Dockerfile can.
        LanewiseError: a worker cannot be read.
    """
    files = [
        ContextFile(path="trim.py", content=_TRIM.read_bytes()),
        ContextFile(path="left_out.json", content=(json.dumps(dict(plan.left_out), indent=1) + "\n").encode()),
        *_worker_files(workers),
    ]
    total = hashlib.sha256(dockerfile(plan, "").encode())
    for file in files:
        content = file.content if isinstance(file.content, bytes) else b""
        total.update(f"\0{file.path}\0{len(content)}\0".encode() + content)
    text = dockerfile(plan, total.hexdigest())
    return [ContextFile(path="Dockerfile", content=text.encode()), *files]


def _worker_files(workers: Path) -> list[ContextFile]:
    paths = sorted(path for path in workers.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    if not paths:
        raise LanewiseError(
            f"there are no workers in {workers}", expected="the benchmark's workers", todo="check the clone: git status"
        )
    return [
        ContextFile(path=f"workers/{path.relative_to(workers).as_posix()}", content=path.read_bytes()) for path in paths
    ]


def dockerfile_of(plan: BuildPlan, workers: Path) -> str:
    """The whole Dockerfile, for --plan and for people."""
    content = recipe_files(plan, workers)[0].content
    assert isinstance(content, bytes)
    return content.decode()


def find_built(plan: BuildPlan, client: DockerClient, workers: Path) -> str | None:
    """The id of the image that the plan asks for, if it was built and checked: the tag moves to no other.

    An image of the same plan that was made by another Dockerfile, or with other workers, is another image.
    """
    image = present(plan.tag, client)
    wanted = {PLAN_LABEL: plan.key, RECIPE_LABEL: _recipe(plan, workers)}
    if image is None or any(image.labels.get(name) != value for name, value in wanted.items()):
        return None
    return str(image.id)


def _recipe(plan: BuildPlan, workers: Path) -> str:
    """As the last label of the Dockerfile says."""
    return dockerfile_of(plan, workers).rstrip('"\n').rpartition('"')[2]


def make_image(
    plan: BuildPlan,
    client: DockerClient,
    base_image: BaseImage,
    wheels: Sequence[Path],
    workers: Path,
    cache: Path,
    progress: Progress,
) -> Checked:
    """Build the image, check it, and give it the plan's tag; one that fails is removed, and the tag stays where it was.

    What a killed run left in the engine is removed first; what this one made beside the image, at its end.

    Args:
        plan: what to build.
        client: the engine, the one that DOCKER_HOST names.
        base_image: of the plan's base.
        wheels: every file to install: those of the lock, and those that components were built to.
        workers: folder of the benchmark's workers.
        cache: folder for locks, and for the Dockerfile.
        progress: is told each line of the build.

    Raises:
        UnreachableError: the engine stops answering.
        LanewiseError: a step or a check fails, a wheel is missing, another run builds the same, or there is no space.
    """
    with alone(plan.key, cache):
        remove_leftovers(client)
        check_space(plan, wheels, client)
        try:
            image = build_image(plan, client, base_image, wheels, workers, cache, progress)
            checked = check_image(plan, image, client, progress)
            if checked.faults:
                raise _failed(plan, checked.faults)
            with asking(f"name the image {plan.tag}"):
                name, _, tag = plan.tag.rpartition(":")
                client.api.tag(image, name, tag)
        except BaseException:
            with suppress(LanewiseError):  # an engine that died: what happened first is what counts
                remove_untagged(plan.key, client, broken_off=True)
            raise
        remove_untagged(plan.key, client)
    return checked


def check_space(plan: BuildPlan, wheels: Iterable[Path], client: DockerClient) -> None:
    """Refuse to begin what cannot end for lack of space, where the engine keeps its images on this machine.

    Raises:
        LanewiseError: there is too little.
    """
    with asking("ask the engine where it keeps its images"):
        folder = str(client.info().get("DockerRootDir") or "")
    try:
        needed = sum(path.stat().st_size for path in wheels) * _SPACE_PER_WHEEL
        free = shutil.disk_usage(folder).free
    except OSError:  # the engine is elsewhere; a missing wheel is named when it is read
        return
    if free < needed:
        raise LanewiseError(
            f"{folder} has {free / 1e9:.1f} GB free, and building {plan.tag} takes {needed / 1e9:.1f} GB for a while",
            expected="room for the wheels twice, and for what they are installed to twice",
            todo="remove images that are no longer needed (docker image ls), and call again",
        )


def build_image(
    plan: BuildPlan,
    client: DockerClient,
    base_image: BaseImage,
    wheels: Sequence[Path],
    workers: Path,
    cache: Path,
    progress: Progress,
) -> str:
    """Build the image and return its id; it has no tag yet. Arguments and errors are those of make_image."""
    listed = requirements(plan, wheels)
    files = [*recipe_files(plan, workers), ContextFile(path="requirements.txt", content=listed.encode())]
    save(files, saved_folder(plan, cache))
    files += [ContextFile(path=f"wheels/{path.name}", content=path) for path in sorted(wheels, key=lambda p: p.name)]
    return build(
        client,
        tar_stream(files),
        what=f"build {plan.tag}",
        arguments={"BASE": base_image.id, "OWNER": str(os.getpid())},
        network="none",
        progress=progress,
    )


def _failed(plan: BuildPlan, faults: Sequence[str]) -> LanewiseError:
    more = f" (and {len(faults) - _MOST_FAULTS} more)" if len(faults) > _MOST_FAULTS else ""
    return LanewiseError(
        f"{plan.tag} was built, but is not what the plan says: {'; '.join(faults[:_MOST_FAULTS])}{more}",
        expected="an image that passes audit, imports, versions and labels",
        todo="mend what the faults name; the tag stays where it was, and the new image was removed",
    )


def saved_folder(plan: BuildPlan, cache: Path) -> Path:
    """Where the Dockerfile of a plan, and what belongs to it, is kept for a person to run by hand."""
    return cache / "images" / f"{plan.toolchain}-{plan.profile}-{plan.key[:12]}"


def requirements(plan: BuildPlan, wheels: Iterable[Path]) -> str:
    """The list that pip installs from: every wheel of the plan and of its components once, with its hash.

    Raises:
        LanewiseError: one is missing, or is not of the plan.
    """
    left = {path.name: path for path in wheels}
    lines = []
    for wheel in plan.wheels:
        if left.pop(wheel.file, None) is None:
            raise _wrong_wheels(plan, f"lack {wheel.file}, which the plan names")
        lines.append(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}")
    for component in plan.components:
        lines += [_of_component(component, left, plan)]
    if left:
        raise _wrong_wheels(plan, f"hold {', '.join(sorted(left)[:5])}, of which the plan knows nothing")
    return "\n".join(sorted(line for text in lines for line in text.splitlines())) + "\n"


def _of_component(component: ComponentBuild, left: dict[str, Path], plan: BuildPlan) -> str:
    """The component's wheels, taken from those that are left; one that makes several may leave some out."""
    names = {canonicalize_name(name) for name in component.distributions}
    own = {file: parse_wheel_filename(file)[:2] for file in left}
    found = {file: parsed for file, parsed in own.items() if parsed[0] in names}
    if not found:
        raise _wrong_wheels(plan, f"lack what {component.name} is built to: {', '.join(component.distributions)}")
    lines = []
    for file, (name, version) in found.items():
        with left.pop(file).open("rb") as content:
            lines.append(f"{name}=={version} --hash=sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")
    return "\n".join(lines)


def _wrong_wheels(plan: BuildPlan, why: str) -> LanewiseError:
    return LanewiseError(
        f"the wheels for {plan.tag} {why}",
        expected="each wheel of the plan, and of each component that is rebuilt",
        todo="call again: what is missing is fetched or built",
    )
