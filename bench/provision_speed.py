"""Seconds that provisioning takes a node, on containers with systemd: python bench/provision_speed.py [--most 8]

Nodes are the containers of tests/containers/node_bed.py (systemd, sshd, a simulated PCI tree of 40 functions), all on
this machine, so what 8 nodes take together is what this machine's cores allow, not what 8 nodes would take. Needs root,
a container engine, a `docker` client and ssh. For 1 node and for the most: a check run, the first run, and an unchanged
second run, each the median of some repetitions on new nodes. Run it when the machine is calm.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import docker

from images.bases import ensure_base
from images.build_plan import Base, BaseKind
from images.wheels import cache_folder
from lanewise.engine import engine_state
from tests.containers.node_bed import node_image, nodes
from tests.vm.plays import Plays

RUNS = {"check": ("--check",), "first": (), "second": ()}
"""What is timed, in order: arguments of the playbook."""
BASE = Base(name="debian-bookworm", kind=BaseKind.DEBIAN, reference="bookworm", python="3.11")


def once(client: docker.DockerClient, image: str, count: int) -> dict[str, float]:
    """Seconds of each run on so many new nodes."""
    with tempfile.TemporaryDirectory(prefix="lanewise-speed-") as name, nodes(client, image, Path(name), count) as made:
        folder = Path(name, "plays")
        folder.mkdir()
        hosts = {node.name: {**node.host(), "node_virtualised": False} for node in made}
        plays = Plays(folder=folder, group="virtual_machine", hosts=hosts)
        return {run: timed(plays, arguments) for run, arguments in RUNS.items()}


def timed(plays: Plays, arguments: tuple[str, ...]) -> float:
    """Seconds of a run that succeeds."""
    played = plays.play("provision", *arguments)
    if played.code:
        raise SystemExit(f"provision ended with {played.code}:\n{played.output[-3000:]}")
    return played.seconds


def rows(client: docker.DockerClient, image: str, most: int, repetitions: int) -> Iterator[str]:
    """The table, a line a number of nodes and kind of run."""
    yield "| Nodes | Run | Seconds | Seconds a node | Range |"
    yield "| --: | --- | --: | --: | --- |"
    for count in (1, most):
        found = [once(client, image, count) for _ in range(repetitions)]
        for run in RUNS:
            seconds = [one[run] for one in found]
            middle = statistics.median(seconds)
            yield f"| {count} | {run} | {middle:.1f} | {middle / count:.1f} | {min(seconds):.1f}-{max(seconds):.1f} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Seconds that provisioning takes a node.")
    parser.add_argument("--most", type=int, default=8, help="nodes of the larger measurement (default: 8)")
    parser.add_argument("--repetitions", type=int, default=3, help="on new nodes each (default: 3)")
    options = parser.parse_args()
    state = engine_state()
    if not state.present:
        raise SystemExit(state.detail)
    client = docker.from_env(timeout=120)
    image = node_image(client, ensure_base(BASE, client, cache_folder().parent, lambda _line: None).id)
    print(f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}, {state.detail}")
    for row in rows(client, image, options.most, options.repetitions):
        print(row, flush=True)
    client.close()


if __name__ == "__main__":
    main()
