"""The ladder on a node, with a fake libcuda and a fake nvidia-smi; each fault code is found where it is planted."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from playbooks.module_utils import ladder, ladder_copy, ladder_cuda, ladder_rates
from playbooks.module_utils.ladder import Asked, Ladder
from playbooks.module_utils.ladder_child import DeviceError, ToolError, in_child
from playbooks.module_utils.ladder_copy import copies
from playbooks.module_utils.ladder_cuda import Cuda
from playbooks.module_utils.ladder_places import Place, apart, places, write_patterns
from playbooks.module_utils.ladder_rates import rates
from playbooks.module_utils.ladder_smi import CODES, p2p, read_matrix, users
from playbooks.module_utils.ladder_steps import NAMES, Step
from tests.unit.makers_ladder import LIMITS, fake_libcuda, fake_smi, matrix, place
from tests.unit.settings.makers_node import behind_switches, device

SCRIPT = Path(__file__).resolve().parents[2] / "playbooks/module_utils/ladder.py"
TWO = [place(0, switch=0), place(1, switch=0)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_libcuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The fake driver in the place of the real one, and small copies; whoever uses it sets the fake's variables."""
    monkeypatch.setattr(ladder_cuda, "LIBRARY", str(library))
    monkeypatch.setattr(ladder_copy, "SIZES", (4096, 1 << 16))
    monkeypatch.setattr(ladder_rates, "LARGE", 1 << 16)
    monkeypatch.setattr(ladder_rates, "WARM_SECONDS", 0.0)
    return monkeypatch


def faults(step: Step) -> list[tuple[str, str]]:
    return [(fault.code, fault.where) for fault in step.faults]


# ------------------------------------------------------------------------------------------------------------- child


