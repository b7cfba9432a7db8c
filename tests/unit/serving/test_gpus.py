"""What nvidia-smi tells, by a fake of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuning.serving import gpus
from tuning.serving.gpus import GpuFacts, gpu_states, holders, holders_after, read_gpus

FAKE = """#!/bin/sh
case "$*" in
  *query-gpu=index,compute_cap*) printf '{caps}' ;;
  *query-gpu*) printf '0, NVIDIA X, GPU-1, 580.1, 2100, 13365, 41, 80.1, 600.0, 0x0, 5, 16, Enabled, 512\\n' ;;
  *compute-apps*) printf '{apps}' ;;
  "topo -m") cat <<END
	GPU0	GPU1	GPU2
GPU0	 X 	{link}	SYS
GPU1	{link}	 X 	SYS
GPU2	SYS	SYS	 X
END
  ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a fake nvidia-smi on PATH."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(caps: str = "0, 12.0\\n1, 12.0\\n", apps: str = "", link: str = "SYS") -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(FAKE.format(caps=caps, apps=apps, link=link))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return put


def test_facts_are_of_the_gpus_that_are_visible(smi) -> None:
    smi(caps="0, 12.0\\n1, 12.0\\n2, 9.0\\n", link="NV4")
    assert read_gpus() == GpuFacts(count=3, capability=None, nvlink=False)
    assert read_gpus("0,1") == GpuFacts(count=2, capability=(12, 0), nvlink=True)
    assert read_gpus("2") == GpuFacts(count=1, capability=(9, 0), nvlink=None)


def test_gpus_on_pcie_have_no_nvlink(smi) -> None:
    smi(link="NODE")
    assert read_gpus() == GpuFacts(count=2, capability=(12, 0), nvlink=False)


@pytest.mark.parametrize("caps", ["", "No devices were found\\n", "0, [N/A]\\n"])
def test_what_it_does_not_tell_is_unknown(smi, caps: str) -> None:
    smi(caps=caps)
    assert read_gpus() in (None, GpuFacts(count=1))


def test_without_nvidia_smi_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (read_gpus(), gpu_states(), holders()) == (None, (), ())


def test_states_have_names_of_their_own(smi) -> None:
    smi()
    (state,) = gpu_states()
    assert (state["memory_mhz"], state["throttle"], state["memory_used_mib"]) == ("13365", "0x0", "512")


def test_who_still_holds_memory_is_named_after_a_while(smi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_POLL_SECONDS", 0.01)
    smi(apps="12, /usr/bin/python3, 700, GPU-1\\n[N/A], x, 1, GPU-2\\n")
    assert holders_after({13}, seconds=0) == ()
    (left,) = holders_after({12, 13}, seconds=0)
    assert str(left) == "process 12 (/usr/bin/python3) holds 700 MiB of GPU-1"
