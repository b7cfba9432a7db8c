"""Changes of PCI registers that can be taken back: what each was before its first change is on disk before the change.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from . import before
from .node_files import below, locked
from .pci_config import REGISTERS, shown
from .pci_settings import Device, Fault, Reading, Settings, Wish, apply, devices, survey, wishes

SECTION = "registers"


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        readings: each register that the run was about, as it was found.
        faults: registers that do not have the bits that they shall have.
        gone: recorded registers of functions that are not there any more; their entries are kept.
    """

    readings: list[Reading]
    faults: list[Fault] = field(default_factory=list)
    gone: list[Fault] = field(default_factory=list)

    @property
    def changed(self) -> list[Reading]:
        """The registers that were changed, or would be in check mode."""
        failed = {fault.name for fault in self.faults}
        return [reading for reading in self.readings if not reading.holds and reading.wish.name not in failed]


def present(root: str, record: str, settings: Settings, *, write: bool) -> Outcome:
    """Bring the registers of a node to the settings; with `write` false, say what that would change.

    Raises:
        ConfigError, NodeFileError, OSError: nothing was changed, for this reason.
    """
    path = below(root, record)
    found = _survey(root, path, settings)
    if not write or all(reading.holds for reading in found.readings):
        return found
    with locked(path.parent):
        found = _survey(root, path, settings)
        differing = [reading for reading in found.readings if not reading.holds]
        entries = {
            reading.wish.name: {"device": reading.wish.device.identity(), "word": f"{reading.word:#06x}"}
            for reading in differing
        }
        before.keep(path, SECTION, entries, root)
        return Outcome(found.readings, found.faults + apply(differing))


def reverted(root: str, record: str, *, write: bool) -> Outcome:
    """Bring the registers back to what they were before our first change, as the record says; only the bits of ours.

    Raises:
        ConfigError, NodeFileError, OSError: nothing was changed, for this reason.
    """
    path = below(root, record)
    if not write or not path.exists():
        return _recorded(root, path)
    with locked(path.parent):
        found = _recorded(root, path)
        faults = found.faults + apply(found.readings)
        kept = {fault.name for fault in faults}
        before.drop(path, SECTION, {reading.wish.name for reading in found.readings} - kept)
        return Outcome(found.readings, faults, found.gone)


def require_sound(root: str, record: str) -> None:
    """Refuse a record with an entry that `reverted` could not use, also of a function that is gone: it may come back.

    Raises:
        NodeFileError: the record cannot be used.
    """
    path = below(root, record)
    for key, entry in before.load(path, SECTION).items():
        address, _, register = key.partition(" ")
        if _damage(address, register, entry):
            raise before.damaged_entry(path, key)


def _survey(root: str, path: Path, settings: Settings) -> Outcome:
    """What is there, and for which functions the record speaks of another one."""
    entries = before.load(path, SECTION)
    wanted = wishes(devices(Path(root)), settings)
    strangers = [fault for wish in wanted if (fault := _stranger(wish.device, wish.register, entries.get(wish.name)))]
    refused = {fault.name for fault in strangers}
    readings, faults = survey([wish for wish in wanted if wish.name not in refused])
    return Outcome(readings, strangers + faults)


def _recorded(root: str, path: Path) -> Outcome:
    """The recorded registers as they are, the last recorded first: the upper end of a link before the lower."""
    entries = before.load(path, SECTION)
    if not entries:
        return Outcome([])
    there = {device.address: device for device in devices(Path(root))}
    wanted, faults, gone = [], [], []
    for key, entry in reversed(entries.items()):
        address, _, register = key.partition(" ")
        device = there.get(address)
        if device is None:
            gone.append(Fault(address, register, "there is no such function any more; its entry is kept"))
        elif fault := _damage(address, register, entry) or _stranger(device, register, entry):
            faults.append(fault)
        else:
            wanted.append(Wish(device, register, int(entry["word"], 16) & REGISTERS[register]))
    readings, unread = survey(wanted)
    answered = {reading.wish.name for reading in readings} | {fault.name for fault in unread}
    lacking = [wish for wish in wanted if wish.name not in answered]
    faults += [Fault(wish.device.address, wish.register, "the function lacks this register now") for wish in lacking]
    return Outcome(readings, faults + unread, gone)


def _stranger(device: Device, register: str, entry: dict[str, object] | None) -> Fault | None:
    """A fault where the record speaks of another function: a card was swapped, or the buses were renumbered."""
    if entry is None or entry.get("device") == device.identity():
        return None
    why = (
        f"first values are recorded of {entry.get('device')}, and {device.identity()} is there, so nothing was written"
    )
    return Fault(device.address, register, f"{why}; remove the entry if the old one is gone for good")


def _damage(address: str, register: str, entry: dict[str, object]) -> Fault | None:
    word = entry.get("word")
    try:
        sound = register in REGISTERS and isinstance(word, str) and 0 <= int(word, 16) <= 0xFFFF
    except ValueError:
        sound = False
    return None if sound else Fault(address, register, f"the record of first values is damaged: {entry}")


def lines(readings: list[Reading], *, after: bool) -> str:
    """One line a register, before or after the change: for diffs."""
    return "".join(
        f"{reading.wish.name} {shown(reading.wish.register, reading.wanted if after else reading.word)}\n"
        for reading in readings
    )
