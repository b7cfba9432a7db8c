"""The test bed by hand: python -m tests.vm ready | reset | reboot | stop | inventory | ssh [COMMAND]

ready      starts the machine, made first where there is none, and leaves it running
reset      brings it back to its first boot, in two seconds
reboot     boots it through GRUB
stop       ends it; always do so
inventory  prints an inventory for ansible-playbook
ssh        opens a shell in it, or runs a command
"""

from __future__ import annotations

import argparse
import os
import sys

import yaml

from tests.vm.bed import NAME, Bed, missing, open_bed
from tests.vm.machine import BedError


def main() -> None:
    """Do what the arguments say; ends with 1 where it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm", usage=__doc__)
    parser.add_argument("what", choices=["ready", "reset", "reboot", "stop", "inventory", "ssh"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if why := missing():
        sys.exit(why)
    try:
        with open_bed(lasting=True, progress=lambda line: print(line, flush=True)) as bed:  # noqa: T201
            _do(options.what, options.command, bed)
    except BedError as error:
        sys.exit(str(error))


def _do(what: str, command: list[str], bed: Bed) -> None:
    if what == "stop":
        bed.machine.stop()
    elif what == "ready":
        bed.ready()
    elif not bed.machine.pid:
        raise BedError("the machine does not run: python -m tests.vm ready")
    elif what == "inventory":
        hosts = {NAME: {**bed.host(), "node_virtualised": False}}
        sys.stdout.write(yaml.safe_dump({"all": {"children": {"virtual_machine": {"hosts": hosts}}}}))
    elif what == "ssh":
        os.execvp("ssh", [*bed.ssh_command(), *command])
    elif what == "reset":
        bed.reset()
    else:
        bed.reboot()


if __name__ == "__main__":
    main()
