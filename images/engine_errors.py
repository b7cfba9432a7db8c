"""What the engine, or the way to it, raises, as errors in three parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lanewise.errors import LanewiseError, UnreachableError
from lanewise.redact import Redactor
from lanewise.talk import printable

_MOST_CHARACTERS = 500
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NO_SPACE = "no space left on device"


_SEE_THE_LOG = "see the engine's own log"
LOG_IN = "check the network, the registry's address, and docker login"
"""What to do where a registry refuses or does not answer."""


@contextmanager
def asking(what: str, *, todo: str = _SEE_THE_LOG) -> Iterator[None]:
    """Turn the engine's refusals into errors.

    Args:
        what: what is asked of it, as in "cannot <what>".
        todo: what to do when it refuses.

    Raises:
        UnreachableError: it does not answer, or no longer.
        LanewiseError: it refuses.
    """
    from docker.errors import APIError, DockerException  # noqa: PLC0415 - as in lanewise/engine.py
    from requests.exceptions import RequestException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield
    except APIError as error:
        raise refused(what, str(error.explanation or error), todo=todo) from error
    except (DockerException, RequestException, HTTPError, OSError) as error:
        raise UnreachableError(
            f"cannot {what}: the container engine stopped answering ({short(str(error))})",
            expected="an engine that runs until its answer is complete",
            todo="see the engine's own log, start it again, and call again: what is finished is kept",
        ) from error


def refused(what: str, why: str, *, todo: str = _SEE_THE_LOG) -> LanewiseError:
    """The error of an engine that says no."""
    if no_space(why):
        return LanewiseError(
            f"cannot {what}: no space left for the engine ({short(why)})",
            expected="room where the engine keeps its images, which docker info calls Docker Root Dir",
            todo="remove images that are no longer needed (docker image ls), and call again: what is finished is kept",
        )
    return LanewiseError(f"cannot {what}: {short(why)}", expected="an engine that does so", todo=todo)


def no_space(why: str) -> bool:
    """Whether a text says that a disk is full."""
    return _NO_SPACE in why.lower()


def short(text: str) -> str:
    """One line without secrets and colours; of a long text its end, which is where tools say what failed."""
    line = Redactor({})(" ".join(_COLOUR.sub("", text).split()))
    return printable(line if len(line) <= _MOST_CHARACTERS else "... " + line[-_MOST_CHARACTERS:])
