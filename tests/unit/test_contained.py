"""Launches in containers, with a fake engine: what is asked of it, and what becomes of its answers."""

from __future__ import annotations

import fcntl
import io
import json
import os
import platform
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, ImageNotFound, NotFound
from requests.exceptions import ConnectionError as EngineGone

from lanewise.errors import InputError, UnreachableError
from tests.unit.makers import fake_candidate, fake_plan
from tuning import contained, container_images, described, engines, launch
from tuning.container_images import SERVERS, find_image, toolchain_image, toolchain_images
from tuning.containers import in_container, sweep_abandoned
from tuning.described import describe_environment, without_tags
from tuning.plan import Environment
from tuning.printed import Printed

ID = "sha256:" + "1" * 64
IN_IMAGE = Environment(name="x", python="/opt/lanewise/bin/python3", variables={"A": "1"}, image=ID)


@dataclass
class FakeContainer:
    """A container of the fake engine; notes what is done to it."""

    id: str = "c1"
    labels: dict[str, str] = field(default_factory=dict)
    removed: int = 0
    files: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    takes_files: bool = True
    start_error: Exception | None = None

    def put_archive(self, path: str, data: bytes) -> bool:
        assert path == "/"
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            self.files = {member.name: member for member in archive}
        return self.takes_files

    def attach_socket(self, params: dict[str, int]) -> object:
        return object()

    def start(self) -> None:
        if self.start_error:
            raise self.start_error

    def remove(self, *, force: bool) -> None:
        assert force
        self.removed += 1
        if self.removed > 1:
            raise NotFound("gone")


@dataclass
class FakeImage:
    id: str = ID
    tags: list[str] = field(default_factory=lambda: ["lanewise/cu130:core"])
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""

    @property
    def attrs(self) -> dict[str, Any]:
        return {"Config": {"User": self.user}}


class FakeEngine:
    """Stands in for docker.DockerClient."""

    def __init__(self, images: dict[str, FakeImage], containers: list[FakeContainer] | None = None) -> None:
        self.known, self.made = images, containers or []
        self.created: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.images = self.containers = self.api = self
        self.base_url, self.api_version, self.timeout = "http+docker://fake", "1.41", 60

    def get(self, reference: str) -> FakeImage:
        if reference not in self.known:
            raise ImageNotFound(f"no such image: {reference}", response=FakeAnswer(404))  # type: ignore[arg-type]
        return self.known[reference]

    def create(self, image: str, **options: Any) -> FakeContainer:
        self.created = {"image": image, **options}
        return self.made[0]

    def list(self, **options: Any) -> list[FakeContainer]:
        self.asked = options
        return self.made

    def post(self, where: str, **options: Any) -> FakeAnswer:
        self.asked = {"where": where, **options}
        return FakeAnswer(200)


@dataclass
class FakeAnswer:
    status_code: int
    text: str = ""
    reason: str = ""
    url: str = ""

    def json(self) -> dict[str, int]:
        return {"StatusCode": 7}

    def raise_for_status(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine({ID: FakeImage()}, [FakeContainer()])

    @contextmanager
    def fake_connected(purpose: str) -> Iterator[FakeEngine]:
        yield fake

    monkeypatch.setattr(container_images, "connected", fake_connected)
    monkeypatch.setattr(docker, "from_env", lambda: fake)
    return fake


def contain(*more: str) -> int:
    return contained.main(["--image", ID, "--python", "/py", *more, "--", "mpirun", "-np", "2"])


def test_the_container_is_closed_off_disposable_and_never_root(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: True)
    monkeypatch.setenv("TMPDIR", "/tmp/lanewise-abc")
    assert contain("--set", "NCCL_ALGO=ring", "--file", str(Path(__file__))) == 7, "the container's own exit code"
    made = engine.created
    assert made["entrypoint"] == ["/py", "-I", "-S", "/lanewise/supervisor.py", "--"]
    assert made["command"] == ["mpirun", "-np", "2"]
    assert (made["network_mode"], made["auto_remove"], made["stdin_open"]) == ("none", True, True)
    assert (made["user"], made["cap_drop"], made["security_opt"]) == ("65534:65534", ["ALL"], ["no-new-privileges"])
    assert made["device_requests"] == []
    assert made["cap_add"] == ["SYS_NICE", "SYS_PTRACE"]
    assert "NCCL_ALGO=ring" in made["environment"]
    assert made["labels"] == {"lanewise.run": "/tmp/lanewise-abc", "lanewise.host": platform.node()}
    assert engine.made[0].removed == 1
    assert engine.asked["params"] == {"condition": "removed"}


@pytest.mark.parametrize(
    ("user", "runs_as"),
    [("", "65534:65534"), ("root", "65534:65534"), ("0:0", "65534:65534"), ("lanewise", "lanewise"), ("10:0", "10:0")],
)
def test_it_runs_as_the_images_user_unless_that_is_root(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, user: str, runs_as: str
) -> None:
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: True)
    engine.known[ID].user = user
    contain()
    assert engine.created["user"] == runs_as


