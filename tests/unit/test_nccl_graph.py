from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lanewise.errors import InputError
from tuning.nccl_graph import Graph, read_graphs, write_graphs

RING = Graph(
    id=0,
    pattern=4,
    gb_s=24.0,
    gb_s_net=24.0,
    type="PHB",
    type_net="PIX",
    same_channels=True,
    channels=((0, 1, 2), (0, 1, 2)),
)
FALLBACK = replace(RING, id=1, pattern=1, gb_s=0.1, gb_s_net=0.1, type="SYS", type_net="SYS", channels=((0, 10, 2),))
TEXT = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="24" speedinter="24" latencyinter="0" \
typeintra="PHB" typeinter="PIX" samechannels="1">
    <channel>
      <gpu dev="0"/>
      <gpu dev="0x1"/>
      <gpu dev="0x2"/>
    </channel>
    <channel>
      <gpu dev="0"/>
      <gpu dev="0x1"/>
      <gpu dev="0x2"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="1" speedintra="0.1" speedinter="0.1" latencyinter="0" \
typeintra="SYS" typeinter="SYS" samechannels="1">
    <channel>
      <gpu dev="0"/>
      <gpu dev="0xa"/>
      <gpu dev="0x2"/>
    </channel>
  </graph>
</graphs>
"""


def test_graphs_are_written_as_nccl_writes_them_and_read_back() -> None:
    assert write_graphs((RING, FALLBACK)) == TEXT
    assert read_graphs(TEXT, where="x") == (RING, FALLBACK)


def test_ranks_and_network_cards_of_other_releases_and_nodes_are_passed_over() -> None:
    text = TEXT.replace('dev="0x1"/>', 'dev="0x1" rank="1"/>').replace("<channel>", '<channel><net dev="0"/>')
    assert read_graphs(text, where="x") == (RING, FALLBACK)


def test_device_numbers_are_hexadecimal_with_and_without_a_prefix() -> None:
    assert read_graphs(TEXT.replace("0xa", "a"), where="x")[1].channels == ((0, 10, 2),)


def test_a_graph_without_channels_has_no_inside() -> None:
    empty = replace(RING, id=3, pattern=5, gb_s=0, gb_s_net=0, same_channels=False, channels=())
    assert read_graphs(write_graphs((empty,)), where="x") == (empty,)
    assert "</graph>" not in write_graphs((empty,))


def test_a_fallback_is_told_by_its_speed() -> None:
    assert FALLBACK.failed
    assert not RING.failed
    assert (str(RING), str(FALLBACK)) == ("2 x 24 PHB", "1 x 0.1 SYS")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("<graphs", "<system", "not XML"),
        ('nchannels="2"', 'nchannels="3"', "declares 3 channels and holds 2"),
        ('typeintra="PHB"', 'typeintra="FAR"', "typeintra='FAR'"),
        ('speedintra="24"', 'speedintra="nan"', "speedintra='nan'"),
        ('speedintra="24"', 'speedintra="1e9"', "speedintra='1e9'"),
        ('id="1"', 'id="0"', "2 graphs"),
        ('dev="0x2"', 'dev="0x1"', "a channel of 3 GPUs"),
        ('dev="0x2"', 'dev="-1"', "a GPU '-1'"),
        ('pattern="4"', 'pattern="99999999999999999999"', "pattern="),
        ("<graphs", "<!DOCTYPE x [<!ENTITY a 'b'>]><graphs", "DOCTYPE"),
        ("<graphs", "<!doctype x><graphs", "DOCTYPE"),
    ],
)
def test_what_nccl_could_not_read_is_refused_by_name(old: str, new: str, says: str) -> None:
    with pytest.raises(InputError, match="x ") as refused:
        read_graphs(TEXT.replace(old, new), where="x")
    assert says in refused.value.what


@pytest.mark.parametrize(
    "text", ["", "<a", "\x00", "<system version='1'/>", "<graphs/>", "<graphs>" * 50_000, "a" * 5_000_000]
)
def test_foreign_truncated_and_huge_text_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_graphs(text, where="x")


def test_thousands_of_damaged_files_end_in_graphs_or_an_error() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        text = list(TEXT)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choice(["", "<", ">", '"', "0", "-", "é", "\x1b", "999", "&#0;"])
        try:
            graphs = read_graphs("".join(text), where="x")
        except InputError:
            continue
        assert read_graphs(write_graphs(graphs), where="x") == graphs
