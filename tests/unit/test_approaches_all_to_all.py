"""The rules for all-to-all: each decides on a small package tree of its own, and the real wheels get known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from images.capability import Verdict as CodeVerdict
from images.conditions import Box
from images.examine import Library, NcclBuild
from images.preflight import Finding, judge
from images.rules import Group, Verdict, read_approaches
from images.snapshot import Snapshot

APPROACHES = {a.id: a for a in read_approaches() if a.group is Group.ALL_TO_ALL}

CHOICES = "sglang/srt/layers/moe/utils.py"
STANDARD = "sglang/srt/layers/moe/token_dispatcher/standard.py"
DISPATCHER = "sglang/srt/layers/moe/token_dispatcher/flashinfer.py"
MEGA = "sglang/srt/layers/moe/mega_moe.py"
SERVER_ARGS = "sglang/srt/server_args.py"
MOE_HOOK = "sglang/srt/arg_groups/moe_hook.py"
MEGA_HOOK = "sglang/srt/arg_groups/mega_moe_hook.py"
COMM = "flashinfer/comm/__init__.py"
MNNVL = "flashinfer/comm/mnnvl.py"
ELASTIC = "deep_ep/buffers/elastic.py"
DEEP_EP = "deep_ep/_C.cpython-312-x86_64-linux-gnu.so"
LIBNCCL = "nvidia/nccl/lib/libnccl.so.2"

BOX = Box(cuda="13.0", arch={"flashinfer": "12.0f"})
FEW = "NONE DEEPEP MOONCAKE MORI FLASHINFER"
ALL = f"{FEW} NIXL MEGAMOE DEEPEP_V2 PPLX FLASHINFER_MEGAMOE"


def choices(names: str) -> str:
    return "class MoeA2ABackend(Enum):\n" + "".join(f'    {name} = "{name.lower()}"\n' for name in names.split())


OLD: Mapping[str, str] = {
    CHOICES: choices(FEW),
    STANDARD: "",
    DISPATCHER: "from flashinfer.comm import MoeAlltoAll, moe_a2a_get_workspace_size_per_rank\n",
    SERVER_ARGS: '"Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend"\n',
    COMM: "from .trtllm_moe_alltoall import MoeAlltoAll as MoeAlltoAll\n",
    MNNVL: "class MnnvlMemory: ...\n",
}
"""After SGLang 0.5.9 with FlashInfer 0.6.3."""
NEW: Mapping[str, str] = {
    **OLD,
    CHOICES: choices(ALL),
    SERVER_ARGS: "",
    MOE_HOOK: '"Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size, "\n'
    '"FlashInfer MegaMOE currently requires an SM100-family "\n',
    MEGA: "",
    MEGA_HOOK: '"--moe-a2a-backend megamoe needs a CUDA SM90 GPU (block-FP8 experts) "\n',
}
"""After SGLang 0.5.23 with FlashInfer 0.7.2."""
NONE_OF_THEM = {**OLD, CHOICES: choices("NONE")}


def library(path: str, verdict: str) -> Library:
    return Library(path=path, size=1, code=(), verdict=CodeVerdict(verdict))


def tree(
    texts: Mapping[str, str], *, nccl: str | None = "native", deep_ep: str = "", paths: str = "", sglang: bool = True
) -> Snapshot:
    """Packages.

    Args:
        texts: sources by path.
        nccl: how libnccl's code comes to run on SM120; None where there is no libnccl.
        deep_ep: how DeepEP's library's code does; "" where there is none.
        paths: what else the packages hold.
        sglang: whether SGLang is among them.
    """
    verdicts = {LIBNCCL: nccl, DEEP_EP: deep_ep}
    return Snapshot(
        texts=texts,
        libraries={path: library(path, verdict) for path, verdict in verdicts.items() if verdict},
        versions={"flashinfer-python": "0.7.2"} | ({"sglang": "0.5.23"} if sglang else {}),
        nccl=NcclBuild(path=LIBNCCL, version="2.30.7", cuda="13.3") if nccl else None,
        paths=frozenset(paths.split()),
    )


def finding(approach: str, snapshot: Snapshot) -> Finding:
    (found,) = judge([APPROACHES[approach]], snapshot, BOX)
    return found


def rule(approach: str, snapshot: Snapshot) -> str:
    found = finding(approach, snapshot)
    return found.rule.id if found.rule else found.reason


NO_SGLANG = tree(NEW, sglang=False)
NO_RULE = "no rule decides for these packages"

CASES: list[tuple[str, Snapshot, str]] = [
    ("moe-allgather", tree(OLD), "moe-allgather-over-nccl"),
    ("moe-allgather", tree(NEW), "moe-allgather-over-nccl"),
    ("moe-allgather", tree(NEW, nccl="driver JIT"), "moe-allgather-no-sm120-code"),
    ("moe-allgather", tree(NEW, nccl=None), "no libnccl among the packages"),
    ("moe-allgather", tree({**NEW, CHOICES: choices("DEEPEP")}), NO_RULE),
    ("moe-allgather", tree({path: text for path, text in NEW.items() if path != STANDARD}), NO_RULE),
    ("moe-allgather", NO_SGLANG, "moe-allgather-no-sglang"),
    ("flashinfer-a2a", tree(OLD), "flashinfer-a2a-only-with-cutlass-runner"),
    ("flashinfer-a2a", tree(NEW), "flashinfer-a2a-requires-attention-dp"),
    ("flashinfer-a2a", tree({**NEW, MOE_HOOK: '"Flashinfer MoE A2A is only supported with --attn-dp-size equal"\n'}),
     "flashinfer-a2a-only-with-attention-dp"),
    ("flashinfer-a2a", tree({**OLD, SERVER_ARGS: '"Flashinfer MoE A2A is only supported with dp_size == tp_size"\n'}),
     "flashinfer-a2a-only-with-dp-attention"),
    ("flashinfer-a2a", tree({**NEW, COMM: "from .mapping import Mapping\n"}), "flashinfer-a2a-class-missing"),
    ("flashinfer-a2a", tree({**OLD, SERVER_ARGS: ""}), NO_RULE),
    ("flashinfer-a2a", tree({**OLD, MNNVL: ""}), NO_RULE),
    ("flashinfer-a2a", tree({**NEW, MNNVL: ""}), NO_RULE),
    ("flashinfer-a2a", tree({**NEW, MNNVL: "", MOE_HOOK: '"Flashinfer MoE A2A is only supported with"\n'}), NO_RULE),
    ("flashinfer-a2a",
     tree({**OLD, MNNVL: "", SERVER_ARGS: '"Flashinfer MoE A2A is only supported with dp_size == tp_size"\n'}),
     NO_RULE),
    ("flashinfer-a2a", tree({**NEW, MOE_HOOK: ""}), NO_RULE),
    ("flashinfer-a2a", tree({**NEW, DISPATCHER: "", COMM: "", MOE_HOOK: ""}), NO_RULE),
    ("flashinfer-a2a", tree({path: text for path, text in OLD.items() if path != COMM}), f"there is no {COMM}"),
    ("flashinfer-a2a", tree(NONE_OF_THEM), "flashinfer-a2a-no-such-choice"),
    ("flashinfer-a2a", NO_SGLANG, "flashinfer-a2a-no-sglang"),
    ("deepep", tree(NEW), "deepep-not-there"),
    ("deepep", tree(NEW, deep_ep="none"), "deepep-no-sm120-code"),
    ("deepep", tree(NEW, deep_ep="native"), "deepep-untried"),
    ("deepep", tree(NEW, paths="deep_ep/__init__.py"), "deepep-untried"),
    ("deepep", NO_SGLANG, "deepep-no-sglang"),
    ("deepep-v2", tree(NEW), "deepep-v2-not-there"),
    ("deepep-v2", tree({**NEW, ELASTIC: "class ElasticBuffer: ...\n"}), "deepep-v2-untried"),
    ("deepep-v2", tree({**NEW, ELASTIC: ""}), NO_RULE),
    ("deepep-v2", tree(OLD), "deepep-v2-no-such-choice"),
    ("deepep-v2", NO_SGLANG, "deepep-v2-no-sglang"),
    ("mooncake-ep", tree(NEW), "mooncake-not-there"),
    ("mooncake-ep", tree(NEW, paths="mooncake/engine.py"), "mooncake-not-there"),
    ("mooncake-ep", tree(NEW, paths="mooncake/mooncake_ep_buffer.py"), "mooncake-untried"),
    ("mooncake-ep", NO_SGLANG, "mooncake-no-sglang"),
    ("nixl-ep", tree(NEW), "nixl-not-there"),
    ("nixl-ep", tree(NEW, paths="nixl_ep/__init__.py"), "nixl-untried"),
    ("nixl-ep", tree(OLD), "nixl-no-such-choice"),
    ("nixl-ep", NO_SGLANG, "nixl-no-sglang"),
    ("mori-ep", tree(NEW), "mori-not-there"),
    ("mori-ep", tree(NEW, paths="mori/__init__.py"), NO_RULE),
    ("mori-ep", NO_SGLANG, "mori-no-sglang"),
    ("pplx-ep", tree(NEW), "pplx-not-there"),
    ("pplx-ep", tree(NEW, paths="pplx_kernels/__init__.py"), "pplx-untried"),
    ("pplx-ep", tree(OLD), "pplx-no-such-choice"),
    ("pplx-ep", NO_SGLANG, "pplx-no-sglang"),
    ("megamoe", tree(NEW), "megamoe-wants-datacenter-gpu"),
    ("megamoe", tree({**NEW, MEGA_HOOK: ""}), "megamoe-unchecked"),
    ("megamoe", tree({**OLD, CHOICES: choices(ALL)}), NO_RULE),
    ("megamoe", tree(OLD), "megamoe-no-such-choice"),
    ("megamoe", NO_SGLANG, "megamoe-no-sglang"),
    ("flashinfer-megamoe", tree(NEW), "flashinfer-megamoe-wants-sm100"),
    ("flashinfer-megamoe", tree({**NEW, MOE_HOOK: ""}), NO_RULE),
    ("flashinfer-megamoe", tree(OLD), "flashinfer-megamoe-no-such-choice"),
    ("flashinfer-megamoe", NO_SGLANG, "flashinfer-megamoe-no-sglang"),
]  # fmt: skip


@pytest.mark.parametrize(("approach", "snapshot", "expected"), CASES, ids=[f"{a}: {e}" for a, _, e in CASES])
def test_each_rule_decides_where_its_facts_hold_and_nowhere_else(
    approach: str, snapshot: Snapshot, expected: str
) -> None:
    assert rule(approach, snapshot) == expected


def test_no_rule_is_without_a_case() -> None:
    assert {r.id for a in APPROACHES.values() for r in a.rules} <= {expected for _, _, expected in CASES}


@pytest.mark.parametrize("texts", [OLD, NEW], ids=["old", "new"])
def test_only_the_collectives_of_nccl_start(texts: Mapping[str, str]) -> None:
    findings = [finding(approach, tree(texts)) for approach in APPROACHES]
    assert [f.approach.id for f in findings if f.verdict is Verdict.STARTS] == ["moe-allgather"]
    assert all(f.evidence for f in findings)


OLD_ANSWERS = {
    "flashinfer-a2a": "flashinfer-a2a-only-with-cutlass-runner",
    "deepep": "deepep-not-there",
    "deepep-v2": "deepep-v2-no-such-choice",
    "mooncake-ep": "mooncake-not-there",
    "nixl-ep": "nixl-not-there",
    "mori-ep": "mori-not-there",
    "pplx-ep": "pplx-no-such-choice",
    "megamoe": "megamoe-no-such-choice",
    "flashinfer-megamoe": "flashinfer-megamoe-no-such-choice",
}
NEW_ANSWERS = OLD_ANSWERS | {
    "flashinfer-a2a": "flashinfer-a2a-requires-attention-dp",
    "deepep-v2": "deepep-v2-not-there",
    "pplx-ep": "pplx-not-there",
    "megamoe": "megamoe-wants-datacenter-gpu",
    "flashinfer-megamoe": "flashinfer-megamoe-wants-sm100",
}
EXPECTED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "0.5.9": ({"sglang": "0.5.9", "flashinfer-python": "0.6.3"}, OLD_ANSWERS | {"nixl-ep": "nixl-no-such-choice"}),
    "cu128": (
        {"sglang": "0.5.10.post1", "flashinfer-python": "0.6.7.post3", "nvidia-nccl-cu12": "2.27.5"},
        OLD_ANSWERS | {"moe-allgather": "moe-allgather-over-nccl"},
    ),
    "0.5.21": (
        {"sglang": "0.5.21", "flashinfer-python": "0.6.18", "sgl-deep-ep": "0.1.2.post1"},
        NEW_ANSWERS
        | {
            "flashinfer-a2a": "flashinfer-a2a-only-with-attention-dp",
            "deepep": "deepep-no-sm120-code",
            "deepep-v2": "deepep-v2-untried",
        },
    ),
    "cu130": (
        {"sglang": "0.5.23", "flashinfer-python": "0.7.2", "nvidia-nccl-cu13": "2.30.7"},
        NEW_ANSWERS | {"moe-allgather": "moe-allgather-over-nccl"},
    ),
}


@pytest.mark.network
@pytest.mark.parametrize("name", EXPECTED)
def test_the_real_wheels_get_the_known_answers(name: str, packages: Callable[[Mapping[str, str]], Snapshot]) -> None:
    versions, expected = EXPECTED[name]
    snapshot = packages(versions)
    assert {approach: rule(approach, snapshot) for approach in expected} == expected
