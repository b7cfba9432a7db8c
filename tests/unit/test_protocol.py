from __future__ import annotations

import json
from typing import Any

import pytest

from lanewise.redact import Redactor
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


def log_of(*events: dict[str, object] | str, **options: Any) -> LaunchLog:
    log = LaunchLog(arms=(A, B), cases=(("m", "eager", "warm"),), **options)
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
    ["{", "[]", "[" * 100_000, "9" * 5_000, '{"event": "ready", "libraries": {}, "x": -Infinity}',
     '{"event": "ready", "libraries": {}, "x": [1e999]}',
     {"event": "dance"}, {"event": 10**400}, {"event": ["x" * 1000]}, {**READY, "x": float("nan")},
     {**READY, "libraries": [["a", 1]]}, {**READY, "libraries": {"n": 10**400}},
     {"event": "failed", "reason": json.loads("[" * 50 + "]" * 50)},
     {"event": "choice", "candidate": "a#0", "message": "m"},
     samples("zzz#0", 1), samples("a#0", -1), samples("a#0"), samples("a#0", "x"), samples("a#0", "1"),
     samples("a#0", True), samples("a#0", float("nan")), samples("a#0", 10**400), samples("a#0", 1e-7),
     samples("a#0", 1e13), *({**samples("a#0", 1), key: value} for key, value in (
         ("message", "other"), ("message", ["m"]), ("mode", "graph"), ("candidate", ["a#0"]), ("us", {"1": 1}),
         ("us", "1"),
     ))],
)  # fmt: skip
def test_what_cannot_be_understood_is_unreadable(event: str | dict[str, object]) -> None:
    line = MARK + (event if isinstance(event, str) else json.dumps(event))
    work = [samples("a#0", 1), samples("b#0", 1), begin("a#0")]
    assert ending(log_of(READY, *work, DONE))[0] is None
    _, results = ending(log_of(READY, *work, line, DONE))
    assert results["a#0"].status is Status.UNREADABLE
    assert results["a#0"].reason.startswith("cannot understand the worker: ")
    assert len(results["a#0"].reason) < 300


def test_a_garbled_line_is_blamed_on_the_arm_that_wrote_it() -> None:
    _, results = ending(log_of(READY, begin("b#0"), MARK + "{", begin("a#0"), samples("a#0", 1), DONE))
    assert {key: result.status for key, result in results.items()} == {"b#0": Status.UNREADABLE}


def test_an_end_without_done_or_without_samples_is_unreadable() -> None:
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1)))
    assert results["a#0"].status is Status.UNREADABLE
    _, results = ending(log_of(READY, begin("a#0"), samples("a#0", 1), DONE))
    assert set(results) == {"b#0"}, "only the arm that lacks samples is blamed"
    assert "lacks samples of b#0, m eager warm" in results["b#0"].reason


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


SECRET = "s3cr3t-" + "v" * 60
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabcdefghijkl+/\nMIIEmnopqrstuvwx==\n-----END RSA PRIVATE KEY-----"


def everything(log: LaunchLog) -> str:
    breakage = log.breakage(Ending.EXITED, 0, 5)
    return f"{log.tail} {log.libraries} {log.doing} {breakage} {log.results(breakage)}"


@pytest.mark.parametrize(
    "lines",
    [
        ["x" * 270 + SECRET],
        [MARK + "x" * 50 + SECRET],
        [MARK + json.dumps({"event": "dance", "a": "x" * 20, "b": SECRET})],
        [json.dumps({"event": "failed", "reason": f"no: {SECRET}"})],
        [json.dumps({**READY, "libraries": {"mpi": [{"path": f"/x/{SECRET}"}], SECRET: 1}})],
        [json.dumps(begin("a#0") | {"phase": SECRET})],
        [json.dumps({"event": "wrong", "candidate": "a#0", "reason": "y" * 1990 + SECRET})],
        PEM.split("\n"),
    ],
    ids=["talk", "garbled", "unknown event", "failed", "libraries", "phase", "reason", "key"],
)
def test_secrets_are_gone_before_anything_is_cut(lines: list[str]) -> None:
    events = [MARK + line if line.startswith("{") else line for line in lines]
    plain, redacted = log_of(*events), log_of(*events, redact=Redactor({"MY_TOKEN": SECRET}))
    assert "s3cr3t" in everything(plain) or lines[0].startswith("-----")
    assert "s3cr3t" not in everything(redacted)
    assert "MIIE" not in everything(redacted)
    assert "<redacted>" in everything(redacted)


def test_a_secret_that_is_an_ordinary_word_changes_no_meaning() -> None:
    log = log_of(READY, begin("a#0"), samples("a#0", 1), samples("b#0", 1), DONE, redact=lambda text: "<redacted>")
    breakage, results = ending(log)
    assert breakage is None
    assert results["a#0"].samples == ((1.0,),)


def test_events_after_the_last_are_unreadable_and_belong_to_all() -> None:
    work = [READY, begin("a#0"), samples("a#0", 1), begin("b#0"), samples("b#0", 1), DONE]
    assert ending(log_of(*work, "talk"))[0] is None
    for late in (DONE, samples("a#0", 2), {"event": "wrong", "candidate": "a#0", "reason": "x"}):
        _, results = ending(log_of(*work, late))
        assert {key: result.status for key, result in results.items()} == dict.fromkeys(
            ("a#0", "b#0"), Status.UNREADABLE
        )


def rounds(key: str, *numbers: object, us: tuple[object, ...] = (1, 2)) -> list[dict[str, object]]:
    return [{**samples(key, *us), "round": number} for number in numbers]


ASKED = {"rounds": 2, "samples": 2}


def test_what_was_asked_for_is_what_must_come() -> None:
    _, results = ending(log_of(READY, *rounds("a#0", 1, 0), *rounds("b#0", 0, 1), DONE, **ASKED))
    assert {key: result.samples for key, result in results.items()} == dict.fromkeys(
        ("a#0", "b#0"), ((1.0, 2.0), (1.0, 2.0))
    )


@pytest.mark.parametrize(
    "events",
    [rounds("a#0", 0, 0), rounds("a#0", 0, 2), rounds("a#0", 0, -1), rounds("a#0", 0, True), rounds("a#0", 0, 1.0),
     rounds("a#0", 0, None), rounds("a#0", 0, 1, us=(1,)), rounds("a#0", 0, 1, us=(1, 2, 3)), rounds("a#0", 0, "1")],
)  # fmt: skip
def test_samples_that_were_not_asked_for_are_unreadable(events: list[dict[str, object]]) -> None:
    _, results = ending(log_of(READY, *rounds("b#0", 0, 1), begin("a#0"), *events, DONE, **ASKED))
    assert results["a#0"].status is Status.UNREADABLE
    assert "cannot understand" in results["a#0"].reason


def test_rounds_that_never_came_are_said_of_the_arm_that_lacks_them() -> None:
    wrong = {"event": "wrong", "candidate": "a#0", "reason": "x"}
    log = log_of(READY, begin("b#0"), *rounds("b#0", 1), begin("a#0"), *rounds("a#0", 0, 1), DONE, **ASKED)
    _, results = ending(log)
    assert {key: result.status for key, result in results.items()} == {"b#0": Status.UNREADABLE}
    assert results["b#0"].reason == "the worker was done but lacks samples of b#0, m eager warm (1 of 2 rounds)"
    dropped = log_of(READY, *rounds("b#0", 0, 1), *rounds("a#0", 0), wrong, DONE, **ASKED)
    assert ending(dropped)[0] is None
