"""The rules for engine parts: each decides on a small package tree, and the real wheels get known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from images import capability
from images.audit import Library, NcclBuild
from images.conditions import Box
from images.preflight import Finding, judge
from images.rules import Approach, Group, Verdict, read_approaches
from images.snapshot import Snapshot

PARTS = {a.id: a for a in read_approaches() if a.group is Group.ENGINE_PART}
OWNER = {rule.id: approach for approach in PARTS.values() for rule in approach.rules}

CONTEXT = "flashinfer/compilation_context.py"
ASKS = 'if "FLASHINFER_CUDA_ARCH_LIST" in os.environ:\n'
UNGATED = ASKS + '    minor = str(minor) + "a"\n'
GATED = ASKS + '    _normalize_cuda_arch(12, 0)\n    raise RuntimeError("SM 12.x requires CUDA >= 12.9")\n'
OPENED = ASKS + '    _normalize_cuda_arch(12, 0)\n    raise RuntimeError("SM 120 requires CUDA >= 12.8")\n'

CONFIGURER = "sglang/srt/layers/deep_gemm_wrapper/configurer.py"
PROBES = "if sm_version in (120, 121):\n    names = ('fp8_einsum', 'm_grouped_fp8_fp4_gemm_nt_contiguous')\n"
DEEP_GEMM = "deep_gemm/__init__.py"
DEEP_GEMM_SM120 = "deep_gemm/include/deep_gemm/impls/sm120_fp8_fp4_gemm_1d1d.cuh"
FP8_UTILS = "sglang/srt/layers/quantization/fp8_utils.py"
FP8_BLOCKWISE_SM120 = "sglang/kernels/jit/csrc/gemm/fp8_blockwise/fp8_blockwise_scaled_mm_sm120.cuh"
FP8 = "sglang/srt/layers/quantization/fp8.py"
FP4_UTILS = "sglang/srt/layers/quantization/fp4_utils.py"
REGISTRY = "sglang/srt/layers/attention/attention_registry.py"
SERVER_ARGS = "sglang/srt/server_args.py"
FA_BACKEND = "sglang/srt/layers/attention/flashattention_backend.py"
FLASHMLA_BACKEND = "sglang/srt/layers/attention/flashmla_backend.py"
CUTLASS_MLA_BACKEND = "sglang/srt/layers/attention/cutlass_mla_backend.py"
FMHA_RUNNER = "flashinfer/data/include/flashinfer/trtllm/fmha/fmhaRunner.cuh"
BATCHED_GEMM = "flashinfer/data/csrc/trtllm_batched_gemm_runner.cu"
FUSED_MOE = "flashinfer/jit/fused_moe.py"
PTXAS = "triton/backends/nvidia/bin/ptxas"
TRITON = "triton/backends/nvidia/compiler.py"
CUTE_OLD = "sglang/jit_kernel/flash_attention/cute/interface.py"
CUTE_NEW = "sglang/jit_kernel/flash_attn/cute/interface.py"
FA4_OLD = "sglang/jit_kernel/flash_attention_v4.py"
FA4_SM120 = "sglang/kernels/ops/attention/flash_attention_v4_sm120.py"
ARCH_OLD = "sglang/jit_kernel/utils.py"
ARCH_MID = "sglang/jit_kernel/utils/arch.py"
ARCH_NEW = "sglang/kernels/jit/utils/arch.py"
SM90_TO_110 = 'assert arch in [9, 10, 11], "Unsupported compute capability. Supported: 9.x, 10.x, 11.x"\n'
NO_PAGES = 'assert page_table is None, "Paged KV not supported on SM 12.0 in this PR"\n'
COMMON_OPS = "sgl_kernel/sm100/common_ops.abi3.so"
FLASHMLA_OPS = "sgl_kernel/flashmla_ops.abi3.so"
LIBTORCH = "torch/lib/libtorch_cuda.so"
LIBNCCL = "nvidia/nccl/lib/libnccl.so.2"


def module(function: str, majors: list[int]) -> str:
    return f"def {function}():\n    nvcc_flags = get_nvcc_flags_list(supported_major_versions={majors})\n"


OLD: Mapping[str, str] = {
    CONTEXT: GATED,
    "flashinfer/jit/attention/modules.py": module("gen_fmha_v2_module", [9, 12])
    + "def gen_batch_prefill_module(\n): ...\n",
    "flashinfer/jit/xqa.py": module("gen_xqa_module", [9, 10, 12]),
    "flashinfer/jit/fp4_quantization.py": "def gen_fp4_quantization_sm120_module(): ...\n",
    "flashinfer/jit/gemm/core.py": module("gen_gemm_sm120_module_cutlass_fp4", [12]),
    FUSED_MOE: module("gen_cutlass_fused_moe_sm120_module", [12])
    + module("gen_trtllm_gen_fused_moe_sm100_module", [10, 12]),
    FMHA_RUNNER: 'FLASHINFER_CHECK(mSM == kSM_100 || mSM == kSM_103, "Unsupported architecture");\n',
    BATCHED_GEMM: 'FLASHINFER_CHECK(err == 0, "Error occurred when running GEMM!");\n',
    "sgl_kernel/load_utils.py": 'ops_subdir = "sm100"\n',
    DEEP_GEMM: "def fp8_gemm_nt(): ...\n",
    SERVER_ARGS: '"TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."\n',
    CONFIGURER: "if sm_version < 90:\n    pass\n",
    REGISTRY: '@register_attention_backend("flashinfer")\n@register_attention_backend("triton")\n'
    '"FlashAttention v3 Backend requires SM>=80 and SM<=90. "\n',
    FA_BACKEND: "from sglang.jit_kernel.flash_attention_v4 import f\n",
    FLASHMLA_BACKEND: "from sgl_kernel.flash_mla import get_mla_metadata\n",
    CUTLASS_MLA_BACKEND: "from sgl_kernel import cutlass_mla_decode\n",
    "sglang/srt/layers/attention/trtllm_mla_backend.py": "flashinfer.prefill.trtllm_ragged_attention_deepseek()\n",
    FP8_UTILS: 'def initialize_fp8_gemm_config():\n    if is_sm120_supported():\n        backend = "triton"\n',
    FP8: '"cutlass_fp8 MoE requires SM90, SM100, or SM120 GPUs"\n',
    "sglang/srt/layers/moe/cutlass_moe.py": "from sgl_kernel import fp8_blockwise_scaled_grouped_mm\n",
    FP4_UTILS: 'backend = "flashinfer_cudnn"\n',
    ARCH_OLD: '_CUDA_ARCH = ArchInfo(major, minor, "")\n',
    FA4_OLD: "from flash_attn.cute import flash_attn_varlen_func\n",
    PTXAS: "",
    TRITON: "return knobs.nvidia.ptxas\n",
}
"""As SGLang 0.5.10 with FlashInfer 0.6.7 and Triton 3.5, as far as the rules look."""

NEW: Mapping[str, str] = {
    **{path: text for path, text in OLD.items() if path not in (ARCH_OLD, FA4_OLD, CUTLASS_MLA_BACKEND)},
    CONTEXT: OPENED,
    BATCHED_GEMM: '<< "cubin manifest contains no kernels runnable on sm"; isArchCompatible(CudaArch::Sm100f);\n',
    DEEP_GEMM: "def m_grouped_fp8_fp4_gemm_nt_contiguous(): ...\ndef fp8_einsum(): ...\n",
    DEEP_GEMM_SM120: "",
    SERVER_ARGS: "",
    "sglang/srt/arg_groups/attention_hook.py": '"TRTLLM MHA backend for prefill requires Hopper or SM120 GPUs."\n',
    CONFIGURER: PROBES,
    FA_BACKEND: "from sglang.kernels.ops.attention.flash_attention_v4_sm120 import f\n",
    FA4_SM120: "",
    FLASHMLA_BACKEND: "from sglang.kernels.ops.attention.flash_mla_interface import f\n",
    FP8_UTILS: "from sglang.kernels.ops.gemm.fp8_blockwise_gemm import fp8_blockwise_scaled_mm\n"
    "def initialize_fp8_gemm_config(): ...\n",
    FP8_BLOCKWISE_SM120: "",
    FP4_UTILS: 'backend = "flashinfer_cutlass"\n',
    ARCH_NEW: "if minor == 0 and _jit_cuda_version() >= (12, 9):\n",
    f"{PTXAS}-blackwell": "",
    TRITON: "return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas\n",
}
"""As SGLang 0.5.23 with FlashInfer 0.7.2 and Triton 3.8, as far as the rules look."""

VERSIONS = {
    "sglang": "0.5.10",
    "flashinfer-python": "0.6.7",
    "sglang-kernel": "0.4.1",
    "triton": "3.5.1",
}
LIBRARIES = {COMMON_OPS: "native", FLASHMLA_OPS: "none", LIBTORCH: "native", LIBNCCL: "native"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A package tree and what it would run on; None in a mapping takes something away."""

    tree: Mapping[str, str] = field(default_factory=lambda: OLD)
    files: Mapping[str, str | None] = field(default_factory=dict)
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    cuda: str = "12.8.1"
    arch: str = "12.0a"
    nccl: str | None = "12.9"

    def judged(self, approach: Approach) -> Finding:
        snapshot = Snapshot(
            texts=_kept(self.tree, self.files),
            libraries={path: _library(path, word) for path, word in _kept(LIBRARIES, self.libraries).items()},
            versions=_kept(VERSIONS, self.versions),
            nccl=NcclBuild(path=LIBNCCL, version="2.27.5", cuda=self.nccl) if self.nccl else None,
        )
        (finding,) = judge([approach], snapshot, Box(cuda=self.cuda, arch={"flashinfer": self.arch}))
        return finding


