from __future__ import annotations

from datetime import date

import pytest

from playbooks.filter_plugins.unwritable import unwritable_workloads
from playbooks.settings.nccl_wishes import is_system, known_names
from playbooks.settings.plan import make_plan
from tests.unit.settings.makers_node import decided, record


def system(name: str, value: str, **changes):
    plan = make_plan(record(**changes), {"nccl_system": {name: value}})
    (found,) = [one for one in plan["decisions"] if one["setting"] == "nccl_system_file"]
    return found, plan["roles"]["nccl"]["nccl_system"]


def workload(name: str = "sglang", **changes):
    wished = {"settings": {"NCCL_P2P_LEVEL": "SYS"}, "reason": "verified", "expires": "2.33", **changes}
    plan = make_plan(record(), {"nccl_workloads": {name: wished}})
    (found,) = [one for one in plan["decisions"] if one["setting"] == "nccl_workload_files"]
    return found, plan["roles"]["nccl"]["nccl_workloads"]


def test_the_names_are_those_of_the_wheels_and_system_ones_are_among_them() -> None:
    assert len(known_names()) > 200
    assert {"NCCL_P2P_LEVEL", "NCCL_SOCKET_IFNAME"} <= known_names()
    assert is_system("NCCL_SOCKET_IFNAME")


def test_system_configuration_goes_to_the_system_file() -> None:
    found, variables = system("NCCL_SOCKET_IFNAME", "eth0")
    assert (found["verdict"], found["title"], found["takes_effect"]) == ("apply", "NCCL_SOCKET_IFNAME", "next_start")
    assert variables == {"NCCL_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize("name", ["NCCL_P2P_LEVEL", "NCCL_IB_DISABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_FILE"])
def test_what_is_for_debugging_or_not_documented_stays_out_of_the_system_file(name) -> None:
    found, variables = system(name, "SYS")
    assert found["verdict"] == "refuse"
    assert "nccl_workloads" in found["why"]
    assert variables == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [("NCCL_P2P_CHUNKSIZE", "NCCL_P2P_NET_CHUNKSIZE"), ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"), ("PATH", "")],
)
def test_a_name_that_no_nccl_reads_is_refused_with_the_nearest(name, near) -> None:
    for found, variables in (system(name, "1"), workload(settings={name: "1"})):
        assert found["verdict"] == "refuse"
        assert near in found["why"]
        assert variables == {}


@pytest.mark.parametrize(("value", "word"), [("0", "LOC"), ("1", "PIX"), ("3", "PHB"), ("4", "SYS"), ("9", "SYS")])
def test_an_old_number_for_a_level_is_refused_with_the_word(value, word) -> None:
    found, _ = workload(settings={"NCCL_P2P_LEVEL": value})
    assert found["verdict"] == "refuse"
    assert f"write {word}" in found["why"]


def test_a_level_that_nccl_passes_over_is_refused() -> None:
    assert workload(settings={"NCCL_P2P_LEVEL": "sys"})[0]["verdict"] == "refuse"


def test_never_settings_reach_no_file() -> None:
    found, _ = workload(settings={"NCCL_SHM_DISABLE": "1"})
    assert found["verdict"] == "refuse"
    assert "nccl_shm_disable" in found["why"]


def test_a_workload_gets_its_file_with_reason_and_expiry() -> None:
    found, variables = workload()
    assert (found["verdict"], found["title"], found["want"]) == ("apply", "workload sglang", "NCCL_P2P_LEVEL=SYS")
    assert found["why"] == "verified (until 2.33)"
    assert variables == {
        "sglang": {"settings": {"NCCL_P2P_LEVEL": "SYS"}, "reason": "verified", "expires": "2.33"}
    }  # fmt: skip


@pytest.mark.parametrize("expires", ["2.33", "2.33.1", "2027-03-01", date(2027, 3, 1), "2026-12-01"])
def test_a_workload_expires_with_a_release_or_a_date(expires) -> None:
    assert workload(expires=expires)[0]["verdict"] == "apply"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reason": ""}, "lacks a reason"),
        ({"reason": None}, "lacks a reason"),
        ({"expires": None}, "lacks an expiry"),
        ({"expires": "soon"}, "lacks an expiry"),
        ({"expires": "2026-13-01"}, "lacks an expiry"),
        ({"expires": "2026-11-30"}, "expired on 2026-11-30"),
        ({"settings": {}}, "no settings"),
        ({"name": "../../etc/passwd"}, "the name becomes a file's"),
        ({"name": "A B"}, "the name becomes a file's"),
    ],
)
def test_a_workload_without_reason_expiry_or_a_proper_name_is_refused(changes, says) -> None:
    found, variables = workload(**changes)
    assert found["verdict"] == "refuse"
    assert says in found["why"]
    assert variables == {}


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ({"value": "eth0", "source": "/etc/nccl.conf", "hidden": []}, "in_force"),
        ({"value": "eth1", "source": "/etc/nccl.conf", "hidden": []}, "apply"),
        ({"value": "lo", "source": "environment", "hidden": ["/etc/nccl.conf: eth0"]}, "fault"),
        ({"value": "eth0", "source": "environment", "hidden": ["/etc/nccl.conf: eth0"]}, "in_force"),
        ({"value": "lo", "source": "/root/.nccl.conf", "hidden": []}, "apply"),
    ],
)
def test_the_system_file_is_in_force_where_nothing_wins_over_it(setting, verdict) -> None:
    found, _ = system("NCCL_SOCKET_IFNAME", "eth0", nccl__settings=[{"name": "NCCL_SOCKET_IFNAME", **setting}])
    assert found["verdict"] == verdict


def test_node_settings_do_not_set_nccl() -> None:
    found = decided("nccl_p2p_level", node_settings={"enable": ["nccl_p2p_level"]})
    assert found["verdict"] == "refuse"
    assert "nccl_workloads" in found["why"]


@pytest.mark.parametrize("name", ["sglang-v0.5", "a" * 64, "../x", "Sglang", "", "a b"])
def test_the_plan_refuses_a_name_of_a_workload_that_the_roles_would(name) -> None:
    assert workload(name)[0]["verdict"] == "refuse"
    assert unwritable_workloads({name: {"settings": {"NCCL_ALGO": "Ring"}, "reason": "x", "expires": "2.33"}}) == [name]
    assert workload("a_-" * 21)[0]["verdict"] == "apply"
    assert not unwritable_workloads({"a_-" * 21: {"settings": {"NCCL_ALGO": "Ring"}, "reason": "x", "expires": "2.33"}})
