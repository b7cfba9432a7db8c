#!/usr/bin/python
"""Ansible module: PCI registers of a node. The work is done by module_utils/pci_changes.py and pci_settings.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pci_device
short_description: Set ACS redirect, MaxReadReq and ASPM through PCI configuration space
description:
  - One call does all functions of a node. Only what differs is written; each register is read back.
  - A register that does not have its bits afterwards fails the task, by name, when all others were tried.
  - What a register was before its first change is recorded on disk before it is changed. C(state=reverted) goes back
    to that, touching no other bits, and forgets what was restored.
  - Registers do not survive a reboot. The role pcie installs a unit that sets them again; what that unit changes is
    not recorded, since the next boot without it undoes it.
author: Lanewise
options:
  acs_redirect:
    description:
      - C(clear) clears P2P request redirect, P2P completion redirect and egress control (mask 0x2c) of each root port
        and switch port that has ACS. Empty leaves ACS.
    type: str
    choices: [clear, ""]
    default: ""
  max_read_request:
    description: MaxReadReq in bytes of the functions that match. 0 leaves it.
    type: int
    choices: [0, 128, 256, 512, 1024, 2048, 4096]
    default: 0
  aspm:
    description:
      - C(disabled) turns ASPM off at both ends of each link from the functions that match up to their root ports.
        Empty leaves it.
    type: str
    choices: [disabled, ""]
    default: ""
  match:
    description: Functions that MaxReadReq and ASPM are about, as C(vendor:class), such as C(10de:0302).
    type: list
    elements: str
    default: []
  exclude:
    description: Addresses of functions that are left alone, such as C(0000:01:00.0).
    type: list
    elements: str
    default: []
  state:
    description:
      - C(present) sets the registers, C(reverted) restores all that are recorded, C(read) only reads them.
    type: str
    choices: [present, reverted, read]
    default: present
  root:
    description: Root of the file system that holds C(sys) and the record.
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
    description: One line for each register that is changed.
"""

EXAMPLES = r"""
- name: Peers may reach one another, with large reads and no link power states
  pci_device:
    acs_redirect: clear
    max_read_request: 4096
    aspm: disabled
    match: ["10de:0302", "10de:0300"]

- name: As it was before
  pci_device:
    state: reverted
"""

RETURN = r"""
changes:
  description: Registers that were changed (in check mode, would be). ACS control is a word, MaxReadReq bytes.
  type: list
  elements: dict
  returned: always
  sample: [{address: "0000:a3:00.0", register: max_read_request, before: "512", after: "4096"}]
refused:
  description: Registers that do not have the bits that they shall have, or had to be left, and why.
  type: list
  elements: dict
  returned: always
  sample: [{address: "0000:a3:00.0", register: max_read_request, why: "did not stick: wanted 0x5936, reads 0x2936"}]
registers:
  description: Each register that the options are about, with its value before this run.
  type: list
  elements: dict
  returned: always
  sample: [{address: "0000:a3:00.0", register: aspm, value: l1}]
devices:
  description: How many functions have such a register.
  type: int
  returned: always
"""

from typing import Any  # noqa: E402 - Ansible wants the documentation first

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.before import DEFAULT  # noqa: E402
from ansible.module_utils.node_files import NodeFileError  # noqa: E402
from ansible.module_utils.pci_changes import Outcome, lines, present, reverted  # noqa: E402
from ansible.module_utils.pci_config import shown  # noqa: E402
from ansible.module_utils.pci_settings import READ_REQUESTS, Settings  # noqa: E402

OPTIONS = {
    "acs_redirect": {"type": "str", "choices": ["clear", ""], "default": ""},
    "max_read_request": {"type": "int", "choices": [0, *READ_REQUESTS], "default": 0},
    "aspm": {"type": "str", "choices": ["disabled", ""], "default": ""},
    "match": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "reverted", "read"], "default": "present"},
    "root": {"type": "str", "default": "/"},
    "before": {"type": "str", "default": DEFAULT},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        outcome = _run(module.params, write=not module.check_mode)
    except (ValueError, OSError, NodeFileError) as error:
        module.fail_json(msg=str(error), changes=[], refused=[], registers=[], devices=0)
    else:
        _exit(module, outcome)


def _exit(module: AnsibleModule, outcome: Outcome) -> None:
    result = _result(outcome, read=module.params["state"] == "read")
    for lost in outcome.gone:
        module.warn(str(lost))
    if outcome.faults:
        said = "; ".join(str(fault) for fault in outcome.faults)
        module.fail_json(msg=f"{len(outcome.faults)} registers are not as they shall be: {said}", **result)
    module.exit_json(**result)


def _run(options: dict[str, Any], *, write: bool) -> Outcome:
    if options["state"] == "reverted":
        return reverted(options["root"], options["before"], write=write)
    settings = Settings(
        clear_redirect=options["acs_redirect"] == "clear",
        max_read_request=options["max_read_request"],
        disable_aspm=options["aspm"] == "disabled",
        match=tuple(options["match"]),
        exclude=tuple(options["exclude"]),
    )
    return present(options["root"], options["before"], settings, write=write and options["state"] == "present")


def _result(outcome: Outcome, *, read: bool) -> dict[str, Any]:
    changed = [] if read else outcome.changed
    return {
        "changed": bool(changed),
        "changes": [
            {
                "address": reading.wish.device.address,
                "register": reading.wish.register,
                "before": shown(reading.wish.register, reading.word),
                "after": shown(reading.wish.register, reading.wanted),
            }
            for reading in changed
        ],
        "refused": [
            {"address": fault.address, "register": fault.register, "why": fault.why}
            for fault in outcome.faults + outcome.gone
        ],
        "registers": [
            {
                "address": reading.wish.device.address,
                "register": reading.wish.register,
                "value": shown(reading.wish.register, reading.word),
            }
            for reading in outcome.readings
        ],
        "devices": len({reading.wish.device.address for reading in outcome.readings}),
        "diff": {"before": lines(changed, after=False), "after": lines(changed, after=True)},
    }


if __name__ == "__main__":
    main()
