"""How well diagnose does: python bench/diagnosis.py [published | hosts [SEED]]

published: the rows of tuning/published_latency.csv, healthy and pathological, one by one, against what is expected.
    Machines are split by the order of their names: `fault_from` was set on the first, third, ...; the others judge.
hosts: 200 generated hosts with one fault or none and 25 % noise on every time (bench/made_hosts.py). Seeds 1 to 3
    were looked at while rules were set; 11 to 15, once after the last change, judge.
Beside both: the rule "more than 70 us is bad".
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.made_hosts import HEALTHY, MadeHost, make_hosts
from tuning.causes import expected
from tuning.diagnose import Diagnosis, Verdict, diagnose
from tuning.evidence import gather
from tuning.evidence_read import read_evidence
from tuning.published import FIT, PATHOLOGICAL, Row, fabric_of, published

NAIVE_US = 70.0
HOSTS = 200
JUDGING = (11, 12, 13, 14, 15)
SMALL, LARGE = 1 << 16, 1 << 18
FAULTY_BY_NOTE = {("turin-8", "nccl-ring-simple"), ("asus-4", 71.2)}
"""Rows that their sources call slow though they are no broken hosts: without a graph file, and at a protocol switch."""


def gpus_of(row: Row) -> int:
    """How many GPUs worked together; from the host's name where nobody told what joins them."""
    try:
        return len(fabric_of(row.host).gpus)
    except KeyError:
        return int(row.host.rpartition("-")[2])


def judged_rows() -> list[tuple[Row, bool]]:
    """Rows of NCCL's rings and of one-shot kernels up to 1 MiB, and whether their sources call them slow."""
    return [
        (row, row.use == PATHOLOGICAL or bool({(row.host, row.family), (row.host, row.us)} & FAULTY_BY_NOTE))
        for row in published()
        if row.use in (FIT, PATHOLOGICAL) and row.size <= expected().most_bytes
        if row.family.startswith(("nccl-ring", "one-shot"))
    ]


def set_on(rows: list[tuple[Row, bool]]) -> set[str]:
    """The machines that `fault_from` was set on: every second one."""
    return set(sorted({row.machine for row, _ in rows})[::2])


def show_fit(rows: list[tuple[Row, bool]]) -> None:
    """Steps and slopes of that half's healthy rows: quartiles, since one host's pages contradict its sister's."""
    machines = set_on(rows)
    known = expected()
    healthy = [row for row, faulty in rows if not faulty and row.machine in machines and row.family.startswith("nccl")]
    steps = [(row.us - known.base) / (2 * (gpus_of(row) - 1)) for row in healthy if row.size <= SMALL]
    middle = statistics.median(steps)
    slopes = [
        (row.us - known.base - middle * 2 * (gpus_of(row) - 1)) / (row.size / 1024)
        for row in healthy
        if row.size >= LARGE
    ]
    print("healthy rows of NCCL that fault_from was set on:")
    for name, values in (("us a step", steps), ("us per KiB", slopes)):
        low, median, high = statistics.quantiles(values, n=4)
        print(f"  {name:10} {len(values):3} rows: 25 % {low:.3f}, median {median:.3f}, 75 % {high:.3f}")


def show_published(rows: list[tuple[Row, bool]]) -> None:
    """Confusion of fault and healthy, on both halves."""
    machines = set_on(rows)
    for title, half in (("set on", True), ("judged on", False)):
        chosen = [(row, faulty) for row, faulty in rows if (row.machine in machines) is half]
        known = expected()
        ours = [known.excess(row.size, row.us, gpus_of(row)) >= known.fault_from for row, _ in chosen]
        naive = [row.us > NAIVE_US for row, _ in chosen]
        print(f"{title} {', '.join(sorted({row.machine for row, _ in chosen}))}: {len(chosen)} rows")
        for name, said in (("diagnose", ours), (f"over {NAIVE_US:g} us", naive)):
            print(f"  {name:12} {_confusion([faulty for _, faulty in chosen], said)}")
        for (row, faulty), called in zip(chosen, ours, strict=True):
            if faulty is not called:
                what = "missed" if faulty else "called a fault"
                print(f"    {what}: {row.machine} {row.family} {row.size:,} B {row.us:g} us")


def _confusion(truth: list[bool], said: list[bool]) -> str:
    pairs = Counter(zip(truth, said, strict=True))
    right = (pairs[True, True] + pairs[False, False]) / len(truth)
    return (
        f"slow: {pairs[True, True]} found, {pairs[True, False]} missed; healthy: {pairs[False, False]} passed, "
        f"{pairs[False, True]} called a fault; {right:.0%} right"
    )


def show_hosts(seed: int) -> None:
    """Which cause is on top, for 200 generated hosts."""
    with tempfile.TemporaryDirectory() as folder:
        hosts = make_hosts(HOSTS, seed)
        diagnoses = [_diagnosed(host, Path(folder)) for host in hosts]
    top = [_top(diagnosis) for diagnosis in diagnoses]
    right = [host.fault == said for host, said in zip(hosts, top, strict=True)]
    bare = [told for told, host in zip(right, hosts, strict=True) if not host.files]
    sure = [told for told, host in zip(right, hosts, strict=True) if "sure.log" in host.files]
    print(f"seed {seed}: {HOSTS} hosts; cause on top: {statistics.mean(right):.1%} right")
    print(f"  of the {len(sure)} with a line that tells it: {statistics.mean(sure):.1%}")
    print(f"  of the {len(bare)} that show times only: {statistics.mean(bare):.1%}")
    print(f"  of all {HOSTS - len(sure)} without such a line: {(sum(right) - sum(sure)) / (HOSTS - len(sure)):.1%}")
    timed = [(host, said) for host, said in zip(hosts, top, strict=True) if "sure.log" not in host.files]
    truth = [host.fault != HEALTHY for host, _ in timed]
    print(f"  fault or not, of those: {_confusion(truth, [said != HEALTHY for _, said in timed])}")
    print(f"  over {NAIVE_US:g} us:             {_confusion(truth, [host.slowest > NAIVE_US for host, _ in timed])}")
    for fault in sorted({host.fault for host in hosts}):
        said = Counter(told for host, told in zip(hosts, top, strict=True) if host.fault == fault)
        print(f"  {fault:16} {said.total():3}: " + ", ".join(f"{name} {count}" for name, count in said.most_common()))


def _diagnosed(host: MadeHost, folder: Path) -> Diagnosis:
    readings = []
    for name, text in host.files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        readings.append(read_evidence(path))
    return diagnose(gather(readings, measured=host.latencies, ranks=host.ranks))


def _top(diagnosis: Diagnosis) -> str:
    return HEALTHY if diagnosis.verdict is not Verdict.FAULT else diagnosis.ranked[0].cause.id


def main(arguments: list[str]) -> None:
    """Print what was asked for, or all of it."""
    if arguments[:1] != ["hosts"]:
        rows = judged_rows()
        show_fit(rows)
        show_published(rows)
    if arguments[:1] != ["published"]:
        for seed in [int(text) for text in arguments[1:2]] or [1, *JUDGING]:
            show_hosts(seed)


if __name__ == "__main__":
    main(sys.argv[1:])
