"""What a file holds is somebody else's: whatever stands there, it is read, or refused in words, and nothing else."""

from __future__ import annotations

import io
import json
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from lanewise.errors import InputError
from tests.unit.makers import fake_candidate, fake_launch, fake_plan, fake_run, fake_trial
from tuning.arms import find_sides
from tuning.compare import compare, overview
from tuning.compare_view import show, show_failures, show_overview, show_statuses, to_document
from tuning.model_shape import derive_workload, read_model_shape
from tuning.runfile import Run, read_run
from tuning.trial import Status, parse_line, to_line
from tuning.workload import load_workload, parse_workload

DEEP = json.loads("[" * 200 + "]" * 200)
ODD = (
    None, True, False, -1, 0, 0.5, 1e300, 1e-300, 2**63, 10**400, float("nan"), float("inf"), "", "NaN", "\ud800",
    "[/x]", "default", "x" * 100_000, [], {}, [[]], [1], [None], ["\ud800"], {"": {}}, {"name": None},
    {"a": [{"name": 1}]}, DEEP,
)  # fmt: skip
"""What JSON can hold and nobody means."""

PLAN = fake_plan(
    candidates=(fake_candidate("default"), fake_candidate("ring"), fake_candidate("tcp", BTL="tcp")),
    environments=("a", "b"),
    launches=2,
)
NCCL = [{"name": "NCCL_ALGO", "value": "Ring", "source": "environment", "hidden": ["/etc/nccl.conf: Tree"]}]
MADE = fake_run(
    PLAN,
    lambda environment, candidate, message: 10.0 + len(environment + candidate + message),
    a={"python": "3.12.0", "libraries": {"mpi4py": "4.1"}, "variables": {"A": "1"}, "nccl": NCCL},
    b={"python": "3.13.0", "libraries": {"mpi4py": "4.0"}, "variables": {}, "nccl": []},
)
FAILED = fake_trial(environment="a", candidate="ring", status=Status.CRASHED, samples=(), reason="exit code 1")


def documents() -> list[dict[str, Any]]:
    launches = [*MADE.launches.values(), fake_launch(environment="a", output=("Error: no",), libraries={"mpi": "5"})]
    choice = fake_trial(environment="b", choice={"algorithm": "RING", "protocol": "LL", "channels": 1})
    records = [MADE.header.to_dict(), *map(to_line, (*launches, *MADE.trials, FAILED, choice))]
    return json.loads(json.dumps(records))