def test_gpus_are_asked_for_where_ranks_need_them(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: True)
    contain("--gpus")
    (request,) = engine.created["device_requests"]
    assert (request.count, request.capabilities) == (-1, [["gpu"]])
    assert [(limit.name, limit.hard) for limit in engine.created["ulimits"]] == [("memlock", -1)]


def test_files_can_be_read_by_everybody_and_written_by_nobody(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: True)
    private = tmp_path / "mpi_worker.py"
    private.write_text("x")
    private.chmod(0o600)  # as a clone under umask 077 has it
    contain("--file", str(private))
    modes = {name: (member.mode, member.uid) for name, member in engine.made[0].files.items()}
    assert modes == {
        "lanewise": (0o755, 0), "lanewise/supervisor.py": (0o444, 0), "lanewise/mpi_worker.py": (0o444, 0)
    }  # fmt: skip


def test_a_lifeline_that_closes_ends_it(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: False)
    assert contain() == 143
    assert engine.made[0].removed == 1


def test_what_the_engine_refuses_is_told_as_a_worker_tells_it(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.made[0].start_error = APIError("500 Server Error", explanation="could not select device driver")
    assert contain() == 125
    told = capsys.readouterr().out
    assert told.startswith("@lanewise ")
    assert json.loads(told.removeprefix("@lanewise ")) == {
        "event": "failed", "reason": "no container: could not select device driver"
    }  # fmt: skip
    assert engine.made[0].removed == 1, "nothing is left of it"


@pytest.mark.parametrize("harm", ["no archive", "broken archive"])
def test_a_container_that_takes_no_files_is_removed(engine: FakeEngine, tmp_path: Path, harm: str) -> None:
    engine.made[0].takes_files = harm != "no archive"
    more = ["--file", str(tmp_path / "missing.py")] if harm == "broken archive" else []
    assert contain(*more) == 125
    assert engine.made[0].removed == 1


def test_an_engine_that_dies_while_ranks_run_does_not_speak_for_the_worker(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_stream: object) -> bool:
        raise EngineGone("Connection reset by peer")

    monkeypatch.setattr(contained, "_pass_on", broken)
    assert contain() == 125
    told = capsys.readouterr().out
    assert "Connection reset" in told
    assert "@lanewise" not in told


def test_output_is_put_together_from_pieces_of_any_size() -> None:
    sent = [(1, b"one\n"), (2, b""), (2, b"two"), (1, bytes(range(256)) * 20)]
    data = b"".join(bytes([number, 0, 0, 0]) + len(text).to_bytes(4) + text for number, text in sent)
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(len(data)), 5))
        got: list[tuple[int, bytes]] = []
        pending = b""
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            pieces, pending = contained._pieces(pending + data[start:end])
            got += pieces
        assert (got, pending) == (sent, b"")


# ------------------------------------------------------------------------------------------------ commands and sweeping


