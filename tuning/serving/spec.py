"""What a server is asked to be, in words that hold for every release; flags.py makes one release's arguments of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """How drafts are made and verified.

    Attributes:
        algorithm: SGLang's name, e.g. "EAGLE3".
        steps: draft forwards of a step (num_steps); each adds a position.
        topk: branches a position (eagle_topk); 1 is a chain.
        draft_tokens: rows that a verify pass holds (num_draft_tokens); of a chain always steps + 1.
        draft: path or name of the draft model; "" where the algorithm needs none.
    """

    algorithm: str
    steps: int
    topk: int
    draft_tokens: int
    draft: str = ""

    @property
    def label(self) -> str:
        """steps/topk/draft tokens, as people write it: "2/1/3"."""
        return f"{self.steps}/{self.topk}/{self.draft_tokens}"


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One server.

    Attributes:
        model: path or name of the model.
        tensor_parallel: GPUs that share a layer.
        speculation: None: no speculation.
        allreduce: name in backends.py, e.g. "default", "custom", "nccl", "nccl-p2p-off".
        dummy_weights: random weights instead of the model's (load format "dummy").
        attention_backend: as SGLang names it; "" for the release's own choice.
        cuda_graphs: whether decode steps are captured.
        max_running: most requests that decode together.
        context_length: tokens; 0 for the model's own.
        max_total_tokens: of the KV cache; 0 for what memory allows.
        memory_fraction: of GPU memory for weights and KV cache; 0 for the release's own choice.
        accept_length: simulated accept length (SGLANG_SIMULATE_ACC_LEN); 0: the draft's real one.
        environment: further variables.
        flags: further flags by full name without dashes, e.g. {"page-size": "16", "skip-tokenizer-init": ""}
            ("": a flag without a value). Checked against the release.
    """

    model: str
    tensor_parallel: int = 1
    speculation: Speculation | None = None
    allreduce: str = "default"
    dummy_weights: bool = False
    attention_backend: str = ""
    cuda_graphs: bool = True
    max_running: int = 32
    context_length: int = 0
    max_total_tokens: int = 0
    memory_fraction: float = 0.0
    accept_length: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_accept(self) -> bool:
        """Whether the simulated accept length can be: each of the steps adds a token at most, and the target one."""
        if not self.accept_length:
            return True
        return self.speculation is not None and 1 <= self.accept_length <= self.speculation.steps + 1
