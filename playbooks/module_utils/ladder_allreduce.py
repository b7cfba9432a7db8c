"""Step allreduce of the ladder: NCCL's sums over all GPUs, checked, by the worker of engine cuda.

The worker (docs/worker-protocol.md) is not the node's: whoever asks gives its files, which lie in a folder of their own
while it runs, and names a Python on the node that has what it needs.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from .ladder_steps import FAULT, NOT_RUN, OK, UNKNOWN, Fault, Step
from .node_record_command import first_line, run

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 180.0
"""Its own start takes up to a minute where GPUs sleep; a hang of NCCL prints nothing at all."""
BYTES = (8, 4096, 65536, 1 << 20, 64 << 20)
"""One size at least for each protocol that NCCL chooses by itself."""
MAIN = "cuda_allreduce.py"
_MARK = "@lanewise "


def allreduce(python: str, worker: Mapping[str, str], gpus: int, seconds: float = SECONDS) -> Step:
    """Let every GPU be a rank, and check sums of every size, called from the host and in a CUDA graph.

    Args:
        python: interpreter on this node that has cuda-bindings, numpy and NCCL; "" where none is named.
        worker: the worker's files, name to text.
        gpus: how many there are.
        seconds: after which it is killed.
    """
    if not python or MAIN not in worker:
        return Step("allreduce", NOT_RUN, "name a Python of the node with cuda-bindings, numpy and NCCL: ladder_python")
    with tempfile.TemporaryDirectory(prefix="lanewise-ladder-") as folder:
        for name, text in worker.items():
            with open(os.path.join(folder, os.path.basename(name)), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH119, PTH123
                file.write(text)
        try:
            status, output = run([python, os.path.join(folder, MAIN), json.dumps(_job(gpus))], seconds)  # noqa: PTH118
        except TimeoutError as error:
            return Step("allreduce", FAULT, faults=[Fault("ALLREDUCE_HANG", f"{gpus} GPUs", f"{error}; killed")])
        except OSError as error:
            return Step("allreduce", UNKNOWN, f"cannot start {python}: {error.strerror or error}")
    try:
        return _judged(status, output, gpus)
    except (ValueError, LookupError, TypeError) as error:
        return Step("allreduce", UNKNOWN, f"the worker's answer cannot be understood: {error!r}")


def _job(gpus: int) -> dict[str, Any]:
    return {
        "protocol": 1,
        "ranks": gpus,
        "seed": 1,
        "rounds": 1,
        "samples": 3,
        "dtype": "bfloat16",
        "modes": ["eager", "graph"],
        "working_sets": ["warm"],
        "messages": [{"name": f"{size}B", "bytes": size, "calls": 4} for size in BYTES],
        "candidates": [{"key": "default", "parameters": {"kind": "nccl", "algo": "", "proto": "", "nccl": ""}}],
    }


def _judged(status: int, output: str, gpus: int) -> Step:
    """What the worker's events come to."""
    where = f"{gpus} GPUs"
    events = [json.loads(line[len(_MARK) :]) for line in output.splitlines() if line.startswith(_MARK)]
    kinds = [event["event"] for event in events]
    for event in events:
        if event["event"] == "wrong":
            return Step("allreduce", FAULT, faults=[Fault("ALLREDUCE_WRONG", where, str(event["reason"]))])
        if event["event"] in ("failed", "unsupported"):
            return Step("allreduce", UNKNOWN, str(event["reason"]))
    if status:
        last = next((line for line in reversed(output.splitlines()) if line and not line.startswith(_MARK)), "")
        return Step("allreduce", FAULT, faults=[Fault("ALLREDUCE_FAILED", where, f"status {status}: {last[:300]}")])
    samples = [event for event in events if event["event"] == "samples"]
    if "done" not in kinds or not samples:
        return Step("allreduce", UNKNOWN, f"the worker did not finish: {first_line(output)}")
    return Step("allreduce", OK, evidence=_told(samples, where), measured=samples)


def _told(samples: list[dict[str, Any]], where: str) -> list[str]:
    lines = [
        f"{where}: sums right at {', '.join(str(size) for size in BYTES)} bytes, called from the host and in a graph"
    ]
    for message in dict.fromkeys(str(sample["message"]) for sample in samples):
        best = {
            mode: min(time for one in samples if (one["message"], one["mode"]) == (message, mode) for time in one["us"])
            for mode in dict.fromkeys(str(one["mode"]) for one in samples if one["message"] == message)
        }
        lines.append(f"{message}: " + ", ".join(f"{time:.1f} us {mode}" for mode, time in best.items()))
    return lines
