"""A server's processes in a container, as the engine holds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lanewise.engine import connected
from tuning.contained import RUN_LABEL

if TYPE_CHECKING:
    from docker.models.containers import Container


class ContainerTree:
    """The processes of a server in a container, as `process_tree.HostTree` has those of this machine.

    Args:
        run: the scratch folder by which the container is labelled.
    """

    def __init__(self, run: Path) -> None:
        self._run = run

    def pids(self) -> set[int]:
        """Numbers of its processes, as this machine sees them; none where the engine does not tell."""
        with self._containers() as found:
            told = [container.top(ps_args="-eo pid") for container in found if container.status == "running"]
        return {int(row[0]) for table in told for row in table.get("Processes") or () if row and row[0].isdigit()}

    def freeze(self) -> None:
        """Stop all of it at once (the engine's pause)."""
        with self._containers() as found:
            for container in found:
                container.pause()

    def thaw(self) -> None:
        """Let it go on; nothing happens where it is not stopped."""
        with self._containers() as found:
            for container in found:
                if container.status == "paused":
                    container.unpause()

    def ask_to_end(self) -> None:
        """Nothing: the container is removed by force, with all shared memory that is its own."""

    @contextmanager
    def _containers(self) -> Iterator[list[Container]]:
        with connected("reach the server's container") as client:
            yield client.containers.list(filters={"label": f"{RUN_LABEL}={self._run}"}, ignore_removed=True)
