"""What engine `cuda` measures and how it checks it; knows nothing of CUDA, NCCL or processes.

A *way* is one candidate's allreduce. A *lot* is what one sample times: the calls of one pass of the model,

    [restore the inputs] [flush L2] one call that aligns the ranks | start mark, N calls, end mark

put on a stream call by call (mode "eager"), or captured into one CUDA graph and replayed (mode "graph"). In graph mode
the marks are event-record nodes inside the graph. Events around a replay would count the launch of the graph as well,
which an engine pays once for its whole forward pass, and would start each rank's clock when its host came to launch.
The aligning call is part of the lot for the same reason: no rank leaves it before every rank has entered it, so the
ranks' clocks start within one call's tail of each other, whatever their hosts did; a round trip between hosts, some 50
us, could not do that. The slowest rank's time counts. The two marks cost 2.2 to 2.7 us a lot (one H200, driver 580:
bench/cuda_findings.py): 0.02 us a call of 122, and much of the time of a lot of one call. Eager calls are made from
Python through ctypes, as pynccl makes them, and hold what that costs the host.

Working sets: "warm" uses one pair of buffers again and again. "cold" gives every call buffers of its own (or cycles
through twice the L2 where the calls need more than that) and overwrites twice the L2 before the clock starts, so that
inputs and outputs come from memory. NCCL's own staging buffers are warm after the first call in both.

A way that reduces in place needs a fresh input for every call: repeated on its own result, n ranks' sum grows by a
factor n a call and soon is infinite. It gets a buffer a call in both working sets, restored before the clock starts.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cuda_allreduce import Job, Message
    from .cuda_buffers import DTYPES, Buffers
    from .cuda_hub import Ranks
    from .cuda_ways import Backend, Choice, Device, DeviceError, Done, Refused, Way, Work, together
else:
    from cuda_buffers import DTYPES, Buffers
    from cuda_ways import DeviceError, Refused, Work, together

CHECK_SIZES = (1, 2, 3, 5, 17, 255, 1023, 4097)
"""Elements of the ragged messages checked beside the workload's own: around ranks, packets and powers of two."""
WARMUP_LOTS = 2
IN_PLACE_BYTES = 1 << 28
"""Inputs that a way in place keeps: beyond it, its lots have fewer calls (a call's time is what is reported)."""
VERIFIED_BYTES = 1 << 24
"""Results read back after timed lots; of more than that, evenly spread buffers are."""


