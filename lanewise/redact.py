"""Keeping secrets out of whatever is stored or printed: environments, command lines, the output of other programs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|PRIVATE|BEARER|SSHPASS|(^|_)(AUTH|PASS|PAT|DSN|CREDS?)($|_)|_PWD$"
    r"|API_?KEY|ACCESS_?KEY|(^|_)KEY(_|$)|CONNECTION_?STRING)",
    re.IGNORECASE,
)
# Tokens that give themselves away by their form, wherever they stand.
_SECRET_FORMS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "<redacted>"),
    (
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})"),
        "<redacted>",
    ),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"), "<redacted>"),
    (re.compile(r"\b(?:nvapi-[A-Za-z0-9_-]{16,}|xox[abposr]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16})"), "<redacted>"),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), "<redacted>"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), "<redacted>"),
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"), "<redacted>"),
    # Quotes may themselves be escaped, as in JSON inside JSON.
    (
        re.compile(
            r"(?i)(\bauthorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:bearer|basic|digest|token)\s+)(?!<redacted>)[^\s\"'\\,;]+"
        ),
        r"\1<redacted>",
    ),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}"), r"\1<redacted>"),
    # To the end of the text where the block's own end is missing.
    (
        re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?s:.*?)(-----END [A-Z0-9 ]{0,40}-----|\Z)"
        ),
        r"\1<redacted>\2",
    ),
    (
        re.compile(
            r"(?i)((?:^|[\s\"'])(?:--?)?[\w-]*(?:token|secret|password|passwd|api[_-]?key|access[_-]?key)\\*[\"']?\s*[=:]\s*\\*[\"']?)"
            r"(?!<redacted>)[^\s\"',;]+"
        ),
        r"\1<redacted>",
    ),
)
_SHORTEST_SECRET = 6
"""A secret variable's value below this length is not searched for in text: it would blot out ordinary words."""
_SHORTEST_LINE = 12
"""The same for one line of a value that has several: programs print such values a line at a time."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")
_KEY_LINE = re.compile(r"\s*[A-Za-z0-9+/]+=*\s*")


def is_secret(name: str) -> bool:
    """Whether a variable of this name is taken to hold a secret."""
    return bool(_SECRET_NAME.search(name))


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The same variables, sorted, with the values of secret ones and secrets inside other values replaced."""
    redact = Redactor(environment)
    return {name: "<redacted>" if is_secret(name) else redact(value) for name, value in sorted(environment.items())}


class Redactor:
    """Replaces secrets in text: values of the secret variables of an environment, and tokens known by their form."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        values = {value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST_SECRET}
        lines = {line.strip() for value in values if len(value.splitlines()) > 1 for line in value.splitlines()}
        values |= {line for line in lines if len(line) >= _SHORTEST_LINE}
        values |= {json.dumps(value, ensure_ascii=plain)[1:-1] for value in values for plain in (True, False)}
        self._values = sorted(values, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        for value in self._values:
            text = text.replace(value, "<redacted>")
        for form, replacement in _SECRET_FORMS:
            text = form.sub(replacement, text)
        return text

    def all(self, texts: Iterable[str]) -> list[str]:
        """Each of `texts` without secrets; an option such as `--token` also hides the argument after it."""
        hidden: list[str] = []
        option = ""
        hide_key = KeyHider()
        for text in texts:
            counts = option.endswith("_tokens") and text.isdigit()  # --max-new-tokens 64
            bare = "tokenizer" in option.lower() and text.startswith("--")  # --skip-tokenizer-init --dtype
            hidden.append("<redacted>" if is_secret(option) and not (counts or bare) else self(hide_key(text)))
            option = text.lstrip("-").replace("-", "_") if _OPTION.fullmatch(text) else ""
        return hidden


class KeyHider:
    """Hides the lines of private keys from a text that comes line by line, where no line tells that it is of a key.

    Lines of other programs may stand in between: they are kept, unless they look like a key's.
    """

    def __init__(self) -> None:
        self._inside = False

    def __call__(self, line: str) -> str:
        """The line, or "<redacted>" where it is part of a key."""
        if self._inside and _KEY_ENDS.search(line):
            self._inside = False
        elif self._inside and _KEY_LINE.fullmatch(line):
            return "<redacted>"
        if begins := list(_KEY_BEGINS.finditer(line)):
            self._inside = not _KEY_ENDS.search(line, begins[-1].end())
        return line