def places(node: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in a JSON value another can be put."""
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*at, key)
        yield from places(inner, (*at, key))


def mutated(document: Any, at: tuple[str | int, ...], value: object, draw: random.Random) -> None:
    """Replace the node, or now and then remove it or rename it, in place."""
    *way, last = at
    for key in way:
        document = document[key]
    document[last] = value
    if draw.random() < 0.1:
        del document[last]
    elif isinstance(document, dict) and draw.random() < 0.05:
        document["more"] = document.pop(last)


def as_bytes(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 3, 30))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    """A piece less, from somewhere within a line to somewhere else, or to the end."""
    start = draw.randrange(len(data))
    return data[:start] + data[start + draw.randrange(1, 200) :] if draw.random() < 0.5 else data[:start]


def damaged_run(number: int, draw: random.Random) -> bytes:
    if number % 4 == 0:
        return draw.choice((flipped, cut))(as_bytes(documents()), draw)
    records = documents()
    line = draw.choice((0, 0, 1, len(records) - 1, len(records) - 2, draw.randrange(len(records))))
    if draw.random() < 0.02:
        records[line] = draw.choice(ODD)
    else:
        mutated(records[line], draw.choice(list(places(records[line]))), draw.choice(ODD), draw)
    return as_bytes(records)


def look_at(run: Run) -> None:
    """All that the verbs do with a run, as far as a terminal's or a pipe's bytes."""
    everything = overview(run)
    described = compare(find_sides(MADE, "a")[0], find_sides(run, run.header.plan.environments[0].name)[0])
    screen = Console(file=io.StringIO(), width=80)
    screen.print(show_overview(run, everything), show(described), show_statuses(run))
    screen.print(show_failures([trial for trial in run.trials if not trial.ok], run.launches))
    text = json.dumps([to_document(comparison) for comparison in (*everything.all, described)], allow_nan=False)
    assert isinstance(screen.file, io.StringIO)
    (screen.file.getvalue() + text).encode()


def endings(count: int, attempt: Callable[[int, random.Random], None]) -> dict[str, list[int]]:
    """Which mutations ended how; InputError is the only exception that may come."""
    found: dict[str, list[int]] = {}
    for number in range(count):
        try:
            attempt(number, random.Random(number))
            ending = "read"
        except InputError as error:
            ending = "refused" if len(str(error)) < 2_000 else f"refused with too many words: {str(error)[:200]}"
        except Exception as error:  # noqa: BLE001 - none may come, and all that come are to be told
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
            where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
            ending = f"{type(error).__name__}: {str(error)[:40]} at {where}"
        found.setdefault(ending, []).append(number)
    return found


def require_read_or_refused(found: dict[str, list[int]], *, least: int) -> None:
    faults = {ending: numbers[:5] for ending, numbers in found.items() if ending not in ("read", "refused")}
    assert not faults, f"endings, and the first mutations that had them: {faults}"
    assert min(len(found.get(ending, ())) for ending in ("read", "refused")) >= least, "mutations too wild or too tame"


def test_a_damaged_run_file_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def attempt(number: int, draw: random.Random) -> None:
        path.write_bytes(damaged_run(number, draw))
        look_at(read_run(path))

    require_read_or_refused(endings(2_000, attempt), least=200)


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(as_bytes(documents()))
    look_at(read_run(path))


WORKLOAD = """# a comment
name: fuzz
dtype: bfloat16
source: "derived: 61 layers"
messages:
  - {name: baseline, rows: 1, bytes: 14336, calls: 122}
  - {name: verify, rows: 3, bytes: 43008, calls: 122}
"""
SCALARS = (
    "2026-13-45", "0b_", "!!int x", "!!timestamp x", "!!bool x", "!!python/name:os.system x", "&a", "*a", "<<", "~",
    "{", "]",
    "0x" + "f" * 9_000, "9" * 5_000, "1:2:3", ".inf", "!!binary x", '"\\ud800"', "!!float", "? ", "|",
    "- - -", "\0", "\t", "%",
)  # fmt: skip


def test_a_damaged_workload_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"

    def attempt(number: int, draw: random.Random) -> None:
        data = WORKLOAD.encode()
        if number % 3 == 0:
            data = draw.choice((flipped, cut))(data, draw)
        elif number % 3 == 1:
            words = WORKLOAD.split(" ")
            words[draw.randrange(len(words))] = draw.choice(SCALARS)
            data = " ".join(words).encode()
        else:
            document = yaml.safe_load(WORKLOAD)
            mutated(document, draw.choice(list(places(document))), draw.choice(ODD), draw)
            data = json.dumps(document).encode()  # which is YAML, too
        path.write_bytes(data)
        (str(load_workload(str(path)).to_dict())).encode()

    require_read_or_refused(endings(500, attempt), least=25)


def test_a_damaged_model_config_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "x", "text_config": {"num_hidden_layers": 61, "hidden_size": 7168, "dtype": "bfloat16"}}

    def attempt(number: int, draw: random.Random) -> None:
        document = json.loads(json.dumps(config))
        data = json.dumps(document).encode()
        if number % 3 == 0:
            data = draw.choice((flipped, cut))(data, draw)
        else:
            value = draw.choice((*ODD, 10**4_299))
            mutated(document, draw.choice(list(places(document))), value, draw)
            data = (
                json.dumps(document).encode().replace(b"7168", draw.choice((b"7168", b"7168", b"7168}", b"9" * 5_000)))
            )
        path.write_bytes(data)
        made = derive_workload(read_model_shape(path, name="x"), draft_tokens=3, calls_per_layer=draw.choice((1, 2, 8)))
        assert parse_workload(made.to_dict(), where="x") == made

    require_read_or_refused(endings(500, attempt), least=25)


@pytest.mark.parametrize(
    ("field", "value"),
    [("environment", 5), ("environment", "\ud800"), ("candidate", None), ("copy", True), ("copy", 2), ("copy", -1),
     ("message", []), ("mode", {}), ("working_set", 1),
     ("repetition", 1.0), ("repetition", -1), ("repetition", 10**400),
     ("launch", None), ("status", []), ("status", "fine"), ("reason", 5), ("metric", 5), ("choice", []),
     ("choice", {"a": float("nan")}), ("choice", {"a": 10**400}), ("choice", {"\ud800": 1}), ("choice", DEEP),
     ("choice", {"a": DEEP}), ("samples", None), ("samples", "12"), ("samples", {"1": [1.0]}), ("samples", [[]]),
     ("samples", [[1.0], []]), ("samples", [1.0]), ("samples", [["1"]]), ("samples", [[True]]),
     ("samples", [[10**400]]),
     ("samples", [[1e-7]]), ("samples", [[1e13]]), ("samples", [[float("nan")]]), ("samples", [[0]]), ("kind", []),
     ("kind", "x" * 10_000), ("more", 1)],
)  # fmt: skip
def test_a_trial_of_other_types_is_refused(field: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_line({**json.loads(json.dumps(to_line(fake_trial()))), field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("launch", 1), ("plan", None), ("command", "mpirun"), ("command", [1]), ("command", ["\ud800"]), ("command", None),
     ("started", 0), ("seconds", "1"), ("seconds", float("inf")), ("seconds", True), ("seconds", 10**400),
     ("busy", "0"), ("busy", False), ("busy", float("nan")), ("libraries", []), ("libraries", {"a": DEEP}),
     ("output", {}), ("output", [None]), ("repetition", "0"), ("repetition", False)],
)  # fmt: skip
def test_a_launch_of_other_types_is_refused(field: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_line({**json.loads(json.dumps(to_line(fake_launch()))), field: value})


@pytest.mark.parametrize("value", [None, 0, 2])
def test_what_is_busy_may_be_unknown_or_whole(value: object) -> None:
    assert parse_line({**json.loads(json.dumps(to_line(fake_launch()))), "busy": value}) == fake_launch(busy=value)
