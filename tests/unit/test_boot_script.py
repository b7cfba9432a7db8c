"""The script that sets PCI registers at boot, as it is installed: three files in one folder, run by themselves."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.makers_modules import PLAYBOOKS, run_module
from tests.unit.makers_pci import (
    DEVICE_CONTROL_AT,
    DOWN_A,
    GPU_A,
    GPU_B,
    LINK_CONTROL_AT,
    folder,
    put,
    small_tree,
    spaces,
    word,
)

PCIE = PLAYBOOKS / "roles/pcie"
CONFIG = """\
# Managed by Lanewise
ACS_REDIRECT=clear
MAX_READ_REQUEST=4096

ASPM=disabled
MATCH=10de:0302 10de:0300
EXCLUDE=
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    installed = tmp_path / "usr/local/lib/lanewise"
    installed.mkdir(parents=True)
    shutil.copy(PCIE / "files/lanewise-pci.py", installed)
    for name in ("pci_config.py", "pci_settings.py"):
        shutil.copy(PLAYBOOKS / "module_utils" / name, installed)
    return small_tree(tmp_path)


def boot(root: Path, text: str | None = CONFIG, *more: str) -> subprocess.CompletedProcess[str]:
    config = root / "pci.conf"
    if text is not None:
        config.write_text(text)
    script = root / "usr/local/lib/lanewise/lanewise-pci.py"
    command = [sys.executable, "-I", str(script), "--config", str(config), "--root", str(root), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_it_does_what_the_module_does(root: Path, tmp_path_factory: pytest.TempPathFactory, capsys) -> None:
    other = small_tree(tmp_path_factory.mktemp("other"))
    options = {"acs_redirect": "clear", "max_read_request": 4096, "aspm": "disabled", "match": ["10de:0302"]}
    changes = run_module("pci_device", capsys, root=str(other), **options)["changes"]
    done = boot(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"{one['address']} {one['register']}: {one['before']} -> {one['after']}" for one in changes
    ]
    assert spaces(root) == spaces(other)


def test_again_it_says_nothing_and_leaves_nothing_behind(root: Path) -> None:
    boot(root)
    again = boot(root)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    names = sorted(path.name for path in (root / "usr/local/lib/lanewise").iterdir())
    assert names == ["lanewise-pci.py", "pci_config.py", "pci_settings.py"]


def test_check_names_what_differs_and_writes_nothing(root: Path) -> None:
    boot(root)
    put(root, GPU_A, DEVICE_CONTROL_AT, 0x2936)
    before = spaces(root)
    done = boot(root, CONFIG, "--check")
    assert (done.returncode, done.stdout) == (1, f"{GPU_A} max_read_request: 512, wanted 4096\n")
    assert spaces(root) == before
    boot(root)
    assert boot(root, CONFIG, "--check").returncode == 0


def test_it_names_each_fault_and_does_the_rest(root: Path) -> None:
    (folder(root, GPU_B) / "config").write_bytes(b"\xff" * 4096)
    config = folder(root, DOWN_A) / "config"
    config.write_bytes(config.read_bytes()[:256])
    done = boot(root)
    assert done.returncode == 1
    faults = [line for line in done.stdout.splitlines() if line.startswith("fault: ")]
    assert [line.split(":  ")[0].rpartition(": cannot be read")[0] for line in faults] == [
        f"fault: {DOWN_A} acs_control",
        f"fault: {GPU_B} max_read_request",
        f"fault: {GPU_B} aspm",
    ]
    assert word(root, GPU_A, LINK_CONTROL_AT) == 0x40


@pytest.mark.parametrize(
    "text",
    [
        "ACS_REDIRECT=off\n",
        "ASPM\n",
        "SPEED=5\n",
        "ASPM=disabled\nASPM=disabled\nMATCH=10de:0302\n",
        "MAX_READ_REQUEST=large\n",
        "MAX_READ_REQUEST=4096\n",
        "MAX_READ_REQUEST=4000\nMATCH=10de:0302\n",
        'MATCH="10de:0302"\n',
        "#" * 70000,
        "\ud800",
        None,
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_written(root: Path, text: str | None) -> None:
    before = spaces(root)
    if text == "\ud800":
        (root / "pci.conf").write_bytes(b"ASPM=\xff\xfe\n")
        text = None
    done = boot(root, text)
    assert done.returncode == 2
    assert done.stdout.startswith(f"{root}/pci.conf: ")
    assert not done.stderr
    assert spaces(root) == before


def test_no_devices_to_list_is_a_fault(root: Path) -> None:
    shutil.rmtree(root / "sys")
    done = boot(root)
    assert (done.returncode, done.stderr) == (1, "")
    assert "cannot list the PCI devices" in done.stdout


def test_the_unit_runs_the_script_once_before_what_opens_gpus() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(PCIE / "templates/lanewise-pci.service.j2")
    assert unit["Service"]["Type"] == "oneshot"
    assert unit["Service"]["RemainAfterExit"] == "yes"
    assert unit["Service"]["ExecStart"].split()[-3:] == [
        "/usr/local/lib/lanewise/lanewise-pci.py",
        "--config",
        "/etc/lanewise/pci.conf",
    ]
    assert unit["Unit"]["Before"].split() == ["nvidia-persistenced.service", "docker.service"]
