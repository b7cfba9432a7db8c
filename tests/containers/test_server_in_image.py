"""A server in a container of a real engine: reached on loopback only, paused, and gone however it ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.containers.conftest import gone
from tuning.plan import Environment
from tuning.serving import server_command
from tuning.serving.flags import Arguments
from tuning.serving.ports import held_ports
from tuning.serving.server import Server, _answers
from tuning.serving.server_ended import ServerEnded
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


def start(image: str, folder: Path, *, port: int = 0, fake: str = "{}") -> tuple[Server, int]:
    (folder / "model").mkdir(exist_ok=True)
    environment = Environment(name="x", python=PYTHON, image=image, variables={"FAKE_SGLANG": fake})
    with held_ports(keep=False) as ports:
        port = port or ports.http
        argv = ("--model-path", str(folder / "model"), "--port", str(port), "--nccl-port", str(ports.nccl))
        arguments = Arguments(argv=argv, variables={}, notes=())
        return Server.start(
            environment, arguments, folder=folder, port=port, timeout=60, doing=lambda _line: None
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


def test_a_harness_that_is_killed_leaves_no_container(engine: docker.DockerClient, image: str, tmp_path: Path) -> None:
    if not (child := os.fork()):
        try:
            server, _ = start(image, tmp_path)
            server.wait_ready(60)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert "ready to roll" in (tmp_path / "server.log").read_text()
    assert gone(engine, LABEL)
