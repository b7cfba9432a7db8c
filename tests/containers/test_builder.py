"""Builder containers on a real engine: sources, patches, CUDA from wheels, and every way in which a build can end."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from images.build_plan import BuildPlan, ComponentBuild, Estimate, Profile, Source, SourceKind
from images.builder import Resources, build_components
from images.components import COMPONENTS
from images.engine_work import BUILD_LABEL
from images.lock import LockedWheel
from images.patching import read_patches
from images.sources_fetch import tree_hash
from images.wheelhouse import BuiltComponent, Wheelhouse
from lanewise.errors import LanewiseError, UnreachableError
from tests.containers.conftest import BOOKWORM, CACHE, containers_of, gone

PRELUDE = (COMPONENTS / "prelude.sh").read_text(encoding="utf-8")
PACK = "python3 -m zipfile -c /lanewise/out/small-1.0-py3-none-any.whl *\n"
"""Packs a tree of wheel_tree; no package of the index is needed for that."""
HERE = Resources(cores=2, memory=6 << 30)
NVCC = ("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-runtime==13.0.96",
        "nvidia-cuda-cccl==13.0.85")  # fmt: skip


def component(name: str, source: Source, script: str, **changes: Any) -> ComponentBuild:
    fields: dict[str, Any] = {
        "name": name, "distributions": (name,), "version": "1.0", "source": source,
        "environment": {"LANEWISE_VERSION": "1.0", "LANEWISE_CUDA": "13.0", "LANEWISE_CUDA_FROM": "none"},
        "script": script, "why": "test", "estimate": Estimate(cpu_minutes=1, gb_per_job=1, source="test"),
    }  # fmt: skip
    return ComponentBuild(**{**fields, **changes})


def plan(*components: ComponentBuild) -> BuildPlan:
    return BuildPlan(
        toolchain="test", cuda="13.0", arch={}, profile=Profile.CORE, base=BOOKWORM, wheels=(), components=components
    )


def label(of: BuildPlan) -> str:
    return f"{BUILD_LABEL}={of.key}"


@pytest.fixture
def build(engine: Any, python_base: str, tmp_path: Path) -> Callable[..., dict[str, BuiltComponent]]:
    def run(*components: ComponentBuild, **options: Any) -> dict[str, BuiltComponent]:
        said: list[str] = options.pop("said", [])
        resources = options.pop("resources", HERE)
        wheelhouse, made = Wheelhouse(tmp_path / "wheelhouse"), plan(*components)
        try:
            return build_components(
                made, engine, python_base, wheelhouse, resources, said.append, cache=CACHE, **options
            )
        finally:
            assert not containers_of(engine, label(made))

    return run


def wheel_tree(folder: Path, text: str) -> Source:
    """A source tree that is a wheel once it is zipped."""
    info = folder / "small-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "small.py").write_text(text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "RECORD").write_text(
        "small.py,,\n" + "".join(f"small-1.0.dist-info/{n},,\n" for n in ("METADATA", "WHEEL"))
    )
    return Source(kind=SourceKind.TREE, location=str(folder), identity=tree_hash(folder))


@pytest.fixture
def small(tmp_path: Path) -> Source:
    return wheel_tree(tmp_path / "source", "one = 1\ntwo = 2\n")


def quick(source: Source, name: str = "small", before: str = "", **changes: Any) -> ComponentBuild:
    return component(name, source, PRELUDE + before + PACK, **changes)


def bare(name: str, script: str, source: Source, **changes: Any) -> ComponentBuild:
    """Without the prelude: starts in a second."""
    return component(name, source, "set -e\n" + script, **changes)


def test_a_tree_becomes_a_wheel_with_a_log_and_a_second_time_nothing_is_built(build, small, tmp_path) -> None:
    first = build(quick(small))["small"]
    assert [wheel.path.name for wheel in first.wheels] == ["small-1.0-py3-none-any.whl"]
    assert "building version 1.0 with" in first.log.read_text()
    assert not first.reused
    began = time.monotonic()
    assert build(quick(small))["small"] == replace(first, reused=True)
    assert time.monotonic() - began < 3
    assert sorted(p.name for p in (tmp_path / "wheelhouse").iterdir()) == sorted(
        [first.key, f"{first.key}.lock", f"{first.key}.log"]
    )


def test_the_same_sources_give_the_same_bytes(build, small) -> None:
    a = build(quick(small))["small"]
    b = build(quick(small, before="true\n"))["small"]
    assert a.key != b.key
    assert a.wheels[0].sha256 == b.wheels[0].sha256


PATCH = """\
Why: two is three here
Upstream: none, a test
Versions: ==1.0
---
--- a/small.py
+++ b/small.py
@@ -1,2 +1,2 @@
 one = 1
