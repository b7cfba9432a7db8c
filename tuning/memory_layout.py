"""How a model is to be served: what decides what every GPU holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """How attention is laid out on the GPUs."""

    TENSOR = "tensor"  # its heads are divided
    DATA = "data"  # every GPU has all of it, and its own requests (attention DP)


class AllToAll(StrEnum):
    """What moves tokens between experts."""

    NONE = "none"
    FLASHINFER = "flashinfer"


class Drafting(StrEnum):
    """What drafts tokens."""

    NONE = "none"
    NEXTN = "nextn"  # the model's own layer for multi-token prediction
    EAGLE3 = "eagle3"  # a model of one dense layer


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is to be served.

    Attributes:
        gpus: GPUs that work together (tensor-parallel size).
        attention: how attention is divided.
        expert_parallel: whether whole experts lie on single GPUs, instead of a slice of every expert on all.
        all_to_all: what moves tokens between experts.
        drafting: what drafts tokens for speculation.
        draft_tokens: rows that a verify pass has for each request; 1 without speculation.
        concurrency: requests at the same time.
        context: tokens of each request, prompt and answer.
        kv_bytes: bytes of an element of the KV cache: 2 (BF16) or 1 (FP8).
        prefill_chunk: tokens of one prefill chunk; 0: what SGLang chooses.
        graph_batch: largest batch with a CUDA graph; 0: what SGLang chooses.
    """

    gpus: int
    attention: Attention = Attention.TENSOR
    expert_parallel: bool = False
    all_to_all: AllToAll = AllToAll.NONE
    drafting: Drafting = Drafting.NONE
    draft_tokens: int = 1
    concurrency: int = 1
    context: int = 8192
    kv_bytes: int = 2
    prefill_chunk: int = 0
    graph_batch: int = 0
