"""A server that answers is judged by what it resolved and what its log proves."""

from __future__ import annotations

from typing import Any

import pytest

from lanewise.redact import Redactor
from tuning.serving.examine import Examined, RefusedError, examine, with_profile
from tuning.serving.profile import Profile
from tuning.serving.spec import ServerSpec, Speculation

UNPROVEN = "no line of the log says whether allreduce custom is on; --profile tells by its kernels"
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
    assert unknown.findings == (UNPROVEN,)


def profiled(**kernels: int) -> Profile:
    return Profile(concurrency=1, steps=9, step_ms=5.0, kernels={name: (count, 3.0) for name, count in kernels.items()})


def test_a_profile_proves_the_backend_that_the_log_does_not() -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2, allreduce="custom")
    unknown, profile = (
        judged(spec),
        profiled(all_reduce_one_shot_push_kernel=123, ncclDevKernel_AllReduce_Sum=9, gemm=61),
    )
    told = with_profile(unknown, spec, profile)
    counts = "123 all_reduce_one_shot_push_kernel beside 9 ncclDevKernel_AllReduce_Sum"
    assert told.engaged == {"allreduce": f"custom: {counts} a step (profile)"}
    assert told.findings == ()
    assert with_profile(unknown, spec, None) == unknown
    assert with_profile(unknown, spec, profiled(gemm=61)) == unknown, "no kernel reduces"

    proved = judged(spec, ("Custom allreduce v2 initialized successfully",))
    assert with_profile(proved, spec, profile) == proved, "the log's line stays"


def test_a_profile_of_another_backend_is_a_finding_whatever_the_log_says() -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2, allreduce="custom")
    others = profiled(ncclDevKernel_AllReduce_Sum=123, all_reduce_one_shot_push_kernel=9)
    counts = "9 of its own, 123 ncclDevKernel_AllReduce_Sum"
    said = f"allreduce custom was asked for, and most of a profiled step are others: {counts}"
    for examined in (judged(spec), judged(spec, ("Custom allreduce v2 initialized successfully",))):
        told = with_profile(examined, spec, others)
        assert told.engaged == examined.engaged
        assert told.findings == (said,)


def test_of_the_default_a_profile_says_what_it_came_to_be() -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2)
    custom, nccl = profiled(all_reduce_one_shot_push_kernel=123), profiled(ncclDevKernel_AllReduce_Sum=123)
    told = with_profile(judged(spec), spec, nccl)
    assert told.engaged == {"allreduce": "default: nccl: 123 ncclDevKernel_AllReduce_Sum a step (profile)"}
    proved = judged(spec, ("Custom allreduce v2 initialized successfully",))
    assert with_profile(proved, spec, custom) == proved
    (finding,) = with_profile(proved, spec, nccl).findings
    assert finding == (
        "allreduce is another in most of a profiled step than the log says: nccl: 123 ncclDevKernel_AllReduce_Sum"
    )


def test_without_known_kernels_a_profile_is_not_recommended() -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2, allreduce="pcie-ipc")
    assert judged(spec).findings == ("no line of the log says whether allreduce pcie-ipc is on",)


FORCED_OFF = "FlashInfer allreduce fusion is forcibly disabled via --enforce-disable-flashinfer-allreduce-fusion."


@pytest.mark.parametrize(
    ("allreduce", "flags", "found"),
    [
        ("torch-symm-mem", {}, False),
        ("nccl", {}, False),
        ("custom", {"enforce-disable-flashinfer-allreduce-fusion": ""}, False),
        ("custom", {}, True),
        ("custom", {"enable-deterministic-inference": ""}, True),
    ],
)
def test_a_fusion_that_was_switched_off_on_purpose_is_no_finding(
    allreduce: str, flags: dict[str, str], found: bool
) -> None:
    spec = ServerSpec(model="m", speculation=EAGLE, tensor_parallel=2, allreduce=allreduce, flags=flags)
    assert (f"the fused allreduce is off: {FORCED_OFF}" in judged(spec, (FORCED_OFF,)).findings) is found


@pytest.mark.parametrize(
    "odd", [{"version": None}, {"version": 5}, {"version": ["x"]}, {"speculative_algorithm": {"a": [1]}}]
)
def test_odd_answers_end_in_no_traceback(odd: dict[str, Any]) -> None:
    judged(ServerSpec(model="m", speculation=EAGLE), **odd)
