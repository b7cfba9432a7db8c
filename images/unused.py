"""Which files of known packages are never used on a GPU, and why: images/unused_on.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

from images.capability import Capability
from lanewise.errors import InputError
from lanewise.files import read_text

UNUSED_ON = Path(__file__).parent / "unused_on.yaml"
_MAX_FILE_BYTES = 1 << 20
SITE = re.compile(r"(?:^|/)(?:site|dist)-packages/")
"""Before a path within site-packages."""


@dataclass(frozen=True, kw_only=True)
class LeaveOut:
    """When files can be left out of an image.

    Attributes:
        of: the distribution that they belong to.
        versions: distributions to the versions with which nothing imports the files at start.
        whole: whether they are all of the distribution, which is then not even fetched.
    """

    of: str
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    whole: bool = False

    def applies(self, versions: Mapping[str, str]) -> bool:
        """Whether it does among these distributions; one that is absent imports nothing."""
        return self.of in versions and all(
            SpecifierSet(wanted).contains(versions[name], prereleases=True)
            for name, wanted in self.versions.items()
            if name in versions
        )


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Files that are used on some GPUs only.

    Attributes:
        paths: patterns of their paths within site-packages (`*` also matches `/`).
        only_on: compute capabilities, or majors, on which they are used; none: on no GPU.
        why: what decides it.
        source: where that was read.
        leave_out: whether an image does without them; None: something imports them, used or not, or it is not known.
    """

    paths: tuple[str, ...]
    only_on: tuple[str, ...]
    why: str
    source: str
    leave_out: LeaveOut | None = None

    def holds(self, path: str, capability: Capability) -> bool:
        """Whether the file is among these, and not used on such a GPU."""
        used = {str(capability), str(capability.major)} & set(self.only_on)
        *_, inside = SITE.split(path)
        anywhere = inside == path  # an editable install, a copied package: it may lie in any folder
        return not used and any(
            fnmatchcase(inside, p) or (anywhere and fnmatchcase(path, f"*/{p}")) for p in self.paths
        )


@cache
def read_unused(path: Path = UNUSED_ON) -> tuple[Unused, ...]:
    """The table, in the file's order; read once.

    Raises:
        InputError: the file is none.
    """
    try:
        rows = yaml.safe_load(read_text(path, what="table of unused files", limit=_MAX_FILE_BYTES))["unused"]
        return tuple(
            Unused(
                paths=tuple(row["paths"]),
                only_on=tuple(row["only_on"]),
                why=row["why"],
                source=row["source"],
                leave_out=LeaveOut(**row["leave_out"]) if "leave_out" in row else None,
            )
            for row in rows
        )
    except (yaml.YAMLError, TypeError, KeyError) as error:
        raise InputError(
            f"table {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="a list `unused` of paths, only_on, why and source",
            todo="mend the file",
        ) from error


def reason(path: str, capability: Capability, table: Sequence[Unused]) -> Unused | None:
    """Why a file is not used on such a GPU; None where it is, or nothing is known."""
    return next((row for row in table if row.holds(path, capability)), None)
