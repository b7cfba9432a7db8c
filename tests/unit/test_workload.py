from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.model_shape import derive_workload, read_model_shape
from tuning.workload import MAX_CALLS, built_in_names, load_workload, parse_workload, short, workload_name

GOOD = {"name": "w", "dtype": "bfloat16", "messages": [{"name": "m", "bytes": 42, "calls": 3}]}


def config(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    return path


def test_the_models_that_ship_have_their_published_messages() -> None:
    models = ("deepseek-v3", "glm-5", "kimi-k2")
    assert {name: [(m.bytes, m.calls) for m in load_workload(name).messages] for name in models} == {
        "deepseek-v3": [(14_336, 122), (43_008, 122)],
        "glm-5": [(12_288, 156), (49_152, 156)],
        "kimi-k2": [(14_336, 122), (43_008, 122)],
    }


@pytest.mark.parametrize("name", built_in_names())
def test_what_ships_can_be_read_under_its_own_name(name: str) -> None:
    assert load_workload(name).name == name


@pytest.mark.parametrize(
    "wrap", [lambda c: c, lambda c: {"model_type": "vl", "text_config": c}], ids=["plain", "wrapped"]
)
def test_61_layers_of_7168_give_122_calls(tmp_path: Path, wrap) -> None:
    path = config(tmp_path, wrap({"num_hidden_layers": 61, "hidden_size": 7168, "torch_dtype": "bfloat16"}))
    workload = derive_workload(read_model_shape(path, name="kimi"), draft_tokens=3)
    assert [(m.name, m.rows, m.bytes, m.calls) for m in workload.messages] == [
        ("baseline", 1, 14_336, 122),
        ("verify", 3, 43_008, 122),
    ]


def test_what_is_derived_can_be_read_back(tmp_path: Path) -> None:
    path = config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 10, "dtype": "float32"})
    workload = derive_workload(read_model_shape(path, name="tiny"), draft_tokens=4, batch=2, calls_per_layer=1)
    assert parse_workload(workload.to_dict(), where="x") == workload
    assert [(m.rows, m.bytes, m.calls) for m in workload.messages] == [(2, 80, 2), (8, 320, 2)]


def test_one_draft_token_is_no_speculation(tmp_path: Path) -> None:
    path = config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 10})
    assert [m.name for m in derive_workload(read_model_shape(path, name="t"), draft_tokens=1).messages] == ["baseline"]


def test_identity_is_of_what_is_measured_not_of_names() -> None:
    a = parse_workload(GOOD, where="x")
    assert parse_workload({**GOOD, "name": "other", "source": "s"}, where="x").identity == a.identity
    assert parse_workload({**GOOD, "dtype": "float16"}, where="x").identity != a.identity
    bigger = {**GOOD, "messages": [{"name": "m", "bytes": 44, "calls": 3}]}
    assert parse_workload(bigger, where="x").identity != a.identity


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"messages": [{"name": "m", "bytes": -4, "calls": 3}]}, "bytes is -4"),
        ({"messages": [{"name": "m", "bytes": 0, "calls": 3}]}, "bytes is 0"),
        ({"messages": [{"name": "m", "bytes": 1 << 40, "calls": 3}]}, "bytes is 1099511627776"),
        ({"messages": [{"name": "m", "bytes": 42.0, "calls": 3}]}, "bytes is 42.0"),
        ({"messages": [{"name": "m", "bytes": True, "calls": 3}]}, "bytes is True"),
        ({"messages": [{"name": "m", "bytes": "42", "calls": 3}]}, "bytes is '42'"),
        ({"messages": [{"name": "m", "bytes": 43, "calls": 3}]}, "bytes is 43"),
        ({"messages": [{"name": "m", "bytes": 42, "calls": 10**9}]}, "calls is 1000000000"),
        ({"messages": [{"name": "m", "bytes": 42}]}, "lacks calls"),
        ({"messages": [{"name": "m", "bytes": 42, "calls": 1, "size": 2}]}, "unknown keys: size"),
        ({"messages": []}, "messages is []"),
        ({"messages": GOOD["messages"] * 2}, "messages is ['m', 'm']"),
        ({"dtype": "int4"}, "dtype is 'int4'"),
        ({"dtype": ["float32"]}, "dtype is ['float32']"),
        ({"messages": [{"name": "m", "bytes": 16**10_000, "calls": 3}]}, "bytes is a number of 40,001 bits"),
        ({"source": "\ud800"}, "source is '\\ud800'"),
        ({"source": "x" * 2_000}, "source is 'xxx"),
        ({16**10_000: 1}, "unknown keys: a number of 40,001 bits"),
        ({"name": "Über uns"}, "name is"),
        ({"collective": "allgather"}, "collective is 'allgather'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_with_the_value(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_workload({**GOOD, **change}, where="w.yaml")
    assert says in caught.value.what
    assert "w.yaml" in caught.value.what
    assert caught.value.expected
    assert caught.value.todo


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_no_mapping_is_refused(document: object) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_workload(document, where="w.yaml")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        load_workload("llama")
    assert "kimi-k2" in caught.value.expected


@pytest.mark.parametrize(
    "text",
    [
        "name: [unclosed",
        "!!python/object/apply:os.system ['touch PWNED']",
        "&a [" + "*a, " * 3 + "]",
        "[" * 5_000,
        "name: w\n\x00",
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nname: [*b,*b,*b,*b,*b,*b]",
    ],
    ids=["unclosed", "python object", "recursive", "deep", "nul", "aliases"],
)
def test_hostile_yaml_is_an_error_by_name_and_runs_nothing(tmp_path: Path, text: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        load_workload(str(path))
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * (2 << 20)], ids=["not UTF-8", "huge"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_workload(str(path))
    with pytest.raises(InputError, match="not a file"):
        load_workload(f"{tmp_path}/")
    with pytest.raises(InputError, match="no such file"):
        load_workload(f"{tmp_path}/none.yaml")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"hidden_size": 7168},
        {"text_config": {"hidden_size": 1}},
        {"num_hidden_layers": 0, "hidden_size": 7168},
        {"num_hidden_layers": "61", "hidden_size": 7168},
        {"num_hidden_layers": 61, "hidden_size": -1},
        {"num_hidden_layers": 61, "hidden_size": 1e12},
    ],
)
def test_a_config_that_tells_no_shape_is_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(InputError):
        read_model_shape(config(tmp_path, document), name="x")


