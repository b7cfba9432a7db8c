"""What a model needs on each GPU before it is loaded: weights, KV cache, workspaces, and what SGLang keeps free.

Sizes are of the rank that has most. Two sums are made: the least that can be (no CUDA graphs, one prefill chunk's
activations), and with what SGLang itself reserves for activations and graphs when --mem-fraction-static is not given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from tuning.memory_layout import AllToAll, Attention, Drafting, Layout
from tuning.model_parts import Gpu, ModelParts
from tuning.model_weights import Divided, WeightGroup, absorbed_parameters

GIB = 1 << 30
_MIB = 1 << 20
_BF16 = 2


@dataclass(frozen=True, kw_only=True)
class Line:
    """One need.

    Attributes:
        name: what it is.
        least: bytes that it takes at least.
        reserved: bytes that are set aside for it.
        why: how it was computed, with the source.
    """

    name: str
    least: float
    reserved: float
    why: str


class Verdict(StrEnum):
    """Whether it fits."""

    FITS = "fits"
    BELOW_RESERVE = "does not fit with what SGLang keeps free"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The whole sum for one GPU.

    Attributes:
        capacity: bytes of the GPU.
        lines: the needs.
        token_bytes: bytes of KV cache that one token takes on a GPU.
        assumptions: what was assumed, each a sentence.
    """

    capacity: float
    lines: tuple[Line, ...]
    token_bytes: float
    assumptions: tuple[str, ...]

    @property
    def least(self) -> float:
        """Bytes that are needed at least."""
        return sum(line.least for line in self.lines)

    @property
    def reserved(self) -> float:
        """Bytes that are needed with SGLang's own reserve."""
        return sum(line.reserved for line in self.lines)

    @property
    def verdict(self) -> Verdict:
        """Whether it fits."""
        if self.least > self.capacity:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if self.reserved <= self.capacity else Verdict.BELOW_RESERVE

    @property
    def more_tokens(self) -> int:
        """Tokens for which there is room in the KV cache of a GPU beyond those asked for; 0 where it does not fit."""
        return max(0, int((self.capacity - self.reserved) / self.token_bytes))


def budget(parts: ModelParts, weights: tuple[WeightGroup, ...], layout: Layout, gpu: Gpu) -> Budget:
    """What every GPU needs. `weights`: from `weights_of_config` or `weights_of_tensors`."""
    chunk, graphs = _chunk_and_graphs(layout, gpu)
    token_bytes = kv_bytes_a_token(parts, layout)
    tokens = _requests(layout) * (layout.context + layout.draft_tokens)
    lines = [
        *(_weights(group, layout) for group in weights),
        _same("kv_b of MLA, split", _absorbed(parts, layout), "SGLang and vLLM keep it beside the loaded matrix"),
        *_drafting(parts, weights, layout),
        _same("KV cache", tokens * token_bytes, f"{tokens:,} tokens of {token_bytes:,.0f} bytes"),
        _allreduce(layout),
        _same(
            "all-to-all workspace",
            all_to_all_bytes(parts, layout),
            "FlashInfer's formula, SGLang's 1,024 tokens a rank",
        ),
        Line(
            name="activations, CUDA graphs, runtime",
            least=_RUNTIME_LEAST + chunk * activation_bytes_a_token(parts, layout),
            reserved=sglang_reserve(layout, gpu, chunk, graphs),
            why=f"least: a prefill chunk of {chunk:,} tokens, {_RUNTIME_LEAST / GIB:g} GiB for CUDA and its libraries; "
            f"reserved: SGLang's rule for that chunk and graphs up to a batch of {graphs}",
        ),
    ]
    return Budget(
        capacity=gpu.memory_mib * _MIB,
        lines=tuple(line for line in lines if line.reserved),
        token_bytes=token_bytes,
        assumptions=_assumptions(layout),
    )


def _same(name: str, size: float, why: str) -> Line:
    return Line(name=name, least=size, reserved=size, why=why)


def _weights(group: WeightGroup, layout: Layout) -> Line:
    by = ranks_of(group.divided, layout)
    why = f"{group.bytes / 1e9:,.1f} GB " + (f"over {by} GPUs" if by > 1 else "on every GPU")
    return _same(f"weights: {group.divided}", group.bytes / by, why)


