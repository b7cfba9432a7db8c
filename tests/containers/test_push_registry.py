"""A real registry on loopback: pushing by digest, bases by digest, tags that move, and digests that go."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.bases import ensure_base
from images.build_plan import Base, BaseKind
from images.push import push
from lanewise.errors import InputError, LanewiseError

NAME = "lanewise/test-push"
CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def quiet(_line: str) -> None:
    pass


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a registry of this test's own; engines take one on loopback without TLS."""
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("there is no docker-registry (Debian: apt-get install docker-registry)")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder / "data", port=port))
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([program, "serve", config], stdout=log, stderr=log) as process,
    ):
        try:
            _wait_for(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert process.poll() is None, "the registry ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the registry did not start")


def small_image(client: Any, tag: str, text: str) -> str:
    """An image of one file; the base of no container."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("text")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
    name, _, version = tag.rpartition(":")
    answer = client.api.import_image_from_data(archive.getvalue(), repository=name, tag=version)
    return str(json.loads(answer.splitlines()[-1])["status"])


@pytest.fixture
def images(engine: Any) -> Iterator[Any]:
    """The engine; images of these tests are removed at the end."""
    yield engine
    for image in engine.images.list():
        references = [*image.tags, *(image.attrs.get("RepoDigests") or ())]
        for reference in references:
            if NAME in reference:
                engine.images.remove(reference, force=True)


def digests(client: Any) -> set[str]:
    return {
        r for image in client.images.list() for r in (*image.tags, *(image.attrs["RepoDigests"] or ())) if NAME in r
    }


def test_a_pushed_image_is_in_the_registry_under_its_digest(images: Any, registry: str) -> None:
    small_image(images, f"{NAME}:a", "a")
    said: list[str] = []
    reference = push(f"{NAME}:a", f"{registry}/team", images, said.append)
    repository, _, digest = reference.partition("@")
    assert repository == f"{registry}/team/{NAME}"
    with urllib.request.urlopen(
        urllib.request.Request(
            f"http://{registry}/v2/team/{NAME}/manifests/a",
            headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
        )
    ) as answer:
        assert answer.headers["Docker-Content-Digest"] == digest
    assert f"{registry}/team/{NAME}:a" not in digests(images)
    assert said
    assert push(f"{NAME}:a", f"{registry}/team", images, quiet) == reference


def test_a_registry_that_is_not_there_is_an_error(images: Any) -> None:
    small_image(images, f"{NAME}:a", "a")
    with pytest.raises(LanewiseError, match="refused"):
        push(f"{NAME}:a", "127.0.0.1:1", images, quiet)
    assert not [reference for reference in digests(images) if "127.0.0.1:1/" in reference]


def pushed_base(client: Any, python_base: str, registry: str, *, change: str = "") -> Base:
    """A base in the registry, and gone from the engine, as a lock would name it."""
    name = f"{NAME}-base"
    if change:
        container = client.containers.create(python_base, ["true"])
        container.commit(repository=name, tag="1", changes=f"LABEL change={change}")
        container.remove()
    else:
        client.images.get(python_base).tag(name, "1")
    reference = push(f"{name}:1", registry, client, quiet)
    client.images.remove(f"{name}:1")
    forget(client, reference)
    digest = reference.partition("@")[2]
    return Base(name="b", kind=BaseKind.REGISTRY, reference=f"{registry}/{name}:1", python="3.11", digest=digest)


def forget(client: Any, reference: str) -> None:
    if any(reference in (image.attrs["RepoDigests"] or ()) for image in client.images.list()):
        client.images.remove(reference, force=True)


def test_a_locked_base_stays_what_it_is_when_its_tag_moves_and_is_an_error_when_it_is_gone(
    images: Any, python_base: str, registry: str, tmp_path: Path
) -> None:
    locked = pushed_base(images, python_base, registry, change="first")
    moved = pushed_base(images, python_base, registry, change="second")
    assert moved.digest != locked.digest

    first = ensure_base(locked, images, tmp_path, quiet)
    assert first.digest == locked.digest
    assert images.images.get(first.id).labels["change"] == "first"
    second = ensure_base(moved, images, tmp_path, quiet)
    assert images.images.get(second.id).labels["change"] == "second"

    gone = replace(moved, digest="sha256:" + "0" * 64)
    with pytest.raises(LanewiseError) as caught:
        ensure_base(gone, images, tmp_path, quiet)
    assert gone.digest in caught.value.what
    assert moved.digest in caught.value.what


def test_a_registry_base_without_python_is_refused(images: Any, registry: str, tmp_path: Path) -> None:
    small_image(images, f"{NAME}:bare", "nothing else")
    reference = push(f"{NAME}:bare", registry, images, quiet)
    base = Base(
        name="bare", kind=BaseKind.REGISTRY, reference=f"{registry}/{NAME}:bare", python="3.11",
        digest=reference.partition("@")[2],
    )  # fmt: skip
    with pytest.raises(InputError, match="lacks python3"):
        ensure_base(base, images, tmp_path, quiet)


def test_a_base_with_another_python_is_refused(images: Any, python_base: str, registry: str, tmp_path: Path) -> None:
    base = pushed_base(images, python_base, registry)
    with pytest.raises(InputError, match=r"has Python 3\.11"):
        ensure_base(replace(base, python="3.12"), images, tmp_path, quiet)


@pytest.mark.network
def test_packages_that_a_registry_base_lacks_are_added_once(
    images: Any, python_base: str, registry: str, tmp_path: Path
) -> None:
    base = replace(pushed_base(images, python_base, registry), name=NAME.rpartition("/")[2], packages=("hello",))
    said: list[str] = []
    first = ensure_base(base, images, tmp_path, said.append)
    try:
        assert any(line.startswith("Setting up hello") for line in said)
        assert ensure_base(base, images, tmp_path, quiet) == first
        assert first.inputs != ensure_base(replace(base, packages=()), images, tmp_path, quiet).inputs
    finally:
        images.images.remove(first.id, force=True)
