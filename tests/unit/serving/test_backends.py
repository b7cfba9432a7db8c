"""Allreduce backends: asked for, refused where they would be ignored, proven by log lines."""

from __future__ import annotations

import re

import pytest
from packaging.version import Version

from lanewise.errors import InputError
from tuning.serving import backends
from tuning.serving.backends import BACKENDS, Engaged, engaged, engaged_by_kernels
from tuning.serving.flag_table import dialect, releases
from tuning.serving.flags import arguments
from tuning.serving.gpus import GpuFacts
from tuning.serving.spec import ServerSpec

PCIE = GpuFacts(count=8, capability=(12, 0), nvlink=False)
NVLINK = GpuFacts(count=8, capability=(9, 0), nvlink=True)
UNKNOWN = GpuFacts(count=8)


def notes(name: str, release: str, world: int, gpus: GpuFacts | None, **more: dict[str, str]) -> tuple[str, ...]:
    spec = ServerSpec(model="/m", tensor_parallel=world, allreduce=name, **more)  # type: ignore[arg-type]
    return arguments(spec, release, port=1, nccl_port=2, gpus=gpus).notes


@pytest.mark.parametrize(
    ("name", "release", "world", "gpus", "why"),
    [
        ("custom", "0.5.9", 8, PCIE, "more than two GPUs"),
        ("custom", "0.5.12", 2, PCIE, "name custom-v1"),
        ("custom", "0.5.9", 3, NVLINK, "this number of GPUs"),
        ("custom-v1", "0.5.23", 4, PCIE, "more than two GPUs"),
        ("torch-symm-mem", "0.5.13", 8, PCIE, "KeyError"),
        ("torch-symm-mem", "0.5.14", 8, PCIE, "switches it off"),
        ("torch-symm-mem", "0.5.14", 8, NVLINK, "TORCH_SYMM_MEM_DISABLE_MULTICAST=0"),
        ("flashinfer-fusion", "0.5.23", 8, PCIE, "9.x and 10.x only"),
        ("pcie-ipc", "0.5.20", 8, PCIE, "works from 0.5.22"),
        ("pcie-ipc", "0.5.21", 8, PCIE, "lacks the kernels"),
        ("pcie-ipc", "0.5.22", 6, PCIE, "2, 4 or 8"),
        ("mscclpp", "0.5.9", 4, PCIE, "this number of GPUs"),
        ("mscclpp", "0.5.23", 2, PCIE, "this number of GPUs"),
    ],
)
def test_a_backend_that_would_be_ignored_is_refused_with_the_reason(
    name: str, release: str, world: int, gpus: GpuFacts, why: str
) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        notes(name, release, world, gpus)


@pytest.mark.parametrize(
    ("name", "release", "world", "gpus"),
    [
        ("custom", "0.5.11", 2, PCIE),
        ("custom", "0.5.23", 8, NVLINK),
        ("custom-v1", "0.5.12", 2, PCIE),
        ("flashinfer-fusion", "0.5.13", 8, NVLINK),
        ("flashinfer-fusion", "0.5.14", 8, NVLINK),
        ("pcie-ipc", "0.5.22", 8, PCIE),
        ("mscclpp", "0.5.23", 4, PCIE),
        ("nccl", "0.4.6", 3, PCIE),
        ("nccl-p2p-off", "0.5.23", 8, PCIE),
        ("nccl-sockets", "0.5.23", 8, PCIE),
        ("default", "0.5.23", 1, PCIE),
    ],
)
def test_a_backend_that_runs_is_taken_without_a_question(name: str, release: str, world: int, gpus: GpuFacts) -> None:
    assert notes(name, release, world, gpus) == ()


def test_what_a_server_is_told_beside_it_may_rule_a_backend_out() -> None:
    with pytest.raises(InputError, match="deterministic"):
        notes("pcie-ipc", "0.5.22", 8, PCIE, flags={"enable-deterministic-inference": ""})
    with pytest.raises(InputError, match="bfloat16 only"):
        notes("pcie-ipc", "0.5.22", 8, PCIE, flags={"dtype": "float16"})
    assert notes("pcie-ipc", "0.5.22", 8, PCIE, flags={"dtype": "bfloat16"}) == ()
    multicast = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"}
    assert notes("torch-symm-mem", "0.5.14", 8, NVLINK, environment=multicast) == ()


