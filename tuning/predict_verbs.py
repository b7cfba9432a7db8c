"""The verb `predict`: what every family of allreduce kernels would take on a node."""

from __future__ import annotations

import re
from pathlib import Path

from invoke.context import Context

from lanewise import talk
from lanewise.errors import InputError
from lanewise.files import shown_path, write_atomic
from lanewise.verbs import verb
from tuning import predict_svg, predict_view
from tuning.predict import predict as predict_node
from tuning.predict_inputs import own_rows, read_preflight
from tuning.provenance import ROOT
from tuning.runfile import read_run
from tuning.topology_read import read_topology, reference_names
from tuning.workload import load_workload, short

_RUNS = ROOT / "runs"
_SIZE = re.compile(r"([0-9]{1,10})(?: ?([KM])iB)?", re.ASCII)
_UNITS = {None: 1, "K": 1 << 10, "M": 1 << 20}
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_CURVE_STEPS = 40
_CURVE_AROUND = 64
"""A curve goes from a 64th of the smallest size to 64 times the largest."""
_CURVE_SIZES = (1 << 8, 1 << 30)


@verb(
    "topology",
    topology=f"the node: one of {', '.join(reference_names())}, or a file as `topology` reads them",
    toolchain="say what preflight found cannot start there, instead of a number (runs/TOOLCHAIN/preflight.json)",
    workload="sizes and calls of this workload: built-in name or path of a YAML file (default: kimi-k2)",
    sizes="comma list of message sizes instead: bytes, or such as 42KiB or 1MiB",
    gpus="GPUs that work together, e.g. 0-3 or 0,1,4,5 (default: all)",
    measured="run file of this host: what it measured takes the place of published constants",
    svg="also write a picture to this path: latency against size, with floor and bounds",
    json="print as JSON",
)
def predict(
    _context: Context,
    topology: str = "8gpu-2switch-1socket",
    toolchain: str = "",
    workload: str = "",
    sizes: str = "",
    gpus: str = "",
    measured: str = "",
    svg: str = "",
    json: bool = False,
) -> None:
    """Predict what an allreduce takes on a node: every family with bounds, bottleneck and the physical floor."""
    if workload and sizes:
        raise InputError("--workload and --sizes are both given", expected="one of them", todo="leave one out")
    node = read_topology(topology)
    messages = () if sizes else load_workload(workload or "kimi-k2").messages
    asked = parse_sizes(sizes) if sizes else tuple(message.bytes for message in messages)
    working = parse_gpus(gpus)
    preflight = read_preflight(_RUNS, toolchain) if toolchain else None
    own = own_rows(read_run(Path(measured)), environment=toolchain) if measured else None
    prediction = predict_node(node, sizes=asked, gpus=working, preflight=preflight, own=own)
    if svg:
        curve = predict_node(node, sizes=_curve(asked), gpus=working, preflight=preflight, own=own)
        write_atomic(Path(svg), predict_svg.svg(curve, asked))
        talk.say(f"written: {shown_path(Path(svg))}")
    if toolchain and preflight is None:
        talk.say(f"what {toolchain} can start is not known yet: ./inv preflight --toolchain {toolchain}")
    if json:
        talk.put_json(predict_view.document(prediction, messages))
    else:
        talk.put(predict_view.show(prediction, messages))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of a comma list such as "14336,42KiB".

    Raises:
        InputError: an entry is no size.
    """
    found = []
    for entry in text.split(","):
        match = _SIZE.fullmatch(entry.strip())
        if not match:
            raise InputError(
                f"--sizes holds {short(entry)}",
                expected="a comma list of whole bytes, or such as 42KiB or 1MiB",
                todo="correct it",
            )
        found.append(int(match[1]) * _UNITS[match[2]])
    return tuple(found)


def parse_gpus(text: str) -> tuple[int, ...]:
    """GPU indices of a list such as "0-3,6"; "" is none.

    Raises:
        InputError: an entry is neither a number nor a range.
    """
    found: list[int] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(entry)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"--gpus holds {short(entry)}", expected="such as 0-3 or 0,1,4,5", todo="correct it")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def _curve(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes for a smooth line around those asked for, which are among them."""
    least = max(_CURVE_SIZES[0], min(sizes) // _CURVE_AROUND)
    most = min(_CURVE_SIZES[1], max(sizes) * _CURVE_AROUND)
    steps = (least * (most / least) ** (step / _CURVE_STEPS) for step in range(_CURVE_STEPS + 1))
    return tuple(sorted({*(int(size) for size in steps), *sizes}))
