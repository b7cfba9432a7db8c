"""Prompt sets: what is sent to a server, with a hash of the whole content, so that runs compare only on the same.

Kinds: our own mix ("mixed"), token ids for servers without a tokenizer ("tokens"), and files: our YAML, or JSON lines
as MT-bench (question.jsonl of FastChat: question_id, category, turns) and HumanEval (task_id, prompt) have them.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from lanewise.errors import InputError
from lanewise.files import read_text
from tuning.topology_yaml_load import TopologyLoader
from tuning.workload import encodable, short

BUILT_IN = Path(__file__).parent / "prompts"
TOKEN_PROMPTS = 64
"""As many as requests can run at once."""
_TOKENS = re.compile(r"tokens(?::([1-9][0-9]{0,6}))?(?::([1-9][0-9]{0,7}))?", re.ASCII)
_TOKEN_LENGTH, _VOCABULARY = 128, 32_000
_LEAST_VOCABULARY = 100
_MOST_YAML_BYTES, _MOST_LINES_BYTES = 1 << 20, 16 << 20
_MOST_PROMPTS = 10_000
_MOST_LABEL = 100
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What PyYAML's constructors let through for scalars such as `!!int x` or `!!bool x`."""
_TODO = "mend the file, or name a set that ships with the toolkit"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: a text, or token ids.

    Attributes:
        id: its name in the set.
        category: what kind of text it asks for; acceptance depends on it.
        text: what the user says; "" where it is token ids.
        tokens: token ids; () where it is text.
    """

    id: str
    category: str
    text: str = ""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts in their order, and the name under which `load_prompts` finds them."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def identity(self) -> str:
        """Hash of all prompts and their order; not of the set's name."""
        content = json.dumps([asdict(prompt) for prompt in self.prompts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def categories(self) -> tuple[str, ...]:
        """Each once, in the order of appearance."""
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))


def built_in_prompts() -> list[str]:
    """Names of the sets of text that ship with the toolkit."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_prompts(name_or_path: str) -> PromptSet:
    """A prompt set by name or path.

    Args:
        name_or_path: a built-in set; "tokens", "tokens:LENGTH" or "tokens:LENGTH:VOCABULARY" for generated token ids;
            or a path (with a slash, or ending in .yaml, .yml, .jsonl or .json).

    Raises:
        InputError: an unknown name, an unreadable file, or a prompt that is none.
    """
    if match := _TOKENS.fullmatch(name_or_path):
        return token_prompts(length=int(match[1] or _TOKEN_LENGTH), vocabulary=int(match[2] or _VOCABULARY))
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml", ".jsonl", ".json"))
    if not is_path and name_or_path not in built_in_prompts():
        raise InputError(
            f"there are no prompts {short(name_or_path)}",
            expected=f"one of {', '.join(built_in_prompts())}, tokens[:LENGTH[:VOCABULARY]], or a path",
            todo="name one of these; a path without a slash ends in .yaml or .jsonl",
        )
    path = Path(name_or_path) if is_path else BUILT_IN / f"{name_or_path}.yaml"
    lines = path.suffix in (".jsonl", ".json")
    text = read_text(path, what="prompts", limit=_MOST_LINES_BYTES if lines else _MOST_YAML_BYTES)
    prompts = _json_lines(text, str(path)) if lines else _yaml_prompts(text, str(path))
    if not 1 <= len(prompts) <= _MOST_PROMPTS:
        raise _bad(str(path), f"it has {len(prompts):,} prompts", f"1 to {_MOST_PROMPTS:,}")
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise _bad(str(path), "names stand twice", "a name of its own for each prompt")
    return PromptSet(name=name_or_path, prompts=tuple(prompts))


def token_prompts(*, length: int, vocabulary: int, count: int = TOKEN_PROMPTS, seed: int = 1) -> PromptSet:
    """Random token ids, the same for the same arguments; all of one length.

    The ids are of the middle half of the vocabulary: special tokens stand at its ends.

    Raises:
        InputError: a length below 1, or a vocabulary too small to choose from.
    """
    if length < 1 or vocabulary < _LEAST_VOCABULARY:
        raise InputError(
            f"token prompts of length {short(length)} out of {short(vocabulary)} tokens",
            expected=f"a length of at least 1 and a vocabulary of at least {_LEAST_VOCABULARY}",
            todo="take the vocabulary size from the model's config.json",
        )
    draw = random.Random(f"{seed} {length} {vocabulary}")  # noqa: S311 - reproducible, nothing secret
    chosen = range(vocabulary // 4, 3 * vocabulary // 4)
    prompts = tuple(
        Prompt(id=f"tokens-{number}", category="tokens", tokens=tuple(draw.choices(chosen, k=length)))
        for number in range(count)
    )
    return PromptSet(name=f"tokens:{length}:{vocabulary}", prompts=prompts)


def _yaml_prompts(text: str, where: str) -> list[Prompt]:
    """Our own form: a mapping of category to a mapping of name to text."""
    try:
        document = yaml.load(text, TopologyLoader)  # noqa: S506 - a SafeLoader that allows less
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        detail = " ".join(str(error).split())[:200]
        raise _bad(where, f"it is not YAML: {detail or type(error).__name__}", "a YAML mapping") from error
    expected = "categories, each with prompts by name: {code: {sorting: 'Write ...'}}"
    if not isinstance(document, dict) or not all(isinstance(prompts, dict) for prompts in document.values()):
        raise _bad(where, f"it holds {short(document)}", expected)
    entries = ((name, category, text) for category, prompts in document.items() for name, text in prompts.items())
    return [_prompt(name, category, text, where) for name, category, text in entries]


def _json_lines(text: str, where: str) -> list[Prompt]:
    """One JSON mapping a line."""
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(place, f"it is not JSON: {short(line)}", "one JSON mapping a line") from error
        prompts.append(_line_prompt(entry, place, number))
        if len(prompts) > _MOST_PROMPTS:
            break
    return prompts


def _line_prompt(entry: object, where: str, number: int) -> Prompt:
    """MT-bench's or HumanEval's form. Of several turns the first: the next depends on what the model answers."""
    if not isinstance(entry, dict):
        raise _bad(where, f"it is {short(entry)}", "a mapping with turns or prompt")
    turns = entry.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else entry.get("prompt")
    name = _first(entry, ("question_id", "task_id", "id"), number)
    return _prompt(str(name), entry.get("category", "code" if "task_id" in entry else "other"), text, where)


def _first(entry: Mapping[str, Any], keys: Iterable[str], otherwise: object) -> object:
    values = (entry[key] for key in keys if isinstance(entry.get(key), int | str))
    return next(values, otherwise)


def _prompt(name: object, category: object, text: object, where: str) -> Prompt:
    for what, value in (("name", name), ("category", category)):
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_LABEL or not value.isprintable():
            raise _bad(where, f"a prompt's {what} is {short(value)}", f"a text of 1 to {_MOST_LABEL} characters")
    if not isinstance(text, str) or not text.strip() or not encodable(text):
        raise _bad(where, f"prompt {short(name)} is {short(text)}", "a text")
    return Prompt(id=str(name), category=str(category), text=text.strip())


def _bad(where: str, what: str, expected: str) -> InputError:
    return InputError(f"prompts {where}: {what}", expected=expected, todo=_TODO)
