"""Workloads: the fixed inputs of a benchmark, read from YAML or derived from a model's shape."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from lanewise.errors import InputError
from lanewise.files import read_text

BUILT_IN = Path(__file__).parent / "workloads"
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
MAX_MESSAGE_BYTES = 1 << 30
MAX_CALLS = 10_000
_MAX_MESSAGES = 64
_MAX_FILE_BYTES = 1 << 17
_MAX_SOURCE = 1000
_SHOWN_KEYS = 5
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_TODO = "mend the file; `./inv workload --config config.json` writes a right one"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One allreduce size, called again and again as a model's forward pass does.

    Attributes:
        name: what the size stands for, e.g. "verify".
        bytes: message size of one call, on each rank.
        calls: calls in one pass; one sample times a whole pass.
        rows: rows (tokens) of hidden states that the size holds, where it was derived from a model.
    """

    name: str
    bytes: int
    calls: int
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a benchmark is given: a collective, a data type, and messages.

    Attributes:
        name: identifier, also in run files.
        dtype: data type of the model's hidden states.
        messages: the sizes to measure.
        source: where the shape is from, for people.
        collective: the operation; allreduce (sum) is the only one.
    """

    name: str
    dtype: str
    messages: tuple[Message, ...]
    source: str = ""
    collective: str = "allreduce"

    @property
    def identity(self) -> str:
        """Hash of all that decides a measurement (not of names for people): runs compare only where it is equal."""
        decisive = {**asdict(self), "source": "", "name": ""}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in YAML and in a run file's header."""
        document = asdict(self)
        document["messages"] = [{k: v for k, v in m.items() if v is not None} for m in document["messages"]]
        return document


def built_in_names() -> list[str]:
    """Names of the workloads that ship with the toolkit."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_workload(name_or_path: str) -> Workload:
    """The built-in workload of that name, or the one in that file (a path has a slash or ends in .yaml or .yml).

    Raises:
        InputError: unknown name, unreadable file, or a value that is not allowed.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    path = Path(name_or_path) if is_path else BUILT_IN / f"{name_or_path}.yaml"
    if not is_path and name_or_path not in built_in_names():
        raise InputError(
            f"there is no workload {name_or_path!r}",
            expected=f"one of {', '.join(built_in_names())}, or a path to a YAML file",
            todo="name one of these, or derive one: ./inv workload --config config.json > mine.yaml",
        )
    text = read_text(path, what="workload", limit=_MAX_FILE_BYTES)
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader that allows less
    except (yaml.YAMLError, *_UNREADABLE) as error:
        detail = " ".join(str(error).split())[:200]
        raise InputError(
            f"workload {path} is not YAML that can be read: {detail or type(error).__name__}",
            expected="a YAML mapping without anchors, each key once",
            todo=_TODO,
        ) from error
    return parse_workload(document, where=str(path))


_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML's constructors let through for scalars such as 2026-13-45, `!!int x` or `!!bool x`."""


class _Loader(yaml.SafeLoader):
    """Refuses aliases, which make a small file a huge document, and a key that stands twice, which hides one value."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Every node passes here."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if name := getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(None, None, f"anchor or alias {short(name)}", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Every mapping passes here."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(None, None, f"key {short(key)} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def workload_name(text: str) -> str:
    """The allowed workload name nearest to a text, e.g. a folder's name; "model" where nothing of it is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._-]+", "-", plain).strip("._-")[:64] or "model"


def parse_workload(document: object, *, where: str) -> Workload:
    """A workload from its document (YAML's or a run file's).

    Raises:
        InputError: a key is unknown or missing, or a value is not allowed.
    """
    fields = _mapping(document, f"workload {where}", {"name", "dtype", "messages"}, {"source", "collective"})
    name, dtype, messages = fields["name"], fields["dtype"], fields["messages"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _bad(where, "name", name, "a lower-case name of letters, digits, '.', '_' and '-'")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _bad(where, "dtype", dtype, f"one of {', '.join(DTYPE_BYTES)}")
    if fields.get("collective", "allreduce") != "allreduce":
        raise _bad(where, "collective", fields["collective"], "allreduce")
    source = fields.get("source", "")
    if not isinstance(source, str) or len(source) > _MAX_SOURCE or not encodable(source):
        raise _bad(where, "source", source, f"text of at most {_MAX_SOURCE:,} characters")
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MAX_MESSAGES:
        raise _bad(where, "messages", messages, f"a list of 1 to {_MAX_MESSAGES} messages")
    parsed = tuple(_message(entry, f"{where}, message {number}", dtype) for number, entry in enumerate(messages, 1))
    names = [message.name for message in parsed]
    if len(set(names)) != len(names):
        raise _bad(where, "messages", names, "names that differ")
    return Workload(name=name, dtype=dtype, messages=parsed, source=source)


def _message(entry: object, where: str, dtype: str) -> Message:
    fields = _mapping(entry, f"workload {where}", {"name", "bytes", "calls"}, {"rows"})
    name = fields["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _bad(where, "name", name, "a lower-case name of letters, digits, '.', '_' and '-'")
    size = _integer(fields["bytes"], where, "bytes", MAX_MESSAGE_BYTES)
    if size % DTYPE_BYTES[dtype]:
        raise _bad(where, "bytes", size, f"whole elements of {dtype} ({DTYPE_BYTES[dtype]} bytes each)")
    calls = _integer(fields["calls"], where, "calls", MAX_CALLS)
    rows = fields.get("rows")
    if rows is not None:
        rows = _integer(rows, where, "rows", MAX_MESSAGE_BYTES)
    return Message(name=name, bytes=size, calls=calls, rows=rows)


def _mapping(document: object, what: str, required: set[str], optional: set[str]) -> dict[str, Any]:
    known = ", ".join(sorted(required | optional))
    if not isinstance(document, dict):
        raise InputError(f"{what} is {short(document)}", expected=f"a mapping with {known}", todo=_TODO)
    if unknown := sorted(key if isinstance(key, str) else short(key) for key in document.keys() - required - optional):
        named = ", ".join(key[:_SHORT] for key in unknown[:_SHOWN_KEYS])
        raise InputError(f"{what} has unknown keys: {named}", expected=f"only {known}", todo=_TODO)
    if missing := sorted(required - document.keys()):
        raise InputError(
            f"{what} lacks {', '.join(missing)}", expected=f"all of {', '.join(sorted(required))}", todo=_TODO
        )
    return document


def _integer(value: object, where: str, key: str, most: int) -> int:
    # bool is an int to Python, not to a person.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _bad(where, key, value, f"a whole number from 1 to {most:,}")
    return value


def _bad(where: str, key: str, value: object, expected: str) -> InputError:
    return InputError(f"workload {where}: {key} is {short(value)}", expected=expected, todo=_TODO)


def encodable(text: str) -> bool:
    """Whether a text holds no lone surrogates, which JSON and YAML can name but nothing can print."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


_SHORT = 80


class _Short(reprlib.Repr):
    """A repr that looks at the beginning of a value only, however large or deep the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, _SHORT, _SHORT

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        """Python itself refuses to write out integers of some thousand digits."""
        return repr(x) if x.bit_length() <= 256 else f"a number of {x.bit_length():,} bits"


def short(value: object) -> str:
    """A value for a message, in at most 80 characters."""
    text = _Short().repr(value)
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."
