"""From what a user typed to a layout and a model's weights."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from lanewise.errors import InputError
from tuning.memory_layout import AllToAll, Attention, Drafting, Layout
from tuning.model_parts import ModelParts, find_parts, shipped_models
from tuning.model_weights import WeightGroup, weights_of_config, weights_of_tensors
from tuning.safetensors_headers import read_tensors

KV_BYTES = {"bf16": 2, "fp8": 1}
_LIMITS = {
    "--gpus": (1, 64),
    "--draft-tokens": (1, 1024),
    "--concurrency": (1, 65_536),
    "--context": (1, 1 << 24),
    "--prefill-chunk": (0, 1 << 20),
    "--graph-batch": (0, 65_536),
}
Choice = TypeVar("Choice", bound=StrEnum)


def chosen(kind: type[Choice], value: str, option: str) -> Choice:
    """The choice of that name.

    Raises:
        InputError: there is none.
    """
    if value not in [str(known) for known in kind]:
        raise InputError(f"{option} is {value!r}", expected=f"one of {', '.join(kind)}", todo="name one of these")
    return kind(value)


def within_limits(values: dict[str, int]) -> None:
    """Refuse numbers that cannot be meant.

    Raises:
        InputError: a number is beyond its option's limits.
    """
    for option, value in values.items():
        low, high = _LIMITS[option]
        if not low <= value <= high:
            raise InputError(
                f"{option} is {value}", expected=f"a whole number from {low:,} to {high:,}", todo="correct it"
            )


def read_layout(
    parts: ModelParts,
    numbers: dict[str, int],
    *,
    attention: str,
    expert_parallel: bool,
    all_to_all: str,
    speculation: str,
    kv_cache: str,
) -> Layout:
    """The layout that was asked for; an all-to-all brings expert parallelism and, unless told otherwise, attention DP.

    Raises:
        InputError: an option is wrong, or asks for what the model does not have.
    """
    within_limits(numbers)
    moved, drafting = chosen(AllToAll, all_to_all, "--all-to-all"), chosen(Drafting, speculation, "--speculation")
    spread = moved is not AllToAll.NONE
    if (expert_parallel or spread) and not parts.n_routed_experts:
        raise InputError(
            "the model has no experts", expected="a mixture of experts for --expert-parallel and --all-to-all",
            todo="leave these out",
        )  # fmt: skip
    if drafting is Drafting.NEXTN and not parts.num_nextn_predict_layers:
        raise InputError(
            "the model has no layer for multi-token prediction",
            expected="num_nextn_predict_layers of 1 or more for --speculation nextn",
            todo="use --speculation eagle3, or none",
        )
    if kv_cache not in KV_BYTES:
        raise InputError(
            f"--kv-cache is {kv_cache!r}", expected=f"one of {', '.join(KV_BYTES)}", todo="name one of these"
        )
    default = Attention.DATA if spread else Attention.TENSOR
    return Layout(
        gpus=numbers["--gpus"],
        attention=chosen(Attention, attention, "--attention") if attention else default,
        expert_parallel=expert_parallel or spread,
        all_to_all=moved,
        drafting=drafting,
        draft_tokens=numbers["--draft-tokens"],
        concurrency=numbers["--concurrency"],
        context=numbers["--context"],
        kv_bytes=KV_BYTES[kv_cache],
        prefill_chunk=numbers["--prefill-chunk"],
        graph_batch=numbers["--graph-batch"],
    )


def read_weights(model: str) -> tuple[ModelParts, tuple[WeightGroup, ...], str]:
    """A model's parts and weights, and what the sizes are from: headers where the folder holds safetensors files.

    Raises:
        InputError: there is no such model, or a file is damaged.
    """
    parts, folder = find_parts(model), Path(model)
    if model not in shipped_models() and folder.is_dir() and any(folder.glob("*.safetensors")):
        return parts, weights_of_tensors(read_tensors(folder), parts), "safetensors headers"
    return parts, weights_of_config(parts), "models.yaml" if model in shipped_models() else "config.json"
