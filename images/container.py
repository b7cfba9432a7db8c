"""A container image's file system as a stream: a container is made of it, never started, exported and removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from images.contents import Stream
from images.engine_errors import asking, short
from lanewise.engine import engine_state
from lanewise.errors import InputError, UnreachableError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

_SECONDS = 600
"""Without a byte for so long, an export is given up; the engine first mounts all layers."""


class Chunks:
    """Joins the pieces in which an engine sends data to a stream."""

    def __init__(self, pieces: Iterator[bytes], what: str) -> None:
        self._pieces = pieces
        self._what = what
        self._left = b""

    def read(self, size: int, /) -> bytes:
        """See Stream; what the engine raises is raised as `asking` says."""
        while not self._left:
            with asking(self._what):
                self._left = next(self._pieces, b"")
            if not self._left:
                return b""
        part, self._left = self._left[:size], self._left[size:]
        return part


@contextmanager
def exported(image: str) -> Iterator[Stream]:
    """The image's file system as an uncompressed tar archive.

    Raises:
        UnreachableError: no container engine answers.
        InputError: the engine does not have the image.
        LanewiseError: the engine refuses.
    """
    shown = image[:300]
    state = engine_state()
    if not state.present:
        raise UnreachableError(
            f"cannot read the container image {shown!r}: {state.detail}",
            expected="a Docker or Podman engine at DOCKER_HOST or the default socket",
            todo="start it, or audit a file: docker export of a container, a wheel, a folder",
        )
    import docker  # noqa: PLC0415 - a quarter of a second that only this needs

    what = f"export the container image {shown!r}"
    client = docker.from_env(timeout=_SECONDS)
    try:
        with asking(what):
            container = _created(client, image)
        try:
            with asking(what):
                pieces = cast("Iterator[bytes]", container.export())  # the stubs say str
            yield Chunks(pieces, what)
        finally:
            with asking(f"remove the container made of {shown!r}"):
                container.remove(force=True)
    finally:
        client.close()


def _created(client: DockerClient, image: str) -> Container:
    from docker.errors import APIError, ImageNotFound  # noqa: PLC0415 - as above

    try:
        return client.containers.create(image, command=["never-started"])
    except ImageNotFound as error:
        raise InputError(
            f"there is no file {image[:300]!r}, and the engine has no image of that name",
            expected="an image that docker image ls lists",
            todo=f"docker pull {image[:300]}, or correct the name",
        ) from error
    except APIError as error:
        if error.status_code != HTTPStatus.BAD_REQUEST:
            raise
        raise InputError(
            f"there is no file {image[:300]!r}, and no image can have that name ({short(str(error.explanation))})",
            expected="a path, or an image that docker image ls lists",
            todo="correct the name",
        ) from error
