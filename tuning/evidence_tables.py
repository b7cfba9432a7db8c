"""Reads tables: nccl-tests, and matrices between GPUs of p2pBandwidthLatencyTest, nvbandwidth and p2pmark."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from tuning.evidence import Latency, Reading, Sign
from tuning.topology import MAX_GPUS

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:", re.ASCII)
_ROW = re.compile(
    rf"\s*(?P<size>\d{{1,15}})(?:\s+\d+\s+[a-z]\w*(?:\s+[a-z]+)?(?:\s+-?\d+)?)?\s+(?P<us>{_NUMBER})\s+{_NUMBER}\s+{_NUMBER}"
    rf"\s+(?P<wrong>\d+|{_NUMBER}|N/A)(?:\s+(?P<us2>{_NUMBER})\s+{_NUMBER}\s+{_NUMBER}\s+(?P<wrong2>\d+|{_NUMBER}|N/A))?\s*",
    re.ASCII,
)
_DEVICE = re.compile(r"#\s+Rank\s+(\d+) .*? on\s+(\S+) device\s+\d+ \[[0-9a-fx:.]+\] (.+)", re.ASCII)
_VERSIONS = re.compile(r"nccl-headers=(\d+) nccl-library=(\d+)", re.ASCII)
_GRAPH = re.compile(r"\bgraph: (\d+)", re.ASCII)
_LONGEST_LINE = 4096
_MOST_ROWS = 512
_MOST_US = 1e9
_ERRATIC = 3.0
"""Out-of-place and in-place times of one size differ by less than a tenth on a quiet host; this is another regime."""
_CELL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?|—|N/A|X|-", re.ASCII)
_P2P_DEVICE = re.compile(r"Device:? *(\d+)[,:] *(.+?)(?:, pciBusID| \([0-9a-fA-F:]+\)|$)", re.ASCII)
_CORNERS = ("D\\D", "GPU", "CPU", "Dst→")
"""What stands at the left of a header, where anything does."""
HOST_LATENCY_US = 5.0
"""A small write takes 0.4 to 1.1 us from GPU to GPU, and 10 to 20 through the host (samples of both were published:
https://github.com/local-inference-lab/rtx6kpro/blob/master/benchmarks/results.md); NVLink up to 2.5."""
_UNEVEN = 0.87
"""One GPU's median against all GPUs' medians: rows of published healthy hosts lie within a few per cent."""
_GAIN = 1.25
"""P2P on against off: 2 GPUs on Gen4 with P2P reach 46.6 of 29.5 GB/s both ways, without P2P 29.7 of 29.8."""


def _lines(text: str) -> Iterator[str]:
    """Lines that a tool could have printed, without what mpirun puts before them."""
    return (_TAG.sub("", line) for line in text.splitlines() if len(line) <= _LONGEST_LINE)


def looks_like_nccl_tests(text: str) -> bool:
    """Whether it has nccl-tests' header or its table's."""
    return "# nThread" in text or ("algbw" in text and "busbw" in text)


def read_nccl_tests(text: str, *, name: str) -> Reading:
    """What an output of nccl-tests tells: latencies if it is of allreduce, whose host, whether sums are right."""
    rows = [found for line in _lines(text) if (found := _ROW.fullmatch(line))]
    devices = [found for line in _lines(text) if (found := _DEVICE.match(line))]
    ranks = max((int(found[1]) + 1 for found in devices), default=0)
    graphs = _GRAPH.search(text)
    mode = "graph" if graphs and graphs[1].strip("0") else ""  # without, its launches from C follow without a gap
    allreduce = _of_allreduce(text)
    latencies = tuple(
        Latency(size=int(row["size"]), us=float(row["us"]), ranks=ranks, mode=mode, where=name)
        for row in rows[:_MOST_ROWS]
        if int(row["size"]) > 0 and 0 < float(row["us"]) < _MOST_US
    )
    what = "allreduce" if allreduce else "another collective or an unnamed one: its times are not judged"
    return Reading(
        path=name,
        kind="output of nccl-tests",
        said=(
            f"{len(rows)} sizes, {what}",
            *([f"{ranks} ranks"] if ranks else []),
            *([f"mode {mode}"] if mode else []),
        ),
        signs=tuple(_test_signs(text, rows, name)),
        latencies=latencies if allreduce else (),
        hosts=frozenset(found[2] for found in devices),
        models=frozenset(found[3].strip() for found in devices),
        ranks=ranks,
    )


def _of_allreduce(text: str) -> bool:
    """Newer releases name the collective; else only allreduce has a reduction, and as many bytes as its elements."""
    if named := re.search(r"Collective test starting: (\w+)", text):
        return named[1].startswith("all_reduce")
    if not re.search(r"#.*\bredop\b", text):
        return "alltoall" not in text and "type" not in text  # tables that people shortened
    for line in _lines(text):
        if (found := re.match(r"\s*(\d{1,15})\s+(\d{1,15})\s+float\s", line)) and int(found[2]):
            return int(found[1]) == 4 * int(found[2])
    return True


def _test_signs(text: str, rows: list[re.Match[str]], name: str) -> Iterator[Sign]:
    if (versions := _VERSIONS.search(text)) and versions[1] != versions[2]:
        shown = f"headers {versions[1]}, library {versions[2]}"
        yield Sign(name="nccl-headers-differ", text=shown, where=name)
    counts = [(row["size"], row[key] or "0") for row in rows for key in ("wrong", "wrong2")]
    wrong = [size for size, count in counts if count.isdigit() and int(count)]
    if wrong:
        yield Sign(name="nccl-wrong-sums", text=f"wrong sums at {wrong[0]} B, {len(wrong)} times in all", where=name)
    if "# Using devices" in text and not rows:
        started = "Connected all" in text or "Init COMPLETE" in text
        sign = "stopped-after-start" if started else "stopped-in-first-collective"
        yield Sign(name=sign, text="a header, and no row behind it", where=name)
    pairs = [(float(row["us"]), float(row["us2"])) for row in rows if row["us2"] and float(row["us2"]) > 0]
    wild = [pair for pair in pairs if max(pair) > _ERRATIC * min(pair)]
    if len(wild) >= 3 and len(wild) * 4 >= len(pairs):
        text = f"{len(wild)} of {len(pairs)} sizes take {_ERRATIC:g} times as long in one of two measurements"
        yield Sign(name="latency-erratic", text=text, where=name)


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """Numbers between GPUs: title above, and cells off the diagonal by (row, column)."""

    title: str
    cells: dict[tuple[int, int], float]
    size: int


def looks_like_p2p(text: str) -> bool:
    """Whether there is a matrix of numbers between GPUs, or p2pBandwidthLatencyTest's text."""
    return "Access Peer Device" in text or any(True for _ in _matrices(text))


def read_p2p(text: str, *, name: str) -> Reading:
    """What matrices between GPUs tell: whether P2P works, and whether all GPUs are alike."""
    matrices = list(_matrices(text))
    devices = {int(found[1][:4]): found[2] for line in _lines(text) if (found := _P2P_DEVICE.match(line.strip()))}
    gpus = max([matrix.size for matrix in matrices] + [len(devices)], default=0)
    said = [f"{len(matrices)} matrices of {gpus} GPUs"]
    for matrix in matrices:
        values = sorted(matrix.cells.values())
        title = f"{matrix.title or 'untitled'}: " if matrix.title else ""
        said.append(f"{title}{values[0]:g} to {values[-1]:g}, median {statistics.median(values):g}")
    return Reading(
        path=name,
        kind="matrix between GPUs",
        said=tuple(said[:9]),
        signs=tuple(_p2p_signs(matrices, text, name)),
        models=frozenset(devices.values()),
        gpus=gpus,
    )


def _matrices(text: str) -> Iterator[_Matrix]:
    title, columns, cells, size = "", 0, dict[tuple[int, int], float](), 0
    for line in _lines(text):
        tokens = line.replace("|", " ").split()
        row = _row(tokens, columns)
        if row:
            number, values = row
            cells.update({(number, at): value for at, value in enumerate(values) if value is not None and at != number})
            size = max(size, number + 1, columns)
            continue
        if cells:
            yield _Matrix(title=title, cells=cells, size=size)
            cells, size, columns, title = {}, 0, 0, ""
        if header := _header(tokens):
            columns = header
            title = "host" if tokens[0] == "CPU" else title  # p2pBandwidthLatencyTest: what the CPU sees of it
        elif tokens:
            title, columns = line.strip().rstrip(".:")[:80], 0
    if cells:
        yield _Matrix(title=title, cells=cells, size=size)


def _header(tokens: list[str]) -> int:
    """How many columns a header names: numbers from 0, or GPU0 and so on; 0 where it is none."""
    names = [token.removeprefix("GPU") for token in tokens]
    if names and tokens[0] in _CORNERS:
        names = names[1:]
    return len(names) if 1 < len(names) <= MAX_GPUS and names == [str(number) for number in range(len(names))] else 0


def _row(tokens: list[str], columns: int) -> tuple[int, list[float | None]] | None:
    if not columns or len(tokens) != columns + 1 or not all(_CELL.fullmatch(token) for token in tokens[1:]):
        return None
    label = tokens[0].removeprefix("GPU").removesuffix(":")
    if not label.isdecimal() or int(label) >= columns:
        return None
    return int(label), [float(token) if token[0].isdecimal() else None for token in tokens[1:]]


def _p2p_signs(matrices: list[_Matrix], text: str, name: str) -> Iterator[Sign]:
    granted = "CANNOT Access Peer" not in text
    for number, matrix in enumerate(matrices):
        title = matrix.title.lower()
        if any(word in title for word in ("connectivity", "disabled", "host", "cpu(")):
            continue
        if "latency" in title or _is_latency(matrix, title):
            yield from _latency_signs(matrix, name, granted=granted)
        else:
            yield from _evenness(matrix, name)
        before = matrices[number - 1] if number else None
        if before and "disabled" in before.title.lower() and "bandwidth" in title:
            yield from _gain(before, matrix, name)


def _is_latency(matrix: _Matrix, title: str) -> bool:
    """A matrix that nothing names: microseconds between GPUs are below any bandwidth in GB/s."""
    return not title and statistics.median(matrix.cells.values()) < 2


def _latency_signs(matrix: _Matrix, name: str, *, granted: bool) -> Iterator[Sign]:
    slow = {pair: us for pair, us in matrix.cells.items() if us > HOST_LATENCY_US}
    if not slow:
        most = max(matrix.cells.values())
        yield Sign(name="p2p-latency-direct", text=f"small writes take at most {most:g} us between GPUs", where=name)
        return
    least, most = min(slow.values()), max(slow.values())
    text = f"small writes take {least:g} to {most:g} us between {len(slow)} of {len(matrix.cells)} pairs"
    yield Sign(name="p2p-latency-host", text=text, where=name)
    if granted:
        yield Sign(name="granted-but-slow", text="nothing says that peer access is refused, yet it is slow", where=name)


def _evenness(matrix: _Matrix, name: str) -> Iterator[Sign]:
    """Whether one GPU is slower than the others, whatever it talks to."""
    if matrix.size < 3:
        return
    medians = {
        gpu: statistics.median(v for pair, v in matrix.cells.items() if gpu in pair) for gpu in range(matrix.size)
        if any(gpu in pair for pair in matrix.cells)
    }  # fmt: skip
    usual = statistics.median(medians.values())
    slow = {gpu: value for gpu, value in medians.items() if value < _UNEVEN * usual}
    if slow and len(slow) * 3 <= matrix.size:
        shown = ", ".join(f"GPU {gpu} {value:g}" for gpu, value in slow.items())
        yield Sign(name="one-gpu-slow", text=f"{shown} GB/s where the others have {usual:g}", where=name)
    elif not slow:
        yield Sign(name="p2p-even", text=f"all {matrix.size} GPUs alike, {usual:g} GB/s", where=name)


def _gain(off: _Matrix, on: _Matrix, name: str) -> Iterator[Sign]:
    pairs = off.cells.keys() & on.cells.keys()
    if not pairs or "unidirectional" in on.title.lower():
        return  # one way, the host is nearly as fast
    gain = statistics.median(on.cells[pair] / off.cells[pair] for pair in pairs if off.cells[pair] > 0)
    if gain < _GAIN:
        yield Sign(name="p2p-no-faster", text=f"P2P gives {gain:.2f} times what copies through the host do", where=name)
