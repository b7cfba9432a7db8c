"""Step rates of the ladder: how fast the pairs are, alone and where several GPUs behind one switch write at once.

Times are the GPUs' own (events on the source's stream). What is too slow is said by limits that the caller gives
(playbooks/settings/faults.yaml); without them the step measures and does not judge.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .ladder_child import in_child
from .ladder_copy import PAIR_SECONDS
from .ladder_places import Place, apart, write_patterns
from .ladder_steps import Fault, Step, settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .ladder_copy import Open
    from .ladder_cuda import Cuda, Device

    Limits = Mapping[str, Any]
    Flow = tuple[Device, int, Device, int]  # source, address there, target, address there

LARGE, SMALL = 64 << 20, 4096
"""Bytes of a copy, for bandwidth and for time."""
COPIES, SMALL_COPIES, ROUNDS = 8, 64, 3
WARM_SECONDS = 0.2
"""Of copies before any is counted: an idle GPU's link runs at 2.5 GT/s and takes milliseconds to rise."""


def measure(cuda: Cuda, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Write along each pair of devices alone, then along all at once where there are several.

    Returns:
        `refused`: how the driver refuses peer access, for each pair; `gb_s`: GB/s (1e9 bytes) of each alone; `us`:
        microseconds of one small copy after another, of the first pair; `together_gb_s`: of all at once, in total.
    """
    devices = {number: cuda.open(number) for number in sorted({one for pair in pairs for one in pair})}
    refused = [cuda.allow(devices[a], devices[b]) for a, b in pairs]
    flows = [
        (devices[a], cuda.allocate(devices[a], LARGE), devices[b], cuda.allocate(devices[b], LARGE)) for a, b in pairs
    ]
    _warm(cuda, flows)
    found: dict[str, Any] = {
        "refused": refused,
        "gb_s": [COPIES * LARGE / _fastest(cuda, [flow], LARGE, COPIES) / 1e9 for flow in flows],
        "us": _fastest(cuda, flows[:1], SMALL, SMALL_COPIES) / SMALL_COPIES * 1e6,
    }
    if len(flows) > 1:
        found["together_gb_s"] = len(flows) * COPIES * LARGE / _fastest(cuda, flows, LARGE, COPIES) / 1e9
    return found


def _warm(cuda: Cuda, flows: Sequence[Flow]) -> None:
    deadline = time.monotonic() + WARM_SECONDS
    while time.monotonic() < deadline:
        _lot(cuda, flows, LARGE, 1)


def _fastest(cuda: Cuda, flows: Sequence[Flow], size: int, copies: int) -> float:
    """Seconds of the fastest round: whatever else the machine does makes it slower, never faster."""
    return min(_lot(cuda, flows, size, copies) for _ in range(ROUNDS))


def _lot(cuda: Cuda, flows: Sequence[Flow], size: int, copies: int) -> float:
    """Seconds until the last flow has made its copies; all begin together."""
    begins = [cuda.mark(flow[0]) for flow in flows]
    for _ in range(copies):
        for source, sent, target, received in flows:
            cuda.copy(source, sent, target, received, size)
    ends = [cuda.mark(flow[0]) for flow in flows]
    for flow in flows:
        cuda.wait(flow[0])
    return max(cuda.seconds(begins[n], ends[n]) for n in range(len(flows)))


def rates(placed: Sequence[Place | None], open_cuda: Open, limits: Limits, seconds: float = PAIR_SECONDS) -> Step:
    """Measure every ordered pair of GPUs, then the patterns under which a switch may collapse.

    Args:
        placed: the GPUs by number; None: where it sits is not known.
        open_cuda: makes the driver for these GPUs, in a child.
        limits: `pair_share` by distance, `collapse_share`; empty: nothing is judged.
        seconds: after which the child of a pair is killed.
    """
    numbers = range(len(placed))
    jobs = [[(a, b)] for a in numbers for b in numbers if a != b]
    patterns = write_patterns(placed)
    faults: list[Fault] = []
    unknown = [] if limits else ["no limits were given"]
    measured: list[dict[str, Any]] = []
    for flows in [*jobs, *patterns]:
        where = ", ".join(f"GPU{a}-GPU{b}" for a, b in flows)
        visible = sorted({one for flow in flows for one in flow})
        devices = [(visible.index(a), visible.index(b)) for a, b in flows]
        ended = in_child(lambda v=visible, d=devices: measure(open_cuda(v), d), seconds)  # type: ignore[misc]
        if ended.hang:
            faults.append(Fault("COPY_HANG", where, f"{ended.hang}; nothing further was tried"))
            break
        if ended.failed:
            faults.append(Fault("COPY_FAILED", where, ended.failed))
        elif ended.unable:
            unknown.append(f"{where}: {ended.unable}")
        else:
            row = {"flows": flows, **ended.value}
            measured.append(row)
            if len(flows) > 1:
                faults += _of_pattern(where, row, limits)
            else:
                found, reason = _of_pair(where, row, placed, limits)
                faults, unknown = faults + found, unknown + ([reason] if reason else [])
    evidence = _told(measured) if measured else []
    if not patterns:
        evidence.append("write collapse: no switch with two GPUs and GPUs of two other host bridges to write to")
    return settled("rates", faults, unknown[0] if unknown else "", evidence, measured)


def _of_pair(
    where: str, row: Mapping[str, Any], placed: Sequence[Place | None], limits: Limits
) -> tuple[list[Fault], str]:
    """What is wrong with a pair, and why its bandwidth cannot be judged."""
    rate = row["gb_s"][0]
    if row["refused"][0]:
        return [Fault("HOST_PATH", where, f"{row['refused'][0]}; {rate:.1f} GB/s through host memory")], ""
    one, other = (placed[number] for number in row["flows"][0])
    if not limits:
        return [], ""
    if one is None or other is None or one.gb_s is None or other.gb_s is None:
        return [], f"{where}: {rate:.1f} GB/s, and what its links carry is not known"
    distance, link = apart(one, other), min(one.gb_s, other.gb_s)
    least = limits["pair_share"][distance] * link
    if rate >= least:
        return [], ""
    found = f"{rate:.1f} GB/s, expected at least {least:.1f} of the link's {link:.1f} ({distance})"
    return [Fault("BANDWIDTH_LOW", where, found)], ""


def _of_pattern(where: str, row: Mapping[str, Any], limits: Limits) -> list[Fault]:
    alone, together = min(row["gb_s"]), row["together_gb_s"]
    if not limits or together >= limits["collapse_share"] * alone:
        return []
    return [Fault("WRITE_COLLAPSE", where, f"{together:.1f} GB/s in total at once, {alone:.1f} alone")]


def _told(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    pairs = [row for row in measured if "together_gb_s" not in row]
    lines = []
    if pairs:
        speeds, times = [row["gb_s"][0] for row in pairs], [row["us"] for row in pairs]
        lines.append(f"{len(pairs)} ordered pairs: {min(speeds):.1f} to {max(speeds):.1f} GB/s")
        lines.append(f"a copy of {SMALL} bytes after another: {min(times):.1f} to {max(times):.1f} us")
    for row in measured:
        if "together_gb_s" in row:
            told = " + ".join(f"GPU{a}-GPU{b}" for a, b in row["flows"])
            lines.append(f"{told}: {row['together_gb_s']:.1f} GB/s in total, {min(row['gb_s']):.1f} the slowest alone")
    return lines
