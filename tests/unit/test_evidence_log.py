"""Logs of engines and of NCCL: what is read of them, whatever their size. All texts are written here."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest

from lanewise.errors import InputError
from tuning.causes import causes
from tuning.evidence import Reading
from tuning.evidence_log import log_signs, read_log
from tuning.evidence_read import read_evidence

DECODE = (
    "[2026-11-29 10:00:00 TP7] Decode batch, #running-req: 1, #token: 300, token usage: 0.00, accept len: {accept}, "
    "accept rate: 0.50, cuda graph: {graph}, gen throughput (token/s): {rate}, #queue-req: 0\n"
)


def decode(*, graph: bool = True, accept: float = 2.3, rate: float = 54.0) -> str:
    return DECODE.format(graph=graph, accept=accept, rate=rate)


def info(text: str, rank: int = 0) -> str:
    return f"fake-a:10:{20 + rank} [{rank}] NCCL INFO {text}\n"


def via(*ways: str) -> str:
    return "".join(info(f"Channel 00/0 : {n}[{n}] -> {n + 1}[{n + 1}] via {way}") for n, way in enumerate(ways))


def read(text: str) -> Reading:
    reading = read_log(io.BytesIO(text.encode()), name="a.log")
    assert reading is not None
    return reading


def signs(text: str) -> set[str]:
    return {sign.name for sign in read(text).signs}


def test_decode_lines_tell_rate_acceptance_ranks_and_graphs() -> None:
    reading = read(decode(rate=0.4) * 4 + decode() * 2 + decode(accept=2.5))
    assert reading.kind == "log of SGLang"
    assert (reading.rate, reading.accept, reading.ranks) == (54.0, 2.3, 8)  # 0.4 covers the idle time before
    assert {sign.name for sign in reading.signs} == {"decode-in-graph"}


def test_one_decode_line_without_a_graph_counts_though_prefill_lines_never_have_one() -> None:
    prefill = "[2026-11-29 10:00:00 TP0] Prefill batch, #new-seq: 1, cuda graph: False, input throughput: 5\n"
    assert signs(prefill + decode()) == {"decode-in-graph"}
    assert signs(prefill + decode() + decode(graph=False)) == {"decode-without-graph"}


def test_vllm_lines_tell_rate_and_acceptance() -> None:
    line = (
        "(APIServer pid=1) INFO 11-29 10:00:00 [loggers.py:271] Engine 000: Avg generation throughput: 99.8 tokens/s\n"
    )
    spec = (
        "(APIServer pid=1) INFO 11-29 10:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.74, x\n"
    )
    reading = read(line + spec)
    assert (reading.kind, reading.rate, reading.accept) == ("log of vLLM", 99.8, 2.74)


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (via("P2P/CUMEM/read", "P2P/IPC"), "transport-p2p-only"),
        (via("P2P/CUMEM", "SHM/direct/direct"), "transport-host"),
        (
            via("P2P/CUMEM").replace("1[1] via", "1[1] [send] via").replace("P2P/CUMEM", "NET/Socket/0"),
            "transport-host",
        ),
        (
            info("Pattern 4, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/PIX, sameChannels 1"),
            "search-failed",
        ),
        (info("Pattern 4, crossNic 0, nChannels 2, bw 24.000000/24.000000, type PHB/PIX, sameC"), "search-succeeded"),
        (info("AllReduce: 43008 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}"), "chose-simple-when-small"),
        (info("AllReduce: 43008 Bytes -> Algo 1 proto 0 time 12.3"), "chose-ll-when-small"),
        (
            info("AllReduce: 14336 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}")
            + info("AllReduce: 43008 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}"),
            "several-protocols",
        ),
        (info("NCCL_P2P_DISABLE set by environment to 1."), "p2p-off-by-setting"),
        (info("NCCL_P2P_LEVEL set by environment to PXB"), "pairs-beyond-default-level"),
        (info("NCCL_PROTO set by environment to Simple"), "protocol-forced"),
        (info("NCCL_GRAPH_FILE set by environment to /g.xml"), "graph-file-set"),
        ("NCCL version 2.26.2+cuda12.2\n" + info("NCCL version 2.30.7+cuda13.0"), "nccl-several-releases"),
        (info("Using network Socket"), "stopped-in-first-collective"),
    ],
)
def test_a_line_of_nccl_speaks_for_what_it_says(text: str, sign: str) -> None:
    assert sign in signs(text)


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (
            info("Pattern 1, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/PIX, sameChannels 1"),
            "search-failed",
        ),
        (info("Using network Socket") + info("Connected all rings"), "stopped-in-first-collective"),
        (info("AllGather: 43008 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}"), "chose-simple-when-small"),
        (info("AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}"), "chose-simple-when-small"),
        (info("NCCL_P2P_LEVEL set by environment to SYS"), "pairs-beyond-default-level"),
        (info("NCCL_PROTO set by environment to LL,Simple"), "protocol-forced"),
        ("KeyError: 1234\n" + decode(), "unsupported-arch"),
    ],
    ids=["a tree fails alone", "went on", "another collective", "large", "level SYS", "LL is allowed", "another key"],
)
def test_what_only_resembles_a_sign_is_none(text: str, sign: str) -> None:
    assert sign not in signs(text)


def test_a_capture_that_ends_is_no_hang() -> None:
    begin = "[2026-11-29 10:00:00 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=11 GB\n"
    assert "capture-did-not-end" in signs(begin)
    end = begin.replace("begin", "end")
    assert "capture-did-not-end" not in signs(begin + end)
    assert "capture-did-not-end" in signs(begin + end + begin)
    assert "capture-did-not-end" in signs(begin + "Capturing batches (bs=1): 0%| 0/6 [00:00<?, ?it/s]\n")
    assert "capture-did-not-end" not in signs(begin + "Capturing batches (bs=1): 100%| 6/6 [00:50<00:00,  9.29s/it]\n")


@pytest.mark.parametrize("entry", log_signs(), ids=lambda entry: entry.find.decode()[:40])
def test_every_line_of_the_catalogue_is_found_with_its_number_and_speaks_for_a_cause(entry: object) -> None:
    line = {
        "llreduce is disabled because": "Custom allreduce is disabled because it is not",
        "shm_broadcast.py": "shm_broadcast.py:456] No available shared memory broadcast block found",
    }.get(entry.find.decode(), entry.find.decode())
    found = [sign for sign in read(f"{decode()}{line}\n").signs if sign.name == entry.sign]
    assert [sign.where for sign in found] == ["a.log:2"]
    assert any(entry.sign in cause.signs for cause in causes())


def test_ten_megabytes_of_log_are_read_in_little_memory_and_their_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    lines = 10_000_000 // len(decode())
    path.write_text(decode() * lines + "torch.OutOfMemoryError: CUDA out of memory\n")
    tracemalloc.start()
    reading = read_evidence(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {sign.where for sign in reading.signs if sign.name == "out-of-memory"} == {f"{path}:{lines + 1}"}
    assert peak < 40e6


def test_a_line_across_two_blocks_is_read_as_one() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory\n"
    start = decode()
    text = start + "x" * ((1 << 20) - len(start) - 30) + "\n" + line
    assert [sign.where for sign in read(text).signs if sign.name == "out-of-memory"] == ["a.log:3"]
    assert read(text).signs[0].text.startswith("torch.OutOf")


def test_a_log_of_another_program_is_refused_though_it_is_large(tmp_path: Path) -> None:
    path = tmp_path / "nginx.log"
    path.write_text('127.0.0.1 - - [29/Nov/2026] "GET / HTTP/1.1" 200 via proxy\n' * 100_000)
    with pytest.raises(InputError, match="no line of a known log") as caught:
        read_evidence(path)
    assert "NCCL_DEBUG=INFO" in caught.value.expected


@pytest.mark.parametrize(
    "text",
    ["Traceback (most recent call last):\n  File x\nValueError\n", "| `NCCL INFO` | a kind of line |\n",
     "# Decode batch, cuda graph: False\n"],
    ids=["a traceback of anything", "a table about logs", "a text about logs"],
)  # fmt: skip
def test_what_merely_mentions_such_lines_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="no known kind"):
        read_evidence(path)


def test_a_line_without_an_end_costs_no_memory() -> None:
    reading = read_log(io.BytesIO(decode().encode() + b"x" * 5_000_000), name="a.log")
    assert reading is not None
    assert read_log(io.BytesIO(b"x" * 5_000_000), name="a.log") is None


@pytest.mark.parametrize("rate", ["1.2.3", "9" * 400, "."])
def test_numbers_that_are_none_count_as_nothing(rate: str) -> None:
    assert read(decode() * 3 + decode().replace("54.0", rate)).rate == 54.0