def test_the_command_of_a_launch_in_an_image_holds_all_of_it() -> None:
    plan = fake_plan(candidates=(fake_candidate("default", OMPI_MCA_btl="tcp"),), launches=1)
    (planned,) = plan.schedule()
    here = launch._command(engines.MpiEngine(), plan, planned)
    assert "contained.py" not in " ".join(here)
    inside = Environment(name="here", python="/opt/lanewise/bin/python3", variables={"A": "b c"}, image=ID)
    plan = fake_plan(candidates=plan.candidates, launches=1)
    command = launch._command(engines.MpiEngine(), plan, replace(planned, environment=inside))
    split = command.index("--")
    options, ranks = command[:split], command[split + 1 :]
    assert options[:3] == [sys.executable, "-I", contained.__file__]
    given = {value for name, value in pairwise(options) if name == "--set"}
    assert given == {
        "OMPI_MCA_btl_sm_backing_directory=/dev/shm", "A=b c", "OMPI_MCA_btl=tcp", "PYTHONDONTWRITEBYTECODE=1"
    }  # fmt: skip
    assert "--gpus" not in options
    assert ranks[0] == "/opt/lanewise/bin/mpirun"
    assert "--allow-run-as-root" not in ranks
    assert ranks[-3:-1] == ["/opt/lanewise/bin/python3", "/lanewise/mpi_allreduce.py"]
    assert json.loads(ranks[-1])["protocol"] == 1


def test_ranks_on_gpus_get_every_file_of_their_worker_and_the_gpus() -> None:
    engine = engines.CudaEngine()
    command = in_container(["x"], IN_IMAGE, variables={}, files=engines.worker_files(engine), gpus=engine.gpus)
    files = {Path(value).name for name, value in pairwise(command) if name == "--file"}
    assert {"cuda_allreduce.py", "cuda_hub.py", "cuda_nccl.py"} <= files
    assert "--gpus" in command
    engine.require(IN_IMAGE)  # whose Python this machine does not have


def test_only_containers_whose_run_is_gone_are_swept(tmp_path: Path) -> None:
    live, stale, gone = (tmp_path / f"lanewise-{digit * 32}" for digit in "012")
    for folder in (live, stale):
        folder.mkdir()
        (folder / ".lanewise-scratch").touch()
    runs = [str(live), str(stale), str(gone), str(tmp_path / "lanewise-other"), ""]
    containers = [FakeContainer(id=run, labels={"lanewise.run": run}) for run in runs]
    engine = FakeEngine({}, containers)
    with (live / ".lanewise-scratch").open() as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert sweep_abandoned(engine) == [str(stale), str(gone)]  # type: ignore[arg-type]
    assert [container.removed for container in containers] == [0, 1, 1, 0, 0]
    assert engine.asked["filters"] == {"label": ["lanewise.run", f"lanewise.host={platform.node()}"]}
    assert engine.asked["all"], "also those that never started"


# --------------------------------------------------------------------------------------------------------------- images


def test_an_image_is_known_by_what_names_it(engine: FakeEngine) -> None:
    engine.known["lanewise/cu130:core"] = FakeImage(labels={"lanewise.archs": "12.0f", "maintainer": "x"})
    image = find_image("lanewise/cu130:core")
    assert image.to_dict(str) == {"id": ID, "tags": ["lanewise/cu130:core"], "labels": {"archs": "12.0f"}}


@pytest.mark.parametrize("reference", ["nosuch", "", "UPPER CASE", "x" * 5000])
def test_an_image_that_is_not_there_is_said_with_what_to_do(engine: FakeEngine, reference: str) -> None:
    with pytest.raises(InputError, match="the engine has no image") as caught:
        find_image(reference)
    assert len(str(caught.value)) < 500


def test_a_toolchain_means_its_core_image_or_the_full_one(engine: FakeEngine) -> None:
    engine.known["lanewise/a:core"] = FakeImage(id="core")
    engine.known["lanewise/a:full"] = engine.known["lanewise/b:full"] = FakeImage(id="full")
    assert {name: image.id for name, image in toolchain_images(["a", "b", "c"]).items()} == {"a": "core", "b": "full"}
    assert toolchain_image("a", SERVERS).id == "full", "the other holds no SGLang"
    with pytest.raises(InputError) as caught:
        toolchain_image("c")
    assert caught.value.todo == "./inv build-image --toolchain c"
    assert "lanewise/c:core or lanewise/c:full" in caught.value.expected


