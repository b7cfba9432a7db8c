"""Rules decide from small package trees: true, false, or not to be told, with the line that tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.conditions import Answer, Box, Subject, ask
from images.preflight import Finding, judge
from images.rules import Approach, Group, Verdict, libraries_wanted, read_approaches, sources_wanted
from images.snapshot import Snapshot
from lanewise.errors import InputError

BOX = Box(cuda="12.8.1", arch={"flashinfer": "12.0a"}, gpus=8)
TABLE = "pkg/tables.py"
SNAPSHOT = Snapshot(
    texts={
        TABLE: "SIZES = {9: 1, 10: 2}\nWORLD = [2, 4, 8]\nMODE = 'x'\nsize = SIZES[major]\n",
        "pkg/broken.py": "def (",
        "pkg/gen.py": "def gen():\n    f(majors=[9, 12])\ndef gate():\n    return is_sm90()\n",
        "pkg/modes.py": "class Mode(Enum):\n    EAGLE = 1\n",
    },
    versions={"pkg": "0.5.14"},
    unreadable={"torch": "wheel has another hash", "pkg/bad.py": "not UTF-8 text"},
    paths=frozenset({"pkg/data/kernel.cu"}),
)

YAML = """\
approaches:
  - id: symm-mem
    name: symmetric memory
    group: allreduce
    switch: --enable
    rules:
      - id: raises
        when:
          - dict: {file: pkg/tables.py, name: SIZES, lacks: 12}
          - use: {file: pkg/tables.py, name: SIZES, how: subscript}
        verdict: fails
        error: "KeyError: 12"
        why: the table has no 12
        unblock: a newer one
        source: https://example.org/1
      - id: fine
        when:
          - dict: {file: pkg/tables.py, name: SIZES, has: 12}
        verdict: starts
        why: it has 12
        source: https://example.org/2
