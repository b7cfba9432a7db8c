from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.serving.prompts import PromptSet, built_in_prompts, load_prompts, token_prompts


def saved(tmp_path: Path, text: str, name: str = "mine.yaml") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_our_mix_has_40_prompts_evenly_in_five_categories() -> None:
    mixed = load_prompts("mixed")
    assert Counter(prompt.category for prompt in mixed.prompts) == dict.fromkeys(
        ("code", "maths", "chat", "summary", "translation"), 8
    )
    assert all(prompt.text and not prompt.tokens for prompt in mixed.prompts)
    assert len({prompt.text for prompt in mixed.prompts}) == 40
    assert built_in_prompts() == ["mixed"]


def test_identity_is_of_content_and_order_not_of_the_name() -> None:
    mixed = load_prompts("mixed")
    first, *others = mixed.prompts
    assert replace(mixed, name="x").identity == mixed.identity
    for prompts in (others, [*others, first], [replace(first, text=first.text + "."), *others]):
        assert PromptSet(name="mixed", prompts=tuple(prompts)).identity != mixed.identity


def test_token_prompts_are_reproducible_of_one_length_and_differ() -> None:
    made = load_prompts("tokens:16:1000")
    assert made == token_prompts(length=16, vocabulary=1000)
    assert {len(prompt.tokens) for prompt in made.prompts} == {16}
    assert len({prompt.tokens for prompt in made.prompts}) == len(made.prompts) == 64
    assert all(250 <= token < 750 for prompt in made.prompts for token in prompt.tokens)
    assert made.identity != load_prompts("tokens:17:1000").identity != load_prompts("tokens").identity


def test_a_set_is_found_again_under_its_own_name() -> None:
    for name in ("mixed", "tokens", "tokens:9"):
        made = load_prompts(name)
        assert load_prompts(made.name) == made


def test_mt_bench_gives_first_turns_with_their_categories(tmp_path: Path) -> None:
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
        {"question_id": 121, "category": "coding", "turns": ["Develop a program."], "reference": ["x"]},
    ]
    found = load_prompts(saved(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n", "question.jsonl"))
    assert [(p.id, p.category, p.text) for p in found.prompts] == [
        ("81", "writing", "Compose a post."),
        ("121", "coding", "Develop a program."),
    ]


def test_human_eval_is_code(tmp_path: Path) -> None:
    line = json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n    '''F.'''\n", "test": "..."})
    (prompt,) = load_prompts(saved(tmp_path, line, "HumanEval.jsonl")).prompts
    assert (prompt.id, prompt.category) == ("HumanEval/0", "code")
    assert prompt.text.startswith("def f()")


def test_lines_without_names_are_numbered(tmp_path: Path) -> None:
    found = load_prompts(saved(tmp_path, '{"prompt": "a"}\n\n{"prompt": "b"}', "x.jsonl"))
    assert [(prompt.id, prompt.category) for prompt in found.prompts] == [("1", "other"), ("3", "other")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it holds None"),
        ("[a]", "it holds ['a']"),
        ("code: text", "it holds {'code': 'text'}"),
        ("code: {}", "it has 0 prompts"),
        ("code: {a: [x]}", "prompt 'a' is ['x']"),
        ("code: {a: '  '}", "prompt 'a' is '  '"),
        ("code: {7: x}", "name is 7"),
        ("'': {a: x}", "category is ''"),
        ("code: {a: x, a: y}", "stands twice"),
        ("code: {a: x}\nchat: {a: y}", "names stand twice"),
        ("code: {a: &x t, b: *x}", "anchor or alias"),
        ("code: {a: !!python/object/apply:os.system ['touch PWNED']}", "not YAML"),
        ("[" * 5_000, "not YAML"),
        ('code: {a: "\\ud800"}', "prompt 'a'"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, says: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_prompts(saved(tmp_path, text))
    assert says in caught.value.what
    assert len(caught.value.what) < 600
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 prompts"),
        ("{", "line 1: it is not JSON"),
        ('{"prompt": "a"}\n[]', "line 2: it is []"),
        ('{"turns": []}', "is None"),
        ('{"turns": [3]}', "is 3"),
        ('{"prompt": "a", "category": ["x"]}', "category is ['x']"),
        ('{"prompt": "\\ud800"}', "is '\\ud800'"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
        ('{"prompt": "a"}\n' * 10_001, "10,001 prompts"),
        ('{"prompt": "a", "id": "x"}\n' * 2, "stand twice"),
    ],
)
def test_lines_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_prompts(saved(tmp_path, text, "x.jsonl"))
    assert says in caught.value.what
    assert len(caught.value.what) < 600


@pytest.mark.parametrize(
    "name", ["none", "tokens:0", "tokens:-1", "tokens:5:10", "tokens:9999999999", "/no/such.yaml", ""]
)
def test_names_that_cannot_be_meant_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        load_prompts(name)
