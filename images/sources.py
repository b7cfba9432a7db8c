"""Reads facts out of Python and other sources without importing or running them: literals, look-ups, calls, lines."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Lookup = Literal["subscript", "get", "membership"]


class NotReadableError(Exception):
    """The source does not let itself be read, or holds no such thing; the text says which."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A place in a source.

    Attributes:
        number: from 1.
        text: the line without its indentation, shortened.
    """

    number: int
    text: str


_MAX_LINE = 160


def line(source: str, number: int) -> Line:
    """The line of that number."""
    lines = source.split("\n", number)
    return Line(number=number, text=lines[number - 1].strip()[:_MAX_LINE] if number <= len(lines) else "")


def first_match(source: str, pattern: str) -> Line | None:
    """The first line in which a regular expression is found."""
    expression = re.compile(pattern)
    for number, text in enumerate(source.splitlines(), 1):
        if expression.search(text):
            return Line(number=number, text=text.strip()[:_MAX_LINE])
    return None


@lru_cache(maxsize=256)
def parsed(source: str) -> ast.Module:
    """The syntax tree.

    Raises:
        NotReadableError: this Python's grammar cannot parse it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # another project's escapes are not our user's concern
            return ast.parse(source)
    except SyntaxError as error:
        raise NotReadableError(f"line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotReadableError(str(error)[:120] or type(error).__name__) from error


def assigned(source: str, name: str) -> tuple[ast.expr, Line]:
    """What is assigned to `name` (or `Class.name`) at module or class level; the last assignment counts.

    Raises:
        NotReadableError: the source cannot be parsed or assigns no such name.
    """
    scope, _, bare = name.rpartition(".")
    found: ast.expr | None = None
    for statement in _level(_class(source, scope).body if scope else parsed(source).body):
        match statement:
            case ast.Assign(targets=targets, value=value) if any(_is_name(t, bare) for t in targets):
                found = value
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_name(target, bare):
                found = value
            case _:
                pass
    if found is None:
        raise NotReadableError(f"no assignment to {name}")
    return found, line(source, found.lineno)


def literal(node: ast.expr) -> Any:  # noqa: ANN401 - whatever a literal can be
    """The value of a literal.

    Raises:
        NotReadableError: it is computed.
    """
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise NotReadableError(f"line {node.lineno}: not a literal") from error


def dict_keys(source: str, name: str) -> dict[Any, Line]:
    """The keys of the dict literal that is assigned to `name`, with their places.

    Raises:
        NotReadableError: there is no such dict literal.
    """
    value, _ = assigned(source, name)
    if not isinstance(value, ast.Dict):
        raise NotReadableError(f"{name} is no dict literal")
    return {
        key.value: line(source, key.lineno) for key in value.keys if isinstance(key, ast.Constant)
    }  # keys that are computed or spread in are no evidence


def class_names(source: str, name: str) -> dict[str, Line]:
    """Names that a class assigns, such as an enumeration's members.

    Raises:
        NotReadableError: there is no such class.
    """
    names: dict[str, Line] = {}
    for statement in _class(source, name).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=member)]) | ast.AnnAssign(target=ast.Name(id=member)):
                names[member] = line(source, statement.lineno)
            case _:
                pass
    return names


def lookups(source: str, name: str, how: Lookup) -> list[Line]:
    """Where `name` is looked up: `name[...]`, `name.get(...)` or `... in name`.

    Raises:
        NotReadableError: the source cannot be parsed.
    """
    return [
        line(source, node.lineno)
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.expr) and _looks_up(node, name, how)
    ]


def keyword_values(source: str, function: str, keyword: str) -> list[tuple[Any, Line]]:
    """Literal values that calls inside a function pass for a keyword.

    Raises:
        NotReadableError: there is no such function, or a value is computed.
    """
    found = []
    for call in _calls(_function(source, function)):
        for given in call.keywords:
            if given.arg == keyword:
                value = given.value
                if isinstance(value, ast.Name):
                    value, _ = assigned(source, value.id)
                found.append((literal(value), line(source, given.value.lineno)))
    return found


def calls(source: str, function: str, name: str) -> list[Line]:
    """Calls of `name` (or of something that ends in `.name`) inside a function.

    Raises:
        NotReadableError: there is no such function.
    """
    return [
        line(source, call.lineno)
        for call in _calls(_function(source, function))
        if ast.unparse(call.func) == name or ast.unparse(call.func).endswith(f".{name}")
    ]


def _level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of one level; what an `if` or `try` holds belongs to the level that it stands in."""
    for statement in body:
        yield statement
        match statement:
            case ast.If(body=inner, orelse=other):
                yield from _level([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                yield from _level([*inner, *(s for h in handlers for s in h.body), *other, *last])
            case _:
                pass


def _class(source: str, name: str) -> ast.ClassDef:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise NotReadableError(f"no class {name}")


def _function(source: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    scope, _, bare = name.rpartition(".")
    for node in ast.walk(_class(source, scope) if scope else parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == bare:
            return node
    raise NotReadableError(f"no function {name}")


def _calls(inside: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(inside) if isinstance(node, ast.Call))


def _looks_up(node: ast.expr, name: str, how: Lookup) -> bool:
    match how, node:
        case "subscript", ast.Subscript(value=value, ctx=ast.Load()):
            return _is_name(value, name)
        case "get", ast.Call(func=ast.Attribute(value=value, attr="get")):
            return _is_name(value, name)
        case "membership", ast.Compare(ops=ops, comparators=others):
            return any(
                isinstance(op, ast.In | ast.NotIn) and _is_name(other, name)
                for op, other in zip(ops, others, strict=True)
            )
        case _:
            return False


def _is_name(node: ast.expr, name: str) -> bool:
    match node:
        case ast.Name(id=found):
            return found == name
        case ast.Attribute(attr=found):
            return found == name
        case _:
            return False
