"""The image that builder containers are made of: a base with the Debian packages that a component's build needs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from images.context import ContextFile, tar_stream
from images.engine_work import Progress, build, present

if TYPE_CHECKING:
    from docker import DockerClient

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def dockerfile(base_image: str, packages: Sequence[str]) -> str:
    """Its Dockerfile."""
    names = " ".join(sorted(packages))
    install = (
        "RUN apt-get update -qq"
        f" && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends {names}"
        " && rm -rf /var/lib/apt/lists/*\n"
    )
    return f"FROM {base_image}\n{install if packages else ''}LABEL lanewise.builder={json.dumps(names)}\n"


def builder_image(base_image: str, packages: Sequence[str], client: DockerClient, progress: Progress) -> str:
    """The builder image's id; it is made where the engine does not have it, and kept under a name of its own.

    Args:
        base_image: id of the image that it starts from.
        packages: Debian packages.
        client: the engine.
        progress: is told what apt says.

    Raises:
        UnreachableError, LanewiseError: the engine stops answering, or a package cannot be installed.
    """
    text = dockerfile(base_image, packages)
    name = f"lanewise/builder:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if (found := present(name, client)) and found.id:
        return str(found.id)
    progress("making a builder image: " + ", ".join(sorted(packages)))
    return build(
        client,
        tar_stream([ContextFile(path="Dockerfile", content=text.encode())]),
        what="make a builder image (its base needs apt-get, and a mirror that answers)",
        arguments={name: os.environ[name] for name in _PROXIES if name in os.environ},
        network="default",
        progress=progress,
        tag=name,
    )
