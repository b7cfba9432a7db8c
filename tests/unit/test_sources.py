"""Facts are read out of sources by their syntax; nothing of them is run."""

from __future__ import annotations

import pytest

from images import sources
from images.sources import NotReadableError

TABLES = '''\
import torch
SIZES = {9: {2: 1}, 10: {2: 2}, **MORE, KEY: 3}
TYPED: list[int] = [2, 4, 8]
if torch.version.hip:
    WORLD = (8,)
else:
    WORLD = (2, 4)
try:
    import fast
except ImportError:
    FAST = None


class Algorithm(Enum):
    """Docs."""

    EAGLE = auto()
    NGRAM: int = 2

    def is_eagle(self):
        inside = 1
'''
USES = """\
from tables import SIZES
def lookup(capability):
    size = SIZES[capability]
    SIZES[7] = 1
    return tables.SIZES.get(capability), capability in SIZES, 9 not in tables.SIZES
"""
CALLS = """\
ARCHES = [9, 10]
def gen_comm():
    flags = current.get_nvcc_flags_list(
        supported_major_versions=[9, 10, 12],
    )
def gen_named():
    return get_nvcc_flags_list(supported_major_versions=ARCHES)
def gen_computed():
    return get_nvcc_flags_list(supported_major_versions=list(ARCHES))
class Layer:
    def forward(self):
        return is_sm90_supported() or platform.is_sm100_supported()
"""


def test_dict_keys_have_places_and_computed_keys_are_left_out() -> None:
    keys = sources.dict_keys(TABLES, "SIZES")
    assert list(keys) == [9, 10]
    assert keys[10].number == 2
    assert keys[10].text.startswith("SIZES = {9:")


def test_the_last_assignment_counts_and_branches_belong_to_the_module() -> None:
    node, where = sources.assigned(TABLES, "WORLD")
    assert sources.literal(node) == (2, 4)
    assert where.number == 7
    assert sources.literal(sources.assigned(TABLES, "TYPED")[0]) == [2, 4, 8]
    assert sources.literal(sources.assigned(TABLES, "FAST")[0]) is None


def test_what_a_function_assigns_is_no_constant() -> None:
    with pytest.raises(NotReadableError, match="no assignment to inside"):
        sources.assigned(TABLES, "inside")


def test_class_level_names() -> None:
    assert list(sources.class_names(TABLES, "Algorithm")) == ["EAGLE", "NGRAM"]
    assert sources.literal(sources.assigned(TABLES, "Algorithm.NGRAM")[0]) == 2


def test_each_kind_of_look_up_is_told_apart() -> None:
    assert [found.number for found in sources.lookups(USES, "SIZES", "subscript")] == [3]
    assert [found.number for found in sources.lookups(USES, "SIZES", "get")] == [5]
    assert [found.number for found in sources.lookups(USES, "SIZES", "membership")] == [5, 5]
    assert not sources.lookups(USES, "OTHER", "subscript")


def test_keywords_of_calls_inside_a_function() -> None:
    ((value, where),) = sources.keyword_values(CALLS, "gen_comm", "supported_major_versions")
    assert value == [9, 10, 12]
    assert where.number == 4
    assert sources.keyword_values(CALLS, "gen_named", "supported_major_versions")[0][0] == [9, 10]
    assert sources.keyword_values(CALLS, "gen_comm", "other") == []
    with pytest.raises(NotReadableError, match="not a literal"):
        sources.keyword_values(CALLS, "gen_computed", "supported_major_versions")


def test_calls_by_their_last_name() -> None:
    assert [found.number for found in sources.calls(CALLS, "Layer.forward", "is_sm100_supported")] == [12]
    assert not sources.calls(CALLS, "Layer.forward", "sm100_supported")
    with pytest.raises(NotReadableError, match=r"no function Layer\.backward"):
        sources.calls(CALLS, "Layer.backward", "is_sm100_supported")


@pytest.mark.parametrize("source", ["def broken(:", "x = '\0'", "(" * 5000 + ")" * 5000, "print 'no'"])
def test_what_cannot_be_parsed_is_said(source: str) -> None:
    with pytest.raises(NotReadableError):
        sources.parsed(source)


def test_another_projects_warnings_are_not_ours() -> None:
    assert sources.parsed('pattern = "\\d"')


def test_nothing_is_run(tmp_path) -> None:
    trap = tmp_path / "trap"
    source = f"SIZES = {{9: 1}}\nopen({str(trap)!r}, 'w')\nTRAP = open({str(trap)!r}, 'w')\n"
    assert list(sources.dict_keys(source, "SIZES")) == [9]
    with pytest.raises(NotReadableError, match="not a literal"):
        sources.literal(sources.assigned(source, "TRAP")[0])
    assert not trap.exists()


def test_the_first_matching_line() -> None:
    found = sources.first_match("a\n    raise RuntimeError(\n  'SM 12.x requires CUDA >= 12.9'\n", r"SM 12\.x requires")
    assert found is not None
    assert (found.number, found.text) == (3, "'SM 12.x requires CUDA >= 12.9'")
    assert sources.first_match("a\n", "b") is None
