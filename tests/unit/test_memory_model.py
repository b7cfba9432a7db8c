from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit
from rich.console import Console

from lanewise.errors import InputError
from tuning import safetensors_headers
from tuning.memory_layout import AllToAll, Attention, Drafting, Layout
from tuning.memory_model import (
    GIB,
    Budget,
    Verdict,
    all_to_all_bytes,
    budget,
    kv_bytes_a_token,
    sglang_reserve,
)
from tuning.memory_request import read_layout, read_weights
from tuning.memory_view import document, show
from tuning.model_parts import find_gpu, find_parts, gpus, parse_parts, shipped_models
from tuning.model_weights import Divided, weights_of_config, weights_of_tensors
from tuning.safetensors_headers import Tensor, read_tensors
from tuning.speculation_verbs import predict_memory

CARD = find_gpu("rtx-pro-6000")
CAMPAIGN = Layout(
    gpus=8, attention=Attention.DATA, expert_parallel=True, all_to_all=AllToAll.FLASHINFER, drafting=Drafting.EAGLE3,
    draft_tokens=3,
)  # fmt: skip
NUMBERS = {
    "--gpus": 8, "--draft-tokens": 1, "--concurrency": 1, "--context": 8192, "--prefill-chunk": 0, "--graph-batch": 0,
}  # fmt: skip
DENSE = {
    "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


def of(model: str, **layout: object) -> Budget:
    parts = find_parts(model)
    return budget(parts, weights_of_config(parts), Layout(gpus=8, **layout), CARD)


def weights(made: Budget) -> float:
    """What is loaded of the model: its weights, and the second copy of kv_b."""
    return sum(line.least for line in made.lines if "weights" in line.name or "kv_b" in line.name)


# ------------------------------------------------------------------------------------------------- published sizes


VISION_GB = 0.9
"""Kimi's vision tower and projector, which no config of the language model describes."""


def gigabytes(model: str) -> float:
    """Of the whole model, as files have it."""
    return sum(group.bytes for group in weights_of_config(find_parts(model))) / 1e9


def test_kimi_has_its_published_size() -> None:
    """ "~555 GB", in units of 2^30: https://huggingface.co/gratex/Kimi-K2.6-REAM-25"""
    assert (gigabytes("kimi-k2") + VISION_GB) * 1e9 / GIB == pytest.approx(555, rel=0.003)


def test_two_layers_of_kimi_have_their_published_size() -> None:
    """16.4 GB with one dense and one MoE layer: https://huggingface.co/eatang/Kimi-K2.5-2layer"""
    slice_of_it = replace(find_parts("kimi-k2"), num_hidden_layers=2)
    made = sum(group.bytes for group in weights_of_config(slice_of_it)) / 1e9
    assert made + VISION_GB == pytest.approx(16.4, abs=0.05)


def test_deepseek_has_its_published_size() -> None:
    """671 B weights in FP8, those of embedding and head in BF16: https://huggingface.co/deepseek-ai/DeepSeek-V3

    685 B with the layer for multi-token prediction, which is not counted here.
    """
    assert gigabytes("deepseek-v3") == pytest.approx(671 + 2 * 129_280 * 7168 / 1e9, rel=0.001)


def test_a_rank_loads_what_a_log_of_that_model_says() -> None:
    """vLLM, GLM-5.1 NVFP4, 8 x RTX PRO 6000: "Model loading took 55.67 GiB memory".

    https://github.com/local-inference-lab/rtx6kpro, models/glm5.1/benchmarks, glm-dcp1-mtp0/startup.log
    """
    assert weights(of("glm-5")) / GIB == pytest.approx(55.67, rel=0.003)


def test_kv_cache_of_sparse_mla_is_what_a_log_says() -> None:
    """The same log: 19.55 GiB hold 341,504 tokens, in the format fp8_ds_mla with an indexer."""
    token = kv_bytes_a_token(find_parts("glm-5"), Layout(gpus=8, kv_bytes=1))
    assert token * 341_504 / GIB == pytest.approx(19.55, abs=0.005)


def test_kv_cache_and_weights_of_kimi_leave_what_a_server_used_for_the_rest() -> None:
    """vLLM, Kimi-K2.6 INT4, FP8 cache: 478,992 tokens at 0.94 of the memory (rtx6kpro, models/kimi-k26-v4.md)."""
    token = kv_bytes_a_token(find_parts("kimi-k2"), Layout(gpus=8, kv_bytes=1))
    assert token == 61 * 576
    left = 0.94 * CARD.memory_mib / 1024 - (token * 478_992 + weights(of("kimi-k2"))) / GIB
    assert 1 < left < 4


def test_grouped_query_attention_caches_whole_heads() -> None:
    parts = parse_parts(DENSE, where="x")
    assert kv_bytes_a_token(parts, Layout(gpus=1)) == 32 * 2 * 8 * 128 * 2  # Llama 3.1 8B: 128 KiB
    assert kv_bytes_a_token(parts, Layout(gpus=16)) == 32 * 2 * 1 * 128 * 2  # no less than a head
    assert kv_bytes_a_token(parts, Layout(gpus=8, attention=Attention.DATA)) == 32 * 2 * 8 * 128 * 2


# ------------------------------------------------------------------------------------------------- layouts


def test_the_campaigns_expert_parallel_attempt_does_not_fit() -> None:
    parts = find_parts("kimi-k2")
    made = budget(parts, weights_of_config(parts), CAMPAIGN, CARD)
    assert made.verdict is Verdict.BELOW_RESERVE
    assert weights(made) / GIB == pytest.approx(87.2, abs=0.1)
    assert made.capacity - made.least < 6 * GIB  # all that is left for graphs, prefill and requests
    assert any("attention DP" in told for told in made.assumptions)
    assert made.more_tokens == 0


def test_plain_tensor_parallelism_fits() -> None:
    made = of("kimi-k2", drafting=Drafting.EAGLE3, draft_tokens=3)
    assert made.verdict is Verdict.FITS
    assert made.more_tokens > 50_000


def test_a_model_in_fp8_does_not_fit_at_all() -> None:
    kimi_fp8 = replace(find_parts("kimi-k2"), bytes_each=find_parts("deepseek-v3").bytes_each)
    assert budget(kimi_fp8, weights_of_config(kimi_fp8), Layout(gpus=8), CARD).verdict is Verdict.DOES_NOT_FIT


def test_attention_dp_keeps_attention_whole_and_spreads_requests() -> None:
    tensor, data = of("kimi-k2", concurrency=32), of("kimi-k2", concurrency=32, attention=Attention.DATA)
    by_name = [{line.name: line.least for line in made.lines} for made in (tensor, data)]
    name = f"weights: {Divided.ATTENTION}"
    assert by_name[1][name] == pytest.approx(8 * by_name[0][name])
    assert by_name[1]["KV cache"] == pytest.approx(by_name[0]["KV cache"] / 8)


def test_the_all_to_all_workspace_is_flashinfers_formula() -> None:
    """ranks x (1,024 x ranks) tokens x (BF16 row + 8 choices x 8 bytes, and a BF16 row back)."""
    parts = find_parts("kimi-k2")
    assert all_to_all_bytes(parts, CAMPAIGN) == 8 * 8192 * (7168 * 2 + 64 + 7168 * 2)
    unspeculated = replace(CAMPAIGN, drafting=Drafting.NONE)
    assert all_to_all_bytes(parts, unspeculated) == 8 * 8192 * (7168 // 2 + 7168 // 16 + 64 + 7168 * 2)


def test_sglangs_reserve_is_its_rule() -> None:
    tensor = Layout(gpus=8)
    assert sglang_reserve(tensor, CARD, 8192, 512) / (1 << 20) == 512 + 8192 * 1.5 + 1024 + 1024
    assert sglang_reserve(tensor, CARD, 2048, 8) / (1 << 20) == 10 * 1024  # the least on large GPUs
    assert sglang_reserve(replace(tensor, drafting=Drafting.EAGLE3), CARD, 2048, 8) / (1 << 20) == 12 * 1024
    small = sglang_reserve(replace(tensor, attention=Attention.DATA, prefill_chunk=2048), CARD, 2048, 64)
    assert small / (1 << 20) == max(10 * 1024, 512 + 3072 + 128 + 1024 + 64 * 8 * 3)


def test_more_context_needs_more_and_a_speculating_layer_too() -> None:
    plain, longer = of("glm-5"), of("glm-5", context=100_000)
    assert longer.least > plain.least
    assert weights(of("glm-5", drafting=Drafting.NEXTN)) > weights(plain)


# ------------------------------------------------------------------------------------------------- configs


def test_every_shipped_model_and_gpu_can_be_read() -> None:
    assert {"kimi-k2", "glm-5", "deepseek-v3"} <= shipped_models().keys()
    assert all(gpu.memory_mib > 10_000 and gpu.gb_per_s > 100 and gpu.source for gpu in gpus().values())


@pytest.mark.parametrize(
    ("quantisation", "each"),
    [
        (None, 2),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 0.5 + 1 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            0.5 + 2 / 32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 16, "type": "float"}}},
            },
            0.5 + 1 / 16,
        ),
    ],
)
def test_quantised_weights_take_their_bits_and_scales(quantisation: object, each: float) -> None:
    assert parse_parts({**DENSE, "quantization_config": quantisation}, where="x").bytes_of("mlp") == pytest.approx(each)


