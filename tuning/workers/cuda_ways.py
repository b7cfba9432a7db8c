"""What engine `cuda` measures, in terms that name neither CUDA nor NCCL: devices, ways to allreduce, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from .cuda_allreduce import Candidate
    from .cuda_hub import Ranks

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Work = Callable[[], None]
Done = TypeVar("Done")


class Unusable(Exception):  # noqa: N818 - a finding about the machine, not a mistake
    """This launch cannot measure anything: no driver, too few GPUs, no NCCL."""


class Refused(Exception):  # noqa: N818 - a finding about the candidate
    """One candidate cannot run here; the reason, in words."""


class DeviceError(Exception):
    """A CUDA or NCCL call failed; the process is of no further use."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What NCCL's log says it ran for one call; channels None where a release does not say."""

    bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None


class Device(Protocol):
    """Memory, a stream with two marks on it, and the clock between them."""

    l2_bytes: int

    def allocate(self, nbytes: int) -> int:
        """Address of new memory."""

    def write(self, address: int, data: Bytes) -> None:
        """Copy from the host, and wait."""

    def read(self, address: int, nbytes: int) -> Bytes:
        """Copy to the host, and wait."""

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Put a fill on the stream."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Put a copy on the stream."""

    def mark(self, which: str, *, captured: bool) -> None:
        """Put the mark "start" or "end" on the stream, or into the graph being captured."""

    def wait(self, watch: Work) -> None:
        """Until the stream is empty; `watch` is called now and then and may raise."""

    def elapsed_us(self) -> float:
        """Between the marks, as last passed."""


class Way(Protocol):
    """One candidate's allreduce: on every rank alike, on the device's stream."""

    in_place: bool
    granularity: int  # elements; sizes that are no multiple are not asked of it
    bitwise: bool  # must give the same bits again and again before it counts as right

    @property
    def library_version(self) -> str:
        """Release of the libnccl that does the work, e.g. "2.28.9"; "" where it is none."""

    @property
    def logged(self) -> bool:
        """Whether its library goes on writing a log line a call while it is timed."""

    def call(self, send: int, receive: int, elements: int) -> None:
        """Put one allreduce on the stream (in place: of `receive`)."""

    def capture(self, work: Work) -> Work:
        """Capture what `work` puts on the stream into a graph; what replays it."""

    def choices(self) -> list[Choice]:
        """What NCCL logged since the last time asked; empty where another library does the work."""

    def refuses(self, choice: Choice | None) -> str:
        """Why that choice is not what the candidate stands for ("" where it is); None: the log names none."""

    def watch(self) -> None:
        """Raise DeviceError where the library noticed a fault in the background."""


class Backend(Protocol):
    """Makes ways on a device."""

    @property
    def device(self) -> Device:
        """The device of all its ways."""

    def open(self, candidate: Candidate) -> Way:
        """One candidate's way; raises Refused, on every rank or on none."""

    def quiet(self) -> None:
        """Stop logging: from now on calls are timed."""


def together(ranks: Ranks, attempt: Callable[[], Done]) -> Done:
    """Do it on every rank; where one of them is refused, all are, with the same words."""
    done: list[Done] = []
    reason = ""
    try:
        done.append(attempt())
    except Refused as refused:
        reason = str(refused)
    if faults := ranks.faults(reason):
        raise Refused(faults)
    return done[0]
