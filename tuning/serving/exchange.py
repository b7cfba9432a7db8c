"""One short exchange over HTTP that ends in time, however slowly the other side sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse

from lanewise.errors import UnreachableError
from tuning.workload import short

Read = Callable[[HTTPResponse, int], bytes]
"""Reads a reply's body, so many bytes at most."""


@contextmanager
def in_time(connection: HTTPConnection, where: str, timeout: float) -> Iterator[Read]:
    """Connect; within the block ask, and read the reply with what is given; then close.

    Args:
        connection: not connected yet.
        where: the address, for people.
        timeout: seconds for all of it.

    Raises:
        UnreachableError: no answer in time, or one that the block found cut off (an HTTPException).
    """
    deadline = time.monotonic() + timeout

    def read(response: HTTPResponse, most: int) -> bytes:
        body = response.read(most)
        if time.monotonic() >= deadline:  # shut by the timer, which looks like the end of a reply without length
            raise TimeoutError("timed out")
        return body

    try:
        connection.connect()
        # By its socket: of a reply that ends with the connection, the connection forgets it before the body is read.
        overdue = threading.Timer(timeout, _shut, (connection.sock,))
        overdue.daemon = True
        overdue.start()
        try:
            yield read
        finally:
            overdue.cancel()
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(
            f"{where} gave no answer ({short(str(error)) if str(error) else type(error).__name__})",
            expected=f"a server that answers within {timeout:g} s",
            todo="see whether it still runs, and what its log says last",
        ) from error
    finally:
        connection.close()


def _shut(sock: socket.socket) -> None:
    """End any read on it: a server that sends a byte now and then must not be waited for without end."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
