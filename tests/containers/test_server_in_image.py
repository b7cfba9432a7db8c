"""A server in a container of a real engine: reached on loopback only, paused, and gone however it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.containers.conftest import gone
from tuning.plan import Environment
from tuning.serving import profiled as profiling
from tuning.serving import server_command
from tuning.serving.campaign import start_run
from tuning.serving.flags import Arguments
from tuning.serving.ports import held_ports
from tuning.serving.profile import parse_profile
from tuning.serving.records import ServerStart
from tuning.serving.request import ServingRequest, make_plan
from tuning.serving.runfile import read_serving_run
from tuning.serving.server import Server, _answers
from tuning.serving.server_ended import ServerEnded
from tuning.serving.spec import ServerSpec
from tuning.trial import Status

ROOT = Path(__file__).resolve().parents[2]
LABEL = "lanewise.run"
DOCKERFILE = "FROM {base}\nADD site.tar /site\nENV PYTHONPATH=/site\n"
LAUNCHER = "import runpy\nrunpy.run_path('/site/fake_sglang.py', run_name='__main__')\n"
PYTHON = "/usr/bin/python3"


def site() -> bytes:
    """The fake SGLang as a package; it listens on every address of its container, as --host says."""
    fakes = ROOT / "tests/unit/serving"
    fake = (
        (fakes / "fake_sglang.py").read_text().replace('super().__init__(("127.0.0.1"', 'super().__init__(("0.0.0.0"')
    )
    files = {"fake_sglang.py": fake, "sglang/__init__.py": "", "sglang/launch_server.py": LAUNCHER}
    files["sglang-0.5.23.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n"
    files |= {path.name: path.read_text() for path in fakes.glob("fake_sglang_*.py")}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o444
            archive.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient, python_base: str) -> Iterator[str]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as context:
        for name, data in (("Dockerfile", DOCKERFILE.format(base=python_base).encode()), ("site.tar", site())):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            context.addfile(entry, io.BytesIO(data))
    stream.seek(0)
    made, _ = engine.images.build(fileobj=stream, custom_context=True, rm=True, forcerm=True)
    yield str(made.id)
    engine.images.remove(made.id, force=True)


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without GPUs could start no server."""
    real = server_command.in_container
    monkeypatch.setattr(server_command, "in_container", lambda *a, **k: real(*a, **{**k, "gpus": False}))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which holds nothing else."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def empty(folder: Path, seconds: float = 20) -> bool:
    """Whether nothing is in it, or will be in a moment."""
    deadline = time.monotonic() + seconds
    while any(folder.iterdir()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def start(image: str, folder: Path, *, port: int = 0, fake: str = "{}", shares: bool = False) -> tuple[Server, int]:
    (folder / "model").mkdir(exist_ok=True)
    environment = Environment(name="x", python=PYTHON, image=image, variables={"FAKE_SGLANG": fake})
    with held_ports(keep=False) as ports:
        port = port or ports.http
        argv = ("--model-path", str(folder / "model"), "--port", str(port), "--nccl-port", str(ports.nccl))
        arguments = Arguments(argv=argv, variables={}, notes=())
        return Server.start(
            environment, arguments, folder=folder, port=port, timeout=60, doing=lambda _line: None, shares=shares
        ), port  # fmt: skip


def test_it_answers_on_loopback_is_paused_and_gone_when_it_is_stopped(
    engine: docker.DockerClient, image: str, tmp_path: Path
) -> None:
    server, port = start(image, tmp_path, fake='{"children": 2}')
    with server:
        server.wait_ready(60)
        assert len(server._tree.pids()) >= 3
        listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout
        assert {line.split()[3] for line in listening.splitlines() if f":{port} " in line} == {f"127.0.0.1:{port}"}
        server.freeze()
        assert not _answers(port)
        server.thaw()
        assert _answers(port)
        server.freeze()
    assert gone(engine, LABEL)


def test_one_that_dies_says_why(engine: docker.DockerClient, image: str, tmp_path: Path) -> None:
    server, _ = start(image, tmp_path, fake='{"dies": "torch.OutOfMemoryError: CUDA out of memory."}')
    with server, pytest.raises(ServerEnded) as caught:
        server.wait_ready(60)
    assert caught.value.status is Status.LAUNCH_FAILED
    assert "out of memory" in caught.value.reason
    assert gone(engine, LABEL)


def test_a_port_that_is_taken_is_told_so(engine: docker.DockerClient, image: str, tmp_path: Path) -> None:
    with held_ports() as ports, subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(ports.http)], stderr=subprocess.DEVNULL
    ) as other:  # fmt: skip
        while not _listens(ports.http):
            assert other.poll() is None
        server, _ = start(image, tmp_path, port=ports.http)
        with server, pytest.raises(ServerEnded) as caught:
            server.wait_ready(60)
        other.kill()
    assert caught.value.port_taken
    assert gone(engine, LABEL)


def _listens(port: int) -> bool:
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout
    return f":{port} " in listening


def test_a_harness_that_is_killed_leaves_no_container_and_no_folder(
    engine: docker.DockerClient, image: str, tmp_path: Path, scratch: Path
) -> None:
    if not (child := os.fork()):
        try:
            server, _ = start(image, tmp_path, shares=True)
            server.wait_ready(60)
            (tmp_path / "seen").write_text(str(stat.S_IMODE(server.shared.stat().st_mode)))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert "ready to roll" in (tmp_path / "server.log").read_text()
    assert int((tmp_path / "seen").read_text()) == 0o777
    assert gone(engine, LABEL)
    assert empty(scratch)


def profiled(image: str, folder: Path, **fake: Any) -> ServerStart:
    """The start of a run with --profile, as its run file has it."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    options = {"compute_ms": 2.0, "calls": 6, **fake}
    environment = Environment(name="x", python=PYTHON, image=image, variables={"FAKE_SGLANG": json.dumps(options)})
    request = ServingRequest(
        environments=(environment,),
        server=ServerSpec(model=str(folder / "model"), dummy_weights=True),
        requests=1,
        output_tokens=32,
        starts=1,
        passes=1,
        timeout=60,
    )
    path = folder / "r.jsonl"
    start_run(*make_plan(request), path, lambda step: None, command=["test"], profile=True)
    (found,) = read_serving_run(path).starts.values()
    assert found.status is Status.OK, found.reason
    return found


def test_the_run_file_has_the_profile_that_the_server_wrote_from_inside(
    engine: docker.DockerClient, image: str, tmp_path: Path, scratch: Path
) -> None:
    found = profiled(image, tmp_path)
    profile = parse_profile(found.profile)
    assert profile, found.findings
    assert (profile.concurrency, profile.allreduces) == (1, 6)
    assert gone(engine, LABEL)
    assert empty(scratch)
    assert {path.name for path in (tmp_path / "r.logs").glob("*/*")} == {"server.log"}


def test_what_a_hostile_server_writes_costs_the_profile_and_nothing_else(
    engine: docker.DockerClient, image: str, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_MOST_SECONDS", 3.0)
    found = profiled(image, tmp_path, litter=True)
    assert not found.profile
    assert any("cannot read the profile" in finding for finding in found.findings)
    assert not [finding for finding in found.findings if "could not be removed" in finding]
    assert gone(engine, LABEL)
    assert empty(scratch)
    assert Path("/etc/hostname").read_text(), "what a link pointed to"
