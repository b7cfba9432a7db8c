"""The rules for allreduce: each decides on a small package tree of its own, and the real wheels get known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from images.capability import Verdict as CodeVerdict
from images.conditions import Box
from images.examine import Library, NcclBuild
from images.preflight import Finding, judge
from images.rules import Group, Verdict, read_approaches
from images.snapshot import Snapshot

APPROACHES = {a.id: a for a in read_approaches() if a.group is Group.ALLREDUCE}

COMMUNICATORS = "sglang/srt/distributed/device_communicators"
ALLOCATOR = f"{COMMUNICATORS}/pynccl_allocator.py"
CUSTOM_AR = f"{COMMUNICATORS}/custom_all_reduce.py"
CUSTOM_AR_UTILS = f"{COMMUNICATORS}/custom_all_reduce_utils.py"
CUSTOM_AR_V2 = f"{COMMUNICATORS}/custom_all_reduce_v2.py"
SIZES = f"{COMMUNICATORS}/all_reduce_utils.py"
SYMM_MEM = f"{COMMUNICATORS}/torch_symm_mem.py"
MSCCLPP = f"{COMMUNICATORS}/pymscclpp.py"
SGLANG_PCIE = f"{COMMUNICATORS}/pcie_ipc_ar.py"
COMMUNICATOR = "sglang/srt/layers/communicator.py"
FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
RUNNER = "sglang/srt/model_executor/runner/base_runner.py"
CONTEXT = "flashinfer/compilation_context.py"
COMM = "flashinfer/comm/__init__.py"
COMM_JIT = "flashinfer/jit/comm.py"
FLASHINFER_PCIE = "flashinfer/comm/pcie_ipc_ar.py"
TORCH = "torch/distributed/_symmetric_memory/__init__.py"
KERNEL_ALLREDUCE = "sgl_kernel/allreduce.py"
LIBNCCL = "nvidia/nccl/lib/libnccl.so.2"
COMMON_OPS = "sgl_kernel/sm100/common_ops.abi3.so"

NO_MULTICAST = "if handle.multicast_ptr == 0:\n    pass\n"
PCIE_REFUSED = (
    'if world_size > 2 and not full_nvlink:\n    " more than two PCIe-only GPUs. To silence this warning, "\n'
)
GATE = 'raise RuntimeError("SM 12.x requires CUDA >= 12.9")\n'
ANY_ARCH = "def gen_pcie_ipc_comm_module():\n    return gen_jit_spec('pcie_ipc_comm')\n"
PCIE_WORLDS = "_SUPPORTED_WORLD_SIZES = (2, 4, 8)\n"
NEW_MSCCLPP = 'mscclpp = importlib.import_module("mscclpp")\n'
TOLD = '"PyMscclpp is unavailable because its dependencies failed to import: %s"\n'

FUSION_RAISES = (
    "def _resolve_backend(backend):\n"
    "    raise ValueError('FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.')\n"
    "def resolve_flashinfer_allreduce_fusion_backend():\n    return _resolve_backend('auto')\n"
    "def ensure_workspace_initialized():\n    resolve_flashinfer_allreduce_fusion_backend()\n"
)


def trtllm_comm(majors: str) -> str:
    return f"def gen_trtllm_comm_module():\n    flags = get_nvcc_flags_list(supported_major_versions={majors})\n"


def sizes(keys: str) -> str:
    return "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES = {" + ", ".join(f"{key}: {{8: 1}}" for key in keys.split()) + "}\n"


def library(path: str, verdict: str) -> Library:
    return Library(path=path, size=1, code=(), verdict=CodeVerdict(verdict))


def nccl(version: str) -> NcclBuild:
    return NcclBuild(path=LIBNCCL, version=version, cuda="12.9")


@dataclass(frozen=True, kw_only=True)
class World:
    """Packages, and what they would run on; each change makes another one."""

    snapshot: Snapshot
    box: Box

    def texts(self, changes: Mapping[str, str | None]) -> World:
        """With other files; None takes one away."""
        texts = {path: text for path, text in {**self.snapshot.texts, **changes}.items() if text is not None}
        return replace(self, snapshot=replace(self.snapshot, texts=texts))

    def versions(self, **changes: str | None) -> World:
        named = {name.replace("_", "-"): version for name, version in changes.items()}
        versions = {name: v for name, v in {**self.snapshot.versions, **named}.items() if v is not None}
        return replace(self, snapshot=replace(self.snapshot, versions=versions))

    def nccl(self, version: str | None, verdict: str = "native") -> World:
        libraries = {**self.snapshot.libraries, LIBNCCL: library(LIBNCCL, verdict)}
        if version is None:
            del libraries[LIBNCCL]
        build = nccl(version) if version else None
        return replace(self, snapshot=replace(self.snapshot, nccl=build, libraries=libraries))

    def library(self, path: str, verdict: str) -> World:
        libraries = {**self.snapshot.libraries, path: library(path, verdict)}
        return replace(self, snapshot=replace(self.snapshot, libraries=libraries))

    def without(self, path: str) -> World:
        libraries = {name: found for name, found in self.snapshot.libraries.items() if name != path}
        return replace(self, snapshot=replace(self.snapshot, libraries=libraries))

    def having(self, path: str) -> World:
        return replace(self, snapshot=replace(self.snapshot, paths=self.snapshot.paths | {path}))

    def gpus(self, number: int) -> World:
        return replace(self, box=replace(self.box, gpus=number))

    def toolkit(self, cuda: str, token: str) -> World:
        return replace(self, box=replace(self.box, cuda=cuda, arch={"flashinfer": token}))

    def finding(self, approach: str) -> Finding:
        (found,) = judge([APPROACHES[approach]], self.snapshot, self.box)
        return found

    def rule(self, approach: str) -> str:
        found = self.finding(approach)
        return found.rule.id if found.rule else found.reason


OLD = World(
    snapshot=Snapshot(
        texts={
            ALLOCATOR: "return get_global_server_args().enable_symm_mem\n",
            CUSTOM_AR: "class CustomAllreduce:\n    _SUPPORTED_WORLD_SIZES = [2, 4, 6, 8]\n" + PCIE_REFUSED,
            SIZES: sizes("9 10"),
            SYMM_MEM: "size = TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES[self.device_capability]\n" + NO_MULTICAST,
            MSCCLPP: "class PyMscclppCommunicator:\n"
            "    _SUPPORTED_WORLD_SIZES = [8, 16]\n"
            "    context = ops.mscclpp_init_context()\n",
            COMMUNICATOR: "def apply_flashinfer_allreduce_fusion():\n"
            "    return (_is_sm90_supported or _is_sm100_supported)\n",
            FUSION: "",
            CONTEXT: GATE,
            COMM: "",
            COMM_JIT: trtllm_comm("[9, 10]"),
            "flashinfer/comm/trtllm_ar.py": "enable_multicast=False\n",
            "flashinfer/comm/trtllm_mnnvl_ar.py": "",
            "flashinfer/comm/mnnvl.py": '"[SymmDeviceMemory] Device does not support multicasting."\n',
            TORCH: "def rendezvous(): ...\n",
            KERNEL_ALLREDUCE: "def mscclpp_init_context(): ...\n",
        },
        libraries={COMMON_OPS: library(COMMON_OPS, "native"), LIBNCCL: library(LIBNCCL, "native")},
        versions={"sglang": "0.5.9", "flashinfer-python": "0.6.3", "torch": "2.9.1"},
        nccl=nccl("2.27.5"),
    ),
    box=Box(cuda="12.8.1", arch={"flashinfer": "12.0a"}),
)
"""After SGLang 0.5.9 with FlashInfer 0.6.3 on CUDA 12.8."""

NEW = (
    OLD.texts(
        {
            CUSTOM_AR: "class CustomAllreduce:\n    _SUPPORTED_WORLD_SIZES = [2, 4, 6, 8]\n",
            CUSTOM_AR_UTILS: PCIE_REFUSED,
            CUSTOM_AR_V2: "return full_nvlink is True\n",
            SYMM_MEM: "sizes = TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES.get(\n    major\n)\n" + NO_MULTICAST,
            MSCCLPP: NEW_MSCCLPP + TOLD,
            SGLANG_PCIE: PCIE_WORLDS + "def __init__():\n    from flashinfer.comm import PcieIpcAllReduceWorkspace\n",
            COMMUNICATOR: None,
            FUSION: FUSION_RAISES,
            RUNNER: "def _pre_initialize_flashinfer_allreduce_workspace():\n    pre_initialize_workspaces()\n",
            CONTEXT: "",
            COMM: "from .pcie_ipc_ar import PcieIpcAllReduceWorkspace\n",
            COMM_JIT: trtllm_comm("[9, 10, 12]") + ANY_ARCH,
            FLASHINFER_PCIE: PCIE_WORLDS,
            KERNEL_ALLREDUCE: "",
        }
    )
    .versions(sglang="0.5.23", flashinfer_python="0.7.2", torch="2.14.1")
    .nccl("2.30.7")
    .toolkit("13.0", "12.0f")
)
"""After SGLang 0.5.23 with FlashInfer 0.7.2 on CUDA 13."""

NO_SGLANG = OLD.versions(sglang=None)
NO_FLASHINFER = OLD.versions(flashinfer_python=None)
WITH_B12X = NEW.versions(b12x="1.5.1").texts({"sglang/srt/distributed/parallel_state.py": ""})
FUSION_GATED = NEW.texts({CONTEXT: GATE}).toolkit("12.8.1", "12.0")
MSCCLPP_SILENT = NEW.texts({MSCCLPP: NEW_MSCCLPP})

NO_RULE = "no rule decides for these packages"
NO_NCCL = "no libnccl among the packages"

CASES: list[tuple[str, World, str]] = [
    ("nccl-ring", OLD, "nccl-ring-native"),
    ("nccl-ring", OLD.nccl("2.26.2", "driver JIT"), "nccl-ring-no-sm120-code"),
    ("nccl-ring", OLD.nccl(None), NO_NCCL),
    ("nccl-tree", NEW, "nccl-tree-native"),
    ("nccl-tree", NEW.nccl("2.26.2", "none"), "nccl-tree-no-sm120-code"),
    ("nccl-tree", NEW.nccl("2.22.3"), NO_RULE),
    ("nccl-ll128", NEW, "nccl-ll128-native"),
    ("nccl-ll128", NEW.nccl("2.26.2", "driver JIT"), "nccl-ll128-no-sm120-code"),
    ("nccl-symmetric-kernels", OLD, "nccl-symmetric-over-p2p"),
    ("nccl-symmetric-kernels", OLD.nccl("2.28.9"), "nccl-symmetric-over-p2p"),
    ("nccl-symmetric-kernels", OLD.nccl("2.29.2"), "nccl-symmetric-wants-nvlink"),
    ("nccl-symmetric-kernels", OLD.nccl("2.26.5"), "nccl-symmetric-not-there"),
    ("nccl-nvls", OLD, "nccl-nvls-wants-nvswitch"),
    ("nccl-nvls", OLD.nccl(None), NO_NCCL),
    ("sglang-nccl-symm-mem", OLD, "sglang-symm-mem-over-p2p"),
    ("sglang-nccl-symm-mem", NEW, "sglang-symm-mem-wants-nvlink"),
    ("sglang-nccl-symm-mem", NO_SGLANG, "sglang-symm-mem-no-sglang"),
    ("sglang-custom-allreduce-v1", OLD, "custom-ar-v1-refuses-pcie"),
    ("sglang-custom-allreduce-v1", NEW.gpus(4), "custom-ar-v1-refuses-pcie"),
    ("sglang-custom-allreduce-v1", NEW.gpus(2), "custom-ar-v1-two-gpus"),
    ("sglang-custom-allreduce-v1", OLD.texts({CUSTOM_AR: ""}), NO_RULE),
    ("sglang-custom-allreduce-v1", NO_SGLANG, "custom-ar-v1-no-sglang"),
    ("sglang-custom-allreduce-v2", OLD, "custom-ar-v2-not-there"),
    ("sglang-custom-allreduce-v2", NEW, "custom-ar-v2-refuses-pcie"),
    ("sglang-custom-allreduce-v2", NEW.texts({CUSTOM_AR_V2: "full_nvlink != True"}), "custom-ar-v2-refuses-pcie"),
    ("sglang-custom-allreduce-v2", NEW.gpus(2), "custom-ar-v2-refuses-two-pcie-gpus"),
    ("sglang-custom-allreduce-v2", NEW.texts({CUSTOM_AR_V2: ""}), NO_RULE),
    ("sglang-custom-allreduce-v2", NO_SGLANG, "custom-ar-v2-no-sglang"),
    ("flashinfer-trtllm-fusion", OLD, "trtllm-fusion-arch-list-lacks-12"),
    ("flashinfer-trtllm-fusion", NEW, "trtllm-fusion-arch-list-has-12"),
    ("flashinfer-trtllm-fusion", FUSION_GATED, "trtllm-fusion-cuda-refused"),
    ("flashinfer-trtllm-fusion", FUSION_GATED.toolkit("12.8.1", "12.0a"), "trtllm-fusion-untried-on-12-8"),
    ("flashinfer-trtllm-fusion", FUSION_GATED.toolkit("12.9.1", "12.0"), "trtllm-fusion-arch-list-has-12"),
    ("flashinfer-trtllm-fusion", NEW.toolkit("12.8.1", "12.0"), "trtllm-fusion-untried-on-12-8"),
    ("flashinfer-trtllm-fusion", NO_FLASHINFER, "trtllm-fusion-no-flashinfer"),
    ("sglang-flashinfer-fusion", OLD, "sglang-fusion-off-at-run-time"),
    ("sglang-flashinfer-fusion", NEW, "sglang-fusion-raises"),
    ("sglang-flashinfer-fusion", NEW.texts({FUSION: ""}), NO_RULE),
    ("sglang-flashinfer-fusion", NO_SGLANG, "sglang-fusion-no-sglang"),
    ("flashinfer-mnnvl", OLD, "mnnvl-wants-multicast"),
    ("flashinfer-mnnvl", OLD.texts({"flashinfer/comm/mnnvl.py": ""}), NO_RULE),
    ("flashinfer-mnnvl", NO_FLASHINFER, "mnnvl-no-flashinfer"),
    ("flashinfer-pcie-ipc", OLD, "pcie-ipc-not-there"),
    ("flashinfer-pcie-ipc", NEW, "pcie-ipc-no-arch-gate"),
    ("flashinfer-pcie-ipc", NEW.gpus(6), "pcie-ipc-world-size"),
    ("flashinfer-pcie-ipc", NEW.texts({CONTEXT: GATE}).toolkit("12.8.1", "12.0f"), "pcie-ipc-cuda-refused"),
    ("flashinfer-pcie-ipc", NEW.toolkit("12.8.1", "12.0a"), "pcie-ipc-untried-on-12-8"),
    ("flashinfer-pcie-ipc", NEW.texts({COMM_JIT: ANY_ARCH.replace("gen_jit_spec", "get_nvcc_flags_list")}),
     NO_RULE),
    ("flashinfer-pcie-ipc", NO_FLASHINFER, "pcie-ipc-no-flashinfer"),
    ("sglang-pcie-ipc", OLD, "sglang-pcie-ipc-not-there"),
    ("sglang-pcie-ipc", NEW, "sglang-pcie-ipc-on"),
    ("sglang-pcie-ipc", NEW.gpus(2), "sglang-pcie-ipc-after-custom-allreduce"),
    ("sglang-pcie-ipc", NEW.gpus(6), "sglang-pcie-ipc-world-size"),
    ("sglang-pcie-ipc", NEW.texts({COMM: ""}), "sglang-pcie-ipc-flashinfer-lacks-it"),
    ("sglang-pcie-ipc", NEW.texts({COMM: None}), f"there is no {COMM}"),
    ("sglang-pcie-ipc", NEW.toolkit("12.8.1", "12.0a"), "sglang-pcie-ipc-untried-on-12-8"),
    ("sglang-pcie-ipc", NO_SGLANG, "sglang-pcie-ipc-no-sglang"),
    ("torch-symm-mem", OLD, "torch-symm-mem-no-arch-gate"),
    ("torch-symm-mem", OLD.texts({TORCH: "def rendezvous():\n    torch.cuda.get_device_capability()\n"}),
     NO_RULE),
    ("torch-symm-mem", OLD.versions(torch=None), "torch-symm-mem-no-torch"),
    ("sglang-torch-symm-mem", OLD, "symm-mem-size-table-raises"),
    ("sglang-torch-symm-mem", NEW, "symm-mem-size-table-lacks-12"),
    ("sglang-torch-symm-mem", NEW.texts({SIZES: sizes("9 10 12")}), "symm-mem-wants-multicast"),
    ("sglang-torch-symm-mem", OLD.texts({SIZES: "sizes = {"}), f"there is no dict in {SIZES}"),
    ("sglang-torch-symm-mem", NO_SGLANG, "symm-mem-no-sglang"),
    ("sglang-mscclpp", OLD, "mscclpp-in-kernel-package"),
    ("sglang-mscclpp", OLD.gpus(4), "mscclpp-world-size"),
    ("sglang-mscclpp", OLD.texts({KERNEL_ALLREDUCE: ""}), "mscclpp-kernel-package-lacks-it"),
    ("sglang-mscclpp", OLD.library(COMMON_OPS, "none"), "mscclpp-kernel-not-native"),
    ("sglang-mscclpp", NEW, "mscclpp-package-missing-told"),
    ("sglang-mscclpp", MSCCLPP_SILENT, "mscclpp-package-missing"),
    ("sglang-mscclpp", NEW.having("mscclpp/__init__.py"), "mscclpp-package-untried"),
    ("sglang-mscclpp", MSCCLPP_SILENT.having("mscclpp/__init__.py"), "mscclpp-package-untried"),
    ("sglang-mscclpp", NO_SGLANG, "mscclpp-no-sglang"),
    ("b12x", OLD, "b12x-not-there"),
    ("b12x", WITH_B12X, "b12x-no-switch"),
    ("b12x", WITH_B12X.versions(torch="2.9.1"), "b12x-torch-too-old"),
    ("b12x", WITH_B12X.texts({"sglang/srt/distributed/parallel_state.py": "import b12x\n"}),
     NO_RULE),
]  # fmt: skip


@pytest.mark.parametrize(("approach", "world", "expected"), CASES, ids=[f"{a}: {e}" for a, _, e in CASES])
def test_each_rule_decides_where_its_facts_hold_and_nowhere_else(approach: str, world: World, expected: str) -> None:
    if expected.startswith("there is no dict in"):
        assert world.finding(approach).rule is None
        assert SIZES in world.finding(approach).reason
    else:
        assert world.rule(approach) == expected


LACKING: list[tuple[str, World, str]] = [
    ("nccl-tree", OLD.nccl(None), NO_NCCL),
    ("nccl-ll128", OLD.nccl(None), NO_NCCL),
    ("nccl-symmetric-kernels", OLD.nccl("2.27.5", "driver JIT"), NO_RULE),
    ("sglang-nccl-symm-mem", OLD.nccl("2.26.5"), NO_RULE),
    ("sglang-nccl-symm-mem", OLD.texts({ALLOCATOR: ""}), NO_RULE),
    ("sglang-nccl-symm-mem", NEW.texts({ALLOCATOR: ""}), NO_RULE),
    ("sglang-custom-allreduce-v1", OLD.texts({CUSTOM_AR: PCIE_REFUSED.splitlines()[0]}), NO_RULE),
    ("sglang-custom-allreduce-v1", OLD.texts({CUSTOM_AR: PCIE_REFUSED.splitlines()[1]}), NO_RULE),
    ("sglang-custom-allreduce-v1",
     OLD.gpus(2).texts({CUSTOM_AR: "class CustomAllreduce:\n    _SUPPORTED_WORLD_SIZES = [4]\n"}), NO_RULE),
    ("sglang-custom-allreduce-v2", NEW.texts({CUSTOM_AR_UTILS: ""}), NO_RULE),
    ("sglang-custom-allreduce-v2", NEW.gpus(2).texts({CUSTOM_AR_V2: ""}), NO_RULE),
    ("flashinfer-trtllm-fusion", NEW.texts({"flashinfer/comm/trtllm_ar.py": ""}), NO_RULE),
    ("flashinfer-trtllm-fusion", NEW.texts({COMM_JIT: "def gen_trtllm_comm_module(): ...\n"}), NO_RULE),
    ("sglang-flashinfer-fusion",
     NEW.texts({FUSION: FUSION_RAISES.replace("_resolve_backend('auto')", "None")}), NO_RULE),
    ("sglang-flashinfer-fusion",
     NEW.texts({FUSION: FUSION_RAISES.replace("    resolve_flash", "    no_flash")}), NO_RULE),
    ("sglang-flashinfer-fusion", NEW.texts({RUNNER: NEW.snapshot.texts[RUNNER].replace("    pre", "    no")}), NO_RULE),
    ("sglang-flashinfer-fusion", OLD.texts({COMMUNICATOR: "def apply_flashinfer_allreduce_fusion(): ...\n"}), NO_RULE),
    ("sglang-flashinfer-fusion", OLD.texts({COMMUNICATOR: "_is_sm90_supported or _is_sm100_supported\n"}), NO_RULE),
    ("flashinfer-mnnvl", OLD.texts({"flashinfer/comm/trtllm_mnnvl_ar.py": None}), NO_RULE),
    ("flashinfer-pcie-ipc", NEW.texts({CONTEXT: GATE}).toolkit("12.9.1", "12.0"), "pcie-ipc-no-arch-gate"),
    ("flashinfer-pcie-ipc", NEW.texts({CONTEXT: GATE}).toolkit("12.8.1", "12.0a"), "pcie-ipc-untried-on-12-8"),
    ("flashinfer-pcie-ipc", NEW.toolkit("12.8.1", "12.0"), "pcie-ipc-untried-on-12-8"),
    ("sglang-pcie-ipc", NEW.texts({SGLANG_PCIE: PCIE_WORLDS, COMM: ""}), NO_RULE),
    ("sglang-pcie-ipc",
     NEW.texts({COMM_JIT: ANY_ARCH.replace("gen_jit_spec", "get_nvcc_flags_list")}), NO_RULE),
    ("torch-symm-mem", OLD.texts({TORCH: ""}), NO_RULE),
    ("sglang-torch-symm-mem", OLD.texts({SIZES: sizes("9 10 12")}), "symm-mem-wants-multicast"),
    ("sglang-torch-symm-mem", NEW.texts({SYMM_MEM: NO_MULTICAST}), NO_RULE),
    ("sglang-torch-symm-mem", NEW.texts({SIZES: sizes("9 10 12"), SYMM_MEM: ""}), NO_RULE),
    ("sglang-mscclpp", NEW.texts({MSCCLPP: TOLD}), NO_RULE),
    ("sglang-mscclpp", OLD.texts({MSCCLPP: ""}), NO_RULE),
    ("sglang-mscclpp", OLD.gpus(4).texts({MSCCLPP: "class PyMscclppCommunicator:\n    _SUPPORTED_WORLD_SIZES = [8]\n"}),
     NO_RULE),
    ("sglang-mscclpp", OLD.texts({MSCCLPP: "", KERNEL_ALLREDUCE: ""}), NO_RULE),
    ("sglang-mscclpp", OLD.without(COMMON_OPS), NO_RULE),
    ("sglang-mscclpp", OLD.texts({MSCCLPP: ""}).library(COMMON_OPS, "none"), NO_RULE),
]  # fmt: skip
"""Packages that lack one of the facts that a rule rests on: it must not decide on the others alone."""


@pytest.mark.parametrize(
    ("approach", "world", "expected"), LACKING, ids=[f"{a} {i}" for i, (a, _, _) in enumerate(LACKING)]
)
def test_a_rule_needs_all_of_its_facts(approach: str, world: World, expected: str) -> None:
    assert world.rule(approach) == expected


def test_no_rule_is_without_a_case() -> None:
    assert {rule.id for a in APPROACHES.values() for rule in a.rules} <= {expected for _, _, expected in CASES}


@pytest.mark.parametrize("world", [OLD, NEW], ids=["old", "new"])
def test_every_decision_shows_its_evidence(world: World) -> None:
    for approach in APPROACHES:
        found = world.finding(approach)
        assert found.verdict is not Verdict.UNKNOWN
        assert found.evidence


def test_the_table_that_lacks_12_is_shown_with_the_line_that_indexes_it() -> None:
    found = OLD.finding("sglang-torch-symm-mem")
    assert found.rule is not None
    assert found.rule.error == "KeyError: 12"
    assert [(e.file, e.line) for e in found.evidence] == [(SIZES, 1), (SYMM_MEM, 1)]


CUDA_12_8 = Box(cuda="12.8.1", arch={"torch": "12.0a", "flashinfer": "12.0a"})
CUDA_13 = Box(cuda="13.0", arch={"torch": "12.0a", "flashinfer": "12.0f"})

TOOLCHAINS: dict[str, tuple[dict[str, str], Box, dict[str, str]]] = {
    "cu128": (
        {"torch": "2.9.1", "nvidia-nccl-cu12": "2.27.5", "sglang": "0.5.10.post1", "sglang-kernel": "0.4.1",
         "flashinfer-python": "0.6.7.post3"},
        CUDA_12_8,
        {
            "nccl-ring": "nccl-ring-native",
            "nccl-tree": "nccl-tree-native",
            "nccl-ll128": "nccl-ll128-native",
            "nccl-symmetric-kernels": "nccl-symmetric-over-p2p",
            "nccl-nvls": "nccl-nvls-wants-nvswitch",
            "sglang-nccl-symm-mem": "sglang-symm-mem-over-p2p",
            "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
            "sglang-custom-allreduce-v2": "custom-ar-v2-refuses-pcie",
            "flashinfer-trtllm-fusion": "trtllm-fusion-arch-list-lacks-12",
            "sglang-flashinfer-fusion": "sglang-fusion-off-at-run-time",
            "flashinfer-mnnvl": "mnnvl-wants-multicast",
            "flashinfer-pcie-ipc": "pcie-ipc-not-there",
            "sglang-pcie-ipc": "sglang-pcie-ipc-not-there",
            "torch-symm-mem": "torch-symm-mem-no-arch-gate",
            "sglang-torch-symm-mem": "symm-mem-size-table-raises",
            "sglang-mscclpp": "mscclpp-in-kernel-package",
            "b12x": "b12x-not-there",
        },
    ),
    "cu130": (
        {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "sglang": "0.5.23", "sglang-kernel": "0.4.10",
         "flashinfer-python": "0.7.2"},
        CUDA_13,
        {
            "nccl-ring": "nccl-ring-native",
            "nccl-tree": "nccl-tree-native",
            "nccl-ll128": "nccl-ll128-native",
            "nccl-symmetric-kernels": "nccl-symmetric-wants-nvlink",
            "nccl-nvls": "nccl-nvls-wants-nvswitch",
            "sglang-nccl-symm-mem": "sglang-symm-mem-wants-nvlink",
            "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
            "sglang-custom-allreduce-v2": "custom-ar-v2-refuses-pcie",
            "flashinfer-trtllm-fusion": "trtllm-fusion-arch-list-has-12",
            "sglang-flashinfer-fusion": "sglang-fusion-raises",
            "flashinfer-mnnvl": "mnnvl-wants-multicast",
            "flashinfer-pcie-ipc": "pcie-ipc-no-arch-gate",
            "sglang-pcie-ipc": "sglang-pcie-ipc-on",
            "torch-symm-mem": "torch-symm-mem-no-arch-gate",
            "sglang-torch-symm-mem": "symm-mem-size-table-lacks-12",
            "sglang-mscclpp": "mscclpp-package-missing-told",
            "b12x": "b12x-not-there",
        },
    ),
}  # fmt: skip

FLASHINFER_OF: dict[str, tuple[Box, dict[str, str]]] = {
    "0.6.3": (CUDA_12_8, {
        "flashinfer-trtllm-fusion": "trtllm-fusion-arch-list-lacks-12",
        "flashinfer-mnnvl": "mnnvl-wants-multicast",
        "flashinfer-pcie-ipc": "pcie-ipc-not-there",
    }),
    "0.6.18": (CUDA_13, {
        "flashinfer-trtllm-fusion": "trtllm-fusion-arch-list-has-12",
        "flashinfer-mnnvl": "mnnvl-wants-multicast",
        "flashinfer-pcie-ipc": "pcie-ipc-not-there",
    }),
    "0.7.2": (CUDA_13, {
        "flashinfer-trtllm-fusion": "trtllm-fusion-arch-list-has-12",
        "flashinfer-mnnvl": "mnnvl-wants-multicast",
        "flashinfer-pcie-ipc": "pcie-ipc-no-arch-gate",
    }),
}  # fmt: skip

SGLANG_OF: dict[str, tuple[str, Box, dict[str, str]]] = {
    "0.5.9": ("0.6.3", CUDA_12_8, {
        "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
        "sglang-custom-allreduce-v2": "custom-ar-v2-not-there",
        "sglang-flashinfer-fusion": "sglang-fusion-off-at-run-time",
        "sglang-pcie-ipc": "sglang-pcie-ipc-not-there",
        "sglang-torch-symm-mem": "symm-mem-size-table-raises",
    }),
    "0.5.10.post1": ("0.6.7.post3", CUDA_12_8, {
        "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
        "sglang-custom-allreduce-v2": "custom-ar-v2-refuses-pcie",
        "sglang-flashinfer-fusion": "sglang-fusion-off-at-run-time",
        "sglang-pcie-ipc": "sglang-pcie-ipc-not-there",
        "sglang-torch-symm-mem": "symm-mem-size-table-raises",
    }),
    "0.5.21": ("0.6.18", CUDA_13, {
        "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
        "sglang-custom-allreduce-v2": "custom-ar-v2-refuses-pcie",
        "sglang-flashinfer-fusion": "sglang-fusion-raises",
        "sglang-pcie-ipc": "sglang-pcie-ipc-flashinfer-lacks-it",
        "sglang-torch-symm-mem": "symm-mem-size-table-lacks-12",
        "sglang-mscclpp": "mscclpp-package-missing-told",
    }),
    "0.5.23": ("0.7.2", CUDA_13, {
        "sglang-custom-allreduce-v1": "custom-ar-v1-refuses-pcie",
        "sglang-custom-allreduce-v2": "custom-ar-v2-refuses-pcie",
        "sglang-flashinfer-fusion": "sglang-fusion-raises",
        "sglang-pcie-ipc": "sglang-pcie-ipc-on",
        "sglang-torch-symm-mem": "symm-mem-size-table-lacks-12",
        "sglang-mscclpp": "mscclpp-package-missing-told",
    }),
}  # fmt: skip

Packages = Callable[[Mapping[str, str]], Snapshot]


def rules_of(snapshot: Snapshot, box: Box, approaches: Mapping[str, str]) -> dict[str, str]:
    world = World(snapshot=snapshot, box=box)
    return {approach: world.rule(approach) for approach in approaches}


@pytest.mark.network
@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_the_toolchains_get_the_known_answers(toolchain: str, packages: Packages) -> None:
    versions, box, expected = TOOLCHAINS[toolchain]
    assert expected.keys() == APPROACHES.keys()
    assert rules_of(packages(versions), box, expected) == expected


@pytest.mark.network
@pytest.mark.parametrize("version", FLASHINFER_OF)
def test_flashinfer_releases_get_the_known_answers(version: str, packages: Packages) -> None:
    box, expected = FLASHINFER_OF[version]
    assert rules_of(packages({"flashinfer-python": version}), box, expected) == expected


@pytest.mark.network
@pytest.mark.parametrize("version", SGLANG_OF)
def test_sglang_releases_get_the_known_answers(version: str, packages: Packages) -> None:
    flashinfer, box, expected = SGLANG_OF[version]
    assert rules_of(packages({"sglang": version, "flashinfer-python": flashinfer}), box, expected) == expected
