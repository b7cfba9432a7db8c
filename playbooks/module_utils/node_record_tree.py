"""How the node record reads: one root file system within bounds, parsers of its values, and what must not be told."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
LIMIT = 64 * 1024  # bytes read of a file or of a command's output, entries of a folder: odd ones cost no more than this
FAULTS = (
    OSError,
    ValueError,
    LookupError,
    AttributeError,  # a call that this system does not have, or a JSON value of another kind
    TypeError,  # the latter as well
    RecursionError,  # JSON nested without end
)
PRIVATE = re.compile(
    r"""(?P<kept>(?:uuid|machine[_-]id|passw\w*|secret|token|key|credential\w*|initiator|netroot|bootif)=
          | /dev/disk/by-\w*id/) (?:"[^"]*"|\S+)
      | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}  # UUID
      | \b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b  # MAC address
      | \b[0-9a-f]{32}\b""",
    re.IGNORECASE | re.VERBOSE,
)

Parser = Callable[[str], Any]
Files = dict[str, tuple[str, Parser]]  # field: file, parser


class Tree:
    """One root file system, read within bounds; keeps the reason of each field that could not be read.

    Attributes:
        live: whether it is this machine's own, so that commands and calls tell of it as well.
        root: where it lies.
        unread: the fields that are unknown, each with its reason.
    """

    def __init__(self, root: str | None) -> None:
        self.live = root is None
        self.root = Path(os.path.realpath(root or "/"))
        self.unread: list[dict[str, str]] = []

    def path(self, name: str) -> Path:
        """Where `name` lies; below another root, a link that leads out of it (into this machine) is refused."""
        path = self.root / name
        if not self.live and not Path(os.path.realpath(path)).is_relative_to(self.root):
            raise ValueError(f"/{name} leads out of the root")
        return path

    def data(self, name: str, limit: int) -> bytes:
        """The first bytes of a regular file: opening a pipe could hang, opening a device could do anything."""
        path = self.path(name)
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(f"/{name} is not a regular file")
        with path.open("rb") as file:
            return file.read(limit)

    def text(self, name: str) -> str:
        """The first 64 KiB of a regular file."""
        return self.data(name, LIMIT).decode(errors="replace")

    def whole(self, name: str, limit: int = LIMIT) -> str:
        """All of a regular file of which a part would say something else than the whole."""
        data = self.data(name, limit + 1)
        if len(data) > limit:
            raise ValueError(f"/{name} is larger than {limit} bytes")
        return data.decode(errors="replace")

    def names(self, name: str) -> list[str]:
        """The sorted names in a directory."""
        names = os.listdir(self.path(name))  # noqa: PTH208 - iterdir makes a Path of each of a thousand names
        if len(names) > LIMIT:
            raise ValueError(f"/{name} holds more than {LIMIT} entries")
        return sorted(names)

    def link(self, name: str) -> Path:
        """What a symbolic link says, without following it."""
        parent, _, leaf = name.rpartition("/")
        return (self.path(parent) / leaf).readlink()

    def holds(self, name: str) -> bool:
        """Whether there is a directory of this name, so that what is missing in it is known to be missing."""
        try:
            return os.path.isdir(self.path(name))  # noqa: PTH112 - Path.is_dir raises where it may not look
        except ValueError:
            return False

    def own(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """What a call says of this process, which says nothing about another root."""
        if not self.live:
            raise ValueError("a fact of the running process, not of another root")
        return call()

    def ask(self, field: str, call: Callable[..., Any], *arguments: Any, optional: bool = False) -> Any:  # noqa: ANN401
        """What `call` returns; None where a file of an optional field is not there, else "unknown" where it fails."""
        try:
            return call(*arguments)
        except FAULTS as error:
            if optional and isinstance(error, FileNotFoundError):
                return None
            if not isinstance(error, OSError) or not error.filename:
                return self.note(field, str(error))
            name = str(error.filename)
            return self.note(field, f"{name if self.live else name.removeprefix(str(self.root))}: {error.strerror}")

    def take(self, field: str, name: str, parse: Parser, *, optional: bool = False) -> Any:  # noqa: ANN401
        """The value of one file."""
        return self.ask(field, lambda: parse(self.text(name)), optional=optional)

    def table(self, field: str, directory: str, files: Files, *, optional: bool = False) -> dict[str, Any]:
        """The values of some files of one directory."""
        return {
            key: self.take(f"{field}.{key}", f"{directory}/{name}", parse, optional=optional)
            for key, (name, parse) in files.items()
        }

    def note(self, field: str, reason: str) -> str:
        """Record why a field is unknown; returns "unknown"."""
        self.unread.append({"field": field, "reason": redacted(reason)})
        return UNKNOWN


# parsers: a value from text, or ValueError


def redacted(text: str) -> str:
    """`text` without what tells one machine or person from another, and without secrets."""
    return PRIVATE.sub(lambda found: f"{found['kept'] or ''}<redacted>", text)


def line_of_text(text: str) -> str:
    """One printable line, also an empty one."""
    line = text.strip()
    if len(line) > 4096 or not line.isprintable() or "\ufffd" in line:
        raise ValueError(f"not one line of text: {line[:40]!r}")
    return line


def word(text: str) -> str:
    """One printable line that is not empty."""
    if not text.strip():
        raise ValueError("not one line of text: ''")
    return line_of_text(text)


def form(pattern: str, value: Parser = str) -> Parser:
    """A parser of text that has this form; the value is made of its one group."""

    def parse(text: str) -> Any:  # noqa: ANN401
        found = re.fullmatch(pattern, text.strip())
        if not found:
            raise ValueError(f"not in the expected form: {text.strip()[:40]!r}")
        return value(found[1])

    return parse


def line(key: str, parse: Parser, mark: str = ":") -> Parser:
    """A parser of the first line `key: value`."""

    def parse_line(text: str) -> Any:  # noqa: ANN401
        found = re.search(rf"^{key}[ \t]*{mark}(.*)$", text, re.MULTILINE)
        if not found:
            raise ValueError(f"no line {key!r}")
        return parse(found[1])

    return parse_line


integer = form("([0-9]{1,18})", int)
chosen = form(r"(?:[a-z_+-]+ +)*\[([a-z_+-]+)\](?: +[a-z_+-]+)*")  # the one in brackets: always [madvise] never
