"""Launches in containers: the command that makes one of a launch, and finding containers that outlived their run.

The harness itself never holds a container: `contained.py` does, one a launch, below the supervisor.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tuning.contained import HOST_LABEL, RUN_LABEL
from tuning.plan import Environment
from tuning.scratch import is_abandoned, is_scratch

if TYPE_CHECKING:
    from docker import DockerClient

_CONTAINED = Path(__file__).with_name("contained.py")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the container's own, which goes with it
GRACE_SECONDS = 5.0
"""How long `contained.py` may take to remove its container; the engine needs about 0.1 s."""


def in_container(
    command: Sequence[str],
    environment: Environment,
    *,
    variables: Mapping[str, str],
    files: Sequence[Path],
    gpus: bool,
    publish: int = 0,
    mounts: Sequence[Path] = (),
    scratch: Path | None = None,
) -> list[str]:
    """The argument vector that runs a command in a container of the environment's image.

    Args:
        command: argument vector, with paths as they are in the image.
        environment: which names the image and its Python.
        variables: what the command's environment holds beside the image's own; nothing of this process's is passed on.
        files: copied in. Copied and not mounted: that also works where the engine does not see this file system,
            whatever the files' modes are, and ranks cannot write to the clone.
        gpus: whether it is given all GPUs.
        publish: of a server: the port that it listens on, to be reached at the same port of this machine's loopback.
        mounts: folders of this machine that it may read, at the same paths.
        scratch: a folder of this machine that it may write to, at the same path: made for it in a folder that is
            private, and removed with the container.
    """
    options = ["--image", environment.image, "--python", environment.python, *(["--gpus"] if gpus else [])]
    for name, value in {**variables, "PYTHONDONTWRITEBYTECODE": "1"}.items():
        options += ["--set", f"{name}={value}"]
    for file in files:
        options += ["--file", str(file)]
    options += ["--publish", str(publish)] if publish else []
    for folder in mounts:
        options += ["--mount", str(folder)]
    options += ["--scratch", str(scratch)] if scratch else []
    # -I: nothing of the user's Python environment decides whether the container is removed.
    return [sys.executable, "-I", str(_CONTAINED), *options, "--", *command]


def sweep_abandoned(client: DockerClient) -> list[str]:
    """Remove this machine's containers of launches whose supervisor is gone; the identifiers of those removed.

    There is something to do only where both lifelines failed, e.g. `contained.py` was killed before its container was
    started.
    """
    from docker.errors import APIError  # noqa: PLC0415 - only a machine with an engine has to spend the time

    removed = []
    ours: dict[str, str | list[str] | bool] = {"label": [RUN_LABEL, f"{HOST_LABEL}={platform.node()}"]}
    for container in client.containers.list(all=True, filters=ours, ignore_removed=True):
        folder = Path(container.labels.get(RUN_LABEL, ""))
        if is_scratch(folder) and is_abandoned(folder):
            with suppress(APIError):  # gone, or going
                container.remove(force=True)
                removed.append(str(container.id))
    return removed
