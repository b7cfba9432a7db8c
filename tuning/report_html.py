"""Writes a report as one HTML page: no script, nothing from elsewhere, readable in greyscale, light and dark.

Every text is escaped, pictures are data: addresses (an image runs no script), and a content policy forbids the rest.
"""

from __future__ import annotations

import base64
from html import escape

from tuning.report_document import Block, Bullets, Cell, Commands, Paragraph, Picture, Report, Section, Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5a5a57; --page: #ffffff; --card: #f5f5f2; --rule: #d9d9d4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e0; --soft: #a3a39e; --page: #17181a; --card: #222326; --rule: #3b3c40; }
  img { filter: invert(0.9); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 2.2rem 1.4rem 4rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.12rem; margin: 2.4rem 0 .7rem; padding-top: .9rem; border-top: 1px solid var(--rule);
  overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.about, .note { color: var(--soft); } .note { font-size: .9rem; }
.lead { font-size: 1.12rem; font-weight: 600; background: var(--card); border-left: 5px solid var(--ink);
  padding: .7rem 1rem; margin: .8rem 0; }
.warning { border-left: 5px double var(--soft); padding-left: .9rem; }
.warning::before { content: "Warning: "; font-weight: 600; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top;
  white-space: nowrap; }
th { vertical-align: bottom; border-bottom: 1.5px solid var(--ink); white-space: normal; }
.words { text-align: left; white-space: normal; min-width: 6rem; }
.good { font-weight: 700; } .bad { color: var(--soft); }
pre { background: var(--card); padding: .7rem 1rem; font-size: .86rem; line-height: 1.45; white-space: pre-wrap;
  overflow-wrap: anywhere; }
img { display: block; width: 960px; max-width: 100%; height: auto; margin: .8rem 0; }
ul { padding-left: 1.2rem; } li { margin: .25rem 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } img, tr { break-inside: avoid; } }
"""


def html(report: Report) -> str:
    """The page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(report.title)}</h1>\n<p class="about">{escape(report.about)}</p>\n'
        f"{''.join(map(_section, report.sections))}</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{''.join(map(_block, section.blocks))}</section>\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f'<p class="{block.weight}">{escape(block.text)}</p>\n'
        case Table():
            return _table(block)
        case Bullets():
            return f"<ul>\n{''.join(f'<li>{escape(item)}</li>{chr(10)}' for item in block.items)}</ul>\n"
        case Commands():
            return f"<pre>{escape(chr(10).join(block.lines))}</pre>\n"
        case Picture():
            data = base64.b64encode(block.svg.encode()).decode()
            return f'<img alt="{escape(block.says)}" src="data:image/svg+xml;base64,{data}">\n'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_words(table, n)}>{escape(text)}</th>' for n, text in enumerate(table.head))
    rows = "".join(f"<tr>{''.join(_cell(table, n, cell) for n, cell in enumerate(row))}</tr>\n" for row in table.rows)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n'


def _words(table: Table, column: int) -> str:
    return ' class="words"' if column in table.words else ""


def _cell(table: Table, column: int, cell: Cell) -> str:
    words = "words " if column in table.words else ""
    return f'<td class="{words}{cell.weight}">{escape(cell.text)}</td>'
