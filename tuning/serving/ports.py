"""Two ports of a server, its HTTP port and its NCCL port, kept from others until the server itself listens on them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lanewise.errors import InputError

_LOOPBACK = "127.0.0.1"
_MOST = 65_535


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports of one server.

    Attributes:
        http: where it answers.
        nccl: where its ranks meet.
    """

    http: int
    nccl: int


@contextmanager
def held_ports(asked: int = 0, *, keep: bool = True) -> Iterator[Ports]:
    """Two ports that nobody else is given while the block runs.

    Each is bound and not listened on: the kernel then gives it to nobody who asks for any port, and refuses it to those
    who bind it without SO_REUSEADDR, while SGLang, uvicorn and torch's store, which set that option, can still listen
    on it (socket(7), ip(7); SGLang's own check in srt/utils/network.py of 0.5.23 and srt/utils/common.py of 0.5.9 does
    so too).

    Args:
        asked: the HTTP port that a user named; 0 for any free one.

        keep: False for a container: the engine may bind without that option, so the ports are only chosen.

    Raises:
        InputError: `asked` is no port, is in use, or may not be used.
    """
    if not 0 <= asked <= _MOST:
        raise InputError(
            f"port {asked} is no port", expected=f"from 1 to {_MOST:,}", todo="correct it, or leave it out"
        )
    if asked:
        _require_free(asked)
    with ExitStack() as stack:
        http, nccl = (stack.enter_context(_bound(port)) for port in (asked, 0))
        ports = Ports(http=http.getsockname()[1], nccl=nccl.getsockname()[1])
        if not keep:
            stack.close()
        yield ports


def _bound(port: int) -> socket.socket:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, port))
    except BaseException:
        holder.close()
        raise
    return holder


def _require_free(port: int) -> None:
    """Listen for a moment, as the server will: a port that somebody listens on can still be bound, as above."""
    try:
        with _bound(port) as probe:
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} is taken: another program listens on it",
                expected="a free port of this machine",
                todo=f"name another port, or leave it out; `ss -ltnp sport = :{port}` says who has it",
            ) from error
        raise InputError(
            f"port {port} cannot be used ({error.strerror})",
            expected="a port that this user may listen on, e.g. 30000",
            todo="name another port, or leave it out",
        ) from error
