"""The filter `node_plan`: a node's record and the inventory's wishes to its plan (playbooks/settings/plan.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

# Lanewise runs from its clone and is not installed, so ansible-playbook does not know the way to it.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lanewise.errors import LanewiseError
from playbooks.settings.plan import make_plan


def node_plan(record: object, wishes: object = None) -> dict[str, Any]:
    """The plan of one node.

    Raises:
        AnsibleFilterError: the record or the wishes are malformed; the text says what, what was expected, what to do.
    """
    try:
        return make_plan(record, wishes)
    except LanewiseError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {"node_plan": node_plan}
