"""Images on a real engine, of small wheels that the tests make: what comes out, and what is left after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.bases import BaseImage
from images.build_plan import BuildPlan
from images.engine_work import BUILD_LABEL, PLAN_LABEL, remove_leftovers, run_once
from images.image_build import find_built, make_image, saved_folder
from images.image_checks import Checked
from lanewise.errors import LanewiseError
from tests.unit.makers_images import BOOKWORM, locked, make_plan, make_wheel, make_workers

pytestmark = pytest.mark.timeout(600)  # two builds a test, on a machine that others use, too
ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {"demo/sm90/*": "for compute capability 9.0"}


def quiet(_line: str) -> None:
    pass


class Bench:
    """A plan of its own for each test, and what it needs to be built."""

    def __init__(self, client: Any, base: str, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.base = BaseImage(id=base, digest="", inputs="")
        self.name = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.workers = make_workers(folder / "workers")
        files = {"demo/__init__.py": b"VALUE = 1\n", "demo/sm90/payload.bin": b"x" * 100_000}
        self.wheels = [make_wheel(folder / "wheels", "demo", "1.0", files)]
        self.plans: list[BuildPlan] = []

    def plan(self, **changes: object) -> BuildPlan:
        wheels = tuple(locked(path) for path in self.wheels)
        fields = {"toolchain": self.name, "base": BOOKWORM, "wheels": wheels, "left_out": LEFT_OUT, **changes}
        self.plans.append(make_plan(**fields))
        return self.plans[-1]

    def make(self, plan: BuildPlan, progress=quiet) -> Checked:
        cache = self.folder / "cache"
        return make_image(plan, self.client, self.base, self.wheels, self.workers, cache, progress)

    def leftovers(self) -> list[Any]:
        """Containers and untagged images of the plans."""
        found: list[Any] = []
        for plan in self.plans:
            label = f"{BUILD_LABEL}={plan.key}"
            found += self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
            for filters in ({"label": label}, {"label": f"{PLAN_LABEL}={plan.key}", "dangling": True}):
                found += self.client.images.list(filters=filters)
        return found

    def clean_up(self) -> None:
        for tag in {plan.tag for plan in self.plans}:
            if any(tag in image.tags for image in self.client.images.list(name=tag.partition(":")[0])):
                self.client.images.remove(tag, force=True)
        assert self.leftovers() == []


@pytest.fixture
def bench(engine: Any, python_base: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(engine, python_base, tmp_path)
    yield bench
    bench.clean_up()


def run(bench: Bench, plan: BuildPlan, *command: str) -> str:
    return run_once(bench.client, plan.tag, command).output.strip()


def layers(bench: Bench, tag: str) -> dict[str, set[str]]:
    """Paths in each layer of an image."""
    with tempfile.TemporaryFile() as file:
        for piece in bench.client.images.get(tag).save():
            file.write(piece)
        file.seek(0)
        found = {}
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                if member.name.endswith("layer.tar"):
                    with tarfile.open(fileobj=archive.extractfile(member)) as layer:
                        found[member.name] = set(layer.getnames())
    return found


Built = tuple[Bench, BuildPlan, Checked]


@pytest.fixture(scope="module")
def built(engine: Any, python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """One image, for what can be read off it."""
    bench = Bench(engine, python_base, tmp_path_factory.mktemp("built"))
    plan = bench.plan(environment={"ODD": 'a "b" $HOME \\n'}, remarks=('say "so"',))
    yield bench, plan, bench.make(plan)
    bench.clean_up()


def test_an_image_is_built_checked_and_named(built: Built) -> None:
    bench, plan, checked = built
    assert [(row.pattern, row.files, row.bytes) for row in checked.saved] == [("demo/sm90/*", 1, 100_000)]
    image = bench.client.images.get(plan.tag)
    assert image.id == checked.image
    assert image.labels[PLAN_LABEL] == plan.key
    assert json.loads(image.labels["lanewise.archs"]) == {"flashinfer": "12.0f", "torch": "12.0a"}
    assert BUILD_LABEL not in image.labels
    assert run(bench, plan, "python3", "-c", "import demo, sys; print(demo.VALUE, sys.prefix)") == "1 /opt/lanewise"
    assert run(bench, plan, "python3", "/opt/lanewise/workers/worker.py") == "worker"
    assert run(bench, plan, "id", "-u") == "10001"
    assert run(bench, plan, "printenv", "ODD") == 'a "b" $HOME \\n'
    assert bench.leftovers() == []


def test_no_layer_holds_a_wheel_or_what_was_left_out(built: Built) -> None:
    bench, plan, _ = built
    names = {name for paths in layers(bench, plan.tag).values() for name in paths}
    assert "opt/lanewise/lib/python3.11/site-packages/demo/__init__.py" in names
    assert not [name for name in names if "demo-1.0" in name and name.endswith(".whl")]
    assert not [name for name in names if "sm90" in name or name.startswith("build")]


def test_a_second_build_finds_the_first_and_another_worker_does_not(built: Built) -> None:
    bench, plan, checked = built
    started = time.monotonic()
    assert find_built(plan, bench.client, bench.workers) == checked.image
    assert time.monotonic() - started < 3
    assert find_built(replace(plan, environment={"A": "1"}), bench.client, bench.workers) is None
    assert find_built(plan, bench.client, make_workers(bench.folder / "others", "changed")) is None


def test_a_later_pip_install_cannot_change_what_is_installed(built: Built) -> None:
    bench, plan, _ = built
    ran = run_once(bench.client, plan.tag, ["python3", "-m", "pip", "install", "--no-index", "demo==2.0"])
    assert ran.code
    assert "(constraint) demo==1.0" in ran.output


def test_the_saved_dockerfile_is_the_one_that_was_built(built: Built) -> None:
    bench, plan, checked = built
    folder = saved_folder(plan, bench.folder / "cache")
    recipe = bench.client.images.get(checked.image).labels["lanewise.recipe"]
    assert recipe in (folder / "Dockerfile").read_text()
    assert (folder / "requirements.txt").read_text().startswith("demo==1.0 --hash=sha256:")


def test_a_failed_check_leaves_the_tag_where_it_was(bench: Bench) -> None:
    good = bench.make(bench.plan()).image
    bench.wheels.append(make_wheel(bench.folder / "wheels", "triton", "9", {"triton.py": b"raise ImportError('no')\n"}))
    broken = bench.plan()
    with pytest.raises(LanewiseError, match="triton cannot be imported"):
        bench.make(broken)
    assert bench.client.images.get(broken.tag).id == good
    assert bench.leftovers() == []


@pytest.mark.parametrize("requires", ["torch", "demo>=2"])
def test_what_a_wheel_lacks_is_found(bench: Bench, requires: str) -> None:
    bench.wheels.append(make_wheel(bench.folder / "wheels", "needy", "1", {"needy.py": b""}, requires=requires))
    with pytest.raises(LanewiseError, match=r"needy 1 (requires torch, which is not inst|has requirement demo>=2)"):
        bench.make(bench.plan())
    assert bench.leftovers() == []


def test_what_the_plan_overrides_is_a_remark(bench: Bench) -> None:
    bench.wheels.append(make_wheel(bench.folder / "wheels", "needy", "1", {"needy.py": b""}, requires="demo>=2"))
    checked = bench.make(bench.plan(overrides=("demo",)))
    assert [remark for remark in checked.remarks if "needy 1 has requirement demo>=2" in remark]


def test_a_wheel_with_another_hash_is_not_installed(bench: Bench) -> None:
    plan = bench.plan()
    make_wheel(bench.folder / "wheels", "demo", "1.0", {"demo/__init__.py": b"EVIL = 1\n"})
    with pytest.raises(LanewiseError, match=r"Step 7/20 failed.*Expected sha256"):
        bench.make(plan)
    assert bench.leftovers() == []


@pytest.mark.parametrize("moment", ["Step 5", "Step 9", "importing", "auditing"])
def test_an_interruption_leaves_nothing_and_no_tag(bench: Bench, moment: str) -> None:
    def interrupt(line: str) -> None:
        if line.startswith(moment):
            raise KeyboardInterrupt

    plan = bench.plan()
    with pytest.raises(KeyboardInterrupt):
        bench.make(plan, interrupt)
    assert bench.leftovers() == []
    assert find_built(plan, bench.client, bench.workers) is None


def test_a_step_under_way_is_stopped(bench: Bench) -> None:
    """The engine goes on with a step until nobody listens; this one would take five minutes."""
    slow = b"import time; time.sleep(300)\n"
    bench.wheels.append(make_wheel(bench.folder / "wheels", "slow", "1", {"slow.pth": slow}))
    plan = bench.plan()

    def interrupt(line: str) -> None:
        if line.startswith("Successfully installed"):
            interrupted.append(time.monotonic())
            raise KeyboardInterrupt

    interrupted: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        bench.make(plan, interrupt)
    assert time.monotonic() - interrupted[0] < 30
    assert bench.leftovers() == []


KILLED = """
import sys, docker
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.containers.test_image import Bench
folder, base, name, moment = sys.argv[1:]
bench = Bench(docker.from_env(), base, Path(folder))
bench.name = name
def progress(line):
    if line.startswith(moment):
        print("reached", flush=True)
        sys.stdin.read()
