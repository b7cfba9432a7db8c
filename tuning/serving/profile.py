"""A short profile of a server's decode steps: how often each kernel ran in a step, and for how long.

SGLang writes one trace a rank on POST /start_profile, of so many forward passes (tried on 0.5.12). Kernels of a rank
that waits for another count as that kernel's time: an allreduce's time here holds the skew between ranks.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from lanewise.errors import InputError, LanewiseError
from tuning.serving.client import generate, start_profile
from tuning.serving.served import Load
from tuning.serving.trace import Kernel, read_kernels
from tuning.trial import is_number, items, mapping

STEPS = 10
_BEFORE_SECONDS = 0.5
"""After the requests were sent, for their prefill to be over."""
_LOOK_SECONDS = 0.1
_LOST = 0.02
"""Of a step's kernels, by which it may differ from the median step and still be whole; some run in every other step."""
_SHOWN = 40
"""Kernels that are kept: those that take longest; the rest is one entry."""
REST = "(all others)"
_MOST = 1e12
"""Of any number of a profile in a run file; sums of those stay numbers."""
_TRACE = ".trace.json.gz"
_MOST_FILES = 10_000
"""Of the folder's that are looked at; a server writes one a rank."""
_ALLREDUCE = re.compile(r"all_?reduce|cross_device_reduce|multimem_.*reduce|one_?shot|two_?shot", re.IGNORECASE)
"""Kernels that reduce over GPUs: NCCL's, SGLang's and vLLM's own, torch symmetric memory's, FlashInfer's."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Kernels of a decode step of one rank.

    Attributes:
        concurrency: requests that decoded together.
        steps: whole steps that were counted.
        step_ms: mean time of a step while the profiler watched; it slows a server down.
        kernels: by name, how often a step ran it, and its microseconds in a step.
    """

    concurrency: int
    steps: int
    step_ms: float
    kernels: Mapping[str, tuple[float, float]]

    @property
    def reducing(self) -> Mapping[str, float]:
        """Kernels that reduce over GPUs, by name: how often a step ran each."""
        return {name: count for name, (count, _) in self.kernels.items() if _ALLREDUCE.search(name)}

    @property
    def allreduces(self) -> float:
        """How many a step held."""
        return sum(self.reducing.values())

    @property
    def allreduce_ms(self) -> float:
        """What they took in a step."""
        return sum(self.kernels[name][1] for name in self.reducing) / 1000

    @property
    def busy_ms(self) -> float:
        """What all kernels took in a step; more than the step where they overlap."""
        return sum(us for _, us in self.kernels.values()) / 1000

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a run file."""
        kernels = {name: [round(count, 3), round(us, 3)] for name, (count, us) in self.kernels.items()}
        return {
            "concurrency": self.concurrency,
            "steps": self.steps,
            "step_ms": round(self.step_ms, 6),
            "kernels": kernels,
        }


def parse_profile(document: object) -> Profile | None:
    """A profile from a run file, whatever JSON value stands there; None where there is none."""
    try:
        given = dict(mapping(document))
        kernels = {str(name): items(pair) for name, pair in mapping(given["kernels"]).items()}
        numbers = [
            given["concurrency"],
            given["steps"],
            given["step_ms"],
            *(n for pair in kernels.values() for n in pair),
        ]
        if not all(is_number(number) and 0 <= number <= _MOST for number in numbers):
            return None
        pairs = {name: (float(count), float(us)) for name, (count, us) in kernels.items()}
    except (KeyError, TypeError, ValueError):
        return None
    return Profile(
        concurrency=int(given["concurrency"]), steps=int(given["steps"]), step_ms=float(given["step_ms"]), kernels=pairs
    )


def take(url: str, folder: Path, load: Load, *, timeout: float, steps: int = STEPS) -> Profile:
    """Profile decode steps of a server under load; nothing else may use it meanwhile.

    Args:
        url: of the server, http://HOST:PORT.
        folder: an empty one that the server can write to under the same path. Traces stay in it, and are large.
        load: requests that are sent at once, long enough to decode all the while.
        timeout: seconds in all.
        steps: steps to watch.

    Raises:
        LanewiseError: the server has no profiler, wrote no whole trace in time, or one without steps.
        UnreachableError: it gave no answer.
    """
    concurrency, deadline = len(load.prompts), time.monotonic() + timeout
    over = threading.Event()

    def keep_busy() -> None:
        while not over.is_set():
            with suppress(LanewiseError):
                generate(url, replace(load, stream=False), concurrency=concurrency, timeout=timeout)
            over.wait(_LOOK_SECONDS)  # a server that refuses is not flooded

    busy = threading.Thread(target=keep_busy, daemon=True)
    busy.start()
    try:
        time.sleep(_BEFORE_SECONDS)
        start_profile(url, folder, steps=steps, timeout=timeout)
        kernels = _wait_for_kernels(folder, deadline)
    finally:
        over.set()
        busy.join(max(1.0, deadline - time.monotonic()))
    return summarise(kernels, concurrency=concurrency, steps=steps)


def _wait_for_kernels(folder: Path, deadline: float) -> list[Kernel]:
    """The first rank's kernels, once its trace is whole: it grows while it is written."""
    size = -1
    problem: LanewiseError = LanewiseError(
        f"the server wrote no profile into {folder}",
        expected=f"a trace a rank (*{_TRACE}) after some decode steps",
        todo="see its log: the profiler may be missing, or the folder not writable where the server runs",
    )
    while time.monotonic() < deadline:
        before, (path, size) = size, _first_trace(folder)
        if size > 0 and size == before:
            try:
                return read_kernels(path, deadline=deadline)
            except InputError as error:
                problem = error
        time.sleep(_LOOK_SECONDS)
    raise problem


