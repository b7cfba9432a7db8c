"""What an environment's SGLang says of itself, by a fake package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.plan import Environment
from tuning.serving import installed
from tuning.serving.installed import help_flags, installed_release

HELP = """usage: launch_server.py [-h] --model-path MODEL_PATH

options:
  -h, --help            show this help message and exit
  --model-path MODEL_PATH, --model MODEL_PATH
                        The path. See also --not-a-flag and
                        --neither
  --tp-size N  The size; --nor-this
  --cuda-graph-bs CUDA_GRAPH_BS [CUDA_GRAPH_BS ...]
"""


def fake(folder: Path, launcher: str, version: str = "0.5.12") -> Environment:
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang/__init__.py").touch()
    (folder / "sglang/launch_server.py").write_text(launcher)
    (folder / f"sglang-{version}.dist-info").mkdir()
    (folder / f"sglang-{version}.dist-info/METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
    return Environment(name="here", python=sys.executable, variables={"PYTHONPATH": str(folder)})


def test_release_and_flags_are_what_it_says(tmp_path: Path) -> None:
    environment = fake(tmp_path, f"print({HELP!r})")
    assert installed_release(environment) == "0.5.12"
    assert help_flags(environment) == {"help", "model-path", "model", "tp-size", "cuda-graph-bs"}


def test_a_launcher_that_fails_tells_no_flags(tmp_path: Path) -> None:
    assert help_flags(fake(tmp_path, f"print({HELP!r}); raise SystemExit(1)")) == frozenset()


@pytest.mark.parametrize("launcher", ["while True: print('  --x')", "import time; time.sleep(600)"])
def test_one_that_does_not_end_is_said_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    monkeypatch.setattr(installed, "_HELP_SECONDS", 0.5)
    with pytest.raises(InputError, match=r"environment here, .* -m sglang.launch_server --help' did not end within"):
        help_flags(fake(tmp_path, launcher))


def test_an_environment_without_it_is_told_so(tmp_path: Path) -> None:
    environment = Environment(name="here", python=sys.executable, variables={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(InputError, match="here holds no SGLang") as caught:
        installed_release(environment)
    assert "PackageNotFoundError" in caught.value.what
    with pytest.raises(InputError, match="holds no SGLang"):
        installed_release(Environment(name="here", python="/no/python", variables={}))


@pytest.mark.parametrize("version", ["main", "1" * 5000])
def test_a_version_that_is_none_is_refused(tmp_path: Path, version: str) -> None:
    environment = fake(tmp_path, "", "0")
    (tmp_path / "sglang-0.dist-info/METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
    with pytest.raises(InputError, match="holds no SGLang"):
        installed_release(environment)