def test_a_child_answers_and_says_how_it_could_not() -> None:
    def refuse() -> None:
        raise DeviceError("cuInit: CUDA_ERROR_UNKNOWN")

    def lack() -> None:
        raise ToolError("no libcuda")

    assert in_child(lambda: {"pid": 1}, 10).value == {"pid": 1}
    assert in_child(refuse, 10).failed == "cuInit: CUDA_ERROR_UNKNOWN"
    assert in_child(lack, 10).unable == "no libcuda"
    assert in_child(lambda: 1 // 0, 10).unable == "ZeroDivisionError: integer division or modulo by zero"
    assert in_child(lambda: os._exit(7), 10).failed == "the process ended with status 7 and no answer"
    assert in_child(lambda: os.kill(os.getpid(), signal.SIGTERM), 10).failed == "the process died of SIGTERM"


def test_a_child_that_hangs_is_killed_and_gone(tmp_path: Path) -> None:
    def hang() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    assert in_child(hang, 0.3).hang == "no end within 0.3 s; killed"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_child_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    in_child(lambda: os.write(1, b"noise"), 10)
    assert capfd.readouterr().out == ""


# --------------------------------------------------------------------------------------------------------------- p2p


def test_a_matrix_is_read_through_escapes_tabs_and_blanks() -> None:
    assert read_matrix(matrix(2, GPU0_GPU1="CNS")) == {("GPU0", "GPU1"): "CNS", ("GPU1", "GPU0"): "OK"}
    assert len(read_matrix(matrix(16))) == 240
    assert read_matrix(matrix(1)) == {}


@pytest.mark.parametrize(
    "text", ["", "GPU0 GPU1\nGPU0 X OK\n", "No devices were found\n", "GPU0 GPU1\nGPU0 X\nGPU1 OK X"]
)
def test_a_part_of_a_matrix_is_none(text: str) -> None:
    assert p2p(fake_smi(text)).status == "unknown"


@pytest.mark.parametrize(("word", "code"), CODES.items())
def test_each_refusal_of_the_driver_has_its_code(word: str, code: str) -> None:
    step = p2p(fake_smi(matrix(3, GPU0_GPU2=word, GPU2_GPU0=word)))
    assert (step.status, faults(step)) == ("fault", [(code, "GPU0-GPU2, GPU2-GPU0")])


def test_only_reads_and_writes_are_judged_and_unknown_is_no_fault() -> None:
    def only_pcie_refused(*arguments: str) -> str:
        return matrix(2, GPU0_GPU1="NS") if arguments[-1] == "p" else matrix(2)

    assert p2p(only_pcie_refused).status == "ok"
    assert p2p(only_pcie_refused).evidence == ["r: 2 OK", "w: 2 OK", "p: 1 NS, 1 OK"]
    assert p2p(fake_smi(matrix(2, GPU0_GPU1="U"))).status == "unknown"
    assert p2p(fake_smi(matrix(1))).status == "not applicable"


def test_processes_on_gpus_are_listed_and_remarks_are_not() -> None:
    assert users(fake_smi("", "4711, /usr/bin/python3\nNo running processes found\n")) == ["4711 /usr/bin/python3"]


# -------------------------------------------------------------------------------------------------------------- copy


def test_copies_that_arrive_are_ok_and_each_pair_has_its_own_pattern(cuda: pytest.MonkeyPatch) -> None:
    patterns = []
    shake = hashlib.shake_128
    cuda.setattr(ladder_copy, "in_child", lambda work, _: type("Ended", (), {**_nothing, "value": work()}))
    cuda.setattr(ladder_copy.hashlib, "shake_128", lambda seed: patterns.append(seed) or shake(seed))  # type: ignore[func-returns-value]
    step = copies(3, Cuda)
    assert (step.status, len(step.measured)) == ("ok", 6)
    assert step.evidence == ["6 ordered pairs of 3 GPUs, 0 through host memory; sizes (4096, 65536) bytes"]
    assert len(set(patterns)) == 12


_nothing = {"hang": "", "failed": "", "unable": ""}


@pytest.mark.parametrize(
    ("fault", "code", "found"),
    [
        ("drop", "COPY_WRONG", "4096 bytes: nothing arrived"),
        ("ones", "COPY_WRONG", "4096 bytes: all of it is 0xff"),
        ("flip", "COPY_WRONG", "4096 bytes: wrong from byte 100 on"),
        ("fail", "COPY_FAILED", "cuMemcpyPeerAsync: CUDA_ERROR_LAUNCH_FAILED"),
        ("die", "COPY_FAILED", "the process died of SIGABRT"),
        ("hang", "COPY_HANG", "no end within 0.5 s; killed; no further pair was tried"),
    ],
)
def test_each_way_for_data_not_to_arrive_has_its_code(
    cuda: pytest.MonkeyPatch, fault: str, code: str, found: str
) -> None:
    cuda.setenv("FAKE_FAULT", fault)
    step = copies(2, Cuda, 0.5 if fault == "hang" else 30)
    assert step.status == "fault"
    assert (step.faults[0].code, step.faults[0].where, step.faults[0].found) == (code, "GPU0-GPU1", found)
    assert {found.where for found in step.faults} == ({"GPU0-GPU1"} if fault == "hang" else {"GPU0-GPU1", "GPU1-GPU0"})


def test_copies_through_host_memory_that_arrive_are_named(cuda: pytest.MonkeyPatch) -> None:
    cuda.setenv("FAKE_FAULT", "refuse")
    step = copies(2, Cuda)
    assert (step.status, {row["path"] for row in step.measured}) == ("ok", {"host"})
    assert "2 through host memory" in step.evidence[0]


@pytest.mark.parametrize(
    ("fault", "reason"), [("full", "CUDA_ERROR_OUT_OF_MEMORY"), ("absent", "CUDA_ERROR_NO_DEVICE")]
)
def test_what_says_nothing_of_the_node_is_unknown(cuda: pytest.MonkeyPatch, fault: str, reason: str) -> None:
    cuda.setenv("FAKE_FAULT", fault)
    step = copies(2, Cuda)
    assert (step.status, step.evidence, reason in step.reason) == ("unknown", [], True)


def test_without_a_libcuda_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_cuda, "LIBRARY", "libcuda-that-is-not-there.so")
    assert "cannot load libcuda-that-is-not-there.so" in copies(2, Cuda).reason


# ------------------------------------------------------------------------------------------------------------- rates


def test_pairs_are_measured_by_the_gpus_own_clocks(cuda: pytest.MonkeyPatch) -> None:
    step = rates(TWO, Cuda, LIMITS)
    assert step.status == "ok"
    assert [row["gb_s"] for row in step.measured] == [[pytest.approx(50, rel=0.01)]] * 2
    assert step.evidence[0] == "2 ordered pairs: 50.0 to 50.0 GB/s"


@pytest.mark.parametrize(
    ("rate", "distance", "slow"), [(45, "switch", False), (43, "switch", True), (30, "system", False)]
)
def test_bandwidth_is_held_against_the_link_by_distance(
    cuda: pytest.MonkeyPatch, rate: int, distance: str, slow: bool
) -> None:
    cuda.setenv("FAKE_GB_S", str(rate))
    placed = TWO if distance == "switch" else [place(0, root=0, numa=0), place(1, root=1, numa=1)]
    step = rates(placed, Cuda, LIMITS)
    assert faults(step) == ([("BANDWIDTH_LOW", "GPU0-GPU1"), ("BANDWIDTH_LOW", "GPU1-GPU0")] if slow else [])


