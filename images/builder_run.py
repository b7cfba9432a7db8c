"""Runs one program in a container with everything that it says in a log; the container never outlives its caller."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from images.engine_errors import asking
from images.engine_work import Progress
from lanewise.errors import LanewiseError
from lanewise.files import writing
from lanewise.talk import printable

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

PATCH_FAILED = 65
"""Exit codes of images/components/prelude.sh."""
OTHER_CUDA = 66
_KILLED = 137
_LAST_LINES = 15
_MOST_PIDS = 16_384
_SECONDS_BETWEEN_REMARKS = 0.5
_SECONDS_TO_END = 10
_LINE_END = re.compile(rb"[\r\n]+")
_MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program in a builder container.

    Attributes:
        what: name and version of the component, for people.
        image: id of the image.
        command: the program and its arguments.
        environment: its variables.
        read_only: path in the container to what is mounted there.
        writable: the same, for what it may write to.
        labels: of the container.
        memory: the most bytes that it may take.
        cores: the most CPUs that it may keep busy.
        seconds: after which it is given up.
        log: file for all that it says.
    """

    what: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    read_only: Mapping[str, Path]
    writable: Mapping[str, Path]
    labels: Mapping[str, str] = field(default_factory=dict)
    memory: int
    cores: int
    seconds: int
    log: Path


