"""Real MPI ranks on this machine: what every test here needs, and the check that none leaves anything behind."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuning.campaign import Known, start_run
from tuning.candidates import CANDIDATES, Candidate
from tuning.engines import MpiEngine
from tuning.plan import Environment, Plan
from tuning.runfile import Run
from tuning.workload import Message, Workload

FAULTY = MpiEngine(worker=Path(__file__).with_name("faulty_worker.py"))
SMALL = Workload(
    name="small",
    dtype="float32",
    messages=(Message(name="odd", bytes=4 * 1021, calls=20), Message(name="even", bytes=4 * 4096, calls=20)),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("ranks")


def named(*names: str) -> tuple[Candidate, ...]:
    """The product's candidates of these names, and for unknown names copies of the default."""
    known = {candidate.name: candidate for candidate in CANDIDATES["mpi"]}
    default = known["default"]
    return tuple(
        known.get(name) or Candidate(name=name, engine="mpi", meaning="test only", parameters=default.parameters)
        for name in names
    )


def small_plan(*names: str, faults: dict[str, str] | None = None, **changes: object) -> Plan:
    variables = {"LANEWISE_TEST_FAULTS": json.dumps(faults)} if faults else {}
    fields: dict[str, object] = {
        "engine": "mpi",
        "ranks": 3,
        "workload": SMALL,
        "environments": (Environment(name="here", python=sys.executable, variables=variables),),
        "candidates": named("default", *names),
        "baseline": "default",
        "launches": 2,
        "rounds": 2,
        "samples": 2,
        "margin": 0.10,
        "seed": 1,
        "timeout": 20.0,
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def vouched(run: Run) -> Known:
    """Vouch for all that a run would run, as a user who names it again does."""
    plan = run.header.plan
    return Known(environments=plan.environments, python=sys.executable, candidates=plan.candidates)


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., Run]:
    """Run a small plan with the faulty worker; the run."""

    def run(*names: str, faults: dict[str, str] | None = None, **changes: object) -> Run:
        plan = small_plan(*names, faults=faults, **changes)
        return start_run(plan, FAULTY, tmp_path / "run.jsonl", lambda _step: None, command=["test"])

    return run


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No rank, no shared-memory segment, no temporary folder survives a test, however it went."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("LANEWISE_TEST_MARK", str(tmp_path))
    before = set(Path("/dev/shm").iterdir())
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (left := leftovers(tmp_path, before)):
        time.sleep(0.05)
    assert not left


def leftovers(tmp_path: Path, before: set[Path]) -> list[str]:
    ours = [str(p) for p in set(Path("/dev/shm").iterdir()) - before if p.name.startswith(("lanewise", "sm_segment"))]
    return [*marked(str(tmp_path)), *ours, *map(str, (tmp_path / "tmp").iterdir())]


def marked(mark: str) -> list[str]:
    """Processes whose environment carries a test's mark, other than the test itself and those above it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"LANEWISE_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()[:200]!r}")
            except OSError:
                continue
    return found
