"""What an environment holds, on this machine or in an image: read where its ranks will run, for a run's header."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lanewise.errors import InputError
from lanewise.redact import Redactor, redact_environment
from tuning.contained import FOLDER
from tuning.container_images import find_image
from tuning.containers import GRACE_SECONDS, in_container
from tuning.nccl_settings import NcclSetting, conf_files, effective_settings, merged_settings, parse_conf
from tuning.plan import Environment
from tuning.printed import Printed, printed
from tuning.scratch import new_scratch
from tuning.trial import is_plain, mapping

_DESCRIBE = Path(__file__).parent / "workers/describe.py"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_WORDS = 300


def describe_environment(environment: Environment, redact: Redactor) -> dict[str, Any]:
    """Python, library versions and effective NCCL settings of an environment; of an image also which one it is.

    Raises:
        InputError: its Python does not run, its image is gone, or the container engine runs on another machine.
        UnreachableError: it has an image, and no engine answers.
    """
    described, settings = (_of_image if environment.image else _of_host)(environment, redact)
    # As lists and dictionaries, like what a run file gives back, so that the two compare.
    nccl = json.loads(json.dumps([asdict(setting) for setting in settings]))
    return {**described, "variables": redact_environment(environment.variables), "nccl": nccl}


def without_tags(described: dict[str, Any]) -> dict[str, Any]:
    """The same without the image's names, which may move on to another image while this one stays what it is."""
    if not isinstance(image := described.get("image"), dict):
        return described
    return described | {"image": {name: value for name, value in image.items() if name != "tags"}}


def _of_host(environment: Environment, redact: Redactor) -> tuple[dict[str, Any], tuple[NcclSetting, ...]]:
    seen = {**os.environ, **environment.variables}
    described = printed([environment.python, str(_DESCRIBE)], environment=seen).json()
    if described is None:
        raise InputError(
            f"environment {environment.name}: {environment.python} does not run {_DESCRIBE.name}",
            expected="a Python interpreter",
            todo=f"try `{environment.python} --version`",
        )
    return described, effective_settings(seen, conf_files(seen), redact)


def _of_image(environment: Environment, redact: Redactor) -> tuple[dict[str, Any], tuple[NcclSetting, ...]]:
    image = find_image(environment.image)
    inside = [environment.python, str(FOLDER / _DESCRIBE.name), "image"]
    command = in_container(inside, environment, variables=environment.variables, files=[_DESCRIBE], gpus=False)
    seen = printed(command, scratch=new_scratch(), grace=GRACE_SECONDS)
    try:
        document = mapping(seen.json())
        described = {name: document[name] for name in ("python", "implementation")}
        described["libraries"] = {str(name): str(version) for name, version in mapping(document["libraries"]).items()}
        variables = {str(name): str(value) for name, value in mapping(document["nccl_variables"]).items()}
        files = [(str(file), parse_conf(str(text))) for file, text in mapping(document["nccl_files"]).items()]
        described["image"] = image.to_dict(redact)
        if not is_plain(described):
            raise ValueError("a value that cannot be stored")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"environment {environment.name}: {environment.python} does not run {_DESCRIBE.name} in the image "
            f"({redact(_reason(seen))})",
            expected="an image with a Python 3 there",
            todo=f'name another with --environment "{environment.name} image=IMAGE python=PATH"',
        ) from error
    _require_same_machine(environment, document.get("machine"))
    return described, merged_settings([("environment", variables), *files], redact)


def _reason(seen: Printed) -> str:
    """Why it printed no description, as far as it said so."""
    last = next((line for line in reversed(seen.lines) if line.strip()), "it printed nothing")
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        last = str(json.loads(last.removeprefix("@lanewise "))["reason"])
    return last[:_MOST_WORDS]


def _require_same_machine(environment: Environment, machine: object) -> None:
    """The node record tells what this machine is, so ranks have to run on it."""
    if machine != (here := _BOOT_ID.read_text(encoding="ascii").strip()):
        raise InputError(
            f"environment {environment.name} runs on another machine: the container engine that DOCKER_HOST names is "
            f"not on this one (boot {machine}, here {here})"[:400],
            expected="an engine on the machine that the run file describes",
            todo="call ./inv on that machine, or unset DOCKER_HOST",
        )
