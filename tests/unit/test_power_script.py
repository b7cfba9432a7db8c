"""The boot script of power limits, with a fake nvidia-smi that keeps them in a file."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "playbooks/roles/gpu/files/lanewise-power.py"
FAKE = """#!{python}
import json, pathlib, sys
state = pathlib.Path({state!r})
limits = json.loads(state.read_text())
if sys.argv[1] == "-i":
    address, watts = sys.argv[2], float(sys.argv[4])
    if watts > 600:
        sys.exit("Provided power limit is not valid")
    if address != {stuck!r}:
        limits[address] = watts
    state.write_text(json.dumps(limits))
else:
    print("\\n".join(f"{{address}}, {{watts:.2f}}" for address, watts in limits.items()))
"""
A, B = "00000000:41:00.0", "00000000:42:00.0"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("lanewise_power", SCRIPT)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.CONFIG = tmp_path / "power.conf"  # type: ignore[attr-defined]
    module.BEFORE = tmp_path / "state/power-before.json"  # type: ignore[attr-defined]
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    put(tmp_path, {A: 600.0, B: 500.0})
    return module


def put(folder: Path, limits: dict[str, float], stuck: str = "") -> None:
    state = folder / "limits.json"
    state.write_text(json.dumps(limits))
    (folder / "nvidia-smi").write_text(FAKE.format(python=sys.executable, state=str(state), stuck=stuck))
    (folder / "nvidia-smi").chmod(0o755)


def limits(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "limits.json").read_text())
    return found


def test_every_gpu_gets_the_limit_and_revert_gives_each_its_own_back(script: ModuleType, tmp_path: Path) -> None:
    script.CONFIG.write_text("# ours\nPOWER_LIMIT_WATTS=450\n")
    assert script.main([]) == 0
    assert limits(tmp_path) == {A: 450.0, B: 450.0}
    script.CONFIG.write_text("POWER_LIMIT_WATTS=400\n")
    assert script.main([]) == 0
    assert script.main(["--revert"]) == 0
    assert limits(tmp_path) == {A: 600.0, B: 500.0}
    assert not script.BEFORE.exists()
    assert script.main(["--revert"]) == 0


def test_a_limit_that_does_not_stick_is_named_when_the_others_are_set(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {A: 600.0, B: 500.0}, stuck=A)
    script.CONFIG.write_text("POWER_LIMIT_WATTS=450\n")
    assert script.main([]) == 1
    assert f"fault: {A}: wanted 450 W, reads 600.0" in capsys.readouterr().out
    assert limits(tmp_path) == {A: 600.0, B: 450.0}


def test_what_the_driver_refuses_is_told_in_its_words(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    script.CONFIG.write_text("POWER_LIMIT_WATTS=900\n")
    assert script.main([]) == 1
    assert "Provided power limit is not valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "POWER_LIMIT_WATTS=", "POWER_LIMIT_WATTS=0", "POWER=1", "POWER_LIMIT_WATTS=1\nX=2"]
)
def test_a_damaged_configuration_is_refused(script: ModuleType, tmp_path: Path, text: str) -> None:
    script.CONFIG.write_text(text)
    assert script.main([]) == 2
    assert limits(tmp_path) == {A: 600.0, B: 500.0}


def test_without_nvidia_smi_it_fails_and_says_so(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    script.CONFIG.write_text("POWER_LIMIT_WATTS=450\n")
    assert script.main([]) == 1
    assert "nvidia-smi" in capsys.readouterr().out
