"""What is asked of the engine in more than one place: look up, run once, build; nothing of it is left behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.engine_errors import asking, no_space, refused, short
from lanewise.errors import LanewiseError
from lanewise.files import writing
from lanewise.redact import Redactor

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container
    from docker.models.images import Image

Progress = Callable[[str], None]
"""Told in a line what is done."""

BUILD_LABEL = "lanewise.build"
"""On what exists only while the image of that plan is built: containers, and stages that are not the image."""
PID_LABEL = "lanewise.pid"
PLAN_LABEL = "lanewise.plan"
"""On finished images, and on those that are still to be checked."""
_SECONDS_SILENT = 1800
"""A step says nothing while it copies; 10 GB from stage to stage take minutes on a slow disk."""
_SECONDS_TO_LET_GO = 15
_SECONDS_TO_BE_SURE = 2
_LAST_LINES = 12
_MOST_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a program in a container said.

    Attributes:
        code: its exit code.
        output: its standard output.
        errors: the end of its standard error, as one line.
    """

    code: int
    output: str
    errors: str


def present(name: str, client: DockerClient) -> Image | None:
    """The image of that name or id, if the engine has it."""
    from docker.errors import ImageNotFound  # noqa: PLC0415 - as in lanewise/engine.py

    with asking(f"look for the image {name[:100]}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            return None


def run_once(client: DockerClient, image: str, command: Sequence[str], *, key: str = "", seconds: int = 900) -> Ran:
    """Run a program in a container of its own, without network, GPU and privileges; the container is removed.

    Args:
        client: the engine.
        image: what the container is made of.
        command: the program and its arguments.
        key: of the plan that it is run for.
        seconds: after which it is killed.

    Raises:
        UnreachableError, LanewiseError: the engine does not answer, refuses, or the program does not end.
    """
    what = f"run {command[0]} in {image[:60]}"
    with asking(what):
        container = client.containers.create(
            image,
            command=list(command[1:]),
            entrypoint=[command[0]],
            labels={BUILD_LABEL: key, PID_LABEL: str(os.getpid())},
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
        )
        try:
            container.start()
            code = _code(container, seconds)
            output = container.logs(stdout=True, stderr=False)
            errors = container.logs(stdout=False, stderr=True, tail=_LAST_LINES)
        finally:
            container.remove(force=True, v=True)
    return Ran(code=code, output=output.decode(errors="replace"), errors=short(errors.decode(errors="replace")))


def _code(container: Container, seconds: int) -> int:
    from requests.exceptions import RequestException  # noqa: PLC0415 - as in lanewise/engine.py

    try:
        return int(container.wait(timeout=seconds)["StatusCode"])
    except RequestException as error:  # of sockets, the SDK tells a timeout as a lost connection
        if "timed out" not in str(error):
            raise
        raise LanewiseError(
            f"a program in a container did not end within {seconds} s, and was killed",
            expected="an end",
            todo="see what the machine is busy with, and call again",
        ) from error


def build(
    client: DockerClient,
    context: Iterable[bytes],
    *,
    what: str,
    arguments: Mapping[str, str],
    network: str,
    progress: Progress,
    tag: str | None = None,
) -> str:
    """Build a Dockerfile with the classic builder, which every engine's API and the SDK have.

    Args:
        client: the engine.
        context: a tar archive with `Dockerfile` in it, in pieces.
        what: what is built, as in "cannot <what>".
        arguments: of the build.
        network: of its steps: "none" or "default".
        progress: is told each line of the builder.
        tag: the image's name; none where it is to be checked first.

    Returns:
        The image's id.

    Raises:
        UnreachableError, LanewiseError: the engine stops answering, or a step fails.
    """
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    image = ""
    with asking(what), _closed_answers(client):
        events: Iterable[Mapping[str, Any]] = client.api.build(
            fileobj=context,  # type: ignore[arg-type]  # requests takes any iterable of bytes
            custom_context=True,
            rm=True,
            forcerm=True,
            decode=True,
            buildargs=dict(arguments),
            network_mode=network,
            use_config_proxy=network != "none",
            timeout=_SECONDS_SILENT,
            tag=tag,
        )
        for event in events:
            if "error" in event:
                raise _failed_step(what, str(event["error"]), list(lines))
            image = str(event.get("aux", {}).get("ID") or image)
            for line in str(event.get("stream", "")).splitlines():
                if line.strip():
                    lines.append(line.strip())
                    progress(Redactor({})(line.strip())[:_MOST_SHOWN])
    if not image:
        raise refused(what, "the engine ended the build and named no image")
    return image


def _failed_step(what: str, error: str, lines: Sequence[str]) -> LanewiseError:
    """What the engine says names the command alone; what the command said comes before it."""
    if full := next((text for text in (error, *lines) if no_space(text)), ""):
        return refused(what, full)
    step = next((line.partition(" :")[0] for line in reversed(lines) if line.startswith("Step ")), "a step")
    said = [line for line in lines if not line.startswith(("Step ", "--->", "Removing intermediate"))]
    return LanewiseError(
        f"cannot {what}: {step} failed: {short(' / '.join(said)) or short(error)}",
        expected="every step of the generated Dockerfile to succeed",
        todo="read what the step said; the Dockerfile is kept, and can be run by hand",
    )


@contextmanager
def _closed_answers(client: DockerClient) -> Iterator[None]:
    """Close what the engine is answering when the block is left.

    The engine goes on with a build until its connection is closed, and the SDK keeps the response to itself.
    """
    answers: list[Any] = []

    def keep(answer: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401 - requests' hook
        answers.append(answer)

    hooks = client.api.hooks["response"]
    hooks.append(keep)
    try:
        yield
    finally:
        hooks.remove(keep)
        for answer in answers:
            answer.close()


@contextmanager
def alone(key: str, cache: Path) -> Iterator[None]:
    """Keep other runs from building the same plan at the same time; a run that is killed lets go by itself.

    Raises:
        LanewiseError: another run is at it.
    """
    path = cache / "building" / f"{key}.lock"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LanewiseError(
                f"the image of plan {key[:12]} is being built by another run",
                expected="one run a plan at a time",
                todo="wait for the other; then this one finds the image",
            ) from error
        yield


def remove_leftovers(client: DockerClient) -> None:
    """Remove what killed runs left in the engine, of any plan: containers and stages whose process is gone."""
    _remove(client, [BUILD_LABEL])


def remove_untagged(key: str, client: DockerClient, *, broken_off: bool = False) -> None:
    """Remove what this run made while it built a plan's image, beside a tagged one: stages, and images that failed.

    Only for whoever holds `alone(key)`. An earlier image of the same plan goes, too, once it has lost its tag.

    Args:
        key: of the plan.
        client: the engine.
        broken_off: whether the engine may still be at a step: it notices late that nobody listens, and keeps what the
            step made. Then nothing has to be left for some time, not only at one moment.
    """
    _remove(client, [f"{BUILD_LABEL}={key}", f"{PLAN_LABEL}={key}"], quiet=_SECONDS_TO_BE_SURE if broken_off else 0)


def _remove(client: DockerClient, labels: Sequence[str], *, quiet: float = 0) -> None:
    """Remove untagged images with one of these labels, and containers, until none was left for `quiet` seconds.

    The engine may need a moment to let go of them.
    """
    began = busy = time.monotonic()
    while (now := time.monotonic()) < began + _SECONDS_TO_LET_GO:
        found = [_remove_once(client, label) for label in labels]
        if any(found):
            busy = now
        elif now >= busy + quiet:
            return
        time.sleep(0.2)


def _remove_once(client: DockerClient, label: str) -> bool:
    """Whether there was anything."""
    from docker.errors import DockerException  # noqa: PLC0415 - as in lanewise/engine.py

    with asking("remove what is left of building"):
        building = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        untagged = client.images.list(filters={"label": label, "dangling": True})
    containers = [container for container in building if _is_ours(container.labels)]
    images = [image for image in untagged if BUILD_LABEL not in image.labels or _is_ours(image.labels)]
    for container in containers:
        with suppress(DockerException):
            container.remove(force=True, v=True)
    for image in images:
        with suppress(DockerException):
            client.images.remove(str(image.id))
    return bool(containers or images)


def _is_ours(labels: Mapping[str, str]) -> bool:
    """Whether what a build made is this process's, or of one that is gone; a build by hand has no process."""
    pid = labels.get(PID_LABEL, "")
    return BUILD_LABEL in labels and pid.isdigit() and (pid == str(os.getpid()) or not Path("/proc", pid).exists())
