"""How settings are applied: by which role, when that takes effect, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from playbooks.settings import readings
from playbooks.settings.known import Record
from playbooks.settings.node_class import Tree
from playbooks.settings.readings import Question, Reading


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to apply settings.

    Attributes:
        role: whose variable carries it; empty: no role's.
        takes_effect: now, reload, reboot or next_start; empty where nothing is applied.
        how: in words, with {target}.
        undo: in words.
        read: what is in force.
        blind: it may be applied where that cannot be read: a file for the next start, whose old value nobody needs.
    """

    role: str
    takes_effect: str
    how: str
    undo: str
    read: Callable[[Record, Tree, Question], Reading]
    blind: bool = False


_FILE_AND_LIVE = "remove our file and write the value from before"
MECHANISMS: Mapping[str, Mechanism] = {
    "kernel_command_line": Mechanism(
        role="kernel", takes_effect="reboot", read=readings.command_line,
        how="kernel command line, by /etc/default/grub.d/60-lanewise.cfg",
        undo="remove our file, regenerate grub.cfg, reboot",
    ),
    "sysctl": Mechanism(
        role="kernel", takes_effect="now", read=readings.sysctl,
        how="sysctl `{target}`, by /etc/sysctl.d/60-lanewise.conf and live", undo=_FILE_AND_LIVE,
    ),
    "module_option": Mechanism(
        role="gpu", takes_effect="reload", read=readings.module_option, blind=True,
        how="module option `{target}`, by /etc/modprobe.d", undo="remove our file, then reload the module or reboot",
    ),
    "sysfs_value": Mechanism(
        role="kernel", takes_effect="now", read=readings.recorded,
        how="`{target}`, by /etc/tmpfiles.d/60-lanewise.conf and live", undo=_FILE_AND_LIVE,
    ),
    "port_power": Mechanism(
        role="kernel", takes_effect="now", read=readings.port_power,
        how="`power/control` of every bridge above a GPU, by /etc/tmpfiles.d/60-lanewise.conf and live",
        undo=_FILE_AND_LIVE,
    ),
    "pci_register": Mechanism(
        role="pcie", takes_effect="now", read=readings.pci_register,
        how="PCI configuration space, now and by lanewise-pci.service at boot",
        undo="write the bits from before, remove the unit",
    ),
    "service": Mechanism(
        role="gpu", takes_effect="now", read=readings.service,
        how="unit `{target}`", undo="as it was enabled and running before",
    ),
    "power_limit": Mechanism(
        role="gpu", takes_effect="now", read=readings.power_limit, how="nvidia-smi, now and by a unit at boot",
        undo="set the limit from before, remove the unit",
    ),
    "limit": Mechanism(
        role="kernel", takes_effect="next_start", read=readings.limit, blind=True,
        how="`{target}` in /etc/security/limits.d and /etc/systemd/system.conf.d", undo="remove our files",
    ),
    "docker_memlock": Mechanism(
        role="container", takes_effect="next_start", read=readings.limit, blind=True, how="drop-in of docker.service",
        undo="remove our file, restart Docker",
    ),
    "docker_daemon": Mechanism(
        role="container", takes_effect="next_start", read=readings.docker_daemon,
        how="`{target}` in /etc/docker/daemon.json, where that file is ours or not there",
        undo="remove our file, restart Docker",
    ),
    "cdi": Mechanism(
        role="container", takes_effect="now", read=readings.cdi,
        how="`nvidia-ctk cdi generate`", undo="remove what it wrote",
    ),
    "p2p_caches": Mechanism(
        role="container", takes_effect="next_start", read=readings.not_recorded,
        how="the files are removed; engines make new ones", undo="nothing to undo",
    ),
    "nccl_system": Mechanism(
        role="nccl", takes_effect="next_start", read=readings.not_recorded,
        how="`nccl_system` in the inventory, to /etc/nccl.conf", undo="remove our file",
    ),
    "nccl_workload": Mechanism(
        role="nccl", takes_effect="next_start", read=readings.not_recorded,
        how="`nccl_workloads` in the inventory, to a file that NCCL_CONF_FILE names", undo="remove our file",
    ),
    "by_hand": Mechanism(role="", takes_effect="", read=readings.not_recorded, how="{target}", undo="the same way"),
}  # fmt: skip