def test_absurd_options_are_refused(tmp_path: Path) -> None:
    shape = read_model_shape(config(tmp_path, {"num_hidden_layers": 61, "hidden_size": 7168}), name="x")
    for options in ({"draft_tokens": 0}, {"draft_tokens": 3, "batch": -1}, {"draft_tokens": 1000, "batch": 60_000}):
        with pytest.raises(InputError):
            derive_workload(shape, **options)


GOOD_YAML = "name: w\ndtype: bfloat16\nmessages:\n- {name: m, bytes: @, calls: 3}\n"


@pytest.mark.parametrize(
    "scalar",
    ["2026-13-45", "0b_", "!!int x", "!!int ''", "!!timestamp x", "!!bool x", "!!float ''", "9" * 5_000,
     "0x" + "f" * 50_000, "!!binary é", "!!map x", "!!null x", "[[1]: 2]", "{? [1] : 2}", "=", "<<",
     "{<<: {a: 1}}", ".nan", "1:1e1", "!!set {1}"],
)  # fmt: skip
def test_scalars_that_yaml_chokes_on_are_errors_in_three_parts(tmp_path: Path, scalar: str) -> None:
    path = tmp_path / "w.yaml"
    for text in (GOOD_YAML.replace("@", scalar), scalar):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_workload(str(path))
        assert len(caught.value.what) < 600


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD_YAML.replace("name: w", "name: &n w"), "anchor or alias 'n' in"),
        (GOOD_YAML.replace("name: w", "name: *n"), "anchor or alias 'n' in"),
        (GOOD_YAML + "dtype: float32\n", "key 'dtype' stands twice in"),
        (GOOD_YAML.replace("calls: 3", "calls: 3, calls: 4"), "key 'calls' stands twice in"),
    ],
    ids=["anchor", "alias", "key", "inner key"],
)
def test_anchors_and_doubled_keys_are_refused_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text.replace("@", "42"))
    with pytest.raises(InputError, match=r"line \d+") as caught:
        load_workload(str(path))
    assert says in caught.value.what


def test_billions_of_laughs_cost_nothing(tmp_path: Path) -> None:
    laughs: object = ["ha"] * 10
    for _ in range(9):
        laughs = [laughs] * 10
    started = time.monotonic()
    assert len(short(laughs)) <= 80
    with pytest.raises(InputError):
        parse_workload({**GOOD, "messages": laughs}, where="x")
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "text",
    ["9" * 5_000, '{"num_hidden_layers": ' + "9" * 5_000 + ', "hidden_size": 8}', "[" * 100_000, "{", "NaN", "",
     '{"num_hidden_layers": NaN, "hidden_size": 8}', '{"num_hidden_layers": 1, "hidden_size": Infinity}',
     '{"num_hidden_layers": 1, "hidden_size": ' + "9" * 4_000 + "}"],
)  # fmt: skip
def test_a_config_that_json_chokes_on_is_refused_briefly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_model_shape(path, name="x")
    assert len(caught.value.what) < 600


@pytest.mark.parametrize("dtype", [["bfloat16"], {}, None, 16, "int4"])
def test_an_unknown_dtype_of_a_config_is_taken_for_quantised_weights(tmp_path: Path, dtype: object) -> None:
    path = config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 10, "dtype": dtype})
    assert read_model_shape(path, name="t").dtype == "bfloat16"


def test_more_calls_than_a_workload_may_have_are_refused_with_what_makes_them(tmp_path: Path) -> None:
    shape = read_model_shape(config(tmp_path, {"num_hidden_layers": 5_000, "hidden_size": 64}), name="deep")
    assert derive_workload(shape, draft_tokens=3, calls_per_layer=2).messages[0].calls == MAX_CALLS
    with pytest.raises(InputError, match="5,000 layers x 8 calls make 40,000"):
        derive_workload(shape, draft_tokens=3, calls_per_layer=8)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Kimi-K2.5", "kimi-k2.5"), ("Modèle", "modele"), ("-x", "x"), ("..", "model"), ("模型", "model"),
     ("a  b/c", "a-b-c"), ("x" * 200, "x" * 64), ("", "model"), ("\udcff\n[/b]", "b")],
)  # fmt: skip
def test_any_text_makes_a_name_that_the_loader_takes(tmp_path: Path, text: str, name: str) -> None:
    assert workload_name(text) == name
    shape = read_model_shape(config(tmp_path, {"num_hidden_layers": 2, "hidden_size": 10}), name=text)
    made = derive_workload(shape, draft_tokens=3)
    assert parse_workload(made.to_dict(), where="x").name == name
