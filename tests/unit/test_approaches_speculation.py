"""The rules for speculation modes: each decides on a small package tree, and the real wheels get known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from images import capability
from images.audit import Library
from images.conditions import Box
from images.preflight import Finding, judge
from images.rules import Approach, Group, Verdict, read_approaches
from images.snapshot import Snapshot

MODES = {a.id.removeprefix("speculation-"): a for a in read_approaches() if a.group is Group.SPECULATION}
OWNER = {rule.id: approach for approach in MODES.values() for rule in approach.rules}

CONTEXT = "flashinfer/compilation_context.py"
GATED = 'raise RuntimeError("SM 12.x requires CUDA >= 12.9")\n'
OPENED = 'raise RuntimeError("SM 120 requires CUDA >= 12.8")\n'
SPEC_INFO = "sglang/srt/speculative/spec_info.py"
SERVER_ARGS = "sglang/srt/server_args.py"
HOOK = "sglang/srt/arg_groups/speculative_hook.py"
EAGLE_UTILS = "sglang/srt/speculative/eagle_utils.py"
REGISTRY = "sglang/srt/layers/attention/attention_registry.py"
TREE = "sglang/kernels/ops/speculative/tree.py"
TREE_SOURCE = "sglang/kernels/jit/csrc/speculative/tree.cuh"
COMMON_OPS = "sgl_kernel/sm100/common_ops.abi3.so"
ALIAS = 'if speculative_algorithm == "NEXTN":\n'


def enum(*members: str) -> str:
    return "class SpeculativeAlgorithm(Enum):\n" + "".join(f"    {member} = auto()\n" for member in members)


OLD: Mapping[str, str] = {
    CONTEXT: GATED,
    SPEC_INFO: enum("EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "NONE"),
    SERVER_ARGS: f"self.{ALIAS.removeprefix('if ')}",
    EAGLE_UTILS: "from sgl_kernel import verify_tree_greedy\n",
    REGISTRY: '"FlashAttention v3 Backend requires SM>=80 and SM<=90. "\n',
}
"""As SGLang 0.5.10 with FlashInfer 0.6.7, as far as the rules look."""

ALL = enum("DFLASH", "UNO", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "NONE")
NEW: Mapping[str, str] = {
    **OLD,
    CONTEXT: OPENED,
    SPEC_INFO: ALL,
    SERVER_ARGS: "",
    HOOK: ALIAS + '"UNO requires FA3 for both prefill and decode attention; "\n',
    EAGLE_UTILS: "from sglang.kernels.ops.speculative.spec_tree import f\n",
    TREE: 'load_jit("speculative_tree", cuda_wrappers=[("verify_tree_greedy", "verify_tree_greedy")])\n',
    TREE_SOURCE: "",
}
"""As SGLang 0.5.23 with FlashInfer 0.7.2, as far as the rules look."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A package tree and what it would run on; None takes a file or a package away."""

    tree: Mapping[str, str] = field(default_factory=lambda: OLD)
    files: Mapping[str, str | None] = field(default_factory=dict)
    sglang: str | None = "0.5.10"
    common_ops: str | None = "native"
    cuda: str = "12.8.1"
    arch: str = "12.0a"

    def judged(self, approach: Approach) -> Finding:
        word = self.common_ops
        snapshot = Snapshot(
            texts={path: text for path, text in {**self.tree, **self.files}.items() if text is not None},
            libraries={
                COMMON_OPS: Library(path=COMMON_OPS, size=1, code=(), verdict=capability.Verdict(word)),
            }
            if word
            else {},
            versions={"sglang": self.sglang} if self.sglang else {},
        )
        (finding,) = judge([approach], snapshot, Box(cuda=self.cuda, arch={"flashinfer": self.arch}))
        return finding


