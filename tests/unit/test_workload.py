from __future__ import annotations

import json
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.model_shape import derive_workload, read_model_shape
from tuning.workload import built_in_names, load_workload, parse_workload

GOOD = {"name": "w", "dtype": "bfloat16", "messages": [{"name": "m", "bytes": 42, "calls": 3}]}


def config(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    return path


def test_the_models_that_ship_have_their_published_messages() -> None:
    sizes = {name: [(m.bytes, m.calls) for m in load_workload(name).messages] for name in built_in_names()}
    assert sizes == {
        "deepseek-v3": [(14_336, 122), (43_008, 122)],
        "glm-5": [(12_288, 156), (49_152, 156)],
        "kimi-k2": [(14_336, 122), (43_008, 122)],
    }


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
