"""Results of nodes: status, exit code, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from lanewise.errors import ExitCode
from playbooks.results import Gathered, Status, document, exit_code, reasons

APPLY = {"setting": "acs", "verdict": "apply", "now": "on", "want": "clear", "why": "faster"}


def result(*, check: bool = False, verb: str = "provision", **seen: Any) -> dict[str, Any]:
    return document("gpu-01", verb, Gathered(**seen), check=check, ended="2026-01-01T00:00:00+00:00")


def changed(**facts: Any) -> dict[str, Any]:
    return {"changes": [{"role": "kernel", "task": "x", "difference": ""}], "facts": facts}


@pytest.mark.parametrize(
    ("seen", "check", "status"),
    [
        ({}, False, Status.UNCHANGED),
        (changed(), False, Status.CHANGED),
        (changed(), True, Status.WOULD_CHANGE),
        (changed(node_outcome={"waiting": {"reboot": ["iommu_mode"]}}), False, Status.WAITING),
        (changed(node_reboot_waits=True), False, Status.WAITING),
        ({"trouble": "x"}, False, Status.FAILED),
        ({"trouble": "x", "facts": {"node_outcome": {"refused": ["y"]}}}, True, Status.REFUSED),
        ({"trouble": "x", "malformed": True}, False, Status.REFUSED),
        ({"trouble": "x", "malformed": True, "facts": {"node_plan_before": {"decisions": []}}}, False, Status.FAILED),
        (
            {"trouble": "x", "facts": {"node_plan_before": {"decisions": []}, "node_outcome": {"refused": ["y"]}}},
            False,
            Status.FAILED,
        ),
        ({"unreachable": True, "trouble": "x"}, False, Status.UNREACHABLE),
    ],
)
def test_status(seen: dict[str, Any], check: bool, status: Status) -> None:
    assert result(check=check, **seen)["status"] == status


def test_the_worst_node_decides_the_exit_code() -> None:
    away, done, would = result(unreachable=True), result(), result(check=True, **changed())
    refused = result(trouble="x", facts={"node_outcome": {"refused": ["y"]}})
    assert exit_code([done]) is ExitCode.DONE
    assert exit_code([done, would]) is ExitCode.ANSWER_IS_NO
    assert exit_code([done, would, away]) is ExitCode.UNREACHABLE
    assert exit_code([away, refused]) is ExitCode.INPUT
    assert exit_code([away, refused, result(trouble="x")]) is ExitCode.FAILED


def test_check_says_what_would_change_and_why_and_nothing_of_waiting() -> None:
    facts = {"node_plan_before": {"decisions": [APPLY]}, "node_outcome": {"waiting": {"reboot": ["x"]}}}
    lines = reasons(result(check=True, **changed(**facts)))
    assert lines == ["would set acs: on -> clear (faster)"]


def test_a_run_that_ended_before_it_looked_again_names_nothing_that_waits() -> None:
    waiting = {"waiting": {"reboot": ["iommu_mode"]}}
    plan, later = {"decisions": [APPLY]}, {"decisions": []}
    facts = {"node_plan_before": plan, "node_outcome": waiting}
    assert result(trouble="x", facts={**facts, "node_plan": plan})["waiting"] == {}
    assert result(trouble="x", facts={**facts, "node_plan": later})["waiting"] == waiting["waiting"]


def test_malformed_wishes_are_told_without_ansibles_words_and_only_the_first_failure_counts() -> None:
    seen = Gathered()
    seen.fail(
        "Decide",
        "Task failed: x: The filter plugin 'node_plan' failed: enable is 'x'\n  expected: a list\n  next:     mend",
    )
    seen.fail("Release", "later")
    assert (seen.trouble, seen.task, seen.malformed) == ("enable is 'x'; expected: a list; next: mend", "Decide", True)
    other = Gathered()
    other.fail("Write", "cannot\n  expected: x")
    assert (other.trouble, other.malformed) == ("cannot\n  expected: x", False)


def test_what_a_play_says_is_refused_before_it_reads_the_node_is_refused() -> None:
    seen = Gathered()
    seen.fail("Refuse tags that no task has", "refused: there is no tag nosuch; expected of all")
    assert document("gpu-01", "revert", seen, check=False, ended="")["status"] == Status.REFUSED


def test_a_long_difference_is_cut_and_says_so() -> None:
    seen = Gathered()
    seen.change("pcie", "files", "x" * 30_000)
    assert len(seen.changes[0]["difference"]) < 21_000
    assert seen.changes[0]["difference"].endswith("cut; see the log\n")


def test_what_revert_left_is_listed() -> None:
    differences = [{"field": "host.kernel_command_line", "before": "a", "after": "b"}]
    lines = reasons(result(verb="revert", **changed(node_differences=differences)))
    assert lines == ["differs from before: host.kernel_command_line: a -> b"]
