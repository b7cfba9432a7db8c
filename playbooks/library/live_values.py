#!/usr/bin/python
"""Ansible module: live values below /proc/sys and /sys. The work is done by module_utils/live.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: live_values
short_description: Set live values of the kernel below /proc/sys and /sys
description:
  - Writes only what differs and reads back. A value that did not stick fails the task, by name, when all others were
    tried. A file that this kernel does not have is skipped.
  - Choice files such as C(always [madvise] never) are understood. A word that they do not offer is refused.
  - What a file held before its first change is recorded on disk before it is changed. C(state=reverted) goes back to
    that and forgets it.
author: Lanewise
options:
  values:
    description:
      - Files and what they shall hold. With C(state=reverted), only these of the recorded files are restored; none
        means all.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path below /proc/sys or /sys.
        type: str
        required: true
      value:
        description: The value, or the word to choose. C(state=reverted) does not look at it.
        type: str
        default: ""
  state:
    description: Whether the values shall hold, or those of before the first change.
    type: str
    choices: [present, reverted]
    default: present
  root:
    description: Root of the file system that holds C(proc), C(sys) and the record.
    type: str
    default: /
  before:
    description: The record of first values, below O(root).
    type: str
    default: /var/lib/lanewise/before.json
attributes:
  check_mode:
    support: full
    description: Computes the same and writes nothing.
  diff_mode:
    support: full
    description: One line for each value that is changed.
"""

EXAMPLES = r"""
- name: No migration of pages between nodes, large pages where asked for
  live_values:
    values:
      - {path: /proc/sys/kernel/numa_balancing, value: "0"}
      - {path: /sys/kernel/mm/transparent_hugepage/enabled, value: madvise}
"""

RETURN = r"""
changes:
  description: Values that were changed (in check mode, would be).
  type: list
  elements: dict
  returned: always
  sample: [{path: /proc/sys/vm/swappiness, before: "60", after: "1"}]
refused:
  description: Values that are not as they shall be, and why.
  type: list
  elements: dict
  returned: always
  sample: [{path: /proc/sys/vm/swappiness, why: "did not stick: wanted '1', reads '60'"}]
missing:
  description: Files that this kernel does not have; where recorded, their entries are kept.
  type: list
  elements: str
  returned: always
"""

from typing import Any  # noqa: E402 - Ansible wants the documentation first

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.before import DEFAULT  # noqa: E402
from ansible.module_utils.live import Outcome, Value, lines, present, reverted  # noqa: E402
from ansible.module_utils.node_files import NodeFileError  # noqa: E402

VALUE = {"path": {"type": "str", "required": True}, "value": {"type": "str", "default": ""}}
OPTIONS = {
    "values": {"type": "list", "elements": "dict", "default": [], "options": VALUE},
    "state": {"type": "str", "choices": ["present", "reverted"], "default": "present"},
    "root": {"type": "str", "default": "/"},
    "before": {"type": "str", "default": DEFAULT},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        outcome = _run(module.params, write=not module.check_mode)
    except (ValueError, NodeFileError) as error:
        module.fail_json(msg=str(error), changes=[], refused=[], missing=[])
    else:
        result = _result(outcome)
        if outcome.faults:
            said = "; ".join(str(fault) for fault in outcome.faults)
            module.fail_json(msg=f"{len(outcome.faults)} live values are not as they shall be: {said}", **result)
        module.exit_json(**result)


def _run(options: dict[str, Any], *, write: bool) -> Outcome:
    if options["state"] == "reverted":
        paths = [one["path"] for one in options["values"]]
        return reverted(options["root"], options["before"], paths, write=write)
    values = [Value(one["path"], one["value"]) for one in options["values"]]
    for value in values:
        if not value.text.strip():
            raise ValueError(f"{value.path}: there is no value to set")
    return present(options["root"], options["before"], values, write=write)


def _result(outcome: Outcome) -> dict[str, Any]:
    changed = outcome.changed
    return {
        "changed": bool(changed),
        "changes": [{"path": one.value.path, "before": one.now, "after": one.value.text} for one in changed],
        "refused": [{"path": fault.path, "why": fault.why} for fault in outcome.faults],
        "missing": outcome.skipped,  # "skipped" would make Ansible take the whole task for skipped
        "diff": {"before": lines(changed, after=False), "after": lines(changed, after=True)},
    }


if __name__ == "__main__":
    main()
