"""The argument vector that starts a server: on this machine, or in a container of an image."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from lanewise.errors import InputError
from tuning.containers import in_container
from tuning.plan import Environment

_MODEL_FLAGS = ("--model-path", "--speculative-draft-model-path", "--tokenizer-path", "--speculative-token-map")
"""Flags whose value may be a path of this machine."""
_HUB_CACHE = "snapshots"
"""Folder of the Hugging Face cache whose entries hold links to files beside it (models--ORG--NAME/blobs)."""
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - within the container, of which only one port is published, on loopback


def server_command(
    environment: Environment,
    argv: Sequence[str],
    *,
    variables: Mapping[str, str],
    port: int,
    scratch: Path | None = None,
) -> list[str]:
    """The argument vector that starts a server.

    Args:
        environment: interpreter, or image and its Python.
        argv: the server's arguments. A model's path is made absolute; a name is left to SGLang, which has it in the
            hub's cache or fetches it. In an image only paths are allowed, and mounted there for reading.
        variables: of an image: what the server's environment holds beside the image's own.
        port: of an image: the HTTP port, the same inside and here.
        scratch: of an image: the folder that it may write to, as `in_container` has it.

    Raises:
        InputError: a model or the interpreter is missing, or a model of an image is no path of this machine.
    """
    models = {at: _model(flag, argv[at], environment) for at, flag in enumerate(argv[:-1], 1) if flag in _MODEL_FLAGS}
    words = [str(models.get(at, word)) for at, word in enumerate(argv)]
    inside = [environment.python, "-m", "sglang.launch_server", *words]
    if environment.image:
        mounts = list(dict.fromkeys(_mount(path) for path in models.values()))
        inside += ["--host", _ANY_ADDRESS]
        return in_container(
            inside,
            environment,
            variables=variables,
            files=[],
            gpus=True,
            publish=port,
            mounts=mounts,
            scratch=scratch,
        )
    if not shutil.which(environment.python):
        raise InputError(
            f"environment {environment.name} has no Python at {environment.python}",
            expected="an interpreter with sglang",
            todo="name one with --python",
        )
    return inside


def _model(flag: str, value: str, environment: Environment) -> Path:
    """An absolute path where it is one, the name as a path where it is a name."""
    path = Path(value).expanduser()
    if path.exists():
        return path.absolute()
    if environment.image:
        raise InputError(
            f"{flag} is {value!r}, which is not on this machine",
            expected="in an image, a path of this machine: it is mounted there, and nothing is downloaded",
            todo="fetch the model, and name its folder",
        )
    if value.startswith(("/", ".", "~")):
        raise InputError(f"there is no model {value}", expected="a folder with config.json", todo="check the path")
    return path


def _mount(path: Path) -> Path:
    return path.parent.parent if path.parent.name == _HUB_CACHE else path
