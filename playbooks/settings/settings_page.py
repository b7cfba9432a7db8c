"""docs/settings.md: the catalogue for people. Made from the data, never written by hand.

    python -m playbooks.settings.settings_page [--check]

`--check` writes nothing and ends with 1 where the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from lanewise.files import write_atomic
from playbooks.settings.catalogue import LAYERS, POLICIES, Setting, load_catalogue
from playbooks.settings.conditions import in_words
from playbooks.settings.facts import FACTS
from playbooks.settings.mechanisms import MECHANISMS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
VERDICTS = {
    "apply": "wanted, and not in force yet; `takes_effect` says when it will be",
    "in_force": "wanted, and in force; our files stay",
    "leave": "not asked for, or disabled in the inventory",
    "refuse": "wanted, and a fact that decides is unknown or forbids it; nothing is changed on the node",
    "advise": "for a person",
    "ok": "a check passed",
    "fault": "a check failed, or what was applied is not in force",
    "unknown": "a check could not read what it needs",
    "skip": "this node or kernel does not have it, or its condition does not hold",
}
_TAKES_EFFECT = {
    "now": "at once",
    "reload": "when the module is loaded again",
    "reboot": "after a reboot",
    "next_start": "for what starts afterwards",
}
_HEAD = """# Settings

Generated from `playbooks/settings/catalogue.yaml` by `python -m playbooks.settings.settings_page`; do not edit.

What a node can be told or checked for. A plan decides on each from the node's record and the inventory; the inventory
names settings by their id:

```yaml
node_settings:
  enable: [max_read_request]    # candidates and opt-ins
  disable: [aspm_links]         # defaults and checks
  values: {iommu_mode: "pt"}    # instead of the catalogue's value; text in quotes
```
"""


def page() -> str:
    """The whole page."""
    settings = list(load_catalogue().values())
    return "\n".join([_HEAD, *_tables(), *_contents(settings), *_layers(settings)]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    yield "## Policies and verdicts\n"
    yield from _table("policy", POLICIES)
    yield from _table("verdict", VERDICTS)


def _table(head: str, rows: dict[str, str]) -> Iterator[str]:
    yield f"| {head} | meaning |\n| --- | --- |"
    yield from (f"| {key} | {text} |" for key, text in rows.items())
    yield ""


def _contents(settings: list[Setting]) -> Iterator[str]:
    yield "## Contents\n"
    for layer, title in LAYERS.items():
        links = [f"[`{one.id}`](#{one.id})" for one in settings if one.layer == layer]
        yield f"**{title}**: {' · '.join(links)}\n"


def _layers(settings: list[Setting]) -> Iterator[str]:
    for layer, title in LAYERS.items():
        yield f"## {title}\n"
        for setting in settings:
            if setting.layer == layer:
                yield from _entry(setting)


def _entry(setting: Setting) -> Iterator[str]:
    yield f"### {setting.id}\n"
    yield f"**{setting.title}** · {setting.policy}. {_sentence(setting.why)}\n"
    yield from (f"- *{name}*: {text}" for name, text in _rows(setting) if text)
    yield ""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _rows(setting: Setting) -> Iterator[tuple[str, str]]:
    yield "where", in_words(setting.requires, FACTS)
    yield "unasked only where", in_words(setting.when, FACTS)
    for forbidden in setting.forbidden:
        yield "refused where", f"{in_words(forbidden.when, FACTS)}: {forbidden.says}"
    yield from _values(setting)
    yield "the inventory may say", _accepted(setting)
    yield from _application(setting)
    yield "read", setting.read
    yield "after a change of", ", ".join(f"`{one}`" for one in setting.recheck)
    yield "risk", setting.risk
    yield "source", ", ".join(f"[{_short(url)}]({url})" for url in setting.source)


def _values(setting: Setting) -> Iterator[tuple[str, str]]:
    for case in setting.cases:
        when = in_words(case.when, FACTS)
        yield "value", f"{case.name + ': ' if case.name else ''}`{case.value}`{' where ' + when if when else ''}"


def _accepted(setting: Setting) -> str:
    accepts = setting.accepts or {}
    if "one_of" in accepts:
        return ", ".join(accepts["one_of"])
    return f"{accepts['from']} to {accepts['to']}" if accepts else ""


def _application(setting: Setting) -> Iterator[tuple[str, str]]:
    if setting.mechanism:
        mechanism = MECHANISMS[setting.mechanism]
        takes_effect = _TAKES_EFFECT.get(mechanism.takes_effect)
        yield (
            "apply",
            mechanism.how.format(target=setting.target) + (f"; in force {takes_effect}" if takes_effect else ""),
        )
        yield "undo", mechanism.undo if mechanism.role else ""


def _short(url: str) -> str:
    """The repository or site, and the last part of the path."""
    parts = urlsplit(url)
    path = [part for part in parts.path.split("/") if part]
    place = path[1] if parts.netloc == "github.com" else parts.netloc
    return " ".join([place, *path[2 if place in path[:2] else 0 :][-1:]])


def main(arguments: list[str]) -> int:
    """Write the page, or with --check say whether it is stale (1)."""
    if arguments == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    write_atomic(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