def test_a_router_left_out_of_a_quantisation_is_no_mlp() -> None:
    quantisation = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["model.layers.3.mlp.gate"]}
    assert parse_parts({**DENSE, "quantization_config": quantisation}, where="x").bytes_of("mlp") == 1


def test_what_a_quantisation_leaves_out_stays_bf16() -> None:
    kimi = find_parts("kimi-k2")
    assert [kimi.bytes_of(part) for part in ("experts", "shared", "attention", "mlp")] == [0.5625, 2, 2, 2]


def test_a_wrapped_config_and_other_names_for_experts_are_read() -> None:
    inner = {**DENSE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 100}
    parts = parse_parts({"model_type": "vl", "text_config": inner}, where="x")
    assert (parts.n_routed_experts, parts.moe_layers) == (8, 32)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 0},
        {"hidden_size": "4096"},
        {"vocab_size": -1},
        {"intermediate_size": 1e9},
        {"num_attention_heads": True},
        {"num_attention_heads": None},
        {"n_routed_experts": 8},
        {"n_routed_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 4},
        {"first_k_dense_replace": 99},
        {"quantization_config": []},
        {"quantization_config": [1]},
        {"quantization_config": {"quant_method": "magic"}},
        {"quantization_config": {"quant_method": ["fp8"]}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}},
        {"quantization_config": {"quant_method": "awq"}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": 3}}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [[]]}},
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(change: dict[str, object]) -> None:
    if change == {"quantization_config": []}:
        assert parse_parts({**DENSE, **change}, where="x").bytes_of("mlp") == 2
        return
    with pytest.raises(InputError) as caught:
        parse_parts({**DENSE, **change}, where="x")
    assert len(caught.value.what) < 600


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, "9" * 5_000, '{"text_config": []}'])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError):
        find_parts(str(tmp_path))


