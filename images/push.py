"""Brings an image to a registry, by digest, or to nodes over ssh; what arrived is held against what was sent."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from images.engine_errors import LOG_IN, asking, refused, short
from images.engine_work import Progress, present
from lanewise.errors import InputError, LanewiseError, UnreachableError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.ASCII)
"""A host, a port, a path, as in github.com/distribution/reference; no user, no password."""
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9\[][A-Za-z0-9.:\]-]*", re.ASCII)
"""As ssh takes it; nothing that it would take for an option."""
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9./:_@-]*", re.ASCII)
"""What needs no quoting in the remote shell that ssh gives its command to."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15",
        "-o", "ServerAliveCountMax=4")  # fmt: skip
"""Asks for no password, and notices within a minute that a node is gone."""
_SSH_FAILED = 255
_SECONDS = 3600
_PROGRESS_BYTES = 256 << 20


def push(image: str, registry: str, client: DockerClient, progress: Progress) -> str:
    """Push an image, and prove that the registry has it under the digest that the engine computed.

    Who may push is the engine's matter: it is told what `docker login` stored, and nothing of it is kept or shown here.

    Args:
        image: name or id of an image that the engine has.
        registry: host, port and path below which it is put, e.g. "registry.example:5000/team".
        client: the engine.
        progress: is told what is done.

    Returns:
        The reference by digest: what a base or a node should name.

    Raises:
        InputError: there is no such image, or no registry can be called so.
        UnreachableError: the engine stops answering.
        LanewiseError: the registry refuses, or has something else.
    """
    if not _REGISTRY.fullmatch(registry):
        raise InputError(
            f"{_without_user(registry)!r} is no registry",
            expected="host, port and path, e.g. registry.example:5000/team, without user and password",
            todo="log in with docker login, and name the registry alone",
        )
    found = _image(image, client)
    name, tag = _named(found, image)
    repository = f"{registry}/{name}"
    reference = f"{repository}:{tag}"
    had = present(reference, client)
    with asking(f"push {reference}", todo=LOG_IN):
        client.api.tag(str(found.id), repository, tag)
        try:
            digest = _pushed(client, repository, tag, progress)
            there = str(client.images.get_registry_data(reference).id)
        finally:
            if had is None:  # the name was for the push alone
                client.images.remove(reference, noprune=True)
    if there != digest:
        raise LanewiseError(
            f"{reference} is {there} in the registry",
            expected=f"{digest}, which was pushed",
            todo="find out who else pushes there, and push again",
        )
    return f"{repository}@{digest}"


def _without_user(text: str) -> str:
    return text.rpartition("@")[2][:100]


def _image(image: str, client: DockerClient) -> Image:
    if not (found := present(image, client)):
        raise InputError(
            f"the engine has no image {image[:100]!r}",
            expected="a name or id that docker image ls shows",
            todo="./inv build-image builds one",
        )
    return found


def _named(found: Image, asked: str) -> tuple[str, str]:
    """Name and tag that an image is to have elsewhere: as asked for, or, of one that was named by its id, its own."""
    known = [str(tag) for tag in found.tags]
    name = asked if asked in known else next(iter(known), "")
    if not _REFERENCE.fullmatch(name):
        raise InputError(
            f"image {asked[:100]!r} has no name", expected="a tagged image", todo="name it with docker tag"
        )
    repository, _, tag = name.rpartition(":")
    return repository, tag


def _pushed(client: DockerClient, repository: str, tag: str, progress: Progress) -> str:
    """The digest that the engine computed."""
    digest = ""
    events: Iterable[dict[str, Any]] = client.api.push(repository, tag=tag, stream=True, decode=True)
    for event in events:
        if "error" in event:
            raise refused(f"push {repository}:{tag}", str(event["error"]), todo=LOG_IN)
        digest = str((event.get("aux") or {}).get("Digest") or digest)
        if event.get("status") and "progressDetail" not in event:
            progress(short(str(event["status"])))
    if not digest:
        raise refused(f"push {repository}:{tag}", "the engine ended and named no digest")
    return digest


@dataclass(frozen=True, kw_only=True)
class Sent:
    """How sending to one node ended.

    Attributes:
        host: the node.
        unreachable: whether the way to it failed, rather than something on it.
        problem: what failed; "" where the node has the image.
    """

    host: str
    unreachable: bool = False
    problem: str = ""


