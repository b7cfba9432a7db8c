"""A server's life: started here or in a container, waited for, frozen and thawed, ended with all that it started."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from lanewise.errors import LanewiseError
from lanewise.redact import Redactor, redact_environment
from tuning.containers import GRACE_SECONDS
from tuning.engines import CudaEngine
from tuning.plan import Environment
from tuning.scratch import new_scratch, remove
from tuning.serving.container_tree import ContainerTree
from tuning.serving.flags import Arguments
from tuning.serving.gpus import holders_after
from tuning.serving.process_tree import (
    SHARED_MEMORY,
    HostTree,
    began,
    end_survivors,
    remove_segments,
    segments_mapped,
)
from tuning.serving.server_command import server_command
from tuning.serving.server_ended import ServerEnded, ended
from tuning.serving.server_log import ServerLog
from tuning.supervised import end_supervised, start_supervised

_READY_LINE = "ready to roll"
"""SGLang prints "The server is fired up and ready to roll!" when its own warm-up request is answered (0.4.6-0.5.23)."""
_HEALTH = "/health"
_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
"""Between two looks at what is costlier: the health endpoint, the list of processes."""
_OVERSLEPT_SECONDS = 1.0
_DYING_SECONDS = 15.0
"""How long a server may live on once one of its ranks is gone: SGLang ends within a second, or hangs."""
_DYING_LINES = ("Received sigquit from a child process", "Scheduler hit an exception")
_GONE_SECONDS = 3.0
"""After a broken connection, until the server's end is seen."""
_TERM_SECONDS = 2.0
"""From SIGTERM to SIGKILL. SGLang's own way to end kills its ranks by SIGKILL too, so there is nothing to wait for."""
_GPU_SECONDS = 20.0
"""How long the driver may take to free the memory of killed processes."""
_OWN_REQUEST = f'"GET {_HEALTH} '
"""In the access log: lines that only our looking makes are no sign of life."""
_STUCK = "supervisor: could not kill"
_SHARED = "shared"


