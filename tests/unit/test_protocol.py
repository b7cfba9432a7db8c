from __future__ import annotations

import json

import pytest

from tests.unit.makers import fake_candidate
from tuning.plan import Arm
from tuning.protocol import MARK, Ending, LaunchLog, Result
from tuning.trial import Status

A, B = Arm(candidate=fake_candidate("a")), Arm(candidate=fake_candidate("b"))
READY = {"event": "ready", "ranks": 2, "libraries": {"mpi": "Open MPI"}}
DONE = {"event": "done"}


def begin(key: str) -> dict[str, object]:
    return {"event": "begin", "phase": "time", "candidate": key, "message": "m"}


def samples(key: str, *us: object) -> dict[str, object]:
    return {
        "event": "samples",
        "candidate": key,
        "message": "m",
        "mode": "eager",
        "working_set": "warm",
        "round": 0,
        "us": list(us),
    }


def log_of(*events: dict[str, object] | str) -> LaunchLog:
    log = LaunchLog(arms=(A, B), cases=(("m", "eager", "warm"),))
    for event in events:
        log.feed(event if isinstance(event, str) else MARK + json.dumps(event) + "\n")
    return log


def ending(log: LaunchLog, code: int = 0, how: Ending = Ending.EXITED) -> tuple[Result | None, dict[str, Result]]:
    breakage = log.breakage(how, code, 5)
    return breakage, {key: result for (key, _), result in log.results(breakage).items()}


def test_a_launch_that_went_well() -> None:
    log = log_of(
        READY, begin("a#0"), samples("a#0", 1.0, 2.0), begin("b#0"), samples("b#0", 3), samples("b#0", 4), DONE
    )
    breakage, results = ending(log)
    assert breakage is None
    assert results["a#0"] == Result(status=Status.OK, samples=((1.0, 2.0),))
    assert results["b#0"].samples == ((3.0,), (4.0,))


def test_wrong_and_unsupported_arms_do_not_harm_the_others() -> None:
    wrong = {"event": "wrong", "candidate": "b#0", "reason": "3 of 7 sums wrong"}
    _, results = ending(log_of(READY, begin("b#0"), wrong, begin("a#0"), samples("a#0", 1), DONE))
    assert (results["b#0"].status, results["b#0"].reason) == (Status.WRONG_RESULT, "3 of 7 sums wrong")
    assert results["a#0"].status is Status.OK
    unsupported = {"event": "unsupported", "candidate": "b#0", "reason": "no such algorithm"}
    _, results = ending(log_of(READY, unsupported, samples("a#0", 1), DONE))
    assert results["b#0"].status is Status.UNSUPPORTED


def test_a_death_before_the_first_sample_is_launch_failed_and_after_it_crashed() -> None:
    _, results = ending(log_of(READY, begin("b#0")), code=139)
    assert results == {
        "b#0": Result(status=Status.LAUNCH_FAILED, reason="exit code 139 (SIGSEGV) during time, message m")
    }
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1), begin("b#0")), code=1)
    assert {key: r.status for key, r in results.items()} == {"b#0": Status.CRASHED}


def test_a_death_before_any_arm_belongs_to_all() -> None:
    breakage, results = ending(log_of("mpirun: no such file"), code=127)
    assert breakage
    assert {r.status for r in results.values()} == {Status.LAUNCH_FAILED}
    assert len(results) == 2


def test_silence_is_timed_out_and_names_where() -> None:
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1), begin("b#0")), code=143, how=Ending.SILENT)
    assert results["b#0"] == Result(status=Status.TIMED_OUT, reason="no sign of life for 5 s during time, message m")
    assert "a#0" not in results


@pytest.mark.parametrize(
    "event",
    ["{", "[]", "[" * 100_000, {"event": "dance"}, samples("zzz#0", 1), samples("a#0", -1), samples("a#0"),
     samples("a#0", "x"), samples("a#0", float("nan")), {**samples("a#0", 1), "message": "other"},
     {**samples("a#0", 1), "mode": "graph"}, {"event": "choice", "candidate": "a#0", "message": "m"}],
)  # fmt: skip
def test_what_cannot_be_understood_is_unreadable(event: str | dict[str, object]) -> None:
    line = MARK + (event if isinstance(event, str) else json.dumps(event))
    _, results = ending(log_of(READY, begin("a#0"), line, DONE))
    assert results["a#0"].status is Status.UNREADABLE
    assert len(results["a#0"].reason) < 300


def test_a_garbled_line_is_blamed_on_the_arm_that_wrote_it() -> None:
    _, results = ending(log_of(READY, begin("b#0"), MARK + "{", begin("a#0"), samples("a#0", 1), DONE))
    assert {key: result.status for key, result in results.items()} == {"b#0": Status.UNREADABLE}


def test_an_end_without_done_or_without_samples_is_unreadable() -> None:
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1)))
    assert results["a#0"].status is Status.UNREADABLE
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1), DONE))
    assert "b#0, m eager warm" in results["a#0"].reason


def test_the_workers_own_refusal_has_its_reason() -> None:
    _, results = ending(log_of(READY, {"event": "failed", "reason": "no libmpi"}))
    assert {r.reason for r in results.values()} == {"no libmpi"}


def test_talk_is_kept_as_a_bounded_tail() -> None:
    log = log_of(*[f"line {n} " + "x" * 5000 for n in range(500)], "\n")
    assert len(log.tail) == 20
    assert max(map(len, log.tail)) <= 300
    assert log.tail[-1].startswith("line 499")


def test_what_the_library_chose_is_kept_with_the_samples() -> None:
    choice = {
        "event": "choice",
        "candidate": "a#0",
        "message": "m",
        "algorithm": "RING",
        "protocol": "LL",
        "channels": 1,
    }
    _, results = ending(log_of(READY, choice, samples("a#0", 1), samples("b#0", 1), DONE))
    assert results["a#0"].choice == {"algorithm": "RING", "protocol": "LL", "channels": 1}
    assert results["b#0"].choice == {}
