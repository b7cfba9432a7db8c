"""Combinations that do not work are refused with their reason, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.build_plan import Profile
from images.lock import read_lock
from images.matrix import read_toolchains
from images.unsupported import Subject, Verdict, check, read_unsupported
from lanewise.errors import InputError

SUBJECT = Subject(versions={}, cuda="13.0", python="3.12", arch={"torch": "12.0a", "flashinfer": "12.0f"})
"""Nothing is wrong with it."""
OLD_CUDA = {"cuda": "12.8.1", "arch": {"torch": "12.0a", "flashinfer": "12.0a"}}


def subject(versions: dict[str, str], changes: dict[str, Any]) -> Subject:
    return replace(SUBJECT, versions=versions, **changes)


def met(one: Subject) -> list[str]:
    return [combination.id for combination in read_unsupported() if combination.met(one)]


PLAIN_ARCH = {**OLD_CUDA, "arch": {"torch": "12.0a", "flashinfer": "12.0"}}
CASES: list[tuple[str, dict[str, str], dict[str, Any], dict[str, str], dict[str, Any]]] = [
    # id, versions and changes with which it is met, and those with which it just is not
    ("flashinfer-12.8-arch", {"flashinfer-python": "0.6.7.post3"}, PLAIN_ARCH,
     {"flashinfer-python": "0.6.7.post3"}, OLD_CUDA),
    ("flashinfer-12.8-arch", {"flashinfer-python": "0.7.0.post1"}, PLAIN_ARCH,
     {"flashinfer-python": "0.7.1"}, PLAIN_ARCH),
    ("flashinfer-12.8-arch", {"flashinfer-python": "0.6.7"}, PLAIN_ARCH, {"flashinfer-python": "0.6.7"}, {}),
    ("flashinfer-plain-12.0", {"flashinfer-python": "0.6.6"}, PLAIN_ARCH, {"flashinfer-python": "0.6.6"}, OLD_CUDA),
    ("family-target-before-12.9", {}, {"cuda": "12.8.1"}, {}, {"cuda": "12.9.1"}),
    ("torch-family-target", {}, {"arch": {"torch": "12.0f"}}, {}, {"arch": {"torch": "12.0a"}}),
    ("torch-without-cuda-12-wheel", {"torch": "2.12.1"}, OLD_CUDA, {"torch": "2.11.0+cu128"}, OLD_CUDA),
    ("torch-without-cuda-12-wheel", {"torch": "2.14.1"}, OLD_CUDA,
     {"torch": "2.14.1"}, {**OLD_CUDA, "rebuilt": ("torch",)}),
    ("torch-2.11-of-cuda-13", {"torch": "2.11.0"}, OLD_CUDA, {"torch": "2.11.0"}, {}),
    ("torch-of-cuda-12", {"torch": "2.9.1"}, {}, {"torch": "2.9.1+cu130"}, {}),
    ("torch-of-cuda-12", {"torch": "2.10.0"}, {}, {"torch": "2.10.0"}, OLD_CUDA),
    ("torch-of-cuda-12.6", {"torch": "2.7.1"}, OLD_CUDA, {"torch": "2.7.1+cu128"}, OLD_CUDA),
    ("nccl-without-sm120", {"nvidia-nccl-cu12": "2.26.2"}, OLD_CUDA, {"nvidia-nccl-cu12": "2.26.2.post1"}, OLD_CUDA),
    ("nccl-of-12.9", {"nvidia-nccl-cu12": "2.27.5"}, OLD_CUDA,
     {"nvidia-nccl-cu12": "2.27.5"}, {**OLD_CUDA, "rebuilt": ("nccl",)}),
    ("both-kernel-distributions", {"sgl-kernel": "0.3.21", "sglang-kernel": "0.4.1", "torch": "2.9.1"}, OLD_CUDA,
     {"sglang-kernel": "0.4.1", "torch": "2.9.1"}, OLD_CUDA),
    ("kernel-needs-torch-2.8", {"sgl-kernel": "0.3.16.post4", "torch": "2.9.1"}, OLD_CUDA,
     {"sgl-kernel": "0.3.16.post4", "torch": "2.8.0"}, OLD_CUDA),
    ("kernel-needs-torch-2.9", {"sgl-kernel": "0.3.21", "torch": "2.10.0"}, OLD_CUDA,
     {"sgl-kernel": "0.3.21", "torch": "2.9.1"}, OLD_CUDA),
    ("kernel-0.4.1-needs-torch-2.9", {"sglang-kernel": "0.4.1+cu130", "torch": "2.11.0"}, {},
     {"sglang-kernel": "0.4.1+cu130", "torch": "2.9.1+cu130"}, {}),
    ("kernel-0.4.1-needs-torch-2.9", {"sglang-kernel": "0.4.1", "torch": "2.10.0"}, OLD_CUDA,
     {"sglang-kernel": "0.4.1", "torch": "2.10.0"}, {**OLD_CUDA, "rebuilt": ("sglang-kernel",)}),
    ("kernel-needs-torch-2.11", {"sglang-kernel": "0.4.2.post2", "torch": "2.13.0"}, {},
     {"sglang-kernel": "0.4.2.post2", "torch": "2.11.0"}, {}),
    ("kernel-needs-torch-2.13", {"sglang-kernel": "0.4.7", "torch": "2.14.1"}, {},
     {"sglang-kernel": "0.4.7", "torch": "2.13.0"}, {}),
    ("kernel-needs-torch-2.14", {"sglang-kernel": "0.4.10", "torch": "2.13.0"}, {},
     {"sglang-kernel": "0.4.10", "torch": "2.14.1"}, {}),
    ("sglang-python-3.13", {"sglang": "0.5.23"}, {"python": "3.13"}, {"sglang": "0.5.23"}, {"python": "3.12"}),
    ("sglang-python-3.10", {"sglang": "0.5.22"}, {"python": "3.10"}, {"sglang": "0.5.21"}, {"python": "3.10"}),
    ("torch-2.15-python", {"torch": "2.15.0"}, {"python": "3.10"}, {"torch": "2.15.0"}, {"python": "3.11"}),
    ("triton-ptxas-13", {"triton": "3.7.1"}, OLD_CUDA, {"triton": "3.6.0"}, OLD_CUDA),
    ("sglang-jit-without-suffix", {"sglang": "0.5.15.post1"}, {}, {"sglang": "0.5.17"}, {}),
    ("sglang-jit-suffix-12.8", {"sglang": "0.5.16"}, OLD_CUDA, {"sglang": "0.5.16"}, {}),
    ("flashinfer-aot-before-0.6", {"flashinfer-python": "0.5.3"}, {**OLD_CUDA, "rebuilt": ("flashinfer",)},
     {"flashinfer-python": "0.5.3"}, OLD_CUDA),
]  # fmt: skip


@pytest.mark.parametrize(("name", "versions", "changes", "other_versions", "other_changes"), CASES)
def test_each_combination_is_met_where_it_should_be_and_nowhere_else(
    name: str,
    versions: dict[str, str],
    changes: dict[str, Any],
    other_versions: dict[str, str],
    other_changes: dict[str, Any],
) -> None:
    assert met(subject(versions, changes)) == [name]
    assert met(subject(other_versions, other_changes)) == []


def test_every_combination_has_a_case() -> None:
    assert {case[0] for case in CASES} == {combination.id for combination in read_unsupported()}


def test_what_is_refused_says_why_where_it_was_read_and_what_to_do() -> None:
    both = subject({"nvidia-nccl-cu12": "2.26.2", "torch": "2.14.1"}, OLD_CUDA)
    with pytest.raises(InputError) as caught:
        check(both)
    said = str(caught.value)
    for text in (
        "nccl-without-sm120: ",
        "nvidia-nccl-cu12 2.26.2",
        "torch-without-cuda-12-wheel",
        "CUDA 12.8.1",
        "pytorch/issues/178665",
        "--rebuild torch",
    ):
        assert text in said


def test_the_arch_that_is_wrong_is_named() -> None:
    with pytest.raises(InputError, match=r"flashinfer is told 12\.0f"):
        check(subject({"flashinfer-python": "0.6.7.post3"}, {**OLD_CUDA, "arch": {"flashinfer": "12.0f"}}))


def test_a_warning_is_handed_back_and_refuses_nothing() -> None:
    assert [one.verdict for one in check(subject({"triton": "3.8.0"}, OLD_CUDA))] == [Verdict.WARNING]


@pytest.mark.parametrize("profile", Profile)
def test_nothing_that_is_shipped_is_refused(profile: Profile) -> None:
    lock = read_lock()
    for name, toolchain in read_toolchains().items():
        for base in toolchain.bases:
            locked = lock.find(name, base.python)
            assert locked is not None
            names = {w.name: w.version for w in locked.wheels if profile is Profile.FULL or w.name in locked.core}
            versions = {**names, **toolchain.pins_of(profile)}
            check(Subject(versions=versions, cuda=toolchain.cuda, python=base.python, arch=toolchain.arch))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("combinations:", "combination:"),
        ("verdict: refused", "verdict: forbidden"),
        ("cuda:", "cude:"),
        ('">=1"', '"newer"'),
        ("why: a", ""),
        ("[{", "{[{"),
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str) -> None:
    good = (
        'combinations:\n- {id: a, when: {versions: {torch: ">=1"}, cuda: "<13"}, unless: [{rebuilt: [torch]}],'
        " verdict: refused, why: a, source: b, todo: c}\n"
    )
    path = tmp_path / "table.yaml"
    path.write_text(good)
    assert read_unsupported(path)[0].id == "a"
    assert old in good
    other = tmp_path / "other.yaml"
    other.write_text(good.replace(old, new))
    with pytest.raises(InputError, match="cannot be understood"):
        read_unsupported(other)
