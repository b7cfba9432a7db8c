"""The container images that launches run in: found by what a person calls them, and what a run file says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lanewise.engine import connected
from lanewise.errors import InputError
from tuning.workload import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from docker import DockerClient

PYTHON = "/opt/lanewise/bin/python3"
"""The interpreter of the images that `./inv build-image` makes."""
RANKS = ("core", "full")
"""Profiles of a toolchain's image for ranks, the one to measure with first: what is measured is in both."""
SERVERS = ("full",)
"""Profiles that hold SGLang."""
_LABELS = "lanewise."
_MOST_LABEL = 4096


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image as the engine has it.

    Attributes:
        id: "sha256:...".
        tags: its names.
        labels: those of this toolkit, by their names without "lanewise.": toolchain, plan, archs and others.
    """

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]

    def to_dict(self, redact: Callable[[str], str]) -> dict[str, Any]:
        """As it stands in a run file."""
        labels = {name: redact(value)[:_MOST_LABEL] for name, value in sorted(self.labels.items())}
        return {"id": self.id, "tags": list(self.tags), "labels": labels}


def find_image(reference: str) -> Image:
    """The image of a name, tag or identifier.

    Raises:
        InputError: the engine has none of that name.
        UnreachableError: no engine answers.
    """
    with connected(f"run image {short(reference)}") as client:
        if image := _image(client, reference):
            return image
    raise InputError(
        f"the engine has no image {short(reference)}",
        expected="one that `docker image ls` lists; nothing is pulled",
        todo="pull or build it, or correct the name",
    )


def toolchain_image(toolchain: str, profiles: Sequence[str] = RANKS) -> Image:
    """The image that `./inv build-image` made of a toolchain, of the first of these profiles that there is.

    Raises:
        InputError: the engine has none.
        UnreachableError: no engine answers.
    """
    if found := toolchain_images([toolchain], profiles):
        return found[toolchain]
    raise InputError(
        f"the engine has no image of toolchain {short(toolchain)}",
        expected=" or ".join(_tag(toolchain, profile) for profile in profiles),
        todo=f"./inv build-image --toolchain {toolchain}",
    )


def toolchain_images(toolchains: Iterable[str], profiles: Sequence[str] = RANKS) -> dict[str, Image]:
    """The images of those toolchains that have one, as `toolchain_image`.

    Raises:
        UnreachableError: no engine answers.
    """
    with connected("look for the toolchains' images") as client:
        found = {
            name: [image for profile in profiles if (image := _image(client, _tag(name, profile)))]
            for name in toolchains
        }
    return {name: images[0] for name, images in found.items() if images}


def _tag(toolchain: str, profile: str) -> str:
    return f"lanewise/{toolchain}:{profile}"


def _image(client: DockerClient, reference: str) -> Image | None:
    from docker.errors import APIError  # noqa: PLC0415 - only a machine with an engine has to spend the time

    try:
        found = client.images.get(reference)
    except ValueError:  # nothing is named
        return None
    except APIError as error:
        if error.is_client_error():  # not found, or no name that an image could have
            return None
        raise
    labels = {
        name.removeprefix(_LABELS): str(value) for name, value in found.labels.items() if name.startswith(_LABELS)
    }
    return Image(id=str(found.id), tags=tuple(found.tags), labels=labels)
