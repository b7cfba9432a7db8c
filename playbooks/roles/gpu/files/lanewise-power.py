#!/usr/bin/env python3
# Managed by Lanewise: edits are refused or lost; ./inv revert removes this file.
"""Set the power limit of every GPU, as /etc/lanewise/power.conf says, or with --revert as it was before.

Ends with 0 when every limit reads back as it should, 1 and a line for each fault else, 2 where the configuration is
damaged. Python >= 3.9, standard library only. Limits before the first change: /var/lib/lanewise/power-before.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CONFIG = Path("/etc/lanewise/power.conf")
BEFORE = Path("/var/lib/lanewise/power-before.json")
SECONDS = 60  # without persistence nvidia-smi wakes GPU after GPU
NEAR = 0.5  # watts; the driver rounds

Limits = dict[str, float]  # PCI address to watts


def limits() -> Limits:
    """The limits in force."""
    out = _nvidia_smi("--query-gpu=pci.bus_id,power.limit", "--format=csv,noheader,nounits")
    rows = [line.split(",") for line in out.splitlines() if line.strip()]
    return {address.strip(): float(watts) for address, watts in rows}


def bring(wanted: Limits) -> list[str]:
    """Set the limits that differ and read all back; the faults."""
    faults = []
    for address, watts in wanted.items():
        if abs(limits().get(address, watts) - watts) > NEAR:
            try:
                _nvidia_smi("-i", address, "-pl", f"{watts:g}")
                _say(f"{address}: {watts:g} W")
            except RuntimeError as error:
                faults.append(f"{address}: {error}")
    now = limits()
    wrong = {
        address: now.get(address) for address, watts in wanted.items() if abs(now.get(address, 0.0) - watts) > NEAR
    }
    return faults + [f"{address}: wanted {wanted[address]:g} W, reads {found}" for address, found in wrong.items()]


def wanted_watts(text: str) -> int:
    """The limit that a configuration asks for.

    Raises:
        ValueError: it is not exactly one POWER_LIMIT_WATTS=NUMBER.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    name, _, value = lines[0].partition("=") if len(lines) == 1 else ("", "", "")
    if name != "POWER_LIMIT_WATTS" or not value.isdecimal() or int(value) == 0:
        raise ValueError(f"{CONFIG}: expected one line POWER_LIMIT_WATTS=NUMBER; found {lines[:3]}")
    return int(value)


def main(arguments: list[str]) -> int:
    """Apply or revert."""
    try:
        before: Limits = json.loads(BEFORE.read_text(encoding="utf-8")) if BEFORE.exists() else {}
        if arguments == ["--revert"]:
            faults = bring(before)
            if not faults:
                BEFORE.unlink(missing_ok=True)
        elif arguments:
            _say("usage: lanewise-power.py [--revert]")
            return 2
        else:
            watts, now = wanted_watts(CONFIG.read_text(encoding="utf-8")), limits()
            _keep({**now, **before})  # the first value counts: a later one may be ours
            faults = bring(dict.fromkeys(now, float(watts)))
    except ValueError as error:
        _say(str(error))
        return 2
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        faults = [str(error)]
    for fault in faults:
        _say(f"fault: {fault}")
    return 1 if faults else 0


def _keep(before: Limits) -> None:
    """On disk before the first change is made."""
    BEFORE.parent.mkdir(parents=True, exist_ok=True)
    new = BEFORE.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(before, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(BEFORE)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _nvidia_smi(*arguments: str) -> str:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"nvidia-smi {' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
