"""Run files of whatever benchmark, as the verbs that take any of them read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lanewise.errors import InputError
from lanewise.files import shown_path
from tuning.bench import RUNS
from tuning.runfile import Run, read_run
from tuning.runlines import read_lines
from tuning.serving.plan import BENCHMARK
from tuning.serving.runfile import ServingRun, read_serving_run


def read_any_run(path: Path) -> Run | ServingRun:
    """A run file, of the benchmark that its header names.

    Raises:
        InputError: as `read_run` and `read_serving_run`.
    """
    plan = read_lines(path).first.get("plan")
    serving = isinstance(plan, dict) and plan.get("benchmark") == BENCHMARK
    return read_serving_run(path) if serving else read_run(path)


def newest_path() -> Path:
    """The newest run file of this clone.

    Raises:
        InputError: there is none.
    """
    files = sorted(path for path in RUNS.glob("*.jsonl") if path.is_file())  # names begin with the time
    if not files:
        raise InputError(
            f"there is no run file in {shown_path(RUNS)}/",
            expected="one from an earlier run",
            todo="./inv campaign makes one; or --run FILE",
        )
    return files[-1]


def of_one_benchmark(runs: Sequence[Run | ServingRun]) -> tuple[list[Run], list[ServingRun]]:
    """The runs by their benchmark; one of the two lists is empty.

    Raises:
        InputError: they are of both.
    """
    allreduce = [run for run in runs if isinstance(run, Run)]
    serving = [run for run in runs if isinstance(run, ServingRun)]
    if allreduce and serving:
        raise InputError(
            f"{allreduce[0].path} is of bench-allreduce, {serving[0].path} of bench-speculative",
            expected="run files of one benchmark",
            todo="name them apart; compare takes an allreduce run beside servers as --allreduce-run",
        )
    return allreduce, serving