@pytest.mark.parametrize("gpus", [UNKNOWN, None])
def test_what_nobody_knows_is_no_refusal_but_a_note(gpus: GpuFacts | None) -> None:
    (note,) = notes("custom-v1", "0.5.12", 8, gpus)
    assert "nobody could tell whether" in note
    assert notes("custom-v1", "0.5.12", 2, gpus) == (), "two GPUs need no NVLink"


def test_one_gpu_reduces_nothing() -> None:
    with pytest.raises(InputError, match="one GPU"):
        notes("nccl", "0.5.23", 1, PCIE)


def test_a_name_that_is_none_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError) as caught:
        notes("ncl", "0.5.23", 2, PCIE)
    assert "nccl-p2p-off" in caught.value.expected


@pytest.mark.parametrize("name", BACKENDS)
def test_what_asks_for_a_backend_is_known_to_every_release_that_it_is_not_refused_in(name: str) -> None:
    for release in releases():
        facts = backends.Facts(release=Version(release), world=8, gpus=NVLINK, flags={}, variables={})
        if not BACKENDS[name].judged(facts)[0]:
            asked, _ = BACKENDS[name].asked(Version(release))
            assert all(dialect(release).has(flag) for flag in asked)
            assert not any(dialect(release).deprecated(flag) for flag in asked)


P2P = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
SHM = "h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
SOCKET = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"
ARGS = "[2026] server_args=ServerArgs(model_path='m', disable_custom_all_reduce=True, tp_size=2)"
REGISTERED = "[2026 TP0] Registering 122 cuda graph addresses"
V2_OLD, V2_NEW = "Custom allreduce v2 initialized successfully", "All Reduce config: symmetric_memory = 16.00 MB, x"
TWO_PCIE = "[2026 TP3] CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs."
OLD_PCIE = "[2026 TP3] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."
BUILT = "FlashInfer PCIe-IPC workspace built (world=8, max_numel=1, hidden=7168)"
STAYED = "FlashInfer PCIe-IPC all-reduce serves bf16 only; torch.float16 reductions stay on NCCL."


@pytest.mark.parametrize(
    ("name", "release", "lines", "state", "shows"),
    [
        ("custom", "0.5.9", [REGISTERED], True, "Registering 122"),
        ("custom", "0.5.12", [V2_OLD, REGISTERED], True, "v2 initialized"),
        ("custom", "0.5.23", [V2_NEW], True, "All Reduce config"),
        ("custom", "0.5.23", [REGISTERED], None, ""),  # the first version in its place
        ("custom", "0.5.9", [OLD_PCIE], False, "more than two"),
        ("custom", "0.5.23", [TWO_PCIE, OLD_PCIE], False, "more than two"),
        ("custom-v1", "0.5.12", [REGISTERED], True, "Registering"),
        ("custom-v1", "0.5.12", [V2_OLD, REGISTERED], False, "v2 initialized"),
        ("nccl", "0.5.23", [ARGS, P2P], True, "disable_custom_all_reduce"),
        ("nccl", "0.5.23", ["{'disable_custom_all_reduce': True}"], True, "disable_custom"),
        ("nccl", "0.5.23", [ARGS, REGISTERED], False, "Registering"),
        ("nccl-p2p-off", "0.5.12", [ARGS, SHM], True, "via SHM"),
        ("nccl-p2p-off", "0.5.12", [ARGS, SHM, P2P], False, "via P2P"),
        ("nccl-sockets", "0.5.12", [ARGS, SOCKET], True, "via NET/Socket"),
        ("nccl-sockets", "0.5.12", [SHM], False, "via SHM"),
        ("pcie-ipc", "0.5.22", ["FlashInfer PCIe-IPC all-reduce enabled (world=8, x)"], None, ""),
        ("pcie-ipc", "0.5.22", [BUILT], True, "workspace built"),
        ("pcie-ipc", "0.5.22", [BUILT, STAYED], False, "stay on NCCL"),
        ("pcie-ipc", "0.5.21", ["set but this FlashInfer build has no pcie_ipc_comm; falling"], False, "pcie_ipc_comm"),
        ("flashinfer-fusion", "0.5.12", ["FlashInfer workspace initialized for rank 0, world_size 2"], True, "rank 0"),
        ("torch-symm-mem", "0.5.12", ["x multicast operations are not supported."], False, "multi"),
        ("mscclpp", "0.5.23", ["PyMscclpp is disabled due to an unsupported world size"], False, "Mscclpp"),
        ("nccl", "0.5.23", [], None, ""),
        ("default", "0.5.23", [V2_NEW], True, "custom: All Reduce"),
        ("default", "0.5.9", [OLD_PCIE], True, "nccl: "),
        ("default", "0.5.23", [REGISTERED], True, "custom-v1: "),
        ("default", "0.5.23", [], None, ""),
        ("custom", "no version", [V2_OLD], True, "v2"),
    ],
)  # fmt: skip
def test_log_lines_prove_what_runs(name: str, release: str, lines: list[str], state: bool | None, shows: str) -> None:
    found = engaged(name, release, ["noise", *lines, "noise"])
    assert found.state is state
    assert shows in found.line