ON_12_8 = Case()
ON_13 = Case(cuda="13.0", arch="12.0f")
ALL_ON_13 = Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK]}, cuda="13.0", arch="12.0f")
"""As SGLang 0.5.20: every mode, and the tree kernels still in the kernel package."""
ALL_ON_12_8 = Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK]})
COMPILED_ON_12_8 = Case(tree=NEW, files={CONTEXT: GATED})
COMPILED = Case(tree=NEW, cuda="13.0", arch="12.0f")
WITHOUT_MODES = Case(files={SPEC_INFO: enum("NONE")})
FAILURES = {
    "no-sglang": Case(tree=NEW, sglang=None),
    "kernel-package-without-sm120": Case(tree=NEW, common_ops="none"),
    "family-target-needs-nvcc-12.9": Case(tree=NEW, arch="12.0f"),
    "flashinfer-refused-below-12.9": Case(tree=NEW, files={CONTEXT: GATED}, arch=""),
}
SHARED = ("eagle", "eagle3", "nextn", "standalone", "ngram", "dflash", "dspark", "frozen-kv-mtp")
"""Modes that start on the default attention backends."""
SINCE_12_8 = ("eagle", "eagle3", "nextn", "standalone", "ngram")
"""Those that releases for CUDA 12.8 have."""

CASES: dict[str, Case] = {
    **{f"{mode}-{name}": case for mode in SHARED for name, case in FAILURES.items()},
    **{f"{mode}-starts-compiled": COMPILED for mode in SHARED},
    **{f"{mode}-starts-packaged": ALL_ON_13 for mode in SHARED},
    **{f"{mode}-starts-by-arch-list": ALL_ON_12_8 for mode in SHARED},
    **{f"{mode}-starts-compiled-by-arch-list": COMPILED_ON_12_8 for mode in SHARED},
    **{f"{mode}-not-in-enum": WITHOUT_MODES for mode in (*SHARED, "uno") if mode != "nextn"},
    "nextn-not-in-server-args": Case(files={SERVER_ARGS: ""}),
    "nextn-not-in-speculative-hook": Case(tree=NEW, files={HOOK: ""}),
    "uno-no-sglang": FAILURES["no-sglang"],
    "uno-needs-fa3": COMPILED,
}
"""Rule to a tree on which it decides."""


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_decides_where_its_facts_hold(rule: str) -> None:
    finding = CASES[rule].judged(OWNER[rule])
    assert finding.rule is not None, finding.reason
    assert finding.rule.id == rule
    assert finding.evidence


def test_every_rule_has_a_tree_on_which_it_decides() -> None:
    assert set(CASES) == set(OWNER)


@pytest.mark.parametrize("mode", SHARED)
@pytest.mark.parametrize(
    ("case", "ending"),
    [
        (Case(tree=NEW), "starts-compiled"),
        (Case(tree=NEW, files={CONTEXT: GATED}, cuda="13.0", arch=""), "starts-compiled"),
        (Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK], CONTEXT: OPENED}, arch=""), "starts-packaged"),
    ],
)
def test_an_arch_list_is_needed_below_cuda_12_9_and_only_where_flashinfer_asks(
    mode: str, case: Case, ending: str
) -> None:
    finding = case.judged(MODES[mode])
    assert finding.rule is not None, finding.reason
    assert finding.rule.id == f"{mode}-{ending}"


KERNELS_FROM_ELSEWHERE = {SPEC_INFO: ALL, HOOK: NEW[HOOK], EAGLE_UTILS: "from elsewhere import verify_tree_greedy\n"}


@pytest.mark.parametrize("mode", SHARED)
@pytest.mark.parametrize(
    "case",
    [
        Case(files=KERNELS_FROM_ELSEWHERE, cuda="13.0"),
        Case(files=KERNELS_FROM_ELSEWHERE),
        Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK]}, cuda="13.0", common_ops=None),
        Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK]}, common_ops=None),
        Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK]}, cuda="12.6"),
        Case(files={SPEC_INFO: ALL, HOOK: NEW[HOOK], CONTEXT: OPENED}, cuda="12.6"),
        Case(tree=NEW, files={TREE_SOURCE: None}, cuda="13.0"),
        Case(tree=NEW, files={TREE_SOURCE: None, CONTEXT: GATED}),
        Case(tree=NEW, files={TREE: "pass\n"}, cuda="13.0"),
        Case(tree=NEW, files={TREE: "pass\n", CONTEXT: GATED}),
        Case(tree=NEW, cuda="12.6"),
        Case(tree=NEW, files={CONTEXT: GATED}, cuda="12.6"),
        Case(tree=NEW, files={CONTEXT: None}, arch=""),
    ],
)
def test_nothing_decides_where_no_kernels_are_known_to_be(case: Case, mode: str) -> None:
    finding = case.judged(MODES[mode])
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.reason


