from __future__ import annotations

import pytest

from lanewise.errors import InputError
from tuning import nccl_lint
from tuning.nccl_cost import MODELLED_SETTINGS
from tuning.nccl_lint import Gravity, Remark, known_names, lint
from tuning.nccl_search import KNOWN, SEARCH_SETTINGS


def one(name: str, value: str = "1", release: str = "2.30.7") -> Remark:
    (remark,) = lint({name: value}, release)
    assert (remark.name, remark.value) == (name, value)
    assert remark.source
    return remark


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"NCCL_P2P_LEVEL": "SYS", "NCCL_DEBUG": "info", "NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "LL,Simple"},
        {"NCCL_ALGO": "Ring,Tree", "NCCL_NVLS_ENABLE": "0", "NCCL_BUFFSIZE": "-2", "NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_P2P_DISABLE": "1", "NCCL_CTA_POLICY": "efficiency|ZERO", "NCCL_LAUNCH_MODE": "GROUP"},
        {"NCCL_NVLS_ENABLE": ""},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PATH": "x", "CUDA_VISIBLE_DEVICES": "0"},
    ],
)
def test_sound_settings_and_those_of_others_get_no_remark(settings: dict[str, str]) -> None:
    assert lint(settings, "2.30.7") == ()


def test_an_unknown_name_gets_the_nearest_known() -> None:
    remark = one("NCCL_MIN_CHANNELS", "4")
    assert remark.gravity is Gravity.NO_EFFECT
    assert "did you mean NCCL_MIN_NCHANNELS?" in remark.says
    assert "did you mean" not in one("NCCL_QQQQQQQQQQQQ").says


@pytest.mark.parametrize(
    "name", ["NCCL_LL_THRESHOLD", "NCCL_TREE_THRESHOLD", "NCCL_SINGLE_RING_THRESHOLD", "NCCL_CHECKS_DISABLE"]
)
@pytest.mark.parametrize("release", KNOWN)
def test_legacy_names_do_nothing_in_any_release(name: str, release: str) -> None:
    remark = one(name, "1", release)
    assert remark.gravity is Gravity.NO_EFFECT
    assert "legacy" in remark.says


@pytest.mark.parametrize(
    ("name", "release", "says"),
    [
        ("NCCL_SHM_USE_CUDA_MEMCPY", "2.30.7", "no longer reads it: last seen in 2.29.7"),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "2.29.7", ""),
        ("NCCL_SYM_CE_THRESHOLD", "2.28.9", "does not read it yet: first seen in 2.29.7"),
        ("NCCL_SYM_CE_THRESHOLD", "2.29.2", ""),
        ("NCCL_SYM_CE_THRESHOLD", "2.33.0", ""),
        ("NCCL_P2P_PXN_LEVEL", "2.20.1", ""),
    ],
)
def test_a_name_counts_in_the_releases_that_hold_it_and_undecided_ones_between(
    name: str, release: str, says: str
) -> None:
    assert [remark.says for remark in lint({name: "1"}, release)] == ([f"NCCL {release} {says}"] if says else [])


def test_a_name_that_something_else_reads_is_told_apart() -> None:
    assert "example tuner plugin" in one("NCCL_TUNER_CONFIG_FILE", "x.conf").says


@pytest.mark.parametrize(
    ("value", "gravity", "says"),
    [
        ("3", Gravity.MEANING, "which means PHB; write PHB"),
        ("5", Gravity.MEANING, "which means SYS; write SYS"),
        ("0", Gravity.MEANING, "which means LOC; write LOC"),
        ("sys", Gravity.NO_EFFECT, "did you mean SYS?"),
        ("NODE", Gravity.NO_EFFECT, "the default stays"),
    ],
)
def test_a_level_is_a_name_in_capitals(value: str, gravity: Gravity, says: str) -> None:
    remark = one("NCCL_P2P_LEVEL", value)
    assert remark.gravity is gravity
    assert says in remark.says


def test_p2p_disable_0_forces_nothing() -> None:
    assert "PXB" in one("NCCL_P2P_DISABLE", "0").says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("true", "counts as 0; write 1"),
        ("off", "counts as 0; write a number"),
        ("4M", "the number 4"),
        ("010", "number 8"),
    ],
)
def test_words_where_numbers_are_read_mean_something_else(value: str, says: str) -> None:
    remark = one("NCCL_NVLS_ENABLE", value)
    assert remark.gravity is Gravity.MEANING
    assert says in remark.says


@pytest.mark.parametrize("value", ["9" * 30, "-0x" + "f" * 17])
def test_numbers_out_of_range_leave_the_default(value: str) -> None:
    assert one("NCCL_BUFFSIZE", value).gravity is Gravity.NO_EFFECT


def test_an_algorithm_for_all_functions_takes_ring_from_the_others() -> None:
    remark = one("NCCL_ALGO", "Tree")
    assert remark.gravity is Gravity.MEANING
    assert "Broadcast, Reduce, AllGather, ReduceScatter" in remark.says
    assert "NCCL_ALGO=allreduce:Tree" in remark.says


def test_a_list_that_nccl_refuses_is_grave() -> None:
    assert one("NCCL_ALGO", "Tree;Ring").gravity is Gravity.REFUSED
    assert "in place of 'Rong'" in one("NCCL_ALGO", "Rong").says


@pytest.mark.parametrize("value", ["LL128", "^Simple", "LL;allreduce:LL128"])
def test_naming_ll128_in_any_way_is_pointed_out(value: str) -> None:
    assert "corrupt" in one("NCCL_PROTO", value).says


def test_policy_words_are_numbers_before_2_29() -> None:
    assert "a word counts as 0" in one("NCCL_CTA_POLICY", "ZERO", "2.28.9").says
    assert lint({"NCCL_CTA_POLICY": "ZERO"}, "2.29.7") == lint({"NCCL_CTA_POLICY": "2"}, "2.28.9") == ()
    assert "'NONE' is none of" in one("NCCL_CTA_POLICY", "ZERO|NONE", "2.29.7").says


def test_symmetric_kernels_are_pointed_out_only_where_they_need_nvlink() -> None:
    assert "NVLink" in one("NCCL_SYM_KERNEL", "AllReduce_AGxLL_R").says
    assert lint({"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}, "2.28.9") == ()


def test_remarks_come_by_name() -> None:
    settings = {"NCCL_ZZZ": "1", "NCCL_LL_THRESHOLD": "0", "NCCL_AAA": "1"}
    assert [remark.name for remark in lint(settings, "2.30.7")] == sorted(settings)


@pytest.mark.parametrize("release", ["", "2.30", "latest", "2.30.7.1", "2" * 99])
def test_a_release_has_three_numbers(release: str) -> None:
    with pytest.raises(InputError, match="is no release"):
        lint({}, release)


def test_every_fact_speaks_of_a_name_that_it_can_apply_to() -> None:
    facts = nccl_lint._facts()
    names = set(known_names())
    assert len(names) > 280
    assert names >= {*facts["levels"], *facts["words"], *(fact["name"] for fact in facts["meanings"])}
    assert names >= {*SEARCH_SETTINGS, *MODELLED_SETTINGS}
    assert not names & {*facts["legacy"], *facts["elsewhere"]}
    for fact in (*facts["meanings"], *facts["words"].values()):
        assert fact["source"]


def test_hostile_values_end_in_remarks() -> None:
    hostile = ["", "\0", "\x1b[31m", "9" * 10_000, "0x" + "f" * 10_000, ";" * 10_000, "^,^:;", "é"]
    for name in known_names():
        for value in hostile:
            lint({name: value}, "2.30.7")