def run_job(job: Job, client: DockerClient, progress: Progress) -> None:
    """Run it to its end; the container is removed, however it ends.

    Where this process is killed and cannot, the engine closes the container's standard input, and
    images/components/supervise.sh ends it.

    Args:
        job: what to run.
        client: the engine.
        progress: is told the latest line, at most twice a second.

    Raises:
        UnreachableError: the engine stops answering.
        LanewiseError: it fails, or does not end in time, or the log cannot be written.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with _Output() as output, _container(job, client) as container, asking(f"run the build of {job.what}"):
        output.attach(container, client)
        container.start()
        with writing(job.log), job.log.open("wb") as log:
            for line in _lines(_in_time(output.pieces, job)):
                log.write(line + b"\n")
                log.flush()
                if text := printable(line.decode("utf-8", "replace").expandtabs()).strip():
                    last.append(text)
                    progress(text)
        code = int(container.wait(timeout=60)["StatusCode"])
        container.reload()
        if code:
            raise _failed(job, code, last, out_of_memory=bool(container.attrs["State"].get("OOMKilled")))


@contextmanager
def _container(job: Job, client: DockerClient) -> Iterator[Container]:
    from docker.errors import DockerException, NotFound  # noqa: PLC0415 - as in lanewise/engine.py
    from docker.types import LogConfig, Mount  # noqa: PLC0415
    from requests.exceptions import RequestException  # noqa: PLC0415

    mounts = [Mount(target=at, source=str(path), type="bind", read_only=True) for at, path in job.read_only.items()]
    mounts += [Mount(target=at, source=str(path), type="bind") for at, path in job.writable.items()]
    with asking(f"make a container for {job.what} (its folders have to be on the engine's machine)"):
        container = client.containers.create(
            job.image,
            entrypoint=[job.command[0]],
            command=list(job.command[1:]),
            environment=dict(job.environment),
            labels=dict(job.labels),
            mounts=mounts,
            user=f"{os.getuid()}:{os.getgid()}",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=job.memory,
            memswap_limit=job.memory,
            nano_cpus=job.cores * 10**9,
            pids_limit=_MOST_PIDS,
            stdin_open=True,
            detach=False,  # so that the SDK asks for a standard input that ends with whoever is attached to it
            log_config=LogConfig(type="none"),
        )
    try:
        yield container
    finally:
        # An engine that is gone takes its containers with it, or the next run removes what has our label.
        with suppress(NotFound, DockerException, RequestException):
            container.remove(force=True, v=True)


class _Output:
    """What a container says, in pieces, then None; and its standard input, which ends when this process does.

    Entered before the container is made, so that it is left after that is removed: then there is nothing to wait for.
    """

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes | None] = queue.Queue(maxsize=1024)
        self._socket: Any = None
        self._reader: threading.Thread | None = None
        self._left = threading.Event()

    def attach(self, container: Container, client: DockerClient) -> None:
        """Before it is started, so that nothing is missed."""
        streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        self._socket = client.api.attach_socket(str(container.id), params=streams)
        self._reader = threading.Thread(target=self._read, name="builder output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        from docker.utils.socket import frames_iter  # noqa: PLC0415 - as in lanewise/engine.py

        with suppress(OSError, ValueError):  # the engine is gone: what is asked of it next says so
            for _, piece in frames_iter(self._socket, tty=False):  # type: ignore[no-untyped-call]
                self._put(piece)
        self._put(None)

    def _put(self, piece: bytes | None) -> None:
        while not self._left.is_set():
            with suppress(queue.Full):
                self.pieces.put(piece, timeout=0.1)
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._reader:
            self._reader.join(timeout=_SECONDS_TO_END)
        if self._socket:
            self._socket._response.close()  # noqa: SLF001 - the SDK keeps it there, and closes it nowhere


def _in_time(pieces: queue.Queue[bytes | None], job: Job) -> Iterator[bytes]:
    """The pieces, as long as there is time."""
    deadline = time.monotonic() + job.seconds
    while True:
        try:
            piece = pieces.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise LanewiseError(
                f"the build of {job.what} did not end within {job.seconds:,} s",
                expected="a build that ends",
                todo=f"see {job.log}; more jobs or memory may help",
            ) from None
        if piece is None:
            return
        yield piece


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    left = b""
    for piece in pieces:
        *whole, left = _LINE_END.split(left + piece)
        yield from whole
        if len(left) > _MOST_LINE_BYTES:
            yield left
            left = b""
    if left:
        yield left


class Remarks:
    """Passes on the latest line, at most twice a second: a compiler says more than anybody can read.

    Args:
        progress: is told.
        what: the component.
    """

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress, self._what = progress, what
        self._began = time.monotonic()
        self._next = 0.0

    def __call__(self, line: str) -> None:
        """One line of the build."""
        now = time.monotonic()
        if now >= self._next:
            minutes, seconds = divmod(int(now - self._began), 60)
            self._progress(f"{self._what} {minutes}:{seconds:02}: {line[:160]}")
            self._next = now + _SECONDS_BETWEEN_REMARKS


def _failed(job: Job, code: int, last: deque[str], *, out_of_memory: bool) -> LanewiseError:
    said = "".join(f"\n    {line[:300]}" for line in last)
    what = f"the build of {job.what} failed (exit code {code})"
    if out_of_memory:
        what = f"the build of {job.what} ran out of memory: it was killed at {job.memory / 1e9:,.1f} GB"
        expected, todo = "enough memory for its jobs", f"call again with fewer --jobs; {job.log} has the whole log"
    elif code == _KILLED:
        expected, todo = "a container that nobody kills", "call again: what is finished is kept"
    elif code == PATCH_FAILED:
        expected = "patches that fit the sources to the letter"
        todo = "make the patch anew for this version, or narrow its Versions (images/patches/)"
    elif code == OTHER_CUDA:
        expected, todo = "a base, or wheels, of the toolchain's CUDA", "see images/matrix.yaml and images/lock.yaml"
    elif any("no space left on device" in line.lower() for line in last):
        what = f"the build of {job.what} ran out of space"
        expected, todo = "room for the engine, for the cache, and in the wheelhouse", "free some, and call again"
    else:
        expected, todo = "a build script that succeeds", f"{job.log} has the whole log"
    return LanewiseError(f"{what}{said}", expected=expected, todo=todo)


def remove_containers(client: DockerClient, label: str) -> None:
    """Remove containers with this label, running or not.

    Raises:
        UnreachableError: the engine does not answer.
    """
    with asking("remove what a killed run left"):
        for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
            container.remove(force=True, v=True)
