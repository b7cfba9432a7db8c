"""Filters of verify.yml: a node's plan to what module node_ladder is given, and its outcome to a result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

# Lanewise runs from its clone and is not installed, so ansible-playbook does not know the way to it.
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from playbooks.settings import faults  # noqa: E402

WORKER = "tuning/workers"


def ladder_config(plan: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The ladder's first step, from a node's plan and its record."""
    return faults.config_step(plan, record)


def ladder_worker(python: str) -> dict[str, str]:
    """The files of engine cuda's worker, name to text; none where no Python on the node is named to run them."""
    try:
        return (
            {file.name: file.read_text(encoding="utf-8") for file in (ROOT / WORKER).glob("cuda_*.py")}
            if python
            else {}
        )
    except OSError as error:
        raise AnsibleFilterError(f"cannot read {error.filename}: {error.strerror}; expected a whole clone") from error


def ladder_result(node: str, read: Mapping[str, Any], climbed: Mapping[str, Any], *, untouched: bool) -> dict[str, Any]:
    """The result of one node, by its name; `untouched`: it is one that is never changed from here."""
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    return faults.verify_result(node, read, climbed, ended, untouched=untouched)


def ladder_told(result: Mapping[str, Any]) -> list[str]:
    """What there is to say of a node's result, a line each."""
    return faults.told(result)


class FilterModule:
    """What Ansible looks for in a filter plugin."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {
            "ladder_config": ladder_config,
            "ladder_worker": ladder_worker,
            "ladder_result": ladder_result,
            "ladder_told": ladder_told,
        }
