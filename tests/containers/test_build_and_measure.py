"""The user's way: both toolchains' core images, a second build that does nothing, the benchmark in both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAINS = ("cu128", "cu130")

pytestmark = [pytest.mark.containers, pytest.mark.network, pytest.mark.timeout(1500)]


def inv(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1400, env=os.environ.copy())


def build(toolchain: str) -> dict:
    options = ("--toolchain", toolchain, "--profile", "core", "--base", "debian-bookworm", "--json")
    done = inv("build-image", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def images(engine) -> dict[str, dict]:
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")
    return {toolchain: build(toolchain) for toolchain in TOOLCHAINS}


@pytest.mark.parametrize("toolchain", TOOLCHAINS)
def test_an_image_is_built_audited_and_named(images: dict[str, dict], engine, toolchain: str) -> None:
    image = engine.images.get(f"lanewise/{toolchain}:core")
    assert image.id == images[toolchain]["image"]
    assert image.labels["lanewise.toolchain"] == toolchain
    assert image.labels["lanewise.plan"] == images[toolchain]["plan"]


def test_a_second_build_does_nothing(images: dict[str, dict]) -> None:
    again = build("cu130")
    assert (again["built"], again["image"]) == (False, images["cu130"]["image"])


def test_the_benchmark_runs_in_both_and_compares_them(images: dict[str, dict], tmp_path: Path) -> None:
    run = tmp_path / "run.jsonl"
    options = ("--ranks", "2", "--launches", "2", "--rounds", "4", "--candidates", "default,ring", "--output", str(run))
    done = inv("bench-allreduce", "--engine", "mpi", "--toolchain", "cu128", "--toolchain", "cu130", *options, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in run.read_text().splitlines()]
    statuses = {line["status"] for line in lines if "status" in line and "samples" in line}
    assert statuses == {"ok"}
    for toolchain in TOOLCHAINS:
        assert images[toolchain]["image"] in run.read_text(), "the run file names the image that was measured"
