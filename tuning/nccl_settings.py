"""The NCCL settings in force: the environment and NCCL's own files, with where each value came from."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lanewise.redact import is_secret

_MAX_FILE_BYTES = 1 << 20
_MAX_VALUE = 1023
"""NCCL cuts names and values after so many characters (src/misc/param.cc)."""


@dataclass(frozen=True, kw_only=True)
class NcclSetting:
    """One variable as NCCL will see it.

    Attributes:
        name: e.g. "NCCL_ALGO".
        value: the value in force.
        source: "environment", or the file that set it.
        hidden: "source: value" of places that also set it and lost.
    """

    name: str
    value: str
    source: str
    hidden: tuple[str, ...] = ()


def conf_files(environment: Mapping[str, str], system_file: Path = Path("/etc/nccl.conf")) -> list[Path]:
    """NCCL's files in the order in which they are read; the first that sets a variable wins.

    $NCCL_CONF_FILE (since 2.23) replaces ~/.nccl.conf; /etc/nccl.conf comes last. The home folder is the user
    database's, not $HOME. Source: NCCL user guide, "Environment Variables", and src/misc/param.cc.
    """
    own = environment.get("NCCL_CONF_FILE")
    try:
        home = [Path(pwd.getpwuid(os.getuid()).pw_dir) / ".nccl.conf"]
    except KeyError:  # a user without an entry, as containers run them
        home = []
    return [*([Path(own)] if own else home), system_file]


def parse_conf(text: str) -> dict[str, str]:
    """NAME=value lines exactly as NCCL reads them: no blanks are trimmed, '#' comments only at a line's start."""
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(name[:_MAX_VALUE], value[:_MAX_VALUE])
    return settings


def effective_settings(
    environment: Mapping[str, str], files: Iterable[Path], redact: Callable[[str], str] = str
) -> tuple[NcclSetting, ...]:
    """Every NCCL_ variable in force for a process with that environment, sorted by name.

    A file that cannot be read is reported as a setting named after it with the value "unknown". Values pass through
    `redact`; those of names that are a secret's are never told.
    """
    places: list[tuple[str, Mapping[str, str]]] = [("environment", environment)]
    unread: list[NcclSetting] = []
    for path in files:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                places.append((str(path), parse_conf(file.read(_MAX_FILE_BYTES))))
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(NcclSetting(name=str(path), value="unknown", source=f"cannot be read: {error.strerror}"))
    return (*merged_settings(places, redact), *unread)


def merged_settings(
    places: Sequence[tuple[str, Mapping[str, str]]], redact: Callable[[str], str] = str
) -> tuple[NcclSetting, ...]:
    """The NCCL_ variables that places set, sorted by name; the first that sets one wins. Values as above."""

    def shown(name: str, value: str) -> str:
        return "<redacted>" if is_secret(name) else redact(value)

    names = sorted({name for _, settings in places for name in settings if name.startswith("NCCL_")})
    found = []
    for name in names:
        (source, value), *rest = [(place, settings[name]) for place, settings in places if name in settings]
        hidden = tuple(f"{place}: {shown(name, lost)}" for place, lost in rest)
        found.append(NcclSetting(name=name, value=shown(name, value), source=source, hidden=hidden))
    return tuple(found)