def _library(path: str, verdict: str) -> Library:
    return Library(path=path, size=1, code=(), verdict=capability.Verdict(verdict))


def _kept(base: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def new(**changes: object) -> Case:
    return Case(**{"tree": NEW, "cuda": "13.0", "arch": "12.0f", **changes})  # type: ignore[arg-type]


def old(**changes: object) -> Case:
    return Case(**changes)  # type: ignore[arg-type]


NO_SGLANG = old(versions={"sglang": None})
NO_FLASHINFER = old(versions={"flashinfer-python": None})
NO_FLASHINFER_NEW = new(versions={"flashinfer-python": None})
FAMILY_ON_12_8 = old(arch="12.0f")
DETECTED_ON_12_8 = old(arch="")
PLAIN_UNGATED = old(files={CONTEXT: UNGATED}, arch="12.0")
TRITON_NEW = {"triton": "3.8.0"}
AUTO_IS_TRITON_FOR_ALL = {FP8_UTILS: 'def initialize_fp8_gemm_config():\n    backend = "triton"\n'}
AUTO_IS_DEEP_GEMM = {FP8_UTILS: 'def initialize_fp8_gemm_config():\n    backend = "cutlass"\n'}

CASES: dict[str, Case] = {
    "flashinfer-jit-not-there": NO_FLASHINFER,
    "flashinfer-jit-family-target-needs-nvcc-12.9": FAMILY_ON_12_8,
    "flashinfer-jit-refused-below-12.9": DETECTED_ON_12_8,
    "flashinfer-jit-refused-below-12.8": old(files={CONTEXT: OPENED}, cuda="12.6", arch="12.0"),
    "flashinfer-jit-nvcc-without-sm120": old(cuda="12.6"),
    "flashinfer-jit-arch-list-passes-the-gate": old(),
    "flashinfer-jit-plain-arch-kept": PLAIN_UNGATED,
    "flashinfer-jit-starts": new(),
    "sgl-kernel-not-there": old(libraries={COMMON_OPS: None}),
    "sgl-kernel-without-sm120": old(libraries={COMMON_OPS: "none"}),
    "sgl-kernel-starts": old(),
    "torch-not-there": old(libraries={LIBTORCH: None}),
    "torch-without-sm120": old(libraries={LIBTORCH: "none"}),
    "torch-starts": old(),
    "triton-not-there": old(versions={"triton": None}),
    "triton-emits-cuda-13-on-12": new(versions=TRITON_NEW, cuda="12.8.1"),
    "triton-blackwell-ptxas-starts": new(versions=TRITON_NEW),
    "triton-one-ptxas-starts": old(),
    "nccl-build-not-there": old(libraries={LIBNCCL: None}, nccl=None),
    "nccl-build-without-sm120": old(libraries={LIBNCCL: "driver JIT"}, nccl="12.2"),
    "nccl-build-starts": old(),
    "sglang-jit-not-there": NO_SGLANG,
    "sglang-jit-nvcc-without-sm120": old(cuda="12.6"),
    "sglang-jit-suffix-by-nvcc": new(),
    "sglang-jit-suffix-lost-below-12.9": old(files={ARCH_MID: "if get_cuda_version() < (12, 9):\n"}),
    "sglang-jit-suffix-f": old(files={ARCH_MID: "if get_cuda_version() < (12, 9):\n"}, cuda="13.0"),
    "sglang-jit-no-suffix": old(),
    "deepgemm-no-sglang": NO_SGLANG,
    "deepgemm-not-there": old(files={DEEP_GEMM: None}),
    "deepgemm-off-on-sm120": old(files={CONFIGURER: "if sm_version == 120:\n    pass\n"}),
    "deepgemm-tried-and-crashes": old(),
    "deepgemm-too-old-for-the-probe": new(files={DEEP_GEMM: "def fp8_einsum(): ...\n"}),
    "deepgemm-without-sm120-kernels": new(files={DEEP_GEMM_SM120: None}),
    "deepgemm-needs-nvcc-12.9": new(cuda="12.8.1", arch="12.0a"),
    "deepgemm-starts": new(),
    "fa3-no-sglang": NO_SGLANG,
    "fa3-refused": old(),
    "fa4-no-sglang": NO_SGLANG,
    "fa4-starts": new(),
    "fa4-vendored-without-sm120": old(files={CUTE_OLD: SM90_TO_110, FA4_OLD: "from sglang.jit_kernel import f\n"}),
    "fa4-vendored-without-paged-kv": old(files={CUTE_NEW: NO_PAGES}),
    "fa4-package-without-sm120": old(files={"flash_attn/cute/interface.py": SM90_TO_110}),
    "fa4-package-without-paged-kv": old(files={"flash_attn/cute/interface.py": NO_PAGES}),
    "fa4-not-there": old(),
    "flashmla-no-sglang": NO_SGLANG,
    "flashmla-in-kernel-package-without-sm120": old(),
    "flashmla-package-not-there": new(),
    "flashmla-package-without-sm120": new(
        files={"flash_mla/__init__.py": ""}, libraries={"flash_mla/_C_legacy.abi3.so": "none"}
    ),
    "cutlass-mla-no-sglang": NO_SGLANG,
    "cutlass-mla-gone": new(),
    "cutlass-mla-sm100-only": old(),
    "trtllm-mla-no-sglang": NO_SGLANG,
    "trtllm-mla-no-flashinfer": NO_FLASHINFER,
    "trtllm-mla-prefill-sm100-only": new(),
    "trtllm-mha-no-sglang": NO_SGLANG,
    "trtllm-mha-refused": old(
        files={SERVER_ARGS: '"TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). "\n'}
    ),
    "trtllm-mha-prefill-refused": old(),
    "trtllm-mha-no-flashinfer": NO_FLASHINFER_NEW,
    "trtllm-mha-family-target-needs-nvcc-12.9": new(cuda="12.8.1"),
    "trtllm-mha-jit-refused": new(files={CONTEXT: GATED}, cuda="12.8.1", arch=""),
    "trtllm-mha-starts": new(),
    "flashinfer-attention-no-sglang": NO_SGLANG,
    "flashinfer-attention-no-flashinfer": NO_FLASHINFER,
    "flashinfer-attention-family-target-needs-nvcc-12.9": FAMILY_ON_12_8,
    "flashinfer-attention-jit-refused": DETECTED_ON_12_8,
    "flashinfer-attention-starts-by-arch-list": old(),
    "flashinfer-attention-starts": new(),
    "triton-attention-no-sglang": NO_SGLANG,
    "triton-attention-no-triton": old(versions={"triton": None}),
    "triton-attention-starts": old(),
    "fp8-blockwise-gemm-no-sglang": NO_SGLANG,
    "fp8-blockwise-gemm-deepgemm-by-default": old(files=AUTO_IS_DEEP_GEMM),
    "fp8-blockwise-gemm-cutlass": new(),
    "fp8-blockwise-gemm-triton": old(),
    "fp8-moe-cutlass-no-sglang": NO_SGLANG,
    "fp8-moe-cutlass-refused": old(files={FP8: "assert is_sm100_supported() or is_sm90_supported()\n"}),
    "fp8-moe-cutlass-kernel-without-sm120": old(),
    "nvfp4-gemm-no-sglang": NO_SGLANG,
    "nvfp4-gemm-no-flashinfer": NO_FLASHINFER,
    "nvfp4-gemm-family-target-needs-nvcc-12.9": FAMILY_ON_12_8,
    "nvfp4-gemm-jit-refused": DETECTED_ON_12_8,
    "nvfp4-gemm-cudnn": old(),
    "nvfp4-gemm-cutlass": new(),
    "nvfp4-moe-cutlass-no-sglang": NO_SGLANG,
    "nvfp4-moe-cutlass-no-flashinfer": NO_FLASHINFER,
    "nvfp4-moe-cutlass-family-target-needs-nvcc-12.9": FAMILY_ON_12_8,
    "nvfp4-moe-cutlass-jit-refused": DETECTED_ON_12_8,
    "nvfp4-moe-cutlass-plain-arch": PLAIN_UNGATED,
    "nvfp4-moe-cutlass-starts": old(),
    "nvfp4-moe-trtllm-no-sglang": NO_SGLANG,
    "nvfp4-moe-trtllm-no-flashinfer": NO_FLASHINFER,
    "nvfp4-moe-trtllm-not-compiled-for-sm120": old(
        files={FUSED_MOE: module("gen_trtllm_gen_fused_moe_sm100_module", [10])}
    ),
    "nvfp4-moe-trtllm-no-sm120-cubins": new(),
    "nvfp4-moe-trtllm-loads-sm100-cubins": old(),
}
"""Rule to a tree on which it decides. Trees differ in one fact, so each shows where the others do not decide."""


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_decides_where_its_facts_hold(rule: str) -> None:
    finding = CASES[rule].judged(OWNER[rule])
    assert finding.rule is not None, finding.reason
    assert finding.rule.id == rule
    assert finding.evidence


def test_every_rule_has_a_tree_on_which_it_decides() -> None:
    assert set(CASES) == set(OWNER)


ALSO: list[tuple[str, Case]] = [
    ("flashinfer-jit-starts", old(files={CONTEXT: UNGATED}, arch="")),
    ("flashinfer-jit-starts", old(files={CONTEXT: UNGATED})),
    ("flashinfer-jit-starts", old(cuda="12.9.1", arch="")),
    ("flashinfer-jit-starts", old(cuda="13.0", arch="12.0f")),
    ("flashinfer-jit-starts", old(cuda="13.0")),
    ("flashinfer-jit-starts", old(files={CONTEXT: OPENED}, arch="")),
    ("flashinfer-jit-starts", old(files={CONTEXT: OPENED}, arch="12.0")),
    ("flashinfer-jit-starts", old(files={CONTEXT: OPENED})),
    ("flashinfer-jit-refused-below-12.9", old(arch="12.0")),
    ("flashinfer-jit-family-target-needs-nvcc-12.9", old(files={CONTEXT: OPENED}, arch="12.0f")),
    ("flashinfer-jit-nvcc-without-sm120", old(files={CONTEXT: UNGATED}, cuda="12.6", arch="")),
    ("flashinfer-jit-nvcc-without-sm120", old(files={CONTEXT: OPENED}, cuda="12.6")),
    ("flashinfer-attention-starts", old(files={CONTEXT: OPENED}, arch="")),
    ("flashinfer-attention-starts", old(files={CONTEXT: OPENED})),
    ("flashinfer-attention-starts", old(cuda="13.0", arch="")),
    ("nvfp4-gemm-cudnn", old(files={CONTEXT: OPENED}, arch="")),
    ("nvfp4-gemm-cudnn", old(cuda="13.0", arch="")),
    ("nvfp4-moe-cutlass-starts", old(files={CONTEXT: OPENED}, arch="12.0")),
    ("nvfp4-moe-cutlass-starts", old(files={CONTEXT: UNGATED})),
    ("nvfp4-moe-cutlass-starts", old(cuda="13.0", arch="12.0f")),
    ("trtllm-mha-starts", new(files={CONTEXT: GATED}, arch="")),
    ("trtllm-mha-starts", new(files={CONTEXT: GATED}, cuda="12.8.1", arch="12.0a")),
    ("trtllm-mha-starts", new(cuda="12.8.1", arch="")),
    ("triton-blackwell-ptxas-starts", new(versions={"triton": "3.6.0"}, cuda="12.8.1")),
]
"""Neighbours of the trees above, where another rule decides."""


@pytest.mark.parametrize(("rule", "case"), ALSO)
def test_another_rule_decides_where_one_fact_is_another(rule: str, case: Case) -> None:
    finding = case.judged(OWNER[rule])
    assert finding.rule is not None, finding.reason
    assert finding.rule.id == rule


OTHER_CUTE = "flash_attn/cute/interface.py"
FROM_ELSEWHERE = {FA4_OLD: "from elsewhere import flash_attn_varlen_func\n"}
OLD_SGLANG_NEW_DEEP_GEMM = {DEEP_GEMM: NEW[DEEP_GEMM], DEEP_GEMM_SM120: ""}
FLASH_MLA = {"flash_mla/__init__.py": ""}
NO_FLASH_MLA_CODE = {"flash_mla/_C_legacy.abi3.so": "none"}
ATTENTION_MODULES = "flashinfer/jit/attention/modules.py"

UNDECIDED: list[tuple[str, Case]] = [
    ("flashinfer-jit", new(files={CONTEXT: "TARGET_CUDA_ARCHS = set()\n"})),
    ("sgl-kernel", old(files={"sgl_kernel/load_utils.py": 'ops_subdir = "sm90"\n'})),
    ("sgl-kernel", old(files={COMMON_OPS: ""}, libraries={COMMON_OPS: None})),
    ("torch-archs", old(libraries={LIBTORCH: "driver JIT"})),
    ("triton-ptxas", old(versions={"triton": "3.2.0"})),
    ("triton-ptxas", old(files={PTXAS: None})),
    ("triton-ptxas", old(files={f"{PTXAS}-blackwell": ""})),
    ("triton-ptxas", new(files={TRITON: OLD[TRITON]}, versions=TRITON_NEW)),
    ("triton-ptxas", new(files={TRITON: OLD[TRITON]}, versions=TRITON_NEW, cuda="12.8.1")),
    ("triton-ptxas", new(files={f"{PTXAS}-blackwell": None}, versions=TRITON_NEW)),
    ("triton-ptxas", new(files={f"{PTXAS}-blackwell": None}, versions=TRITON_NEW, cuda="12.8.1")),
    ("nccl-build", old(nccl="12.2")),
    ("nccl-build", old(files={LIBNCCL: ""}, libraries={LIBNCCL: None})),
    ("sglang-jit-arch", old(files={ARCH_OLD: "_CUDA_ARCH = probe()\n"})),
    ("sglang-jit-arch", old(files={ARCH_OLD: None, ARCH_MID: "pass\n"})),
    ("sglang-jit-arch", old(files={ARCH_OLD: None, ARCH_MID: "pass\n"}, cuda="13.0")),
    ("sglang-jit-arch", new(files={ARCH_NEW: "pass\n"})),
    ("deepgemm", new(files={DEEP_GEMM: "def m_grouped_fp8_fp4_gemm_nt_contiguous(): ...\n"})),
    ("deepgemm", old(files=OLD_SGLANG_NEW_DEEP_GEMM)),
    ("deepgemm", old(files=OLD_SGLANG_NEW_DEEP_GEMM, cuda="13.0")),
    ("deepgemm", old(files={DEEP_GEMM_SM120: ""})),
    ("fa3", old(files={REGISTRY: "pass\n"})),
    ("fa4", new(files={FA_BACKEND: "pass\n"})),
    ("fa4", new(files={FA4_SM120: None})),
    ("fa4", old(files={CUTE_NEW: "pass\n", **FROM_ELSEWHERE})),
    ("fa4", old(files={OTHER_CUTE: "pass\n"})),
    ("fa4", old(files={OTHER_CUTE: SM90_TO_110, **FROM_ELSEWHERE})),
    ("fa4", old(files={OTHER_CUTE: NO_PAGES, **FROM_ELSEWHERE})),
    ("flashmla", old(libraries={FLASHMLA_OPS: "native"})),
    ("flashmla", new(files=FLASH_MLA)),
    ("flashmla", new(files={FLASHMLA_BACKEND: "pass\n", **FLASH_MLA}, libraries=NO_FLASH_MLA_CODE)),
    ("cutlass-mla", old(files={CUTLASS_MLA_BACKEND: "pass\n"})),
    ("trtllm-mla", new(files={FMHA_RUNNER: "FLASHINFER_CHECK(mSM == kSM_100 || mSM == kSM_120, x);\n"})),
    ("trtllm-mla", new(files={FMHA_RUNNER: "pass\n"})),
    ("trtllm-mla", new(files={"sglang/srt/layers/attention/trtllm_mla_backend.py": "pass\n"})),
    ("trtllm-mha", new(files={"flashinfer/jit/xqa.py": module("gen_xqa_module", [9, 10])})),
    ("trtllm-mha", new(files={ATTENTION_MODULES: module("gen_fmha_v2_module", [9])})),
    ("trtllm-mha", new(files={"sglang/srt/arg_groups/attention_hook.py": "pass\n"})),
    ("trtllm-mha", new(cuda="12.6", arch="12.0a")),
    ("flashinfer-attention", new(files={REGISTRY: "pass\n"})),
    ("flashinfer-attention", new(files={ATTENTION_MODULES: "pass\n"})),
    ("flashinfer-attention", new(cuda="12.6", arch="12.0a")),
    ("flashinfer-attention", old(files={REGISTRY: "pass\n"})),
    ("flashinfer-attention", old(files={ATTENTION_MODULES: "pass\n"})),
    ("flashinfer-attention", old(cuda="12.6")),
    ("triton-attention", old(files={PTXAS: None})),
    ("triton-attention", old(files={REGISTRY: "pass\n"})),
    ("fp8-blockwise-gemm", old(files={**AUTO_IS_DEEP_GEMM, DEEP_GEMM: None})),
    ("fp8-blockwise-gemm", old(files={**AUTO_IS_DEEP_GEMM, DEEP_GEMM_SM120: ""})),
    ("fp8-blockwise-gemm", old(files={**AUTO_IS_DEEP_GEMM, CONFIGURER: "if sm_version == 120:\n    pass\n"})),
    ("fp8-blockwise-gemm", new(files=AUTO_IS_TRITON_FOR_ALL)),
    ("fp8-blockwise-gemm", new(files={FP8_BLOCKWISE_SM120: None})),
    ("fp8-blockwise-gemm", new(cuda="12.6")),
    ("fp8-blockwise-gemm", old(files={FP8_UTILS: OLD[FP8_UTILS].replace("triton", "cutlass")})),
    ("fp8-moe-cutlass", old(versions={"sglang-kernel": "0.4.11"})),
    ("fp8-moe-cutlass", old(files={FP8: "pass\n"})),
    ("fp8-moe-cutlass", old(files={"sglang/srt/layers/moe/cutlass_moe.py": "pass\n"})),
    ("nvfp4-gemm", new(files={"flashinfer/jit/gemm/core.py": module("gen_gemm_sm120_module_cutlass_fp4", [10])})),
    ("nvfp4-gemm", old(files={"flashinfer/jit/fp4_quantization.py": "pass\n"})),
    ("nvfp4-gemm", old(cuda="12.6")),
    ("nvfp4-gemm", new(cuda="12.6", arch="12.0a")),
    ("nvfp4-moe-flashinfer-cutlass", old(files={FUSED_MOE: module("gen_cutlass_fused_moe_sm120_module", [10])})),
    ("nvfp4-moe-flashinfer-cutlass", old(cuda="12.6")),
    ("nvfp4-moe-flashinfer-trtllm", new(files={BATCHED_GEMM: NEW[BATCHED_GEMM] + "case CudaArch::Sm120a:\n"})),
    ("nvfp4-moe-flashinfer-trtllm", old(files={BATCHED_GEMM: "pass\n"})),
    ("nvfp4-moe-flashinfer-trtllm", old(files={BATCHED_GEMM: OLD[BATCHED_GEMM] + "isArchCompatible(x);\n"})),
]
"""Neighbours of the trees above, where nothing decides."""


@pytest.mark.parametrize(("part", "case"), UNDECIDED)
def test_nothing_decides_where_the_fact_that_decided_is_gone(part: str, case: Case) -> None:
    finding = case.judged(PARTS[part])
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.reason


def test_an_arch_list_that_is_needed_is_said() -> None:
    for part in ("flashinfer-jit", "flashinfer-attention"):
        finding = old().judged(PARTS[part])
        assert finding.rule is not None
        assert finding.rule.needs == ("FLASHINFER_CUDA_ARCH_LIST=12.0a",)


def test_a_source_that_cannot_be_parsed_hides_no_other_part() -> None:
    case = old(files={FP8_UTILS: "def initialize_fp8_gemm_config(:\n"})
    assert case.judged(PARTS["fp8-blockwise-gemm"]).verdict is Verdict.UNKNOWN
    assert FP8_UTILS in case.judged(PARTS["fp8-blockwise-gemm"]).reason
    assert case.judged(PARTS["fa3"]).verdict is Verdict.FAILS


CU128 = {
    "sglang": "0.5.10.post1",
    "flashinfer-python": "0.6.7.post3",
    "sglang-kernel": "0.4.1",
    "torch": "2.9.1",
    "triton": "3.5.1",
    "nvidia-nccl-cu12": "2.27.5",
}
CU130 = {
    "sglang": "0.5.23",
    "flashinfer-python": "0.7.2",
    "sglang-kernel": "0.4.10",
    "sgl-deep-gemm": "0.2.3.post2",
    "torch": "2.14.1",
    "triton": "3.8.0",
    "nvidia-nccl-cu13": "2.30.7",
}
SGLANG_0_5_9 = {"sglang": "0.5.9", "flashinfer-python": "0.6.3", "sgl-kernel": "0.3.21", "triton": "3.5.1"}
SGLANG_0_5_21 = {"sglang": "0.5.21", "flashinfer-python": "0.6.18", "sgl-deep-gemm": "0.2.0", "triton": "3.8.0"}

EXPECTED: dict[str, tuple[dict[str, str], Box, dict[str, str]]] = {
    "cu128": (
        CU128,
        Box(cuda="12.8.1", arch={"torch": "12.0a", "flashinfer": "12.0a"}),
        {
            "flashinfer-jit": "flashinfer-jit-arch-list-passes-the-gate",
            "sgl-kernel": "sgl-kernel-starts",
            "torch-archs": "torch-starts",
            "triton-ptxas": "triton-one-ptxas-starts",
            "nccl-build": "nccl-build-starts",
            "sglang-jit-arch": "sglang-jit-no-suffix",
            "deepgemm": "deepgemm-tried-and-crashes",
            "fa3": "fa3-refused",
            "fa4": "fa4-not-there",
            "flashmla": "flashmla-in-kernel-package-without-sm120",
            "cutlass-mla": "cutlass-mla-sm100-only",
            "trtllm-mla": "trtllm-mla-prefill-sm100-only",
            "trtllm-mha": "trtllm-mha-prefill-refused",
            "flashinfer-attention": "flashinfer-attention-starts-by-arch-list",
            "triton-attention": "triton-attention-starts",
            "fp8-blockwise-gemm": "fp8-blockwise-gemm-triton",
            "fp8-moe-cutlass": "fp8-moe-cutlass-kernel-without-sm120",
            "nvfp4-gemm": "nvfp4-gemm-cudnn",
            "nvfp4-moe-flashinfer-cutlass": "nvfp4-moe-cutlass-starts",
            "nvfp4-moe-flashinfer-trtllm": "nvfp4-moe-trtllm-loads-sm100-cubins",
        },
    ),
    "cu130": (
        CU130,
        Box(cuda="13.0", arch={"torch": "12.0a", "flashinfer": "12.0f"}),
        {
            "flashinfer-jit": "flashinfer-jit-starts",
            "sgl-kernel": "sgl-kernel-starts",
            "torch-archs": "torch-starts",
            "triton-ptxas": "triton-blackwell-ptxas-starts",
            "nccl-build": "nccl-build-starts",
            "sglang-jit-arch": "sglang-jit-suffix-by-nvcc",
            "deepgemm": "deepgemm-starts",
            "fa3": "fa3-refused",
            "fa4": "fa4-starts",
            "flashmla": "flashmla-package-not-there",
            "cutlass-mla": "cutlass-mla-gone",
            "trtllm-mla": "trtllm-mla-prefill-sm100-only",
            "trtllm-mha": "trtllm-mha-starts",
            "flashinfer-attention": "flashinfer-attention-starts",
            "triton-attention": "triton-attention-starts",
            "fp8-blockwise-gemm": "fp8-blockwise-gemm-cutlass",
            "fp8-moe-cutlass": "fp8-moe-cutlass-kernel-without-sm120",
            "nvfp4-gemm": "nvfp4-gemm-cutlass",
            "nvfp4-moe-flashinfer-cutlass": "nvfp4-moe-cutlass-starts",
            "nvfp4-moe-flashinfer-trtllm": "nvfp4-moe-trtllm-no-sm120-cubins",
        },
    ),
    "sglang 0.5.9": (
        SGLANG_0_5_9,
        Box(cuda="12.8.1"),
        {
            "flashinfer-jit": "flashinfer-jit-starts",
            "sgl-kernel": "sgl-kernel-starts",
            "torch-archs": "torch-not-there",
            "triton-ptxas": "triton-one-ptxas-starts",
            "nccl-build": "nccl-build-not-there",
            "sglang-jit-arch": "sglang-jit-no-suffix",
            "deepgemm": "deepgemm-tried-and-crashes",
            "fa3": "fa3-refused",
            "fa4": "fa4-vendored-without-sm120",
            "flashmla": "flashmla-in-kernel-package-without-sm120",
            "cutlass-mla": "cutlass-mla-sm100-only",
            "trtllm-mla": "trtllm-mla-prefill-sm100-only",
            "trtllm-mha": "trtllm-mha-refused",
            "flashinfer-attention": "flashinfer-attention-starts",
            "triton-attention": "triton-attention-starts",
            "fp8-blockwise-gemm": "fp8-blockwise-gemm-deepgemm-by-default",
            "fp8-moe-cutlass": "fp8-moe-cutlass-refused",
            "nvfp4-gemm": "nvfp4-gemm-cutlass",
            "nvfp4-moe-flashinfer-cutlass": "nvfp4-moe-cutlass-starts",
            "nvfp4-moe-flashinfer-trtllm": "nvfp4-moe-trtllm-not-compiled-for-sm120",
        },
    ),
    "sglang 0.5.21 without its kernel package": (
        SGLANG_0_5_21,
        Box(cuda="13.0", arch={"flashinfer": "12.0f"}),
        {
            "flashinfer-jit": "flashinfer-jit-starts",
            "sgl-kernel": "sgl-kernel-not-there",
            "torch-archs": "torch-not-there",
            "triton-ptxas": "triton-blackwell-ptxas-starts",
            "nccl-build": "nccl-build-not-there",
            "sglang-jit-arch": "sglang-jit-suffix-by-nvcc",
            "deepgemm": "deepgemm-starts",
            "fa3": "fa3-refused",
            "fa4": "fa4-starts",
            "flashmla": "",
            "cutlass-mla": "cutlass-mla-gone",
            "trtllm-mla": "trtllm-mla-prefill-sm100-only",
            "trtllm-mha": "trtllm-mha-starts",
            "flashinfer-attention": "flashinfer-attention-starts",
            "triton-attention": "triton-attention-starts",
            "fp8-blockwise-gemm": "fp8-blockwise-gemm-cutlass",
            "fp8-moe-cutlass": "",
            "nvfp4-gemm": "nvfp4-gemm-cutlass",
            "nvfp4-moe-flashinfer-cutlass": "nvfp4-moe-cutlass-starts",
            "nvfp4-moe-flashinfer-trtllm": "nvfp4-moe-trtllm-no-sm120-cubins",
        },
    ),
}
"""Wheels, what they would run on, and part to the rule that decides ("": none)."""


@pytest.mark.network
@pytest.mark.parametrize("name", EXPECTED)
def test_the_real_wheels_get_the_known_answers(name: str, packages: Callable[[Mapping[str, str]], Snapshot]) -> None:
    versions, box, expected = EXPECTED[name]
    findings = judge(PARTS.values(), packages(versions), box)
    assert {f.approach.id: f.rule.id if f.rule else "" for f in findings} == expected
    assert all(f.evidence for f in findings if f.rule)
