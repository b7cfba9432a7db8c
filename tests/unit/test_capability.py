"""Which device code runs on which GPU: NVIDIA's rules, case by case."""

from __future__ import annotations

import re

import pytest

from images.capability import Capability, CodeKind, CodeTarget, Verdict, runs, verdict
from lanewise.errors import InputError

BLACKWELL = Capability.parse("12.0")


@pytest.mark.parametrize(
    ("target", "where", "does"),
    [
        ("sm_120", "12.0", True), ("sm_120", "12.1", True), ("sm_121", "12.0", False), ("sm_86", "8.9", True),
        ("sm_89", "8.6", False), ("sm_90", "12.0", False), ("sm_100", "12.0", False), ("sm_80", "8.7", False),
        ("sm_87", "8.9", False), ("sm_87", "8.7", True), ("sm_100", "10.3", True),
        ("sm_120a", "12.0", True), ("sm_120a", "12.1", False), ("sm_121a", "12.0", False), ("sm_90a", "9.0", True),
        ("sm_120f", "12.0", True), ("sm_120f", "12.1", True), ("sm_121f", "12.0", False), ("sm_100f", "10.3", True),
        ("sm_100f", "12.0", False), ("sm_100f", "11.0", False),
        ("compute_50", "12.0", True), ("compute_120", "12.0", True), ("compute_121", "12.0", False),
        ("compute_80", "8.7", True), ("compute_90a", "12.0", False), ("compute_120a", "12.0", True),
        ("compute_120a", "12.1", False), ("compute_120f", "12.1", True), ("compute_100f", "12.0", False),
    ],
)  # fmt: skip
def test_code_runs_where_nvidias_rules_say(target: str, where: str, does: bool) -> None:
    form, number, suffix = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", target).groups()  # type: ignore[union-attr]
    code = CodeTarget(sm=int(number), suffix=suffix, kind=CodeKind.SASS if form == "sm" else CodeKind.PTX)
    assert str(code) == target
    assert runs(code, Capability.parse(where)) is does


def test_the_best_way_to_run_is_the_verdict() -> None:
    sass, ptx = CodeTarget(sm=120), CodeTarget(sm=90, kind=CodeKind.PTX)
    assert verdict([ptx, sass], BLACKWELL) is Verdict.NATIVE
    assert verdict([ptx, CodeTarget(sm=90)], BLACKWELL) is Verdict.DRIVER_JIT
    assert verdict([CodeTarget(sm=90)], BLACKWELL) is Verdict.NONE
    assert verdict([], BLACKWELL) is Verdict.NONE


@pytest.mark.parametrize("text", ["", "12", "120", "12.0a", "12.00", "sm_120", "0.0", "-1.0", "١٢.0", "12.0\n"])
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="compute capability"):
        Capability.parse(text)
