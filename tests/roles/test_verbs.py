"""The verbs as a person calls them: table, exit code, and nothing left behind by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.conftest import ROOT, Farm

PROGRAM = """
import sys
from invoke.collection import Collection
from invoke.program import Program
from playbooks.verbs import provision, revert
Program(namespace=Collection(provision, revert), version="1").run(["inv", *sys.argv[1:]])
"""


def verb(*words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *words]


@pytest.fixture(autouse=True)
def no_new_results() -> Iterator[None]:
    """Takes away the results that a test's verb wrote into this clone."""
    folders = [ROOT / "runs/provision", ROOT / "runs/revert"]
    before = {path for folder in folders if folder.exists() for path in folder.iterdir()}
    yield
    for folder in folders:
        for path in folder.iterdir() if folder.exists() else ():
            if path not in before:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(verb(*words), cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_check_shows_a_table_and_the_reasons_and_ends_with_the_code_for_no(farm: Farm) -> None:
    farm.add("gpu-01", node_settings={"disable": ["persistence"]})
    done = call("provision", "--check", "--inventory", str(farm.inventory()))
    assert done.returncode == 3, done.stderr
    assert "gpu-01  would change" in done.stdout
    assert "gpu-01: would set acs_redirect: on at 2 ports -> clear" in done.stdout
    assert "gpu-01: pcie" in done.stderr  # progress
    assert done.stderr.count("gpu-01: preflight\n") == 1
    assert "Traceback" not in done.stderr


def test_json_is_the_results(farm: Farm) -> None:
    done = call("revert", "--check", "--json", "--inventory", str(farm.inventory()), "--limit", "gpu-01")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [result["status"] for result in document["results"]] == ["unchanged"]
    assert Path(document["log"]).name == "ansible.log"


def test_no_node_is_an_error_that_says_why(farm: Farm) -> None:
    done = call("provision", "--inventory", str(farm.inventory()), "--limit", "nobody")
    assert done.returncode == 2
    assert "no node is named by" in done.stderr
    assert call("provision", "--inventory", "/no/such/file").returncode == 2


def test_interrupted_it_leaves_no_process_and_the_next_run_goes_on(farm: Farm) -> None:
    root = farm.folder / "gpu-01"
    words = verb("provision", "--inventory", str(farm.inventory()))
    run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lease = root / "var/lib/lanewise/lease.json"
    deadline = time.monotonic() + 100
    while not lease.exists():
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.05)
    child = json.loads(lease.read_text())["pid"]
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 130, told
    assert "Traceback" not in told
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    done = call("provision", "--inventory", str(farm.inventory()))
    assert done.returncode == 0, done.stderr
    assert "pending reboot" in done.stdout


def test_a_reboot_ok_that_is_neither_yes_nor_no_is_refused_whatever_the_option_says(farm: Farm) -> None:
    farm.add("gpu-02", reboot_ok="maybe")
    done = call("provision", "--check", "--inventory", str(farm.inventory()), "--limit", "gpu-02")
    assert done.returncode == 2, done.stderr
    assert 'gpu-02: refused: {"reboot_ok": "maybe"' in done.stdout
