#!/usr/bin/python
"""Ansible module: the node record of a node. The reading itself is module_utils/node_record.py, the one reader."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_node_info
short_description: Read what a GPU node is and how it is set
description:
  - Returns the node record (docs/node-record.md) of the node that it runs on.
  - Reads only; what it may not read is the text C(unknown), never a guess.
options:
  root:
    description:
      - The file system to read. Of another than C(/), files are read only; no command is run and no process is asked.
    type: path
    default: /
author: Lanewise
attributes:
  check_mode:
    support: full
    description: Reads in check mode as well.
"""

EXAMPLES = r"""
- name: Read the node
  gpu_node_info:
  register: result
"""

RETURN = r"""
node:
  description: The node record.
  type: dict
  returned: always
"""

import os  # noqa: E402 - Ansible wants the documentation first

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.node_record import read_node  # noqa: E402


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    root = module.params["root"]
    if not os.path.isdir(root):  # noqa: PTH112 - also where it may not look
        module.fail_json(msg=f"root is {root!r}, which is no directory; expected one that holds sys, proc and etc")
    module.exit_json(changed=False, node=read_node(None if root == "/" else root))


if __name__ == "__main__":
    main()
