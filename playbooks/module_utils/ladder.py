#!/usr/bin/env python3
"""The ladder: checks of a GPU node from cheap to expensive, which stop at the first failure (docs/verify-node.md).

Runs by itself, with the other files of this folder beside it, on Python >= 3.9 with the standard library; and as an
Ansible module's code (library/node_ladder.py). It changes nothing on the node, and needs no CUDA toolkit: steps copy
and rates call the driver's own library. By itself it does not judge bandwidth, for which the caller gives limits, and
does not know the node's plan, so that step config is left out: `python3 -I ladder.py --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # As node_record.py: the files import one another relatively, so the script says of which package it is.
    package = ModuleType("lanewise_node")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]  # noqa: PTH100, PTH120
    sys.modules[package.__name__] = package
    __spec__ = ModuleSpec(f"{package.__name__}.ladder", None)

from .ladder_allreduce import allreduce
from .ladder_child import in_child
from .ladder_copy import copies
from .ladder_cuda import Cuda
from .ladder_places import places
from .ladder_rates import rates
from .ladder_smi import NO_DEVICES, ask_nvidia_smi, p2p, users
from .ladder_steps import FAULT, NAMES, NOT_APPLICABLE, NOT_RUN, UNKNOWN, Fault, Step, some
from .node_record_pci import pci
from .node_record_tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .ladder_places import Place
    from .ladder_smi import Ask

START_SECONDS = 120.0
"""The driver's first start after a boot, of many GPUs without persistence mode."""
_DRIVER = ("/proc/driver/nvidia/version", "/sys/module/nvidia", "/dev/nvidiactl")
"""Any of these: a sandbox may hide the first two."""
_ENGINE = (
    "it needs a server and a model: the same prompts at temperature 0, with P2P and with NCCL_P2P_DISABLE=1, must give "
    "the same tokens (./inv bench-speculative)"
)


@dataclass(frozen=True)
class Asked:
    """What to climb with.

    Args:
        to: the last step to do.
        limits: of step rates.
        python, worker: of step allreduce.
        root: the node's file system; below another than "/", there is no driver to ask.
        ask: runs nvidia-smi.
        open_cuda: makes the driver, in a child.
    """

    to: str = "engine"
    limits: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    worker: Mapping[str, str] = field(default_factory=dict)
    root: str = "/"
    ask: Ask = ask_nvidia_smi
    open_cuda: Callable[[Sequence[int] | None], Cuda] = Cuda


class Ladder:
    """One climb; knows the node's GPUs once step copy asked for them."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._placed: list[Place | None] = []
        self._rungs: dict[str, Callable[[], Step]] = {
            "p2p": self._p2p,
            "copy": self._copy,
            "rates": lambda: rates(self._placed, asked.open_cuda, asked.limits),
            "allreduce": lambda: allreduce(asked.python, asked.worker, len(self._placed)),
            "engine": lambda: Step("engine", NOT_RUN, _ENGINE),
        }

    def climb(self, config: Step) -> list[Step]:
        """Every step in its order; those above a failure are not run.

        Args:
            config: the first step, which is decided elsewhere.
        """
        steps, stop = [config], None
        for name in NAMES[1:]:
            stop = stop or self._stop(steps[-1])
            if stop:
                steps.append(replace(stop, name=name))
            else:
                began = time.monotonic()
                steps.append(replace(self._rungs[name](), seconds=round(time.monotonic() - began, 2)))
        return steps

    def _stop(self, below: Step) -> Step | None:
        """What all further steps come to without being tried, because of the last one; None: the next is tried."""
        if below.name == "config" != self._asked.to and not self._has_driver():
            return Step("", NOT_APPLICABLE, "no NVIDIA driver is loaded")
        if below.status == FAULT:
            return Step("", NOT_RUN, f"stopped at {below.name}")
        if below.name == self._asked.to:
            return Step("", NOT_RUN, f"asked for no more than {below.name}")
        if below.name == "copy" and below.status == UNKNOWN:
            return Step("", NOT_RUN, "it is not known whether copies arrive")
        if below.status == NOT_APPLICABLE or (below.name == "copy" and below.status == NOT_RUN):
            return below
        return None

    def _has_driver(self) -> bool:
        return self._asked.root == "/" and any(map(os.path.exists, _DRIVER))

    def _p2p(self) -> Step:
        found = p2p(self._asked.ask)
        if found.status == UNKNOWN and NO_DEVICES in found.reason and _bus_has_none():
            return Step("p2p", NOT_APPLICABLE, "no NVIDIA GPU: neither nvidia-smi nor the PCI bus has one")
        return found

    def _copy(self) -> Step:
        try:
            busy = users(self._asked.ask)
        except (OSError, ValueError) as error:
            return Step("copy", UNKNOWN, f"it is not known whether somebody uses the GPUs: {error}")
        if busy:
            return Step("copy", NOT_RUN, f"GPUs are in use: {some(busy)}; end these first, by their unit or container")
        ended = in_child(lambda: self._asked.open_cuda(None).addresses(), START_SECONDS)
        if ended.unable:
            return Step("copy", UNKNOWN, ended.unable)
        if ended.value is None:
            fault = Fault("COPY_HANG" if ended.hang else "COPY_FAILED", "cuInit", ended.hang or ended.failed)
            return Step("copy", FAULT, faults=[fault])
        if len(ended.value) < 2:
            return Step("copy", NOT_APPLICABLE, "one GPU: there is no pair")
        self._placed = _placed(ended.value)
        return copies(len(ended.value), self._asked.open_cuda)


def _placed(addresses: Sequence[str]) -> list[Place | None]:
    """Where this machine's GPUs sit, as far as the kernel shows them."""
    found = places(_devices(), addresses)
    return [found.get(address) for address in addresses]


