"""A load and what came of it: answers with the times at which they came, and failures with their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuning.serving.prompts import Prompt
from tuning.serving.records import Request


class Api(StrEnum):
    """How a prompt is put to a server."""

    GENERATE = "generate"  # SGLang's own: the prompt as it is, as text or token ids
    CHAT = "chat"  # OpenAI's: through the model's chat template, which drafts are trained on


class Reason(StrEnum):
    """Why a request has no numbers."""

    UNREACHABLE = "unreachable"  # no connection, or it was reset
    REFUSED = "refused"  # an HTTP status other than 200
    ABORTED = "aborted"  # the server said that it gave the request up
    HALF_CLOSED = "half-closed"  # the reply ended before its end
    TIMED_OUT = "timed out"  # not complete in time, however much of it came
    UNREADABLE = "unreadable"  # not what such a server says, or without its counts
    TOO_LARGE = "too large"  # an event or reply without end
    CANCELLED = "cancelled"  # another request failed, and the caller wanted none then


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to ask for.

    Attributes:
        prompts: one request each, in this order.
        max_tokens: most tokens of an answer.
        api: how to ask.
        stream: whether chunks are sent as they come; without, there are no times inside a request.
        ignore_eos: generate max_tokens whatever the model says.
        model: name for the chat interface; SGLang takes any.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    api: Api = Api.GENERATE
    stream: bool = True
    ignore_eos: bool = False
    model: str = "default"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A request that ended well. Times are of time.perf_counter: from sending to first and last token."""

    request: Request
    sent: float
    first: float
    last: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that did not: why, in what words, and after how many seconds."""

    prompt: str
    category: str
    reason: Reason
    detail: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Served:
    """What came of a load.

    Attributes:
        answers, failures: each in the order of the prompts.
        stopped: seconds that this process lost at a time at most: it was stopped (Ctrl-Z), or the machine slept.
    """

    answers: tuple[Answer, ...]
    failures: tuple[Failure, ...]
    stopped: float = 0.0

    @property
    def requests(self) -> list[Request]:
        """The answers as records."""
        return [answer.request for answer in self.answers]
