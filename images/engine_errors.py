"""What the engine, or the way to it, raises, as errors in three parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lanewise.errors import LanewiseError, UnreachableError
from lanewise.redact import Redactor

_MOST_WORDS = 400
_NO_SPACE = "no space left on device"


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn the engine's refusals into errors.

    Args:
        what: what is asked of it, as in "cannot <what>".

    Raises:
        UnreachableError: it does not answer, or no longer.
        LanewiseError: it refuses.
    """
    from docker.errors import APIError, DockerException  # noqa: PLC0415 - as in images/engine.py
    from requests.exceptions import RequestException  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield
    except APIError as error:
        raise refused(what, str(error.explanation or error)) from error
    except (DockerException, RequestException, HTTPError, OSError) as error:
        raise UnreachableError(
            f"cannot {what}: the container engine stopped answering ({short(str(error))})",
            expected="an engine that runs until its answer is complete",
            todo="see the engine's own log, start it again, and call again: what is finished is kept",
        ) from error


def refused(what: str, why: str) -> LanewiseError:
    """The error of an engine that says no."""
    if _NO_SPACE in why.lower():
        return LanewiseError(
            f"cannot {what}: no space left for the engine ({short(why)})",
            expected="room where the engine keeps its images, which docker info calls Docker Root Dir",
            todo="remove images that are no longer needed (docker image ls), and call again: what is finished is kept",
        )
    return LanewiseError(
        f"cannot {what}: {short(why)}", expected="an engine that does so", todo="see the engine's own log"
    )


def short(text: str) -> str:
    """One line without secrets; of a long text its end, which is where tools say what failed."""
    line = Redactor({})(" ".join(text.split()))
    return line if len(line) <= _MOST_WORDS else "... " + line[-_MOST_WORDS:]
