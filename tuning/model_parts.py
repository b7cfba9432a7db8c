"""What a model is made of: sizes of its parts, as its config.json tells them, and the GPUs that they go on."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lanewise.errors import InputError
from lanewise.files import read_text
from tuning.workload import short

_HERE = Path(__file__).parent
_INNER = ("text_config", "language_config", "llm_config")
"""Where multimodal wrappers keep the language model's config."""
_MAX_FILE_BYTES = 16 << 20
_MOST = 1 << 24
_TODO = "name the config.json of the language model, or a model that ships"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU.

    Attributes:
        name: for people.
        memory_mib: memory.total of nvidia-smi.
        gb_per_s: peak memory bandwidth, 10^9 bytes a second.
        source: where the numbers are from.
    """

    name: str
    memory_mib: int
    gb_per_s: float
    source: str


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """The numbers of a config.json that decide memory and traffic; 0 where a model has no such part.

    Attributes:
        num_hidden_layers: layers of the target model.
        hidden_size: elements of one row of hidden states.
        vocab_size: rows of the embedding and of the head.
        intermediate_size: width of a dense MLP.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads of grouped-query attention.
        head_dim: elements of a head of grouped-query attention.
        q_lora_rank: rank of compressed queries (MLA).
        kv_lora_rank: rank of the compressed keys and values that MLA caches; 0: no MLA.
        qk_nope_head_dim: elements of a head without position (MLA).
        qk_rope_head_dim: elements with position, shared by all heads (MLA).
        v_head_dim: elements of a value head (MLA).
        index_n_heads: heads of the indexer of sparse attention.
        index_head_dim: elements of a head of the indexer.
        n_routed_experts: experts of an MoE layer.
        n_shared_experts: experts that every token passes.
        num_experts_per_tok: routed experts that a token passes.
        moe_intermediate_size: width of one expert.
        first_k_dense_replace: leading layers with a dense MLP instead of experts.
        num_nextn_predict_layers: layers for multi-token prediction (MTP, NextN).
        tied: embedding and head are one matrix.
        bytes_each: bytes of a weight, scales included, of "experts", "shared", "attention" and "mlp".
    """

    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_n_heads: int = 0
    index_head_dim: int = 0
    n_routed_experts: int = 0
    n_shared_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    num_nextn_predict_layers: int = 0
    tied: bool = False
    bytes_each: tuple[tuple[str, float], ...] = ()

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_hidden_layers - self.first_k_dense_replace if self.n_routed_experts else 0

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert: gate, up and down projection."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    def bytes_of(self, part: str) -> float:
        """Bytes of one weight of a part, scales included."""
        return dict(self.bytes_each)[part]


_SIZES = [f.name for f in fields(ModelParts) if f.name not in ("tied", "bytes_each")]
_REQUIRED = ("num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads")
_ALIASES = {"n_routed_experts": ("num_experts", "num_local_experts")}
_BF16 = 2.0
_PARTS = ("experts", "shared", "attention", "mlp")
_WORDS = {"shared": ("shared_expert",), "attention": ("attn", "attention"), "mlp": ("mlp.", "mlp*", "mlp\\.")}
"""Words by which a quantisation's list of exceptions names a part. Routed experts are what is quantised first, and such
a list names single ones of them at most."""


@cache
def gpus() -> dict[str, Gpu]:
    """The GPUs of gpus.yaml by their short names."""
    return {name: Gpu(**row) for name, row in _shipped("gpus.yaml").items()}


@cache
def shipped_models() -> dict[str, ModelParts]:
    """The models of models.yaml by name."""
    return {name: parse_parts(row["config"], where=name) for name, row in _shipped("models.yaml").items()}


def _shipped(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_HERE / name).read_text(encoding="utf-8"))
    return document


def find_gpu(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        InputError: there is none.
    """
    if name not in gpus():
        raise InputError(f"there is no GPU {name!r}", expected=f"one of {', '.join(gpus())}", todo="name one of these")
    return gpus()[name]


def find_parts(name_or_path: str) -> ModelParts:
    """The model that ships under that name, or that a config.json (or the folder that holds one) describes.

    Raises:
        InputError: unknown name, unreadable file, or a value that is not allowed.
    """
    if name_or_path in shipped_models():
        return shipped_models()[name_or_path]
    path = Path(name_or_path)
    if "/" not in name_or_path and not os.path.exists(path):  # noqa: PTH110 - never raises, however long the name is
        raise InputError(
            f"there is no model {short(name_or_path)}",
            expected=f"one of {', '.join(shipped_models())}, or a path to a config.json or its folder",
            todo="name one of these",
        )
    path = path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112 - as above
    text = read_text(path, what="model config", limit=_MAX_FILE_BYTES)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"model config {path} is not JSON: {str(error)[:200]}", expected="a Hugging Face config.json", todo=_TODO
        ) from error
    return parse_parts(document, where=str(path))