def test_a_pair_without_peer_access_is_a_fault_of_its_own(cuda: pytest.MonkeyPatch) -> None:
    cuda.setenv("FAKE_FAULT", "refuse")
    assert faults(rates(TWO, Cuda, LIMITS)) == [("HOST_PATH", "GPU0-GPU1"), ("HOST_PATH", "GPU1-GPU0")]


def test_a_link_that_is_not_known_or_no_limits_leave_it_unknown(cuda: pytest.MonkeyPatch) -> None:
    step = rates([None, None], Cuda, LIMITS)
    assert (step.status, len(step.measured)) == ("unknown", 2)
    assert rates(TWO, Cuda, {}).reason == "no limits were given"


@pytest.mark.parametrize(("shared", "collapses"), [(25, False), (1.3, True)])
def test_a_write_collapse_is_found_where_several_write_at_once(
    cuda: pytest.MonkeyPatch, shared: float, collapses: bool
) -> None:
    cuda.setenv("FAKE_GPUS", "4")
    cuda.setenv("FAKE_SHARED_GB_S", str(shared))
    placed = [place(0, switch=0), place(1, switch=0), place(2, root=1), place(3, root=2)]
    step = rates(placed, Cuda, LIMITS)
    assert len(step.measured) == 13
    assert faults(step) == ([("WRITE_COLLAPSE", "GPU0-GPU2, GPU1-GPU3")] if collapses else [])


@pytest.mark.parametrize(("fault", "code"), [("hang", "COPY_HANG"), ("fail", "COPY_FAILED")])
def test_what_breaks_under_load_is_a_fault(cuda: pytest.MonkeyPatch, fault: str, code: str) -> None:
    cuda.setenv("FAKE_FAULT", fault)
    assert faults(rates(TWO, Cuda, LIMITS, 0.5 if fault == "hang" else 30))[0] == (code, "GPU0-GPU1")


# ------------------------------------------------------------------------------------------------------------ places


def test_gpus_are_placed_by_their_bridges() -> None:
    devices = behind_switches(2, 2)
    gpus = [one["address"] for one in devices if one["port_type"] == "endpoint"]
    found = [places(devices, gpus)[gpu] for gpu in gpus]
    assert [one.root for one in found] == ["pci0000:00"] * 2 + ["pci0000:40"] * 2
    assert len({one.switch for one in found}) == 2
    assert found[0].gb_s == pytest.approx(63.0, abs=0.1)
    assert [apart(found[0], other) for other in found[1:]] == ["switch", "node", "node"]


def test_the_narrowest_link_on_the_way_counts_and_an_unread_one_leaves_it_unknown() -> None:
    root = device("0000:00:01.1", "pci0000:00", "root_port", current_link_width=8)
    gpu = device("0000:01:00.0", "0000:00:01.1", "endpoint")
    assert places([root, gpu], ["0000:01:00.0"])["0000:01:00.0"].gb_s == pytest.approx(31.5, abs=0.1)
    gpu["current_link_width"] = "unknown"
    assert places([root, gpu], ["0000:01:00.0"])["0000:01:00.0"].gb_s is None
    assert places([root], ["0000:01:00.0"]) == {}


def test_two_gpus_without_a_common_bridge_are_apart_by_host_bridge_and_node() -> None:
    assert apart(place(0, root=0), place(1, root=0, numa=0)) == "switch"  # one root port
    other = Place("0000:09:00.0", "pci0000:00", ("0000:00:02.1",), 0, 63.0)
    assert apart(place(0, root=0), other) == "host_bridge"
    assert apart(place(0, root=0, numa=None), place(1, root=1, numa=None)) == "system"


