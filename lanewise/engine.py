"""The container engine, as far as more than one part needs it: whether there is one, and a connection to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise.errors import UnreachableError

if TYPE_CHECKING:
    from docker import DockerClient

_SECONDS = 5
_DEFAULT_HOST = "unix:///var/run/docker.sock"


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """Whether a container engine answers, and its version or the reason why not."""

    present: bool
    detail: str


def engine_state() -> EngineState:
    """Ask the Docker engine that DOCKER_HOST or the default socket names; takes at most a few seconds."""
    host = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    # The SDK leaks a socket where it cannot connect, so the commonest case is not left to it.
    if host.startswith("unix://") and not Path(host.removeprefix("unix://")).exists():
        return EngineState(present=False, detail=f"no Docker engine: there is no {host}")
    import docker  # noqa: PLC0415 - a quarter of a second that only a machine with an engine has to spend
    from docker.errors import DockerException  # noqa: PLC0415

    try:
        client = docker.from_env(timeout=_SECONDS)
    except DockerException as error:
        return EngineState(present=False, detail=f"no Docker engine answers ({_cause(error)})")
    try:
        return EngineState(present=True, detail=f"Docker engine {client.version()['Version']}")
    except (DockerException, OSError, KeyError) as error:
        return EngineState(present=False, detail=f"no Docker engine answers ({_cause(error)})")
    finally:
        client.close()


@contextmanager
def connected(purpose: str, *, seconds: int = 60) -> Iterator[DockerClient]:
    """A connection to that engine.

    Args:
        purpose: what cannot be done without it, e.g. "run image lanewise/cu130:core", for the error.
        seconds: without an answer for so long, a request is given up.

    Raises:
        UnreachableError: no engine answers, or it stops, or refuses something that the caller does not handle.
    """
    state = engine_state()
    if not state.present:
        raise UnreachableError(
            f"cannot {purpose}: {state.detail}",
            expected="a Docker or Podman engine at DOCKER_HOST or the default socket",
            todo="start it, and see `docker version`",
        )
    import docker  # noqa: PLC0415 - as above
    from docker.errors import DockerException  # noqa: PLC0415
    from requests.exceptions import RequestException  # noqa: PLC0415

    client = docker.from_env(timeout=seconds)
    try:
        yield client
    except (DockerException, RequestException) as error:
        raise UnreachableError(
            f"cannot {purpose}: {_cause(error)}",
            expected="an engine that does so",
            todo="see `docker version` and the engine's own log",
        ) from error
    finally:
        client.close()


def _cause(error: BaseException) -> str:
    """The innermost message: the SDK wraps a socket's error four times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error)[:120]
