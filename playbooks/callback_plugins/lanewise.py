"""Callback plugin: a result file for each node of provision.yml and revert.yml, also of one that failed or is away.

Where the variable LANEWISE_EVENTS names an open file descriptor, as `./inv provision` sets it, a JSON line a step goes
there and nothing is printed; else the results are printed at the end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.plugins.callback import CallbackBase

# Lanewise runs from its clone and is not installed, so ansible-playbook does not know the way to it.
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lanewise.files import write_atomic  # noqa: E402
from playbooks import results  # noqa: E402

DOCUMENTATION = """
name: lanewise
type: notification
short_description: Result files of provision.yml and revert.yml
description:
  - Writes runs/VERB/STAMP/NODE.json, or into the folder that the variable LANEWISE_RESULTS names.
requirements:
  - enabled in ansible.cfg
"""

if TYPE_CHECKING:
    from ansible.executor.stats import AggregateStats
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.inventory.host import Host
    from ansible.playbook import Playbook
    from ansible.playbook.task import Task

VERBS = ("provision", "revert")


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """See the module."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "lanewise"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._verb = ""
        self._seen: dict[str, results.Gathered] = {}
        events = os.environ.pop("LANEWISE_EVENTS", "")
        self._events = int(events) if events.isdecimal() else None
        if self._events is not None:
            os.set_inheritable(self._events, False)  # an ssh master outlives us, and would keep the pipe open

    def v2_playbook_on_start(self, playbook: Playbook) -> None:
        """Take note of the verb; tell the play who runs, for the lease."""
        name = Path(playbook._file_name).stem  # noqa: SLF001 - Ansible has no other way to it
        self._verb = name if name in VERBS else ""
        os.environ["LANEWISE_CONTROLLER"] = f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"
        os.environ["LANEWISE_CONTROLLER_PID"] = str(os.getpid())

    def v2_runner_on_start(self, host: Host, task: Task) -> None:
        """A node begins a step."""
        self._tell(node=host.get_name(), task=task.get_name().strip(), role=_role(task), phase=_phase(task))

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        """A step went well: keep its facts, and what it changed."""
        seen, found = self._node(result), result.result
        facts = found.get("ansible_facts") or {}
        seen.facts.update({name: facts[name] for name in results.FACTS if name in facts})
        if result.is_changed():
            seen.change(_role(result.task), result.task_name, self._difference(found))

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        """A step failed; the first failure is the cause."""
        seen, found = self._node(result), result.result
        if not ignore_errors and not seen.trouble:
            seen.fail(result.task_name, str(found.get("msg") or found.get("stderr") or "it does not say why"))
            self._tell(node=result.host.get_name(), failed=seen.trouble)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        """A node does not answer."""
        seen = self._node(result)
        seen.unreachable, seen.trouble = True, str(result.result.get("msg", ""))
        self._tell(node=result.host.get_name(), failed=seen.trouble)

    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:  # noqa: ARG002 - Ansible calls it by this name
        """Write the results, and print them where nobody else does."""
        if not self._verb or not self._seen:
            return
        now, check = datetime.now(UTC), bool(context.CLIARGS.get("check"))
        default = ROOT / "runs" / self._verb / now.strftime("%Y%m%dT%H%M%SZ")
        folder = Path(os.environ.get("LANEWISE_RESULTS") or default)
        for node, seen in sorted(self._seen.items()):
            ended = now.isoformat(timespec="seconds")
            document = results.document(node, self._verb, seen, check=check, ended=ended)
            write_atomic(
                folder / f"{node.replace(os.sep, '_')}.json", json.dumps(document, indent=1, default=str) + "\n"
            )
            if self._events is None:
                self._display.display(f"{node}: {document['status']}")
                for line in results.reasons(document):
                    self._display.display(f"  {line}")
        if self._events is None:
            self._display.display(f"results: {folder}")

    def _node(self, result: CallbackTaskResult) -> results.Gathered:
        return self._seen.setdefault(result.host.get_name(), results.Gathered())

    def _difference(self, result: dict[str, Any]) -> str:
        found = result.get("diff") or []
        return str(self._get_diff(found if isinstance(found, list) else [found]))

    def _tell(self, **event: str) -> None:
        if self._events is not None and self._verb:
            try:
                os.write(self._events, (json.dumps(event) + "\n").encode())
            except OSError:
                self._events = None  # the reader is gone


def _phase(task: Task) -> str:
    return "preflight" if "preflight" in task.tags else ""


def _role(task: Task) -> str:
    return task._role.get_name() if task._role else ""  # noqa: SLF001 - as above