@dataclass(frozen=True, kw_only=True)
class Lot:
    """The calls that one sample times, for one way, message and working set."""

    way: Way
    device: Device
    buffers: Buffers
    calls: int
    slots: int
    flush: tuple[int, int] | None  # address and bytes of what is overwritten to empty the L2

    def put(self, *, captured: bool) -> None:
        """Put everything on the stream, as the module's docstring draws it."""
        pairs = [self.buffers.pair(slot) for slot in range(self.slots)]
        call, elements = self.way.call, self.buffers.elements
        if self.way.in_place:
            self.device.copy(self.buffers.results, self.buffers.inputs, self.buffers.total)
        if self.flush:
            self.device.fill(self.flush[0], 0, self.flush[1])
        call(*self.buffers.pair(self.buffers.slots), elements)
        self.device.mark("start", captured=captured)
        for number in range(self.calls):
            call(*pairs[number % self.slots], elements)
        self.device.mark("end", captured=captured)

    def verified(self) -> range:
        """The slots whose results are read back."""
        return range(0, self.slots, max(1, -(-self.slots * self.buffers.nbytes // VERIFIED_BYTES)))


Lots = dict[tuple[str, str, str, str], tuple[Lot, Work]]
"""(candidate, message, mode, working set): a lot, and what runs it once."""


class Bench:
    """One launch's measuring: every candidate checked on every size, then those that are right timed in turn."""

    def __init__(self, job: Job, backend: Backend, ranks: Ranks) -> None:
        self._job, self._backend, self._device, self._ranks = job, backend, backend.device, ranks
        self._dtype = DTYPES[job.dtype]
        self._ways: dict[str, Way] = {}
        self._lots: Lots = {}
        self._flush: tuple[int, int] | None = None
        if "cold" in job.working_sets:
            nbytes = 2 * self._device.l2_bytes
            self._flush = (self._device.allocate(nbytes), nbytes)

    def run(self) -> None:
        """Open, check, then time."""
        for candidate in self._job.candidates:
            self._begin("setup", candidate.key, self._job.messages[0])
            with self._reporting(candidate.key):
                self._ways[candidate.key] = self._backend.open(candidate)
        buffers = {message.name: self._buffers(message) for message in self._job.messages}
        ragged = [self._make(elements, 1) for elements in CHECK_SIZES]
        for key in list(self._ways):
            with self._reporting(key):
                self._prepare(key, buffers, ragged)
        self._backend.quiet()
        order = random.Random(self._job.seed)  # noqa: S311 - the same seed gives every rank the same order
        for number in range(self._job.rounds):
            visits = list(self._lots)
            order.shuffle(visits)
            for visit in visits:
                if visit in self._lots:
                    self._time(visit, number)

    @contextmanager
    def _reporting(self, key: str) -> Iterator[None]:
        """Turn what ends one candidate's part, which it does on every rank alike, into its event."""
        try:
            yield
        except Refused as refused:
            self._drop(key, "unsupported", str(refused))
        except _WrongError as wrong:
            self._drop(key, "wrong", str(wrong))

    def _drop(self, key: str, event: str, reason: str) -> None:
        """Report what is wrong with a candidate and measure it no further."""
        self._ranks.emit(event=event, candidate=key, reason=reason)
        self._ways.pop(key, None)
        self._lots = {visit: lot for visit, lot in self._lots.items() if visit[0] != key}

    def _begin(self, phase: str, key: str, message: Message, **more: str) -> None:
        self._ranks.emit(event="begin", phase=phase, candidate=key, message=message.name, **more)

    def _make(self, elements: int, slots: int) -> Buffers:
        return Buffers(self._device, self._ranks, self._dtype, elements, slots, self._job.seed)

    def _buffers(self, message: Message) -> Buffers:
        sets, ways = self._job.working_sets, self._ways.values()
        sizes = [self._size(way, message, working_set == "cold") for way in ways for working_set in sets]
        return self._make(message.bytes // self._dtype.bytes, max((slots for _, slots in sizes), default=1))

    def _size(self, way: Way, message: Message, cold: bool) -> tuple[int, int]:
        """Calls and slots of a lot."""
        if way.in_place:
            calls = min(message.calls, max(1, IN_PLACE_BYTES // message.bytes))
            return calls, calls
        return message.calls, min(message.calls, self._device.l2_bytes // message.bytes + 1) if cold else 1

    def _prepare(self, key: str, buffers: dict[str, Buffers], ragged: list[Buffers]) -> None:
        """Check one candidate, capture its lots, and hold what NCCL ran against what was asked of it."""
        way = self._ways[key]
        for message in self._job.messages:
            data = buffers[message.name]
            self._begin("check", key, message)
            if data.elements % way.granularity:
                raise Refused(f"message {message.name}: {data.elements} elements, not a multiple of {way.granularity}")
            self._agree(partial(self._check_once, way, data), way)
            seen = [("eager", choice) for choice in way.choices()]
            for working_set in self._job.working_sets:
                self._add_lots(key, message, data, working_set)
            seen += [("graph", choice) for choice in way.choices()]
            self._report_choice(key, message, [(mode, c) for mode, c in seen if c.bytes == message.bytes])
            if way.bitwise:
                self._begin("check bit for bit", key, message)
                self._agree(partial(self._check_bits, key, message.name), way)
        for data in ragged:
            if data.elements % way.granularity == 0:
                self._agree(partial(self._check_once, way, data), way)

    def _add_lots(self, key: str, message: Message, data: Buffers, working_set: str) -> None:
        way, cold = self._ways[key], working_set == "cold"
        calls, slots = self._size(way, message, cold)
        flush = self._flush if cold else None
        lot = Lot(way=way, device=self._device, buffers=data, calls=calls, slots=slots, flush=flush)
        for mode in self._job.modes:
            run: Work = partial(lot.put, captured=False)
            if mode == "graph":
                run = self._together(lambda: way.capture(partial(lot.put, captured=True)))
            self._lots[key, message.name, mode, working_set] = (lot, run)
            self._agree(partial(self._check_lot, lot, run), way)

    def _together(self, attempt: Callable[[], Done]) -> Done:
        """Do it on every rank; where one of them is refused, all are."""
        return together(self._ranks, attempt)

    def _agree(self, check: Callable[[], str], way: Way) -> None:
        """Run a check on every rank; raise _Wrong everywhere where it found something anywhere."""
        fault = self._together(check)
        way.watch()
        if faults := self._ranks.faults(fault):
            raise _WrongError(f"{faults} (checked before timing)")

    def _check_once(self, way: Way, data: Buffers) -> str:
        """One call into a poisoned result."""
        data.poison()
        send, receive = data.pair(0)
        if way.in_place:
            self._device.copy(receive, send, data.nbytes)
        way.call(send, receive, data.elements)
        self._device.wait(way.watch)
        return data.fault([0])

    def _check_lot(self, lot: Lot, run: Work) -> str:
        lot.buffers.poison()
        run()
        self._device.wait(lot.way.watch)
        return lot.buffers.fault(lot.verified())

    def _check_bits(self, key: str, message: str) -> str:
        """The same bits after every one of many passes, each into a poisoned result."""
        lot, run = self._lots[key, message, self._job.modes[0], self._job.working_sets[0]]
        first = b""
        for number in range(self._job.bitwise_replays):
            lot.buffers.poison()
            run()
            self._device.wait(lot.way.watch)
            now = b"".join(lot.buffers.read(slot).tobytes() for slot in lot.verified())
            if first and now != first:
                return f"pass {number + 1} gave other bits than the first"
            first = now
        return ""

    def _report_choice(self, key: str, message: Message, seen: list[tuple[str, Choice]]) -> None:
        """Tell what NCCL ran, which only rank 0's log says; raise Refused, on all ranks, where it was not asked for."""
        for choice in dict.fromkeys(choice for _, choice in seen):
            self._ranks.emit(
                event="choice",
                candidate=key,
                message=message.name,
                algorithm=choice.algorithm,
                protocol=choice.protocol,
                channels=choice.channels,
                modes=sorted({mode for mode, other in seen if other == choice}),
                nccl=self._ways[key].library_version,
            )
        refuses = self._ways[key].refuses
        mine = [refuses(choice) for _, choice in seen] or [refuses(None)]
        reason = self._ranks.exchange(next(filter(None, mine), ""))[0]
        if reason:
            raise Refused(f"message {message.name}: {reason}")

    def _samples(self, lot: Lot, run: Work) -> list[float]:
        """Microseconds a call on this rank, a value a lot."""
        lot.buffers.poison()
        us = []
        try:
            for sample in range(WARMUP_LOTS + self._job.samples):
                run()
                self._device.wait(lot.way.watch)
                if sample >= WARMUP_LOTS:
                    us.append(self._device.elapsed_us() / lot.calls)
        except Refused as refused:  # it ran a moment ago; now other ranks may wait for this call for ever
            raise DeviceError(str(refused)) from refused
        return us

    def _time(self, visit: tuple[str, str, str, str], number: int) -> None:
        """One visit: some warm-up, then samples, then the results checked once more."""
        key, name, mode, working_set = visit
        lot, run = self._lots[visit]
        message = next(message for message in self._job.messages if message.name == name)
        self._begin("time", key, message, mode=mode, working_set=working_set)
        mine = self._samples(lot, run)
        digest = hashlib.blake2b(digest_size=16)
        fault = lot.buffers.fault(lot.verified(), digest)
        everywhere = self._ranks.exchange({"us": mine, "fault": fault, "digest": digest.hexdigest()})
        if faults := self._ranks.named([rank["fault"] for rank in everywhere]):
            self._drop(key, "wrong", f"{faults} (checked after timed passes, {mode}, {working_set})")
            return
        more: dict[str, object] = {"logged": True} if lot.way.logged and mode == "eager" else {}
        self._ranks.emit(
            event="samples",
            candidate=key,
            message=name,
            mode=mode,
            working_set=working_set,
            round=number,
            us=[round(max(us), 4) for us in zip(*(rank["us"] for rank in everywhere), strict=True)],
            equal_on_ranks=len({rank["digest"] for rank in everywhere}) == 1,
            **more,
        )


class _WrongError(Exception):
    """A check found wrong results; the same text on every rank."""
