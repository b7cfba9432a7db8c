"""Fits what drafting and reading more experts cost, from published pairs of decoding with and without speculation.

Two constants, fitted on one model and carried to another:

    read efficiency   expert weights that a pass reads are read at this fraction of the GPU's peak bandwidth. From the
                      baseline at 1 and at m requests: m requests read as many experts as a verify pass of m rows, and
                      draft nothing.
    draft ms a token  everything of a step that is neither baseline, nor allreduce of more rows, nor more experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from tuning.model_parts import Gpu, ModelParts, find_gpu, shipped_models
from tuning.speculation_model import Curve, Span, touched_experts

_FILE = Path(__file__).parent / "published_speculation.yaml"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One host decoding without and with speculation.

    Attributes:
        context: tokens of context, as the source labels it.
        requests: at the same time.
        baseline: tokens per second without speculation.
        speculating: tokens per second with it.
        tau: accept length.
    """

    context: str
    requests: int = 1
    baseline: float
    speculating: float
    tau: float

    @property
    def baseline_ms(self) -> float:
        """Step time without speculation."""
        return 1000 * self.requests / self.baseline

    @property
    def step_ms(self) -> float:
        """Step time with speculation: requests x accept length / rate."""
        return 1000 * self.requests * self.tau / self.speculating


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """What was published of one model.

    Attributes:
        name: of its parts, see `shipped_models`.
        what: model, engine and drafts, for people.
        source: files of the repository.
        k: drafts a step.
        calls: allreduces of a pass.
        row_bytes: bytes of one row of hidden states.
        batch: tokens per second without speculation, by requests.
        pairs: with and without speculation.
        more: further pairs, with noisier accept lengths.
    """

    name: str
    what: str
    source: str
    k: int
    calls: int
    row_bytes: int
    batch: Mapping[int, float]
    pairs: tuple[Pair, ...]
    more: tuple[Pair, ...]

    @property
    def parts(self) -> ModelParts:
        """The model's sizes."""
        return shipped_models()[self.name]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A host, its allreduce curve, and what was published of models on it."""

    host: str
    repository: str
    gpu: Gpu
    gpus: int
    curve: Curve
    models: Mapping[str, PublishedModel]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The two fitted constants: `read_efficiency`, a fraction of peak bandwidth, and `draft_ms` a drafted token."""

    read_efficiency: float
    draft_ms: float


@cache
def published() -> Published:
    """The pairs that ship."""
    document: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return Published(
        host=document["host"],
        repository=document["repository"],
        gpu=find_gpu(document["gpu"]),
        gpus=document["gpus"],
        curve=Curve(points=tuple(sorted(document["allreduce"].items()))),
        models={name: _model(name, row, document["more_cells"][name]) for name, row in document["models"].items()},
    )


def _model(name: str, row: dict[str, Any], more: dict[str, Any]) -> PublishedModel:
    pairs = [Pair(context=c, baseline=b, speculating=s, tau=t) for c, b, s, t in row.pop("pairs")]
    cells = [
        Pair(context=c, requests=n, baseline=b, speculating=s, tau=1 + row["k"] * r) for c, n, b, s, r in more["cells"]
    ]
    return PublishedModel(name=name, pairs=tuple(pairs), more=tuple(cells), **row)


def expert_floor_ms(parts: ModelParts, gpu: Gpu, gpus: int) -> float:
    """Time in which one row's routed experts can be read at peak bandwidth, divided among the GPUs."""
    read = parts.moe_layers * parts.num_experts_per_tok * parts.expert_parameters * parts.bytes_of("experts")
    return read / gpus / (gpu.gb_per_s * 1e6)


def more_allreduce_ms(model: PublishedModel, curve: Curve, requests: int = 1) -> float:
    """What the allreduces of a verify pass take beyond those of a baseline pass."""
    rows = requests * (model.k + 1)
    return model.calls * (curve.at(rows * model.row_bytes) - curve.at(requests * model.row_bytes)) / 1000


def more_experts(parts: ModelParts, k: int, requests: int = 1) -> float:
    """How many times one row's experts a verify pass reads beyond a baseline pass."""
    experts, each = parts.n_routed_experts, parts.num_experts_per_tok
    return touched_experts(requests * (k + 1), experts, each) - touched_experts(requests, experts, each)


def fit(model: PublishedModel, host: Published) -> Constants:
    """Both constants from one model's baseline at 1 and k + 1 requests and its pairs."""
    single, many = (1000 * requests / model.batch[requests] for requests in (1, model.k + 1))
    more, growth = more_allreduce_ms(model, host.curve), more_experts(model.parts, model.k)
    expert_ms = (many - single - more) / growth
    drafts = [(pair.step_ms - pair.baseline_ms - more - expert_ms * growth) / model.k for pair in model.pairs]
    return Constants(
        read_efficiency=expert_floor_ms(model.parts, host.gpu, host.gpus) / expert_ms, draft_ms=median(drafts)
    )


def predicted_step_ms(model: PublishedModel, host: Published, constants: Constants, pair: Pair) -> float:
    """Step time with speculation, from the host's allreduce curve and the pair's baseline step alone."""
    expert_ms = expert_floor_ms(model.parts, host.gpu, host.gpus) / constants.read_efficiency
    more = more_allreduce_ms(model, host.curve, pair.requests)
    grown = expert_ms * more_experts(model.parts, model.k, pair.requests)
    return pair.baseline_ms + more + grown + model.k * constants.draft_ms


@cache
def fitted_spans() -> tuple[Span, Span]:
    """Read efficiency and draft ms a token over all published models: where a host of that kind may lie."""
    fits = [fit(model, published()) for model in published().models.values()]
    efficiencies, drafts = [f.read_efficiency for f in fits], [f.draft_ms for f in fits]
    return Span(low=min(efficiencies), high=max(efficiencies)), Span(low=min(drafts), high=max(drafts))