"""


def answer(condition: str, /, **parameters: object) -> Answer:
    return ask(condition, parameters, Subject(snapshot=SNAPSHOT, box=BOX))


@pytest.mark.parametrize(
    ("name", "parameters", "holds"),
    [
        ("package", {"name": "pkg", "at_least": "0.5.14", "below": "0.6"}, True),
        ("package", {"name": "pkg", "at_least": "0.5.14.post1"}, False),
        ("package", {"name": "other", "present": False}, True),
        ("package", {"name": "other"}, False),
        ("package", {"name": "torch"}, None),
        ("cuda", {"at_least": "12.9"}, False),
        ("cuda", {"at_least": "12.8", "below": "13"}, True),
        ("arch", {"tool": "flashinfer", "is": "12.0a"}, True),
        ("arch", {"tool": "flashinfer", "is_not": "12.0a"}, False),
        ("arch", {"tool": "none", "is_not": "12.0a"}, True),
        ("gpus", {"above": 2}, True),
        ("gpus", {"at_most": 2}, False),
        ("gpus", {"one_of": [2, 4]}, False),
        ("file", {"path": "pkg/data/*.cu"}, True),
        ("file", {"path": "pkg/none.py", "present": False}, True),
        ("file", {"path": "torch/lib/x.so"}, None),
        ("text", {"file": TABLE, "pattern": r"WORLD = \["}, True),
        ("text", {"file": TABLE, "pattern": "nowhere", "present": False}, True),
        ("text", {"file": "pkg/*.py", "pattern": "is_sm90"}, True),
        ("text", {"file": "pkg/none.py", "pattern": "x"}, None),
        ("text", {"file": "pkg/bad.py", "pattern": "x"}, None),
        ("dict", {"file": TABLE, "name": "SIZES", "lacks": 12}, True),
        ("dict", {"file": TABLE, "name": "SIZES", "has": 12}, False),
        ("dict", {"file": TABLE, "name": "WORLD", "has": 12}, None),
        ("dict", {"file": "pkg/broken.py", "name": "SIZES", "has": 12}, None),
        ("constant", {"file": TABLE, "name": "WORLD", "has_gpus": True}, True),
        ("constant", {"file": TABLE, "name": "WORLD", "lacks_gpus": True}, False),
        ("constant", {"file": TABLE, "name": "WORLD", "lacks": 6}, True),
        ("constant", {"file": TABLE, "name": "MODE", "equals": "x"}, True),
        ("constant", {"file": TABLE, "name": "size", "has": 1}, None),
        ("use", {"file": TABLE, "name": "SIZES", "how": "subscript"}, True),
        ("use", {"file": TABLE, "name": "SIZES", "how": "get", "present": False}, True),
        ("keyword", {"file": "pkg/gen.py", "function": "gen", "keyword": "majors", "has": 12}, True),
        ("keyword", {"file": "pkg/gen.py", "function": "gen", "keyword": "majors", "lacks": 12}, False),
        ("keyword", {"file": "pkg/gen.py", "function": "gone", "keyword": "majors", "has": 12}, None),
        ("calls", {"file": "pkg/gen.py", "function": "gate", "name": "is_sm90"}, True),
        ("calls", {"file": "pkg/gen.py", "function": "gen", "name": "is_sm90", "present": False}, True),
        ("enum", {"file": "pkg/modes.py", "class": "Mode", "has": "EAGLE"}, True),
        ("enum", {"file": "pkg/modes.py", "class": "Mode", "lacks": "UNO"}, True),
        ("enum", {"file": "pkg/modes.py", "class": "None", "has": "UNO"}, None),
        ("library", {"path": "torch/lib/x.so", "verdict": ["native"]}, None),
        ("library", {"path": "pkg/x.so", "present": False}, True),
        ("nccl", {"at_least": "2.27"}, None),
    ],
)
def test_a_condition_holds_or_not_or_cannot_be_told(name: str, parameters: dict, holds: bool | None) -> None:
    found = answer(name, **parameters)
    assert found.holds is holds
    assert bool(found.reason) is (holds is None), "what cannot be told says why, and nothing else does"
    assert bool(found.evidence) is (holds is not None), "what is decided leaves evidence"


def test_evidence_names_file_and_line() -> None:
    (item,) = answer("use", file=TABLE, name="SIZES", how="subscript").evidence
    assert (item.file, item.line, item.text) == (TABLE, 4, "size = SIZES[major]")


def catalogue(folder: Path, text: str = YAML) -> tuple[Approach, ...]:
    (folder / "one.yaml").write_text(text)
    return read_approaches(folder)


def judged(folder: Path, snapshot: Snapshot) -> Finding:
    (finding,) = judge(catalogue(folder), snapshot, BOX)
    return finding


def test_the_first_rule_whose_conditions_all_hold_decides(tmp_path: Path) -> None:
    finding = judged(tmp_path, SNAPSHOT)
    assert finding.verdict is Verdict.FAILS
    assert finding.rule is not None
    assert finding.rule.error == "KeyError: 12"
    assert [(item.file, item.line) for item in finding.evidence] == [(TABLE, 1), (TABLE, 4)]


def test_another_table_gives_another_verdict(tmp_path: Path) -> None:
    finding = judged(tmp_path, Snapshot(texts={TABLE: "SIZES = {9: 1, 12: 2}\n"}))
    assert finding.verdict is Verdict.STARTS


def test_where_no_rule_decides_it_is_unknown(tmp_path: Path) -> None:
    finding = judged(tmp_path, Snapshot(texts={TABLE: "SIZES = {9: 1}\nSIZES.get(12)\n"}))
    assert (finding.verdict, finding.rule) == (Verdict.UNKNOWN, None)
    assert "no rule decides" in finding.reason


def test_a_rule_that_might_have_decided_makes_it_unknown_and_says_why(tmp_path: Path) -> None:
    finding = judged(tmp_path, Snapshot(texts={TABLE: "SIZES = {"}))
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.reason.startswith(f"{TABLE}: line 1")


def test_one_broken_package_hides_nothing_else(tmp_path: Path) -> None:
    other = YAML.replace("symm-mem", "other").replace("pkg/", "torch/").replace("raises", "r2").replace("fine", "f2")
    (tmp_path / "two.yaml").write_text(other)
    approaches = catalogue(tmp_path)
    first, second = judge(approaches, SNAPSHOT, BOX)
    assert first.verdict is Verdict.FAILS
    assert second.verdict is Verdict.UNKNOWN
    assert "another hash" in second.reason


def test_what_the_rules_read(tmp_path: Path) -> None:
    approaches = catalogue(tmp_path)
    assert sources_wanted(approaches) == {TABLE}
    assert libraries_wanted(approaches) == frozenset()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lacks: 12", "lacking: 12", "lacking"),
        ("- dict:", "- dictionary:", "no condition 'dictionary'"),
        ("verdict: fails", "verdict: breaks", "breaks"),
        ('error: "KeyError: 12"', 'error: ""', "what it ends in"),
        ("unblock: a newer one", 'unblock: ""', "unblock"),
        ("why: the table has no 12", 'why: ""', "why and source"),
        ("id: fine", "id: raises", "given twice"),
        ("group: allreduce", "group: misc", "misc"),
        ("    switch: --enable\n", "", "switch"),
        ("approaches:", "approach:", "approaches"),
        ("file: pkg/tables.py, name: SIZES, lacks", "file: '*/tables.py', name: SIZES, lacks", "no pattern"),
        ("how: subscript}", "how: subscript}\n          - text: {file: x, pattern: '('}", "unterminated"),
    ],
)
def test_a_catalogue_that_is_wrong_is_refused_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in YAML
    with pytest.raises(InputError) as caught:
        catalogue(tmp_path, YAML.replace(old, new, 1))
    assert said in str(caught.value)
    assert "one.yaml" in str(caught.value) or "given twice" in str(caught.value)


def test_groups_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        YAML.replace("allreduce", "speculation").replace("symm-mem", "a").replace("raises", "b").replace("fine", "c")
    )
    assert [a.group for a in catalogue(tmp_path)] == [Group.ALLREDUCE, Group.SPECULATION]
