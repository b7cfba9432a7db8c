"""What an allreduce run says of the allreduces of a server's passes, where it is of the same node and path. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuning.arms import Side, medians
from tuning.plan import Case
from tuning.runfile import Kind, Run
from tuning.serving.estimates import Estimate, of_mean
from tuning.serving.sides import ServingSide
from tuning.speculation_model import Curve

_CANDIDATES: Mapping[str, str] = {"nccl": "default", "nccl-p2p-off": "p2p_off", "nccl-sockets": "sockets"}
"""Backend of a server to the candidate of bench-allreduce that runs the same path; others have none."""


class NotToldError(Exception):
    """An allreduce run does not tell what a pass's allreduces take; the message says why, in words."""


@dataclass(frozen=True, kw_only=True)
class AllreduceTimes:
    """Allreduces of one backend.

    Attributes:
        calls: allreduces of a pass, as the run's workload counts them.
        row_bytes: bytes of a row of hidden states.
        curves: latencies by size, one curve a launch and working set.
        sizes: least and largest size that was measured, bytes.
        source: the run and candidate, for people.
    """

    calls: int
    row_bytes: int
    curves: tuple[tuple[Curve, ...], ...]
    sizes: tuple[int, int]
    source: str

    def pass_ms(self, rows: int) -> Estimate:
        """All allreduces of a pass of so many rows.

        The value is that of warm buffers, where they were measured; the range holds the 95 % intervals over launches of
        warm and cold ones.

        Raises:
            NotToldError: the size lies outside those that were measured.
        """
        size = rows * self.row_bytes
        if not self.sizes[0] <= size <= self.sizes[1]:
            raise NotToldError(
                f"{self.source} holds {self.sizes[0]:,} to {self.sizes[1]:,} bytes, and {rows} rows are {size:,}"
            )
        found = [of_mean([self.calls * curve.at(size) / 1000 for curve in curves]) for curves in self.curves]
        lows, highs = [f.low for f in found if f.low is not None], [f.high for f in found if f.high is not None]
        if len(lows) < len(found):
            return Estimate(value=found[0].value)
        return Estimate(value=found[0].value, low=min(lows), high=max(highs))


def allreduce_times(run: Run, side: ServingSide) -> AllreduceTimes:
    """The allreduces of a server's backend, by a run of the same node.

    Raises:
        NotToldError: the run is of another node, number of GPUs or path, or its workload does not tell rows.
    """
    plan, spec = run.header.plan, side.spec
    if run.header.kind is not Kind.MEASURED or plan.engine != "cuda":
        raise NotToldError(f"{run.path.name} holds no measured times of GPUs")
    if plan.ranks != spec.tensor_parallel:
        raise NotToldError(f"{run.path.name} has {plan.ranks} ranks, the server {spec.tensor_parallel}")
    if _node(run.header.node) != _node(side.run.header.node):
        raise NotToldError(f"{run.path.name} is of another node")
    candidate = _candidate(side)
    if candidate not in {known.name for known in plan.candidates}:
        raise NotToldError(f"{run.path.name} has no {candidate}, which is what backend {spec.allreduce} runs")
    rows = {(m.bytes / m.rows, m.calls) for m in plan.workload.messages if m.rows}
    if len(rows) != 1:
        raise NotToldError(f"the workload of {run.path.name} does not tell bytes and calls of a row")
    ((row_bytes, calls),) = rows
    mode = "graph" if spec.cuda_graphs and "graph" in plan.modes else "eager"
    arm = Side(environment=plan.environments[0].name, candidate=candidate, run=run)
    cases = [case for case in plan.cases if case.mode == mode and case.message.calls == calls]
    curves = tuple(
        found
        for working_set in plan.working_sets
        if (found := _curves(arm, [case for case in cases if case.working_set == working_set]))
    )
    if not curves:
        raise NotToldError(f"{run.path.name} has no numbers of {candidate} at two sizes in mode {mode}")
    sizes = [size for curve in curves[0] for size, _ in curve.points]
    return AllreduceTimes(
        calls=calls,
        row_bytes=round(row_bytes),
        curves=curves,
        sizes=(int(min(sizes)), int(max(sizes))),
        source=f"{run.path.name} {candidate} ({mode})",
    )


def _candidate(side: ServingSide) -> str:
    backend = side.spec.allreduce
    starts = side.starts
    if backend == "default" and starts and all(s.resolved.get("disable_custom_all_reduce") is True for s in starts):
        backend = "nccl"
    if backend not in _CANDIDATES:
        raise NotToldError(f"no candidate of bench-allreduce is known to run the path of backend {side.spec.allreduce}")
    return _CANDIDATES[backend]


def _curves(arm: Side, cases: list[Case]) -> tuple[Curve, ...]:
    """A curve for each launch that has all sizes, at least two of them."""
    by_size = {case.message.bytes: medians(arm, case.key) for case in cases}
    if len(by_size) < 2:
        return ()
    complete = set.intersection(*map(set, by_size.values()))
    return tuple(
        Curve(points=tuple((float(size), by_size[size][launch].median) for size in sorted(by_size)))
        for launch in sorted(complete)
    )


def _node(record: Mapping[str, Any]) -> tuple[object, tuple[str, ...]]:
    """By what a node is told from another: its name and its GPUs."""
    host, gpus = record.get("host"), record.get("gpus")
    told = [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    names = sorted(str(gpu.get("uuid") or gpu.get("name")) for gpu in told)
    return host.get("hostname") if isinstance(host, dict) else None, tuple(names)
