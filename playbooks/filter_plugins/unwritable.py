"""Filters for the roles' preflight: what of a role's input could not be written to a configuration file as it is meant.

Each returns the names, or words, that are refused; an empty list where all is well. Values have to be text: YAML's
`on` is true, and what a file would then say is anybody's guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_WORD = "[A-Za-z0-9._,:;=+/@-]+"
_TEXT = r"[^\s\"'\\$`%]+"
"""No blanks, quotes or backslashes, nor what GRUB's shell or tmpfiles.d would replace."""
_MODULE = "[a-z0-9_]+"
_OPTION = "[A-Za-z0-9_.]+"
_NCCL_NAME = "NCCL_[A-Z0-9_]+"
_NCCL_VALUE = r"[^\s]([^\r\n\0]*[^\s])?"
"""NCCL trims nothing: a blank at either end would become part of the value (src/misc/param.cc)."""
WORKLOAD = "[a-z0-9][a-z0-9_-]{0,62}"
"""The name of a workload: it becomes a file's."""
_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+:~-]*[0-9][0-9A-Za-z.+:~-]*|[0-9]+"
_UNPINNED = {"latest", "present", "*"}


def unwritable_words(words: Iterable[Any]) -> list[str]:
    """Words of a kernel command line that are not plain."""
    return [str(word) for word in words if not _matches(_WORD, word)]


def unwritable_values(values: Mapping[Any, Any], names: str, value: str = _TEXT) -> list[str]:
    """Names that do not match `names`, or whose value does not match `value` (regular expressions, whole text)."""
    return [str(name) for name, text in values.items() if not (_matches(names, name) and _matches(value, text))]


def unwritable_options(modules: Mapping[Any, Any]) -> list[str]:
    """Modules, and options of them as module.option, that modprobe.d could not hold."""
    wrong = [str(module) for module, options in modules.items() if not isinstance(options, Mapping)]
    for module, options in modules.items():
        if isinstance(options, Mapping):
            wrong += [str(module)] if not _matches(_MODULE, module) else []
            wrong += [f"{module}.{name}" for name in unwritable_values(options, _OPTION)]
    return wrong


def unwritable_nccl(settings: Mapping[Any, Any]) -> list[str]:
    """NCCL settings whose name is no NCCL_ name, or whose value NCCL would not read back as it is."""
    return unwritable_values(settings, _NCCL_NAME, _NCCL_VALUE)


def unwritable_workloads(workloads: Mapping[Any, Any]) -> list[str]:
    """Workloads without settings, a reason or an expiry, or with a name that is no file name; and their settings."""
    wrong = []
    for name, workload in workloads.items():
        told = workload if isinstance(workload, Mapping) else {}
        settings = told.get("settings")
        texts = [told.get("reason"), told.get("expires")]
        if not (_matches(WORKLOAD, name) and isinstance(settings, Mapping) and all(map(_is_line, texts))):
            wrong.append(str(name))
        else:
            wrong += [f"{name}.{setting}" for setting in unwritable_nccl(settings)]
    return wrong


def unpinned_packages(packages: Mapping[Any, Any]) -> list[str]:
    """Packages that are not pinned to one version as dpkg writes versions."""
    return [
        str(name)
        for name, version in packages.items()
        if not (_matches("[a-z0-9][a-z0-9.+-]+", name) and _matches(_VERSION, version)) or version in _UNPINNED
    ]


def _matches(pattern: str, text: Any) -> bool:  # noqa: ANN401 - whatever YAML gave
    return isinstance(text, str) and re.fullmatch(pattern, text) is not None


def _is_line(text: Any) -> bool:  # noqa: ANN401 - as above
    return isinstance(text, str) and text.strip() != "" and text.isprintable()


class FilterModule:
    """What Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """The filters by name."""
        return {
            "unwritable_words": unwritable_words,
            "unwritable_values": unwritable_values,
            "unwritable_options": unwritable_options,
            "unwritable_nccl": unwritable_nccl,
            "unwritable_workloads": unwritable_workloads,
            "unpinned_packages": unpinned_packages,
        }
