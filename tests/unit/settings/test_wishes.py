from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from lanewise.errors import InputError
from playbooks.filter_plugins.node_plan import FilterModule, node_plan
from playbooks.settings.plan import make_plan
from playbooks.settings.wishes import read_wishes
from tests.unit.settings.makers_node import record

INVENTORY = Path(__file__).resolve().parents[3] / "inventory"


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ([], "the wishes is"),
        ({"node_setings": {}}, "did you mean node_settings"),
        ({"node_settings": {"enabled": []}}, "did you mean enable"),
        ({"node_settings": {"enable": "swappiness"}}, "node_settings.enable"),
        ({"node_settings": {"values": {"swappiness": True}}}, "node_settings.values.swappiness is 'True', a bool"),
        ({"node_settings": {"values": {"swappiness": 1.5}}}, "a float"),
        ({"nccl_system": {"NCCL_DEBUG": False}}, "nccl_system.NCCL_DEBUG"),
        ({"nccl_system": {"NCCL_DEBUG": "INFO\nNCCL_ALGO=Ring"}}, "nccl_system.NCCL_DEBUG"),
        ({"nccl_system": {"NCCL_DEBUG": "INFO "}}, "nccl_system.NCCL_DEBUG"),
        ({"node_virtualised": "no"}, "node_virtualised"),
        ({"runtime_install": {"docker.io": "latest"}}, "runtime_install.docker.io is 'latest'"),
        ({"runtime_install": {"docker.io": "28.*"}}, "runtime_install.docker.io"),
        ({"runtime_install": {"docker.io=28": "28.0"}}, "runtime_install.docker.io=28"),
        ({"gpu_match": ["10de"]}, "gpu_match"),
        ({"gpu_match": "10de:0302"}, "gpu_match"),
        ({"nccl_workloads": {"w": {"setings": {}}}}, "nccl_workloads.w"),
        ({"nccl_workloads": {"w": {"reason": 1.5}}}, "nccl_workloads.w.reason"),
        ({"nccl_workloads": {"w": {"expires": 2.33}}}, "nccl_workloads.w.expires"),
        ({1: 2}, "the wishes is"),
    ],
)
def test_malformed_wishes_are_refused_by_name_with_what_was_expected(wishes, says) -> None:
    with pytest.raises(InputError) as raised:
        read_wishes(wishes)
    assert says in raised.value.what
    assert raised.value.expected
    assert "inventory" in raised.value.todo


@pytest.mark.parametrize("wishes", [None, {}, {"node_settings": None, "nccl_system": None, "node_virtualised": None}])
def test_nothing_need_be_wished(wishes) -> None:
    assert read_wishes(wishes) == read_wishes({})


def test_a_pinned_package_is_taken_as_it_is() -> None:
    pinned = {"docker.io": "28.2.2-0ubuntu1~24.04.1", "nvidia-driver-595-open": "595.58.03-1ubuntu1"}
    assert read_wishes({"runtime_install": pinned}).runtime_install == pinned


def test_whole_numbers_become_text() -> None:
    assert read_wishes({"node_settings": {"values": {"power_limit": 450}}}).values == {"power_limit": "450"}


@pytest.mark.parametrize("path", sorted(INVENTORY.glob("group_vars/*/settings.yml")), ids=lambda path: path.parent.name)
def test_the_shipped_types_are_wishes_that_are_granted(path: Path) -> None:
    plan = make_plan(record(), yaml.safe_load(path.read_text(encoding="utf-8")))
    assert not [one for one in plan["decisions"] if one["verdict"] == "refuse"]


def test_every_type_of_the_inventory_has_its_settings() -> None:
    groups = set(yaml.safe_load((INVENTORY / "hosts.yml").read_text(encoding="utf-8"))["all"]["children"])
    assert groups - {"record_only"} == {path.parent.name for path in INVENTORY.glob("group_vars/*/settings.yml")}


def test_the_filter_tells_errors_in_three_parts() -> None:
    assert FilterModule().filters()["node_plan"](record())["schema"] == "lanewise.node-plan/1"
    with pytest.raises(AnsibleFilterError, match=r"(?s)schema.*expected: .*next: "):
        node_plan({"schema": "other/1"}, {})


def test_a_damaged_record_gives_a_plan_or_an_error_that_helps() -> None:
    chance = random.Random(8)
    wishes = {"node_settings": {"enable": ["power_limit", "max_read_request", "swappiness", "nvreg_p2p_override",
                                           "port_power", "transparent_hugepage"],
                                "values": {"power_limit": "450", "nvreg_p2p_override": "force"}},
              "nccl_system": {"NCCL_DEBUG": "WARN"}}  # fmt: skip
    junk = (None, "unknown", "", -1, 1e300, True, [], [None], {}, {"a": 1}, "\x00\n", "9" * 50)
    for _ in range(400):
        node = record()
        target, key = chance.choice(_places(node))
        target[key] = chance.choice(junk)
        try:
            assert make_plan(node, wishes)["decisions"]
        except InputError:
            assert key == "schema"


def test_a_record_that_claims_endless_cpus_costs_no_memory() -> None:
    roles = make_plan(record(cpu__threads_present=10**30), {})["roles"]
    assert len(roles["kernel"]["kernel_values"]) == 8192


def _places(value) -> list:
    """Every place of a document that can be overwritten."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key])]]
