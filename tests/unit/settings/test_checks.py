from __future__ import annotations

import pytest

from tests.unit.settings.makers_node import behind_switches, decided, gpu, on_root_ports, record, with_device

GPU, PORT, ROOT = "0000:03:00.0", "0000:02:00.0", "0000:00:01.1"


def with_gpu(**changes):
    node = record()
    node["gpus"][0].update(changes)
    return node


@pytest.mark.parametrize(
    ("address", "changes", "says"),
    [
        (GPU, {"current_link_width": 8}, "0000:03:00.0 uses 8 of 16 lanes"),
        (GPU, {"current_link_width": 0}, "0000:03:00.0 has no link (0 of 16 lanes)"),
        (PORT, {"current_link_width": 4}, "0000:02:00.0 uses 4 of 16 lanes"),
        (ROOT, {"current_link_width": 4}, "0000:00:01.1 uses 4 of 16 lanes"),
    ],
)
def test_a_width_below_what_the_link_has_is_a_fault_at_the_root_port_too(address, changes, says) -> None:
    found = decided("link_width", record(with_device(behind_switches(), address, **changes)))
    assert (found["verdict"], found["now"]) == ("fault", says)


def test_a_gpu_in_a_narrow_slot_is_a_fault_and_a_card_that_has_no_more_lanes_is_not() -> None:
    narrow = {"current_link_width": 8, "max_link_width": 8}
    slot = with_device(with_device(on_root_ports(2), ROOT, **narrow), "0000:01:00.0", current_link_width=8)
    assert decided("link_width", record(slot))["now"] == "0000:01:00.0 uses 8 of 16 lanes"
    card = with_device(with_device(on_root_ports(2), "0000:01:00.0", **narrow), ROOT, current_link_width=8)
    assert decided("link_width", record(card))["verdict"] == "ok"


def test_full_links_are_ok_and_unread_ones_unknown() -> None:
    assert decided("link_width")["now"] == "10 links at full width"
    unread = with_device(behind_switches(), GPU, current_link_width="unknown")
    assert decided("link_width", record(unread))["verdict"] == "unknown"


def test_an_idle_gpu_at_its_lowest_speed_is_no_fault() -> None:
    found = decided("link_speed", record(with_device(behind_switches(), GPU, current_link_speed_gts=2.5)))
    assert (found["verdict"], found["now"]) == ("ok", "2.5 of 32 GT/s, 32 of 32 GT/s")


def test_a_bar_smaller_than_the_memory_is_a_fault() -> None:
    found = decided("bar1_size", with_gpu(bar1_bytes=256 << 20))
    assert (found["verdict"], found["now"]) == ("fault", "0000:03:00.0: 0.25 GiB of 96 GiB")
    assert decided("bar1_size", with_gpu(bar1_bytes="unknown"))["verdict"] == "ok"  # the PCI device tells it, too
    assert decided("bar1_size", with_gpu(memory_bytes="unknown"))["verdict"] == "unknown"


def test_a_gpu_without_a_numa_node_is_a_fault_with_two_sockets() -> None:
    lost = with_device(behind_switches(), GPU, numa_node=None)
    assert decided("gpu_numa_node", record(lost, cpu__sockets=2))["verdict"] == "fault"
    assert decided("gpu_numa_node", record(lost))["verdict"] == "skip"
    assert decided("gpu_numa_node", record(cpu__sockets=2))["verdict"] == "ok"


def test_lost_cpus_are_a_fault_with_their_cause() -> None:
    lost = {"cpu__threads": 255, "cpu__threads_present": 256}
    found = decided("cpus_online", record(**lost, iommu__mode="off"))
    assert (found["verdict"], found["now"]) == ("fault", "255 of 256 CPU threads online")
    assert "x2APIC" in found["why"]
    assert "iommu=pt" in found["why"]
    assert "kernel log" in decided("cpus_online", record(**lost, iommu__mode="passthrough"))["why"]
    few = {"cpu__threads": 7, "cpu__threads_present": 8}  # no id is that high
    assert "kernel log" in decided("cpus_online", record(**few, iommu__mode="off"))["why"]
    asked = record(**lost, host__kernel_command_line="nosmt")
    assert decided("cpus_online", asked)["verdict"] == "ok"
    assert decided("cpus_online")["verdict"] == "ok"