def parse_parts(document: object, *, where: str) -> ModelParts:
    """The parts that a config.json's content describes, at its top or inside text_config and its like.

    Raises:
        InputError: a size is missing or not allowed, or the quantisation is unknown.
    """
    config, quantisation = _language_model(document, where)
    sizes = {key: _size(config, key, where) for key in _SIZES}
    experts, each = sizes["n_routed_experts"], sizes["num_experts_per_tok"]
    if experts and not (1 <= each <= experts and sizes["moe_intermediate_size"]):
        raise _bad(where, "num_experts_per_tok", each, f"1 to {experts:,} experts, and a moe_intermediate_size")
    if sizes["first_k_dense_replace"] > sizes["num_hidden_layers"]:
        raise _bad(where, "first_k_dense_replace", sizes["first_k_dense_replace"], "at most num_hidden_layers")
    if not sizes["kv_lora_rank"]:
        sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or sizes["num_attention_heads"]
        sizes["head_dim"] = sizes["head_dim"] or max(1, sizes["hidden_size"] // sizes["num_attention_heads"])
    return ModelParts(
        **sizes,
        tied=config.get("tie_word_embeddings") is True,
        bytes_each=tuple((part, _bytes_each(quantisation, part, where)) for part in _PARTS),
    )


def _language_model(document: object, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The language model's config, and the quantisation, which wrappers keep at either level."""
    if isinstance(document, dict):
        for inner in (document, *(document.get(key) for key in _INNER)):
            if isinstance(inner, dict) and "num_hidden_layers" in inner:
                quantisation = inner.get("quantization_config") or document.get("quantization_config") or {}
                if not isinstance(quantisation, dict):
                    raise _bad(where, "quantization_config", quantisation, "a mapping")
                return inner, quantisation
    raise InputError(
        f"model config {where} tells no num_hidden_layers",
        expected=f"a Hugging Face config, with it at the top or inside {', '.join(_INNER)}",
        todo=_TODO,
    )


def _size(config: dict[str, Any], key: str, where: str) -> int:
    value = next((config[name] for name in (key, *_ALIASES.get(key, ())) if config.get(name) is not None), 0)
    least = 1 if key in _REQUIRED else 0
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise _bad(where, key, value, f"a whole number from {least} to {_MOST:,}")
    return value


def _bytes_each(quantisation: dict[str, Any], part: str, where: str) -> float:
    """Bytes of a weight with its scales; 2 (BF16) where the quantisation leaves the part out."""
    if any(word in entry for entry in _exceptions(quantisation) for word in _WORDS.get(part, ())):
        return _BF16
    match quantisation.get("quant_method"):
        case None:
            return _BF16
        case "fp8":
            block = quantisation.get("weight_block_size")
            pair = block if isinstance(block, list) and len(block) == 2 else (1 << 12, 1 << 12)
            return 1 + 4 / (_positive(pair[0], where) * _positive(pair[1], where))
        case "modelopt":
            four = "4" in str(quantisation.get("quant_algo", ""))[:20]
            return 0.5 + 1 / _positive(quantisation.get("group_size", 16), where) if four else 1.0
        case "compressed-tensors":
            return _compressed(quantisation, where)
        case "awq" | "gptq":
            bits, group = (_positive(quantisation.get(key), where) for key in ("bits", "group_size"))
            return bits / 8 + (2 + bits / 8) / group
        case other:
            raise InputError(
                f"model config {where} has quant_method {short(other)}",
                expected="none, or one of fp8, modelopt, compressed-tensors, awq, gptq",
                todo="name the folder that holds its safetensors files too: sizes are then read from their headers",
            )


def _exceptions(quantisation: dict[str, Any]) -> list[str]:
    """What a quantisation leaves out, whatever its format calls that list."""
    lists = (quantisation.get(key) for key in ("ignore", "exclude_modules", "modules_to_not_convert"))
    entries = [entry for found in lists if isinstance(found, list) for entry in found if isinstance(entry, str)]
    return [entry for entry in entries if not entry.rstrip("$*.").endswith("mlp.gate")]  # a router, no part of an MLP


def _compressed(quantisation: dict[str, Any], where: str) -> float:
    """Bytes of a weight packed by compressed-tensors: scales of a group are BF16, or FP8 for 4-bit floats (NVFP4)."""
    groups = quantisation.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise _bad(where, "config_groups", groups, "a mapping of groups, each with weights")
    bits = _positive(weights.get("num_bits"), where)
    group = weights.get("group_size")
    scale = 1 if weights.get("type") == "float" else 2
    return bits / 8 + (scale / _positive(group, where) if group else 0)


def _positive(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise _bad(where, "a number of quantization_config", value, f"a whole number from 1 to {_MOST:,}")
    return value


def _bad(where: str, key: str, value: object, expected: str) -> InputError:
    return InputError(f"model config {where}: {key} is {short(value)}", expected=expected, todo=_TODO)
