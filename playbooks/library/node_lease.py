#!/usr/bin/python
"""Ansible module: one run a node at a time. The work is done by module_utils/lease.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lease
short_description: Take or release the lease of a node, so that one run works on it at a time
description:
  - Says who holds the node instead of failing, so that the play can look whether that run is still alive.
  - Keeps the node record of before the first change, for revert to compare with.
  - Fails where a document of ours on the node is damaged, so that this is known before anything is changed.
  - Never counts as a change.
author: Lanewise
attributes:
  check_mode:
    support: full
    description: Says who holds the node, and takes nothing.
  diff_mode:
    support: none
    description: There is nothing to show.
options:
  state:
    description: Take or release it.
    type: str
    choices: [held, released]
    default: held
  controller:
    description: Who runs, as user@host.
    type: str
    required: true
  pid:
    description: The run's process there; 0 where it is not known.
    type: int
    required: true
  seconds:
    description: How long the lease lasts, unless it is released before; a day at most.
    type: int
    default: 3600
  dead:
    description: Processes of this controller that are known to be dead; 0 stands for any holder.
    type: list
    elements: int
    default: []
  node_record:
    description: The node record as it is now.
    type: dict
    default: {}
  forget:
    description: Whether to drop the record of before with the lease, where nothing on the node is of our doing.
    type: bool
    default: false
  root:
    description: Root of the node's file system.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Take the lease
  node_lease:
    controller: admin@workstation
    pid: 4242
"""

RETURN = r"""
holder:
  description: >-
    The other run that holds the node, or nothing. C(beyond) is whether its end is further away than any run could have
    set it.
  type: dict
  returned: always
record_before:
  description: The node record of before the first change; empty where it is not known.
  type: dict
  returned: when the lease was taken
"""

import time  # noqa: E402
from dataclasses import asdict  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402 - Ansible wants the documentation first
from ansible.module_utils.lease import record_before, release, take  # noqa: E402
from ansible.module_utils.node_files import DamagedError, NodeFileError  # noqa: E402
from ansible.module_utils.own_documents import require_sound  # noqa: E402


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "controller": {"type": "str", "required": True},
            "pid": {"type": "int", "required": True},
            "seconds": {"type": "int", "default": 3600},
            "dead": {"type": "list", "elements": "int", "default": []},
            "node_record": {"type": "dict", "default": {}},
            "forget": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    asked, write = module.params, not module.check_mode
    try:
        if asked["state"] == "released":
            if write:
                release(asked["root"], asked["controller"], asked["pid"], forget=asked["forget"])
            module.exit_json(changed=False, holder={})
        holder = take(asked["root"], asked["controller"], asked["pid"], asked["seconds"], asked["dead"], write=write)
        if holder:
            module.exit_json(changed=False, holder={**asdict(holder), "beyond": holder.beyond(time.time())})
        require_sound(asked["root"])
        before = record_before(asked["root"], asked["node_record"], write=write)
    except (DamagedError, ValueError) as error:
        module.fail_json(msg=str(error))
    except (NodeFileError, OSError) as error:
        module.fail_json(
            msg=f"{error}; expected a node where this user may write to /var/lib/lanewise; next: be root there "
            "(ansible_become: true in the inventory), and see that the file system is writable and has room"
        )
    else:
        module.exit_json(changed=False, holder={}, record_before=before)


if __name__ == "__main__":
    main()
