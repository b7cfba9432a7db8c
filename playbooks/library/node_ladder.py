#!/usr/bin/python
"""Ansible module: the ladder of checks on a GPU node. The work is done by module_utils/ladder.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_ladder
short_description: Check a GPU node from cheap to expensive, and stop at the first failure
description:
  - Goes on from a first step that is decided on the controller to what the driver grants, copies that are verified at
    their destination, bandwidth, and sums of NCCL (docs/verify-node.md).
  - Changes nothing. Uses the GPUs for seconds; where somebody else uses them, it does not.
  - A fault that it finds is a result, not a failure of the module.
author: Lanewise
attributes:
  check_mode:
    support: full
    description: Checks in check mode as well.
options:
  config:
    description: The first step, config, with its name, status, reason, faults and evidence.
    type: dict
    required: true
  to:
    description: The last step to do.
    type: str
    choices: [config, p2p, copy, rates, allreduce, engine]
    default: engine
  limits:
    description: What step rates judges by.
    type: dict
    default: {}
  python:
    description: For step allreduce, an interpreter on the node that has cuda-bindings, numpy and NCCL.
    type: str
    default: ""
  worker:
    description: For step allreduce, the worker's files, name to text.
    type: dict
    default: {}
  root:
    description: The node's file system; of another than C(/), nothing but the first step can be told.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: What the driver grants, and whether copies arrive
  node_ladder:
    config: {name: config, status: not run, reason: not asked for}
    to: copy
"""

RETURN = r"""
steps:
  description: Every step in its order, with name, status, reason, faults, evidence, measured and seconds.
  type: list
  elements: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402 - Ansible wants the documentation first
from ansible.module_utils.ladder import Asked, climb  # noqa: E402
from ansible.module_utils.ladder_steps import NAMES, Fault, Step  # noqa: E402


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "dict", "required": True},
            "to": {"type": "str", "choices": list(NAMES), "default": NAMES[-1]},
            "limits": {"type": "dict", "default": {}},
            "python": {"type": "str", "default": ""},
            "worker": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    given = asked["config"]
    config = Step(**{**given, "faults": [Fault(**fault) for fault in given.get("faults", [])]})
    climbing = Asked(**{name: asked[name] for name in ("to", "limits", "python", "worker", "root")})
    module.exit_json(changed=False, steps=climb(config, climbing))


if __name__ == "__main__":
    main()
