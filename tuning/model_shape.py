"""From a model's config.json to the allreduces that its forward pass makes under tensor parallelism."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lanewise.errors import InputError
from lanewise.files import read_text
from tuning.workload import (
    DTYPE_BYTES,
    MAX_CALLS,
    MAX_MESSAGE_BYTES,
    Message,
    Workload,
    short,
    workload_name,
)

if TYPE_CHECKING:
    from pathlib import Path

_INNER = ("text_config", "language_config", "llm_config")
"""Where multimodal wrappers keep the language model's config."""
_MAX_FILE_BYTES = 16 << 20
CALLS_PER_LAYER = 2
"""Tensor parallelism reduces once after attention and once after the MLP or MoE (Shoeybi et al. 2019,
arXiv:1909.08053). SGLang adds one more a pass after the vocabulary-parallel embedding; it is left out here."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What decides count and size of a model's allreduces.

    Attributes:
        name: for the workload's name, which `workload_name` makes of it.
        layers: num_hidden_layers.
        hidden_size: elements of one row of hidden states.
        dtype: data type of the hidden states.
    """

    name: str
    layers: int
    hidden_size: int
    dtype: str


def read_model_shape(path: Path, *, name: str) -> ModelShape:
    """Read num_hidden_layers and hidden_size from a config.json, at its top or inside text_config and its like.

    Raises:
        InputError: not JSON, or the two numbers are missing or not allowed.
    """
    text = read_text(path, what="model config", limit=_MAX_FILE_BYTES)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"model config {path} is not JSON: {str(error)[:200]}",
            expected="a Hugging Face config.json",
            todo="check the path",
        ) from error
    config = _language_model(document, path)
    dtype = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        dtype = "bfloat16"  # quantised weights: engines still reduce hidden states in bfloat16
    return ModelShape(
        name=name,
        layers=_positive(config, "num_hidden_layers", path, MAX_CALLS // CALLS_PER_LAYER),
        hidden_size=_positive(config, "hidden_size", path, 1 << 20),
        dtype=dtype,
    )


def derive_workload(shape: ModelShape, *, draft_tokens: int, batch: int = 1, calls_per_layer: int = 2) -> Workload:
    """The allreduces of one decode pass (1 row a sequence) and of one verify pass (`draft_tokens` rows a sequence).

    Args:
        shape: the model.
        draft_tokens: rows that speculation verifies in a pass (SGLang's --speculative-num-draft-tokens); 1 means
            no speculation, and gives the baseline only.
        batch: sequences decoded together; each adds its rows.
        calls_per_layer: allreduces in one layer; 1 for models whose attention and MLP run in parallel.

    Raises:
        InputError: a value is not allowed, or a message would be absurdly large.
    """
    for option, value, most in (
        ("--draft-tokens", draft_tokens, 1024),
        ("--batch", batch, 65536),
        ("--calls-per-layer", calls_per_layer, 8),
    ):
        if not 1 <= value <= most:
            raise InputError(
                f"{option} is {short(value)}", expected=f"a whole number from 1 to {most:,}", todo="correct it"
            )
    row_bytes = shape.hidden_size * DTYPE_BYTES[shape.dtype]
    sizes = {"baseline": batch} | ({"verify": draft_tokens * batch} if draft_tokens > 1 else {})
    if (largest := max(sizes.values()) * row_bytes) > MAX_MESSAGE_BYTES:
        raise InputError(
            f"{max(sizes.values()):,} rows of {row_bytes:,} bytes make a message of {largest:,} bytes",
            expected=f"at most {MAX_MESSAGE_BYTES:,} bytes",
            todo="lower --batch or --draft-tokens",
        )
    if (calls := shape.layers * calls_per_layer) > MAX_CALLS:
        raise InputError(
            f"{shape.layers:,} layers x {calls_per_layer} calls make {calls:,} calls a pass",
            expected=f"at most {MAX_CALLS:,}",
            todo="lower --calls-per-layer, or check num_hidden_layers",
        )
    return Workload(
        name=workload_name(shape.name),
        dtype=shape.dtype,
        messages=tuple(Message(name=n, rows=rows, bytes=rows * row_bytes, calls=calls) for n, rows in sizes.items()),
        source=f"derived: {shape.layers} layers x {calls_per_layer} calls, hidden size {shape.hidden_size}",
    )


def _language_model(document: object, path: Path) -> dict[str, Any]:
    if isinstance(document, dict):
        for candidate in (document, *(document.get(key) for key in _INNER)):
            if isinstance(candidate, dict) and "num_hidden_layers" in candidate and "hidden_size" in candidate:
                return candidate
    raise InputError(
        f"model config {path} tells no num_hidden_layers and hidden_size",
        expected=f"both, at the top or inside {', '.join(_INNER)}",
        todo="name the config.json of the language model",
    )


def _positive(config: dict[str, Any], key: str, path: Path, most: int) -> int:
    value = config[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(
            f"model config {path}: {key} is {short(value)}",
            expected=f"a whole number from 1 to {most:,}",
            todo="mend the file",
        )
    return value
