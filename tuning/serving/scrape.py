"""Fetches /metrics and /server_info of a running server over http(s), from the address that a user named alone."""

from __future__ import annotations

import json
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import OK, HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from lanewise.errors import InputError, LanewiseError, UnreachableError
from tuning.serving.counters import Metrics, parse_metrics
from tuning.serving.exchange import in_time
from tuning.workload import short

_PATH = "/metrics"
_INFO = ("/server_info", "/get_server_info")
"""The second is its name until SGLang 0.5.5 or so."""
_MOST_PAGE = 32 << 20
_SHOWN = 40
_MOVED = (301, 302, 307, 308)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server's counters are: without redirections to elsewhere, proxies or credentials."""

    host: str
    port: int
    secure: bool
    path: str = _PATH

    @property
    def url(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"


def parse_address(text: str) -> Address:
    """A server's address as typed: http(s)://HOST[:PORT], with or without /metrics.

    Raises:
        InputError: it is none.
    """
    with suppress(ValueError):
        parts = urlsplit(text)
        path = parts.path.rstrip("/").removesuffix(_PATH)
        plain = text.isascii() and text.isprintable() and " " not in text
        if plain and parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.username):
            secure = parts.scheme == "https"
            port = (443 if secure else 80) if parts.port is None else parts.port
            if port:
                return Address(host=parts.hostname, port=port, secure=secure, path=path + _PATH)
    raise InputError(
        f"the server's address is {short(text)}",
        expected="http://HOST:PORT or https://HOST:PORT",
        todo="give the address at which the server listens, e.g. http://127.0.0.1:30000",
    )


def scrape(address: Address, timeout: float) -> Metrics:
    """One reading of the counters.

    Raises:
        UnreachableError: no answer within `timeout` seconds.
        LanewiseError: an answer without counters of SGLang's or vLLM's.
    """
    status, body = _get(address, address.path, timeout)
    if status in _MOVED:  # some servers have it below a folder
        status, body = _get(address, address.path + "/", timeout)
    if status != OK:
        raise LanewiseError(
            f"{address.url} answered HTTP {status}",
            expected="counters; SGLang has them with --enable-metrics",
            todo="start the server with --enable-metrics, or check the address",
        )
    text = body.decode("utf-8", "replace")
    found = parse_metrics(text)
    if not found.series:
        raise LanewiseError(
            f"{address.url} has no counters of SGLang's or vLLM's (it {_begins(text)})",
            expected="lines such as 'sglang:num_running_reqs 1' or 'vllm:num_requests_running 1'",
            todo="check the address; start SGLang with --enable-metrics, and send it a request if it has had none yet",
        )
    return found


def _begins(text: str) -> str:
    first = text.strip()[:_SHOWN]
    return f"begins {short(first)}" if first else "is empty"


def server_info(address: Address, timeout: float) -> dict[str, Any]:
    """What the server says of its arguments, for whoever may ask; {} where it does not say.

    Raises:
        UnreachableError: no answer within `timeout` seconds.
    """
    for name in _INFO:
        status, body = _get(address, address.path.removesuffix(_PATH) + name, timeout)
        if status == OK:
            with suppress(ValueError, RecursionError):
                document = json.loads(body)
                return document if isinstance(document, dict) else {}
    return {}


def _get(address: Address, path: str, timeout: float) -> tuple[int, bytes]:
    if address.secure:
        connection: HTTPConnection = HTTPSConnection(
            address.host, address.port, timeout=timeout, context=ssl.create_default_context()
        )
    else:
        connection = HTTPConnection(address.host, address.port, timeout=timeout)
    began = time.monotonic()
    try:
        with in_time(connection, address.url, timeout) as read:
            connection.request("GET", path)
            with connection.getresponse() as response:
                body = read(response, _MOST_PAGE)
                if response.length:
                    raise HTTPException(f"more than {_MOST_PAGE:,} bytes, or cut off")
                return response.status, body
    except UnreachableError as error:
        if time.monotonic() - began < timeout:
            raise
        # The connection was shut from here, which reads as if the server had done so.
        raise UnreachableError(
            f"{address.url} did not answer within {timeout:g} s", expected=error.expected, todo=error.todo
        ) from error
