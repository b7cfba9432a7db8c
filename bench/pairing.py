"""How much pairing rounds within a launch is worth, from a run file: python bench/pairing.py RUN

For the baseline and its second copy (the same thing, so the true ratio is 1), per case and launch: the ratio of the two
medians, and the median over rounds of the ratio within each round. Printed is how far each lies from 1.
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tuning.arms import Side, medians
from tuning.runfile import read_run


def main(path: Path) -> None:
    """Print both ways side by side."""
    run = read_run(path)
    plan = run.header.plan
    unpaired, paired = [], []
    for environment in plan.environments:
        side = Side(environment=environment.name, candidate=plan.baseline, run=run)
        for case in plan.cases:
            first, second = medians(side, case.key), medians(side, case.key, copy=1)
            for repetition in first.keys() & second.keys():
                a, b = first[repetition], second[repetition]
                unpaired.append(abs(math.log(b.median / a.median)))
                paired.append(abs(b.log_ratio_to(a)))
    print(f"{path}: {len(paired)} A/A pairs; {plan.rounds} rounds; distance of the ratio from 1")
    for name, values in (("ratio of medians", unpaired), ("median of ratios within rounds", paired)):
        print(f"  {name:31} median {statistics.median(values):7.2%}  largest {max(values):7.2%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
