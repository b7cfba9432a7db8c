"""The node record's NCCL settings: the environment and NCCL's own files, with where each value came from.

NCCL's rules: https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc (2.30.7). The first place that sets a
variable wins: the environment, $NCCL_CONF_FILE or else ~/.nccl.conf, /etc/nccl.conf.
"""

from __future__ import annotations

import os
import pwd
import re
from typing import TYPE_CHECKING, Any

from .node_record_tree import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .node_record_tree import Tree

SYSTEM_FILE = "/etc/nccl.conf"
LONGEST = 1023  # NCCL cuts names and values after so many characters
SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|(^|_)(AUTH|KEY)(_|$)", re.IGNORECASE)


def nccl(tree: Tree) -> dict[str, Any]:
    """The record's `nccl`; below another root, what its system file says."""
    return {
        "settings": tree.ask("nccl.settings", _settings, tree),
        "files": tree.ask("nccl.files", lambda: [_plain(name) for name in _files(tree)]),
    }


def _files(tree: Tree) -> list[str]:
    """NCCL's files that exist, in the order in which it reads them."""
    names = [*(_own_file() if tree.live else []), SYSTEM_FILE]
    return [name for name in names if os.path.exists(tree.path(name.lstrip("/")))]  # noqa: PTH110 - never raises


def _own_file() -> list[str]:
    """The user's file; the home folder is the user database's, not $HOME."""
    if named := os.environ.get("NCCL_CONF_FILE"):
        return [os.path.abspath(named)]  # noqa: PTH100 - as NCCL opens it: from the working folder
    try:
        return [f"{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf"]
    except KeyError:  # a user without an entry, as containers run them
        return []


def _settings(tree: Tree) -> list[dict[str, Any]]:
    """Every NCCL_ variable in force, by name; unknown as a whole where a file cannot be read, as it might win."""
    places: list[tuple[str, Mapping[str, str]]] = [("environment", os.environ)] if tree.live else []
    places += [(_plain(name), _parsed(tree.whole(name.lstrip("/")))) for name in _files(tree)]
    names = sorted({name for _, values in places for name in values if name.startswith("NCCL_")})
    return [_setting(name, [(place, values[name]) for place, values in places if name in values]) for name in names]


def _setting(name: str, found: list[tuple[str, str]]) -> dict[str, Any]:
    (source, value), *hidden = [(place, _shown(name, value)) for place, value in found]
    return {
        "name": _plain(name),
        "value": value,
        "source": source,
        "hidden": [f"{place}: {lost}" for place, lost in hidden],
    }


def _parsed(text: str) -> dict[str, str]:
    """NAME=value lines as NCCL reads them: no blanks are trimmed, so that no name in a comment begins with NCCL_."""
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            settings.setdefault(name[:LONGEST], value[:LONGEST])
    return settings


def _shown(name: str, value: str) -> str:
    return "<redacted>" if SECRET.search(name) else redacted(_plain(value))


def _plain(text: str) -> str:
    """`text` without halves of characters, which the environment may hold and no file may."""
    return text.encode(errors="replace").decode()
