"""The documents that Lanewise keeps on a node: a damaged one is to be found before anything is changed.

Needs Python >= 3.9 and its standard library only: it runs on nodes, in Ansible modules.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import before, derived, live, owned, pci_changes
from .node_files import NodeFileError, below, damaged

if TYPE_CHECKING:
    from pathlib import Path

POWER = "/var/lib/lanewise/power-before.json"
"""PCI address to watts: written and read by roles/gpu/files/lanewise-power.py."""
_POWER_LOST = "the way back: revert then leaves power limits as they are now"


def require_sound(root: str) -> None:
    """Refuse a node one of whose documents cannot be used; those that are not there are well.

    Raises:
        NodeFileError: one is damaged, or cannot be read.
    """
    pci_changes.require_sound(root, before.DEFAULT)
    live.require_sound(root, before.DEFAULT)
    derived.load(below(root, derived.RECORD))
    owned.require_sound(root)
    _require_limits(below(root, POWER))


def _require_limits(path: Path) -> None:
    try:
        limits = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise NodeFileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"is damaged: {error}", _POWER_LOST) from error
    if not isinstance(limits, dict) or not all(isinstance(watts, (int, float)) for watts in limits.values()):
        raise damaged(path, "does not hold power limits", _POWER_LOST)
