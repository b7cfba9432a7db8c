"""A real engine: the client, a base image with Python, and the check that no test leaves anything behind in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from images.bases import ensure_base
from images.build_plan import Base, BaseKind
from images.wheels import cache_folder
from lanewise.engine import engine_state
from lanewise.errors import LanewiseError

BOOKWORM = Base(name="debian-bookworm", kind=BaseKind.DEBIAN, reference="bookworm", python="3.11")
CACHE = cache_folder().parent
"""The clone's own: bases, packages and sources are fetched once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("containers")


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """Client of the engine that DOCKER_HOST or the default socket names."""
    state = engine_state()
    if not state.present:
        pytest.skip(state.detail)
    client = docker.from_env(timeout=120)
    yield client
    client.close()


@pytest.fixture(scope="session")
def python_base(engine: Any) -> str:
    """Id of a small Debian image with Python, venv and pip."""
    try:
        return ensure_base(BOOKWORM, engine, CACHE, lambda _line: None).id
    except LanewiseError as error:
        pytest.skip(f"no base image can be made here: {error.what}")


def containers_of(client: Any, label: str) -> list[Any]:
    """Containers with the label, running or not."""
    return list(client.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def gone(client: Any, label: str, seconds: float = 20) -> bool:
    """Whether no container with the label is there, or will be in a moment."""
    deadline = time.monotonic() + seconds
    while containers_of(client, label):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
