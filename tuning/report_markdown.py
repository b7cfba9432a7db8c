"""Writes a report as Markdown (GitHub's), its pictures as files beside it. Every text is escaped."""

from __future__ import annotations

import re

from tuning.report_document import Block, Bullets, Cell, Commands, Paragraph, Picture, Report, Table, Weight

_SPECIAL = re.compile(r"([\\`*\[\]|~$!])")
_LEADING = re.compile(r"^(?=[-+#=])|^(\d+)(?=[.)]\s)")
"""What begins a list or a heading."""
_FENCE = re.compile(r"`{3,}")


def markdown(report: Report) -> str:
    """The text; it names the pictures of `report.pictures` by their names, as files in its own folder."""
    parts = [f"# {_escaped(report.title)}", _escaped(report.about)]
    for section in report.sections:
        parts += [f"## {_escaped(section.title)}", *map(_block, section.blocks)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return _paragraph(block)
        case Table():
            return _table(block)
        case Bullets():
            return "\n".join(f"- {_sentence(item)}" for item in block.items)
        case Commands():
            longest = max((len(run) for text in block.lines for run in _FENCE.findall(text)), default=2)
            fence = "`" * (longest + 1)
            return "\n".join([fence, *block.lines, fence])
        case Picture():
            return f"![{_escaped(block.says)}]({block.name})"


def _paragraph(paragraph: Paragraph) -> str:
    text = _sentence(paragraph.text)
    match paragraph.weight:
        case Weight.LEAD:
            return f"**{text}**"
        case Weight.WARNING:
            return f"> **Warning:** {text}"
        case _:
            return text


def _table(table: Table) -> str:
    rules = ["---" if number in table.words else "--:" for number in range(len(table.head))]
    lines = [map(_escaped, table.head), rules, *(map(_cell, row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(values)} |" for values in lines)


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.weight is Weight.GOOD and text else text


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no emphasis, link, picture, table or HTML."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def _sentence(text: str) -> str:
    """The same at the beginning of a line: no list and no heading either."""
    return _LEADING.sub(lambda found: f"{found[0]}\\", _escaped(text))