bench.make(bench.plan(), progress)
"""


@pytest.mark.parametrize("moment", ["Step 7", "importing"])
def test_what_a_killed_run_leaves_is_removed_by_the_next(bench: Bench, moment: str) -> None:
    plan = bench.plan()
    command = [
        sys.executable,
        "-c",
        KILLED.format(root=str(ROOT)),
        str(bench.folder),
        bench.base.id,
        bench.name,
        moment,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline() == b"reached\n"
        with pytest.raises(LanewiseError, match="another run"):
            bench.make(plan)
        process.send_signal(signal.SIGKILL)
    assert bench.leftovers() != []
    checked = bench.make(plan)
    assert bench.leftovers() == []
    assert find_built(plan, bench.client, bench.workers) == checked.image


CLEAN = """
import docker
from images.engine_work import remove_leftovers
remove_leftovers(docker.from_env())
"""


def test_leftovers_of_other_plans_go_too_but_not_those_under_way(bench: Bench) -> None:
    labels = {BUILD_LABEL: "somebody-elses", "lanewise.pid": str(os.getpid())}
    alive = bench.client.containers.create(bench.base.id, ["true"], labels=labels)
    dead = bench.client.containers.create(bench.base.id, ["true"], labels=labels | {"lanewise.pid": "4194305"})
    try:
        subprocess.run([sys.executable, "-c", CLEAN], check=True, cwd=ROOT)
        left = {
            c.id for c in bench.client.containers.list(all=True, filters={"label": f"{BUILD_LABEL}=somebody-elses"})
        }
        assert left == {alive.id}
    finally:
        alive.remove(force=True)
    remove_leftovers(bench.client)
    assert dead.id not in {c.id for c in bench.client.containers.list(all=True)}
