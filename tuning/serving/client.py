"""Load on a running server, by plain HTTP from threads; and what the server says of itself.

A closed loop: so many requests are always under way, until the prompts are used up. Whatever becomes of a request ends
in an `Answer` or a `Failure`. Each has a deadline: a request that is overdue, or in the way of Ctrl-C, has its socket
shut down, which ends any read on it.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lanewise.errors import InputError, LanewiseError
from tuning.serving.exchange import in_time
from tuning.serving.flight import MOST_REPLY, OK, Flight
from tuning.serving.replies import message_of
from tuning.serving.served import Answer, Failure, Load, Reason, Served
from tuning.workload import short

MOST_CONCURRENT = 64
"""Requests at once, a thread each."""
_LOOK_SECONDS = 0.05
_JOIN_SECONDS = 5.0


def generate(url: str, load: Load, *, concurrency: int, timeout: float, keep_going: bool = True) -> Served:
    """Send the prompts, so many at once, and wait for all.

    Args:
        url: of the server, http://HOST:PORT.
        load: what to ask for.
        concurrency: requests at once.
        timeout: seconds that one request may take in all.
        keep_going: whether the others go on when one fails; else they are cancelled.

    Raises:
        InputError: the address, the concurrency, or a load that its interface cannot carry.
        KeyboardInterrupt: after all requests were ended.
    """
    host, port = _host_and_port(url)
    if not 1 <= concurrency <= MOST_CONCURRENT:
        raise InputError(
            f"concurrency is {short(concurrency)}",
            expected=f"a whole number from 1 to {MOST_CONCURRENT}",
            todo="ask for fewer requests at once",
        )
    flights = [Flight(HTTPConnection(host, port, timeout=timeout), load, prompt, timeout) for prompt in load.prompts]
    loop = _Loop(flights, keep_going=keep_going)
    threads = [threading.Thread(target=loop.work, daemon=True) for _ in range(min(concurrency, len(flights)))]
    try:
        for thread in threads:
            thread.start()
        loop.watch(threads)
    finally:
        loop.cancel()
        for thread in threads:
            if thread.ident:
                thread.join(_JOIN_SECONDS)
    outcomes = [flight.outcome for flight in flights]
    return Served(
        answers=tuple(outcome for outcome in outcomes if isinstance(outcome, Answer)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
        stopped=loop.stopped,
    )


def server_info(url: str, *, timeout: float = 30.0) -> dict[str, Any]:
    """What the server says that it resolved: its arguments, version and internal states.

    Raises:
        UnreachableError: no answer in time.
        LanewiseError: the answer is none of such a server.
    """
    status, body = _ask(url, "GET", "/server_info", timeout)
    if status == 404:  # until SGLang 0.5.5 or so it had the other name only
        status, body = _ask(url, "GET", "/get_server_info", timeout)
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
        if status == OK and isinstance(document, dict):
            return document
    raise _unexpected(f"{url}/server_info", status, body, "a mapping of the server's arguments")


def metrics(url: str, *, timeout: float = 10.0) -> str:
    """The text of /metrics.

    Raises:
        UnreachableError: no answer in time.
        LanewiseError: the server has no such page.
    """
    status, body = _ask(url, "GET", "/metrics", timeout)
    if status in (307, 308):  # some servers have it below a folder
        status, body = _ask(url, "GET", "/metrics/", timeout)
    if status != OK:
        raise _unexpected(f"{url}/metrics", status, body, "counters; SGLang has them with --enable-metrics")
    return body.decode("utf-8", "replace")


def flush_cache(url: str, *, timeout: float = 10.0) -> None:
    """Empty the prefix cache and forget the average accept length.

    The server refuses while a request runs, and the last one may still be on its way out: it is asked again until then.

    Raises:
        UnreachableError: no answer in time.
        LanewiseError: it still refuses after `timeout` seconds.
    """
    deadline = time.perf_counter() + timeout
    while True:
        status, body = _ask(url, "POST", "/flush_cache", timeout)
        if status == OK:
            return
        if status != 400 or time.perf_counter() > deadline:
            raise _unexpected(f"{url}/flush_cache", status, body, "an idle server, which flushes its cache")
        time.sleep(_LOOK_SECONDS)


def start_profile(url: str, folder: Path, *, steps: int, timeout: float = 30.0) -> None:
    """Have the kernels of so many forward passes from now on written into a folder, one trace a rank.

    Raises:
        UnreachableError: no answer in time.
        LanewiseError: the server has no profiler.
    """
    # Without stacks and shapes, which cost a server more than its steps take.
    watched = {"activities": ["GPU"], "with_stack": False, "record_shapes": False}
    body = {"output_dir": str(folder), "num_steps": steps, **watched}
    status, reply = _ask(url, "POST", "/start_profile", timeout, body)
    if status != OK:
        raise _unexpected(f"{url}/start_profile", status, reply, "a server whose profiler can be started")


def _host_and_port(url: str) -> tuple[str, int]:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and not (parts.path.strip("/") or parts.query or parts.username):
            return parts.hostname, parts.port or 80
    raise InputError(
        f"the server's address is {short(url)}",
        expected="http://HOST:PORT, e.g. http://127.0.0.1:30000",
        todo="give the address at which the server listens, without a path",
    )


def _ask(
    url: str, method: str, path: str, timeout: float, body: Mapping[str, object] | None = None
) -> tuple[int, bytes]:
    """One short exchange: status and body."""
    host, port = _host_and_port(url)
    connection = HTTPConnection(host, port, timeout=timeout)
    with in_time(connection, f"{url}{path}", timeout) as read:
        if body is None:
            connection.request(method, path)
        else:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            reply = read(response, MOST_REPLY)
            if response.length:
                raise IncompleteRead(reply, response.length)
            return response.status, reply


def _unexpected(where: str, status: int, body: bytes, expected: str) -> LanewiseError:
    return LanewiseError(
        f"{where} answered HTTP {status}: {message_of(body)}", expected=expected, todo="see the server's log"
    )


class _Loop:
    """What the threads of one load share."""

    def __init__(self, flights: list[Flight], *, keep_going: bool) -> None:
        self._flights, self._keep_going = flights, keep_going
        self._numbers = itertools.count()
        self.stopped = 0.0

    def work(self) -> None:
        """One request after the other, until there are no more."""
        while (number := next(self._numbers)) < len(self._flights):
            outcome = self._flights[number].fly()
            if isinstance(outcome, Failure) and not self._keep_going:
                self.cancel()

    def watch(self, threads: list[threading.Thread]) -> None:
        """Wait for the threads, and end what is overdue."""
        for thread in threads:
            while thread.is_alive():
                before = time.perf_counter()
                thread.join(_LOOK_SECONDS)
                now = time.perf_counter()
                self.stopped = max(self.stopped, now - before - _LOOK_SECONDS)
                for flight in self._flights:
                    if now > flight.deadline:
                        flight.end(Reason.TIMED_OUT)

    def cancel(self) -> None:
        """End all requests that have not ended yet; those that did not begin never will."""
        for flight in self._flights:
            flight.end(Reason.CANCELLED)
