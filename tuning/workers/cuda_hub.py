"""The hub between the ranks of engine `cuda`, and a rank's end of it.

What ranks have to tell each other outside NCCL goes through a socket pair that each of them inherits from the process
that started it. There is one operation: every rank gives a value, and gets everybody's. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

_MARK = "@lanewise "
_LENGTH = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1
_DEATH_SECONDS = 10.0
"""How long a rank that closed its socket may take to end: the driver frees GPU memory meanwhile."""


class Ranks:
    """This rank's end of the hub."""

    def __init__(self, rank: int, size: int, hub: socket.socket, events: TextIO) -> None:
        self.rank, self.size, self.events, self._hub = rank, size, events, hub

    def exchange(self, value: object) -> list[Any]:
        """Give every rank's value (JSON) to every rank, in the order of ranks; they wait for one another."""
        payload = json.dumps(value).encode()
        self._hub.sendall(_LENGTH.pack(len(payload)) + payload)
        answer: list[Any] = json.loads(self._receive(_LENGTH.unpack(self._receive(_LENGTH.size))[0]))
        return answer

    def leave(self) -> None:
        """Say that this rank has done its work; ending without having said so is dying, whatever the exit code."""
        self._hub.sendall(_LENGTH.pack(0))

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            chunk = self._hub.recv(count - len(received))
            if not chunk:
                os._exit(1)  # the hub is gone, and with it whoever wanted a result
            received += chunk
        return bytes(received)

    def faults(self, mine: str) -> str:
        """All ranks' faults in words, the same text on every rank; "" where none has any."""
        return self.named(self.exchange(mine))

    @staticmethod
    def named(faults: Sequence[str]) -> str:
        """Faults with their ranks' names; one found on all ranks alike is said once."""
        if faults and faults[0] and len(set(faults)) == 1:
            return faults[0]
        return "; ".join([f"rank {rank}: {fault}" for rank, fault in enumerate(faults) if fault][:2])

    def emit(self, **event: object) -> None:
        """Report one event; rank 0 speaks for all."""
        if self.rank == 0:
            emit(event, self.events)


def emit(event: dict[str, object], stream: TextIO) -> None:
    """Write one event."""
    stream.write(_MARK + json.dumps(event) + "\n")
    stream.flush()


@dataclass
class _Process:
    """A rank as the hub sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    hub: socket.socket
    received: bytearray = field(default_factory=bytearray)
    value: bytes | None = None
    left: bool = False

    def take(self, chunk: bytes) -> None:
        """Collect what it sent: a value is complete once its length is there, and no value is a farewell."""
        self.received += chunk
        while len(self.received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self.received)[0]
            if len(self.received) < end:
                break
            value, self.received = bytes(self.received[_LENGTH.size : end]), self.received[end:]
            self.value, self.left = value or None, not value


def serve(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> int:
    """Start a process per command, each as one rank with `--hub FD` appended, and be their hub until they ended.

    Rank 0 reports on this process's standard output; what other ranks print goes to standard error. The exit code: 0,
    or that of the first rank that died.
    """
    ranks = [_start(rank, command, environment) for rank, command in enumerate(commands)]
    try:
        return _hub(ranks)
    finally:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.wait()
            rank.hub.close()


def _start(rank: int, command: Sequence[str], environment: dict[str, str]) -> _Process:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, "--hub", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else sys.stderr,
            env=environment,
        )
    return _Process(rank=rank, process=process, hub=ours)


def _hub(ranks: list[_Process]) -> int:
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.hub, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select():
                rank = key.data
                chunk = b""
                with suppress(ConnectionError):
                    chunk = rank.hub.recv(1 << 16)
                if chunk:
                    rank.take(chunk)
                    continue
                selector.unregister(rank.hub)
                if code := _ended(rank, ranks):
                    return code
            _answer(ranks)
    return 0


def _answer(ranks: Iterable[_Process]) -> None:
    """Where every rank has given its value, give all of them to all."""
    values = [rank.value for rank in ranks]
    if any(value is None for value in values):
        return
    payload = b"[" + b",".join(value for value in values if value is not None) + b"]"
    for rank in ranks:
        rank.value = None
        with suppress(ConnectionError):  # it died; its end of the socket says so next
            rank.hub.sendall(_LENGTH.pack(len(payload)) + payload)


def _ended(rank: _Process, ranks: Iterable[_Process]) -> int:
    """What a rank's end means for all: 0 where it may end, else the exit code; the reason goes to standard error."""
    try:
        code = rank.process.wait(_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        code = 1
        how = "closed its connection and hangs"
    else:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if code == 0:
        waiting = [other.rank for other in ranks if other.value is not None]
        if rank.left and not waiting:
            return 0
        code, how = 1, f"ended while rank {waiting[0]} waits for it" if waiting else "ended before it was done"
    sys.stderr.write(f"cuda_allreduce: rank {rank.rank} {how}; the other ranks were ended\n")
    sys.stderr.flush()
    return code if code > 0 else 128 - code


def join(hub: int, rank: int, size: int) -> Ranks:
    """Take up the inherited end of the hub; this process goes when its parent does.

    From now on standard output is standard error: what libraries print there (NCCL its warnings, through a buffer of
    C's) neither is taken for an event nor tears one apart. Events have a descriptor of their own.
    """
    os.set_inheritable(hub, False)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return Ranks(rank, size, socket.socket(fileno=hub), events)
