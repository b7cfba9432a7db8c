"""The supervisor with real processes: whatever happens, nothing of a launch is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

SUPERVISOR = Path(__file__).resolve().parents[2] / "tuning/supervisor.py"
# A child with a session of its own and a grandchild that was orphaned, as Open MPI's ranks and daemons are.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("up", flush=True)
time.sleep(600 if sys.argv[2] == "stay" else 0.2)
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def mark() -> str:
    return f"lanewise-test-{uuid.uuid4().hex}"


@pytest.fixture
def scratch(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


def start(mark: str, scratch: list[Path], how: str, code: int = 0) -> subprocess.Popen[bytes]:
    options = [part for folder in scratch for part in ("--scratch", str(folder))]
    return subprocess.Popen(
        [sys.executable, str(SUPERVISOR), *options, "--", sys.executable, "-c", STUBBORN, mark, how, str(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def marked(mark: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def started(pid: int) -> tuple[int, int]:
    """When a process began, in clock ticks since boot; its number where two began in the same tick."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]), pid


def gone(mark: str, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while list(marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not list(marked(mark))


def wait_up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    assert process.stdout.readline() == b"up\n"


def test_a_command_that_ends_takes_its_descendants_along(mark: str, scratch: list[Path]) -> None:
    process = start(mark, scratch, "end", code=5)
    wait_up(process)
    assert all(folder.is_dir() for folder in scratch)
    assert scratch[0].stat().st_mode & 0o777 == 0o700
    assert process.wait(10) == 5
    assert gone(mark, 0)
    assert not any(folder.exists() for folder in scratch)
    process.communicate()


@pytest.mark.parametrize("how", ["lifeline", "SIGTERM"])
def test_asked_to_end_it_kills_everything(mark: str, scratch: list[Path], how: str) -> None:
    process = start(mark, scratch, "stay")
    wait_up(process)
    assert process.stdin
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    process.stdin.close()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert gone(mark, 0)
    assert not any(folder.exists() for folder in scratch)
    process.stdin = None  # closed, or not needed any more
    process.communicate()


def test_ctrl_c_alone_does_not_end_it(mark: str, scratch: list[Path]) -> None:
    process = start(mark, scratch, "stay")
    wait_up(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.communicate()  # closes the lifeline
    assert gone(mark)


def test_the_harness_killed_leaves_nothing(mark: str, scratch: list[Path]) -> None:
    """A harness that starts the supervisor and is then killed by SIGKILL."""
    harness = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)\ntime.sleep(600)"
    )
    options = [part for folder in scratch for part in ("--scratch", str(folder))]
    inner = [sys.executable, str(SUPERVISOR), *options, "--", sys.executable, "-c", STUBBORN, mark, "stay", "0"]
    process = subprocess.Popen([sys.executable, "-c", harness, *inner], stdout=subprocess.PIPE)
    wait_up(process)
    process.kill()
    process.communicate()
    assert gone(mark)
    deadline = time.monotonic() + 20
    while any(folder.exists() for folder in scratch) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(folder.exists() for folder in scratch)


def test_the_supervisor_killed_takes_the_command_along(mark: str, scratch: list[Path]) -> None:
    process = start(mark, scratch, "stay")
    wait_up(process)
    # An orphaned grandchild may be the supervisor's child by now too, with the same command line; the command is older.
    command = min(children(process.pid), key=started)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{command}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{command}").exists()
    for pid in marked(mark):  # its orphans are beyond anybody's reach: only this test knows their mark
        os.kill(pid, signal.SIGKILL)
    assert gone(mark)
    process.communicate()


HOLDER = """
import signal, sys, time
print("up", flush=True)
sys.stdin.read()
if sys.argv[1] == "deaf":
    time.sleep(600)
open(sys.argv[2], "w").write("let go")
"""


@pytest.mark.parametrize("ends", ["lifeline", "SIGTERM"])
def test_a_command_with_a_grace_may_let_go_of_what_it_holds(tmp_path: Path, ends: str) -> None:
    command = [sys.executable, str(SUPERVISOR), "--grace", "20", "--", sys.executable, "-c", HOLDER, ""]
    note = tmp_path / "note"
    process = subprocess.Popen([*command, str(note)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_up(process)
    if ends == "SIGTERM":
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert note.read_text() == "let go"


def test_a_grace_ends(tmp_path: Path) -> None:
    command = [sys.executable, str(SUPERVISOR), "--grace", "0.2", "--", sys.executable, "-c", HOLDER, "deaf", "x"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_up(process)
    began = time.monotonic()
    process.communicate()
    assert time.monotonic() - began < 15
    assert process.returncode == 128 + signal.SIGTERM


def test_a_command_that_is_not_there_is_127_and_leaves_nothing(scratch: list[Path]) -> None:
    command = [sys.executable, str(SUPERVISOR), "--scratch", str(scratch[0]), "--", "/no/such/program"]
    done = subprocess.run(command, input=b"", capture_output=True)
    assert (done.returncode, b"/no/such/program" in done.stderr) == (127, True)
    assert not scratch[0].exists()


def test_a_scratch_folder_that_exists_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(SUPERVISOR), "--scratch", str(tmp_path), "--", "true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(10) == 127
    assert tmp_path.is_dir()


def test_a_signal_becomes_an_exit_code_as_shells_have_it(scratch: list[Path]) -> None:
    code = "import os; os.kill(os.getpid(), 11)"
    command = [sys.executable, str(SUPERVISOR), "--scratch", str(scratch[0]), "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(10) == 139
