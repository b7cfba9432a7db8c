"""One request: sent, each chunk timed as it is read, and what came of it, however it ends.

A chunk's time is taken when the read of the socket that completes it returns, so chunks that come in one read have the
same time, and a gap of 0 between them.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead

from tuning.serving.prompts import Prompt
from tuning.serving.records import Request
from tuning.serving.replies import (
    AbortedError,
    Reply,
    UnreadableError,
    body_of,
    message_of,
    path_of,
    read_reply,
    tells_tokens,
)
from tuning.serving.served import Answer, Api, Failure, Load, Reason

OK = 200
MOST_REPLY = 16 << 20
"""Bytes of one event of a stream, or of a reply that is none: some hundred thousand tokens as text and as numbers."""
_MOST_KEPT = 64 << 20
"""Bytes of all events of one chat."""
_MORE_CHUNKS = 16
"""Chunks beyond one a token that a server may send; one that goes on and on is no server."""
_READ = 1 << 16


class _FlightError(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Flight:
    """One request: on its way from the beginning of `fly` to its end, in one thread; any may `end` it."""

    def __init__(self, connection: HTTPConnection, load: Load, prompt: Prompt, timeout: float) -> None:
        self.connection, self.load, self.prompt, self.timeout = connection, load, prompt, timeout
        self.body = body_of(prompt, load)
        self.deadline = float("inf")
        self.outcome: Answer | Failure | None = None
        self._socket: socket.socket | None = None
        self._ended: Reason | None = None
        self._sent = 0.0
        self._stamps: list[float] = []

    def end(self, reason: Reason) -> None:
        """Have it fail for that reason, unless it is over: whatever waits for its socket wakes."""
        self._ended = self._ended or reason
        if self.outcome is None and self._socket:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def fly(self) -> Answer | Failure:
        """Send, read to the end, say what came of it."""
        begun = time.perf_counter()
        self.deadline = begun + self.timeout
        try:
            self.outcome = self._answer(self._exchange())
        except (_FlightError, UnreadableError, OSError, HTTPException, ValueError) as error:
            reason, detail = self._why(error)
            self.outcome = Failure(
                prompt=self.prompt.id,
                category=self.prompt.category,
                reason=reason,
                detail=detail,
                seconds=time.perf_counter() - begun,
            )
        finally:
            self.deadline = float("inf")
            self.connection.close()
        return self.outcome

    def _exchange(self) -> Reply:
        if not self._ended:
            self.connection.connect()
        # http.client lets go of its socket where the server will close it; end() needs it until then.
        self._socket = self.connection.sock
        if self._ended:
            raise _FlightError(self._ended, "not sent")
        self._sent = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", path_of(self.load.api), self.body, headers)
        with self.connection.getresponse() as response:
            if response.status != OK:
                raise _FlightError(Reason.REFUSED, f"HTTP {response.status}: {message_of(response.read(_READ))}")
            return self._stream(response) if self.load.stream else self._whole(response)

    def _whole(self, response: HTTPResponse) -> Reply:
        body = response.read(MOST_REPLY + 1)
        self._stamps.append(time.perf_counter())
        if len(body) > MOST_REPLY:
            raise _FlightError(Reason.TOO_LARGE, f"a reply of more than {MOST_REPLY:,} bytes")
        if response.length:
            raise _FlightError(Reason.HALF_CLOSED, f"the reply lacks its last {response.length:,} bytes")
        return read_reply(self.load.api, [body])

    def _stream(self, response: HTTPResponse) -> Reply:
        """Read to the end. Of a native stream the last event is enough: each holds all that came before."""
        events: list[bytes] = []
        kept = 0
        for stamp, event in _events(response):
            if event == b"[DONE]":
                return read_reply(self.load.api, events)
            if tells_tokens(self.load.api, event):
                self._stamps.append(stamp)
            if self.load.api is Api.GENERATE:
                events.clear()
            events.append(event)
            kept += len(event)
            if len(self._stamps) > self.load.max_tokens + _MORE_CHUNKS or (kept > _MOST_KEPT and len(events) > 1):
                raise _FlightError(Reason.TOO_LARGE, f"{len(self._stamps)} chunks for {self.load.max_tokens} tokens")
        raise _FlightError(Reason.HALF_CLOSED, f"the stream ended after {len(self._stamps)} chunks, without [DONE]")

    def _why(self, error: Exception) -> tuple[Reason, str]:
        """The reason of a failure: what this side did to it, before what that looked like on the socket."""
        so_far = f"{len(self._stamps)} chunks came"
        if self._ended is Reason.TIMED_OUT or isinstance(error, TimeoutError):
            return Reason.TIMED_OUT, f"not complete after {self.timeout:g} s; {so_far}"
        if self._ended:
            return self._ended, so_far
        detail = str(error) or type(error).__name__
        if isinstance(error, _FlightError):
            return error.reason, detail
        if isinstance(error, IncompleteRead):
            return Reason.HALF_CLOSED, f"the connection ended within the reply; {so_far}"
        if isinstance(error, OSError):
            return Reason.UNREACHABLE, f"{detail}; {so_far}"
        return Reason.ABORTED if isinstance(error, AbortedError) else Reason.UNREADABLE, detail

    def _answer(self, reply: Reply) -> Answer:
        if not self._stamps:
            raise UnreadableError("a stream without any token")
        if reply.completion_tokens > self.load.max_tokens:
            raise UnreadableError(
                f"completion_tokens is {reply.completion_tokens:,}, and at most {self.load.max_tokens:,} were asked for"
            )
        stamps, sent = self._stamps, self._sent
        request = Request(
            prompt=self.prompt.id,
            category=self.prompt.category,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            verify_passes=reply.verify_passes,
            accepted=reply.accepted,
            ttft_ms=(stamps[0] - sent) * 1000 if self.load.stream else None,
            seconds=stamps[-1] - sent,
            chunks=len(stamps),
            gaps_ms=tuple((after - before) * 1000 for before, after in itertools.pairwise(stamps)),
            finish=reply.finish,
            output=reply.output,
        )
        return Answer(request=request, sent=sent, first=stamps[0], last=stamps[-1])


def _events(response: HTTPResponse) -> Iterator[tuple[float, bytes]]:
    """Events of a stream with the time of the read that completed each; lines that are no data are passed over."""
    parts: list[bytes] = []  # of a line that is not complete yet; joined once, however many reads it takes
    size = 0
    while piece := response.read1(_READ):
        stamp = time.perf_counter()
        parts.append(piece)
        size += len(piece)
        if b"\n" in piece:
            *lines, rest = b"".join(parts).split(b"\n")
            parts, size = [rest], len(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    yield stamp, line[5:].strip()
        if size > MOST_REPLY:
            raise _FlightError(Reason.TOO_LARGE, f"an event of more than {MOST_REPLY:,} bytes")