def test_errors_that_were_not_corrected_are_a_fault_and_no_counters_are_not_no_errors() -> None:
    assert decided("aer_counters")["verdict"] == "ok"
    assert decided("aer_counters", record(with_device(behind_switches(), GPU, aer_correctable=7)))["verdict"] == "ok"
    assert decided("aer_counters", record(with_device(behind_switches(), ROOT, aer_fatal=1)))["verdict"] == "fault"
    none = {"aer_correctable": None, "aer_nonfatal": None, "aer_fatal": None}
    without = [{**one, **none} for one in behind_switches()]
    found = decided("aer_counters", record(without))
    assert found["verdict"] == "unknown"
    assert "_OSC" in found["why"]


@pytest.mark.parametrize(
    ("setting", "changes", "verdict"),
    [
        ("mig_off", {"mig": True}, "fault"),
        ("mig_off", {"mig": None}, "ok"),
        ("compute_mode", {"compute_mode": "Exclusive_Process"}, "fault"),
        ("throttle", {"throttle_reasons": ["gpu_idle"]}, "ok"),
        ("throttle", {"throttle_reasons": ["sw_power_cap"]}, "ok"),
        ("throttle", {"throttle_reasons": ["hw_slowdown"]}, "fault"),
        ("throttle", {"throttle_reasons": ["hw_power_brake_slowdown"]}, "fault"),
        ("power_limits_equal", {"power_limit_watts": 450.0}, "fault"),
        ("mig_off", {"mig": "unknown"}, "unknown"),
    ],
)
def test_checks_of_the_driver(setting, changes, verdict) -> None:
    assert decided(setting, with_gpu(**changes))["verdict"] == verdict


@pytest.mark.parametrize(
    ("setting", "changes", "verdict"),
    [
        ("open_modules", {"driver__kernel_module": "proprietary"}, "fault"),
        ("open_modules", {}, "ok"),
        ("shm_size", {"limits__shm_bytes": 64 << 20}, "fault"),
        ("shm_size", {"limits__shm_bytes": "unknown"}, "unknown"),
        ("translated_redirect", {}, "fault"),
        ("translated_redirect", {"iommu__mode": "passthrough"}, "ok"),
        ("translated_redirect", {"iommu__mode": "unknown"}, "unknown"),
        ("max_payload", {"pci": with_device(behind_switches(), PORT, max_payload_bytes=128)}, "fault"),
        ("max_payload", {}, "ok"),
        ("xid", {}, "advise"),
    ],
)
def test_checks_of_the_node(setting, changes, verdict) -> None:
    assert decided(setting, record(**changes))["verdict"] == verdict


def test_a_node_without_gpus_has_nothing_to_check_of_them() -> None:
    for setting in ("link_width", "bar1_size", "throttle", "open_modules"):
        assert decided(setting, record([]))["verdict"] == "skip"


def test_every_gpu_is_looked_at() -> None:
    node = record()
    node["gpus"][-1] = gpu(node["gpus"][-1]["address"], mig=True)
    assert decided("mig_off", node)["verdict"] == "fault"


@pytest.mark.parametrize(
    "setting", ["mig_off", "compute_mode", "throttle", "power_limits_equal", "bar1_size", "open_modules"]
)
def test_what_only_a_driver_tells_is_skipped_where_there_is_none(setting) -> None:
    node = {**record(driver={"present": False, "version": None, "kernel_module": None}), "gpus": "unknown"}
    found = decided(setting, node)
    assert (found["verdict"], found["why"]) == ("skip", "no NVIDIA driver")
    assert decided("mig_off", {**node, "driver": {"present": "unknown"}})["verdict"] == "unknown"