def _first_trace(folder: Path) -> tuple[Path, int]:
    """The first rank's trace and its size, -1 where there is none. The folder may hold anything: a server wrote it."""
    with suppress(OSError), os.scandir(folder) as entries:  # the server may not have made it yet
        names = [entry.name for entry in islice(entries, _MOST_FILES) if entry.name.endswith(_TRACE)]
        if names:
            path = folder / min(names, key=lambda name: ("TP-0" not in name, name))
            return path, path.lstat().st_size
    return folder, -1


def summarise(kernels: Sequence[Kernel], *, concurrency: int, steps: int) -> Profile:
    """Kernels of whole steps, cut at one that runs once a step.

    The first and last step of a trace may be cut off, and one more be begun. So the kernel is looked for that ran about
    `steps` times at the most even distances; what lies between two of its times is a step.

    Raises:
        LanewiseError: no kernel ran about so often.
    """
    begins: dict[str, list[float]] = {}
    for kernel in kernels:
        begins.setdefault(kernel.name, []).append(kernel.begin)
    marks = [times for times in begins.values() if max(3, steps - 1) <= len(times) <= steps + 1]
    if not marks:
        raise LanewiseError(
            f"the profile holds {len(kernels):,} kernels, and none of them ran about {steps} times",
            expected=f"{steps} decode steps, each with some kernel that runs once in it",
            todo="take it again, with longer answers",
        )
    times = min(marks, key=_unevenness)
    steps_held = _whole_steps(kernels, times)
    whole = len(steps_held)
    total: dict[str, tuple[int, float]] = {}
    for kernel in chain.from_iterable(step.kernels for step in steps_held):
        count, us = total.get(kernel.name, (0, 0.0))
        total[kernel.name] = (count + 1, us + kernel.us)
    longest = sorted(total, key=lambda name: -total[name][1])
    kept = {name: (total[name][0] / whole, total[name][1] / whole) for name in _kept(longest)}
    if rest := [total[name] for name in longest if name not in kept]:
        kept[REST] = (sum(count for count, _ in rest) / whole, sum(us for _, us in rest) / whole)
    step_ms = statistics.fmean(step.us for step in steps_held) / 1000
    return Profile(concurrency=concurrency, steps=whole, step_ms=step_ms, kernels=kept)


@dataclass(frozen=True, kw_only=True)
class _Step:
    us: float
    kernels: list[Kernel]


def _whole_steps(kernels: Sequence[Kernel], times: Sequence[float]) -> list[_Step]:
    """The steps between these times, without those of which a profiler that was starting lost kernels."""
    steps = [_Step(us=after - before, kernels=[]) for before, after in pairwise(times)]
    for kernel in kernels:
        if times[0] <= kernel.begin < times[-1]:
            steps[bisect_right(times, kernel.begin) - 1].kernels.append(kernel)
    usual = statistics.median(len(step.kernels) for step in steps)
    kept = [step for step in steps if abs(len(step.kernels) - usual) <= max(1, _LOST * usual)]
    # Where fewer remain, they differ for another reason, and none is the usual one.
    return kept if len(kept) >= len(steps) / 2 else steps


def _kept(longest: Sequence[str]) -> list[str]:
    """The longest ones, and all that reduce: those are counted."""
    return [name for number, name in enumerate(longest) if number < _SHOWN or _ALLREDUCE.search(name)]


def _unevenness(times: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(times)]
    return statistics.pstdev(gaps) / (statistics.fmean(gaps) or 1.0)
