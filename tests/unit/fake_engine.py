"""A fake of the docker SDK's client, as far as images/ uses it: it holds images, and says what a test tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import requests
from docker.errors import APIError, ImageNotFound, NotFound


class FakeImage:
    """An image."""

    def __init__(
        self, name: str, *, labels: dict[str, str] | None = None, digests: Iterable[str] = (), layers=("sha256:1",)
    ):
        self.id, self.labels, self.tags = name, labels or {}, [] if name.startswith("sha256:") else [name]
        self.attrs = {
            "RepoDigests": list(digests), "Size": 1, "RootFS": {"Layers": list(layers)},
            "Config": {"Labels": labels, "Env": ["A=1"]},
        }  # fmt: skip

    def save(self, named: str) -> Iterator[bytes]:
        yield from (b"archive of ", named.encode())


class FakeEngine:
    """The client. `registry` is what a registry has: reference to digest; `events`, what a build or push says."""

    def __init__(
        self,
        *,
        registry: dict[str, str] | None = None,
        events: Iterable[Any] = (),
        says: str = "",
        waits: BaseException | None = None,
    ) -> None:
        self.names: dict[str, FakeImage] = {}
        self.registry = registry or {}
        self.events = list(events)
        self.says, self.waits = says, waits
        self.removed: list[str] = []
        self.answer = SimpleNamespace(closed=False, close=lambda: setattr(self.answer, "closed", True))
        self.images = SimpleNamespace(
            get=self._get, pull=self._pull, get_registry_data=self._data, remove=self._remove, list=lambda **_: []
        )
        self.info = lambda: {"DockerRootDir": "/"}
        self.containers = SimpleNamespace(create=self._create, list=lambda **_: [])
        self.api = SimpleNamespace(
            hooks={"response": []}, build=self._build, push=self._push, tag=self._tag, import_image=self._import
        )

    def _get(self, name: str) -> FakeImage:
        if name not in self.names:
            raise ImageNotFound("no such image")
        return self.names[name]

    def _pull(self, name: str) -> FakeImage:
        if name not in self.registry:
            raise NotFound("manifest unknown at https://user:topsecret@reg")
        self.names[name] = FakeImage("sha256:" + "1" * 64, digests=[name])
        return self.names[name]

    def _data(self, name: str) -> SimpleNamespace:
        if name not in self.registry:
            raise APIError("unauthorized")
        return SimpleNamespace(id=self.registry[name])

    def _remove(self, name: str, **_: object) -> None:
        self.removed.append(name)
        self.names.pop(name, None)

    def _tag(self, image: str, repository: str, tag: str) -> None:
        self.names[f"{repository}:{tag}"] = FakeImage(image)

    def _import(self, *, src: str, repository: str, tag: str, changes: list[str]) -> None:
        self.names[f"{repository}:{tag}"] = FakeImage("sha256:" + "2" * 64)

    def _stream(self) -> Iterator[Any]:
        for hook in self.api.hooks["response"]:
            hook(self.answer)
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _build(self, *, fileobj: Iterable[bytes], **_: object) -> Iterator[Any]:
        for _piece in fileobj:
            pass
        return self._stream()

    def _push(self, *_: object, **__: object) -> Iterator[Any]:
        return self._stream()

    def _create(self, *_: object, **__: object) -> SimpleNamespace:
        """A container that says what the engine was told to."""

        def wait(timeout: int) -> dict[str, int]:
            if self.waits:
                raise self.waits
            return {"StatusCode": 0}

        def logs(*, stdout: bool, stderr: bool, tail: object = "all") -> bytes:
            return self.says.encode() if stdout else b"it failed"

        return SimpleNamespace(
            start=lambda: None,
            wait=wait,
            logs=logs,
            remove=lambda **_: self.removed.append("c"),
        )


LOST = requests.exceptions.ChunkedEncodingError("Connection broken: InvalidChunkLength(got length b'', 0 bytes read)")
"""What the SDK raises when the engine dies in the middle of an answer."""
