"""From what a user names to environments: this machine's interpreters, container images, toolchains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from lanewise.errors import InputError
from lanewise.redact import Redactor, is_secret
from tuning.container_images import PYTHON, RANKS, find_image, toolchain_image
from tuning.plan import Environment

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)


def asked_environments(
    texts: Sequence[str] = (),
    *,
    images: Sequence[str] = (),
    toolchains: Sequence[str] = (),
    python: str,
    host_python: Callable[[], str],
    profiles: Sequence[str] = RANKS,
) -> tuple[Environment, ...]:
    """All environments that a user names, images by their identifiers; "host", this machine, where none is named.

    Args:
        texts: as `parse_environment` reads them; `image=` names an image.
        images: references of images; the environment is called like the image.
        toolchains: names of toolchains, for the images that `./inv build-image` made of them.
        python: interpreter of all that name none, or "".
        host_python: asked for the interpreter of environments of this machine where `python` is "".
        profiles: of toolchains' images, the one to take first.

    Raises:
        InputError: a text is wrong, or there is no such image.
        UnreachableError: an image is named and no engine answers.
    """
    given = [parse_environment(text) for text in texts or ([] if images or toolchains else ["host"])]
    given += [Environment(name=_name_of(image), python="", image=image) for image in images]
    found = [replace(env, image=find_image(env.image).id) if env.image else env for env in given]
    found += [Environment(name=name, python="", image=toolchain_image(name, profiles).id) for name in toolchains]
    return tuple(
        env if env.python else replace(env, python=python or (PYTHON if env.image else host_python())) for env in found
    )


def parse_environment(text: str) -> Environment:
    """An environment from "NAME [image=IMAGE] [python=PATH] [VARIABLE=VALUE ...]", words as a shell splits them.

    Its image is as typed, and its Python "" where none is given.

    Raises:
        InputError: no name, a name that is not allowed, or a word that is no assignment.
    """
    try:
        name, *settings = shlex.split(text) or [""]
    except ValueError as error:
        raise _bad_environment(text, str(error)) from error
    if not _NAME.fullmatch(name):
        raise _bad_environment(text, f"{name!r} is no name")
    if wrong := [word for word in settings if not _ASSIGNMENT.match(word)]:
        raise _bad_environment(text, f"{wrong[0]!r} is no assignment")
    variables = dict(word.split("=", 1) for word in settings)
    if hidden := [name for name, value in variables.items() if is_secret(name) or Redactor({})(value) != value]:
        raise InputError(
            f"--environment gives {', '.join(hidden)}, which looks like a secret",
            expected="nothing that must not stand in a run file",
            todo="set it in the environment of ./inv: ranks on this machine inherit that, and it is not stored",
        )
    python, image = variables.pop("python", ""), variables.pop("image", "")
    return Environment(name=name, python=python, image=image, variables=variables)


def _bad_environment(text: str, why: str) -> InputError:
    return InputError(
        f"--environment is {text!r}: {why}",
        expected='"NAME [image=IMAGE] [python=PATH] [VARIABLE=VALUE ...]", '
        "the name of letters, digits, '.', '_' and '-'",
        todo='for example --environment "tcp OMPI_MCA_btl=self,tcp"',
    )


def _name_of(image: str) -> str:
    """What an environment is called after an image's reference: "lanewise/cu130:core" gives "lanewise-cu130-core"."""
    return _NO_NAME.sub("-", image).strip("-._")[:64]


def spelled(environment: Environment) -> str:
    """An environment as `parse_environment` reads it."""
    image = {"image": environment.image} if environment.image else {}
    words = {"python": environment.python, **image, **environment.variables}
    return " ".join([environment.name, *(shlex.quote(f"{name}={value}") for name, value in words.items())])
