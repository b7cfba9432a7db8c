"""How servers are started, above all in containers: a fake engine notes what is asked of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import docker
import pytest

from lanewise.errors import InputError
from tests.unit.test_contained import ID, FakeContainer, FakeEngine, FakeImage
from tuning import contained
from tuning.plan import Environment
from tuning.serving import container_tree
from tuning.serving.container_tree import ContainerTree
from tuning.serving.server_command import server_command

HERE = Environment(name="here", python=sys.executable)
IN_IMAGE = Environment(name="x", python="/opt/lanewise/bin/python3", image=ID)


def command(environment: Environment, *argv: str, scratch: Path | None = None) -> list[str]:
    return server_command(environment, argv, variables={"A": "1"}, port=30_000, scratch=scratch)


def given(words: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(words[: words.index("--")]) if name == option]


def test_here_a_models_path_is_made_absolute_and_a_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    argv = ("--model-path", "./model", "--speculative-draft-model-path", "org/draft", "--port", "./model")
    assert command(HERE, *argv) == [
        sys.executable, "-m", "sglang.launch_server", "--model-path", f"{tmp_path}/model",
        "--speculative-draft-model-path", "org/draft", "--port", "./model",
    ]  # fmt: skip


def test_in_an_image_models_are_mounted_at_their_paths_and_one_port_is_published(tmp_path: Path) -> None:
    cached = tmp_path / "hub/models--o--m/snapshots/abc"
    draft = tmp_path / "draft"
    cached.mkdir(parents=True)
    draft.mkdir()
    words = command(IN_IMAGE, "--model-path", str(cached), "--speculative-draft-model-path", str(draft))
    assert given(words, "--mount") == [str(tmp_path / "hub/models--o--m"), str(draft)], "links of a cache lead upwards"
    assert given(words, "--publish") == ["30000"]
    assert "--gpus" in words
    assert "A=1" in given(words, "--set")
    assert words[-2:] == ["--host", "0.0.0.0"]
    assert words[words.index("--") + 1 : words.index("--") + 4] == [IN_IMAGE.python, "-m", "sglang.launch_server"]


@pytest.mark.parametrize("model", ["org/name", "/no/such/model"])
def test_in_an_image_nothing_is_downloaded(model: str) -> None:
    with pytest.raises(InputError, match="not on this machine"):
        command(IN_IMAGE, "--model-path", model)


def test_a_published_server_is_on_loopback_only_and_may_load_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine({ID: FakeImage()}, [FakeContainer()])
    monkeypatch.setattr(docker, "from_env", lambda: engine)
    monkeypatch.setattr(contained, "_pass_on", lambda _stream: True)
    options = ["--image", ID, "--python", "/py", "--publish", "30000", "--mount", "/models/a"]
    assert contained.main([*options, "--", "serve", "--port", "30000"]) == 7
    made = engine.created
    assert made["ports"] == {"30000/tcp": ("127.0.0.1", 30_000)}
    assert made["network_mode"] == "bridge"
    assert made["tmpfs"] == {"/tmp": "mode=1777,exec"}
    assert made["mounts"] == [{"Target": "/models/a", "Source": "/models/a", "Type": "bind", "ReadOnly": True}]
    assert made["command"] == ["serve", "--port", "30000"], "its own options are not taken for ours"
    assert (made["cap_drop"], made["user"]) == (["ALL"], "65534:65534")


def test_in_an_image_only_the_folder_that_is_asked_for_can_be_written_to(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert not given(command(IN_IMAGE, "--model-path", str(model)), "--scratch")
    words = command(IN_IMAGE, "--model-path", str(model), scratch=tmp_path / "shared")
    assert given(words, "--scratch") == [str(tmp_path / "shared")]
    assert given(words, "--mount") == [str(model)]
    assert "--scratch" not in command(HERE, scratch=tmp_path)


def test_the_folder_that_can_be_written_to_is_there_as_long_as_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = FakeEngine({ID: FakeImage()}, [FakeContainer()])
    shared = tmp_path / "shared"
    modes = []

    def serve(_stream: object) -> bool:
        modes.append(shared.stat().st_mode & 0o7777)
        assert not engine.made[0].removed
        (shared / "sub").mkdir()
        (shared / "sub/left").touch()
        return True

    monkeypatch.setattr(docker, "from_env", lambda: engine)
    monkeypatch.setattr(contained, "_pass_on", serve)
    options = ["--image", ID, "--python", "/py", "--mount", "/models/a", "--scratch", str(shared)]
    assert contained.main([*options, "--", "serve"]) == 7
    assert modes == [0o777], "whoever the container's user is"
    written = [mount["Source"] for mount in engine.created["mounts"] if not mount["ReadOnly"]]
    assert written == [str(shared)]
    assert not shared.exists()


@dataclass
class FakeServed:
    """A container of the fake engine."""

    status: str = "running"
    done: list[str] = field(default_factory=list)

    def pause(self) -> None:
        self.done.append("pause")
        self.status = "paused"

    def unpause(self) -> None:
        self.done.append("unpause")
        self.status = "running"

    def top(self, ps_args: str) -> dict[str, Any]:
        return {"Titles": ["PID"], "Processes": [["12"], ["13"]]}


def test_a_container_is_paused_and_goes_on_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    container, asked = FakeServed(), dict[str, Any]()

    class FakeContainers:
        def list(self, **options: Any) -> list[FakeServed]:
            asked.update(options)
            return [container]

    @contextmanager
    def fake_connected(purpose: str) -> Iterator[Any]:
        yield type("FakeClient", (), {"containers": FakeContainers()})

    monkeypatch.setattr(container_tree, "connected", fake_connected)
    tree = ContainerTree(tmp_path)
    tree.thaw()
    assert tree.pids() == {12, 13}
    tree.freeze()
    assert tree.pids() == set(), "the engine may not look into a paused one"
    tree.thaw()
    assert container.done == ["pause", "unpause"]
    assert asked["filters"] == {"label": f"lanewise.run={tmp_path}"}