-two = {old}
+two = 3
"""


def patched(tmp_path: Path, source: Source, old: int) -> tuple[ComponentBuild, Path]:
    folder = tmp_path / "patches"
    (folder / "small").mkdir(parents=True)
    (folder / "small" / "001-three.patch").write_text(PATCH.format(old=old))
    named = {patch.name: patch.sha256 for patch in read_patches("small", folder)}
    return quick(source, patches=named, packages=("patch",)), folder


@pytest.mark.network
def test_a_patch_is_applied(build, small, tmp_path) -> None:
    what, folder = patched(tmp_path, small, old=2)
    built = build(what, patches=folder)["small"]
    text = subprocess.run(["unzip", "-p", built.wheels[0].path, "small.py"], capture_output=True, text=True, check=True)
    assert text.stdout == "one = 1\ntwo = 3\n"


@pytest.mark.network
def test_a_patch_that_does_not_apply_to_the_letter_ends_the_build(build, small, tmp_path) -> None:
    what, folder = patched(tmp_path, small, old=7)
    with pytest.raises(LanewiseError, match=r"001-three\.patch does not apply") as caught:
        build(what, patches=folder)
    assert "anew" in caught.value.todo
    assert not list((tmp_path / "wheelhouse").glob("*/"))


def test_a_patch_that_changed_since_planning_is_refused(build, small, tmp_path) -> None:
    what, folder = patched(tmp_path, small, old=2)
    (folder / "small" / "001-three.patch").write_text(PATCH.format(old=2) + "\n")
    with pytest.raises(LanewiseError, match="is not the one that was planned with"):
        build(what, patches=folder)


def test_a_component_is_built_with_the_wheels_of_those_that_it_needs(build, small, tmp_path) -> None:
    needing = wheel_tree(tmp_path / "other", "")
    proof = 'test "$(cd / && python -c "import small; print(small.two)")" = 2\n'
    built = build(quick(small), quick(needing, "other", before=proof, needs=("small",)))
    assert list(built) == ["small", "other"]


def test_wheels_of_the_lock_that_are_at_hand_are_not_fetched_again(
    engine, python_base, small, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    made = bare("small", f"cd /lanewise/source; {PACK}", small)
    options: dict[str, Any] = {"cache": tmp_path / "cache"}
    wheelhouse = Wheelhouse(tmp_path / "wheelhouse")

    def built(of: BuildPlan) -> dict[str, BuiltComponent]:
        return build_components(of, engine, python_base, wheelhouse, HERE, lambda _line: None, **options)

    wheel = built(plan(made))["small"].wheels[0]
    locked = LockedWheel(name="small", version="1.0", file=wheel.path.name, sha256=wheel.sha256, size=wheel.size)
    needing = replace(plan(quick(small, "needing", requires=("small==1.0",))), wheels=(locked,))
    with pytest.raises(LanewiseError, match=r"No matching distribution found for small==1\.0"):
        built(needing)
    at_hand = tmp_path / "cache" / "wheels" / wheel.sha256 / wheel.path.name
    at_hand.parent.mkdir(parents=True)
    at_hand.hardlink_to(wheel.path)
    assert built(needing)["needing"].wheels


def test_a_failed_build_says_its_last_lines_and_keeps_what_was_finished(build, small, tmp_path) -> None:
    good = bare("small", f"cd /lanewise/source; {PACK}", small)
    bad = bare("bad", "echo first; echo 'nvcc: no such luck' >&2; exit 3", small)
    with pytest.raises(LanewiseError, match="nvcc: no such luck") as caught:
        build(good, bad)
    assert "bad 1.0 failed (exit code 3)" in caught.value.what
    log = next(path for path in (tmp_path / "wheelhouse").glob("*.log") if str(path) in caught.value.todo)
    assert log.read_text() == "first\nnvcc: no such luck\n"
    assert build(good)["small"].reused


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("true", "left no wheel"),
        ("echo 'cc1plus: No space left on device'; exit 1", "ran out of space"),
        ("kill -KILL $$", r"exit code 137"),
        ("test -w /lanewise/source/small.py && exit 4; touch /lanewise/source/x", "Read-only file system"),
        ("touch /lanewise/script/build.sh", "Read-only file system"),
        ("grep -i capeff /proc/self/status; grep -i nonewprivs /proc/self/status; exit 5",
         r"CapEff:\s+0000000000000000(.|\n)*NoNewPrivs:\s+1"),
        ("stat -c %u /proc/self; exit 5", rf"\n\s+{os.getuid()}\n"),
    ],
)  # fmt: skip
def test_what_a_script_may_not_do_or_does_wrong(build, small, script, says) -> None:
    with pytest.raises(LanewiseError, match=says):
        build(bare("bad", script, small))


def test_a_build_that_takes_too_much_memory_says_so(build, small) -> None:
    greedy = bare("greedy", "python3 -c 'b = [bytes([1]) * (64 << 20) for _ in range(64)]'", small)
    with pytest.raises(LanewiseError, match="ran out of memory"):
        build(greedy, resources=Resources(cores=1, memory=(1 << 30) + (256 << 20)))


def test_a_build_that_does_not_end_is_ended(build, small) -> None:
    began = time.monotonic()
    with pytest.raises(LanewiseError, match="did not end within 2 s"):
        build(bare("slow", "sleep 600", small), seconds=2)
    assert time.monotonic() - began < 20


def test_the_job_count_follows_memory_unless_the_user_says(build, small) -> None:
    estimate = Estimate(cpu_minutes=1, gb_per_job=2, source="test")
    ask = bare("ask", "echo jobs $LANEWISE_JOBS; exit 1", small, estimate=estimate)
    with pytest.raises(LanewiseError, match="jobs 1\n"):
        build(ask, resources=Resources(cores=2, memory=6 << 30))
    with pytest.raises(LanewiseError, match="jobs 5\n"):
        build(ask, resources=Resources(cores=2, memory=6 << 30, jobs=5))


@pytest.mark.network
def test_a_package_that_debian_does_not_have_is_an_error_and_leaves_no_image(build, engine, small) -> None:
    before = {image.id for image in engine.images.list(all=True)}
    with pytest.raises(LanewiseError, match="no-such-package-at-all"):
        build(bare("x", "true", small, packages=("no-such-package-at-all",)))
    assert {image.id for image in engine.images.list(all=True)} <= before


def test_folders_that_the_engine_cannot_see_are_an_error(build, small, monkeypatch) -> None:
    monkeypatch.setattr("images.builder.fetch_source", lambda *_: Path("/nonexistent/folder"))
    with pytest.raises(LanewiseError, match="engine's machine"):
        build(bare("x", "true", small))


# An own small CUDA project, from git to an audited wheel.

SETUP = """\
import subprocess
from pathlib import Path
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class Nvcc(build_ext):
    def get_ext_filename(self, name):
        return name + ".so"

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["launch", "nvcc", "-shared", "-Xcompiler", "-fPIC", "-o", target,
                        "-gencode=arch=compute_90,code=sm_90", "-gencode", "arch=compute_120a,code=sm_120a",
                        *ext.sources], check=True)