class Server:
    """One server, as a context manager: when the block ends, nothing of it lives.

    Attributes:
        url: where it answers, e.g. "http://127.0.0.1:30000".
        command: the argument vector, redacted.
        variables: environment variables that were set for it, redacted.
        started: when, UTC.
        ready_seconds: from start to ready; None as long as it is not.
        left_behind: what outlived `stop`, in words: a process stuck in the kernel, memory of a GPU that stays held, a
            folder that could not be removed.
    """

    def __init__(
        self,
        supervisor: subprocess.Popen[bytes],
        tree: HostTree | ContainerTree,
        *,
        scratch: Path,
        others: set[Path],
        log: ServerLog,
        port: int,
        timeout: float,
        doing: Callable[[str], None],
    ) -> None:
        self.url = f"http://{_LOOPBACK}:{port}"
        self.command: tuple[str, ...] = ()
        self.variables: Mapping[str, str] = {}
        self.started = datetime.now(UTC)
        self.ready_seconds: float | None = None
        self.left_behind: tuple[str, ...] = ()
        self._supervisor, self._tree, self._scratch, self._log = supervisor, tree, scratch, log
        self._port, self._timeout, self._doing = port, timeout, doing
        self._begun = self._sign = time.monotonic()
        self._looked = 0.0
        self._read, self._dying = 0, False
        self._pids: dict[int, int] = {}
        self._segments, self._others = set[Path](), others
        self._said_ready: float | None = None
        self._stopped = False
        self._reader = threading.Thread(target=self._follow, name="server log", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        environment: Environment,
        arguments: Arguments,
        *,
        folder: Path,
        port: int,
        timeout: float,
        doing: Callable[[str], None],
        shares: bool = False,
    ) -> Self:
        """Start a server; it is loading when this returns.

        Args:
            environment: interpreter, or image, and its variables.
            arguments: of the release that it holds.
            folder: gets server.log; made where it is missing.
            port: the HTTP port that `arguments` names.
            timeout: seconds without output, while it is not ready, after which it is given up.
            doing: told, about once a second, what it printed last.
            shares: whether it is to write into `shared`.

        Raises:
            InputError: the interpreter or a model is missing, or the log cannot be written.
            LanewiseError: there is no space for the log.
        """
        set_here = {
            **CudaEngine().variables(SHARED_MEMORY), "PYTHONUNBUFFERED": "1", **environment.variables,
            **arguments.variables,
        }  # fmt: skip
        scratch = new_scratch()[:1]
        command = server_command(
            environment,
            arguments.argv,
            variables=set_here,
            port=port,
            scratch=scratch[0] / _SHARED if shares else None,
        )
        redact = Redactor({**os.environ, **set_here})
        log = ServerLog(folder / "server.log", redact)
        others = set(SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else set()
        supervisor = start_supervised(
            command,
            environment=os.environ if environment.image else {**os.environ, **set_here},
            scratch=scratch,
            grace=GRACE_SECONDS if environment.image else 0,
            one_stream=True,
        )
        tree = ContainerTree(scratch[0]) if environment.image else HostTree(supervisor.pid)
        server = cls(
            supervisor, tree, scratch=scratch[0], others=others, log=log, port=port, timeout=timeout, doing=doing
        )
        server.command = tuple(redact.all(command))
        server.variables = redact_environment(set_here)
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether it runs, and its log is kept."""
        return not self._stopped and self._supervisor.poll() is None and not self._log.problem

    @property
    def shared(self) -> Path:
        """The folder that it can write to under the same path; it goes when the server ends.

        In a container it is there where `start` was told so; on this machine who needs it makes it.
        """
        return self._scratch / _SHARED

    @property
    def line_count(self) -> int:
        """Lines printed so far: where `lines` begins for those that are still to come."""
        return self._log.count

    def lines(self, since: int = 0) -> list[str]:
        """Lines printed, from number `since` on: the first and the last few megabytes; also after its end."""
        return self._log.lines(since)

    def wait_ready(self, deadline: float) -> None:
        """Wait until it answers.

        Args:
            deadline: seconds from now, in all.

        Raises:
            ServerEnded: it ended, or is given up; then nothing of it lives any more.
        """
        until = time.monotonic() + deadline
        while not self._is_ready():
            now = time.monotonic()
            if not self.alive():
                raise self.failure()
            if now - self._sign > (min(self._timeout, _DYING_SECONDS) if self._dying else self._timeout):
                raise self.failure(silent=True)
            if now > until:
                raise self.failure(silent=True, reason=f"not ready within {deadline:.0f} s")
            time.sleep(_POLL_SECONDS)
            if (overslept := time.monotonic() - now - _POLL_SECONDS) > _OVERSLEPT_SECONDS:
                until += overslept  # this process was stopped, or the machine slept: the silence was ours
                self._sign = time.monotonic()
        # When it said so: it may have been ready for long while another one was waited for.
        self.ready_seconds = round((self._said_ready or time.monotonic()) - self._begun, 3)

    def failure(self, *, silent: bool = False, reason: str = "") -> ServerEnded:
        """Why it does not answer, once a request failed or nothing came of it; it is stopped for that.

        Args:
            silent: it lives and says nothing: what was awaited did not come in time.
            reason: for that case, what did not come.
        """
        if not silent and not self._log.problem:
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(_GONE_SECONDS)
        code = self._supervisor.poll()
        self.stop()
        return ended(
            self.lines(),
            None if code is None else (code if code >= 0 else 128 - code),
            ready=self.ready_seconds is not None,
            log_problem=self._log.problem,
            reason=reason or f"no output for {self._timeout:.0f} s",
        )

    def freeze(self) -> None:
        """Stop all its processes, so that another server on the same GPUs is measured alone; its memory stays."""
        self._tree.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self._tree.thaw()
        self._sign = time.monotonic()

    def stop(self) -> None:
        """End all of it: asked first, then killed, also where it is frozen; wait until its GPU memory is free."""
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._supervisor.poll() is None:
                with suppress(LanewiseError):  # an engine that is gone: the lifelines do the rest
                    self._note_processes()
                    self._tree.thaw()
                self._tree.ask_to_end()
                if isinstance(self._tree, HostTree):
                    with suppress(subprocess.TimeoutExpired):
                        self._supervisor.wait(_TERM_SECONDS)
        finally:
            end_supervised(self._supervisor)
            # None is left, unless the supervisor was killed. In a container the engine ends them.
            alive = end_survivors(self._pids) if isinstance(self._tree, HostTree) else []
            self._reader.join(_GONE_SECONDS)
            if self._supervisor.stdout and not self._reader.is_alive():
                self._supervisor.stdout.close()
            remove(self._scratch)  # gone already, unless the supervisor was killed
            remove_segments(self._segments)
        held = holders_after(set(self._pids), seconds=_GPU_SECONDS)
        stuck = [line for line in self.lines() if line.startswith(_STUCK)]
        left = [f"the folder {self._scratch} could not be removed"] if self._scratch.exists() else []
        self.left_behind = (*stuck, *alive, *map(str, held), *left)

    def _follow(self) -> None:
        """Read what it prints until it ends; the thread's body."""
        assert self._supervisor.stdout
        descriptor = self._supervisor.stdout.fileno()
        while chunk := os.read(descriptor, 1 << 16):
            before = self._log.count
            self._log.feed(chunk)
            new = self._log.lines(before)
            if not new or not all(_OWN_REQUEST in line for line in new):  # a progress bar has no line end yet
                self._sign = time.monotonic()
            if self._said_ready is None and any(_READY_LINE in line for line in new):
                self._said_ready = time.monotonic()
        self._log.close()

    def _is_ready(self) -> bool:
        new = self._log.lines(self._read)
        self._read += len(new)
        self._dying = self._dying or any(sign in line for line in new for sign in _DYING_LINES)
        if self._said_ready is not None:
            self._note_processes()
            return True
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        self._note_processes()
        if new:
            self._doing(new[-1])
        return _answers(self._port)

    def _note_processes(self) -> None:
        """Remember who may hold GPU memory and shared memory, and since when it runs, as long as it can be seen."""
        if isinstance(self._tree, HostTree):
            now = self._tree.pids()
            self._segments |= segments_mapped(now) - self._others
        else:
            now = self._tree.pids() if self._stopped else set()  # each look is a question to the engine
        self._pids |= began(now)


def _answers(port: int) -> bool:
    """Whether a server on this machine's loopback says that it is healthy; takes two seconds at the most."""
    with suppress(OSError), socket.create_connection((_LOOPBACK, port), timeout=1) as link:
        link.sendall(f"GET {_HEALTH} HTTP/1.0\r\nHost: {_LOOPBACK}\r\n\r\n".encode())
        return link.recv(64)[8:12] == b" 200"
    return False
