"""Runs an Ansible module's main() in this process, with its arguments as Ansible gives them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"

if str(PLAYBOOKS / "module_utils") not in ansible.module_utils.__path__:  # on a node, Ansible puts them together
    ansible.module_utils.__path__.append(str(PLAYBOOKS / "module_utils"))


def run_module(
    name: str, capsys: pytest.CaptureFixture[str], *, check: bool = False, **options: object
) -> dict[str, Any]:
    """What the module of this name returns."""
    specification = importlib.util.spec_from_file_location(name, PLAYBOOKS / f"library/{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with patch_module_args({**options, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result