def test_a_long_line_is_shown_by_what_matters_in_it() -> None:
    found = engaged("nccl", "0.5.23", ["x" * 20_000 + ARGS])
    assert found.line == "… disable_custom_all_reduce=True …"


TWO_SHOT = "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16>(unsigned int**)"
FUSION = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 2, true, true>(x)"
)
MNNVL = (
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned char)2, __nv_bfloat16, true>(x)"
)
SYMMETRIC = "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "release", "kernels", "state", "line"),
    [
        ("torch-symm-mem", "0.5.12", {TWO_SHOT: 123.0}, True, "123 two_shot_all_reduce_kernel_inplace"),
        (
            "torch-symm-mem",
            "0.5.12",
            {NCCL: 123.0},
            False,
            "0 of its own, 123 ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("nccl-sockets", "0.5.12", {NCCL: 131.125}, True, "131.1 ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        (
            "custom",
            "0.5.12",
            {"all_reduce_one_shot_push_kernel<x>(y)": 123.0},
            True,
            "123 all_reduce_one_shot_push_kernel",
        ),
        (
            "custom",
            "0.5.23",
            {"void sglang::cross_device_reduce_1stage<x>(y)": 123.0},
            False,
            "0 of its own, 123 cross_device_reduce_1stage",
        ),
        (
            "custom",
            "0.5.11",
            {"void sglang::cross_device_reduce_1stage<x>(y)": 123.0},
            True,
            "123 cross_device_reduce_1stage",
        ),
        (
            "default",
            "0.5.12",
            {NCCL: 100.0, TWO_SHOT: 23.0},
            True,
            "nccl: 100 ncclDevKernel_AllReduce_Sum_bf16_RING_LL beside 23 two_shot_all_reduce_kernel_inplace",
        ),
        ("default", "0.5.12", {FUSION: 123.0}, True, "flashinfer-fusion: 123 allreduce_fusion_kernel_oneshot_lamport"),
        ("flashinfer-fusion", "0.5.23", {MNNVL: 123.0}, True, "123 oneshotAllreduceFusionKernel"),
        ("mscclpp", "0.5.12", {"void allreduce_LL_1node<half>(x)": 123.0}, True, "123 allreduce_LL_1node"),
        ("nccl", "0.5.12", {SYMMETRIC: 123.0}, True, "123 ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16"),
        (
            "nccl-p2p-off",
            "0.5.12",
            {SYMMETRIC: 2.0},
            False,
            "0 of its own, 2 ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16",
        ),
        (
            "custom",
            "0.5.12",
            {"all_reduce_two_shot_kernel<a>(x)": 1.0, "all_reduce_two_shot_kernel<b>(x)": 2.0},
            True,
            "3 all_reduce_two_shot_kernel",
        ),
        ("custom", "0.5.12", {"all_reduce_one_shot_kernel<x>(y)": 61.0, NCCL: 61.0}, None, ""),
        ("default", "0.5.12", {"new_all_reduce": 123.0}, None, ""),
        ("pcie-ipc", "0.5.22", {NCCL: 123.0}, None, ""),
        ("nccl", "0.5.12", {}, None, ""),
    ],
)
def test_kernels_prove_a_backend(
    name: str, release: str, kernels: dict[str, float], state: bool | None, line: str
) -> None:
    assert engaged_by_kernels(name, release, kernels) == Engaged(state=state, line=line)
