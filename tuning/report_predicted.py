"""What was to be expected of a run's node: where the model speaks of such a node at all, and if not, why not. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lanewise.errors import InputError
from tuning.plan import Case
from tuning.predict import Estimate, Predicted, Prediction, predict
from tuning.predict_inputs import MEASURED_AS, Preflight
from tuning.predict_schedules import FAMILIES
from tuning.report_document import line
from tuning.runfile import Kind, Run
from tuning.topology import Topology
from tuning.topology_record import parse_record

_CURVE_STEPS = 32
_CURVE_AROUND = 2
_FAMILY_OF_CHOICE = {
    (algorithm, protocol): f"nccl-{algorithm.lower()}-{protocol.lower()}"
    for algorithm in ("RING", "TREE")
    for protocol in ("LL", "LL128", "SIMPLE")
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a node should take.

    Attributes:
        at: at the run's own sizes.
        curve: at many sizes around them, for pictures.
        families: which family each candidate is, of those that are predicted.
    """

    at: Prediction
    curve: Prediction
    families: Mapping[str, str]

    def estimate(self, candidate: str, size: int) -> Estimate | None:
        """What the candidate should take; None where it is not predicted."""
        predicted = self.of(self.at, candidate)
        return next((e for e in predicted.estimates if e.size == size), None) if predicted else None

    def of(self, prediction: Prediction, candidate: str) -> Predicted | None:
        """The candidate's family in one of the two predictions; None where it has none, or none that can start."""
        name = self.families.get(candidate)
        return next((p for p in prediction.families if p.family.name == name and p.estimates), None)


def expected(run: Run, topology: Topology | None, preflight: Preflight | None) -> Expected | str:
    """What is predicted of a run's node, or why nothing is.

    Args:
        run: the measurements.
        topology: of its node, where the user named one; else the run's node record has to tell it.
        preflight: what it says of the toolchain, where that was asked.
    """
    plan = run.header.plan
    if plan.engine != "cuda" or run.header.kind is not Kind.MEASURED:
        return f"engine {plan.engine}, times {run.header.kind}: predictions are of GPUs that each rank has for itself"
    if "graph" not in plan.modes or "warm" not in plan.working_sets:
        return "no calls in a CUDA graph on warm buffers were measured, and others are not predicted"
    if others := _other_gpus(run):
        return f"its GPUs are {others}: predictions are of SM120 GPUs (12.0) joined by PCIe alone"
    try:
        node = topology or parse_record(json.dumps(run.header.node), name="the run's node", source=run.path.name)
        used = sorted(node.gpus, key=lambda gpu: gpu.index)[: plan.ranks]
        if len(used) < plan.ranks:
            return f"{node.name} has {len(used)} GPUs, and {plan.ranks} ranks were measured"
        if topology is None and not all(gpu.sm in (120, 121) for gpu in used):
            return "its node record does not say that the GPUs are SM120; name the node with --topology"
        gpus = [gpu.index for gpu in used]
        sizes = [message.bytes for message in plan.workload.messages]
        return Expected(
            at=predict(node, sizes=sizes, gpus=gpus, preflight=preflight),
            curve=predict(node, sizes=_around(min(sizes), max(sizes)), gpus=gpus, preflight=preflight),
            families=families(run),
        )
    except InputError as error:
        return f"{line(error.what)}; name the node with --topology"


def _other_gpus(run: Run) -> str:
    """GPUs of the node record that are known not to be SM120, in words; "" where there are none."""
    stated = run.header.node.get("gpus")
    gpus = [gpu for gpu in stated if isinstance(gpu, dict)] if isinstance(stated, list) else []
    others = [gpu for gpu in gpus if str(gpu.get("compute_capability", "12.0")) not in ("12.0", "12.1", "unknown")]
    return ", ".join(dict.fromkeys(line(f"{gpu.get('name')} ({gpu.get('compute_capability')})") for gpu in others))


def families(run: Run) -> dict[str, str]:
    """Candidate to family: by name, and where NCCL chose itself by what it says that it ran, if that was always one."""
    found = {}
    for candidate in run.header.plan.candidates:
        chosen = {
            (str(trial.choice.get("algorithm")).upper(), str(trial.choice.get("protocol")).upper())
            for trial in run.trials
            if trial.ok and trial.candidate == candidate.name and trial.choice
        }
        known = MEASURED_AS.get(candidate.name)
        family = known or (_FAMILY_OF_CHOICE.get(next(iter(chosen))) if len(chosen) == 1 else None)
        if family in FAMILIES:
            found[candidate.name] = str(family)
    return found


def _around(least: int, most: int) -> tuple[int, ...]:
    low, high = max(least // _CURVE_AROUND, 1), most * _CURVE_AROUND
    return tuple(sorted({int(low * (high / low) ** (step / _CURVE_STEPS)) for step in range(_CURVE_STEPS + 1)}))


def checked(expected: Expected, values: Mapping[tuple[str, Case], float]) -> Iterator[str]:
    """How measured times lie beside what was predicted, a sentence for each candidate that has a family.

    Args:
        expected: what is predicted: calls in a CUDA graph on warm buffers.
        values: us by candidate and case.
    """
    for candidate, family in expected.families.items():
        pairs = [
            (case.message.bytes, us, estimate)
            for (name, case), us in values.items()
            if name == candidate and (estimate := expected.estimate(candidate, case.message.bytes))
        ]
        if not pairs:
            continue
        inside = sum(estimate.low <= us <= estimate.high for _, us, estimate in pairs)
        text = f"{candidate}: {inside} of {len(pairs)} sizes within the bounds predicted for {FAMILIES[family].title}"
        size, us, estimate = max(pairs, key=lambda pair: pair[1] / pair[2].us)
        if us > estimate.high:
            text += (
                f"; at {size:,} B it takes {us:,.1f} us where {estimate.high:,.1f} is the upper bound: "
                "look at transport, fabric and how it was measured (./inv diagnose)"
            )
        yield text


def below_floor(expected: Expected, values: Mapping[tuple[str, Case], float]) -> Iterator[str]:
    """Measured times that no allreduce can have on that node, and what that means, a sentence each."""
    for (candidate, case), us in values.items():
        least = expected.at.floor.time_us(case.message.bytes)
        if us < least:
            yield (
                f"{candidate} takes {us:,.1f} us at {case.message.bytes:,} B, below the physical floor of {least:,.1f} "
                f"on {expected.at.topology}: the topology is not this node's, or the times are not of whole allreduces"
            )
