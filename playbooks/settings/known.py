"""Values that may be unknown, and reading them from a node record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lanewise.errors import InputError

SCHEMA = "lanewise.node-record/1"


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A value that could not be read, and why."""

    reason: str


def is_known(value: object) -> bool:
    """Whether it is a value at all; null is one: the thing is known not to be there."""
    return not isinstance(value, Unknown)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A node record (docs/node-record.md), in which what is missing or "unknown" is an `Unknown` with its reason."""

    document: Mapping[str, Any]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON value, or Unknown
        """The value at a path of dots, such as "cpu.threads"; null where something above it is null."""
        value: Any = self.document
        for key in path.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping) or key not in value:
                return self._unknown(path)
            value = value[key]
        return self._unknown(path) if value == "unknown" else value

    def listed(self, path: str) -> Sequence[Mapping[str, Any]] | Unknown:
        """The objects of a list; anything else in it is passed over."""
        value = self.get(path)
        if isinstance(value, Unknown):
            return value
        if not isinstance(value, list):
            return Unknown(reason=f"the record has no list {path}")
        return [item for item in value if isinstance(item, Mapping)]

    def of(self, item: Mapping[str, Any], key: str, path: str) -> Any:  # noqa: ANN401 - as get
        """A field of one list element; `path` names it as `unread` does, e.g. "pci[0000:41:00.0].numa_node"."""
        value = item.get(key, "unknown")
        return self._unknown(path) if value == "unknown" else value

    def number(self, item: Mapping[str, Any], key: str, path: str) -> Any:  # noqa: ANN401 - as get
        """As `of`, for a number: anything else but null is unknown."""
        value = self.of(item, key, path)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return value if plain or value is None or isinstance(value, Unknown) else Unknown(reason=f"{path}: no number")

    def _unknown(self, path: str) -> Unknown:
        """The reason given for the field itself, or else for what it is a part of."""
        above = path
        while above and above not in self.reasons:
            above = above.rpartition(".")[0]
        return Unknown(reason=self.reasons.get(above, f"the record does not hold {path}"))


def read_record(document: object) -> Record:
    """Check that a document is a node record.

    Raises:
        InputError: it is none, or of another schema.
    """
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, Mapping) else type(document).__name__
        raise InputError(
            f"the node record is of schema {str(found)[:80]!r}", expected=SCHEMA, todo="record the node again"
        )
    unread = document.get("unread")
    reasons = {
        str(entry["field"]): str(entry.get("reason", ""))
        for entry in (unread if isinstance(unread, list) else [])
        if isinstance(entry, Mapping) and "field" in entry
    }
    return Record(document=document, reasons=reasons)