def _devices() -> list[dict[str, Any]]:
    """The PCI functions of this machine, as far as the kernel shows them."""
    tree = Tree(None)
    devices = tree.ask("pci", pci, tree, None)
    return devices if isinstance(devices, list) else []


def _bus_has_none() -> bool:
    """Whether the kernel shows PCI functions and no NVIDIA GPU among them; one that only the driver misses is lost."""
    kinds = {(device["vendor"], device["class"][:4]) for device in _devices()}
    return bool(kinds) and ("0x10de", "0x03") not in kinds


def climb(config: Step, asked: Asked) -> list[dict[str, Any]]:
    """The steps as JSON documents."""
    return [asdict(step) for step in Ladder(asked).climb(config)]


def main(arguments: list[str] | None = None) -> int:
    """Climb from step p2p on; exit status 0, 3 where a step found a fault, 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(description="Climb the ladder of checks on this GPU node, from step p2p on.")
    parser.add_argument("--json", action="store_true", help="every step as JSON, with its raw numbers")
    parser.add_argument("--to", choices=NAMES[1:], default="engine", help="the last step to do")
    parser.add_argument("--limits", type=json.loads, default={}, help="limits of step rates, as JSON")
    parser.add_argument("--python", default="", help="for step allreduce: a Python with cuda-bindings, numpy and NCCL")
    parser.add_argument("--worker", type=Path, help="for step allreduce: the folder of cuda_allreduce.py")
    options = parser.parse_args(arguments)
    files = options.worker.glob("cuda_*.py") if options.worker else []
    worker = {file.name: file.read_text(encoding="utf-8") for file in files}
    asked = Asked(to=options.to, limits=options.limits, python=options.python, worker=worker)
    steps = climb(Step("config", NOT_RUN, "the node's plan is not known here"), asked)
    if options.json:
        sys.stdout.write(json.dumps(steps, indent=1) + "\n")
    else:
        sys.stdout.write("".join(map(_line, steps)))
    return 3 if any(step["status"] == FAULT for step in steps) else 0


def _line(step: Mapping[str, Any]) -> str:
    told = [f"{one['code']} {one['where']}: {one['found']}" for one in step["faults"]]
    told += [*step["evidence"], *([step["reason"]] if step["reason"] else [])]
    return f"{step['name']}: {step['status']} ({step['seconds']:g} s)\n" + "".join(f"  {line}\n" for line in told)


if __name__ == "__main__":
    sys.exit(main())
