"""Files of topologies are somebody else's: whatever is in them, they are read, or refused in words."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lanewise.errors import InputError
from tests.unit.makers_topology import (
    FAKE_LSPCI_TREE,
    FAKE_YAML,
    block_cells,
    fake_lspci,
    fake_record_text,
    fake_xml,
    matrix,
)
from tuning.topology import Topology
from tuning.topology_complete import Assumptions, completed
from tuning.topology_read import parse_topology
from tuning.topology_svg import svg
from tuning.topology_text import text_tree
from tuning.topology_xml import to_nccl_xml

MUTATIONS = 3000
TEXTS = {
    "xml": fake_xml(),
    "record": fake_record_text(),
    "matrix": matrix(block_cells([2, 2], "PIX", "SYS"), [0, 0, 1, 1], ansi=True),
    "lspci": fake_lspci(),
    "lspci tree": FAKE_LSPCI_TREE,
    "yaml": FAKE_YAML,
}
ODD = (
    "",
    "0",
    "-1",
    "x16",
    "0x",
    "999999999999",
    "NaN",
    '"',
    "<",
    "&",
    "{",
    "[",
    "\x00",
    "\x1b[4m",
    "\ufeff",
    "é",
    "\n",
    "\t",
)


def cut(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text))]


def drop(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text))
    return text[:start] + text[start + draw.randrange(1, 40) :]


def repeat(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text))
    end = start + draw.randrange(1, 200)
    return text[:end] + text[start:end] * draw.randrange(1, 4) + text[end:]


def put(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text))
    return text[:at] + draw.choice(ODD) + text[at + draw.randrange(3) :]


def swap_words(text: str, draw: random.Random) -> str:
    words = text.split(" ")
    a, b = draw.randrange(len(words)), draw.randrange(len(words))
    words[a], words[b] = words[b], words[a]
    return " ".join(words)


def digits(text: str, draw: random.Random) -> str:
    at = draw.choice([at for at, letter in enumerate(text) if letter.isdigit()] or [0])
    return text[:at] + str(draw.randrange(10)) + text[at + 1 :]


KINDS: tuple[Callable[[str, random.Random], str], ...] = (cut, drop, repeat, put, swap_words, digits)


def use(topology: Topology) -> None:
    """What a reader of the topology does with it."""
    filled = completed(topology, Assumptions())
    text_tree(filled)
    svg(filled)
    to_nccl_xml(filled)


@pytest.mark.parametrize("kind", TEXTS)
def test_every_mutation_is_read_or_refused_in_words(kind: str) -> None:
    draw = random.Random(kind)
    read = longest = 0
    for number in range(MUTATIONS):
        text = TEXTS[kind]
        for _ in range(draw.randrange(1, 4)):
            text = draw.choice(KINDS)(text, draw) or " "
        try:
            topology = parse_topology(text, name="fuzz", source="fuzz")
        except InputError as error:
            longest = max(longest, len(str(error)))
            continue
        read += 1
        if number % 5 == 0:
            use(topology)
    assert longest < 2000
    assert MUTATIONS * 0.02 < read < MUTATIONS * 0.98  # else they would prove nothing
