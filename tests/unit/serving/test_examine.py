"""A server that answers is judged by what it resolved and what its log proves."""

from __future__ import annotations

from typing import Any

import pytest

from lanewise.redact import Redactor
from tuning.serving.examine import Examined, RefusedError, examine
from tuning.serving.spec import ServerSpec, Speculation

EAGLE = Speculation(algorithm="EAGLE3", steps=2, topk=1, draft_tokens=3, draft="d")
RESOLVED = {
    "version": "0.5.12", "tp_size": 2, "disable_radix_cache": True, "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 2, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 3,
}  # fmt: skip


def judged(spec: ServerSpec, lines: tuple[str, ...] = (), **changes: Any) -> Examined:
    return examine(spec, {**RESOLVED, **changes}, list(lines), Redactor({"HF_TOKEN": "s3cr3t-value"}))


def test_what_it_resolved_is_kept_as_far_as_it_may_matter() -> None:
    found = judged(
        ServerSpec(model="m", speculation=EAGLE),
        model_path="/x/s3cr3t-value",
        api_key="abc",
        enable_x=True,
        log_level="info",
    )
    assert found.release == "0.5.12"
    assert found.resolved["model_path"] == "/x/<redacted>"
    assert found.resolved["enable_x"] is True
    assert not {"api_key", "log_level"} & set(found.resolved)
    assert (found.caches, found.counters) == (False, False)
    assert found.engaged == {"allreduce": "none: one GPU"}


@pytest.mark.parametrize(
    ("speculation", "changes", "said"),
    [
        (EAGLE, {"speculative_num_steps": 5}, "speculation 2/1/3 was asked for, and the server resolved 5/1/3"),
        (None, {}, "no speculation was asked for, and the server resolved EAGLE3"),
    ],
)
def test_speculation_that_was_resolved_otherwise_is_refused(
    speculation: Speculation | None, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        judged(ServerSpec(model="m", speculation=speculation), **changes)


def test_what_it_does_not_tell_is_a_finding() -> None:
    found = judged(ServerSpec(model="m", speculation=EAGLE), speculative_eagle_topk=None)
    assert "the server does not tell speculative_eagle_topk" in found.findings


def test_a_backend_that_its_log_disproves_is_refused() -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2, allreduce="custom")
    with pytest.raises(RefusedError, match="allreduce custom is not on"):
        judged(spec, ("Custom allreduce is disabled because",))
    proved = judged(spec, ("Custom allreduce v2 initialized successfully",))
    assert proved.engaged["allreduce"].startswith("custom: ")
    unknown = judged(spec)
    assert unknown.engaged == {"allreduce": "unknown"}
    assert "no line of the log says whether allreduce custom is on" in unknown.findings


@pytest.mark.parametrize(
    "odd", [{"version": None}, {"version": 5}, {"version": ["x"]}, {"speculative_algorithm": {"a": [1]}}]
)
def test_odd_answers_end_in_no_traceback(odd: dict[str, Any]) -> None:
    judged(ServerSpec(model="m", speculation=EAGLE), **odd)
