"""nccl-tests and matrices between GPUs: what is read of them. All texts are written here after the tools' formats."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tuning.evidence import Reading
from tuning.evidence_tables import looks_like_nccl_tests, looks_like_p2p, read_nccl_tests, read_p2p

HEADER = (
    "# nThread 1 nGpus {ranks} minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 graph: {graph}\n#\n"
    "# Using devices\n"
)
COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong    time   algbw   busbw\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)


def devices(ranks: int, model: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition") -> str:
    return "".join(
        f"#  Rank {rank:2} Group  0 Pid  {100 + rank} on  fake-a device {rank:2} [0000:{rank + 1:02x}:00] {model}\n"
        for rank in range(ranks)
    )


def row(size: int, us: float, us2: float | None = None, wrong: int = 0) -> str:
    second = f"   {us2 or us:6}   1.00    1.75      0" if us2 is not None else ""
    return f"  {size:10}  {size // 4:10}     float     sum      -1   {us:6}    1.00    1.75      {wrong}{second}\n"


def output(*rows: str, ranks: int = 8, graph: int = 20) -> str:
    return HEADER.format(ranks=ranks, graph=graph) + devices(ranks) + COLUMNS + "".join(rows)


def read(text: str) -> Reading:
    assert looks_like_nccl_tests(text)
    return read_nccl_tests(text, name="t")


def test_a_table_tells_sizes_times_ranks_mode_host_and_gpus() -> None:
    reading = read(output(row(0, 15.5, 15.5), row(14336, 21.5, 21.4), row(43008, 23.9, 23.8)))
    assert [(x.size, x.us, x.ranks, x.mode) for x in reading.latencies] == [
        (14336, 21.5, 8, "graph"),
        (43008, 23.9, 8, "graph"),
    ]
    assert (reading.hosts, reading.ranks) == ({"fake-a"}, 8)
    assert reading.models == {"NVIDIA RTX PRO 6000 Blackwell Server Edition"}
    assert reading.signs == ()
    assert read(output(row(14336, 21.5), graph=0)).latencies[0].mode == ""


@pytest.mark.parametrize(
    "text",
    [
        "[1,0]<stdout>:#  size time algbw busbw\n[1,0]<stdout>:" + row(43008, 24.0),
        "#  size  time  algbw  busbw  #wrong\n  43008  24.0  1.79  3.14  0\n",
        "#  size count type redop time algbw busbw error\n 43008 10752 float sum 24.0 1.7 3.1 2e-07 24.0 1.7 3.1 N/A\n",
    ],
    ids=["mpirun's tags", "shortened", "old, with error"],
)
def test_forms_that_people_have_are_read(text: str) -> None:
    assert [(x.size, x.us) for x in read(text).latencies] == [(43008, 24.0)]


@pytest.mark.parametrize(
    "text",
    [
        "# Collective test starting: all_gather_perf\n" + COLUMNS + row(43008, 24.0),
        COLUMNS + row(43008, 24.0).replace("10752", " 1344"),
        COLUMNS.replace("redop", "") + "    43008  10752  float  24.0 1.79 1.79 N/A 24.0 1.79 1.79 N/A\n",
    ],
    ids=["named", "reduce-scatter", "no reduction"],
)
def test_another_collective_is_not_taken_for_allreduce(text: str) -> None:
    assert read(text).latencies == ()


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (output(), "stopped-in-first-collective"),
        (output() + "fake-a:1:1 [0] NCCL INFO Connected all rings\n", "stopped-after-start"),
        (output(row(43008, 24.0, 24.0, wrong=7)), "nccl-wrong-sums"),
        (
            "# nccl-tests version 2.18.2 nccl-headers=22809 nccl-library=22602\n" + output(row(8, 9.0)),
            "nccl-headers-differ",
        ),
        (output(*(row(8 << n, 80.0, 580.0) for n in range(6))), "latency-erratic"),
    ],
)
def test_what_a_table_speaks_for(text: str, sign: str) -> None:
    assert [found.name for found in read(text).signs] == [sign]


def test_one_slow_repetition_is_not_erratic() -> None:
    rows = [row(8 << n, 24.0, 24.5) for n in range(8)]
    assert read(output(*rows, row(4096, 24.0, 580.0))).signs == ()


# ------------------------------------------------------------------------------------------------------------ matrices


def matrix(size: int, cell: Callable[[int, int], float], corner: str = "D\\D", diagonal: str = "1500.00") -> str:
    lines = [f"   {corner}" + "".join(f"{number:7}" for number in range(size))]
    for a in range(size):
        cells = (diagonal if a == b else f"{cell(a, b):.2f}" for b in range(size))
        lines.append(f"     {a} " + " ".join(f"{text:>6}" for text in cells))
    return "\n".join(lines) + "\n"


def latency(cell: Callable[[int, int], float], size: int = 4) -> str:
    return "P2P=Enabled Latency (P2P Writes) Matrix (us)\n" + matrix(size, cell, "GPU", "2.07")


def bandwidth(cell: Callable[[int, int], float], size: int = 4, state: str = "Enabled") -> str:
    return f"Bidirectional P2P={state} Bandwidth Matrix (GB/s)\n" + matrix(size, cell)


def p2p(text: str) -> set[str]:
    assert looks_like_p2p(text)
    return {sign.name for sign in read_p2p(text, name="p").signs}


def test_small_writes_tell_whether_p2p_works() -> None:
    assert p2p(latency(lambda a, b: 0.47)) == {"p2p-latency-direct"}
    assert p2p(latency(lambda a, b: 14.0)) == {"p2p-latency-host", "granted-but-slow"}
    assert p2p("Device=0 CANNOT Access Peer Device=1\n" + latency(lambda a, b: 14.0)) == {"p2p-latency-host"}


def test_what_the_cpu_sees_is_not_taken_for_gpus() -> None:
    both = latency(lambda a, b: 0.47) + "\n" + matrix(4, lambda a, b: 8.0, "CPU", "2.5")
    assert p2p(both) == {"p2p-latency-direct"}


def test_latency_with_p2p_disabled_says_nothing() -> None:
    assert p2p(latency(lambda a, b: 14.0).replace("Enabled", "Disabled")) == set()


def test_one_slow_gpu_stands_out_and_two_sockets_do_not() -> None:
    assert p2p(bandwidth(lambda a, b: 26.0 if 2 in (a, b) else 100.0, size=8)) == {"one-gpu-slow"}
    assert p2p(bandwidth(lambda a, b: 37.0 if (a < 4) != (b < 4) else 53.0, size=8)) == {"p2p-even"}
    assert p2p(bandwidth(lambda a, b: 26.0 if max(a, b) > 4 else 100.0, size=8)) == set()  # three of eight are a design


def test_what_a_gpu_does_with_itself_does_not_count() -> None:
    assert "53 to 53, median 53" in read_p2p(bandwidth(lambda a, b: 53.0), name="p").said[1]


def test_copies_between_host_and_gpus_are_not_judged() -> None:
    assert p2p("Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n" + matrix(
        4, lambda a, b: 5.0 if b == 2 else 50.0, "", "0.00")) == set()  # fmt: skip


def test_p2p_that_gains_nothing_is_seen() -> None:
    off, on = bandwidth(lambda a, b: 29.0, state="Disabled"), bandwidth(lambda a, b: 29.5)
    assert "p2p-no-faster" in p2p(off + on)
    assert "p2p-no-faster" not in p2p(off + bandwidth(lambda a, b: 46.0))


@pytest.mark.parametrize(
    "text",
    [
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n" + matrix(4, lambda a, b: 53.0, "", "0.00"),
        matrix(4, lambda a, b: 53.0, diagonal="—"),
        " Dst→  GPU0  GPU1  GPU2\nGPU0:   —    53.9  53.8\nGPU1:  53.8    —    53.4\nGPU2:  53.9  53.7    —\n",
        "[...]\n" + bandwidth(lambda a, b: 53.0) + "[...]\n",
    ],
    ids=["nvbandwidth", "no diagonal", "p2pmark", "cut"],
)
def test_matrices_of_several_tools_are_read(text: str) -> None:
    assert p2p(text) == {"p2p-even"}


@pytest.mark.parametrize(
    "text",
    ["node distances:\nnode   0   1\n  0:  10  32\n  1:  32  10\n", "a 0 1\n0 1 2\n", "x" * 100_000,
     "GPU0 GPU1\n", "D\\D " + " ".join(map(str, range(5_000))) + "\n0 " + "1 " * 5_000],
    ids=["numactl", "another table", "no table", "no rows", "far too wide"],
)  # fmt: skip
def test_other_tables_are_no_matrices(text: str) -> None:
    assert not looks_like_p2p(text)