def send(image: str, hosts: Sequence[str], client: DockerClient, progress: Progress) -> None:
    """Send an image to nodes over ssh: `docker load` there reads what `docker save` writes here, with no file between.

    A node that has it already is sent nothing. That it has it is read from its engine: the sha256 of every layer's
    content, which an engine computes of what it loads, and the image's labels and environment.

    Args:
        image: name of an image that the engine has.
        hosts: as ssh takes them, e.g. "user@node1".
        client: the engine.
        progress: is told what is done.

    Raises:
        InputError: there is no such image, or no host can be called so.
        UnreachableError: a node could not be reached; the others have the image.
        LanewiseError: a node did not take it; the others have the image.
    """
    if wrong := [host for host in hosts if not _HOST.fullmatch(host)]:
        raise InputError(f"{wrong[0][:100]!r} is no host", expected="as ssh takes it", todo="correct the inventory")
    found = _image(image, client)
    name = ":".join(_named(found, image))
    results = []
    for host in hosts:
        progress(f"{name} to {host}")
        results.append(_sent(name, found, host, progress))
        progress(f"{host}: {results[-1].problem or 'has it'}")
    failed = [result for result in results if result.problem]
    if not failed:
        return
    error = UnreachableError if any(result.unreachable for result in failed) else LanewiseError
    raise error(
        f"{len(failed)} of {len(hosts)} nodes did not get {name}: "
        + "; ".join(f"{result.host}: {result.problem}" for result in failed),
        expected="nodes that ssh reaches without a password, with an engine that this user may use, and room",
        todo="mend what is named, and call again: nodes that have the image are sent nothing",
    )


def _sent(name: str, image: Image, host: str, progress: Progress) -> Sent:
    code, said, problem = _remote(host, ["docker", "image", "inspect", name])
    if code == _SSH_FAILED:
        return Sent(host=host, unreachable=True, problem=problem)
    if not code and _same(said, image):
        return Sent(host=host)
    with asking(f"read {name} out of the engine"):
        code, problem = _streamed(host, image.save(named=name), progress)
    if code:
        return Sent(host=host, unreachable=code == _SSH_FAILED, problem=problem)
    code, said, problem = _remote(host, ["docker", "image", "inspect", name])
    if code:
        return Sent(host=host, unreachable=code == _SSH_FAILED, problem=problem)
    return Sent(host=host, problem="" if _same(said, image) else "what it loaded is not what was sent")


def _same(said: str, image: Image) -> bool:
    """Whether a node's `docker image inspect` shows this image.

    Its id is not compared: engines that keep images in containerd have another kind of id.
    """
    try:
        theirs = json.loads(said)[0]
        return _content(theirs) == _content(image.attrs)
    except (ValueError, LookupError, TypeError):
        return False


def _content(attributes: dict[str, Any]) -> tuple[list[str], dict[str, str], set[str]]:
    config = attributes["Config"]
    return attributes["RootFS"]["Layers"], config["Labels"] or {}, set(config["Env"] or ())


def _remote(host: str, command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output, and the end of what it complained of."""
    try:
        done = subprocess.run(
            [*_SSH, "--", host, *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return _SSH_FAILED, "", "no answer within 120 s"
    except OSError as error:
        return _SSH_FAILED, "", f"ssh cannot be started ({error.strerror})"
    complaint = short(done.stderr.decode(errors="replace")) or f"{command[0]} ended with {done.returncode}"
    return done.returncode, done.stdout.decode(errors="replace"), complaint


def _streamed(host: str, pieces: Iterable[bytes], progress: Progress) -> tuple[int, str]:
    """Pour an archive into the node's `docker load`: its exit code, and what it complained of."""
    command = [*_SSH, "--", host, "docker", "load", "--quiet"]
    with (
        tempfile.TemporaryFile() as complaints,  # a pipe that nobody reads would block it
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints) as process,
    ):
        assert process.stdin
        try:
            _pour(pieces, process.stdin, host, progress)
            process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return _SSH_FAILED, f"docker load did not end within {_SECONDS} s"
        except BaseException:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
            raise
        complaints.seek(0)
        said = short(complaints.read().decode(errors="replace"))
    return process.returncode, said or f"docker load ended with {process.returncode}"


def _pour(pieces: Iterable[bytes], pipe: IO[bytes], host: str, progress: Progress) -> None:
    sent, told = 0, 0
    try:
        for piece in pieces:
            pipe.write(piece)
            sent += len(piece)
            if sent - told >= _PROGRESS_BYTES:
                told = sent
                progress(f"{host}: {sent / 1e9:.1f} GB")
        pipe.close()
    except BrokenPipeError:  # it ended early; its exit code and its complaint say why
        with suppress(BrokenPipeError):
            pipe.close()