def test_without_an_engine_images_are_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with pytest.raises(UnreachableError, match="cannot run image 'x': no Docker engine"):
        find_image("x")


# ------------------------------------------------------------------------------------------------------- what is in one


def described_as(monkeypatch: pytest.MonkeyPatch, *lines: str, ok: bool = True) -> None:
    monkeypatch.setattr(described, "printed", lambda *_args, **_more: Printed(ok=ok, lines=lines))


def description(**changes: object) -> str:
    fields: dict[str, object] = {
        "python": "3.12.3",
        "implementation": "cpython",
        "libraries": {"numpy": "2.0"},
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "nccl_variables": {"NCCL_ALGO": "ring", "NCCL_PROTO": "LL"},
        "nccl_files": {"/nonexistent/.nccl.conf": "", "/etc/nccl.conf": "NCCL_ALGO=tree\nNCCL_DEBUG=INFO"},
    }
    return json.dumps(fields | changes)


def run(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_an_image_is_described_from_within(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_BUFFSIZE", "1")  # this machine's: not in force in a container
    described_as(monkeypatch, description())
    told = describe_environment(IN_IMAGE, str)  # type: ignore[arg-type]
    assert (told["python"], told["libraries"], told["variables"]) == ("3.12.3", {"numpy": "2.0"}, {"A": "1"})
    assert told["image"]["id"] == ID
    assert [(setting["name"], setting["value"], setting["source"]) for setting in told["nccl"]] == [
        ("NCCL_ALGO", "ring", "environment"),
        ("NCCL_DEBUG", "INFO", "/etc/nccl.conf"),
        ("NCCL_PROTO", "LL", "environment"),
    ]
    assert "machine" not in told


@pytest.mark.parametrize(
    ("lines", "ok", "says"),
    [
        (("supervisor: cannot run /x: no such file",), False, "cannot run /x"),
        (('@lanewise {"event": "failed", "reason": "no container: none"}',), False, "(no container: none)"),
        ((), True, "printed nothing"),
        ((description(libraries=["numpy"]),), True, "does not run describe.py"),
        ((description(python={"a": float("1e400")}),), True, "does not run describe.py"),
        (("[" * 100_000,), True, "does not run describe.py"),
        (('@lanewise {"reason": "' + "x" * 10_000 + '"}',), False, "xxx"),
    ],
)  # fmt: skip
def test_an_image_that_describes_nothing_is_refused(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], ok: bool, says: str
) -> None:
    described_as(monkeypatch, *lines, ok=ok)
    with pytest.raises(InputError) as caught:
        describe_environment(IN_IMAGE, str)  # type: ignore[arg-type]
    assert says in caught.value.what
    assert len(caught.value.what) < 600


def test_an_engine_on_another_machine_is_refused(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    described_as(monkeypatch, description(machine="another"))
    with pytest.raises(InputError, match="runs on another machine"):
        describe_environment(IN_IMAGE, str)  # type: ignore[arg-type]


def test_a_tag_that_moved_on_changes_no_environment() -> None:
    before = {"python": "3", "image": {"id": ID, "tags": ["a"]}}
    assert without_tags(before) == without_tags({"python": "3", "image": {"id": ID, "tags": []}})
    assert without_tags(before) != without_tags({"python": "3", "image": {"id": "other", "tags": ["a"]}})
    assert without_tags({"python": "3"}) == {"python": "3"}


def test_describe_says_more_of_an_image_than_of_this_machine() -> None:
    command = [sys.executable, str(described._DESCRIBE)]
    environment = {**os.environ, "NCCL_CONF_FILE": "/no/such", "NCCL_ALGO": "ring"}
    assert set(Printed(ok=True, lines=(run(command, environment),)).json() or {}) == {
        "python", "implementation", "libraries"
    }  # fmt: skip
    inside = json.loads(run([*command, "image"], environment))
    assert inside["nccl_variables"] == {"NCCL_ALGO": "ring", "NCCL_CONF_FILE": "/no/such"}
    assert inside["nccl_files"]["/no/such"] == ""
    assert inside["machine"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
