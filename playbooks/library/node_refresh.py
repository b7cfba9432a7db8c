#!/usr/bin/python
"""Ansible module: makes anew what commands make of what we wrote. The work is done by module_utils/derived.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_refresh
short_description: Make anew what commands make of what we wrote, once that has changed
description:
  - Runs the command of each item whose facts differ from those of its last success on this node.
  - Stands in for handlers, which are lost when a run dies between the change and its end.
author: Lanewise
options:
  items:
    description: What there is to make, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Its name in the record.
        type: str
        required: true
      facts:
        description: The text that decides it, e.g. the content of a file of ours; empty, there shall be no such thing.
        type: str
        default: ""
      command:
        description: What makes it anew, as an argument vector.
        type: list
        elements: str
        default: []
      undo:
        description: What takes it back when its facts are gone; empty where nothing has to be run.
        type: list
        elements: str
        default: []
      unless:
        description: A command that changes nothing; where it succeeds and we did not make the thing, it is another's.
        type: list
        elements: str
        default: []
      remove:
        description: Patterns of files that are stale then.
        type: list
        elements: str
        default: []
      requires:
        description: Absolute paths without which the node has no such thing.
        type: list
        elements: str
        default: []
      produces:
        description: Absolute path that the command writes; one of another owner is left alone.
        type: str
        default: ""
  state:
    description: C(absent) takes all items as having no facts any more.
    type: str
    choices: [present, absent]
    default: present
  root:
    description: Root of the node's file system; below another than / no command is run.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Says what would be made anew, and does nothing.
  diff_mode:
    support: full
    description: Shows the names made anew, and the files removed.
"""

EXAMPLES = r"""
- name: Bring grub.cfg up to date
  node_refresh:
    items:
      - name: grub
        facts: "{{ content_of_the_drop_in }}"
        command: [update-grub]
        undo: [update-grub]
        requires: [/usr/sbin/update-grub]
"""

RETURN = r"""
refreshed:
  description: Names made anew or taken back, or in check mode those that would be.
  type: list
  returned: always
passed_over:
  description: Names that are due but passed over, with the reason.
  type: dict
  returned: always
removed:
  description: Files removed.
  type: list
  returned: always
"""

import os  # noqa: E402 - Ansible wants the documentation first
from dataclasses import replace  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.derived import Item, Outcome, refresh  # noqa: E402
from ansible.module_utils.node_files import NodeFileError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = {"type": "str", "default": ""}
TEXTS = {"type": "list", "elements": "str", "default": []}
ITEM = {
    "name": {"type": "str", "required": True},
    **dict.fromkeys(("facts", "produces"), TEXT),
    **dict.fromkeys(("command", "undo", "unless", "remove", "requires"), TEXTS),
}
SHOWN = 2000  # characters of a command's output in an error


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "items": {"type": "list", "elements": "dict", "required": True, "options": ITEM},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    items = [_item(given, absent=module.params["state"] == "absent") for given in module.params["items"]]

    def run(command: Sequence[str]) -> str:
        code, out, err = module.run_command(list(command))
        return f"{' '.join(command)} ended with {code}: {(err or out).strip()[-SHOWN:]}" if code else ""

    try:
        root = os.path.realpath(module.params["root"])
        outcome = refresh(root, items, run if root == "/" else None, write=not module.check_mode)
    except NodeFileError as error:
        module.fail_json(msg=str(error))
    else:
        _exit(module, outcome)


def _item(given: dict[str, Any], *, absent: bool) -> Item:
    item = Item(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    return replace(item, facts="") if absent else item


def _exit(module: AnsibleModule, outcome: Outcome) -> None:
    made = "".join(f"made anew: {name}\n" for name in outcome.refreshed)
    removed = "".join(f"removed: {name}\n" for name in outcome.removed)
    result = {
        "changed": bool(outcome.refreshed),
        "refreshed": outcome.refreshed,
        "passed_over": outcome.passed_over,
        "removed": outcome.removed,
        "diff": {"before": "", "after": made + removed},
    }
    if outcome.faults:
        module.fail_json(msg="; ".join(outcome.faults), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
