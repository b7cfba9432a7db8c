"""Run files of servers: written like every run file, and read with every check."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanewise.errors import InputError
from tests.unit.makers import fake_header, fake_plan
from tests.unit.serving.test_serving_plan import plan_of
from tuning.runfile import Kind, read_run
from tuning.runwriter import RunWriter
from tuning.serving.records import Pass, Request, ServerStart, ServingTrial
from tuning.serving.runfile import ServingHeader, ServingRun, ServingWriter, parse_line, read_serving_run
from tuning.trial import Status

REQUEST = Request(
    prompt="p1", category="code", prompt_tokens=7, completion_tokens=64, verify_passes=26, accepted=(1, 2), ttft_ms=3.5,
    seconds=0.25, chunks=3, gaps_ms=(4.0, 5.0), finish="length", output="ab",
)  # fmt: skip
PASS = Pass(
    step_ms=4.8, accept_length=2.4, tokens_per_second=500.0, source="requests", seconds=0.2, running=1.0,
    server_tokens_per_second=499.0, graph_share=1.0, requests=(REQUEST,),
)  # fmt: skip
TRIAL = ServingTrial(
    environment="here", arm="default/2-1-3", concurrency=1, repetition=0, launch="abc", passes=(PASS,),
    warm_up=(4.9, 4.8),
)  # fmt: skip
START = ServerStart(
    launch="abc", environment="here", arm="default/2-1-3", repetition=0, plan="0" * 16, command=("python3",),
    variables={"A": "b"}, ready_seconds=40.5, seconds=50.0, release="0.5.12", resolved={"tp_size": 1, "list": [1]},
    engaged={"allreduce": "none"}, findings=("x",), gpus=({"when": "before", "sm_mhz": "1980"},),
)  # fmt: skip


def header() -> ServingHeader:
    plan = plan_of(speculations=("2/1/3",))
    fields = {name: getattr(fake_header(fake_plan()), name) for name in ServingHeader.__dataclass_fields__}
    return ServingHeader(
        **{**fields, "plan": plan, "environments": {"here": {"python": "3.12"}}, "kind": Kind.MEASURED}
    )


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    with ServingWriter.begin(ServingRun(path=tmp_path / "r.jsonl", header=header())) as writer:
        writer.append(START, TRIAL)
        writer.append(replace(TRIAL, repetition=1, passes=(), status=Status.CRASHED, reason="gone"))
    return tmp_path / "r.jsonl"


def test_what_was_written_is_read_back(run_path: Path) -> None:
    run = read_serving_run(run_path)
    assert run.header == header()
    assert run.starts == {"abc": START}
    assert run.trials[0] == TRIAL
    assert (run.trials[1].status, run.trials[1].reason) == (Status.CRASHED, "gone")
    assert [json.loads(line)["kind"] for line in run_path.read_text().splitlines()[1:]] == [
        "start", "serving_trial", "serving_trial",
    ]  # fmt: skip


def test_a_torn_last_line_is_set_aside_and_the_run_goes_on(run_path: Path) -> None:
    run_path.write_bytes(run_path.read_bytes() + b'{"kind": "sta')
    assert read_serving_run(run_path).torn == 13
    with ServingWriter.go_on(run_path, read_serving_run) as writer:
        writer.append(replace(TRIAL, repetition=2))
    assert len(read_serving_run(run_path).trials) == 3
    assert run_path.with_name("r.jsonl.torn").read_bytes() == b'{"kind": "sta\n'


def test_a_trial_whose_start_was_lost_is_damage_at_its_line(run_path: Path) -> None:
    header_line, _start, *trials = run_path.read_text().splitlines(keepends=True)
    run_path.write_text(header_line + "".join(trials))
    with pytest.raises(InputError, match=r"damaged at line 2: .*start 'abc', of which no line stands before it"):
        read_serving_run(run_path)


def test_a_skipped_trial_needs_no_start(run_path: Path) -> None:
    skipped = replace(TRIAL, launch="", passes=(), status=Status.SKIPPED, reason="not tried again")
    with ServingWriter.go_on(run_path, read_serving_run) as writer:
        writer.append(skipped)
    assert read_serving_run(run_path).trials[-1] == skipped


def test_a_run_of_the_other_benchmark_is_named_as_such(run_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of benchmark 'speculative'"):
        read_run(run_path)
    RunWriter.create(tmp_path / "a.jsonl", fake_header(fake_plan())).close()
    with pytest.raises(InputError, match="of benchmark 'allreduce'"):
        read_serving_run(tmp_path / "a.jsonl")


def line_of(record: ServerStart | ServingTrial) -> dict[str, Any]:
    return json.loads(json.dumps(ServingRun.to_line(record)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("record", "path", "value"),
    [
        (TRIAL, ("status",), "splendid"), (TRIAL, ("passes",), []), (TRIAL, ("passes", 0, "step_ms"), 0),
        (TRIAL, ("passes", 0, "step_ms"), float("nan")), (TRIAL, ("passes", 0, "step_ms"), "4"),
        (TRIAL, ("passes", 0, "accept_length"), -1), (TRIAL, ("passes", 0, "tokens_per_second"), 1e300),
        (TRIAL, ("passes", 0, "requests"), None), (TRIAL, ("passes", 0, "requests", 0, "gaps_ms"), ["1"]),
        (TRIAL, ("passes", 0, "requests", 0, "gaps_ms"), [-1.0]), (TRIAL, ("passes", 0, "requests", 0, "prompt"), 5),
        (TRIAL, ("passes", 0, "requests", 0, "verify_passes"), 2.5), (TRIAL, ("warm_up",), "12"),
        (TRIAL, ("kind",), "x"),
        (TRIAL, ("concurrency",), 0), (TRIAL, ("repetition",), -1), (TRIAL, ("extra",), 1), (TRIAL, ("arm",), None),
        (START, ("command",), "rm"), (START, ("resolved",), [1]), (START, ("resolved",), {"a": float("inf")}),
        (START, ("gpus",), [5]), (START, ("gpus",), {}), (START, ("ready_seconds",), True),
        (START, ("variables",), {"a": 1}),
        (START, ("findings",), [1]), (START, ("engaged",), {"a": None}), (START, ("seconds",), -1.0),
    ],
)  # fmt: skip
def test_a_line_with_an_absurd_field_is_refused(
    record: ServerStart | ServingTrial, path: tuple[Any, ...], value: object
) -> None:
    document = line_of(record)
    parse_line(document)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_line(document)


def test_a_damaged_run_file_is_read_or_refused(run_path: Path) -> None:
    """Bytes that anything may have happened to: no other exception than InputError comes."""
    whole = run_path.read_bytes()
    endings = set()
    for number in range(400):
        draw = random.Random(number)
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            data[at : at + draw.choice((0, 1, 1, 5))] = draw.choice(
                (b"", b"9", b"null", b"[", b'"', b"-", b"\xff", b"e9")
            )
        run_path.write_bytes(data)
        try:
            read_serving_run(run_path)
            endings.add("read")
        except InputError:
            endings.add("refused")
    assert endings == {"read", "refused"}
