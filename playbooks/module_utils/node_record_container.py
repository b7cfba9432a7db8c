"""The node record's container runtime: Docker and its daemon.json, NVIDIA's container toolkit, CDI specifications."""

from __future__ import annotations

import json
import os
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from .node_record_command import printed
from .node_record_tree import form, line, redacted, word

if TYPE_CHECKING:
    from .node_record_tree import Parser, Tree

FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
DAEMON_FILE = "etc/docker/daemon.json"
DAEMON_KEYS = ("default-shm-size", "default-ulimits", "exec-opts", "features", "cdi-spec-dirs")
CDI_FOLDERS = ("etc/cdi", "run/cdi")  # https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
CDI_LIMIT = 1024 * 1024  # bytes: such a file has a list of files for every GPU
MOST_CDI_FILES = 64
DEEPEST = 2  # default-ulimits: a name, its limits
LARGEST = 1 << 64

_docker_version = form(r"(?s)Docker version ([^\s,]+).*")
_toolkit_version = form(r"(?s)NVIDIA Container Toolkit CLI version ([^\s,]+).*")


def container(tree: Tree) -> dict[str, Any]:
    """The record's `container`."""
    toolkit = tree.ask("container.nvidia_toolkit", _version, tree, "nvidia-ctk", _toolkit_version)
    return {"docker": _docker(tree), "nvidia_toolkit": toolkit, "cdi": tree.ask("container.cdi", _cdi, tree)}


def _docker(tree: Tree) -> dict[str, Any]:
    return {
        "present": tree.ask("container.docker.present", lambda: _program(tree, "dockerd") is not None),
        "version": tree.ask("container.docker.version", _version, tree, "dockerd", _docker_version),
        "daemon": tree.ask("container.docker.daemon", _daemon, tree),
    }


def _version(tree: Tree, name: str, parse: Parser) -> Any:  # noqa: ANN401
    """What an installed program calls itself. Docker's daemon is not asked: that can start it, through its socket."""
    program = _program(tree, name)
    return None if program is None else parse(printed(tree, program, "--version"))


def _program(tree: Tree, name: str) -> str | None:
    """Where a program lies in the system's folders; None where it is in none of them."""
    if not any(map(tree.holds, FOLDERS)):
        raise ValueError("no folder of programs, such as /usr/bin")
    found = (folder for folder in FOLDERS if os.path.lexists(tree.path(folder) / name))
    return next((f"/{folder}/{name}" for folder in found), None)


def _daemon(tree: Tree) -> dict[str, Any]:
    """Some settings of daemon.json, and the names of its runtimes; nothing where there is no such file."""
    try:
        settings = _mapping(tree.whole(DAEMON_FILE))
    except FileNotFoundError:
        return {}
    chosen = {key: _bounded(settings[key], DEEPEST) for key in DAEMON_KEYS if key in settings}
    return {**chosen, "runtimes": [word(name) for name in sorted((settings.get("runtimes") or {}).keys())]}


def _mapping(text: str) -> dict[str, Any]:
    document = json.loads(text or "{}")  # Docker takes an empty file
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _bounded(value: object, depth: int) -> object:
    """A setting, redacted; refused where it is nested deeper or larger than any of those recorded."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict) and depth:
        return {redacted(key): _bounded(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list) and depth:
        return [_bounded(inner, depth - 1) for inner in value]
    if value is None or (isinstance(value, int) and abs(value) < LARGEST):
        return value
    raise ValueError("a value that is no setting of Docker's")


def _cdi(tree: Tree) -> list[dict[str, Any]]:
    """The CDI specifications, in the order in which they are searched: a later one of the same device wins."""
    found = []
    for folder in filter(tree.holds, CDI_FOLDERS):
        found += [f"{folder}/{name}" for name in tree.names(folder) if name.endswith((".yaml", ".json"))]
    if len(found) > MOST_CDI_FILES:
        raise ValueError(f"more than {MOST_CDI_FILES} CDI specifications")
    return [_specification(tree, name) for name in found]


def _specification(tree: Tree, name: str) -> dict[str, Any]:
    parsers = JSON_PARSERS if name.endswith(".json") else YAML_PARSERS
    fields = {key: tree.ask(f"container.cdi[/{name}].{key}", _parsed, tree, name, parsers[key]) for key in parsers}
    return {"path": f"/{name}", **fields}


def _parsed(tree: Tree, name: str, parse: Parser) -> Any:  # noqa: ANN401
    return parse(tree.whole(name, CDI_LIMIT))


def _count(text: str) -> int:
    """How many entries the block `devices:` of a YAML file has, as nvidia-ctk writes it; Python brings no YAML."""
    _, found, rest = f"\n{text}".partition("\ndevices:\n")
    if not found:
        raise ValueError("no block 'devices:'")
    block = takewhile(lambda line: not line or line[0] in " -#", rest.split("\n"))
    marks = [found[1] for found in map(re.compile("( *)- ").match, block) if found]
    return marks.count(marks[0]) if marks else 0


YAML_PARSERS: dict[str, Parser] = {"kind": line("kind", lambda text: word(text.strip("\"' \t"))), "devices": _count}
JSON_PARSERS: dict[str, Parser] = {
    "kind": lambda text: word(_mapping(text)["kind"]),
    "devices": lambda text: sum(isinstance(device, dict) for device in _mapping(text)["devices"]),
}
