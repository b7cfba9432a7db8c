#!/usr/bin/env python3
"""The node record: what a node is and how it is set, as read; `python3 node_record.py` prints it as JSON.

Runs by itself, with the files `node_record_*.py` and `pci_config.py` beside it, on Python >= 3.9 with the standard
library; as an Ansible module's code; and imported. It reads only, needs no privilege and does not fail as a whole: a
field that cannot be read is "unknown", and `unread` says why. docs/node-record.md describes every field. Serial
numbers, UUIDs and MAC addresses are never recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    # Ansible sends modules that import one another as a package's; a script belongs to none, and -I hides its folder.
    # So the script says that it is of a package, whose folder is its own.
    package = ModuleType("lanewise_node")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]  # noqa: PTH100, PTH120
    sys.modules[package.__name__] = package
    __spec__ = ModuleSpec(f"{package.__name__}.node_record", None)

from .node_record_container import container
from .node_record_gpus import driver, gpus, nvidia_smi
from .node_record_host import cpu, host, limits, numa
from .node_record_kernel import kernel
from .node_record_nccl import nccl
from .node_record_pci import aer_ports, iommu, pci
from .node_record_services import services, units
from .node_record_tree import Tree

SCHEMA = "lanewise.node-record/1"


def read_node(root: str | None = None) -> dict[str, Any]:
    """Read a node: this machine, or the file system below `root`, for which no command is run.

    Never raises for what the node holds: what cannot be read is "unknown" and has an entry in `unread`.
    """
    tree = Tree(root)
    counting = tree.ask("kernel.aer_ports", aer_ports, tree, optional=tree.holds("sys/bus/pci"))
    devices = tree.ask("pci", pci, tree, counting)  # first: nvidia-smi wakes GPUs, and their power state is part of it
    smi = nvidia_smi(tree)
    shown = tree.ask("services", units, tree)
    return {
        "schema": SCHEMA,
        "host": host(tree),
        "cpu": cpu(tree),
        "numa": tree.ask("numa", numa, tree),
        "driver": driver(tree, smi),
        "gpus": tree.ask("gpus", gpus, tree, devices, smi),
        "pci": devices,
        "iommu": iommu(tree),
        "kernel": kernel(tree, counting),
        "limits": limits(tree, shown),
        "nccl": nccl(tree),
        "container": container(tree),
        "services": services(shown),
        "unread": tree.unread,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the node record as JSON on stdout; exit status 0, or 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(description="Print the node record (what a node is and how it is set) as JSON.")
    parser.add_argument("--indent", action="store_true", help="one field a line, for people")
    parser.add_argument("--root", metavar="DIR", help="read the file system below DIR instead; runs no command")
    options = parser.parse_args(arguments)
    if options.root is not None and not os.path.isdir(options.root):  # noqa: PTH112 - also where it may not look
        parser.error(f"--root {options.root}: not a directory; expected one that holds sys, proc and etc")
    sys.stdout.write(json.dumps(read_node(options.root), indent=2 if options.indent else None) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