def ranks_of(divided: Divided, layout: Layout) -> int:
    """On how many GPUs a group of weights is spread (SGLang 0.5.9, srt/models/deepseek_v2.py)."""
    data = layout.attention is Attention.DATA
    match divided:
        case Divided.ATTENTION | Divided.EMBEDDING:
            return 1 if data else layout.gpus
        case Divided.SHARED:  # built with tp_size=1 where an all-to-all is on
            return layout.gpus if layout.all_to_all is AllToAll.NONE else 1
        case Divided.EXPERTS | Divided.MLP | Divided.HEAD:
            return layout.gpus
        case Divided.ATTENTION_WHOLE | Divided.ROUTER | Divided.OTHER:
            return 1


def _absorbed(parts: ModelParts, layout: Layout) -> float:
    whole = parts.num_hidden_layers * absorbed_parameters(parts) * _BF16
    return whole / ranks_of(Divided.ATTENTION, layout)


def _requests(layout: Layout) -> int:
    """Requests whose tokens lie on one GPU."""
    return ceil(layout.concurrency / layout.gpus) if layout.attention is Attention.DATA else layout.concurrency


def kv_bytes_a_token(parts: ModelParts, layout: Layout) -> float:
    """Bytes of KV cache that one token takes on one GPU, the drafting layer's included.

    MLA: the compressed row and the shared position part, the same on every GPU (arXiv:2412.19437, section 2.1.1). With
    an indexer (sparse attention) FP8 rows carry 16 bytes of scales and their position part in BF16, and each layer has
    an FP8 index key with 4 bytes of scale: DeepSeek's fp8_ds_mla format, 656 + 132 bytes (SGLang and vLLM).
    """
    layers = parts.num_hidden_layers + (layout.drafting is not Drafting.NONE)
    if not parts.kv_lora_rank:
        spread = 1 if layout.attention is Attention.DATA else layout.gpus
        return layers * 2 * ceil(parts.num_key_value_heads / spread) * parts.head_dim * layout.kv_bytes
    row = (parts.kv_lora_rank + parts.qk_rope_head_dim) * layout.kv_bytes
    if not parts.index_head_dim:
        return layers * row
    if layout.kv_bytes == 1:
        row = parts.kv_lora_rank + parts.kv_lora_rank // 128 * 4 + parts.qk_rope_head_dim * _BF16
    return layers * (row + parts.index_head_dim + 4)


def _drafting(parts: ModelParts, weights: tuple[WeightGroup, ...], layout: Layout) -> list[Line]:
    """Weights of what drafts; embedding and head are shared with the target where the method does so."""
    hidden = parts.hidden_size
    if layout.drafting is Drafting.NEXTN:
        layer = sum(
            group.bytes / ranks_of(group.divided, layout) / max(1, parts.moe_layers)
            for group in weights
            if group.divided in (Divided.EXPERTS, Divided.SHARED)
        ) + sum(
            group.bytes / ranks_of(group.divided, layout) / parts.num_hidden_layers
            for group in weights
            if group.divided in (Divided.ATTENTION, Divided.ATTENTION_WHOLE)
        )
        return [
            _same(
                "weights: drafting",
                layer + 2 * hidden * hidden * _BF16,
                "one more layer like the target's, and its joint",
            )
        ]
    if layout.drafting is Drafting.EAGLE3:
        layer = 3 * hidden * hidden + 3 * hidden * parts.intermediate_size + 6 * hidden * hidden
        size = (
            layer + _DRAFT_VOCABULARY * hidden
        ) * _BF16 / layout.gpus + parts.vocab_size * hidden * _BF16 / layout.gpus
        return [_same("weights: drafting", size, "one dense BF16 layer of the target's width, a head of 32,000 tokens")]
    return []


_DRAFT_VOCABULARY = 32_000
_NCCL_CONNECTION = (512 << 10) + 4_915_200 + (4 << 20)
"""Bytes of NCCL's buffers for one channel and peer: LL, LL128, Simple (NCCL_BUFFSIZE; src/include/comm.h)."""
_CUSTOM_ALLREDUCE = 2 * 8 * _MIB
"""SGLang 0.5.9, custom_all_reduce.py: meta and buffer of 8 MiB each."""


def _allreduce(layout: Layout) -> Line:
    if layout.gpus == 1:
        return _same("allreduce workspaces", 0, "")
    return Line(
        name="allreduce workspaces",
        least=2 * _NCCL_CONNECTION,
        reserved=16 * 5 * _NCCL_CONNECTION + _CUSTOM_ALLREDUCE,
        why="NCCL's buffers: a ring on 2 channels, or ring and tree on 16; with these SGLang's custom allreduce",
    )


_A2A_TOKENS = 1024
"""SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK's default."""


