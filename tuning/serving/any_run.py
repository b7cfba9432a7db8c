"""Run files of whatever benchmark, as the verbs that take any of them read them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from lanewise import talk
from lanewise.errors import InputError
from lanewise.files import shown_path
from tuning.bench import RUNS
from tuning.runfile import Run, read_run
from tuning.runlines import FORMAT, read_lines
from tuning.serving.plan import BENCHMARK
from tuning.serving.runfile import ServingRun, read_serving_run
from tuning.trial import mapping

_MOST_HEADER = 16 << 20
"""Bytes of a first line that are read to learn when a run was begun."""


def read_any_run(path: Path) -> Run | ServingRun:
    """A run file, of the benchmark that its header names.

    Raises:
        InputError: as `read_run` and `read_serving_run`.
    """
    plan = read_lines(path).first.get("plan")
    serving = isinstance(plan, dict) and plan.get("benchmark") == BENCHMARK
    return read_serving_run(path) if serving else read_run(path)


def newest_path() -> Path:
    """The newest run file of this clone: by its header, else by its last change.

    What is no run file is passed over with a note.

    Raises:
        InputError: there is none.
    """
    made: dict[Path, float] = {}
    for path in sorted(path for path in RUNS.glob("*.jsonl") if path.is_file()):
        try:
            made[path] = _created(path)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            talk.say(f"note: {shown_path(path)} is no run file, and is passed over ({type(error).__name__}: {error})")
    if not made:
        raise InputError(
            f"there is no run file in {shown_path(RUNS)}/",
            expected="one from an earlier run",
            todo="./inv campaign makes one; or --run FILE",
        )
    return max(made, key=lambda path: (made[path], path.name))


def _created(path: Path) -> float:
    """When a run was begun, in seconds since 1970.

    Raises:
        OSError, ValueError, TypeError, RecursionError: it cannot be read, or has no header.
    """
    with path.open("rb") as file:
        line = file.readline(_MOST_HEADER)
        changed = os.fstat(file.fileno()).st_mtime
    if not line.endswith(b"\n"):
        raise ValueError("its first line is not whole")
    header = mapping(json.loads(line))
    if header.get("format") != FORMAT:
        raise ValueError("its first line is no header")
    with suppress(ValueError, TypeError, OverflowError):
        created = datetime.fromisoformat(header.get("created", ""))
        return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()
    return changed


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
