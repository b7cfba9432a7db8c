#!/usr/bin/python
"""Ansible module: files that are ours as a whole. The work is done by module_utils/owned.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: owned_files
short_description: Write or remove files that are Lanewise's own, all in one call
description:
  - A file that is there and not ours is refused before any is written. Ours is what C(/var/lib/lanewise/owned.json)
    has the hash of, or what holds O(owner_text).
  - Each file is replaced as a whole. Folders that are made for it are removed with the last file in them.
author: Lanewise
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path on the node.
        type: str
        required: true
      content:
        description: All that the file holds. An empty one removes the file.
        type: str
        default: ""
      mode:
        description: Permission bits in octal.
        type: str
        default: "0644"
      foreign:
        description: Whether a file of another owner is refused, or left as it is and named in the result.
        type: str
        choices: [refuse, leave]
        default: refuse
  only_in:
    description: Folders from which files of ours that are not among O(files) are removed.
    type: list
    elements: str
    default: []
  state:
    description: C(absent) removes those of the files that are ours, and leaves the others.
    type: str
    choices: [present, absent]
    default: present
  owner_text:
    description: Text by which a file of ours is known without the record.
    type: str
    default: Managed by Lanewise
  root:
    description: Root of the node's file system.
    type: str
    default: /
attributes:
  check_mode:
    support: full
    description: Computes the same and writes nothing.
  diff_mode:
    support: full
    description: One difference a file.
"""

EXAMPLES = r"""
- name: NCCL's settings for this node
  owned_files:
    files:
      - path: /etc/nccl.conf
        content: |
          # Managed by Lanewise
          NCCL_P2P_LEVEL=SYS
"""

RETURN = r"""
written:
  description: Files that were written (in check mode, would be).
  type: list
  elements: str
  returned: success
removed:
  description: Files that were removed (in check mode, would be).
  type: list
  elements: str
  returned: success
foreign:
  description: Files of other owners that were left as they are where one of ours was wanted.
  type: list
  elements: str
  returned: success
"""

from typing import Any  # noqa: E402 - Ansible wants the documentation first

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.node_files import NodeFileError  # noqa: E402
from ansible.module_utils.owned import OWNER_TEXT, Change, Outcome, Want, settle  # noqa: E402

FILE = {
    "path": {"type": "str", "required": True},
    "content": {"type": "str", "default": ""},
    "mode": {"type": "str", "default": "0644"},
    "foreign": {"type": "str", "choices": ["refuse", "leave"], "default": "refuse"},
}
OPTIONS = {
    "files": {"type": "list", "elements": "dict", "required": True, "options": FILE},
    "only_in": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "owner_text": {"type": "str", "default": OWNER_TEXT},
    "root": {"type": "str", "default": "/"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    options = module.params
    try:
        wants = [_want(one, absent=options["state"] == "absent") for one in options["files"]]
        outcome = settle(
            options["root"], wants, options["owner_text"], only_in=options["only_in"], write=not module.check_mode
        )
    except (ValueError, NodeFileError) as error:
        module.fail_json(msg=str(error))
    else:
        module.exit_json(**_result(outcome))


def _want(options: dict[str, Any], *, absent: bool) -> Want:
    mode = int(options["mode"], 8)
    if not 0 <= mode <= 0o7777:
        raise ValueError(f"{options['path']}: mode {options['mode']!r} is not one such as 0644")
    return Want(options["path"], "" if absent else options["content"], mode, leave=options["foreign"] == "leave")


def _result(outcome: Outcome) -> dict[str, Any]:
    return {
        "changed": bool(outcome.changes),
        "written": [change.path for change in outcome.changes if change.after is not None],
        "removed": [change.path for change in outcome.changes if change.after is None],
        "foreign": outcome.foreign,
        "diff": [_diff(change) for change in outcome.changes],
    }


def _diff(change: Change) -> dict[str, str]:
    return {
        "before": change.before or "",
        "before_header": _header(change.path, change.mode_before),
        "after": change.after or "",
        "after_header": _header(change.path, change.mode_after),
    }


def _header(path: str, mode: int | None) -> str:
    return f"{path} ({'absent' if mode is None else f'mode {mode:04o}'})"


if __name__ == "__main__":
    main()
