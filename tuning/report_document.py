"""What a report is made of, whatever it is written as: sections of paragraphs, tables, lists, commands and pictures.

`report` fills it; `report_html` and `report_markdown` write the same document, and escape every text in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lanewise.talk import printable

_MOST_TEXT = 600


class Weight(StrEnum):
    """How much a paragraph or cell matters."""

    PLAIN = "plain"
    LEAD = "lead"  # the answer
    WARNING = "warning"  # what weakens it
    NOTE = "note"  # how to read it
    GOOD = "good"  # of cells: better
    BAD = "bad"  # of cells: worse, or failed


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Sentences."""

    text: str
    weight: Weight = Weight.PLAIN


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a table. Its text says everything: who does not see its `weight` misses nothing."""

    text: str
    weight: Weight = Weight.PLAIN


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings; `words` are the numbers of the columns that hold words, from 0; the others hold numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Lines to be typed, or settings in force."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A self-contained SVG.

    Attributes:
        name: of its file where it is written as one.
        svg: the picture.
        says: what is to be seen, for who cannot see it.
    """

    name: str
    svg: str
    says: str


Block = Paragraph | Table | Bullets | Commands | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a title."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
        title: what it is about.
        about: one line below it.
        sections: the answer first.
        document: the same numbers for programs.
    """

    title: str
    about: str
    sections: tuple[Section, ...]
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All of them, in order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Picture))


def line(text: object) -> str:
    """Any value as one line that can be printed, and not too long: what a file holds may be neither."""
    plain = " ".join(printable(str(text)[: 4 * _MOST_TEXT]).split())
    return plain if len(plain) <= _MOST_TEXT else plain[: _MOST_TEXT - 3] + "..."


def cells(*values: object) -> tuple[Cell, ...]:
    """A row; what is a Cell already stays."""
    return tuple(value if isinstance(value, Cell) else Cell(text=line(value)) for value in values)
