"""A server's life with real processes, the fake SGLang: ready, frozen, ended, and whatever goes wrong."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanewise.errors import InputError
from tests.unit.makers import litter
from tests.unit.serving.fake_sglang import install
from tuning.plan import Environment
from tuning.serving import server as server_module
from tuning.serving.flags import Arguments
from tuning.serving.gpus import Holder
from tuning.serving.ports import Ports, held_ports
from tuning.serving.server import Server
from tuning.serving.server_ended import ServerEnded
from tuning.supervisor import descendants
from tuning.trial import Status

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the command line of every process of a test; none of them may be left."""
    word = f"lanewise-test-{uuid.uuid4().hex}"
    yield word
    assert not marked(word)


def marked(word: str) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


class Starter:
    """Starts fakes that carry the mark."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark, self.said = folder, mark, list[str]()

    def environment(self, **fake: Any) -> Environment:
        variables = {**install(self.folder / "site"), "FAKE_SGLANG": json.dumps(fake), "HF_TOKEN": "hf_" + "x" * 30}
        return Environment(name="here", python=sys.executable, variables=variables)

    def arguments(self, ports: Ports) -> Arguments:
        argv = ("--model-path", self.mark, "--port", str(ports.http), "--nccl-port", str(ports.nccl))
        return Arguments(argv=argv, variables={"OWN": "1"}, notes=())

    def __call__(self, *, timeout: float = 10, deadline: float = 20, port: int = 0, **fake: Any) -> Server:
        with held_ports(port) as ports:
            server = Server.start(
                self.environment(**fake), self.arguments(ports), folder=self.folder / "run", port=ports.http,
                timeout=timeout, doing=self.said.append,
            )  # fmt: skip
            server.wait_ready(deadline)
        return server


@pytest.fixture
def start(tmp_path: Path, mark: str) -> Starter:
    return Starter(tmp_path, mark)


def test_it_answers_and_nothing_of_it_lives_after_the_block(start: Starter, mark: str) -> None:
    with start(children=2) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.ready_seconds
        assert server.alive()
        assert len(marked(mark)) >= 1
        assert any("ready to roll" in line for line in server.lines())
        tree = descendants(server._supervisor.pid)
        assert len(tree) == 3, "the server and its two children"
    assert not server.alive()
    assert not [pid for pid in tree if Path(f"/proc/{pid}").exists()]
    assert server.left_behind == ()
    assert not server.shared.parent.exists()
    kept = (start.folder / "run/server.log").read_text().splitlines()
    assert kept == server.lines(), "lines stay when it is gone"
    assert server.command[1:3] == ("-m", "sglang.launch_server")
    assert (server.variables["OWN"], server.variables["HF_TOKEN"]) == ("1", "<redacted>")
    server.stop()  # again: nothing happens


def test_folders_in_one_another_are_removed_however_many(start: Starter) -> None:
    with start() as server:
        litter(server.shared)
        scratch = server.shared.parent
    assert not scratch.exists()
    assert server.left_behind == ()


def test_a_folder_that_cannot_be_removed_is_told(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as server:
        scratch = server.shared.parent
        server._supervisor.kill()  # which would remove it
        monkeypatch.setattr(server_module, "remove", lambda _folder: None)
    assert server.left_behind == (f"the folder {scratch} could not be removed",)
    monkeypatch.undo()
    subprocess.run(["rm", "-rf", "--", scratch], check=True)


def test_one_that_ignores_sigterm_is_killed(start: Starter) -> None:
    with start(stubborn=True, children=1) as server:
        tree = descendants(server._supervisor.pid)
    assert not [pid for pid in tree if Path(f"/proc/{pid}").exists()]


def test_a_supervisor_that_is_killed_leaves_no_process_of_the_tree(start: Starter) -> None:
    with start(children=2, stubborn=True) as server:
        tree = descendants(server._supervisor.pid)
        assert len(tree) == 3
        server._supervisor.kill()
        why = server.failure()
    assert why.status is Status.CRASHED
    assert {state(pid) for pid in tree if Path(f"/proc/{pid}").exists()} <= {"Z"}, "init may not have reaped it yet"
    assert server.left_behind == ()


def test_a_frozen_tree_does_nothing_until_it_is_thawed_and_can_be_stopped_frozen(start: Starter) -> None:
    with start(children=1) as server:
        tree = descendants(server._supervisor.pid)
        server.freeze()
        assert {state(pid) for pid in tree} == {"T"}
        server.thaw()
        deadline = time.monotonic() + 5
        while "T" in {state(pid) for pid in tree} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "T" not in {state(pid) for pid in tree}
        assert server_module._answers(int(server.url.rpartition(":")[2]))
        server.freeze()
    assert not [pid for pid in tree if Path(f"/proc/{pid}").exists()]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_it_was_ready_when_it_said_so_and_not_when_it_was_looked_at(start: Starter) -> None:
    with held_ports() as ports, Server.start(
        start.environment(), start.arguments(ports), folder=start.folder, port=ports.http, timeout=10,
        doing=start.said.append,
    ) as server:  # fmt: skip
        wait_until(lambda: any("ready to roll" in line for line in server.lines()))
        said = time.monotonic() - server._begun
        time.sleep(0.3)
        server.wait_ready(5)
        assert server.ready_seconds
        assert server.ready_seconds < said + 0.1


def test_one_that_dies_while_it_loads_says_why(start: Starter, mark: str) -> None:
    with pytest.raises(ServerEnded) as caught:
        start(dies="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", exit_code=1, children=1)
    assert caught.value.status is Status.LAUNCH_FAILED
    assert "memory" in caught.value.reason
    assert any("CUDA out of memory" in line for line in caught.value.output)
    assert not marked(mark)


def test_one_that_hangs_in_graph_capture_is_given_up_by_the_watchdog(start: Starter, mark: str) -> None:
    began = time.monotonic()
    with pytest.raises(ServerEnded) as caught:
        start(hang="capture", timeout=0.7, deadline=60, children=1)
    assert time.monotonic() - began < 20
    assert caught.value.status is Status.TIMED_OUT
    assert caught.value.reason
    assert not marked(mark)


def test_a_total_deadline_holds_whatever_it_prints(start: Starter) -> None:
    with pytest.raises(ServerEnded) as caught:
        start(hang="start", timeout=30, deadline=0.5)
    assert caught.value.status is Status.TIMED_OUT


def test_one_that_dies_when_it_serves_is_no_longer_alive_and_says_why(start: Starter) -> None:
    with start() as server:
        (main,) = [
            pid for pid in descendants(server._supervisor.pid) if "sglang" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        os.kill(main, signal.SIGKILL)
        why = server.failure()
        assert not server.alive()
    assert why.status is Status.CRASHED
    assert why.reason


def test_one_that_lives_and_answers_nothing_is_stopped_as_silent(start: Starter, mark: str) -> None:
    with start() as server:
        why = server.failure(silent=True, reason="no token for 30 s")
        assert not marked(mark)
    assert why.status is Status.TIMED_OUT


def test_a_port_that_is_taken_is_refused_with_what_to_do(start: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(InputError, match="taken") as caught:
            start(port=other.getsockname()[1])
        assert "ss -ltnp" in caught.value.todo


def test_a_port_that_is_taken_in_between_is_told_so_that_others_can_be_tried(start: Starter) -> None:
    with held_ports() as ports, socket.create_server(("127.0.0.1", ports.nccl)):
        server = Server.start(
            start.environment(), start.arguments(ports), folder=start.folder, port=ports.http, timeout=10,
            doing=start.said.append,
        )  # fmt: skip
        with pytest.raises(ServerEnded) as caught:
            server.wait_ready(20)
    assert caught.value.port_taken


def test_held_ports_are_given_to_nobody_but_who_shares_them() -> None:
    with held_ports() as ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports.http))
        with socket.create_server(("127.0.0.1", ports.http)):  # sets SO_REUSEADDR, as servers do
            pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.http))


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="no port"), held_ports(port):
        pass


def test_a_model_or_an_interpreter_that_is_missing_is_said_before_anything_starts(start: Starter) -> None:
    missing = Arguments(argv=("--model-path", "/no/such/model"), variables={}, notes=())
    options: dict[str, Any] = {"folder": start.folder, "port": 1, "timeout": 1, "doing": start.said.append}
    with pytest.raises(InputError, match="/no/such/model"):
        Server.start(start.environment(), missing, **options)
    with pytest.raises(InputError, match="no Python at /no/python"):
        Server.start(
            replace(start.environment(), python="/no/python"), start.arguments(Ports(http=1, nccl=2)), **options
        )


def test_secrets_reach_neither_the_log_nor_the_lines(start: Starter) -> None:
    with start() as server:
        server._log.feed(b"token is hf_" + b"x" * 30 + b"\n")
    assert "hf_x" not in (start.folder / "run/server.log").read_text()
    assert not any("hf_x" in line for line in server.lines())


def test_a_log_that_cannot_be_written_any_more_ends_it_with_the_cause(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of file size stands for a full disk: both refuse the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        with pytest.raises(ServerEnded) as caught:
            start(flood_at_start=1000, start_seconds=0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.status is Status.LAUNCH_FAILED
    assert "server.log" in caught.value.reason
    assert caught.value.output, "what it printed is kept in memory"


def test_gpu_memory_that_stays_held_is_named(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []

    def fake_holders(pids: set[int], *, seconds: float) -> tuple[Holder, ...]:
        asked.append(pids)
        return (Holder(pid=7, name="python", mib="512", gpu="GPU-1"),)

    monkeypatch.setattr(server_module, "holders_after", fake_holders)
    with start(children=1) as server:
        tree = set(descendants(server._supervisor.pid))
    assert asked[0] >= tree
    assert server.left_behind == ("process 7 (python) holds 512 MiB of GPU-1",)


HARNESS = """
import sys, time
from pathlib import Path
from tests.unit.serving.test_server import Starter
server = Starter(Path(sys.argv[1]), sys.argv[2])(children=2, stubborn=True)
print("ready", flush=True)
try:
    time.sleep(60)
finally:
    server.stop()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_harness_that_ends_leaves_no_server(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path), mark],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert harness.stdout
    assert harness.stdout.readline() == b"ready\n"
    tree = descendants(harness.pid)
    assert len(tree) == 4, "the supervisor, the server and its two children"
    harness.send_signal(number)
    harness.communicate(timeout=30)
    wait_until(lambda: not [pid for pid in tree if Path(f"/proc/{pid}").exists()])
    wait_until(lambda: not marked(mark))


def wait_until(what: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)