# ------------------------------------------------------------------------------------------------- safetensors headers

BITS = {"BF16": 16, "F32": 32, "U8": 8, "F4": 4, "F8_E4M3": 8}


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], **changes: object) -> Path:
    """Write a file with a true header, and data of zeros that takes no disk."""
    entries, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = BITS[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size // 8]}
        end += size // 8
    header = json.dumps(entries | changes).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + end)
    return path


def test_headers_tell_names_and_sizes(tmp_path: Path) -> None:
    safetensors(tmp_path / "a.safetensors", {"x": ("BF16", [3, 5]), "y": ("F4", [4, 2])})
    safetensors(tmp_path / "b.safetensors", {"z": ("F32", [])})
    assert {tensor.name: tensor.bytes for tensor in read_tensors(tmp_path)} == {"x": 30, "y": 4, "z": 4}


def test_a_checkpoint_and_its_config_agree(tmp_path: Path) -> None:
    """Tensors written as Hugging Face names them are counted as the config counts them."""
    h, layers = 64, 3
    config = {
        "num_hidden_layers": layers, "hidden_size": h, "vocab_size": 100, "intermediate_size": 96,
        "num_attention_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": [100, h], "lm_head.weight": [100, h], "vision_tower.x": [7]}
    for layer in range(layers + 1):  # the last is for multi-token prediction
        at = f"model.layers.{layer}"
        attention = {
            "q_a_proj": [16, h], "q_b_proj": [4 * 12, 16], "kv_a_proj_with_mqa": [36, h], "kv_b_proj": [4 * 16, 32],
            "o_proj": [h, 32],
        }  # fmt: skip
        shapes |= {f"{at}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes |= {f"{at}.input_layernorm.weight": [h], f"{at}.post_attention_layernorm.weight": [h]}
        where, width = (
            (["mlp"], 96) if layer == 0 else ([f"mlp.experts.{e}" for e in range(4)] + ["mlp.shared_experts"], 24)
        )
        shapes |= {f"{at}.{w}.{p}_proj.weight": [width, h] for w in where for p in ("gate", "up", "down")}
        if layer:
            shapes[f"{at}.mlp.gate.weight"] = [4, h]
    safetensors(tmp_path / "model.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()})
    (tmp_path / "config.json").write_text(json.dumps(config))
    parts, found, where_from = read_weights(str(tmp_path))
    assert where_from == "safetensors headers"
    assert {g.divided: g.bytes for g in found} == {g.divided: g.bytes for g in weights_of_config(parts)} | {
        Divided.OTHER: 14
    }


def test_layers_beyond_the_model_are_left_out_and_strange_names_are_others() -> None:
    parts = parse_parts(DENSE, where="x")
    names = (
        "model.layers.31.mlp.up_proj.weight",
        "model.layers.32.mlp.up_proj.weight",
        "layers.x",
        f"layers.{'9' * 99}",
    )
    found = weights_of_tensors([Tensor(name=name, bytes=8) for name in names], parts)
    assert {group.divided: group.bytes for group in found} == {Divided.MLP: 8, Divided.OTHER: 16}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (3, "is 3"),
        ({"dtype": "INT3", "shape": [1], "data_offsets": [0, 1]}, "dtype 'INT3'"),
        ({"dtype": ["U8"], "shape": [1], "data_offsets": [0, 1]}, "dtype"),
        ({"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}, "shape"),
        ({"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}, "shape"),
        ({"dtype": "U8", "shape": [1] * 99, "data_offsets": [0, 1]}, "shape"),
        ({"dtype": "U8", "shape": [1 << 60], "data_offsets": [0, 1]}, "shape"),
        ({"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}, "cannot have 1 bytes"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}, "data_offsets"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [99, 100]}, "data_offsets"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [0]}, "data_offsets"),
        ({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "overlaps"),
    ],
)
def test_a_tensor_that_lies_is_refused_by_name(tmp_path: Path, entry: object, says: str) -> None:
    path = safetensors(tmp_path / "x.safetensors", {"good": ("U8", [4])}, evil=entry)
    with pytest.raises(InputError) as caught:
        read_tensors(path)
    assert says in caught.value.what
    assert len(caught.value.what) < 600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 8 + b"{}",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"\xff\xfe",
        (6).to_bytes(8, "little") + b'{"a":3',
        (15).to_bytes(8, "little") + b'{"a":{},"a":{}}',
        (50_000).to_bytes(8, "little") + b"[" * 50_000,
        (5_000).to_bytes(8, "little") + b"9" * 5_000,
    ],
)  # fmt: skip
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_tensors(path)
    assert len(caught.value.what) < 700


def test_missing_files_pipes_and_doubled_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_tensors(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="holds 0"):
        read_tensors(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="not a regular file"):
        read_tensors(tmp_path / "pipe.safetensors")
    (tmp_path / "two").mkdir()
    for name in "ab":
        safetensors(tmp_path / "two" / f"{name}.safetensors", {"same": ("U8", [1])})
    with pytest.raises(InputError, match="another file"):
        read_tensors(tmp_path / "two")


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 30).to_bytes(8, "little") + b"{}")
    os.truncate(path, 2 << 30)
    with pytest.raises(InputError, match="1,073,741,824"):
        read_tensors(path)


def test_headers_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        safetensors(tmp_path / f"{number}.safetensors", {f"t{number}": ("U8", [1])})
    assert len(read_tensors(tmp_path)) == 3
    monkeypatch.setattr(safetensors_headers, "_MOST_HEADERS", 200)
    with pytest.raises(InputError, match="more than 200 bytes of headers"):
        read_tensors(tmp_path)


def test_damaged_headers_end_in_named_errors_only(tmp_path: Path) -> None:
    draw = random.Random(5)
    whole = safetensors(tmp_path / "x.safetensors", {f"t{n}": ("BF16", [n, 2]) for n in range(6)}).read_bytes()
    refused = []
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "x.safetensors").write_bytes(data[: draw.randrange(len(data)) if draw.random() < 0.3 else None])
        try:
            read_tensors(tmp_path / "x.safetensors")
        except InputError as error:
            refused.append(len(error.what))
    assert len(refused) > 120
    assert max(refused) < 700


# ------------------------------------------------------------------------------------------------- the verb


@pytest.mark.parametrize(
    ("numbers", "options", "says"),
    [
        ({"--gpus": 0}, {}, "--gpus is 0"),
        ({"--context": -1}, {}, "--context is -1"),
        ({"--concurrency": 10**9}, {}, "--concurrency"),
        ({}, {"attention": "both"}, "'both'"),
        ({}, {"all_to_all": "nvshmem"}, "'nvshmem'"),
        ({}, {"speculation": "medusa"}, "'medusa'"),
        ({}, {"kv_cache": "int4"}, "'int4'"),
        ({}, {"speculation": "nextn"}, "multi-token prediction"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(numbers: dict[str, int], options: dict[str, str], says: str) -> None:
    words = {"attention": "", "all_to_all": "none", "speculation": "none", "kv_cache": "bf16"} | options
    with pytest.raises(InputError) as caught:
        read_layout(find_parts("kimi-k2"), NUMBERS | numbers, expert_parallel=False, **words)
    assert says in caught.value.what


def test_a_dense_model_has_no_experts_to_spread() -> None:
    words = {"attention": "", "all_to_all": "none", "speculation": "none", "kv_cache": "bf16"}
    with pytest.raises(InputError, match="no experts"):
        read_layout(parse_parts(DENSE, where="x"), NUMBERS, expert_parallel=True, **words)


def test_what_is_shown_names_verdict_needs_and_assumptions() -> None:
    parts = find_parts("kimi-k2")
    made = budget(parts, weights_of_config(parts), CAMPAIGN, CARD)
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(show(made, CARD, "models.yaml"))
    for words in ("predicted: does not fit", "all-to-all workspace", "attention DP", "GiB are missing"):
        assert words in captured.get()
    assert json.loads(json.dumps(document(made, CARD, "models.yaml")))["kind"] == "predicted"


def test_the_verb_answers_no_with_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as ended:
        predict_memory(Context(), all_to_all="flashinfer", speculation="eagle3", draft_tokens=3, json=True)
    assert ended.value.code == 3
    assert not json.loads(capsys.readouterr().out)["fits"]
    predict_memory(Context(), json=True)
    assert json.loads(capsys.readouterr().out)["fits"]


@pytest.mark.parametrize("name", [5000 * "a", 5000 * "a" + "/config.json", "~no-such-user", "nothing\0"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"there is no model|cannot read model config"):
        find_parts(name)