@pytest.mark.parametrize("missing", [REGISTRY, HOOK])
def test_nothing_decides_on_uno_where_its_need_is_not_read(missing: str) -> None:
    case = Case(tree=NEW, files={missing: "pass\n"}, cuda="13.0")
    assert case.judged(MODES["uno"]).verdict is Verdict.UNKNOWN


def test_releases_without_a_hook_for_speculation_have_the_alias_in_server_args() -> None:
    finding = ON_12_8.judged(MODES["nextn"])
    assert finding.verdict is Verdict.STARTS, finding.reason


def test_a_mode_needs_the_arch_list_that_flashinfer_needs() -> None:
    finding = ON_12_8.judged(MODES["eagle3"])
    assert finding.rule is not None
    assert finding.rule.needs == ("FLASHINFER_CUDA_ARCH_LIST=12.0a",)
    unneeded = ON_13.judged(MODES["eagle3"])
    assert unneeded.rule is not None
    assert not unneeded.rule.needs


CU128 = {"sglang": "0.5.10.post1", "flashinfer-python": "0.6.7.post3", "sglang-kernel": "0.4.1"}
CU130 = {"sglang": "0.5.23", "flashinfer-python": "0.7.2", "sglang-kernel": "0.4.10"}
SGLANG_0_5_9 = {"sglang": "0.5.9", "flashinfer-python": "0.6.3", "sgl-kernel": "0.3.21"}
SGLANG_0_5_21 = {"sglang": "0.5.21", "flashinfer-python": "0.6.18"}
ON_CU128 = Box(cuda="12.8.1", arch={"torch": "12.0a", "flashinfer": "12.0a"})
ON_CU130 = Box(cuda="13.0", arch={"torch": "12.0a", "flashinfer": "12.0f"})
NOT_YET = {mode: f"{mode}-not-in-enum" for mode in ("dflash", "dspark", "frozen-kv-mtp", "uno")}
EVERY_MODE_COMPILED = {mode: f"{mode}-starts-compiled" for mode in SHARED} | {"uno": "uno-needs-fa3"}

EXPECTED: dict[str, tuple[dict[str, str], Box, dict[str, str]]] = {
    "cu128": (CU128, ON_CU128, {mode: f"{mode}-starts-by-arch-list" for mode in SINCE_12_8} | NOT_YET),
    "cu128 without an arch list": (
        CU128,
        Box(cuda="12.8.1"),
        {mode: f"{mode}-flashinfer-refused-below-12.9" for mode in SINCE_12_8} | NOT_YET,
    ),
    "cu130": (CU130, ON_CU130, EVERY_MODE_COMPILED),
    "sglang 0.5.9": (
        SGLANG_0_5_9,
        Box(cuda="12.8.1"),
        {mode: f"{mode}-starts-packaged" for mode in SINCE_12_8} | NOT_YET,
    ),
    "sglang 0.5.21": (SGLANG_0_5_21, ON_CU130, EVERY_MODE_COMPILED),
}
"""Wheels, what they would run on, and mode to the rule that decides."""


@pytest.mark.network
@pytest.mark.parametrize("name", EXPECTED)
def test_the_real_wheels_get_the_known_answers(name: str, packages: Callable[[Mapping[str, str]], Snapshot]) -> None:
    versions, box, expected = EXPECTED[name]
    findings = judge(MODES.values(), packages(versions), box)
    decided = {f.approach.id.removeprefix("speculation-"): f.rule.id if f.rule else f.reason for f in findings}
    assert decided == expected
    assert all(f.evidence for f in findings)
