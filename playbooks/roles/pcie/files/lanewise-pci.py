#!/usr/bin/python3
# Managed by Lanewise: edits are refused or lost; ./inv revert removes this file.
"""Sets this node's PCI registers as a file says, and reads them back: what lanewise-pci.service runs at boot.

    lanewise-pci.py --config /etc/lanewise/pci.conf [--check]

The file has lines such as these; a key that is not there leaves its registers:

    ACS_REDIRECT=clear
    MAX_READ_REQUEST=4096
    ASPM=disabled
    MATCH=10de:0302 10de:0300
    EXCLUDE=0000:01:00.0

Writes only what differs and prints one line for each change. Exit status: 0 all hold, 1 some do not (each is named;
with --check, nothing is written), 2 the file is wrong.

Needs Python >= 3.9 and, in its own folder, pci_config.py and pci_settings.py: the code that the Ansible module runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playbooks.module_utils.pci_settings import Settings

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # revert leaves nothing behind
sys.path.insert(0, str(HERE.parent))  # the two import each other as parts of one package: this folder
pci_config = importlib.import_module(f"{HERE.name}.pci_config")
pci_settings = importlib.import_module(f"{HERE.name}.pci_settings")

LIMIT = 64 * 1024
CHOICES = {"ACS_REDIRECT": ("", "clear"), "ASPM": ("", "disabled")}
KEYS = (*CHOICES, "MAX_READ_REQUEST", "MATCH", "EXCLUDE")


def read_settings(path: Path) -> Settings:
    """The settings of a file.

    Raises:
        OSError, ValueError: it cannot be read, or is not such a file.
    """
    if not path.is_file():
        raise ValueError("there is no such file")
    with path.open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ValueError(f"larger than {LIMIT} bytes")
    values: dict[str, str] = {}
    for number, line in enumerate(data.decode().splitlines(), 1):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or key.startswith("#"):
            continue
        if not equals or key not in KEYS or key in values or value not in CHOICES.get(key, (value,)):
            raise ValueError(f"line {number}, {line[:80]!r}: expected KEY=value, once each of {', '.join(KEYS)}")
        values[key] = value
    settings: Settings = pci_settings.Settings(
        clear_redirect=bool(values.get("ACS_REDIRECT")),
        max_read_request=int(values.get("MAX_READ_REQUEST") or 0),
        disable_aspm=bool(values.get("ASPM")),
        match=tuple(values.get("MATCH", "").split()),
        exclude=tuple(values.get("EXCLUDE", "").split()),
    )
    return settings


def bring(root: Path, settings: Settings, *, check: bool) -> int:
    """Bring the registers to the settings; how many do not have their bits afterwards.

    Raises:
        OSError, ValueError: the devices cannot be listed.
    """
    readings, faults = pci_settings.survey(pci_settings.wishes(pci_settings.devices(root), settings))
    differing = [reading for reading in readings if not reading.holds]
    faults += [] if check else pci_settings.apply(differing)
    failed = {fault.name for fault in faults}
    for reading in differing:
        if reading.wish.name not in failed:
            now, then = (pci_config.shown(reading.wish.register, word) for word in (reading.word, reading.wanted))
            _say(f"{reading.wish.name}: {now}, wanted {then}" if check else f"{reading.wish.name}: {now} -> {then}")
    for fault in faults:
        _say(f"fault: {fault}")
    return len(faults) + (len(differing) if check else 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description="Set PCI registers as a file says, and read them back.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="lines KEY=value")
    parser.add_argument("--check", action="store_true", help="write nothing; say what differs")
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="where sys lies (default: /)")
    options = parser.parse_args(arguments)
    try:
        settings = read_settings(options.config)
    except (OSError, ValueError) as error:
        _say(f"{options.config}: {error}")
        return 2
    try:
        return 1 if bring(options.root, settings, check=options.check) else 0
    except (OSError, ValueError) as error:
        _say(f"fault: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