def all_to_all_bytes(parts: ModelParts, layout: Layout) -> float:
    """FlashInfer's workspace on each rank: ranks x tokens x what dispatch and combine carry of a token.

    moe_a2a_get_workspace_size_per_rank (FlashInfer 0.6.3, comm/trtllm_moe_alltoall.py) without its auxiliary data
    (below 1 MiB), called as SGLang 0.5.9 does (token_dispatcher/flashinfer.py): tokens of all ranks, BF16 rows, and
    8 bytes an expert choice; NVFP4 rows without speculation.
    """
    if layout.all_to_all is AllToAll.NONE:
        return 0
    tokens = _A2A_TOKENS * layout.gpus
    row = parts.hidden_size * _BF16
    sent = parts.hidden_size // 2 + parts.hidden_size // 16 if layout.drafting is Drafting.NONE else row
    return layout.gpus * tokens * (sent + parts.num_experts_per_tok * 8 + row)


_RUNTIME_LEAST = GIB / 2


def activation_bytes_a_token(parts: ModelParts, layout: Layout) -> float:
    """Bytes that one token of a prefill chunk needs at least at the widest place of a layer, in BF16.

    Three rows of hidden states, and for every expert that it passes a gate, an up and a gated row of that expert's
    width on this GPU, and the expert's output. Our own count of what must exist at once.
    """
    split = 1 if layout.expert_parallel else layout.gpus
    passes = (parts.num_experts_per_tok + parts.n_shared_experts) if parts.n_routed_experts else 1
    width = parts.moe_intermediate_size if parts.n_routed_experts else parts.intermediate_size
    spread = layout.gpus if layout.attention is Attention.DATA and not layout.expert_parallel else 1
    return _BF16 * (3 * parts.hidden_size + spread * passes * (3 * width / split + parts.hidden_size))


def _chunk_and_graphs(layout: Layout, gpu: Gpu) -> tuple[int, int]:
    """Prefill chunk and largest graph batch: as asked, or as SGLang 0.5.9 chooses by memory (server_args.py)."""
    few = layout.gpus < 4
    for below, chunk, graphs_of_few, graphs_of_many in (
        (20, 2048, 8, 8),
        (35, 2048, 24, 80),
        (60, 4096, 32, 160),
        (160, 8192, 256, 512),
        (1 << 20, 16384, 512, 512),
    ):
        if gpu.memory_mib < below * 1024:
            shared = layout.gpus if layout.attention is Attention.DATA else 1
            chosen = layout.prefill_chunk or chunk // shared
            return chosen, layout.graph_batch or (graphs_of_few if few else graphs_of_many)
    raise AssertionError("the last row is above every GPU")


def sglang_reserve(layout: Layout, gpu: Gpu, chunk: int, graphs: int) -> float:
    """Bytes that SGLang 0.5.9 leaves out of its static memory when --mem-fraction-static is not given.

    server_args.py, _handle_gpu_memory_settings, in MiB: 512 + 1.5 a token of the chunk (at least 2,048) + 2 a request
    of the largest graph + 128 a GPU; attention DP adds 3 a request and GPU (4.5 above 300 requests); at least 10 GiB
    on GPUs above 60 GiB; EAGLE and MTP add 2 GiB. The chunk is not yet divided among DP ranks there.
    """
    data = layout.attention is Attention.DATA
    whole_chunk = chunk * (layout.gpus if data and not layout.prefill_chunk else 1)
    reserve = 512 + max(whole_chunk, 2048) * 1.5 + graphs * 2 + layout.gpus * 128
    if data:
        reserve += graphs * layout.gpus * (4.5 if graphs > 300 else 3)
    if gpu.memory_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if layout.drafting is not Drafting.NONE:
        reserve += 2 * 1024
    return reserve * _MIB


def _assumptions(layout: Layout) -> tuple[str, ...]:
    told = [
        "experts, heads and requests lie evenly on the GPUs; nothing else uses them",
        "SGLang 0.5.9's rules for what it keeps free, with its default chunk and graph sizes where none are given",
    ]
    if layout.attention is Attention.DATA:
        told.append(
            "attention DP: every GPU holds all attention weights and the embedding, and its own requests' KV cache"
        )
    if layout.all_to_all is AllToAll.FLASHINFER:
        told.append("with an all-to-all SGLang keeps the shared experts whole on every GPU")
    if layout.drafting is Drafting.EAGLE3:
        told.append("the draft model has one dense BF16 layer of the target's width and shares nothing with it")
    return tuple(told)