setup(name="scaler", version="1.0", ext_modules=[Extension("scaler", ["scale.cu"])], cmdclass={"build_ext": Nvcc})
"""
KERNEL = """\
__global__ void scale(float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
extern "C" int run(float *x, float by, int n) {
    scale<<<(n + 255) / 256, 256>>>(x, by, n);
    return cudaGetLastError();
}
"""


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid"]
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def cuda_project(tmp_path: Path) -> Source:
    folder = tmp_path / "scaler"
    folder.mkdir()
    (folder / "setup.py").write_text(SETUP)
    (folder / "scale.cu").write_text(KERNEL)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=one kernel")
    return Source(
        kind=SourceKind.GIT, location=f"file://{folder}", identity=git(folder, "rev-parse", "HEAD"), ref="main"
    )


def scaler(source: Source, only: str) -> ComponentBuild:
    script = "python -m pip wheel --no-deps --no-build-isolation --wheel-dir $out .\n"
    return component(
        "scaler", source, PRELUDE + script, packages=("ccache", "g++", "patch", "python3-dev"),
        requires=(*NVCC, "setuptools==84.2.1", "wheel==0.48.0"),
        environment={"LANEWISE_VERSION": "1.0", "LANEWISE_CUDA": "13.0", "LANEWISE_CUDA_FROM": "wheels",
                     "LANEWISE_ONLY": only},
    )  # fmt: skip


@pytest.mark.network
def test_a_cuda_project_from_git_is_rebuilt_for_sm120_alone(build, cuda_project) -> None:
    stock = build(scaler(cuda_project, only="_"))["scaler"]
    assert set(stock.after["code"]) == {"sm_120a", "sm_90"}
    rebuilt = build(scaler(cuda_project, only="120"), stock={"scaler": stock.wheels[0].path})["scaler"]
    assert rebuilt.before == stock.after
    assert set(rebuilt.after["code"]) == {"sm_120a"}
    assert rebuilt.after["device_bytes"] < stock.after["device_bytes"]


@pytest.mark.network
def test_a_build_without_code_for_sm120_is_not_kept(build, cuda_project, tmp_path) -> None:
    with pytest.raises(LanewiseError, match=r"no code for SM120 in scaler\.so"):
        build(scaler(cuda_project, only="90"))
    assert not list((tmp_path / "wheelhouse").glob("*/"))


@pytest.mark.network
def test_another_cuda_than_the_toolchains_is_refused_before_anything_is_compiled(build, cuda_project) -> None:
    what = scaler(cuda_project, only="120")
    with pytest.raises(LanewiseError, match=r"this nvcc is not of CUDA 13\.1"):
        build(replace(what, environment={**what.environment, "LANEWISE_CUDA": "13.1"}))


# What kills can do.

DRIVER = """\
import sys
from pathlib import Path
import docker
from images.builder import Resources, build_components
from images.wheelhouse import Wheelhouse
from tests.containers.test_builder import killed_plan
base, wheelhouse, cache, source = sys.argv[1:]
try:
    build_components(killed_plan(Path(source)), docker.from_env(), base, Wheelhouse(Path(wheelhouse)),
                     Resources(cores=1, memory=2 << 30), lambda _line: None, cache=Path(cache))
except KeyboardInterrupt:
    sys.exit(130)
"""
STEP = f"sleep 0.7; cd /lanewise/source; {PACK}sleep 0.3\n"


def killed_plan(folder: Path) -> BuildPlan:
    source = Source(kind=SourceKind.TREE, location=str(folder), identity=tree_hash(folder))
    step = "sleep 600\n" if (folder / "endless").exists() else STEP
    return plan(*(bare(f"part{number}", f"# {number} of {folder}\n{step}", source) for number in range(3)))


class Killed:
    """Runs the plan in a process of its own, and ends that in a given way after a given time."""

    def __init__(self, engine: Any, base: str, folder: Path, source: Path) -> None:
        self.engine, self.plan, self.wheelhouse = engine, killed_plan(source), folder / "wheelhouse"
        self.command = [sys.executable, "-c", DRIVER, base, str(self.wheelhouse), str(folder / "cache"), str(source)]
        self.label = label(self.plan)
        self.finished: dict[str, int] = {}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])

    def check_nothing_redone(self) -> None:
        for record in self.wheelhouse.glob("*/built.json"):
            changed = record.stat().st_mtime_ns
            assert self.finished.setdefault(record.parent.name, changed) == changed

    def running(self) -> list[Any]:
        return [c for c in containers_of(self.engine, self.label) if c.status == "running"]


@pytest.fixture
def killed(engine: Any, python_base: str, tmp_path: Path) -> Killed:
    source = tmp_path / "source"
    wheel_tree(source, f"unique = {str(tmp_path)!r}")
    return Killed(engine, python_base, tmp_path, source)


@pytest.fixture
def endless(engine: Any, python_base: str, tmp_path: Path) -> Killed:
    source = tmp_path / "source"
    wheel_tree(source, f"unique = {str(tmp_path)!r}")
    (source / "endless").touch()
    return Killed(engine, python_base, tmp_path, source)


def until(what: Callable[[], object], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def end(process: subprocess.Popen[str], way: signal.Signals) -> str:
    """Send a signal, and Ctrl-C again as a person would: Python drops the exception of one that comes in a finalizer.

    Returns what it said.
    """
    for _ in range(5):
        process.send_signal(way)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=15)[1]
    raise AssertionError(f"it does not end by {way.name}")


def finish(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, "docker kill"])
def test_whatever_ends_a_build_ends_its_container(endless: Killed, way) -> None:
    process = endless.start()
    assert until(endless.running)
    if way == "docker kill":
        endless.running()[0].kill()
        said = process.communicate(timeout=30)[1]
    else:
        said = end(process, way)
    assert process.returncode != 0
    if way == "docker kill":
        assert "exit code 137" in said
    assert until(lambda: not endless.running(), seconds=5)
    if way in (signal.SIGKILL, signal.SIGTERM):  # what is left of the container is removed by the next run
        process = endless.start()
        assert until(endless.running)
        end(process, signal.SIGINT)
    assert not containers_of(endless.engine, endless.label)


def test_a_build_killed_at_ten_moments_goes_on_without_redoing_what_is_finished(killed: Killed) -> None:
    chance = random.Random(5)
    ways = [signal.SIGKILL, signal.SIGINT, "docker kill"]
    for moment in range(10):
        process = killed.start()
        time.sleep(0.4 + 0.25 * moment + chance.random() / 4)
        way = ways[moment % 3]
        if way == "docker kill":
            for container in killed.running():
                with suppress(docker.errors.APIError):  # it has just ended by itself
                    container.kill()
            process.communicate(timeout=60)
        else:
            end(process, way)
        assert until(lambda: not killed.running(), seconds=5)
        killed.check_nothing_redone()
    process = killed.start()
    finish(process)
    killed.check_nothing_redone()
    assert len(killed.finished) == 3
    left = [path.name for path in killed.wheelhouse.iterdir() if path.name.startswith(".")]
    assert not left
    assert gone(killed.engine, killed.label)


def test_two_runs_at_once_build_each_component_once(killed: Killed) -> None:
    first, second = killed.start(), killed.start()
    finish(first)
    finish(second)
    assert len(list(killed.wheelhouse.glob("*/built.json"))) == 3
    assert gone(killed.engine, killed.label)


class Relay:
    """Stands before the engine and can be cut off, as an engine that dies is: the real one serves other tests, too."""

    def __init__(self, path: Path, engine: Path) -> None:
        self.engine, self.open = str(engine), True
        self.sockets: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while self.open:
                near = self.listener.accept()[0]
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.engine)
                self.sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()

    @staticmethod
    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        self.open = False
        for one in (self.listener, *self.sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the SDK leaks a socket where it cannot connect
def test_an_engine_that_dies_under_a_build_is_told_and_the_next_run_goes_on(
    engine, python_base, small, tmp_path, monkeypatch
) -> None:
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        pytest.skip("the engine does not listen on a socket here")
    relay = Relay(tmp_path / "relay.sock", Path(host.removeprefix("unix://")))
    client = docker.DockerClient(base_url=f"unix://{tmp_path}/relay.sock", timeout=30)
    made = plan(
        bare("small", f"cd /lanewise/source; {PACK}", small), bare("long", "echo under way; sleep 600\n", small)
    )
    wheelhouse = Wheelhouse(tmp_path / "wheelhouse")

    def told(line: str) -> None:
        if "under way" in line:
            relay.cut()

    with pytest.raises(UnreachableError, match="stopped answering"):
        build_components(made, client, python_base, wheelhouse, HERE, told, cache=CACHE)
    client.close()
    assert until(lambda: not [c for c in containers_of(engine, label(made)) if c.status == "running"], seconds=10)
    assert wheelhouse.find(made.component_key("small"))
    with pytest.raises(LanewiseError, match="did not end"):
        build_components(made, engine, python_base, wheelhouse, HERE, lambda _line: None, cache=CACHE, seconds=1)
    assert not containers_of(engine, label(made))
    gc.collect()
