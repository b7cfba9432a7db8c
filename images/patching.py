"""Patches: files with a header that says why, which are applied in a builder container, strictly or not at all.

A patch file is a header, a line of three dashes, and a unified diff as `git diff` writes it:

    Why: what it mends, for whom
    Upstream: address of the issue or change there, or "none", and why
    Versions: >=0.5.9,<0.5.14
    ---
    diff --git a/package/file.py b/package/file.py
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from lanewise.errors import InputError
from lanewise.files import read_text

PATCHES = Path(__file__).parent / "patches"
_MAX_FILE_BYTES = 4 << 20
_NAME = re.compile(r"[0-9]{3}-[a-z0-9][a-z0-9-]*\.patch", re.ASCII)
_FIELDS = ("Why", "Upstream", "Versions")
_TOUCHED = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch of one component.

    Attributes:
        component: whose sources it changes.
        name: its file name; patches are applied in this order.
        why: what it mends.
        upstream: where it is discussed or was mended there.
        versions: the component's versions that it is for.
        files: which files it changes.
        sha256: of the whole file, header included.
        path: the file.
    """

    component: str
    name: str
    why: str
    upstream: str
    versions: SpecifierSet
    files: tuple[str, ...]
    sha256: str
    path: Path


def patches_for(component: str, version: str, folder: Path = PATCHES) -> tuple[Patch, ...]:
    """The component's patches that are for this version, in the order in which they are applied.

    Raises:
        InputError: a patch file of the component is not what this module's documentation says.
    """
    return tuple(p for p in read_patches(component, folder) if p.versions.contains(version, prereleases=True))


def read_patches(component: str, folder: Path = PATCHES) -> tuple[Patch, ...]:
    """All of the component's patches, by name.

    Raises:
        InputError: as patches_for.
    """
    files = sorted(path for path in (folder / component).glob("*") if not path.name.startswith("."))
    return tuple(_read(component, path) for path in files)


def _read(component: str, path: Path) -> Patch:
    if not _NAME.fullmatch(path.name):
        raise _wrong(path, "its name is not a number and words")
    text = read_text(path, what="patch", limit=_MAX_FILE_BYTES)
    head, separator, diff = text.partition("\n---\n")
    fields = dict(_fields(head, path))
    if missing := [name for name in _FIELDS if not fields.get(name)]:
        raise _wrong(path, f"its header lacks {', '.join(missing)}")
    touched = tuple(dict.fromkeys(name for name in _TOUCHED.findall(diff) if name != "/dev/null"))
    if not separator or "\n@@ " not in diff or not touched:
        raise _wrong(path, "no unified diff follows the header")
    if outside := [name for name in touched if name.startswith("/") or ".." in name.split("/")]:
        raise _wrong(path, f"it changes {outside[0]!r}, outside the sources")
    try:
        versions = SpecifierSet(fields["Versions"])
    except InvalidSpecifier:
        raise _wrong(path, f"Versions is {fields['Versions'][:80]!r}") from None
    return Patch(
        component=component,
        name=path.name,
        why=fields["Why"],
        upstream=fields["Upstream"],
        versions=versions,
        files=touched,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        path=path,
    )


def _fields(head: str, path: Path) -> list[tuple[str, str]]:
    """The header's fields; a line that begins with a blank goes on with the one above."""
    found: list[tuple[str, str]] = []
    for line in head.splitlines():
        name, separator, value = line.partition(":")
        if line.startswith(" ") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif separator and name in _FIELDS and name not in dict(found):
            found.append((name, value.strip()))
        else:
            raise _wrong(path, f"its header has the line {line[:80]!r}")
    return found


def _wrong(path: Path, why: str) -> InputError:
    return InputError(
        f"patch {path} cannot be used: {why}",
        expected="NNN-what-it-does.patch: Why, Upstream and Versions, a line of three dashes, a unified diff",
        todo="mend the file; images/patching.py shows one",
    )
