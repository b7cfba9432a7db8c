from __future__ import annotations

import pytest

from lanewise.errors import InputError
from playbooks.settings.conditions import Fact, ask, check, in_words
from playbooks.settings.known import Unknown

KNOWN = {"threads": Fact(words="CPU threads"), "vm": Fact(words="virtualised", yes="a VM", no="bare metal"),
         "path": Fact(words="path"), "words": Fact(words="options")}  # fmt: skip
FACTS = {"threads": 256, "vm": Unknown(reason="no DMI"), "path": "switch", "words": ["a"]}
YES, NO, OPEN = {"fact": "path", "is": "switch"}, {"fact": "threads", "below": 256}, {"fact": "vm", "is": True}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (YES, True),
        (NO, False),
        (OPEN, None),
        ({"fact": "threads", "at_least": 256}, True),
        ({"fact": "path", "one_of": ["mixed", "switch"]}, True),
        ({"fact": "words", "has": "a"}, True),
        ({"fact": "words", "lacks": "a"}, False),
        ({"not": NO}, True),
        ({"not": OPEN}, None),
        ({"all": []}, True),
        ({"any": []}, False),
        ({"all": [YES, OPEN]}, None),
        ({"all": [NO, OPEN]}, False),
        ({"any": [YES, OPEN]}, True),
        ({"any": [NO, OPEN]}, None),
    ],
)
def test_unknown_stays_unknown_unless_the_rest_decides(condition, holds) -> None:
    assert ask(check(condition, KNOWN, "x"), FACTS, KNOWN).holds is holds


def test_an_answer_names_the_facts_that_made_it_so() -> None:
    assert ask({"all": [YES, NO, OPEN]}, FACTS, KNOWN).because == ("CPU threads: 256",)
    assert ask({"all": [YES, OPEN]}, FACTS, KNOWN).because == ("virtualised: unknown (no DMI)",)


def test_conditions_are_told_in_words() -> None:
    told = in_words({"all": [{"any": [YES, {"fact": "vm", "is": False}]}, {"not": NO}]}, KNOWN)
    assert told == "(path is switch or bare metal) and not (fewer than 256 CPU threads)"


@pytest.mark.parametrize(
    "condition",
    ["threads", {}, {"fact": "nothing", "is": 1}, {"fact": "threads"}, {"fact": "threads", "over": 1}, {"all": YES},
     {"fact": "threads", "below": "256"}, {"fact": "threads", "below": 1, "is": 2}, {"not": YES, "all": []},
     {"any": [{"fact": "x", "is": 1}]}, {"fact": "path", "one_of": "switch"}],
)  # fmt: skip
def test_what_is_no_condition_is_refused_by_its_setting(condition) -> None:
    with pytest.raises(InputError, match=r"iommu_mode: .*is no condition"):
        check(condition, KNOWN, "iommu_mode")
