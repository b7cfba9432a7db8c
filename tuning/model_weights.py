"""A model's weights in groups that are divided among GPUs in one way, from its config or from safetensors headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tuning.model_parts import ModelParts
from tuning.safetensors_headers import Tensor

_BF16 = 2


class Divided(StrEnum):
    """How a group of weights lies on the GPUs."""

    EXPERTS = "routed experts"
    ATTENTION = "attention, by heads"
    ATTENTION_WHOLE = "attention, not divided"
    SHARED = "shared experts"
    MLP = "dense MLPs"
    ROUTER = "routers and norms"
    EMBEDDING = "embedding"
    HEAD = "head"
    OTHER = "vision tower and others"


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """Weights that are divided in one way: how, and their bytes in the whole model."""

    divided: Divided
    bytes: float


def weights_of_config(parts: ModelParts) -> tuple[WeightGroup, ...]:
    """The target model's weights, without layers for multi-token prediction and without a vision tower.

    Matrices as in the models' public code (DeepSeek-V3 technical report, arXiv:2412.19437, section 2.1, for MLA and
    experts; Llama's for grouped-query attention); biases are left out.
    """
    head = 0 if parts.tied else parts.vocab_size * parts.hidden_size * _BF16
    dense = parts.num_hidden_layers - parts.moe_layers
    sizes = {
        Divided.EXPERTS: parts.moe_layers
        * parts.n_routed_experts
        * parts.expert_parameters
        * parts.bytes_of("experts"),
        Divided.ATTENTION: parts.num_hidden_layers * _by_heads(parts) * parts.bytes_of("attention"),
        Divided.ATTENTION_WHOLE: parts.num_hidden_layers * _whole(parts) * parts.bytes_of("attention"),
        Divided.SHARED: parts.moe_layers * parts.n_shared_experts * parts.expert_parameters * parts.bytes_of("shared"),
        Divided.MLP: dense * 3 * parts.hidden_size * parts.intermediate_size * parts.bytes_of("mlp"),
        Divided.ROUTER: (parts.moe_layers * parts.n_routed_experts + 2 * parts.num_hidden_layers)
        * parts.hidden_size
        * _BF16,
        Divided.EMBEDDING: parts.vocab_size * parts.hidden_size * _BF16,
        Divided.HEAD: head,
    }
    return tuple(WeightGroup(divided=divided, bytes=size) for divided, size in sizes.items() if size)


def _by_heads(parts: ModelParts) -> int:
    """Attention weights of a layer that tensor parallelism divides by heads."""
    heads, hidden = parts.num_attention_heads, parts.hidden_size
    if not parts.kv_lora_rank:
        return hidden * parts.head_dim * 2 * (heads + parts.num_key_value_heads)
    query = (parts.q_lora_rank or hidden) * heads * (parts.qk_nope_head_dim + parts.qk_rope_head_dim)
    return query + absorbed_parameters(parts) + heads * parts.v_head_dim * hidden


def absorbed_parameters(parts: ModelParts) -> int:
    """Weights of a layer's kv_b projection (MLA); SGLang and vLLM keep them twice: as loaded, and split."""
    return parts.kv_lora_rank * parts.num_attention_heads * (parts.qk_nope_head_dim + parts.v_head_dim)


def _whole(parts: ModelParts) -> int:
    """Attention weights of a layer that every rank keeps whole: MLA's compressions, and the indexer."""
    if not parts.kv_lora_rank:
        return 0
    compressions = parts.hidden_size * (parts.q_lora_rank + parts.kv_lora_rank + parts.qk_rope_head_dim)
    indexer = parts.index_head_dim * (parts.q_lora_rank * parts.index_n_heads + parts.hidden_size)
    return compressions + indexer


_NAMES = (
    (Divided.SHARED, ("shared_expert",)),
    (Divided.EXPERTS, (".experts.",)),
    (Divided.ATTENTION_WHOLE, ("q_a_proj", "kv_a_proj", "indexer", "a_layernorm")),
    (Divided.ATTENTION, ("self_attn.", ".attn.", "attention.")),
    (Divided.ROUTER, (".mlp.gate.", "norm", "e_score_correction_bias")),
    (Divided.MLP, (".mlp.",)),
    (Divided.EMBEDDING, ("embed_tokens",)),
    (Divided.HEAD, ("lm_head",)),
)
"""Parts of tensor names as Hugging Face checkpoints have them, looked for in this order."""
_NOT_THE_MODEL = ("vision", "visual", "mm_projector")


def weights_of_tensors(tensors: Iterable[Tensor], parts: ModelParts) -> tuple[WeightGroup, ...]:
    """The same groups from a checkpoint's tensors, in the bytes that they have there.

    Args:
        tensors: of the whole checkpoint.
        parts: tells how many layers the target model has: what lies beyond is for multi-token prediction, and left out.
    """
    sums: dict[Divided, float] = {}
    for tensor in tensors:
        if not _is_beyond(tensor.name, parts.num_hidden_layers):
            divided = _divided(tensor.name)
            sums[divided] = sums.get(divided, 0) + tensor.bytes
    return tuple(WeightGroup(divided=divided, bytes=sums[divided]) for divided in Divided if sums.get(divided))


def _divided(name: str) -> Divided:
    if any(word in name for word in _NOT_THE_MODEL):
        return Divided.OTHER
    return next((divided for divided, words in _NAMES if any(word in name for word in words)), Divided.OTHER)


def _is_beyond(name: str, layers: int) -> bool:
    """Whether a tensor belongs to a layer after the target model's last."""
    _, found, rest = name.partition("layers.")
    number = rest.partition(".")[0]
    return bool(found) and number.isascii() and number.isdecimal() and len(number) < 9 and int(number) >= layers