def test_every_gpu_of_a_switch_writes_to_two_host_bridges_at_least() -> None:
    switched = [place(n, switch=n // 4, root=n // 4) for n in range(16)]
    patterns = write_patterns(switched)
    assert [len(flows) for flows in patterns] == [4] * 4
    assert patterns[0] == [(0, 4), (1, 8), (2, 12), (3, 5)]
    assert write_patterns(switched[:8]) == []
    assert write_patterns([None, *(place(n, root=n) for n in range(4))]) == []


# ------------------------------------------------------------------------------------------------------------- climb


def climb(monkeypatch: pytest.MonkeyPatch, config: str = "ok", *, driver: bool = True, **asked: Any) -> dict[str, Step]:
    monkeypatch.setattr(ladder, "_DRIVER", ("/",) if driver else ("/no-driver",))
    smi = fake_smi(asked.pop("matrix", matrix(2)), asked.pop("users", ""))
    steps = Ladder(Asked(ask=smi, limits=LIMITS, **asked)).climb(Step("config", config))
    assert tuple(step.name for step in steps) == NAMES
    return {step.name: step for step in steps}


def test_the_climb_goes_up_to_what_needs_more_than_it_has(cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(ladder, "_placed", lambda addresses: TWO if addresses == ["0000:41:00.0", "0000:51:00.0"] else [])
    steps = climb(cuda)
    assert [step.status for step in steps.values()] == ["ok", "ok", "ok", "ok", "not run", "not run"]
    assert "ladder_python" in steps["allreduce"].reason
    assert "bench-speculative" in steps["engine"].reason


def test_the_climb_stops_at_the_first_fault(cuda: pytest.MonkeyPatch) -> None:
    assert {step.reason for step in climb(cuda, "fault").values()} == {"", "stopped at config"}
    steps = climb(cuda, matrix=matrix(2, GPU0_GPU1="CNS"))
    assert [step.status for step in steps.values()] == ["ok", "fault", *["not run"] * 4]
    cuda.setenv("FAKE_FAULT", "drop")
    assert climb(cuda)["rates"].reason == "stopped at copy"


def test_a_driver_that_does_not_start_is_a_fault(cuda: pytest.MonkeyPatch) -> None:
    cuda.setenv("FAKE_FAULT", "broken")
    assert faults(climb(cuda)["copy"]) == [("COPY_FAILED", "cuInit")]


def test_what_is_not_asked_for_is_not_run(cuda: pytest.MonkeyPatch) -> None:
    steps = climb(cuda, to="p2p")
    assert (steps["p2p"].status, steps["copy"].reason) == ("ok", "asked for no more than p2p")


def test_an_unknown_config_does_not_stop_and_an_unknown_copy_does(cuda: pytest.MonkeyPatch) -> None:
    cuda.setenv("FAKE_FAULT", "full")
    steps = climb(cuda, "unknown")
    assert (steps["p2p"].status, steps["copy"].status) == ("ok", "unknown")
    assert steps["rates"].reason == "it is not known whether copies arrive"


@pytest.mark.parametrize(
    ("more", "reason"), [({"driver": False}, "no NVIDIA driver is loaded"), ({"root": "/tree"}, "no NVIDIA")]
)
def test_without_a_driver_nothing_above_is_applicable(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], reason: str
) -> None:
    steps = list(climb(monkeypatch, **more).values())[1:]
    assert {step.status for step in steps} == {"not applicable"}
    assert all(step.reason.startswith(reason) for step in steps)


def test_without_a_driver_that_is_the_reason_whatever_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert climb(monkeypatch, "fault", driver=False)["p2p"].reason == "no NVIDIA driver is loaded"
    assert climb(monkeypatch, driver=False, to="config")["p2p"].reason == "asked for no more than config"


@pytest.mark.parametrize(
    ("bus", "status"),
    [
        ([device("0000:00:01.1", "pci0000:00", "root_port")], "not applicable"),
        (behind_switches(), "unknown"),  # the driver has lost them
        ([], "unknown"),
    ],
)
def test_a_driver_without_a_gpu_has_nothing_to_verify(
    monkeypatch: pytest.MonkeyPatch, bus: list[dict[str, Any]], status: str
) -> None:
    monkeypatch.setattr(ladder, "_devices", lambda: bus)
    monkeypatch.setattr(ladder, "_DRIVER", ("/",))

    def none(*_: str) -> str:
        raise ValueError("nvidia-smi topo: status 6, No devices were found")

    steps = Ladder(Asked(ask=none)).climb(Step("config", "ok"))
    assert steps[1].status == status
    assert ("no NVIDIA GPU" in steps[1].reason) == (status == "not applicable")


def test_one_gpu_is_no_pass(cuda: pytest.MonkeyPatch) -> None:
    assert {step.status for step in list(climb(cuda, matrix=matrix(1)).values())[1:]} == {"not applicable"}
    cuda.setenv("FAKE_GPUS", "1")
    assert climb(cuda)["copy"].status == "not applicable"


def test_gpus_in_use_are_left_alone(cuda: pytest.MonkeyPatch) -> None:
    steps = climb(cuda, users="4711, sglang\n")
    assert {steps[name].status for name in ("copy", "rates", "allreduce")} == {"not run"}
    assert "4711 sglang" in steps["rates"].reason


def test_the_script_runs_by_itself_on_a_machine_without_a_driver() -> None:
    done = subprocess.run([sys.executable, "-I", SCRIPT, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [step["name"] for step in json.loads(done.stdout)] == list(NAMES)
