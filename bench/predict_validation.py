"""How well predictions hold on machines that they were not fitted on: python bench/predict_validation.py

Prints, from published rows: median and 90 % error of every row predicted from the other machines' rows, the share
within a factor of two and within bounds that have not seen the machine either; what two sizes of a machine's own are
worth; the rows that were never fitted, those of broken hosts; how long all predictions for the reference nodes take.
`--write` writes the constants that ship, tuning/predict_fitted.yaml.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tuning.calibration import Judged, by_family, covered, fit, fit_families, held_out, judge, quantile
from tuning.predict import predict
from tuning.predict_constants import FITTED, Fitted, constants, fitted
from tuning.predict_schedules import FAMILIES
from tuning.published import CHECK, FIT, PATHOLOGICAL, fabric_of, published
from tuning.topology_read import read_topology, reference_names

SIZES = tuple(1 << power for power in range(8, 28))
HEAD = "# Written by `python bench/predict_validation.py --write`: see docs/prediction.md.\n"


def main() -> None:
    """Print the report, or write the constants."""
    if sys.argv[1:] == ["--write"]:
        fits = fit_families(published())
        document = {"families": {name: _entry(fits[name]) for name in FAMILIES}}
        FITTED.write_text(HEAD + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120))
        return
    _held_out()
    _read_rates()
    _with_own_sizes()
    _never_fitted(CHECK, "never fitted: another kernel of the family, or another GPU")
    _never_fitted(PATHOLOGICAL, "called broken or slow by their source, against what a healthy host would take")
    _duration()


def _entry(found: Fitted) -> dict[str, object]:
    return {**vars(found), "costs": vars(found.costs), "hosts": list(found.hosts)}


def _held_out() -> None:
    every: list[Judged] = []
    print(f"{'held out, by family':30} machines rows  median  90 %  within 2x  within the others' bounds")
    for name, rows in by_family(published(), FIT).items():
        judged = held_out(rows, constants().starts[name])
        if not judged:
            print(f"{name:30} {1:8} {len(rows):4}  one machine only: unvalidated")
            continue
        every += judged
        beyond = [f"{j.row.host} {j.row.size:,} B" for j in judged if not 0.5 <= j.ratio <= 2]
        machines = list(dict.fromkeys(j.row.machine for j in judged))
        inside = fmean(covered(rows, constants().starts[name]))
        print(f"{name:30} {len(machines):8} {_summary(judged)} {inside:10.0%}")
        print(f"  beyond a factor of two: {'; '.join(beyond)}")
        for machine in machines:
            print(f"  {machine:28} {'':8} {_summary([j for j in judged if j.row.machine == machine])}")
    print(f"{'all':30} {len({j.row.machine for j in every}):8} {_summary(every)}")
    print(f"no row of a healthy host: {', '.join(name for name in FAMILIES if not fitted()[name].rows)}\n")


def _summary(judged: Sequence[Judged]) -> str:
    errors = sorted(j.error for j in judged)
    twice = sum(0.5 <= j.ratio <= 2 for j in judged) / len(judged)
    return f"{len(judged):4} {quantile(errors, 0.5):7.0%} {quantile(errors, 0.9):5.0%} {twice:9.0%}"


def _read_rates() -> None:
    """What one GPU's kernels read from all others: one-shot's slope between a host's first and last row to 1 MiB."""
    print("one-shot, reading: GB/s a GPU")
    rows = [row for row in by_family(published(), FIT)["one-shot-pull"] if row.size <= 1 << 20]
    for host in dict.fromkeys(row.host for row in rows):
        own = sorted((row for row in rows if row.host == host), key=lambda row: (row.size, row.us))
        if own[0].size < own[-1].size:
            read = (len(fabric_of(host).gpus) - 1) * (own[-1].size - own[0].size)
            print(f"  {host:12} {read / (own[-1].us - own[0].us) / 1e3:5.1f}")
    print()


def _with_own_sizes() -> None:
    """Refits each family on the smallest and the largest size of one host, and judges the sizes between."""
    before, after = [], []
    for name, rows in by_family(published(), FIT).items():
        for host in dict.fromkeys(row.host for row in rows):
            own = sorted((row for row in rows if row.host == host), key=lambda row: row.size)
            between = [row for row in own if own[0].size < row.size < own[-1].size]
            others = fit([row for row in rows if row.machine != own[0].machine], constants().starts[name])
            costs = fit([own[0], own[-1]], others)
            before += [judge(row, others) for row in between]
            after += [judge(row, costs) for row in between]
    print("sizes between the smallest and the largest of a host   rows  median  90 %  within 2x")
    print(f"{'from other machines alone':53} {_summary(before)}")
    print(f"{'with the two sizes of its own (--measured)':53} {_summary(after)}\n")


def _never_fitted(use: str, what: str) -> None:
    print(what)
    for name, rows in by_family(published(), use).items():
        for row in rows:
            judged = judge(row, fitted()[name].costs)
            where = f"  {name:18} {row.host:12} {row.size:>12,} B"
            print(f"{where} {row.us:10.1f} us measured, {judged.predicted:9.1f} predicted")
    print()


def _duration() -> None:
    names = reference_names()
    topologies = [read_topology(name) for name in names]
    begin = time.perf_counter()
    for topology in topologies:
        predict(topology, sizes=SIZES)
    seconds = time.perf_counter() - begin
    print(f"{len(FAMILIES)} families x {len(SIZES)} sizes x {len(names)} reference nodes: {seconds:.2f} s")


if __name__ == "__main__":
    main()
